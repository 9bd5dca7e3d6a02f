//! Builds images from streams: tar streams, cpio archives, mtree descriptions and listings, with
//! members in any order, within the memory limit of the build.
//!
//! A stream is read once. Contents go into the image as they arrive. A short record of every member
//! goes to an external sort by path. `assemble` makes a tree of the sorted records: the last member
//! of each path, directories that the stream does not name, hard links. `weald_builder::stream`
//! takes that tree. `docs/design/0014-streams.md` gives the reasons. Images of EROFS and SquashFS,
//! and zip archives, which are read at any place, come the same way
//! (`docs/design/0047-archives.md`).
//!
//! Streams that describe no tree are refused with the path: absolute paths and paths with `..`,
//! members below an entry that is no directory in the end, hard links to a path without an earlier
//! member. Symlinks of a tar stream on the way to later members are followed. Only the image and
//! its temporary files are read and written.
#![forbid(unsafe_code)]

mod additions;
mod assemble;
mod blocks;
mod composefs;
mod cpio;
mod erofs;
mod excluded;
mod fields;
mod first_names;
mod form;
mod gather;
mod input;
mod links;
mod list;
mod listing;
mod member;
mod members;
mod mtree;
mod oci;
mod path;
mod sort;
mod source;
mod squashfs;
mod tar;
mod through;
mod walk;
mod zip;

pub use additions::read_additions;
pub use composefs::{ComposefsSource, import_composefs};
pub use form::{FileForm, FileFormat, detect};
pub use input::InputStream;
pub use oci::{
    Choice as OciChoice, OciImport, OciScanned, Platform as OciPlatform, import_oci, scan_oci,
};

use cpio::CpioReader;
use input::Input;
use list::list_members;
use listing::{ListingReader, Separator};
use member::Member;
use members::{Layout, Members};
use mtree::MtreeReader;
use source::{DECODER_SHARE, build_members};
use std::path::{Path, PathBuf};
use tar::TarReader;
use through::Reach;
use walk::WalkSource;
use weald_builder::stream::build_stream;
use weald_builder::{
    BuildOptions, FollowLinks, HardLinks, MountPoints, Observer, Order, Report, TakePath,
};
use weald_format::{Error, ErrorKind, Result};

/// Bytes that [`scan_stream`] reads at once.
const SCAN_PIECE_LEN: usize = 64 << 10;

/// Format of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// Detected from the first bytes: tar, cpio, or mtree with a `#mtree` line.
    Auto,
    /// A tar stream.
    Tar,
    /// A cpio archive: newc or crc.
    Cpio,
    /// Paths that end in zero bytes. Each is an empty file, or a directory if it ends in a slash or
    /// another path lies below it.
    Listing,
    /// As [`Format::Listing`], with paths that end in newlines.
    Lines,
    /// A description in the format of mtree(5).
    Mtree {
        /// Directory of the contents of regular files. Without one, all regular files must be
        /// empty.
        contents: Option<PathBuf>,
    },
}

impl Format {
    /// The byte that ends each path, if the stream is a list of paths.
    fn separator(&self) -> Option<Separator> {
        match self {
            Self::Listing => Some(Separator::Zero),
            Self::Lines => Some(Separator::Newline),
            _ => None,
        }
    }
}

/// Builds an image of the tree that `source` describes. The image appears at `target` when it is
/// complete. The stream may be compressed by gzip, zstd or xz.
///
/// # Errors
/// As [`weald_builder::build_image`]; `Invalid` for a stream that is damaged, truncated or
/// describes no tree; `Unsupported` for options that need a directory.
/// # Cost
/// One pass over the stream. Temporary files beside the image hold the records (about the bytes of
/// all paths, front-coded), a content of more than 4 MiB while it is stored, and contents of
/// excluded files (at most 1 GiB).
pub fn build_from_stream(
    source: InputStream,
    format: Format,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    refuse_options(options)?;
    let input = Input::new(source, options.source_len() / DECODER_SHARE)?;
    if let Some(separator) = format.separator() {
        let listing = ListingReader::new(input, separator);
        let mut source = WalkSource::new(listing, target, options, observer);
        let report = build_stream(&mut source, target, overwrite, options, observer)?;
        return Ok(Report {
            problem_count: report.problem_count + source.problem_count(),
            ..report
        });
    }
    let members = open_members(input, format, options.source_len())?;
    build_members(members, target, overwrite, options, observer)
}

/// Builds an image of the tree in the file at `source`, an archive or an image of another file
/// system, without mounting it. The image appears at `target` when it is complete.
///
/// # Errors
/// As [`build_from_stream`]; `Invalid` for a damaged file, `Unsupported` for features and codecs
/// that the reader lacks.
/// # Cost
/// As [`build_from_stream`].
pub fn build_from_file(
    (source, format): (&Path, FileFormat),
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    refuse_options(options)?;
    let members = format.open(source, options.source_len())?;
    build_members(members, target, overwrite, options, observer)
}

