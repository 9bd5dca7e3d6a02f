//! Everything that decides what an image will hold and how.

use crate::filter::Filter;
use crate::mode::ModeRule;
use crate::script::Script;
use std::path::PathBuf;
use std::sync::Arc;
use weald_codec::CodecSpec;
use weald_format::directory::Category;
use weald_format::limits::{BASES_MAX, BLOCK_LEN_MAX, DICTIONARY_LEN_MAX};
use weald_format::{Attributes, Error, FileKind, Result, Timestamp};
use weald_io::TargetKind;

/// Raw bytes of the smallest blocks.
const BLOCK_LEN_MIN: u64 = 4096;

/// In which order contents are laid out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Directory by directory, names in byte order: what is listed together lies together.
    Path,
    /// By last path component, then by path: versions of one file lie together.
    Name,
    /// By the components of the path from the last to the first.
    ReversePath,
    /// By what contents share: the smallest hashes of their shingles (MinHash, Broder 1997).
    Similarity,
    /// By how like each other contents are as a whole (nilsimsa, Damiani et al. 2004).
    Nilsimsa,
    /// These paths first, in this order, relative to the source and without a slash in front; a
    /// directory stands for all in it. The rest follows in path order.
    List(Arc<[Vec<u8>]>),
}

/// Kinds of data that are looked for and treated in their own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Categories {
    /// Data that no codec makes smaller is stored as it is, and no time is lost on it.
    pub incompressible: bool,
    /// Programs and libraries for x86 go through a branch filter.
    pub x86: bool,
    /// Programs and libraries for ARM64 go through another.
    pub arm64: bool,
    /// DEFLATE streams (gzip, zip) are stored as their plain bytes and recipes.
    pub deflate: bool,
    /// Samples in audio files (WAV, W64, AIFF, CAF) are stored as FLAC streams and recipes.
    pub pcm: bool,
    /// Whole numbers in FITS images are stored as FLAC streams and recipes.
    pub fits: bool,
    /// Images in PNG files are stored as their filtered rows and recipes.
    pub png: bool,
    /// JPEG files are stored as Lepton files and recipes.
    pub jpeg: bool,
}

impl Categories {
    /// Nothing is told apart.
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

    /// Everything is.
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

    /// Whether files are read whole to be taken apart.
    pub const fn takes_apart(&self) -> bool {
        self.deflate || self.pcm || self.fits || self.png || self.jpeg
    }
}

/// What happens to mtimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MtimeRule {
    /// Kept.
    Keep,
    /// Later ones become this (`SOURCE_DATE_EPOCH`); seconds since 1970.
    Clamp(i64),
    /// All become this; seconds since 1970.
    Set(i64),
}

impl MtimeRule {
    /// What becomes of `mtime`.
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

/// Longest name of a file, bytes.
const NAME_LEN_MAX: usize = 255;

/// Where in the tree of an image a source is added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddAt {
    /// Path from the root of the image, without empty names, `.` or `..`; empty for the root.
    pub(crate) path: Vec<u8>,
    /// Owner of the directories above that are missing.
    pub(crate) uid: u32,
    /// Group of them.
    pub(crate) gid: u32,
}

impl AddAt {
    /// The place `path`, with or without a leading `/`; missing directories above it belong to the
    /// pair `owner` of user and group.
    ///
    /// # Errors
    /// `Invalid` where a name of `path` is `..` or longer than 255 bytes.
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
                "--at: expected names of at most {NAME_LEN_MAX} bytes other than '..', found '{}'",
                String::from_utf8_lossy(name)
            ))),
        }
    }

    /// Bytes that stand before the path in the source, in a path of the new tree.
    pub(crate) fn prefix_len(&self) -> usize {
        match self.path.len() {
            0 => 0,
            len => len + 1,
        }
    }
}

