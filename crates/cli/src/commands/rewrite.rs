//! `weald rewrite`: writes a tree with other codecs and blocks, or packs it again.

pub mod kept;

use super::build::target_kind;
use crate::attribute_args::{AttributeArgs, EntryArgs};
use crate::help::Help;
use crate::json::{self, Object};
use crate::open::{ImageArgs, keep_private, refuse_stored_target, thread_count};
use crate::output::Output;
use crate::pack::{DisplayArgs, ResourceArgs, automatic_limit_len, memory_len_max, set_memory};
use crate::parse;
use crate::progress::bytes;
use crate::remark_args::RemarkArgs;
use crate::rules::{RuleArgs, tell_idle};
use crate::script_args::ScriptArgs;
use crate::shape::{self, COMPRESSION, CodecArgs, LAYOUT, LayoutArgs, OUTPUT};
use crate::status::exit_code;
use anyhow::bail;
use clap::{Args, ValueHint};
use kept::{Kept, keep_times_of, write_kept};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use weald_builder::{
    BuildOptions, Observer, Report, RewriteOptions, RewriteReport, build_from_image, rewrite_image,
};
use weald_filter::Filter;
use weald_format::directory::Category;
use weald_format::label::Label;
use weald_format::{Digest, ErrorKind};
use weald_image::{Image, ImageStart, generations};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "With another codec, level or block size only, rewrite copies the metadata and every block \
         whose codec and size stay the same. It encodes the other blocks again. Any other option \
         packs the tree anew, as build would do from a directory.",
        "Rewrite computes the tree digest and prints it. It stays the same unless options change \
         attributes or leave files out, or unless the image claimed one that its tree does not \
         have; a warning says so then. The new image appears under its name when it is complete.",
        "The new image has one generation, unless --generations names others to keep. In place of \
         an image with several, rewrite is refused without --generations or --drop-generations. \
         With --generations it packs each generation anew and needs space for two new images.",
    ],
    examples: &[
        (
            "Keep the last five generations",
            "weald rewrite --force --generations last:5 versions.weald versions.weald",
        ),
        (
            "Compress an image again, smaller",
            "weald rewrite -l 9 forest.weald small.weald",
        ),
        (
            "Use a faster codec and smaller blocks",
            "weald rewrite --codec zstd:3 --block-size 256K forest.weald fast.weald",
        ),
        (
            "Replace an image",
            "weald rewrite -l 2 --force forest.weald forest.weald",
        ),
        (
            "Drop data that only older generations use",
            "weald rewrite --repack --force --drop-generations versions.weald versions.weald",
        ),
        (
            "Change order and owner",
            "weald rewrite --order name --owner 0:0 forest.weald root.weald",
        ),
        (
            "Add a device",
            "echo './null type=char device=native,1,3' > l; weald rewrite --add l forest.weald d",
        ),
    ],
    exit_status: &[
        ("0", "The new image is complete."),
        (
            "1",
            "The new image is complete except for files that could not be read; standard error \
             names each.",
        ),
        ("2", "The command failed; there is no new image."),
    ],
};

