//! `weald snapshot create`, `rm`, `hold`, `release`, `rollback` and `clone`.

use super::named::{NamedSnapshot, do_work};
use crate::commands::store::wait::WaitArgs;
use crate::help::{DONE_OR_FAILED, Help};
use crate::named_volume::Named;
use crate::output::Output;
use anyhow::bail;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;
use weald_daemon::SnapshotWork;
use weald_vfs::safe_line;

/// A snapshot of a volume.
#[derive(Args, Debug)]
pub(super) struct SnapshotPath {
    /// Snapshot: STORE:VOLUME@NAME
    #[arg(value_name = "STORE:VOLUME@NAME", value_hint = ValueHint::DirPath)]
    snapshot: PathBuf,
}

/// Says what was done, unless the user wants to hear nothing.
fn say(is_quiet: bool, what: &str) -> anyhow::Result<ExitCode> {
    let mut output = Output::new();
    if !is_quiet {
        writeln!(output, "{}", safe_line(what))?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Sections of the help.
pub const CREATE_HELP: Help = Help {
    lists: &[],
    notes: &[
        "Everything that was written to the volume before is in the snapshot, and nothing that \
         comes after. A name has 1 to 200 bytes of UTF-8, no '/', no '@', no control character \
         and no dot in front.",
        "Programs that know no snapshots refuse a store that has had one.",
    ],
    examples: &[(
        "Keep the present state",
        "weald snapshot create /srv/store:home@before",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Keep the present state of a volume
#[derive(Args, Debug)]
#[command(after_help = CREATE_HELP.short(), after_long_help = CREATE_HELP.long())]
pub(super) struct CreateArgs {
    #[command(flatten)]
    path: SnapshotPath,
    #[command(flatten)]
    wait: WaitArgs,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn create(args: &CreateArgs) -> anyhow::Result<ExitCode> {
    let named = NamedSnapshot::open(&args.path.snapshot)?;
    args.wait.until_free(&named.volume.store)?;
    do_work(&named.volume, &SnapshotWork::Take(named.name.clone()))?;
    say(args.quiet, &format!("{}: taken", named.shown()))
}

/// Sections of the help.
pub const RM_HELP: Help = Help {
    lists: &[],
    notes: &[
        "The space that only the snapshot used comes back: at once, or in the background while \
         the volume is mounted. weald store gc gives back the rest of segments that are used in \
         part. If one of several snapshots of a volume cannot be removed, none of them is.",
    ],
    examples: &[(
        "Remove a snapshot",
        "weald snapshot rm /srv/store:home@before",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Remove snapshots
#[derive(Args, Debug)]
#[command(after_help = RM_HELP.short(), after_long_help = RM_HELP.long())]
pub(super) struct RmArgs {
    /// Snapshots: STORE:VOLUME@NAME
    #[arg(value_name = "STORE:VOLUME@NAME", value_hint = ValueHint::DirPath, required = true)]
    snapshots: Vec<PathBuf>,
    #[command(flatten)]
    wait: WaitArgs,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn rm(args: &RmArgs) -> anyhow::Result<ExitCode> {
    let mut of_volumes: Vec<(Named, Vec<String>)> = Vec::new();
    for path in &args.snapshots {
        let NamedSnapshot { volume, name } = NamedSnapshot::open(path)?;
        let is_same = |(other, _): &&mut (Named, Vec<String>)| {
            (&other.dir, &other.name) == (&volume.dir, &volume.name)
        };
        match of_volumes.iter_mut().find(is_same) {
            Some((_, names)) if names.contains(&name) => {
                bail!("{}@{name}: is named twice", volume.shown());
            }
            Some((_, names)) => names.push(name),
            None => of_volumes.push((volume, vec![name])),
        }
    }
    let mut output = Output::new();
    for (volume, names) in of_volumes {
        args.wait.until_free(&volume.store)?;
        do_work(&volume, &SnapshotWork::Remove(names.clone()))?;
        for name in names.iter().filter(|_| !args.quiet) {
            let shown = format!("{}@{name}", volume.shown());
            writeln!(output, "{}: removed", safe_line(&shown))?;
        }
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// Sections of the help.
pub const HOLD_HELP: Help = Help {
    lists: &[],
    notes: &[
        "A tag says who needs the snapshot, and is as free as a name. A snapshot may have 64. rm \
         refuses it while it has one, and prune leaves it.",
    ],
    examples: &[(
        "Keep a snapshot from being removed",
        "weald snapshot hold audit /srv/store:home@before",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Keep a snapshot from being removed
#[derive(Args, Debug)]
#[command(after_help = HOLD_HELP.short(), after_long_help = HOLD_HELP.long())]
pub(super) struct HoldArgs {
    /// Name of the hold
    #[arg(value_name = "TAG")]
    tag: String,
    #[command(flatten)]
    path: SnapshotPath,
    #[command(flatten)]
    wait: WaitArgs,
}

fn set_hold(
    path: &SnapshotPath,
    tag: &str,
    wait: &WaitArgs,
    is_held: bool,
) -> anyhow::Result<ExitCode> {
    let named = NamedSnapshot::open(&path.snapshot)?;
    wait.until_free(&named.volume.store)?;
    let work = SnapshotWork::Hold {
        name: named.name,
        tag: tag.to_owned(),
        is_held,
    };
    do_work(&named.volume, &work)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn hold(args: &HoldArgs) -> anyhow::Result<ExitCode> {
    set_hold(&args.path, &args.tag, &args.wait, true)
}

/// Sections of the help.
pub const RELEASE_HELP: Help = Help {
    lists: &[],
    notes: &["A snapshot without a tag stays, and can be removed."],
    examples: &[(
        "Take a hold away",
        "weald snapshot release audit /srv/store:home@before",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Take a hold of a snapshot away
#[derive(Args, Debug)]
#[command(after_help = RELEASE_HELP.short(), after_long_help = RELEASE_HELP.long())]
pub(super) struct ReleaseArgs {
    /// Name of the hold
    #[arg(value_name = "TAG")]
    tag: String,
    #[command(flatten)]
    path: SnapshotPath,
    #[command(flatten)]
    wait: WaitArgs,
}

pub(super) fn release(args: &ReleaseArgs) -> anyhow::Result<ExitCode> {
    set_hold(&args.path, &args.tag, &args.wait, false)
}

/// Sections of the help.
pub const ROLLBACK_HELP: Help = Help {
    lists: &[],
    notes: &[
        "The volume must not be mounted. What changed since the snapshot is lost, unless a newer \
         snapshot has it: those stay, so that weald snapshot create before a rollback makes it \
         one that can be undone. A rollback that is cut off is completed by the next command that \
         opens the store for writing.",
    ],
    examples: &[(
        "Give a volume the state of a snapshot again",
        "weald snapshot rollback /srv/store:home@before",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Give a volume the state of a snapshot again
#[derive(Args, Debug)]
#[command(after_help = ROLLBACK_HELP.short(), after_long_help = ROLLBACK_HELP.long())]
pub(super) struct RollbackArgs {
    #[command(flatten)]
    path: SnapshotPath,
    #[command(flatten)]
    wait: WaitArgs,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn rollback(args: &RollbackArgs) -> anyhow::Result<ExitCode> {
    let named = NamedSnapshot::open(&args.path.snapshot)?;
    named.volume.refuse_mounted("rolled back")?;
    args.wait.until_free(&named.volume.store)?;
    do_work(&named.volume, &SnapshotWork::RollBack(named.name.clone()))?;
    let shown = named.volume.shown();
    say(args.quiet, &format!("{shown}: is as in @{}", named.name))
}

/// Sections of the help.
pub const CLONE_HELP: Help = Help {
    lists: &[],
    notes: &[
        "The new volume shares all data with the snapshot, and has metadata of its own, about 20 \
         bytes for a file. Neither needs the other: each can be changed and removed. Properties \
         and quotas are those of the snapshot.",
    ],
    examples: &[(
        "Make a volume that starts as a snapshot",
        "weald snapshot clone /srv/store:home@before /srv/store:trial",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Make a volume that starts as a snapshot
#[derive(Args, Debug)]
#[command(after_help = CLONE_HELP.short(), after_long_help = CLONE_HELP.long())]
pub(super) struct CloneArgs {
    #[command(flatten)]
    path: SnapshotPath,
    /// Volume to make, in the same store: STORE:NAME
    #[arg(value_name = "STORE:NAME", value_hint = ValueHint::DirPath)]
    volume: PathBuf,
    #[command(flatten)]
    wait: WaitArgs,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
}

pub(super) fn clone(args: &CloneArgs) -> anyhow::Result<ExitCode> {
    let named = NamedSnapshot::open(&args.path.snapshot)?;
    let new = Named::open(&args.volume)?;
    if new.dir != named.volume.dir {
        bail!(
            "{}: is in another store than {}: a clone shares its data, and lies beside it",
            new.shown(),
            named.shown()
        );
    }
    let work = SnapshotWork::Clone {
        name: named.name.clone(),
        new: new.name.clone(),
    };
    args.wait.until_free(&named.volume.store)?;
    do_work(&named.volume, &work)?;
    let (from, to) = (named.shown(), new.shown());
    say(args.quiet, &format!("{to}: starts as {from}"))
}
