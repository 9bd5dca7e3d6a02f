//! `weald export`: an image in the form of another program.

mod composefs;

use crate::help::Help;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "weald store export is another command: it writes an image of a store to an image file.",
    ],
    examples: &[(
        "Make a composefs image, and its objects",
        "weald export composefs forest.weald --image root.cfs --objects objects",
    )],
    exit_status: &[
        ("0", "The command did its work."),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Write an image in the form of another program: composefs
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct ExportArgs {
    #[command(subcommand)]
    command: ExportCommand,
}

#[derive(Subcommand, Debug)]
enum ExportCommand {
    Composefs(composefs::ComposefsArgs),
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        ExportCommand::Composefs(args) => composefs::run(args),
    }
}

/// Sections of the help of `weald export NAME`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "composefs" => &composefs::HELP,
        _ => return None,
    })
}