/// Write an image again with another codec, block size, order or owner
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct RewriteArgs {
    #[command(flatten)]
    image: ImageArgs,
    /// Image file to write
    #[arg(value_hint = ValueHint::FilePath)]
    target: PathBuf,
    #[command(flatten)]
    rules: RuleArgs,
    /// Compression level from 0 (fastest) to 9 (smallest): sets codec and block size unless other
    /// options set them (default: keep those of the image)
    #[arg(short, long, value_name = "LEVEL", help_heading = COMPRESSION)]
    level: Option<u8>,
    #[command(flatten)]
    codec: CodecArgs,
    /// Uncompressed bytes in a block, 4K to 64M (default: as in the image)
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse::size,
        help_heading = COMPRESSION
    )]
    block_size: Option<u64>,
    /// Pack the tree anew: find repeats again, drop data that only older generations use, and store
    /// what lies in base images
    #[arg(long, help_heading = LAYOUT)]
    repack: bool,
    #[command(flatten)]
    layout: LayoutArgs,
    /// What the new generation is, for listings: 1 to 200 bytes without control characters
    /// (default: as in the image); of several generations this is the last one
    #[arg(long, value_name = "TEXT", value_parser = crate::parse::label, hide_short_help = true)]
    label: Option<Label>,
    #[command(flatten)]
    remarks: RemarkArgs,
    #[command(flatten)]
    attributes: AttributeArgs,
    #[command(flatten)]
    entries: EntryArgs,
    #[command(flatten)]
    script: ScriptArgs,
    /// Replace the target if it exists; it may be the image itself
    #[arg(short, long, help_heading = OUTPUT)]
    force: bool,
    /// Replace an image that has older generations by one without them
    #[arg(long, requires = "force", help_heading = OUTPUT)]
    drop_generations: bool,
    /// Pack these generations anew: last, last:3, all, or a list such as 1,4-7; they are numbered
    /// from 1 again
    #[arg(
        long,
        value_name = "LIST",
        conflicts_with_all = ["drop_generations", "output_device"],
        help_heading = OUTPUT
    )]
    generations: Option<Kept>,
    /// Write to TARGET itself, a device or a named pipe, never through a symlink
    #[arg(long, help_heading = OUTPUT)]
    output_device: bool,
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    resources: ResourceArgs,
}

/// Runs the command.
pub fn run(args: &RewriteArgs) -> anyhow::Result<ExitCode> {
    refuse_stored_target(&args.target)?;
    keep_private(&args.image.image);
    weald_sys::want_large_pages();
    let filter = args.rules.filter()?;
    let is_repacked = args.repack
        || args.generations.is_some()
        || args.layout.is_given()
        || args.attributes.is_given()
        || args.entries.is_given()
        || args.script.is_given()
        || !filter.is_empty();
    let generation_count = generation_count(args);
    refuse_lost_generations(args, generation_count)?;
    let rewritten = if is_repacked {
        let thread_count = thread_count(args.resources.threads);
        let mut options = pack_options(args, filter)?;
        // The cache of the reader counts towards the memory limit.
        let mut source = args.image.clone();
        let cache_len = source.trust.cache.unwrap_or(options.memory_len / 8);
        source.trust.cache = Some(cache_len);
        options.memory_len = options.memory_len.saturating_sub(cache_len);
        let image = Arc::new(source.open_for_reading(thread_count)?);
        keep_times_of(&image, &mut options)?;
        options.label = new_label(args, &image)?;
        let display = args.display.display()?;
        let built = match &args.generations {
            None => build_from_image(&image, &args.target, args.force, &options, &display),
            Some(kept) => write_generations(args, &source, kept, &options, &display)?,
        };
        display.finish();
        match built {
            Ok(report) => {
                tell_idle(&options.filter);
                let counts = (generation_count, kept_count(args)?);
                Ok(Rewritten::packed(&image, &report, counts))
            }
            Err(error) => Err(error),
        }
    } else {
        let mut options = options(args)?;
        let image = args.image.open()?;
        options.label = new_label(args, &image)?;
        let display = args.display.display()?;
        let rewritten = rewrite_image(&image, &args.target, args.force, &options, &display);
        display.finish();
        rewritten.map(|report| Rewritten::copied(&report, generation_count))
    };
    let rewritten = match rewritten {
        Err(error) if error.kind() == ErrorKind::Busy => bail!("{error}; --force replaces it"),
        rewritten => rewritten?,
    };
    if rewritten.claimed_digest != rewritten.tree_digest && !is_repacked {
        log::warn!(
            "{}: claims the tree digest {}, which its tree does not have; the new image has the \
             right one",
            args.image.image.display(),
            rewritten.claimed_digest
        );
    }
    let mut output = Output::new();
    if args.display.json {
        output.json(&rewritten.json().into())?;
    } else if !args.display.quiet {
        output.text(&rewritten.summary())?;
    }
    output.finish()?;
    Ok(exit_code(rewritten.problem_count))
}

