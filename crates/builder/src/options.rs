//! Options of a build: everything that decides about the content of an image.

pub mod addition;
pub mod attributes;
pub mod mode;
pub mod plan;
pub mod script;
pub mod walk;

use crate::options::addition::Addition;
use crate::options::attributes::AttributeRules;
use crate::options::mode::ModeRule;
use crate::options::script::Script;
use crate::options::walk::{FollowLinks, HardLinks, MountPoints};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_codec::CodecSpec;
use weald_filter::Filter;
use weald_format::directory::Category;
use weald_format::label::Label;
use weald_format::limits::{BASES_MAX, BLOCK_LEN_MAX, DICTIONARY_LEN_MAX};
use weald_format::{Attributes, Error, FileKind, Result, Timestamp};
use weald_io::{OutputFile, TargetKind};

/// Smallest raw block, bytes.
const BLOCK_LEN_MIN: u64 = 4096;

/// Order of contents in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Directory by directory, names in byte order. Files of a directory are adjacent.
    Path,
    /// By last path component, then by path. Versions of a file are adjacent.
    Name,
    /// By the components of the path from the last to the first.
    ReversePath,
    /// By shared content: the smallest hashes of the shingles of each file (MinHash, Broder 1997).
    Similarity,
    /// By similarity of whole contents (nilsimsa, Damiani et al. 2004).
    Nilsimsa,
    /// The listed paths first, in this order; the rest in path order. Paths are relative to the
    /// source, without a leading slash; a directory stands for everything in it.
    List(Arc<[Vec<u8>]>),
}

/// Kinds of data that are detected and stored in a special way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Categories {
    /// Stores incompressible data as it is and spends no time on compressing it.
    pub incompressible: bool,
    /// Applies a branch filter to x86 programs and libraries.
    pub x86: bool,
    /// Applies a branch filter to ARM64 programs and libraries.
    pub arm64: bool,
    /// Stores DEFLATE streams (gzip, zip) as their plain bytes and recipes.
    pub deflate: bool,
    /// Stores samples of audio files (WAV, W64, AIFF, CAF) as FLAC streams and recipes.
    pub pcm: bool,
    /// Stores integer data of FITS images as FLAC streams and recipes.
    pub fits: bool,
    /// Stores images of PNG files as their filtered rows and recipes.
    pub png: bool,
    /// Stores JPEG files as Lepton files and recipes.
    pub jpeg: bool,
}

impl Categories {
    /// No category is detected.
    pub const fn none() -> Self {
        Self {
            incompressible: false,
            x86: false,
            arm64: false,
            deflate: false,
            pcm: false,
            fits: false,
            png: false,
            jpeg: false,
        }
    }

    /// All categories are detected.
    pub const fn all() -> Self {
        Self {
            incompressible: true,
            x86: true,
            arm64: true,
            deflate: true,
            pcm: true,
            fits: true,
            png: true,
            jpeg: true,
        }
    }

    /// Whether any recipe category is on, so that files have to be read whole.
    pub const fn uses_recipes(&self) -> bool {
        self.deflate || self.pcm || self.fits || self.png || self.jpeg
    }
}

/// Rule for mtimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MtimeRule {
    /// Keeps them.
    Keep,
    /// Replaces later ones by this (`SOURCE_DATE_EPOCH`); seconds since 1970.
    Clamp(i64),
    /// Replaces all by this; seconds since 1970.
    Set(i64),
}

impl MtimeRule {
    /// Applies the rule to `mtime`.
    pub fn apply(self, mtime: Timestamp) -> Timestamp {
        let whole = |seconds| Timestamp {
            seconds,
            nanoseconds: 0,
        };
        match self {
            Self::Keep => mtime,
            Self::Clamp(latest) => mtime.min(whole(latest)),
            Self::Set(seconds) => whole(seconds),
        }
    }
}

/// Longest file name, bytes.
const NAME_LEN_MAX: usize = 255;

/// Position in the tree of an image at which a source is added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddAt {
    /// Path from the root of the image, without empty names, `.` or `..`; empty for the root.
    pub(crate) path: Vec<u8>,
    /// Owner of missing parent directories.
    pub(crate) uid: u32,
    /// Group of missing parent directories.
    pub(crate) gid: u32,
}

