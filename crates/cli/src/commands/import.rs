//! `weald import`: an image from what another program wrote.

mod composefs;
mod oci;

use crate::help::Help;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &["weald store import is another command: it puts image files into a store."],
    examples: &[
        (
            "Import a composefs image and its objects",
            "weald import composefs --image root.cfs --objects objects tree.weald",
        ),
        (
            "Import an OCI image, or what docker save has written",
            "weald import oci layout:v1 root.weald",
        ),
    ],
    exit_status: &[
        ("0", "The command did its work."),
        (
            "1",
            "The command did its work, but left entries out; standard error names each.",
        ),
        ("2", "The command failed; standard error says why."),
    ],
};

/// Build an image from files of another program: composefs, OCI
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct ImportArgs {
    #[command(subcommand)]
    command: ImportCommand,
}

#[derive(Subcommand, Debug)]
enum ImportCommand {
    Composefs(Box<composefs::ComposefsArgs>),
    Oci(Box<oci::OciArgs>),
}

/// Runs the command.
pub fn run(args: &ImportArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        ImportCommand::Composefs(args) => composefs::run(args),
        ImportCommand::Oci(args) => oci::run(args),
    }
}

/// Sections of the help of `weald import NAME`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "composefs" => &composefs::HELP,
        "oci" => &oci::HELP,
        _ => return None,
    })
}
