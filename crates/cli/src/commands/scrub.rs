//! `weald scrub`: every byte of a store is read, while its volumes are in use.

mod change;
mod due;
mod perform;
mod policy;
mod show;

use crate::help::{Help, SCRUBBED};
use crate::open_store::silence_engine;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "A scrub reads every block of a store and compares it with its digest; it reads maps, \
         logs, the journal and the tables, and counts references and space again. It names the \
         files that damage costs: of volumes, of their snapshots as VOLUME@NAME, and of images. \
         Nothing is repaired, but a damaged block attracts no duplicates any more: equal data that \
         is written again is stored again.",
        "While a volume of the store is mounted, its server does it, in steps beside everything \
         else. Otherwise the command itself does it; a volume can be mounted meanwhile, and its \
         server goes on. A scrub that is interrupted, by a kill or a power cut, goes on where it \
         was, when a volume of the store is mounted, or with weald scrub resume.",
        "weald store scrub, in contrast, repairs a store from its replicas, and needs it for \
         itself.",
    ],
    examples: &[
        ("Read every byte of a store", "weald scrub start /srv/store"),
        (
            "Read 50 MiB a second at most",
            "weald scrub start --rate 50M /srv/store",
        ),
        ("Show how far it is", "weald scrub status /srv/store"),
    ],
    exit_status: SCRUBBED,
};

/// Verify every byte of a store while it is in use
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct ScrubArgs {
    #[command(subcommand)]
    command: ScrubCommand,
}

#[derive(Subcommand, Debug)]
enum ScrubCommand {
    Start(change::StartArgs),
    Pause(change::PauseArgs),
    Resume(change::ResumeArgs),
    Status(show::StatusArgs),
    Set(policy::SetArgs),
    RunDue(policy::RunDueArgs),
}

/// Runs the command.
pub fn run(args: &ScrubArgs) -> anyhow::Result<ExitCode> {
    silence_engine();
    match &args.command {
        ScrubCommand::Start(args) => change::start(args),
        ScrubCommand::Pause(args) => change::pause(args),
        ScrubCommand::Resume(args) => change::resume(args),
        ScrubCommand::Status(args) => show::status(args),
        ScrubCommand::Set(args) => policy::set(args),
        ScrubCommand::RunDue(args) => policy::run_due(args),
    }
}

/// Sections of the help of `weald scrub NAME`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "start" => &change::START_HELP,
        "pause" => &change::PAUSE_HELP,
        "resume" => &change::RESUME_HELP,
        "status" => &show::STATUS_HELP,
        "set" => &policy::SET_HELP,
        "run-due" => &policy::RUN_DUE_HELP,
        _ => return None,
    })
}
