//! `weald export`: an image in the form of another program.

mod composefs;
mod dump;
mod erofs;
mod oci;
mod write_args;

use crate::help::Help;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "weald store export is another command: it writes an image of a store to an image file.",
    ],
    examples: &[
        (
            "Make a composefs image, and its objects",
            "weald export composefs forest.weald --image root.cfs --objects objects",
        ),
        (
            "Write the tree as text",
            "weald export dump forest.weald > forest.dump",
        ),
        (
            "Make an image with all data that the kernel mounts",
            "weald export erofs forest.weald forest.erofs",
        ),
        (
            "Make an OCI image, for podman and registries",
            "weald export oci forest.weald container:v1",
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

/// Write an image in the form of another program: composefs, a dump, EROFS, OCI
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
#[command(disable_help_subcommand = true)]
pub struct ExportArgs {
    #[command(subcommand)]
    command: ExportCommand,
}

#[derive(Subcommand, Debug)]
enum ExportCommand {
    Composefs(Box<composefs::ComposefsArgs>),
    Dump(Box<dump::DumpArgs>),
    Erofs(Box<erofs::ErofsArgs>),
    Oci(Box<oci::OciArgs>),
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        ExportCommand::Composefs(args) => composefs::run(args),
        ExportCommand::Dump(args) => dump::run(args),
        ExportCommand::Erofs(args) => erofs::run(args),
        ExportCommand::Oci(args) => oci::run(args),
    }
}

/// Sections of the help of `weald export NAME`.
pub fn help_of(name: &str) -> Option<&'static Help> {
    Some(match name {
        "composefs" => &composefs::HELP,
        "dump" => &dump::HELP,
        "erofs" => &erofs::HELP,
        "oci" => &oci::HELP,
        _ => return None,
    })
}