/// Calls `take` for each entry that [`build_from_stream`] would pack into an image at `target`, as
/// [`weald_builder::list_layers`] does. Returns the number of problems.
///
/// # Errors
/// As [`build_from_stream`], and those of `take`.
/// # Cost
/// As [`build_from_stream`], with nothing to compress and no image to write.
pub fn list_stream(
    source: InputStream,
    format: Format,
    target: &Path,
    options: &BuildOptions,
    observer: &dyn Observer,
    take: &mut TakePath<'_>,
) -> Result<u64> {
    refuse_options(options)?;
    let input = Input::new(source, options.source_len() / DECODER_SHARE)?;
    list_members(
        open_members(input, format, options.source_len())?,
        target,
        options,
        observer,
        take,
    )
}

/// The same for the tree in the file at `source`.
///
/// # Errors
/// As [`build_from_file`], and those of `take`.
pub fn list_file(
    (source, format): (&Path, FileFormat),
    target: &Path,
    options: &BuildOptions,
    observer: &dyn Observer,
    take: &mut TakePath<'_>,
) -> Result<u64> {
    refuse_options(options)?;
    let members = format.open(source, options.source_len())?;
    list_members(members, target, options, observer, take)
}

/// The members of a stream, with `memory_len` bytes of memory for its source.
fn open_members(input: Input, format: Format, memory_len: u64) -> Result<Box<dyn Members>> {
    let cpio = |input| {
        let decoder_len = memory_len / DECODER_SHARE;
        Box::new(CpioReader::new(input, decoder_len, decoder_len / 2))
    };
    Ok(match format {
        Format::Cpio => cpio(input),
        Format::Listing => Box::new(ListingReader::new(input, Separator::Zero)),
        Format::Lines => Box::new(ListingReader::new(input, Separator::Newline)),
        Format::Mtree { contents } => Box::new(MtreeReader::new(input, contents.as_deref())?),
        Format::Tar => Box::new(TarReader::new(input).following(Reach::Inside)),
        Format::Auto if TarReader::is_tar(input.front()) => {
            Box::new(TarReader::new(input).following(Reach::Inside))
        }
        Format::Auto if CpioReader::is_cpio(input.front()) => cpio(input),
        Format::Auto if MtreeReader::is_mtree(input.front()) => {
            Box::new(MtreeReader::new(input, None)?)
        }
        Format::Auto if input.front().is_empty() => {
            let what = "the stream is empty: did the command that writes it fail?";
            return Err(Error::invalid(what));
        }
        Format::Auto => {
            if let Some(format) = FileFormat::of_front(input.front()) {
                return Err(form::not_a_stream(format));
            }
            let what = "the stream is neither a tar or cpio archive nor an mtree description: \
                        name its format with --from";
            return Err(Error::invalid(what));
        }
    })
}

/// Counts of a scanned stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Members.
    pub member_count: u64,
    /// Bytes of data of all of them, holes not counted.
    pub data_len: u64,
}

/// Reads the stream `source` to its end and keeps nothing. A decoder may take `decoder_len` bytes.
///
/// # Errors
/// `Io`; `Invalid`, `Limit` and `Unsupported` as [`build_from_stream`], as far as single members
/// show them.
pub fn scan_stream(source: InputStream, format: Format, decoder_len: u64) -> Result<Scanned> {
    let memory_len = decoder_len.saturating_mul(DECODER_SHARE);
    let mut members = open_members(Input::new(source, decoder_len)?, format, memory_len)?;
    let (mut member, mut key, mut scanned) = (Member::default(), Vec::new(), Scanned::default());
    let mut piece = vec![0; SCAN_PIECE_LEN];
    while members.next(&mut member, &mut |_, _| {})? {
        path::put_key(&member.path, &mut key)?;
        scanned.member_count += 1;
        let mut remaining_len = members.layout().map_or(0, Layout::data_len);
        while remaining_len > 0 {
            let len = remaining_len.min(SCAN_PIECE_LEN as u64);
            members.read_data(&mut piece[..len as usize])?;
            remaining_len -= len;
            scanned.data_len += len;
        }
    }
    Ok(scanned)
}

/// Refuses options that need a directory.
fn refuse_options(options: &BuildOptions) -> Result<()> {
    let only_directories = [
        (options.script.is_some(), "a script"),
        (options.filter.asks_dirs(), "a rule 'dir-merge'"),
        (options.order != Order::Path, "an order of contents"),
        (!options.hot_paths.is_empty(), "a hotness"),
        (
            options.keep_atime || options.keep_ctime || options.keep_btime,
            "keeping other times than mtime",
        ),
        (
            options.mount_points != MountPoints::Entered,
            "staying on one file system",
        ),
        (!options.additions.is_empty(), "adding entries"),
        (options.follow != FollowLinks::None, "following symlinks"),
        (
            options.hard_links == HardLinks::AllEqual,
            "linking equal files",
        ),
        (options.append, "appending"),
        (!options.bases.is_empty(), "a base image"),
    ];
    match only_directories.into_iter().find(|(is_asked, _)| *is_asked) {
        None => Ok(()),
        Some((_, what)) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("{what} needs a directory; a stream comes once, and in its own order"),
        )),
    }
}
