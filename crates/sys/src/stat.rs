//! Reads attributes of inodes: statx and readlink relative to an open directory.

use crate::raw_stat::{Stat, real_stat_at};
use crate::{WORKING_DIR, faked, open_followed_at};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Reads the attributes of `name` in `dir`, or of `dir` itself if `name` is empty. Does not follow
/// symlinks and automounts. Network file systems may answer from their caches.
///
/// # Errors
/// The errno of statx(2).
pub fn stat_at(dir: impl AsFd, name: &[u8]) -> io::Result<Stat> {
    if faked::is_on() {
        return faked::stat_at(dir, name);
    }
    real_stat_at(dir, name)
}

/// Reads the attributes of the open file `fd`.
///
/// # Errors
/// The errno of statx(2).
pub fn stat_fd(fd: impl AsFd) -> io::Result<Stat> {
    stat_at(fd, b"")
}

/// Reads the attributes of the inode at `path`; follows symlinks.
///
/// # Errors
/// The errno of open(2) with `O_PATH`, or of statx(2).
pub fn stat_path(path: &Path) -> io::Result<Stat> {
    stat_fd(open_followed_at(WORKING_DIR, path.as_os_str().as_bytes())?)
}

/// Appends the target of the symlink `name` in `dir` to `target`; returns the number of appended
/// bytes.
///
/// # Errors
/// The errno of readlinkat(2), `EINVAL` if it is not a symlink. `target` is unchanged then.
pub fn read_link_at(dir: impl AsFd, name: &[u8], target: &mut Vec<u8>) -> io::Result<usize> {
    let start = target.len();
    let mut capacity = 256;
    loop {
        target.resize(start + capacity, 0);
        match rustix::fs::readlinkat_raw(&dir, name, &mut target[start..]) {
            Ok(len) if len < capacity => {
                target.truncate(start + len);
                return Ok(len);
            }
            Ok(_) => capacity *= 4,
            Err(error) => {
                target.truncate(start);
                return Err(error.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_dir;
    use std::os::unix::fs::{MetadataExt, symlink};
    use weald_format::FileKind;

    #[test]
    fn stat_agrees_with_std() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        std::fs::write(&path, b"12345").unwrap();
        let dir = open_dir(temp.path()).unwrap();
        let ours = stat_at(&dir, b"file").unwrap();
        let theirs = std::fs::metadata(&path).unwrap();
        assert_eq!(
            (ours.kind, ours.size, ours.ino),
            (FileKind::Regular, 5, theirs.ino())
        );
        assert_eq!(
            (ours.mtime.seconds, i64::from(ours.mtime.nanoseconds)),
            (theirs.mtime(), theirs.mtime_nsec())
        );
        assert_eq!(u32::from(ours.permissions), theirs.mode() & 0o7777);
        let null = stat_at(open_dir("/dev".as_ref()).unwrap(), b"null").unwrap();
        assert_eq!((null.kind, null.rdev), (FileKind::CharDevice, 1 << 32 | 3));
        assert_eq!(stat_fd(&dir).unwrap().kind, FileKind::Directory);
        symlink("file", temp.path().join("link")).unwrap();
        assert_eq!(stat_path(&temp.path().join("link")).unwrap(), ours);
        assert!(stat_path(&temp.path().join("none")).is_err());
    }

    #[test]
    fn targets_of_every_length_are_read_whole() {
        let temp = tempfile::tempdir().unwrap();
        let dir = open_dir(temp.path()).unwrap();
        let mut found = b"before".to_vec();
        for len in [1, 255, 256, 257, 1023, 1024, 4095] {
            let link = temp.path().join(format!("{len}"));
            symlink("x".repeat(len), link).unwrap();
            assert_eq!(
                read_link_at(&dir, format!("{len}").as_bytes(), &mut found).unwrap(),
                len
            );
            assert_eq!(found.len(), 6 + len);
            found.truncate(6);
        }
        assert!(read_link_at(&dir, b"none", &mut found).is_err());
        assert_eq!(found, b"before");
    }
}
