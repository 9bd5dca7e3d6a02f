//! `weald snapshot ls`.

use super::named::do_work;
use crate::help::{DONE_OR_FAILED, Help};
use crate::json::Object;
use crate::metrics::{gauge, label};
use crate::named_volume::{Named, VolumePath};
use crate::output::Output;
use crate::progress::{bytes, count};
use clap::Args;
use std::process::ExitCode;
use weald_daemon::{SnapshotReport, SnapshotSpaceReport, SnapshotWork};
use weald_format::Timestamp;
use weald_vfs::utc_seconds;

/// Sections of the help.
pub const LS_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Columns: when the snapshot was taken, in UTC; rows that changed after it and are kept; \
         bytes of data that its removal would free; name; tags that hold it, after a plus sign. \
         The oldest comes first. Data that two snapshots share, and nothing else, is free when \
         both are gone: --range shows the sum for all from one to another.",
    ],
    examples: &[
        (
            "List the snapshots of a volume",
            "weald snapshot ls /srv/store:home",
        ),
        (
            "Show what the removal of several would free",
            "weald snapshot ls --range monday before /srv/store:home",
        ),
        (
            "Write figures for node_exporter",
            "weald snapshot ls --prometheus /srv/store:home > /var/lib/node_exporter/home.prom",
        ),
        (
            "Print their names",
            "weald snapshot ls --json /srv/store:home | jq -r .name",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// List the snapshots of a volume
#[derive(Args, Debug)]
#[command(after_help = LS_HELP.short(), after_long_help = LS_HELP.long())]
pub(super) struct LsArgs {
    #[command(flatten)]
    path: VolumePath,
    /// Show what the removal of the snapshots from FIRST to LAST would free together
    #[arg(long, num_args = 2, value_names = ["FIRST", "LAST"])]
    range: Option<Vec<String>>,
    /// Print one JSON object per snapshot
    #[arg(long)]
    json: bool,
    /// Print figures for Prometheus
    #[arg(long, conflicts_with_all = ["json", "range"])]
    prometheus: bool,
}

pub(super) fn ls(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let volume = Named::open(&args.path.volume)?;
    volume.find()?;
    let mut output = Output::new();
    let work = match args.range.as_deref() {
        Some([first, last]) => SnapshotWork::Range {
            first: first.clone(),
            last: last.clone(),
        },
        _ => SnapshotWork::List(true),
    };
    let found = do_work(&volume, &work)?;
    if args.prometheus {
        output.text(&metrics(&found, &volume)?)?;
        output.finish()?;
        return Ok(ExitCode::SUCCESS);
    }
    for snapshot in found {
        if args.json {
            output.json(&json(&snapshot).into())?;
            continue;
        }
        let space = space_of(&snapshot);
        write!(
            output,
            "{}  {:>9}  {:>10}  ",
            utc_seconds(time_of(&snapshot)),
            count(space.kept_count),
            bytes(space.own_len)
        )?;
        output.name(snapshot.name.as_bytes())?;
        if snapshot.is_mounted {
            write!(output, "  [mounted]")?;
        }
        for tag in &snapshot.holds {
            write!(output, "  +")?;
            output.name(tag.as_bytes())?;
        }
        writeln!(output)?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn space_of(snapshot: &SnapshotReport) -> SnapshotSpaceReport {
    snapshot.space.unwrap_or_default()
}

/// A figure of a snapshot.
type Figure = dyn Fn(&SnapshotReport) -> f64;

/// Figures of all snapshots of a volume.
fn metrics(found: &[SnapshotReport], volume: &Named) -> anyhow::Result<String> {
    let (store, name) = (volume.dir.to_string_lossy(), &volume.name);
    let of_volume = format!("store=\"{}\",volume=\"{}\"", label(&store), label(name));
    let of_each = |figure: &Figure| -> Vec<(String, f64)> {
        let each = found.iter().map(|snapshot| {
            let name = label(&snapshot.name);
            (format!("{of_volume},snapshot=\"{name}\""), figure(snapshot))
        });
        each.collect()
    };
    let mut text = gauge(
        ("weald_snapshots", "Snapshots of the volume."),
        &[(of_volume.clone(), found.len() as f64)],
    );
    let figures: [(_, &Figure); 4] = [
        (
            ("weald_snapshot_created_seconds", "When it was taken."),
            &|snapshot| time_of(snapshot).seconds as f64,
        ),
        (
            (
                "weald_snapshot_kept_rows",
                "Rows that changed after it and are kept.",
            ),
            &|snapshot| space_of(snapshot).kept_count as f64,
        ),
        (
            (
                "weald_snapshot_own_bytes",
                "Bytes that its removal would free.",
            ),
            &|snapshot| space_of(snapshot).own_len as f64,
        ),
        (
            ("weald_snapshot_holds", "Tags that hold it."),
            &|snapshot| snapshot.holds.len() as f64,
        ),
    ];
    for (head, figure) in figures {
        let samples = of_each(figure);
        if !samples.is_empty() {
            text.push_str(&gauge(head, &samples));
        }
    }
    Ok(text)
}

/// When a snapshot was taken.
fn time_of(snapshot: &SnapshotReport) -> Timestamp {
    Timestamp {
        seconds: snapshot.created.div_euclid(1_000_000_000),
        nanoseconds: snapshot.created.rem_euclid(1_000_000_000) as u32,
    }
}

fn json(snapshot: &SnapshotReport) -> Object {
    let space = space_of(snapshot);
    let mut object = Object::new();
    object.insert("name".into(), snapshot.name.as_str().into());
    object.insert("created".into(), utc_seconds(time_of(snapshot)).into());
    object.insert("commit".into(), snapshot.commit.into());
    object.insert("holds".into(), snapshot.holds.clone().into());
    object.insert("is_mounted".into(), snapshot.is_mounted.into());
    object.insert("kept_rows".into(), space.kept_count.into());
    object.insert("own_rows".into(), space.own_count.into());
    object.insert("own_bytes".into(), space.own_len.into());
    object
}
