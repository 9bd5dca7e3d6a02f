//! `weald replica`: what a store has committed, in another place.

mod follow;
mod manage;
mod promote;
mod prune;
mod receive;
mod restore;
mod send;
pub mod status;
mod verify;

pub use send::{BACKUP_HELP, BackupArgs, backup};

use crate::help::Help;
use crate::open_store::silence_engine;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[(
        "PLACES",
        &[
            (
                "DIR",
                "A directory: of another disk, or one that is mounted.",
            ),
            (
                "ssh://[USER@]HOST[:PORT]/PATH",
                "A directory of another machine, which needs weald, too: ssh starts weald replica \
                 receive PATH there. The login must work without a password. The environment \
                 variable WEALD_SSH names another program than ssh, with options.",
            ),
            (
                "command:COMMAND",
                "A command of the shell that connects its standard input and output to weald \
                 replica receive, however it gets there.",
            ),
        ],
    )],
    notes: &[
        "A replica has what a store had committed: its images and its volumes, with every state \
         that was sent. weald replica restore makes a store of any of them.",
        "Each weald replica send sends what is new. It works beside mounted volumes, and sends \
         what they have committed: a sync is followed by a commit within seconds. With --every, \
         the server of a mounted volume sends by itself.",
        "The files of a replica never change once they are there. Each is named by its digest, \
         and each item of the chain says what the tables of the store were before and after it. So \
         a sending that was interrupted is repeated without harm, and what is missing, damaged, or \
         of another store is noticed.",
    ],
    examples: &[
        (
            "Make a replica in a directory",
            "weald replica add /srv/store backup --name disk2",
        ),
        ("Send it what is new", "weald replica send /srv/store"),
        ("Show how far it is", "weald replica status /srv/store"),
        ("Verify every byte of it", "weald replica verify backup"),
        (
            "Make a store of its last state",
            "weald replica restore backup restored",
        ),
    ],
    exit_status: &[
        ("0", "The command did its work."),
        (
            "1",
            "Something is damaged or missing, in the store or in the replica; the rest is done.",
        ),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Keep what a store has committed in other places
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct ReplicaArgs {
    #[command(subcommand)]
    command: ReplicaCommand,
}

#[derive(Subcommand, Debug)]
enum ReplicaCommand {
    Add(manage::AddArgs),
    Ls(manage::LsArgs),
    Status(status::StatusArgs),
    Set(manage::SetArgs),
    Pause(manage::PauseArgs),
    Resume(manage::ResumeArgs),
    Remove(manage::RemoveArgs),
    Send(send::SendArgs),
    States(verify::StatesArgs),
    Verify(verify::VerifyArgs),
    Restore(restore::RestoreArgs),
    Follow(follow::FollowArgs),
    Promote(promote::PromoteArgs),
    Prune(prune::PruneArgs),
    Receive(receive::ReceiveArgs),
}

/// Runs the command.
pub fn run(args: &ReplicaArgs) -> anyhow::Result<ExitCode> {
    silence_engine();
    match &args.command {
        ReplicaCommand::Add(args) => manage::add(args),
        ReplicaCommand::Ls(args) => manage::ls(args),
        ReplicaCommand::Status(args) => status::run(args),
        ReplicaCommand::Set(args) => manage::set(args),
        ReplicaCommand::Pause(args) => manage::pause(args),
        ReplicaCommand::Resume(args) => manage::resume(args),
        ReplicaCommand::Remove(args) => manage::remove(args),
        ReplicaCommand::Send(args) => send::run(args),
        ReplicaCommand::States(args) => verify::states(args),
        ReplicaCommand::Verify(args) => verify::run(args),
        ReplicaCommand::Restore(args) => restore::run(args),
        ReplicaCommand::Follow(args) => follow::run(args),
        ReplicaCommand::Promote(args) => promote::run(args),
        ReplicaCommand::Prune(args) => prune::run(args),
        ReplicaCommand::Receive(args) => receive::run(args),
    }
}

/// Sections of the help of `weald replica NAME`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "add" => &manage::ADD_HELP,
        "ls" => &manage::LS_HELP,
        "status" => &status::HELP,
        "set" => &manage::SET_HELP,
        "pause" => &manage::PAUSE_HELP,
        "resume" => &manage::RESUME_HELP,
        "remove" => &manage::REMOVE_HELP,
        "send" => &send::HELP,
        "states" => &verify::STATES_HELP,
        "verify" => &verify::HELP,
        "restore" => &restore::HELP,
        "follow" => &follow::HELP,
        "promote" => &promote::HELP,
        "prune" => &prune::HELP,
        "receive" => &receive::HELP,
        _ => return None,
    })
}
