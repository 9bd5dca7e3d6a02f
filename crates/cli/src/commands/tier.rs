//! `weald tier`: other disks on which data of a store lies.

mod heat;
mod manage;
mod moving;
pub mod show;

use crate::help::Help;
use crate::open_store::silence_engine;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "The data of a store lies in segment files. New ones are written in the store's own \
         directory, the home; those that get no more data can lie in tiers, directories of other \
         disks. The tables, the maps of images and the journal stay at home. Capacity is the sum: \
         when the home is full, new segments land on the first tier with room.",
        "A tier has a rank: the home has 0 and is the fastest. --max-age, --reserve and --hits say \
         what moves by itself, as long as a volume of the store is mounted: after that time \
         without a read or write to the next rank; whatever was used least, while less than the \
         reserve is free; and back to the rank before after so many reads within about an hour. \
         weald tier run does the same for a store that nobody has mounted.",
        "A segment that moves is copied, made durable, and read again before the old file goes: a \
         crash costs nothing. While a tier is not here, what lies only there cannot be read \
         (EIO); everything else can be read and written, and all is back when the tier is.",
    ],
    examples: &[
        (
            "Let data lie on another disk, too",
            "weald tier add /srv/store /mnt/hdd/tier --name slow",
        ),
        (
            "Let what was not used for 30 days go there",
            "weald tier set /srv/store home --max-age 30d",
        ),
        ("Show what lies where", "weald tier stat /srv/store"),
        (
            "Move an image there now",
            "weald tier move /srv/store:forest --to slow",
        ),
    ],
    exit_status: &[
        ("0", "The command did its work."),
        (
            "1",
            "Something should have moved and could not; standard output says why.",
        ),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Let data of a store lie on several disks
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct TierArgs {
    #[command(subcommand)]
    command: TierCommand,
}

#[derive(Subcommand, Debug)]
enum TierCommand {
    Add(manage::AddArgs),
    Ls(show::LsArgs),
    Stat(show::StatArgs),
    Set(manage::SetArgs),
    Heat(heat::HeatArgs),
    Plan(moving::PlanArgs),
    Run(moving::RunArgs),
    Move(moving::MoveArgs),
    Drain(moving::DrainArgs),
    Remove(manage::RemoveArgs),
}

/// Runs the command.
pub fn run(args: &TierArgs) -> anyhow::Result<ExitCode> {
    silence_engine();
    match &args.command {
        TierCommand::Add(args) => manage::add(args),
        TierCommand::Ls(args) => show::ls(args),
        TierCommand::Stat(args) => show::stat(args),
        TierCommand::Set(args) => manage::set(args),
        TierCommand::Heat(args) => heat::heat(args),
        TierCommand::Plan(args) => moving::plan(args),
        TierCommand::Run(args) => moving::run(args),
        TierCommand::Move(args) => moving::move_name(args),
        TierCommand::Drain(args) => moving::drain(args),
        TierCommand::Remove(args) => manage::remove(args),
    }
}

/// Sections of the help of `weald tier NAME`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "add" => &manage::ADD_HELP,
        "ls" => &show::LS_HELP,
        "stat" => &show::STAT_HELP,
        "set" => &manage::SET_HELP,
        "heat" => &heat::HELP,
        "plan" => &moving::PLAN_HELP,
        "run" => &moving::RUN_HELP,
        "move" => &moving::MOVE_HELP,
        "drain" => &moving::DRAIN_HELP,
        "remove" => &manage::REMOVE_HELP,
        _ => return None,
    })
}
