//! A spool: a temporary file for bytes that are read again. It is gone when the process ends, also
//! after SIGKILL.

use crate::{FileSource, ReadAt};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use weald_format::{Error, ErrorKind, Result};

/// A temporary file without a name. One writer appends; many readers read at any offset.
///
/// Invariant: after a failed append the spool is dead; every further call is an error.
pub struct Spool {
    file: File,
    /// Directory of the file, for the message about a full file system.
    dir: PathBuf,
    len: u64,
    is_dead: bool,
}

impl Spool {
    /// An empty spool in directory `dir`.
    ///
    /// # Errors
    /// `NotFound`, `Io`, `Full`.
    pub fn create(dir: &Path) -> Result<Self> {
        let file = unnamed_file(dir)
            .map_err(|e| Error::io(format!("temporary file in {}", dir.display()), e))?;
        Ok(Self {
            file,
            dir: dir.to_owned(),
            len: 0,
            is_dead: false,
        })
    }

    /// Appends `bytes` and returns their offset.
    ///
    /// # Errors
    /// `Full` if the file system is full; `Io`. The spool is dead then.
    /// # Cost
    /// One system call. Callers collect small pieces first.
    pub fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        self.check_alive()?;
        let offset = self.len;
        if let Err(error) = self.file.write_all_at(bytes, offset) {
            self.is_dead = true;
            let (len, dir) = (bytes.len(), self.dir.display());
            let what = format!("write of {len} bytes to a temporary file in {dir}");
            return Err(Error::io(what, error));
        }
        self.len += bytes.len() as u64;
        Ok(offset)
    }

    /// A reader of the bytes that are there and of those appended later.
    ///
    /// # Errors
    /// `Io`.
    pub fn reader(&self) -> Result<FileSource> {
        let file = self.file.try_clone();
        let file = file.map_err(|e| Error::io("reading a temporary file", e))?;
        Ok(FileSource::of_growing(file))
    }

    fn check_alive(&self) -> Result<()> {
        if self.is_dead {
            Err(Error::new(
                ErrorKind::Io,
                "temporary file is unusable after a failed write",
            ))
        } else {
            Ok(())
        }
    }
}

impl ReadAt for Spool {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check_alive()?;
        let read = self.file.read_exact_at(buf, offset);
        read.map_err(|e| {
            Error::io(
                format!(
                    "read of {} bytes at {offset} of a temporary file",
                    buf.len()
                ),
                e,
            )
        })
    }
}

/// A file without a name in `dir`. If the file system has no `O_TMPFILE`, the file gets a name that
/// is removed at once.
fn unnamed_file(dir: &Path) -> std::io::Result<File> {
    let dir = weald_sys::open_dir(dir)?;
    if let Ok(file) = weald_sys::create_unnamed_at(&dir, 0o600) {
        return Ok(file);
    }
    let (file, name) = crate::hidden_name::create_hidden(&dir, b"spool", 0o600)?;
    weald_sys::remove_file_at(&dir, &name)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_mount::SmallFs;

    #[test]
    fn what_was_appended_is_read_back_and_leaves_no_file() {
        let temp = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(temp.path()).unwrap();
        assert_eq!(spool.append(b"abc").unwrap(), 0);
        assert_eq!(spool.append(b"defg").unwrap(), 3);
        let mut buf = [0; 4];
        spool.read_exact_at(&mut buf, 2).unwrap();
        assert_eq!((&buf, spool.len()), (b"cdef", 7));
        let reader = spool.reader().unwrap();
        spool.append(b"hijk").unwrap();
        reader.read_exact_at(&mut buf, 6).unwrap();
        assert_eq!((&buf, spool.len()), (b"ghij", 11));
        assert_eq!(
            spool.read_exact_at(&mut buf, 8).unwrap_err().kind(),
            ErrorKind::Io
        );
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_full_file_system_is_said_and_the_spool_dead() {
        let fs = SmallFs::new(1 << 20);
        let mut spool = Spool::create(fs.path()).unwrap();
        spool.append(&[1; 4096]).unwrap();
        assert_eq!(
            spool.append(&vec![1; 2 << 20]).unwrap_err().kind(),
            ErrorKind::Full
        );
        assert_eq!(spool.append(b"x").unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(
            spool.read_exact_at(&mut [0], 0).unwrap_err().kind(),
            ErrorKind::Io
        );
    }

    #[test]
    fn a_missing_directory_is_not_found() {
        let error = Spool::create(Path::new("/nonexistent/dir")).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