/// The generations of the image that the new one has.
fn kept_numbers(args: &RewriteArgs, kept: &Kept) -> anyhow::Result<Vec<u64>> {
    kept.numbers(&generations(&args.image.image)?)
}

/// The number of generations that the new image has.
fn kept_count(args: &RewriteArgs) -> anyhow::Result<u64> {
    match &args.generations {
        None => Ok(1),
        Some(_) => Ok(generations(&args.target)?.len() as u64),
    }
}

/// Writes an image with some generations. An inner error is one of the target.
fn write_generations(
    args: &RewriteArgs,
    source: &ImageArgs,
    kept: &Kept,
    options: &BuildOptions,
    display: &dyn Observer,
) -> anyhow::Result<weald_format::Result<Report>> {
    let trust = &args.image.trust;
    if trust.generation.is_some() || trust.digest.is_some() {
        bail!("--generations names what is kept: leave out --generation and --digest");
    }
    let numbers = kept_numbers(args, kept)?;
    let open = |number| {
        let mut source = source.clone();
        source.trust.generation = Some(number);
        source.open_for_reading(thread_count(args.resources.threads))
    };
    let target = (args.target.as_path(), args.force);
    match write_kept(&numbers, &open, target, options, display) {
        Ok(report) => Ok(Ok(report)),
        Err(error) => match error.downcast::<weald_format::Error>() {
            Ok(error) => Ok(Err(error)),
            Err(error) => Err(error),
        },
    }
}

/// Generations of the image; 1 if they cannot be listed, which opening the image will tell.
fn generation_count(args: &RewriteArgs) -> u64 {
    let is_whole_file = args.image.trust.offset == ImageStart::default();
    match generations(&args.image.image) {
        Ok(list) if is_whole_file => list.len() as u64,
        _ => 1,
    }
}

/// Refuses to replace the image by one without its older generations.
fn refuse_lost_generations(args: &RewriteArgs, count: u64) -> anyhow::Result<()> {
    let inode = |path: &Path| {
        std::fs::metadata(path)
            .ok()
            .map(|meta| (meta.dev(), meta.ino()))
    };
    let source = inode(&args.image.image);
    let is_replaced = source.is_some() && source == inode(&args.target);
    if is_replaced && count > 1 && !args.drop_generations && args.generations.is_none() {
        bail!(
            "{}: has {count} generations, and the new image would have the last one only: write to \
             another file, or give --generations all or --drop-generations",
            args.target.display()
        );
    }
    Ok(())
}

fn options(args: &RewriteArgs) -> anyhow::Result<RewriteOptions> {
    let level = args.level.map(BuildOptions::level).transpose()?;
    let of_level = level.as_ref();
    let default = BuildOptions::default();
    let general = args.codec.general();
    let x86_of_level = of_level
        .filter(|_| general.is_none())
        .and_then(|l| l.x86_codec);
    Ok(RewriteOptions {
        codec: general.or(of_level.map(|l| l.codec)),
        x86_codec: args.codec.codec_of(Category::X86).or(x86_of_level),
        arm64_codec: args.codec.codec_of(Category::Arm64),
        block_len: args.block_size.or(of_level.map(|l| l.block_len)),
        threads: args.resources.threads,
        memory_len: args
            .resources
            .memory
            .unwrap_or(of_level.unwrap_or(&default).memory_len),
        limit_len: args.resources.memory.unwrap_or_else(automatic_limit_len),
        memory_len_max: match args.resources.memory {
            Some(_) => 0,
            None => memory_len_max(),
        },
        target_kind: target_kind(args.output_device),
        label: None,
    })
}

