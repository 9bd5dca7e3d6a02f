//! `weald rewrite`: the same tree in other blocks.

use super::build::ProgressWord;
use super::interrupt_flag;
use crate::json::Object;
use crate::open::ImageArgs;
use crate::output::Output;
use crate::parse;
use crate::progress::{Display, bytes};
use anyhow::bail;
use clap::{Args, ValueHint};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use weald_build::{BuildOptions, CodecSpec, RewriteOptions, RewriteReport, rewrite_image};
use weald_format::ErrorKind;

const EXAMPLES: &str = "\
Examples:
  weald rewrite -l 9 tools.weald tools-small.weald
  weald rewrite --codec zstd:3 --block-size 256K archive.weald fast.weald
  weald rewrite -l 2 --force tools.weald tools.weald

The tree stays the same, and so does its tree digest, which is printed. Names, attributes and the map of contents are
copied as they lie; so are blocks whose codec and size need not change. The new image appears under its name only when
it is complete.";

/// Write an image again, with other codec, level or block size
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RewriteArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Image file to make
    #[arg(value_hint = ValueHint::FilePath)]
    target: PathBuf,
    /// Replace the target if it exists; it may be the image itself
    #[arg(short, long)]
    force: bool,
    /// Level, 0 (fastest) to 9 (smallest): sets codec and block size where they are not given
    #[arg(short, long, value_name = "LEVEL")]
    level: Option<u8>,
    /// Codec: none, lz4, zstd[:1-22] or xz[:0-9]
    #[arg(long, value_name = "CODEC", value_parser = parse::codec)]
    codec: Option<CodecSpec>,
    /// Raw bytes of a block, 4K to 64M
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    block_size: Option<u64>,
    /// Threads; 0 for one on each processor
    #[arg(short, long, value_name = "COUNT", default_value_t = 0)]
    threads: usize,
    /// Most memory to use [default: as the level has it in build]
    #[arg(short, long, value_name = "SIZE", value_parser = parse::size)]
    memory: Option<u64>,
    /// Show nothing but problems
    #[arg(short, long)]
    quiet: bool,
    /// Show progress: a bar, lines, nothing, or what suits standard error
    #[arg(long, value_enum, default_value = "auto", conflicts_with = "quiet")]
    progress: ProgressWord,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &RewriteArgs) -> anyhow::Result<ExitCode> {
    let options = options(args)?;
    let image = args.image.open()?;
    let progress = match args.quiet {
        true => ProgressWord::None,
        false => args.progress,
    };
    let display = Display::new(progress, interrupt_flag()?);
    let rewritten = rewrite_image(&image, &args.target, args.force, &options, &display);
    display.finish();
    let report = match rewritten {
        Err(error) if error.kind() == ErrorKind::Busy => bail!("{error}; --force replaces it"),
        rewritten => rewritten?,
    };
    let mut output = Output::new();
    if args.json {
        output.json(&json(&report).into())?;
    } else if !args.quiet {
        output.write_all(summary(&report).as_bytes())?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn options(args: &RewriteArgs) -> anyhow::Result<RewriteOptions> {
    let level = args.level.map(BuildOptions::level).transpose()?;
    let of_level = level.as_ref();
    let default = BuildOptions::default();
    Ok(RewriteOptions {
        codec: args.codec.or(of_level.map(|l| l.codec)),
        block_len: args.block_size.or(of_level.map(|l| l.block_len)),
        threads: args.threads,
        memory_len: args
            .memory
            .unwrap_or(of_level.unwrap_or(&default).memory_len),
    })
}

fn summary(report: &RewriteReport) -> String {
    let share = 100.0 * report.image_len as f64 / report.old_len.max(1) as f64;
    format!(
        "blocks encoded {}, copied {}\nimage         {} -> {} ({share:.1}%)\nimage digest  {}\ntree digest   {}\n",
        report.encoded_count,
        report.copied_count,
        bytes(report.old_len),
        bytes(report.image_len),
        report.image_digest,
        report.tree_digest
    )
}

fn json(report: &RewriteReport) -> Object {
    let numbers = [
        ("old_len", report.old_len),
        ("image_len", report.image_len),
        ("copied_count", report.copied_count),
        ("encoded_count", report.encoded_count),
    ];
    let mut object: Object = numbers
        .iter()
        .map(|&(key, number)| (key.to_owned(), number.into()))
        .collect();
    let digests = [
        ("image_digest", report.image_digest),
        ("tree_digest", report.tree_digest),
    ];
    for (key, digest) in digests {
        object.insert(key.into(), digest.to_string().into());
    }
    object
}