/// Options of a build.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// Codec and level for blocks of ordinary data.
    pub codec: CodecSpec,
    /// Codec and level for blocks of x86 code; `None` takes that of ordinary data.
    pub x86_codec: Option<CodecSpec>,
    /// Codec and level for blocks of ARM64 code; `None` takes that of ordinary data.
    pub arm64_codec: Option<CodecSpec>,
    /// Raw bytes per block, 4 KiB … 64 MiB; of what is stored as it is, 1 MiB at most.
    pub block_len: u64,
    /// Shortest repeat that is shared, bytes, 64 … 4096; 0 = no segmentation.
    pub match_len_min: u32,
    /// Bytes of the pieces that are put beside those they resemble before blocks are cut, 4 KiB …
    /// 64 MiB; 0 = they stay as files come.
    pub cluster_len: u64,
    /// Longest dictionary that blocks of ordinary data share, bytes, up to 1 MiB; 0 = none. Only
    /// Zstandard has one.
    pub dictionary_len: u64,
    /// What is told apart from ordinary data.
    pub categories: Categories,
    /// Order of contents.
    pub order: Order,
    /// Files whose contents come before all others, in this order, relative to the source and
    /// without a slash in front; those that the source does not have are passed over.
    pub hot_paths: Arc<[Vec<u8>]>,
    /// Zstandard level of metadata.
    pub metadata_level: i32,
    /// Worker threads; 0 = one per CPU.
    pub threads: usize,
    /// Memory budget in bytes for everything the builder allocates. Tables, and so the bytes of the
    /// image, follow from it.
    pub memory_len: u64,
    /// Where the other options need more than the budget, the limit may rise to this; 0: it may
    /// not.
    pub memory_len_max: u64,
    /// Include and exclude rules, first match wins.
    pub filter: Filter,
    /// A script that filters and orders.
    pub script: Option<Arc<Script>>,
    /// Owner for everything.
    pub uid: Option<u32>,
    /// Group for everything.
    pub gid: Option<u32>,
    /// Permission changes.
    pub mode: Option<ModeRule>,
    /// mtimes.
    pub mtime: MtimeRule,
    /// Keep atime.
    pub keep_atime: bool,
    /// Keep ctime.
    pub keep_ctime: bool,
    /// Keep btime.
    pub keep_btime: bool,
    /// Keep extended attributes.
    pub keep_xattrs: bool,
    /// Do not cross into other file systems.
    pub one_file_system: bool,
    /// Images whose bytes need not be stored again: extents refer to them.
    pub bases: Vec<PathBuf>,
    /// Append a generation to the image that is there, instead of making one; where there is none,
    /// make one.
    pub append: bool,
    /// Add the source to the tree of the image at a path, instead of replacing the tree; only with
    /// `append`, to an image that is there.
    pub at: Option<AddAt>,
    /// Let an appended tree lack more than half of the names that are there.
    pub allow_removal: bool,
    /// What the target is: a file, or a device that is written to directly.
    pub target_kind: TargetKind,
}

impl BuildOptions {
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
        // Two threads fit.
        let memory_len = match level {
            9 => 1280 << 20,
            8 => 1 << 30,
            _ => base.memory_len,
        };
        Ok(Self {
            codec,
            // Machine code gains from short matches, not from a long search, and is most of a
            // system.
            x86_codec: (level == 7).then_some(CodecSpec::ZstdCode),
            block_len,
            match_len_min,
            cluster_len: if level >= 4 { base.cluster_len } else { 0 },
            memory_len,
            // Of trees without contents it is the metadata that takes the time.
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

    /// The same for a tree without contents: nothing is packed, so that packing needs no memory. Of
    /// the image only the longest block that its streams announce is another, none of which has
    /// any.
    pub(crate) fn without_contents(&self) -> Self {
        Self {
            codec: CodecSpec::None,
            x86_codec: None,
            arm64_codec: None,
            block_len: BLOCK_LEN_MIN,
            match_len_min: 0,
            cluster_len: 0,
            dictionary_len: 0,
            categories: Categories::none(),
            ..self.clone()
        }
    }

    /// What becomes of the owner and mode of an inode of `kind`.
    pub fn attributes_of(&self, attributes: Attributes, kind: FileKind) -> Attributes {
        let permissions = match &self.mode {
            // A symlink has no mode of its own.
            Some(rule) if kind != FileKind::Symlink => {
                rule.apply(attributes.permissions, kind == FileKind::Directory)
            }
            _ => attributes.permissions,
        };
        Attributes {
            permissions,
            uid: self.uid.unwrap_or(attributes.uid),
            gid: self.gid.unwrap_or(attributes.gid),
            ..attributes
        }
    }

    /// Makes the image quick to read in small pieces, for about an eighth of its size: small blocks
    /// that share a dictionary, which gives back most of what they lose.
    /// `docs/design/0010-reading-in-small-pieces.md` has the measurements.
    pub fn make_interactive(&mut self) {
        self.block_len = self.block_len.min(208 << 10);
        self.dictionary_len = 448 << 10;
        // It takes no dictionary, which small blocks gain more from than programs lose by their own
        // codec.
        self.x86_codec = self.x86_codec.filter(|&c| c != CodecSpec::ZstdCode);
    }

    /// Checks what no type can.
    ///
    /// # Errors
    /// `Invalid` with the range that is allowed.
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

/// Longest block of what is stored as it is: no codec gains by longer ones, and shorter ones are
/// read faster (docs/design/0017). The help of `--block-size` tells it too.
const RAW_BLOCK_LEN_MAX: u64 = 512 << 10;

/// Raw bytes per block of a stream of `category` where blocks have `block_len`.
pub(crate) fn block_len_of(category: Category, block_len: u64) -> u64 {
    match category {
        Category::Incompressible => block_len.min(RAW_BLOCK_LEN_MAX),
        _ => block_len,
    }
}

/// Whether blocks may have so many raw bytes.
pub(crate) fn validate_block_len(len: u64) -> Result<()> {
    match (BLOCK_LEN_MIN..=BLOCK_LEN_MAX).contains(&len) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "block size: expected 4K to 64M, found {len} bytes"
        ))),
    }
}

/// Whether the codec has such a level.
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
            match_len_min: 256,
            cluster_len: 32 << 10,
            dictionary_len: 0,
            categories: Categories::all(),
            order: Order::Path,
            hot_paths: Arc::default(),
            metadata_level: 19,
            threads: 0,
            memory_len: 512 << 20,
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
            keep_xattrs: true,
            one_file_system: false,
            bases: Vec::new(),
            append: false,
            at: None,
            allow_removal: false,
            target_kind: TargetKind::File,
        }
    }
}
