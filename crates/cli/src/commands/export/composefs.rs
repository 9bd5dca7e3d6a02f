//! `weald export composefs`.

use crate::help::{DONE_OR_FAILED, Help};
use crate::open::ImageArgs;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[],
    examples: &[(
        "Make a composefs image, and its objects",
        "weald export composefs forest.weald --image root.cfs --objects objects",
    )],
    exit_status: DONE_OR_FAILED,
};

/// Write a composefs image and the objects that it names
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct ComposefsArgs {
    #[command(flatten)]
    source: ImageArgs,
    /// Composefs image to write
    #[arg(long = "image", id = "target", value_name = "FILE", value_hint = ValueHint::FilePath)]
    target: PathBuf,
    /// Directory of objects; those that it has are kept
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    objects: Option<PathBuf>,
    /// Format of the image: 0, or 1 for Linux 6.6 and newer
    #[arg(long, value_name = "NUMBER", default_value = "0")]
    format: u8,
}

pub(super) fn run(args: &ComposefsArgs) -> anyhow::Result<ExitCode> {
    let _image = args.source.open()?;
    anyhow::bail!(
        "{}: this version of weald cannot write composefs images yet (format {}, objects {:?})",
        args.target.display(),
        args.format,
        args.objects,
    );
}
