//! Streams become images: tar streams, descriptions of mtree and listings, in any order, within the
//! memory that there is.
//!
//! A stream is read once. Contents go into the image as they come; of every member a short record
//! goes to an external sort by path. What the sort gives is settled into a tree: of each path the
//! last member, directories that nobody named, hard links. That tree is handed to
//! `weald_builder::stream`. `docs/design/0014-streams.md` says why it is built so.
//!
//! What a tree cannot be is refused and named: paths that are absolute or have `..`, members below
//! something that is no directory in the end (a symlink, say), hard links to what did not come
//! before. Nothing is read or written beside the image and its temporary files.
#![forbid(unsafe_code)]

mod blocks;
mod excluded;
mod gather;
mod input;
mod links;
mod listing;
mod member;
mod members;
mod mtree;
mod path;
mod settle;
mod sort;
mod source;
mod tar;
mod walk;

pub use input::Source;

use input::Input;
use listing::{ListingReader, Separator};
use member::Member;
use members::{Layout, Members};
use mtree::MtreeReader;
use source::{DECODER_SHARE, IngestSource};
use std::path::{Path, PathBuf};
use tar::TarReader;
use walk::WalkSource;
use weald_builder::stream::build_stream;
use weald_builder::{BuildOptions, Order, Report, Watch};
use weald_format::{Error, ErrorKind, Result};

/// Bytes that [`scan_stream`] reads at once.
const SCAN_PIECE_LEN: usize = 64 << 10;

/// What a stream is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    /// Found out: tar, or mtree that says so in its first line.
    Auto,
    /// A tar stream.
    Tar,
    /// Paths that end in zero bytes: empty files; with a slash at its end, or something below it, a
    /// directory.
    Listing,
    /// The same with paths that end in newlines.
    Lines,
    /// A description as of mtree(5).
    Mtree {
        /// The directory that contents of regular files are read from. Without one they must be
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

/// Builds an image of the tree that `source` tells, at `target`, which appears only when complete.
/// It may be compressed by gzip, zstd or xz.
///
/// # Errors
/// As [`weald_builder::build_image`]; `Invalid` for a stream that is damaged, cut short or says
/// what no tree can be; `Unsupported` for options that only a directory can follow.
/// # Cost
/// One pass over the stream; temporary files beside the image for records (about the bytes of all
/// paths, front-coded) and for a content of more than 4 MiB as long as it is being stored.
pub fn build_from_stream(
    source: Source,
    format: Format,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    watch: &dyn Watch,
) -> Result<Report> {
    refuse_options(options)?;
    let input = Input::new(source, options.memory_len / DECODER_SHARE)?;
    if let Some(separator) = format.separator() {
        let listing = ListingReader::new(input, separator);
        let mut source = WalkSource::new(listing, target, options, watch);
        let report = build_stream(&mut source, target, overwrite, options, watch)?;
        return Ok(Report {
            problem_count: report.problem_count + source.problem_count(),
            ..report
        });
    }
    let members = open_members(input, format)?;
    let mut source = IngestSource::new(members, target, options, watch);
    let report = build_stream(&mut source, target, overwrite, options, watch)?;
    Ok(Report {
        problem_count: source.problem_count(),
        ..report
    })
}

fn open_members(input: Input, format: Format) -> Result<Box<dyn Members>> {
    Ok(match format {
        Format::Listing => Box::new(ListingReader::new(input, Separator::Zero)),
        Format::Lines => Box::new(ListingReader::new(input, Separator::Newline)),
        Format::Mtree { contents } => Box::new(MtreeReader::new(input, contents.as_deref())?),
        Format::Tar => Box::new(TarReader::new(input)),
        Format::Auto if TarReader::is_tar(input.front()) => Box::new(TarReader::new(input)),
        Format::Auto if MtreeReader::is_mtree(input.front()) => {
            Box::new(MtreeReader::new(input, None)?)
        }
        Format::Auto => {
            let what = "the stream is no tar stream; --from says what else it is";
            return Err(Error::invalid(what));
        }
    })
}

/// What a stream comes to.
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
/// `Io`; `Invalid`, `Limit` and `Unsupported` as [`build_from_stream`], where one member alone
/// shows it.
pub fn scan_stream(source: Source, format: Format, decoder_len: u64) -> Result<Scanned> {
    let mut members = open_members(Input::new(source, decoder_len)?, format)?;
    let (mut member, mut key, mut scanned) = (Member::default(), Vec::new(), Scanned::default());
    let mut piece = vec![0; SCAN_PIECE_LEN];
    while members.next(&mut member, &mut |_, _| {})? {
        path::put_key(&member.path, &mut key)?;
        scanned.member_count += 1;
        let mut left = members.layout().map_or(0, Layout::data_len);
        while left > 0 {
            let len = left.min(SCAN_PIECE_LEN as u64);
            members.read_data(&mut piece[..len as usize])?;
            left -= len;
            scanned.data_len += len;
        }
    }
    Ok(scanned)
}

/// Options that ask for what a stream does not have.
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
        (options.one_file_system, "staying on one file system"),
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
