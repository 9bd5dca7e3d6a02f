//! `weald recover`: cuts off what an interrupted append has left behind the last whole generation.

use crate::output::Output;
use crate::progress::bytes;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;
use weald_builder::recover_image;

const EXAMPLES: &str = "\
Examples:
  weald recover --dry-run tree.weald
  weald recover tree.weald

Only for an image to which something was being appended when the machine stopped or the program was killed; other commands
then say that it has no footer at its end. The generations before that are whole, and nothing of them is changed.";

/// Cut an image back to its last whole generation
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RecoverArgs {
    /// Image file
    #[arg(value_hint = ValueHint::FilePath)]
    image: PathBuf,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs the command.
pub fn run(args: &RecoverArgs) -> anyhow::Result<ExitCode> {
    let recovered = recover_image(&args.image, args.dry_run)?;
    let number = recovered.generation.number;
    let mut output = Output::new();
    match recovered.tail_len {
        0 => writeln!(
            output,
            "generation {number} is whole, nothing lies behind it"
        )?,
        len => {
            let done = if args.dry_run { "would be" } else { "were" };
            let len = bytes(len);
            writeln!(
                output,
                "generation {number} is whole; {len} behind it {done} cut off"
            )?;
        }
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}
