//! `weald generations`: lists the generations of an image.

use crate::foreign::explain;
use crate::help::{DONE_OR_FAILED, Help};
use crate::json::Object;
use crate::output::Output;
use crate::progress::bytes;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::process::ExitCode;
use weald_image::{Generation, ImageStart, generations};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Columns: number, bytes that the generation appended, image digest, tree digest. The image \
         digest was computed; the tree digest is what the image claims, and weald check compares \
         it with the tree.",
        "A generation ends with its footer: the image file truncated there is that generation. \
         The digests of a generation never change, so --digest and -o digest= select it even if \
         others follow.",
    ],
    examples: &[
        (
            "Append a generation",
            "weald build --append versions/ versions.weald",
        ),
        ("List all generations", "weald generations versions.weald"),
        (
            "Mount the first one",
            "weald mount -o generation=1 versions.weald /mnt",
        ),
        (
            "Compare the first one with the last",
            "weald diff --generation 1 versions.weald versions.weald",
        ),
    ],
    exit_status: DONE_OR_FAILED,
};

/// List the generations of an image, newest first
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct GenerationsArgs {
    /// Image file, STORE:NAME or URL
    #[arg(value_hint = ValueHint::FilePath)]
    image: PathBuf,
    /// Print one JSON object per generation
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &GenerationsArgs) -> anyhow::Result<ExitCode> {
    let found = generations(&args.image);
    let generations = found.map_err(|error| explain(&args.image, ImageStart::default(), error))?;
    let mut output = Output::new();
    let before = |i: usize| generations.get(i + 1).map_or(0, |g| g.image_len);
    for (i, generation) in generations.iter().enumerate() {
        let len = generation.image_len.saturating_sub(before(i));
        if args.json {
            output.json(&json(generation, len).into())?
        } else {
            writeln!(
                output,
                "{:>6}  {:>12}  {}  {}",
                generation.number,
                bytes(len),
                generation.image_digest,
                generation.tree_digest
            )?
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
