//! Forms of files that hold a tree, told from their first bytes.

use crate::cpio::CpioReader;
use crate::erofs::ErofsReader;
use crate::input::Input;
use crate::members::Members;
use crate::mtree::MtreeReader;
use crate::source::DECODER_SHARE;
use crate::squashfs::SquashfsReader;
use crate::tar::TarReader;
use crate::zip::ZipReader;
use std::io::Read;
use std::path::Path;
use weald_format::{Error, ErrorKind, Result};

/// Bytes in which every form shows: the magic number of EROFS lies behind the first 1024.
const FRONT_LEN: u64 = 1028;
const EROFS_MAGIC: &[u8] = b"\xe2\xe1\xf5\xe0";
const EROFS_MAGIC_AT: usize = 1024;

/// Format of a file that is read at any place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// An image of EROFS.
    Erofs,
    /// An image of SquashFS 4.
    Squashfs,
    /// A zip archive.
    Zip,
}

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileForm {
    /// An archive or an image that is read at any place.
    AnyPlace(FileFormat),
    /// A stream whose format [`crate::Format::Auto`] finds, or says why not.
    Stream,
}

impl FileFormat {
    /// The format of a file that begins with `front`.
    pub fn of_front(front: &[u8]) -> Option<Self> {
        let behind = front.get(EROFS_MAGIC_AT..);
        if SquashfsReader::is_squashfs(front) {
            Some(Self::Squashfs)
        } else if ZipReader::is_zip(front) {
            Some(Self::Zip)
        } else if behind.is_some_and(|behind| behind.starts_with(EROFS_MAGIC)) {
            Some(Self::Erofs)
        } else {
            None
        }
    }

    /// Opens the file at `path`, with `memory_len` bytes of memory for the source.
    pub(crate) fn open(self, path: &Path, memory_len: u64) -> Result<Box<dyn Members>> {
        // The decoder of an extent of EROFS takes 13 MiB at most.
        let links_len = memory_len / DECODER_SHARE / 2;
        Ok(match self {
            Self::Erofs => Box::new(ErofsReader::open(path, links_len)?),
            Self::Squashfs => Box::new(SquashfsReader::open(path, links_len)?),
            Self::Zip => Box::new(ZipReader::open(path, memory_len / DECODER_SHARE)?),
        })
    }
}

/// What the file at `path` holds; `None` for one that is no regular file or block device, or of
/// which the first bytes are nothing that is packed.
///
/// # Errors
/// `NotFound`, `Io`.
pub fn detect(path: &Path) -> Result<Option<FileForm>> {
    let failed = |e| Error::io(path.display().to_string(), e);
    let kind = std::fs::metadata(path).map_err(failed)?.file_type();
    if !kind.is_file() && !std::os::unix::fs::FileTypeExt::is_block_device(&kind) {
        return Ok(None);
    }
    let file = weald_io::open_to_read(path)?;
    let mut front = Vec::new();
    file.take(FRONT_LEN)
        .read_to_end(&mut front)
        .map_err(failed)?;
    let is_stream = Input::is_compressed(&front)
        || Input::is_bzip2(&front)
        || is_tar(&front)
        || CpioReader::is_cpio(&front)
        || MtreeReader::is_mtree(&front);
    let any_place = FileFormat::of_front(&front).map(FileForm::AnyPlace);
    Ok(any_place.or(is_stream.then_some(FileForm::Stream)))
}

/// Whether a stream begins as a tar archive with members does. Zeros alone may be anything.
fn is_tar(front: &[u8]) -> bool {
    front.first().is_some_and(|byte| *byte != 0) && TarReader::is_tar(front)
}

/// Error for a stream in a format that is read at any place.
pub(crate) fn not_a_stream(format: FileFormat) -> Error {
    let name = match format {
        FileFormat::Erofs => "an EROFS image",
        FileFormat::Squashfs => "a SquashFS image",
        FileFormat::Zip => "a zip archive",
    };
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "the stream is {name}, which is read at any place, and a pipe is not: name a file in \
             place of -"
        ),
    )
}
