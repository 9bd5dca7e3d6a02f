//! `weald volume ls` and `info`.

use super::set::Files;
use crate::help::{DONE_OR_FAILED, Help};
use crate::json::{Object, put_name};
use crate::named_volume::{Named, VolumePath};
use crate::open_store::open;
use crate::output::Output;
use crate::progress::bytes;
use crate::reported_mounts::{Mounted, place_of};
use clap::{Args, ValueHint};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use weald_daemon::{MountPlace, MountReport, VolumeProperties, VolumeReport};
use weald_format::{ErrorKind, Timestamp};
use weald_vfs::{safe_line, shown, utc_seconds};

/// Sections of the help.
pub const LS_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Columns: size of a chunk; codec; name. While a volume of the store is mounted, only names \
         are shown; weald volume info shows the properties of the mounted one.",
    ],
    examples: &[
        ("List the volumes of a store", "weald volume ls /srv/store"),
        (
            "Print their names",
            "weald volume ls --json /srv/store | jq -r .name",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// List the volumes of a store
#[derive(Args, Debug)]
#[command(after_help = LS_HELP.short(), after_long_help = LS_HELP.long())]
pub(super) struct LsArgs {
    /// Directory of the store
    #[arg(value_name = "STORE", value_hint = ValueHint::DirPath)]
    store: PathBuf,
    /// Print one JSON object per volume
    #[arg(long)]
    json: bool,
}

pub(super) fn ls(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let store = open(&args.store)?;
    let mut names = store.volume_names()?;
    // The tables are locked while a volume of the store is mounted; the names are not.
    let known = match weald_volume::list(&store) {
        _ if names.is_empty() => Vec::new(),
        Err(error) if error.kind() == ErrorKind::Busy => Vec::new(),
        other => {
            let known = other?;
            // A crash can leave the name of a volume that was not complete.
            names.retain(|name| known.iter().any(|volume| volume.name == *name));
            known
        }
    };
    let mut output = Output::new();
    for name in &names {
        let volume = known.iter().find(|volume| volume.name == *name);
        let volume = volume.map(VolumeProperties::from);
        if args.json {
            output.json(&json(name, volume.as_ref()).into())?;
            continue;
        }
        let (len, codec) = match &volume {
            Some(volume) => (bytes(volume.chunk_len.into()), volume.codec.as_str()),
            None => ("-".to_owned(), "-"),
        };
        write!(output, "{len:>10}  {codec:<8}  ")?;
        output.name(name.as_bytes())?;
        writeln!(output)?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn json(name: &str, volume: Option<&VolumeProperties>) -> Object {
    let mut object = Object::new();
    object.insert("name".into(), name.into());
    object.insert("chunk_len".into(), volume.map(|v| v.chunk_len).into());
    object.insert("codec".into(), volume.map(|v| v.codec.as_str()).into());
    object.insert(
        "is_case_insensitive".into(),
        volume.map(|v| v.is_case_insensitive).into(),
    );
    object
}

/// Sections of the help.
pub const INFO_HELP: Help = Help {
    lists: &[],
    notes: &[
        "If the volume is mounted, info shows where, and the process id of its server. After an \
         error of the disk a mounted volume is read-only; info then shows the reason. weald \
         volume stat shows its space.",
    ],
    examples: &[
        ("Describe a volume", "weald volume info /srv/store:home"),
        (
            "Print its mount point",
            "weald volume info --json /srv/store:home | jq -r .dir",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Show the properties of a volume, and where it is mounted
#[derive(Args, Debug)]
#[command(after_help = INFO_HELP.short(), after_long_help = INFO_HELP.long())]
pub(super) struct InfoArgs {
    #[command(flatten)]
    path: VolumePath,
    /// Show the properties of these files and directories of the volume instead
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Print one JSON object, or one for each path
    #[arg(long)]
    json: bool,
}

pub(super) fn info(args: &InfoArgs) -> anyhow::Result<ExitCode> {
    let named = Named::open(&args.path.volume)?;
    named.find()?;
    if !args.paths.is_empty() {
        return info_of_paths(&named, args);
    }
    let (volume, mounted) = named.properties()?;
    let mut output = Output::new();
    if args.json {
        output.json(&info_json(&named.name, &volume, mounted.as_ref()).into())?
    } else {
        output.text(&info_text(&named.name, &volume, mounted.as_ref()))?
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn info_of_paths(named: &Named, args: &InfoArgs) -> anyhow::Result<ExitCode> {
    let files = Files::open(named, true)?;
    let mut output = Output::new();
    for path in &args.paths {
        let properties = files.properties(path)?;
        if args.json {
            let mut object = Object::new();
            put_name(&mut object, "path", path.as_os_str().as_bytes());
            for (word, value) in properties {
                let number = value.as_ref().and_then(|value| value.parse::<u64>().ok());
                object.insert(
                    word.into(),
                    match number {
                        Some(number) => number.into(),
                        None => value.into(),
                    },
                );
            }
            output.json(&object.into())?;
            continue;
        }
        output.text(&format!("{:<20}", "path"))?;
        output.name(path.as_os_str().as_bytes())?;
        writeln!(output)?;
        for (word, value) in properties {
            let is_len = matches!(word, "chunk" | "quota" | "used");
            let number = value.as_ref().and_then(|value| value.parse().ok());
            let shown = match (value, number) {
                (_, Some(number)) if is_len => bytes(number),
                (Some(value), _) => value,
                (None, _)
                    if matches!(word, "compress" | "chunk" | "chunking" | "dedup" | "tier") =>
                {
                    "default".into()
                }
                (None, _) => continue,
            };
            writeln!(output, "{:<20}{shown}", word.replace('_', " "))?;
        }
    }
    output.finish()?;
    files.close()?;
    Ok(ExitCode::SUCCESS)
}

fn failure_of(mount: &MountReport) -> Option<&str> {
    mount.space.as_ref()?.failure.as_deref()
}

/// Since when and why a volume is read-only.
pub(super) fn failure_text(report: &VolumeReport) -> Option<String> {
    let failure = report.failure.as_deref()?;
    let time = report.failed_at.and_then(|at| i64::try_from(at).ok());
    Some(match time {
        Some(seconds) => {
            let time = Timestamp {
                seconds,
                nanoseconds: 0,
            };
            format!("{} UTC: {}", utc_seconds(time), safe_line(failure))
        }
        None => safe_line(failure).into_owned(),
    })
}

fn info_json(name: &str, volume: &VolumeProperties, mounted: Option<&Mounted>) -> Object {
    let mut object = json(name, Some(volume));
    object.insert("is_mounted".into(), mounted.is_some().into());
    if let Some((pid, mount)) = mounted {
        object.insert("server_pid".into(), (*pid).into());
        put_name(&mut object, "dir", mount.dir.as_bytes());
        let is_here = matches!(place_of(mount), MountPlace::Here(_));
        object.insert("is_mounted_here".into(), is_here.into());
        object.insert("options".into(), mount.options.join(",").into());
        object.insert("failure".into(), failure_of(mount).into());
        let failed_at = mount.space.as_ref().and_then(|space| space.failed_at);
        object.insert("failed_at".into(), failed_at.into());
    }
    object
}

fn info_text(name: &str, volume: &VolumeProperties, mounted: Option<&Mounted>) -> String {
    let names = if volume.is_case_insensitive {
        "found without regard to case"
    } else {
        "case-sensitive"
    };
    let mut lines = vec![
        ("volume", name.to_owned()),
        ("chunk", bytes(volume.chunk_len.into())),
        ("codec", volume.codec.clone()),
        ("names", names.to_owned()),
    ];
    match mounted {
        None => lines.push(("mounted", "no".to_owned())),
        Some((pid, mount)) => {
            lines.push((
                "mounted",
                match place_of(mount) {
                    MountPlace::Here(_) => {
                        format!("{}, by process {pid}", shown(mount.dir.as_bytes()))
                    }
                    place => format!("not here: it {}", place.describe(*pid)),
                },
            ));
            if let Some(failure) = mount.space.as_ref().and_then(failure_text) {
                lines.push(("read-only since", failure));
            }
        }
    }
    lines
        .iter()
        .map(|(word, value)| format!("{word:<20}{value}\n"))
        .collect()
}
