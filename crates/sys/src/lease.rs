//! Whether somebody has a file open.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Whether another open file of the same inode exists: of any process, or of the kernel itself,
/// such as a mounted image or a loop device. `file` must be open for reading only.
///
/// # Errors
/// `EACCES` unless the caller owns the file or has `CAP_LEASE`; `EINVAL` where the file system has
/// no leases.
///
/// # Source
/// fcntl(2), "Leases": a write lease is granted if no other open file exists.
pub fn is_open_elsewhere(file: &File) -> io::Result<bool> {
    if set_lease(file, libc::F_WRLCK)? {
        set_lease(file, libc::F_UNLCK)?;
        return Ok(false);
    }
    Ok(true)
}

fn set_lease(file: &File, kind: libc::c_int) -> io::Result<bool> {
    // SAFETY: the descriptor is open as long as `file` is borrowed; the argument is a number.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Ok(false),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: an open file that goes unnoticed, and a lease that stays behind, so that the
    /// next open of the file would block.
    #[test]
    fn other_open_files_are_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        std::fs::write(&path, "bytes").expect("write");
        let file = File::open(&path).expect("open");
        assert!(!is_open_elsewhere(&file).expect("lease"));
        let other = File::open(&path).expect("open");
        assert!(is_open_elsewhere(&file).expect("lease"));
        drop(other);
        assert!(!is_open_elsewhere(&file).expect("lease"));
        File::options()
            .write(true)
            .open(&path)
            .expect("no lease is left");
    }
}
