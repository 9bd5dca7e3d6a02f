//! `weald generations`: lists the generations of an image.

use crate::foreign::explain;
use crate::help::{DONE_OR_FAILED, Help};
use crate::json::{Object, put_label, put_time};
use crate::output::Output;
use crate::progress::{bytes, count};
use clap::{Args, ValueHint};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_format::Timestamp;
use weald_format::label::Label;
use weald_image::{Generation, Image, ImageStart, OpenOptions, generations};
use weald_vfs::utc_seconds;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Columns: number; mtime of the root directory, in UTC; entries; bytes that the generation \
         appended; bytes of the image then; image digest; label, if it has one (--label of weald \
         build). On a terminal they have a heading. Where the directory of a generation is \
         damaged, or a base image is missing, - stands for the first two. --json has the tree \
         digest, too, which is what the image claims.",
        "IMAGE@2 names a generation by its number, IMAGE@DIGITS by the beginning of its image \
         digest, for ls, tree, stat, cat, find, sum, extract, tar and diff.",
        "A generation ends with its footer: the image file truncated there is that generation. \
         The digests of a generation never change, so --digest and -o digest= select it even if \
         others follow.",
    ],
    examples: &[
        (
            "Append a generation, and say what it is",
            "weald build --append --label monday versions/ versions.weald",
        ),
        ("List all generations", "weald generations versions.weald"),
        (
            "Mount the first one",
            "weald mount -o generation=1 versions.weald /mnt",
        ),
        (
            "Compare the first one with the last",
            "weald diff --stat versions.weald@1 versions.weald",
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
    if output.is_terminal() && !args.json {
        writeln!(
            output,
            "{:>6}  {:<19}  {:>11}  {:>10}  {:>10}  {:<64}  LABEL",
            "GEN", "MTIME", "ENTRIES", "ADDED", "SIZE", "IMAGE DIGEST"
        )?;
    }
    for (i, generation) in generations.iter().enumerate() {
        let len = generation.image_len.saturating_sub(before(i));
        let root = Root::read(&args.image, generation.number);
        let root = root.inspect_err(|error| log::info!("{error}")).ok();
        if args.json {
            output.json(&json(generation, len, root.as_ref()).into())?;
            continue;
        }
        let (mtime, entries) = match &root {
            Some(root) => (utc_seconds(root.mtime), count(root.entry_count)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        write!(
            output,
            "{:>6}  {mtime:<19}  {entries:>11}  {:>10}  {:>10}  {}",
            generation.number,
            bytes(len),
            bytes(generation.image_len),
            generation.image_digest,
        )?;
        if let Some(root) = root.filter(|root| !root.label.is_empty()) {
            write!(output, "  ")?;
            output.name(root.label.as_str().as_bytes())?;
        }
        writeln!(output)?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// What a generation says of itself.
struct Root {
    mtime: Timestamp,
    entry_count: u64,
    label: Label,
}

impl Root {
    fn read(path: &Path, number: u64) -> weald_format::Result<Self> {
        let options = OpenOptions {
            generation: Some(number),
            ..OpenOptions::default()
        };
        let image = Image::open_path(path, ImageStart::default(), &options)?;
        Ok(Self {
            mtime: image.root()?.times.mtime,
            entry_count: image.summary().name_count,
            label: image.directory().label.clone(),
        })
    }
}

fn json(generation: &Generation, len: u64, root: Option<&Root>) -> Object {
    let mut object = Object::new();
    object.insert("generation".into(), generation.number.into());
    object.insert("len".into(), len.into());
    object.insert("image_len".into(), generation.image_len.into());
    if let Some(root) = root {
        object.insert("entries".into(), root.entry_count.into());
        put_time(&mut object, "mtime", root.mtime);
        put_label(&mut object, &root.label);
    }
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