impl AddAt {
    /// A position at `path`, with or without a leading `/`. Missing parent directories get the user
    /// and group of `owner`.
    ///
    /// # Errors
    /// `Invalid` if a name in `path` is `..` or longer than 255 bytes.
    pub fn new(path: &[u8], owner: (u32, u32)) -> Result<Self> {
        let names = path.split(|&b| b == b'/');
        let names: Vec<&[u8]> = names.filter(|n| !n.is_empty() && *n != b".").collect();
        let is_refused = |n: &&&[u8]| **n == b".." || n.len() > NAME_LEN_MAX || n.contains(&0);
        match names.iter().find(is_refused) {
            None => Ok(Self {
                path: names.join(&b'/'),
                uid: owner.0,
                gid: owner.1,
            }),
            Some(name) => Err(Error::invalid(format!(
                "path in the image: expected names of at most {NAME_LEN_MAX} bytes other than \
                 '..', found '{}'",
                String::from_utf8_lossy(name)
            ))),
        }
    }

    /// The root of the tree.
    pub const fn root() -> Self {
        Self {
            path: Vec::new(),
            uid: 0,
            gid: 0,
        }
    }

    /// The position `other` below this one.
    pub(crate) fn join(&self, other: &Self) -> Self {
        let is_named = |path: &&[u8]| !path.is_empty();
        let paths = [&*self.path, &*other.path].into_iter().filter(is_named);
        Self {
            path: paths.collect::<Vec<_>>().join(&b'/'),
            ..*self
        }
    }

    /// Length of the prefix that paths of the source get in the new tree, bytes.
    pub(crate) fn prefix_len(&self) -> usize {
        match self.path.len() {
            0 => 0,
            len => len + 1,
        }
    }
}

/// Codecs and blocks of a tree with little data. A stronger search takes little time in all, and
/// long blocks, of which a reader decodes more than it wants, leave few bytes to be decoded in
/// vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallTree {
    /// Bytes that are neither repeats nor incompressible, at most, in all streams together.
    pub len_max: u64,
    /// Codec and level for all blocks with a codec.
    pub codec: CodecSpec,
    /// Raw bytes per block.
    pub block_len: u64,
    /// Shortest repeat that is shared, bytes, if all files together have at most `len_max` bytes:
    /// an extent takes more than a match in the same block.
    pub match_len_min: u32,
}

/// Options of a build.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// Codec and level for blocks of ordinary data.
    pub codec: CodecSpec,
    /// Codec and level for blocks of x86 code; `None` uses that of ordinary data.
    pub x86_codec: Option<CodecSpec>,
    /// Codec and level for blocks of ARM64 code; `None` uses that of ordinary data.
    pub arm64_codec: Option<CodecSpec>,
    /// Raw bytes per block, 4 KiB … 64 MiB. Incompressible data has blocks of at most 512 KiB.
    pub block_len: u64,
    /// What a small tree has instead; `None` treats all trees alike.
    pub small_tree: Option<SmallTree>,
    /// Shortest repeat that is shared, bytes, 64 … 4096; 0 turns segmentation off.
    pub match_len_min: u32,
    /// Length of the pieces that clustering moves next to similar ones before blocks are cut, 4
    /// KiB … 64 MiB; 0 turns clustering off.
    pub cluster_len: u64,
    /// Longest shared dictionary of ordinary blocks, bytes, up to 1 MiB; 0 = none. Only Zstandard
    /// uses it.
    pub dictionary_len: u64,
    /// Categories that are detected.
    pub categories: Categories,
    /// Order of contents.
    pub order: Order,
    /// Files whose contents come first, in this order. Paths are relative to the source, without a
    /// leading slash; missing files are skipped.
    pub hot_paths: Arc<[Vec<u8>]>,
    /// Zstandard level of metadata.
    pub metadata_level: i32,
    /// Worker threads; 0 = one per CPU.
    pub threads: usize,
    /// Memory that the search for repeats is made for, bytes. The sizes of tables and windows
    /// follow from it, and so do the bytes of the image.
    pub memory_len: u64,
    /// Memory that the build may take in all, bytes, if that is more than `memory_len`. It decides
    /// how many threads run, and nothing about the bytes of the image.
    pub limit_len: u64,
    /// Highest limit if the other options need more even for one thread, bytes; 0 if the limit was
    /// asked for and stays.
    pub memory_len_max: u64,
    /// Include and exclude rules; the first match decides.
    pub filter: Filter,
    /// Script that filters and orders.
    pub script: Option<Arc<Script>>,
    /// Owner of all entries.
    pub uid: Option<u32>,
    /// Group of all entries.
    pub gid: Option<u32>,
    /// Permission changes.
    pub mode: Option<ModeRule>,
    /// Rule for mtimes.
    pub mtime: MtimeRule,
    /// Rules about extended attributes, ids and the root.
    pub rules: AttributeRules,
    /// Keep atime.
    pub keep_atime: bool,
    /// Keep ctime.
    pub keep_ctime: bool,
    /// Keep btime.
    pub keep_btime: bool,
    /// Keep extended attributes.
    pub keep_xattrs: bool,
    /// Keep the fs-verity digest of each content. An image that is continued or copied and has
    /// them keeps them without this option.
    pub keep_fsverity: bool,
    /// Drop directories of the source in which nothing but directories is left.
    pub prune_empty_dirs: bool,
    /// Fail, with no image, if anything of the source cannot be packed.
    pub is_strict: bool,
    /// Entries that are laid over the source, in order.
    pub additions: Arc<[Addition]>,
    /// What becomes of mount points.
    pub mount_points: MountPoints,
    /// Which symlinks become what they lead to.
    pub follow: FollowLinks,
    /// What becomes of hard links.
    pub hard_links: HardLinks,
    /// Base images: extents refer to data that they hold, so that it is not stored again.
    pub bases: Vec<PathBuf>,
    /// Appends a generation to the existing image; creates an image if there is none.
    pub append: bool,
    /// Adds the source to the tree of the existing image at this position instead of replacing the
    /// tree. Needs `append`.
    pub at: Option<AddAt>,
    /// Allows an appended tree to lack more than half of the existing names.
    pub allow_removal: bool,
    /// What the user says that the generation is. With `None`, it has no label; a tree that is as
    /// before makes no new generation then, whatever the label of the last one is.
    pub label: Option<Label>,
    /// Kind of the target: a file, or a device that is written directly.
    pub target_kind: TargetKind,
    /// What stands before the image in a new file.
    pub head: Option<Head>,
}

