//! `weald recover`: truncates what an interrupted append left after the last complete generation.

use crate::foreign::explain;
use crate::help::{DONE_OR_FAILED, Help};
use crate::open::refuse_stored_target;
use crate::output::Output;
use crate::progress::bytes;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;
use weald_builder::recover_image;
use weald_image::ImageStart;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "An append that was interrupted (by a crash, a full disk, a kill) leaves bytes behind the \
         last complete generation. Other commands then report that the footer is missing. Recover \
         truncates the image after its last complete generation, and changes nothing else.",
    ],
    examples: &[
        (
            "Show what would be truncated",
            "weald recover --dry-run versions.weald",
        ),
        ("Truncate the image", "weald recover versions.weald"),
    ],
    exit_status: DONE_OR_FAILED,
};

/// Truncate an image after its last complete generation
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct RecoverArgs {
    /// Image file
    #[arg(value_hint = ValueHint::FilePath)]
    image: PathBuf,
    /// Show what would be done, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs the command.
pub fn run(args: &RecoverArgs) -> anyhow::Result<ExitCode> {
    refuse_stored_target(&args.image)?;
    let recovered = recover_image(&args.image, args.dry_run);
    let recovered =
        recovered.map_err(|error| explain(&args.image, ImageStart::default(), error))?;
    let number = recovered.generation.number;
    let mut output = Output::new();
    let behind = match (recovered.tail_len, args.dry_run) {
        (0, _) => "nothing lies behind it".to_owned(),
        (len, true) => format!("{} behind it would be cut off", bytes(len)),
        (len, false) => format!("{} behind it were cut off", bytes(len)),
    };
    writeln!(
        output,
        "generation {number} has a whole footer and directory; {behind}"
    )?;
    writeln!(output, "contents were not tested: 'weald check' does that")?;
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}
