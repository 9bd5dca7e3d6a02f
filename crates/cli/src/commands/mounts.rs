//! `weald mounts`: shows mounts, their servers, and statistics of both.

use super::dead;
use crate::help::{DONE_OR_FAILED, Help};
use crate::json::{Object, put_name};
use crate::output::Output;
use crate::progress::bytes;
use crate::runtime_dir::runtime_dir_path;
use anyhow::Result;
use clap::Args;
use serde_json::Value;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use weald_daemon::{
    MountReport, OperationReport, Quantile, RuntimeDir, ServerReport, prometheus, reports,
};
use weald_fuse::{DeviceNo, MountEntry};
use weald_vfs::{safe_line, shown};
use weald_views::kernel::{self, KernelMount};

/// Interval of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Moves the cursor to the top left and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Columns of a mount: requests of the kernel; cache hit rate; requests in flight; requests \
         that failed on an unreadable image; bytes read.",
        "DIGEST of a volume is the word volume; weald volume stat shows its space.",
        "Mounts that the kernel serves (weald mount --kernel) stand behind those of servers. They \
         have no statistics.",
        "Mounts whose server has died stand last: an access to them fails (Transport endpoint is \
         not connected). weald umount removes one, and so does a new mount on the same directory.",
        "Weald shows only mounts of the current user whose servers run in the same mount \
         namespace.",
    ],
    examples: &[
        ("Show all mounts and servers", "weald mounts"),
        ("Show request latency", "weald mounts --latency"),
        (
            "Print mount points",
            "weald mounts --json | jq -r 'select(.type == \"mount\") | .dir'",
        ),
        (
            "Export metrics to Prometheus",
            "weald mounts --prometheus > /var/lib/node_exporter/weald.prom",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Show mounts, their servers and statistics
#[derive(Debug, Args)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct MountsArgs {
    /// Repeat every second until interrupted
    #[arg(short, long)]
    pub watch: bool,
    /// Show request latency per operation: count, mean, percentiles
    #[arg(short, long, conflicts_with_all = ["json", "prometheus"])]
    pub latency: bool,
    /// Print one JSON object per server and per mount
    #[arg(long)]
    pub json: bool,
    /// Print metrics in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub prometheus: bool,
}

/// Prints what the servers tell.
///
/// # Errors
/// A runtime directory that is not this user's alone.
pub fn run(args: &MountsArgs) -> Result<ExitCode> {
    loop {
        let mut servers = match RuntimeDir::find(&runtime_dir_path())? {
            Some(runtime_dir) => reports(&runtime_dir)?,
            None => Vec::new(),
        };
        let by_kernel = kernel::mounts()?;
        let known: Vec<_> = servers
            .iter()
            .flat_map(|server| &server.mounts)
            .filter_map(|mount| DeviceNo::parse(&mount.device))
            .collect();
        let dead = dead::all(|device| known.contains(&device))?;
        let mut output = Output::new();
        let is_terminal = output.is_terminal();
        if args.watch && is_terminal {
            output.raw().write_all(CLEAR.as_bytes())?;
        }
        match (args.json, args.prometheus) {
            (true, _) => {
                servers
                    .iter()
                    .try_for_each(|server| put_json(&mut output, server))?;
                by_kernel
                    .iter()
                    .try_for_each(|mount| put_kernel_json(&mut output, mount))?;
                dead.iter()
                    .try_for_each(|mount| put_dead_json(&mut output, mount))?;
            }
            (_, true) => {
                servers.iter_mut().for_each(make_labels_safe);
                output.text(&prometheus(&servers))?;
                output.text(&dead_metric(&dead))?;
            }
            _ => {
                put_tables(&mut output, &servers, args.latency)?;
                put_kernel_table(&mut output, &by_kernel)?;
                put_dead_table(&mut output, &dead)?;
            }
        }
        if !args.watch {
            output.finish()?;
            return Ok(ExitCode::SUCCESS);
        }
        if !is_terminal && !args.json {
            writeln!(output)?;
        }
        output.finish()?;
        std::thread::sleep(WATCH_INTERVAL);
    }
}

/// Escapes control characters in paths that become labels. The Prometheus format has escapes only
/// for quotes, backslashes and newlines.
fn make_labels_safe(server: &mut ServerReport) {
    for mount in &mut server.mounts {
        for path in [&mut mount.dir, &mut mount.image] {
            *path = safe_line(&path.to_string_lossy()).into_owned().into();
        }
    }
}

fn put_tables(output: &mut Output, servers: &[ServerReport], has_latency: bool) -> Result<()> {
    for server in servers {
        writeln!(output, "{}", server_line(server))?;
        let mut rows = vec![HEAD.map(str::to_owned)];
        rows.extend(server.mounts.iter().map(row));
        if rows.len() > 1 {
            put_rows(output, &rows, 3)?;
        }
        for mount in server.mounts.iter().filter(|_| has_latency) {
            writeln!(output, "{}", shown(mount.dir.as_bytes()))?;
            let mut rows = vec![LATENCY_HEAD.map(str::to_owned)];
            rows.extend(
                mount
                    .operations
                    .iter()
                    .filter(|o| o.count > 0)
                    .map(latency_row),
            );
            put_rows(output, &rows, 1)?;
        }
    }
    Ok(())
}

/// Writes the mounts that the kernel serves.
fn put_kernel_table(output: &mut Output, mounts: &[KernelMount]) -> Result<()> {
    if mounts.is_empty() {
        return Ok(());
    }
    writeln!(output, "kernel: {} mounts", mounts.len())?;
    let mut rows = vec![KERNEL_HEAD.map(str::to_owned)];
    rows.extend(mounts.iter().map(|mount| {
        let upper = mount.upper.as_ref();
        let upper = upper.map_or_else(|| "-".to_owned(), |dir| shown(dir.as_os_str().as_bytes()));
        [
            shown(mount.dir.as_os_str().as_bytes()),
            shown(mount.image.as_os_str().as_bytes()),
            if mount.is_verified { "yes" } else { "no" }.to_owned(),
            upper,
        ]
    }));
    put_rows(output, &rows, 4)
}

fn put_kernel_json(output: &mut Output, mount: &KernelMount) -> Result<()> {
    let mut json = Object::new();
    json.insert("type".into(), "kernel_mount".into());
    let mut put = |name, path: Option<&PathBuf>| match path {
        Some(path) => put_name(&mut json, name, path.as_os_str().as_bytes()),
        None => drop(json.insert(name.into(), Value::Null)),
    };
    put("dir", Some(&mount.dir));
    put("image", Some(&mount.image));
    put("objects", mount.objects.as_ref());
    put("upper", mount.upper.as_ref());
    json.insert("is_verified".into(), mount.is_verified.into());
    Ok(output.json(&json.into())?)
}

/// Writes the mounts whose servers have died.
fn put_dead_table(output: &mut Output, mounts: &[MountEntry]) -> Result<()> {
    if mounts.is_empty() {
        return Ok(());
    }
    writeln!(
        output,
        "dead, their servers have ended (weald umount DIR removes one): {}",
        mounts.len()
    )?;
    let mut rows = vec![["DIR", "IMAGE"].map(str::to_owned)];
    rows.extend(mounts.iter().map(|mount| {
        let dir = shown(mount.dir.as_os_str().as_bytes());
        [dir, shown(mount.source.as_bytes())]
    }));
    put_rows(output, &rows, 2)
}

fn dead_metric(mounts: &[MountEntry]) -> String {
    let label = |text: &str| safe_line(text).replace('\\', r"\\").replace('"', "\\\"");
    let line = |mount: &MountEntry| {
        format!(
            "weald_dead_mount{{dir=\"{}\",image=\"{}\"}} 1\n",
            label(&mount.dir.to_string_lossy()),
            label(&mount.source.to_string_lossy())
        )
    };
    let lines: String = mounts.iter().map(line).collect();
    format!(
        "# HELP weald_dead_mount A mount whose server has died.\n\
         # TYPE weald_dead_mount gauge\n{lines}"
    )
}

fn put_dead_json(output: &mut Output, mount: &MountEntry) -> Result<()> {
    let mut json = Object::new();
    json.insert("type".into(), "dead_mount".into());
    put_name(&mut json, "dir", mount.dir.as_os_str().as_bytes());
    put_name(&mut json, "image", mount.source.as_bytes());
    Ok(output.json(&json.into())?)
}

const KERNEL_HEAD: [&str; 4] = ["DIR", "IMAGE", "VERIFIED", "WRITABLE LAYER"];

const HEAD: [&str; 9] = [
    "DIR",
    "IMAGE",
    "DIGEST",
    "GEN",
    "REQUESTS",
    "HITS",
    "IN FLIGHT",
    "ERRORS",
    "READ",
];

const LATENCY_HEAD: [&str; 7] = ["OPERATION", "COUNT", "ERRORS", "MEAN", "P50", "P99", "MAX"];

fn server_line(server: &ServerReport) -> String {
    let kind = if server.is_shared {
        "shared"
    } else {
        "isolated"
    };
    let cache = &server.cache;
    format!(
        "server {} ({kind}, weald {}): {} mounts, memory {}, cache {} of {}, {} descriptors",
        server.pid,
        server.version,
        server.mount_count,
        bytes(server.resident_len),
        bytes(cache.used_len),
        bytes(cache.len_max),
        server.descriptor_count
    )
}

fn row(mount: &MountReport) -> [String; 9] {
    let hits = mount.cache.hit_rate();
    let (digest, generation) = match mount.volume {
        Some(_) => ("volume".to_owned(), "-".to_owned()),
        None => (
            mount.image_digest.chars().take(12).collect(),
            mount.generation.to_string(),
        ),
    };
    [
        shown(mount.dir.as_bytes()),
        shown(mount.image.as_bytes()),
        digest,
        generation,
        mount.request_count().to_string(),
        hits.map_or_else(|| "-".to_owned(), |rate| format!("{:.1}%", rate * 100.0)),
        mount.in_flight.to_string(),
        mount.error_count.to_string(),
        bytes(mount.read_len),
    ]
}

fn latency_row(operation: &OperationReport) -> [String; 7] {
    let mean = operation.mean_us();
    let quantile = |share| match operation.quantile(share) {
        Quantile::None => "-".to_owned(),
        Quantile::Below(us) => format!("< {}", time(us as f64)),
        Quantile::AtLeast(us) => format!(">= {}", time(us as f64)),
    };
    [
        operation.name.clone(),
        operation.count.to_string(),
        operation.error_count.to_string(),
        mean.map_or_else(|| "-".to_owned(), time),
        quantile(0.5),
        quantile(0.99),
        quantile(1.0),
    ]
}

/// Formats microseconds with a unit that keeps the number short.
fn time(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.3} us").replace(".000", ""),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// Writes rows in columns. The first `left_count` columns are aligned left, the others right.
fn put_rows<const N: usize>(
    output: &mut Output,
    rows: &[[String; N]],
    left_count: usize,
) -> Result<()> {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    for row in rows {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, &width))| {
                if column < left_count {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
        let line = cells.collect::<Vec<_>>().join("  ");
        writeln!(output, "  {}", line.trim_end())?;
    }
    Ok(())
}

fn put_json(output: &mut Output, server: &ServerReport) -> Result<()> {
    let mut json = object(serde_json::to_value(server)?, "server");
    json.remove("mounts");
    output.json(&json.into())?;
    for mount in &server.mounts {
        let mut json = object(serde_json::to_value(mount)?, "mount");
        put_name(&mut json, "dir", mount.dir.as_bytes());
        put_name(&mut json, "image", mount.image.as_bytes());
        json.insert("server_pid".into(), server.pid.into());
        json.insert("request_count".into(), mount.request_count().into());
        output.json(&json.into())?;
    }
    Ok(())
}

fn object(value: Value, kind: &str) -> Object {
    let mut object = match value {
        Value::Object(object) => object,
        _ => Object::new(),
    };
    object.insert("type".into(), kind.into());
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_few_digits() {
        for (us, text) in [
            (1.0, "1 us"),
            (1.25, "1.250 us"),
            (2048.0, "2.0 ms"),
            (3e6, "3.0 s"),
        ] {
            assert_eq!(time(us), text);
        }
    }
}