/// What stands before an image in its file. Readers find the image by its offset or by its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Its bytes.
    pub bytes: Arc<[u8]>,
    /// Whether the file can be executed.
    pub is_executable: bool,
}

impl BuildOptions {
    /// Prepares the file of a new image at `target`.
    ///
    /// # Errors
    /// As [`OutputFile::create`]; `Full`.
    pub(crate) fn new_output(&self, target: &Path) -> Result<OutputFile> {
        let mut out = OutputFile::create(target, self.target_kind)?;
        if let Some(head) = &self.head {
            out.begin_with(&head.bytes)?;
            if head.is_executable {
                out.make_executable();
            }
        }
        Ok(out)
    }

    /// Fails if there are problems and none may be.
    pub(crate) fn refuse_problems(&self, count: u64) -> Result<()> {
        if !self.is_strict || count == 0 {
            return Ok(());
        }
        let noun = if count == 1 { "problem" } else { "problems" };
        Err(Error::invalid(format!(
            "strict: {count} {noun}, as told above; nothing is written"
        )))
    }

    /// Memory that the build may take in all, bytes.
    pub fn budget_len(&self) -> u64 {
        self.memory_len.max(self.limit_len)
    }

    /// Memory of which the source of a stream gets its shares, bytes: all that was asked for, or
    /// else the usual, whatever is free.
    pub fn source_len(&self) -> u64 {
        match self.memory_len_max {
            0 => self.budget_len(),
            _ => self.memory_len,
        }
    }

    /// The default level.
    pub const LEVEL_DEFAULT: u8 = 7;
    /// The strongest level.
    pub const LEVEL_MAX: u8 = 9;

