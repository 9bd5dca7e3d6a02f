//! Opens scanned files for reading.

use super::tree::{EntryNo, ScannedTree};
use crate::scan::source::{LayerSource, SourceFile};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use weald_format::{Error, ErrorKind, FileKind, InodeNo, Result};

/// Longest path passed to the kernel, bytes; `PATH_MAX` is 4096 including the NUL.
const OPENED_PATH_LEN_MAX: usize = 4000;

impl ScannedTree {
    /// Opens a regular file for reading at any depth. On disk it does not follow symlinks, does not
    /// block on fifos, and preserves the atime if permitted.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Busy` if the name belongs to something else now; `Corrupt` in an image.
    pub fn open_file(&self, entry: EntryNo) -> Result<SourceFile> {
        let root = match self.source_of(entry).ok_or_else(no_source)? {
            LayerSource::Directory(root) => root.as_fd(),
            LayerSource::Image(image) => {
                let (_, ino) = self.source_inode(entry);
                return Ok(SourceFile::Stored(
                    image.clone(),
                    Box::new(image.inode(InodeNo(ino))?),
                ));
            }
            LayerSource::Files(paths) => {
                let path = self.file_no(entry).and_then(|no| paths.get(no));
                let path = path.ok_or_else(no_source)?.as_os_str().as_bytes();
                return self.open_followed(entry, weald_sys::WORKING_DIR, path);
            }
        };
        let path = self.path_of(entry);
        if self.follows(entry) {
            return self.open_followed(entry, root, &path);
        }
        let file = open_long(root, &path).map_err(|e| {
            if weald_sys::is_of_link(&e) {
                Error::new(ErrorKind::Busy, "became a symlink while it was packed")
            } else {
                Error::io("cannot be opened", e)
            }
        })?;
        let stat = weald_sys::stat_fd(&file).map_err(|e| Error::io("cannot be examined", e))?;
        match stat.kind {
            FileKind::Regular => Ok(SourceFile::Disk(file, stat.size)),
            _ => Err(Error::new(ErrorKind::Busy, "is no longer a regular file")),
        }
    }

    /// Opens the file that `path` leads to, symlinks followed: that which was scanned, or none.
    fn open_followed(
        &self,
        entry: EntryNo,
        root: BorrowedFd<'_>,
        path: &[u8],
    ) -> Result<SourceFile> {
        let file = if path.len() <= OPENED_PATH_LEN_MAX {
            weald_sys::open_file_followed_at(root, path)
        } else {
            let names: Vec<&[u8]> = path.split(|&b| b == b'/').collect();
            let (name, dirs) = names.split_last().ok_or_else(no_source)?;
            let dir = open_dir_followed(root, dirs);
            dir.and_then(|dir| weald_sys::open_file_followed_at(dir, name))
        };
        let file = file.map_err(|e| Error::io("cannot be opened", e))?;
        let stat = weald_sys::stat_fd(&file).map_err(|e| Error::io("cannot be examined", e))?;
        if self.source_inode(entry) != (stat.dev, stat.ino) {
            let what = "became another file while it was packed";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        Ok(SourceFile::Disk(file, stat.size))
    }

    /// Whether `file` still is the inode that was scanned, with its size and mtime. Call it after
    /// reading the data; only then does the image hold what the scan found. Files in an image never
    /// change.
    ///
    /// # Errors
    /// `Io`.
    pub fn is_unchanged(&self, entry: EntryNo, file: &SourceFile) -> Result<bool> {
        let SourceFile::Disk(file, _) = file else {
            return Ok(true);
        };
        let stat = weald_sys::stat_fd(file).map_err(|e| Error::io("cannot be examined", e))?;
        let is_same = self.source_inode(entry) == (stat.dev, stat.ino);
        Ok(is_same && self.size(entry) == stat.size && self.mtime(entry) == stat.mtime)
    }
}

fn no_source() -> Error {
    Error::invalid("is no file of a source")
}

/// Opens the file at `path` below `root`; the path may have any length.
fn open_long(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<File> {
    if path.len() <= OPENED_PATH_LEN_MAX {
        // One call, if the kernel has openat2.
        match weald_sys::open_file_at(root, path) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            other => return other,
        }
    }
    let (parent, name) = open_parent(root, path)?;
    weald_sys::open_file_at(parent.as_ref().map_or(root, |p| p.as_fd()), name)
}

/// Opens the directory at `path` below `root` for listing; the path may have any length.
pub(super) fn open_dir_long(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    let (parent, name) = open_parent(root, path)?;
    weald_sys::open_dir_at(parent.as_ref().map_or(root, |p| p.as_fd()), name)
}

/// Opens the directory that the path of `names` leads to from `root`, symlinks followed.
pub(super) fn open_dir_followed(root: BorrowedFd<'_>, names: &[&[u8]]) -> io::Result<OwnedFd> {
    let mut dir = weald_sys::open_dir_followed_at(root, b".")?;
    let mut piece = Vec::new();
    for name in names {
        if piece.len() + name.len() > OPENED_PATH_LEN_MAX {
            dir = weald_sys::open_dir_followed_at(&dir, &piece)?;
            piece.clear();
        }
        if !piece.is_empty() {
            piece.push(b'/');
        }
        piece.extend_from_slice(name);
    }
    if piece.is_empty() {
        return Ok(dir);
    }
    weald_sys::open_dir_followed_at(&dir, &piece)
}

/// Splits `path` at its last slash and opens the part before it, in pieces that are short enough
/// for the kernel; `None` if there is no slash.
fn open_parent<'p>(
    root: BorrowedFd<'_>,
    path: &'p [u8],
) -> io::Result<(Option<OwnedFd>, &'p [u8])> {
    let Some(cut) = path.iter().rposition(|&b| b == b'/') else {
        return Ok((None, path));
    };
    let (mut rest, name) = (&path[..cut], &path[cut + 1..]);
    let mut dir: Option<OwnedFd> = None;
    loop {
        let at = dir.as_ref().map_or(root, |d| d.as_fd());
        if rest.len() <= OPENED_PATH_LEN_MAX {
            return Ok((Some(open_piece(at, rest)?), name));
        }
        let piece_end = rest[..OPENED_PATH_LEN_MAX].iter().rposition(|&b| b == b'/');
        let piece_end = piece_end.ok_or(io::ErrorKind::InvalidFilename)?;
        dir = Some(open_piece(at, &rest[..piece_end])?);
        rest = &rest[piece_end + 1..];
    }
}

fn open_piece(dir: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    match weald_sys::open_beneath(dir, path) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => open_steps(dir, path),
        other => other,
    }
}

/// Fallback without openat2: opens one component at a time.
fn open_steps(dir: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    let mut names = path.split(|&b| b == b'/');
    let first = names.next().unwrap_or(b".");
    let mut at = weald_sys::open_dir_at(dir, first)?;
    for name in names {
        at = weald_sys::open_dir_at(&at, name)?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn opening_by_steps_agrees_with_openat2() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("a/b/c")).unwrap();
        std::fs::write(temp.path().join("a/b/c/file"), b"found").unwrap();
        let root = weald_sys::open_dir(temp.path()).unwrap();
        let mut text = String::new();
        let dir = open_steps(root.as_fd(), b"a/b/c").unwrap();
        weald_sys::open_file_at(&dir, b"file")
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "found");
        std::os::unix::fs::symlink("b", temp.path().join("a/link")).unwrap();
        assert!(open_steps(root.as_fd(), b"a/link/c").is_err());
    }
}
