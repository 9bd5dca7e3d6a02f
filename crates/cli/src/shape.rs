//! Options that `build` and `rewrite` share (codecs, layout of contents, attributes), and the
//! headings of option groups.

use crate::parse::{self, CodecChoice};
use anyhow::Context;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use weald_builder::{BuildOptions, Categories, CodecSpec, Order};
use weald_format::directory::Category;
use weald_image::Hotness;

/// Headings of option groups in the help, in this order.
pub const INPUT: &str = "Input";
/// Selection of files.
pub const SELECTION: &str = "Selection";
/// Codecs and blocks.
pub const COMPRESSION: &str = "Compression";
/// Order of contents in the image.
pub const LAYOUT: &str = "Layout";
/// Owners, modes, times.
pub const ATTRIBUTES: &str = "Attributes";
/// The image file and the printed summary.
pub const OUTPUT: &str = "Output";
/// Threads and memory.
pub const RESOURCES: &str = "Resources";

/// Codecs of blocks.
#[derive(Args, Debug)]
#[command(next_help_heading = COMPRESSION)]
pub struct CodecArgs {
    /// Codec: none, lz4, lz4hc[:1-12], zstd[:1-22], zstd-lean, zstd-code, xz[:0-9] or brotli[:0-11]
    /// (default: set by the level). x86=CODEC and arm64=CODEC apply to programs of that machine
    /// only; repeatable
    #[arg(
        long = "codec",
        value_name = "[CATEGORY=]CODEC",
        value_parser = parse::codec_choice,
        hide_short_help = true
    )]
    choices: Vec<CodecChoice>,
}

impl CodecArgs {
    /// The last codec given for ordinary data.
    pub fn general(&self) -> Option<CodecSpec> {
        self.codec_of(Category::General)
    }

    /// The last codec given only for `category`.
    pub fn codec_of(&self, category: Category) -> Option<CodecSpec> {
        let mut choices = self.choices.iter().rev();
        choices.find(|c| c.category == category).map(|c| c.codec)
    }

    fn apply(&self, options: &mut BuildOptions) {
        if let Some(codec) = self.general() {
            (options.codec, options.x86_codec, options.arm64_codec) = (codec, None, None);
        }
        if !self.choices.is_empty() {
            options.small_tree = None;
        }
        options.x86_codec = self.codec_of(Category::X86).or(options.x86_codec);
        options.arm64_codec = self.codec_of(Category::Arm64).or(options.arm64_codec);
    }
}

/// Stores the given values in `options`. Codecs come last, because a profile may replace a codec of
/// the level but no codec that the user gave.
///
/// # Errors
/// Returns an error if a list file cannot be read.
pub fn apply(
    codec: &CodecArgs,
    layout: &LayoutArgs,
    options: &mut BuildOptions,
) -> anyhow::Result<()> {
    layout.apply(options)?;
    codec.apply(options);
    Ok(())
}

/// How to find repeats and order contents.
#[derive(Args, Debug)]
#[command(next_help_heading = LAYOUT)]
pub struct LayoutArgs {
    /// Optimize for size or for small random reads: sets block size and shortest repeat unless
    /// other options set them (default: archive)
    #[arg(long, value_enum, hide_short_help = true)]
    profile: Option<ProfileWord>,
    /// Shortest repeat that is stored once, 64 to 4096 bytes; 0 disables the search (default: set
    /// by the level, 256 from level 5 on; 1024 at level 7 for directories of at most 64M)
    #[arg(long, value_name = "SIZE", value_parser = parse::size, hide_short_help = true)]
    match_size: Option<u64>,
    /// Size limit of the zstd dictionary that blocks share, at most 1M; 0 for none (default: set by
    /// the profile). Small blocks need one, large blocks hardly gain
    #[arg(long, value_name = "SIZE", value_parser = parse::size, hide_short_help = true)]
    dictionary_size: Option<u64>,
    /// Size of the pieces of new data that are grouped into blocks by similarity, 4K to 64M; 0
    /// disables grouping (default: set by the level)
    #[arg(long, value_name = "SIZE", value_parser = parse::size, hide_short_help = true)]
    cluster_size: Option<u64>,
    /// Data to treat separately (default: set by the level. All levels: incompressible; from 2 on:
    /// x86, arm64, pcm, fits; from 4 on: deflate; from 8 on: png, jpeg)
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "CATEGORY,…",
        hide_short_help = true
    )]
    categorize: Option<Vec<CategoryWord>>,
    /// Order of contents in the image (default: path)
    #[arg(long, value_enum, hide_short_help = true)]
    order: Option<OrderWord>,
    /// Store the files that this file lists first, in its order: one path per line, or paths that
    /// end in zero bytes; a directory means everything in it
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        conflicts_with = "order",
        hide_short_help = true
    )]
    order_list: Option<PathBuf>,
    /// Store the files of this access trace first, in the order in which they were read; weald
    /// mount --record writes such a trace
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        hide_short_help = true
    )]
    hotness: Option<PathBuf>,
}

impl LayoutArgs {
    /// Whether the user gave any of these options.
    pub fn is_given(&self) -> bool {
        self.profile.is_some()
            || self.match_size.is_some()
            || self.dictionary_size.is_some()
            || self.cluster_size.is_some()
            || self.categorize.is_some()
            || self.order.is_some()
            || self.order_list.is_some()
            || self.hotness.is_some()
    }

