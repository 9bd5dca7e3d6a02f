//! `weald volume`: trees that can change, in a store.

mod change;
mod check;
mod seal;
mod set;
mod show;
mod stat;

use crate::help::Help;
use crate::open_store::silence_engine;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "A volume is a tree that can change: a file system in a store, which weald mount shows. \
         It compresses its data and keeps repeated data once. It shares a store with images, \
         which do not change; weald store makes the store.",
        "The server of a mounted volume is the writer of its store. Other volumes of the store \
         join it when they are mounted, and weald volume set, weald volume seal and weald store \
         add, import, rm and gc go to it. Other commands that write to the store are refused with \
         its process id.",
        "weald mount --help says which data is safe when (DURABILITY).",
    ],
    examples: &[
        (
            "Make a volume in a store",
            "weald volume create /srv/store:home",
        ),
        ("Mount it for writing", "weald mount /srv/store:home /mnt"),
        ("Show its space", "weald volume stat /srv/store:home"),
        ("List volumes", "weald volume ls /srv/store"),
        (
            "Verify every byte",
            "weald volume check --data /srv/store:home",
        ),
        ("Remove it", "weald volume rm /srv/store:home"),
    ],
    exit_status: &[
        ("0", "The command did its work."),
        ("1", "The volume is damaged (check)."),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Keep trees that can change in a store
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct VolumeArgs {
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Subcommand, Debug)]
enum VolumeCommand {
    Create(change::CreateArgs),
    Ls(show::LsArgs),
    Info(show::InfoArgs),
    Stat(stat::StatArgs),
    Check(check::CheckArgs),
    Rm(change::RmArgs),
    Seal(seal::SealArgs),
    Set(set::SetArgs),
}

/// Runs the command.
pub fn run(args: &VolumeArgs) -> anyhow::Result<ExitCode> {
    silence_engine();
    match &args.command {
        VolumeCommand::Create(args) => change::create(args),
        VolumeCommand::Ls(args) => show::ls(args),
        VolumeCommand::Info(args) => show::info(args),
        VolumeCommand::Stat(args) => stat::run(args),
        VolumeCommand::Check(args) => check::run(args),
        VolumeCommand::Rm(args) => change::rm(args),
        VolumeCommand::Seal(args) => seal::seal(args),
        VolumeCommand::Set(args) => set::set(args),
    }
}

/// Sections of the help of `weald volume NAME`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "create" => &change::CREATE_HELP,
        "ls" => &show::LS_HELP,
        "info" => &show::INFO_HELP,
        "stat" => &stat::HELP,
        "check" => &check::HELP,
        "rm" => &change::RM_HELP,
        "seal" => &seal::HELP,
        "set" => &set::HELP,
        _ => return None,
    })
}