    /// The options of level 0 (fastest) to 9 (smallest); `docs/design/0004-levels.md` has the
    /// measurements.
    ///
    /// # Errors
    /// `Invalid` for other levels.
    pub fn level(level: u8) -> Result<Self> {
        let (codec, block_len, match_len_min) = match level {
            0 => (CodecSpec::None, 1 << 20, 0),
            1 => (CodecSpec::Lz4, 1 << 20, 1024),
            2 => (CodecSpec::Zstd(1), 1 << 20, 512),
            3 => (CodecSpec::Zstd(3), 1 << 20, 512),
            4 => (CodecSpec::Zstd(7), 2 << 20, 512),
            5 => (CodecSpec::Zstd(9), 4 << 20, 256),
            6 => (CodecSpec::Zstd(12), 4 << 20, 256),
            7 => (CodecSpec::ZstdLean, 4 << 20, 256),
            8 => (CodecSpec::Zstd(19), 8 << 20, 256),
            9 => (CodecSpec::Xz(9), 16 << 20, 256),
            _ => {
                return Err(Error::invalid(format!(
                    "level: expected 0 to 9, found {level}"
                )));
            }
        };
        let base = Self::default();
        // The budget has room for two threads.
        let memory_len = match level {
            9 => 1280 << 20,
            8 => 1 << 30,
            _ => base.memory_len,
        };
        Ok(Self {
            codec,
            // Machine code gains from short matches rather than from a long search, and most of a
            // system is code.
            x86_codec: (level == 7).then_some(CodecSpec::ZstdCode),
            block_len,
            small_tree: (level == 7).then_some(SmallTree {
                len_max: 64 << 20,
                codec: CodecSpec::ZstdDeep,
                block_len: 16 << 20,
                match_len_min: 1024,
            }),
            match_len_min,
            cluster_len: if level >= 4 { base.cluster_len } else { 0 },
            memory_len,
            // For trees without contents, metadata takes most of the time.
            metadata_level: match level {
                0 => 1,
                1 => 3,
                _ => base.metadata_level,
            },
            categories: Categories {
                x86: level >= 2,
                arm64: level >= 2,
                deflate: level >= 4,
                pcm: level >= 2,
                fits: level >= 2,
                png: level >= 8,
                jpeg: level >= 8,
                ..base.categories
            },
            ..base
        })
    }

    /// The same options for a tree without contents: nothing is compressed, so that compression
    /// needs no memory. The image differs only in the block length that its empty streams announce.
    pub(crate) fn without_contents(&self) -> Self {
        Self {
            codec: CodecSpec::None,
            x86_codec: None,
            arm64_codec: None,
            block_len: BLOCK_LEN_MIN,
            small_tree: None,
            match_len_min: 0,
            cluster_len: 0,
            dictionary_len: 0,
            categories: Categories::none(),
            ..self.clone()
        }
    }

    /// The same, packed as fast as it goes: for an image that is packed again at once.
    pub fn for_temporary_image(&self) -> Self {
        Self {
            codec: CodecSpec::Lz4,
            block_len: 1 << 20,
            ..self.without_contents()
        }
    }

    /// The same for a tree that rules and scripts have been applied to already: all of it is kept
    /// as it is.
    pub fn without_rules(&self) -> Self {
        Self {
            filter: Filter::default(),
            script: None,
            mode: None,
            uid: None,
            gid: None,
            mtime: MtimeRule::Keep,
            rules: AttributeRules::default(),
            hard_links: HardLinks::Keep,
            additions: Arc::default(),
            ..self.clone()
        }
    }

    /// Returns the attributes that an inode of `kind` gets.
    pub fn attributes_of(&self, attributes: Attributes, kind: FileKind) -> Attributes {
        let permissions = match &self.mode {
            // A symlink has no mode.
            Some(rule) if kind != FileKind::Symlink => {
                rule.apply(attributes.permissions, kind == FileKind::Directory)
            }
            _ => attributes.permissions,
        };
        let mapped = self.rules.choice.attributes_of(attributes);
        Attributes {
            permissions,
            uid: self.uid.unwrap_or(mapped.uid),
            gid: self.gid.unwrap_or(mapped.gid),
            ..attributes
        }
    }

    /// The same for the root of the tree.
    pub(crate) fn root_attributes_of(&self, attributes: Attributes) -> Attributes {
        let attributes = self.attributes_of(attributes, FileKind::Directory);
        let rules = &self.rules.root;
        let mode = rules.mode.as_ref();
        Attributes {
            permissions: mode.map_or(attributes.permissions, |rule| {
                rule.apply(attributes.permissions, true)
            }),
            uid: rules.uid.unwrap_or(attributes.uid),
            gid: rules.gid.unwrap_or(attributes.gid),
            ..attributes
        }
    }

    /// The mtime of the root of the tree.
    pub(crate) fn root_mtime_of(&self, mtime: Timestamp) -> Timestamp {
        match self.rules.root.mtime {
            Some(seconds) => MtimeRule::Set(seconds).apply(mtime),
            None => self.mtime.apply(mtime),
        }
    }

    /// Optimizes the image for small random reads: small blocks that share a dictionary. Images
    /// become about an eighth larger, because the dictionary regains most of what small blocks
    /// lose. `docs/design/0010-reading-in-small-pieces.md` has the measurements.
    pub fn make_interactive(&mut self) {
        self.block_len = self.block_len.min(208 << 10);
        self.small_tree = None;
        self.dictionary_len = 448 << 10;
        // This codec takes no dictionary. Small blocks gain more from a dictionary than programs
        // lose without their own codec.
        self.x86_codec = self.x86_codec.filter(|&c| c != CodecSpec::ZstdCode);
    }