    fn apply(&self, options: &mut BuildOptions) -> anyhow::Result<()> {
        if self.profile == Some(ProfileWord::Interactive) {
            options.make_interactive();
        }
        if let Some(len) = self.match_size {
            options.match_len_min = u32::try_from(len).unwrap_or(u32::MAX);
            if let Some(small) = &mut options.small_tree {
                small.match_len_min = options.match_len_min;
            }
        }
        options.dictionary_len = self.dictionary_size.unwrap_or(options.dictionary_len);
        options.cluster_len = self.cluster_size.unwrap_or(options.cluster_len);
        if let Some(words) = &self.categorize {
            let has = |word| words.contains(&CategoryWord::All) || words.contains(&word);
            options.categories = Categories {
                incompressible: has(CategoryWord::Incompressible),
                x86: has(CategoryWord::X86),
                arm64: has(CategoryWord::Arm64),
                deflate: has(CategoryWord::Deflate),
                pcm: has(CategoryWord::Pcm),
                fits: has(CategoryWord::Fits),
                png: has(CategoryWord::Png),
                jpeg: has(CategoryWord::Jpeg),
            };
        }
        if let Some(word) = self.order {
            options.order = match word {
                OrderWord::Path => Order::Path,
                OrderWord::Name => Order::Name,
                OrderWord::Revpath => Order::ReversePath,
                OrderWord::Similarity => Order::Similarity,
                OrderWord::Nilsimsa => Order::Nilsimsa,
            };
        }
        if let Some(path) = &self.order_list {
            let text = std::fs::read(path).with_context(|| path.display().to_string())?;
            options.order = Order::List(listed(&text).into());
        }
        if let Some(path) = &self.hotness {
            let hotness = Hotness::open(path)?;
            options.hot_paths = hotness.paths().map(<[u8]>::to_vec).collect();
        }
        Ok(())
    }
}

/// Parses a list of paths relative to the source: `./a`, `/a/` and `a` are equal.
fn listed(text: &[u8]) -> Vec<Vec<u8>> {
    let separator = if text.contains(&0) { 0 } else { b'\n' };
    let component = |c: &&[u8]| !c.is_empty() && *c != b".";
    let path = |line: &[u8]| {
        let components: Vec<&[u8]> = line.split(|&b| b == b'/').filter(component).collect();
        components.join(&b'/')
    };
    let paths = text.split(|&b| b == separator).map(path);
    paths.filter(|path| !path.is_empty()).collect()
}

/// Purpose that an image is optimized for.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum ProfileWord {
    /// Small images and fast sequential reads
    Archive,
    /// Fast small random reads: small blocks that share a dictionary; the image is larger
    Interactive,
}

/// Data that gets its own stream.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum CategoryWord {
    /// No category
    None,
    /// All categories
    All,
    /// Incompressible data: stored without a codec
    Incompressible,
    /// Programs and libraries for x86 (ELF, PE, Mach-O): stored behind a branch filter
    X86,
    /// Programs and libraries for ARM64: stored behind a branch filter
    Arm64,
    /// DEFLATE streams in gzip and zip files: stored expanded, rebuilt bit for bit by readers
    Deflate,
    /// Samples in WAV, W64, AIFF and CAF files: stored as FLAC
    Pcm,
    /// Integers in FITS images: stored as FLAC
    Fits,
    /// PNG images: stored as filtered rows if that is smaller
    Png,
    /// JPEG images: stored as Lepton files, a fifth smaller; readers rebuild 8 MB per second
    Jpeg,
}

/// Order of contents.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum OrderWord {
    /// By path, directory by directory; also called none
    #[value(alias = "none")]
    Path,
    /// By name, then by path: groups the versions of a file
    Name,
    /// By the reversed path: groups files at the same place of sibling trees
    Revpath,
    /// By shared data; reads up to 1 MiB of each file twice
    Similarity,
    /// By similarity of whole files (nilsimsa); reads up to 1 MiB of each file twice
    Nilsimsa,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        codec: CodecArgs,
        #[command(flatten)]
        layout: LayoutArgs,
    }

    /// Would catch: a codec given by the user that a profile replaces, or a codec of the level that
    /// stays although it supports no dictionary.
    #[test]
    fn explicit_codecs_override_a_profile() {
        let options = |words: &[&str]| {
            let words = Words::parse_from([&["weald", "--profile", "interactive"], words].concat());
            let mut options = BuildOptions::level(BuildOptions::LEVEL_DEFAULT).unwrap();
            apply(&words.codec, &words.layout, &mut options).unwrap();
            options
        };
        let code = Some(CodecSpec::ZstdCode);
        assert_eq!(options(&[]).x86_codec, None);
        assert_eq!(options(&["--codec", "x86=zstd-code"]).x86_codec, code);
        let both = options(&["--codec", "arm64=zstd-code", "--codec", "zstd:9"]);
        assert_eq!((both.codec, both.x86_codec), (CodecSpec::Zstd(9), None));
        assert_eq!(both.arm64_codec, code);
    }

    #[test]
    fn lists_may_end_in_newlines_or_zero_bytes() {
        let expected = [b"a/b".to_vec(), b"c".to_vec()];
        assert_eq!(listed(b"./a//b\n\n/c/\n"), expected);
        assert_eq!(listed(b"a/b\0c\0"), expected);
        assert_eq!(listed(b"a\nb\0"), [b"a\nb".to_vec()]);
        assert_eq!(listed(b"\n/\n./\n"), Vec::<Vec<u8>>::new());
    }
}
