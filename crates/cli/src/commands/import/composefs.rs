//! `weald import composefs`.

use crate::help::{DONE_OR_FAILED, Help};
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[],
    examples: &[(
        "Import a composefs image and its objects",
        "weald import composefs --image root.cfs --objects objects root.weald",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Build an image from a composefs image or from a dump of one
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct ComposefsArgs {
    /// Composefs image to read
    #[arg(long = "image", id = "source", value_name = "FILE", value_hint = ValueHint::FilePath)]
    source: Option<PathBuf>,
    /// Directory of its objects
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    objects: Option<PathBuf>,
    /// Image to write
    #[arg(value_name = "IMAGE", value_hint = ValueHint::FilePath)]
    target: PathBuf,
}

pub(super) fn run(args: &ComposefsArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!(
        "{}: this version of weald cannot import composefs images yet ({:?}, {:?})",
        args.target.display(),
        args.source,
        args.objects,
    );
}
