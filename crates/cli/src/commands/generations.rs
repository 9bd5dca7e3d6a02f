//! `weald generations`: the states of a tree that an image holds.

use crate::json::Object;
use crate::output::Output;
use crate::progress::bytes;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;
use weald_image::{Generation, generations};

const EXAMPLES: &str = "\
Examples:
  weald build --append tree/ tree.weald
  weald generations tree.weald
  weald mount -o generation=1 tree.weald /mnt
  weald diff --generation 1 tree.weald tree.weald

A generation ends with its footer: an image cut there is that generation. The digest of a generation never changes, so that
--digest and -o digest= find it however many follow.";

/// List the generations of an image, the newest first
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct GenerationsArgs {
    /// Image file
    #[arg(value_hint = ValueHint::FilePath)]
    image: PathBuf,
    /// One object a line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &GenerationsArgs) -> anyhow::Result<ExitCode> {
    let generations = generations(&args.image)?;
    let mut output = Output::new();
    let before = |i: usize| generations.get(i + 1).map_or(0, |g| g.image_len);
    for (i, generation) in generations.iter().enumerate() {
        let len = generation.image_len.saturating_sub(before(i));
        match args.json {
            true => output.json(&json(generation, len).into())?,
            false => writeln!(
                output,
                "{:>6}  {:>12}  {}  {}",
                generation.number,
                bytes(len),
                generation.image_digest,
                generation.tree_digest
            )?,
        }
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn json(generation: &Generation, len: u64) -> Object {
    let mut object = Object::new();
    object.insert("generation".into(), generation.number.into());
    object.insert("len".into(), len.into());
    object.insert("image_len".into(), generation.image_len.into());
    object.insert(
        "image_digest".into(),
        generation.image_digest.to_string().into(),
    );
    object.insert(
        "tree_digest".into(),
        generation.tree_digest.to_string().into(),
    );
    object
}
