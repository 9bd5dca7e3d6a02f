//! `weald import`: an image from what another program wrote.

mod composefs;

use crate::help::Help;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &["weald store import is another command: it puts image files into a store."],
    examples: &[(
        "Import a composefs image and its objects",
        "weald import composefs --image root.cfs --objects objects root.weald",
    )],
    exit_status: &[
        ("0", "The command did its work."),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Build an image from files of another program: composefs
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct ImportArgs {
    #[command(subcommand)]
    command: ImportCommand,
}

#[derive(Subcommand, Debug)]
enum ImportCommand {
    Composefs(composefs::ComposefsArgs),
}

/// Runs the command.
pub fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        ImportCommand::Composefs(args) => composefs::run(args),
    }
}

/// Sections of the help of `weald import NAME`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "composefs" => &composefs::HELP,
        _ => return None,
    })
}