/// Label of the image that is written: what is given, over what the last generation has.
fn new_label(args: &RewriteArgs, image: &Image) -> weald_format::Result<Option<Label>> {
    let is_given = args.label.is_some() || args.remarks.is_given();
    if args.generations.is_some() && !is_given {
        // Each generation keeps its own.
        return Ok(None);
    }
    let before = &image.directory().label;
    args.remarks.label(args.label.as_ref(), Some(before))
}

/// Build options: those of the user, and all attributes that build can keep.
fn pack_options(args: &RewriteArgs, filter: Filter) -> anyhow::Result<BuildOptions> {
    let mut options = BuildOptions::level(args.level.unwrap_or(BuildOptions::LEVEL_DEFAULT))?;
    shape::apply(&args.codec, &args.layout, &mut options)?;
    if let Some(len) = args.block_size {
        (options.block_len, options.small_tree) = (len, None);
    }
    args.attributes.apply(&mut options);
    args.entries.apply(&mut options)?;
    options.filter = filter;
    options.target_kind = target_kind(args.output_device);
    options.threads = args.resources.threads;
    set_memory(&mut options, args.resources.memory);
    args.script.apply(&mut options)?;
    options.validate()?;
    Ok(options)
}

/// Result of a rewrite, with or without packing again.
struct Rewritten {
    old_len: u64,
    image_len: u64,
    image_digest: Digest,
    tree_digest: Digest,
    /// The tree digest of the old image.
    claimed_digest: Digest,
    /// Generations before and after.
    generation_counts: (u64, u64),
    /// Number of encoded and of copied blocks; `None` if the tree was packed again.
    blocks: Option<(u64, u64)>,
    problem_count: u64,
}

impl Rewritten {
    fn copied(report: &RewriteReport, generation_count: u64) -> Self {
        Self {
            old_len: report.old_len,
            image_len: report.image_len,
            image_digest: report.image_digest,
            tree_digest: report.tree_digest,
            claimed_digest: report.claimed_digest,
            generation_counts: (generation_count, 1),
            blocks: Some((report.encoded_count, report.copied_count)),
            problem_count: 0,
        }
    }

    fn packed(image: &Image, report: &Report, generation_counts: (u64, u64)) -> Self {
        Self {
            old_len: image.summary().image_len,
            image_len: report.image_len,
            image_digest: report.image_digest,
            tree_digest: report.tree_digest,
            claimed_digest: image.summary().tree_digest,
            generation_counts,
            blocks: None,
            problem_count: report.problem_count,
        }
    }

    fn summary(&self) -> String {
        let share = 100.0 * self.image_len as f64 / self.old_len.max(1) as f64;
        let blocks = match self.blocks {
            Some((encoded, copied)) => format!("encoded {encoded}, copied {copied}"),
            None => "packed anew".into(),
        };
        let generations = match self.generation_counts {
            (1, 1) => String::new(),
            (before, after) => format!("generations   {before} -> {after}\n"),
        };
        format!(
            "blocks        {blocks}\n\
             image         {} -> {} ({share:.1}%)\n\
             {generations}\
             image digest  {}\n\
             tree digest   {}\n",
            bytes(self.old_len),
            bytes(self.image_len),
            self.image_digest,
            self.tree_digest
        )
    }

    fn json(&self) -> Object {
        let mut numbers = vec![
            ("old_len", self.old_len),
            ("image_len", self.image_len),
            ("problem_count", self.problem_count),
            ("old_generation_count", self.generation_counts.0),
            ("generation_count", self.generation_counts.1),
        ];
        if let Some((encoded, copied)) = self.blocks {
            numbers.extend([("encoded_count", encoded), ("copied_count", copied)]);
        }
        let mut object = json::numbers(&numbers);
        let digests = [
            ("image_digest", self.image_digest),
            ("tree_digest", self.tree_digest),
        ];
        for (key, digest) in digests {
            object.insert(key.into(), digest.to_string().into());
        }
        object
    }
}
