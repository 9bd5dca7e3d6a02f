//! Whether only root can have written a store: then set-uid bits and devices of its volumes count
//! without a word, as on a disk.

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use weald_store::LOCK_FILE;

/// Write permission of others.
const OTHERS_WRITE: u32 = 0o002;
/// Write permission of the group.
const GROUP_WRITES: u32 = 0o020;

/// Whether the directory at `dir` and everything directly in it belong to root, and no other user
/// can write to them. The file `lock` does not count: it has no data. A directory that cannot be
/// read is not root's alone.
pub fn belongs_to_root_alone(dir: impl AsFd) -> bool {
    is_roots(dir.as_fd()).unwrap_or(false)
}

/// As [`belongs_to_root_alone`], for a path.
pub fn path_belongs_to_root_alone(dir: &Path) -> bool {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty()).is_ok_and(belongs_to_root_alone)
}

fn is_roots(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
    if !is_only_roots(&rustix::fs::fstat(dir)?) {
        return Ok(false);
    }
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") || name.to_bytes() == LOCK_FILE.as_bytes() {
            continue;
        }
        if !is_only_roots(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_only_roots(stat: &Stat) -> bool {
    let is_group_roots = stat.st_mode & GROUP_WRITES == 0 || stat.st_gid == 0;
    stat.st_uid == 0 && is_group_roots && stat.st_mode & OTHERS_WRITE == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Gid, Uid};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    /// Would catch: a store that another user owns, or can write to, taken for root's. Runs as
    /// root.
    #[test]
    fn a_store_is_roots_if_nobody_else_can_write_it() {
        let temp = tempfile::tempdir().expect("a directory");
        let dir = temp.path();
        let at = |name: &str| dir.join(name);
        fs::create_dir(at("segments")).expect("made");
        for name in ["store", "meta", LOCK_FILE] {
            fs::write(at(name), b"").expect("written");
        }
        let chown = |path: &Path, uid, gid| {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chown(path, uid, gid).expect("root");
        };
        let chmod = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
        };
        chmod(&at(LOCK_FILE), 0o666);
        chmod(dir, 0o775);
        assert!(path_belongs_to_root_alone(dir));
        for path in [dir.to_owned(), at("segments"), at("meta")] {
            let mode = fs::metadata(&path).expect("stat").permissions().mode();
            chown(&path, 1234, 0);
            assert!(!path_belongs_to_root_alone(dir), "{}", path.display());
            chown(&path, 0, 0);
            chmod(&path, mode | OTHERS_WRITE);
            assert!(!path_belongs_to_root_alone(dir), "{}", path.display());
            chmod(&path, mode | GROUP_WRITES);
            assert!(path_belongs_to_root_alone(dir), "{}", path.display());
            chown(&path, 0, 77);
            assert!(!path_belongs_to_root_alone(dir), "{}", path.display());
            chmod(&path, mode & !GROUP_WRITES);
            assert!(path_belongs_to_root_alone(dir), "{}", path.display());
            chown(&path, 0, 0);
            chmod(&path, mode);
        }
        assert!(!path_belongs_to_root_alone(&at("missing")));
    }
}
