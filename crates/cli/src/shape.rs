//! Arguments that every command shares which finds and lays contents out anew: what is told apart,
//! in which order it lies, whom it belongs to.

use crate::parse::{self, CodecChoice};
use anyhow::Context;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use weald_builder::mode::ModeRule;
use weald_builder::{BuildOptions, Categories, CodecSpec, MtimeRule, Order};
use weald_format::directory::Category;
use weald_image::Hotness;

/// With which codecs blocks are encoded.
#[derive(Args, Debug)]
pub struct CodecArgs {
    /// Codec: none, lz4, lz4hc[:1-12], zstd[:1-22], zstd-lean, zstd-code, xz[:0-9] or
    /// brotli[:0-11]; x86=CODEC and arm64=CODEC are for programs alone; may be given several times
    #[arg(long = "codec", value_name = "[CATEGORY=]CODEC", value_parser = parse::codec_choice)]
    choices: Vec<CodecChoice>,
}

impl CodecArgs {
    /// The last one given for ordinary data.
    pub fn general(&self) -> Option<CodecSpec> {
        self.only(Category::General)
    }

    /// The last one given for `category` alone.
    pub fn only(&self, category: Category) -> Option<CodecSpec> {
        let mut choices = self.choices.iter().rev();
        choices.find(|c| c.category == category).map(|c| c.codec)
    }

    fn apply(&self, options: &mut BuildOptions) {
        if let Some(codec) = self.general() {
            (options.codec, options.x86_codec, options.arm64_codec) = (codec, None, None);
        }
        options.x86_codec = self.only(Category::X86).or(options.x86_codec);
        options.arm64_codec = self.only(Category::Arm64).or(options.arm64_codec);
    }
}

/// Puts what was given into `options`: codecs last, because a profile may drop one that the level
/// has, but none that was asked for.
///
/// # Errors
/// Where a list cannot be read.
pub fn apply(
    codec: &CodecArgs,
    layout: &LayoutArgs,
    options: &mut BuildOptions,
) -> anyhow::Result<()> {
    layout.apply(options)?;
    codec.apply(options);
    Ok(())
}

/// How contents are found and laid out.
#[derive(Args, Debug)]
pub struct LayoutArgs {
    /// What the image is to be good at: sets block size and shortest repeat where they are not
    /// given
    #[arg(long, value_enum)]
    profile: Option<ProfileWord>,
    /// Shortest repeat that is stored once, 64 to 4096 bytes; 0 looks for none
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    match_size: Option<u64>,
    /// Longest dictionary that blocks of ordinary data share, up to 1M; 0 for none: small blocks
    /// need one, large ones hardly. Only zstd has dictionaries
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    dictionary_size: Option<u64>,
    /// Bytes of the pieces that are put beside those they resemble, wherever their files are, 4K to
    /// 64M; 0 leaves them where files put them
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    cluster_size: Option<u64>,
    /// What to tell apart from ordinary data; unless asked to, levels 0 to 7 leave out png and
    /// jpeg, 0 to 3 deflate, 0 and 1 pcm and fits
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CATEGORY,…")]
    categorize: Option<Vec<CategoryWord>>,
    /// Order of contents in the image [default: path]
    #[arg(long, value_enum)]
    order: Option<OrderWord>,
    /// Lay out first what this file lists, in its order: a path on each line, or NULs between them;
    /// a directory stands for all in it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "order")]
    order_list: Option<PathBuf>,
    /// Lay out first the files that this hotness names, in the order in which they were read; the
    /// rest as --order says. weald mount --record makes one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    hotness: Option<PathBuf>,
}

impl LayoutArgs {
    /// Whether any of them was given.
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

/// The paths of a list, relative to the source: `./a`, `/a/` and `a` are the same.
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

/// What attributes become.
#[derive(Args, Debug)]
pub struct AttributeArgs {
    /// Give everything to this owner (and group)
    #[arg(long, value_name = "UID[:GID]", value_parser = parse::owner)]
    owner: Option<(u32, Option<u32>)>,
    /// Give everything to this group
    #[arg(long, value_name = "GID")]
    group: Option<u32>,
    /// Change permissions, as chmod does; D or F before a clause restricts it to directories or
    /// files
    #[arg(long, value_name = "RULE", allow_hyphen_values = true, value_parser = parse::mode)]
    mode: Option<ModeRule>,
    /// Times of change: TIME for all, clamp:TIME for later ones, or keep [default: keep; build
    /// clamps to SOURCE_DATE_EPOCH]
    #[arg(long, value_name = "RULE", allow_hyphen_values = true, value_parser = parse::mtime)]
    mtime: Option<MtimeRule>,
}

impl AttributeArgs {
    /// Whether any of them was given.
    pub fn is_given(&self) -> bool {
        self.owner.is_some() || self.group.is_some() || self.mode.is_some() || self.mtime.is_some()
    }

    /// Puts what was given into `options`.
    pub fn apply(&self, options: &mut BuildOptions) {
        let (uid, gid) = self.owner.unzip();
        options.uid = uid;
        options.gid = self.group.or(gid.flatten());
        options.mode.clone_from(&self.mode);
        if let Some(rule) = self.mtime {
            options.mtime = rule;
        }
    }
}

/// What an image is to be good at.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum ProfileWord {
    /// Small, and quick to read whole
    Archive,
    /// Quick to read in small pieces: small blocks that share a dictionary, for a larger image
    Interactive,
}

/// What can be told apart.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum CategoryWord {
    /// Nothing
    None,
    /// Everything below
    All,
    /// Data that no codec makes smaller: stored as it is
    Incompressible,
    /// Programs and libraries for x86 (ELF, PE, Mach-O): compressed with absolute addresses in
    /// calls
    X86,
    /// The same for ARM64
    Arm64,
    /// Streams in gzip and zip files: stored expanded, made again bit for bit when read
    Deflate,
    /// Samples in WAV, W64, AIFF and CAF files: stored as FLAC, made again when read
    Pcm,
    /// Whole numbers in FITS images: stored as FLAC, made again when read
    Fits,
    /// PNG images: stored as filtered rows where that is smaller, made again when read
    Png,
    /// JPEG images: stored as Lepton files, a fifth smaller, made again when read at 8 MB/s
    Jpeg,
}

/// In which order contents are laid out.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum OrderWord {
    /// Directory by directory, which is also what "none" means: files are always found in this
    /// order
    #[value(alias = "none")]
    Path,
    /// By name, then path: versions of one file lie together
    Name,
    /// By the path from its end: what lies at the same place in sibling trees lies together
    Revpath,
    /// By what contents share; reads up to 1 MiB of each file twice
    Similarity,
    /// By how like each other contents are as a whole; reads likewise
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

    /// Would catch: a codec that was asked for and is dropped by a profile, or one of the level
    /// that stays although it has no dictionary.
    #[test]
    fn codecs_that_were_asked_for_stay_with_a_profile() {
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
    fn lists_may_be_of_lines_or_of_nuls() {
        let expected = [b"a/b".to_vec(), b"c".to_vec()];
        assert_eq!(listed(b"./a//b\n\n/c/\n"), expected);
        assert_eq!(listed(b"a/b\0c\0"), expected);
        assert_eq!(listed(b"a\nb\0"), [b"a\nb".to_vec()]);
        assert_eq!(listed(b"\n/\n./\n"), Vec::<Vec<u8>>::new());
    }
}