    /// Checks the ranges that the types allow but the builder does not.
    ///
    /// # Errors
    /// `Invalid`; the message names the allowed range.
    pub fn validate(&self) -> Result<()> {
        validate_block_len(self.block_len)?;
        if self.match_len_min != 0 && !(64..=4096).contains(&self.match_len_min) {
            return Err(Error::invalid(format!(
                "shortest repeat: expected 0 or 64 to 4096, found {}",
                self.match_len_min
            )));
        }
        if self.cluster_len != 0 && !(4096..=BLOCK_LEN_MAX).contains(&self.cluster_len) {
            return Err(Error::invalid(format!(
                "cluster size: expected 0 or 4K to 64M, found {} bytes",
                self.cluster_len
            )));
        }
        if self.dictionary_len > DICTIONARY_LEN_MAX {
            return Err(Error::invalid(format!(
                "dictionary: expected at most {DICTIONARY_LEN_MAX} bytes, found {}",
                self.dictionary_len
            )));
        }
        if self.bases.len() > BASES_MAX {
            return Err(Error::invalid(format!(
                "base images: expected at most {BASES_MAX}, found {}",
                self.bases.len()
            )));
        }
        if self.at.is_some() && !self.append {
            return Err(Error::invalid(
                "--at adds to an image: use it with --append",
            ));
        }
        self.x86_codec.map_or(Ok(()), validate_codec)?;
        self.arm64_codec.map_or(Ok(()), validate_codec)?;
        validate_codec(self.codec)
    }
}

/// Longest block of incompressible data, bytes: longer ones compress no better, and shorter ones
/// are read faster (docs/design/0017). The help of `--block-size` repeats this figure.
const RAW_BLOCK_LEN_MAX: u64 = 512 << 10;

/// Raw bytes per block of a stream of `category`, if blocks have `block_len` bytes.
pub(crate) fn block_len_of(category: Category, block_len: u64) -> u64 {
    match category {
        Category::Incompressible => block_len.min(RAW_BLOCK_LEN_MAX),
        _ => block_len,
    }
}

/// Checks the raw length of blocks.
pub(crate) fn validate_block_len(len: u64) -> Result<()> {
    if (BLOCK_LEN_MIN..=BLOCK_LEN_MAX).contains(&len) {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "block size: expected 4K to 64M, found {len} bytes"
        )))
    }
}

/// Checks that the codec has this level.
pub(crate) fn validate_codec(codec: CodecSpec) -> Result<()> {
    match codec {
        CodecSpec::Zstd(level) if !(1..=22).contains(&level) => Err(Error::invalid(format!(
            "zstd level: expected 1 to 22, found {level}"
        ))),
        CodecSpec::Lz4Hc(level) if !(1..=12).contains(&level) => Err(Error::invalid(format!(
            "lz4hc level: expected 1 to 12, found {level}"
        ))),
        CodecSpec::Xz(preset) if preset > 9 => Err(Error::invalid(format!(
            "xz preset: expected 0 to 9, found {preset}"
        ))),
        CodecSpec::Brotli(quality) if quality > 11 => Err(Error::invalid(format!(
            "brotli quality: expected 0 to 11, found {quality}"
        ))),
        _ => Ok(()),
    }
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            codec: CodecSpec::ZstdLean,
            x86_codec: None,
            arm64_codec: None,
            block_len: 4 << 20,
            small_tree: None,
            match_len_min: 256,
            cluster_len: 32 << 10,
            dictionary_len: 0,
            categories: Categories::all(),
            order: Order::Path,
            hot_paths: Arc::default(),
            metadata_level: 19,
            threads: 0,
            memory_len: 512 << 20,
            limit_len: 0,
            memory_len_max: 0,
            filter: Filter::new(),
            script: None,
            uid: None,
            gid: None,
            mode: None,
            mtime: MtimeRule::Keep,
            keep_atime: false,
            keep_ctime: false,
            keep_btime: false,
            rules: AttributeRules::default(),
            keep_xattrs: true,
            keep_fsverity: false,
            prune_empty_dirs: false,
            is_strict: false,
            additions: Arc::default(),
            mount_points: MountPoints::Entered,
            follow: FollowLinks::None,
            hard_links: HardLinks::Keep,
            bases: Vec::new(),
            append: false,
            at: None,
            allow_removal: false,
            label: None,
            target_kind: TargetKind::File,
            head: None,
        }
    }
}
