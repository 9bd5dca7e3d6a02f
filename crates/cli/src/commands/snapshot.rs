//! `weald snapshot`: states of a volume that stay.

mod change;
mod named;
mod prune;
mod show;

use crate::help::{DONE_OR_FAILED, Help};
use crate::open_store::silence_engine;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "A snapshot is a state of a volume with a name, STORE:VOLUME@NAME, that does not change. \
         It takes no space at first; what changes in the volume afterwards is kept for it. The \
         volume may be mounted or not.",
        "A mounted volume has its snapshots below .snapshots at the root, a directory that no \
         listing shows: cp /mnt/.snapshots/before/file /mnt brings a file back. Whoever could \
         read a file when the snapshot was taken can read it there, whatever its mode is now.",
        "weald snapshot rollback gives the whole volume the state of a snapshot again, and weald \
         snapshot clone makes another volume of it, which can change.",
        "weald volume set --quota does not count what snapshots keep. weald snapshot ls shows \
         what each would free. A snapshot is no backup: it lies in the same store.",
    ],
    examples: &[
        (
            "Keep the present state",
            "weald snapshot create /srv/store:home@before",
        ),
        ("List what is kept", "weald snapshot ls /srv/store:home"),
        (
            "Remove a snapshot",
            "weald snapshot rm /srv/store:home@before",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Keep states of a volume, and bring them back
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Subcommand, Debug)]
enum SnapshotCommand {
    Create(change::CreateArgs),
    Ls(show::LsArgs),
    Rm(change::RmArgs),
    Prune(prune::PruneArgs),
    Hold(change::HoldArgs),
    Release(change::ReleaseArgs),
    Rollback(change::RollbackArgs),
    Clone(change::CloneArgs),
}

/// Runs the command.
pub fn run(args: &SnapshotArgs) -> anyhow::Result<ExitCode> {
    silence_engine();
    match &args.command {
        SnapshotCommand::Create(args) => change::create(args),
        SnapshotCommand::Ls(args) => show::ls(args),
        SnapshotCommand::Rm(args) => change::rm(args),
        SnapshotCommand::Prune(args) => prune::prune(args),
        SnapshotCommand::Hold(args) => change::hold(args),
        SnapshotCommand::Release(args) => change::release(args),
        SnapshotCommand::Rollback(args) => change::rollback(args),
        SnapshotCommand::Clone(args) => change::clone(args),
    }
}

/// Sections of the help of `weald snapshot NAME`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "create" => &change::CREATE_HELP,
        "ls" => &show::LS_HELP,
        "rm" => &change::RM_HELP,
        "prune" => &prune::HELP,
        "hold" => &change::HOLD_HELP,
        "release" => &change::RELEASE_HELP,
        "rollback" => &change::ROLLBACK_HELP,
        "clone" => &change::CLONE_HELP,
        _ => return None,
    })
}
