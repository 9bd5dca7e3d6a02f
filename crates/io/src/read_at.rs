//! Positioned reads from any storage of an image: a file, a part of a file, a buffer, faulty
//! storage in tests.

use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use weald_format::{Error, Result};

/// A fixed-length run of bytes that can be read at any offset by many threads at once.
pub trait ReadAt: Send + Sync {
    /// Length in bytes at the time of opening.
    fn len(&self) -> u64;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `Io` if the bytes cannot be read, also if the range passes the end.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// As [`ReadAt::read_exact_at`], past any copy that the storage keeps, for a caller who found
    /// that the bytes are damaged. Returns false, and reads nothing, if there are no copies.
    ///
    /// # Errors
    /// As [`ReadAt::read_exact_at`].
    fn read_again_at(&self, _buf: &mut [u8], _offset: u64) -> Result<bool> {
        Ok(false)
    }

    /// Ends reads that wait for a server, now and from now on. A file has none.
    fn stop_waiting(&self) {}
}

impl<T: ReadAt + ?Sized> ReadAt for std::sync::Arc<T> {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        (**self).read_exact_at(buf, offset)
    }

    fn read_again_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        (**self).read_again_at(buf, offset)
    }

    fn stop_waiting(&self) {
        (**self).stop_waiting();
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = start
            .checked_add(buf.len())
            .and_then(|end| self.get(start..end));
        let bytes = bytes.ok_or_else(|| short(offset, buf.len()))?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

fn short(offset: u64, len: usize) -> Error {
    let eof = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    Error::io(
        format!("read of {len} bytes at {offset} passes the end"),
        eof,
    )
}

/// Opens the file at `path` for reading. Does not wait for the writer of a named pipe.
///
/// # Errors
/// `NotFound`, `Io`.
pub fn open_to_read(path: &Path) -> Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = File::options();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(path);
    file.map_err(|e| Error::io(format!("{}", path.display()), e))
}

/// A file, or the part of one that starts at an offset.
pub struct FileSource {
    file: File,
    start: u64,
    len: u64,
}

impl FileSource {
    /// Opens the regular file or block device at `path`, skipping its first `start` bytes. Does not
    /// wait for the writer of a named pipe.
    ///
    /// # Errors
    /// `NotFound`; `Io`, also for a directory; `Invalid` for another kind of file, and if
    /// `start` lies behind the end.
    pub fn open(path: &Path, start: u64) -> Result<Self> {
        Self::new(open_to_read(path)?, path, start)
    }

    /// As [`FileSource::open`], of a file that is open already; `path` names it in errors.
    ///
    /// # Errors
    /// `Io`, also for a directory; `Invalid` for another kind of file, and where `start` lies
    /// behind the end.
    pub fn new(mut file: File, path: &Path, start: u64) -> Result<Self> {
        use std::io::{Seek, SeekFrom};
        let failed = |e| Error::io(format!("{}", path.display()), e);
        let kind = file.metadata().map_err(failed)?.file_type();
        // The end of a directory of ext4 is at 2^63 - 1, that of a terminal at 0.
        if kind.is_dir() {
            return Err(failed(std::io::ErrorKind::IsADirectory.into()));
        }
        if !kind.is_file() && !kind.is_block_device() {
            let what = "is neither a file nor a block device";
            return Err(Error::invalid(format!("{}: {what}", path.display())));
        }
        let end = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let len = end.checked_sub(start);
        let len = len
            .ok_or_else(|| Error::invalid(format!("offset {start} lies behind the end, {end}")))?;
        Ok(Self { file, start, len })
    }
}

impl FileSource {
    /// A file that is still being written, without its first `start` bytes. It has no fixed length:
    /// a read past its end fails.
    pub(crate) fn of_growing(file: File, start: u64) -> Self {
        let len = u64::MAX - start;
        Self { file, start, len }
    }
}

impl ReadAt for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        use std::os::unix::fs::FileExt;
        let at = self
            .start
            .checked_add(offset)
            .ok_or_else(|| short(offset, buf.len()))?;
        let read = self.file.read_exact_at(buf, at);
        read.map_err(|e| Error::io(format!("read of {} bytes at {at}", buf.len()), e))
    }
}
