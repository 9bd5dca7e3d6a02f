//! Locks of single bytes of a file, which belong to the open file and not to the process.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Locks the byte at `offset` of `file`, shared or exclusively, until the last descriptor of this
/// open file is closed. Returns whether the lock could be had at once. An exclusive lock needs a
/// file that is open for writing, a shared one a file that is open for reading.
///
/// # Errors
/// The errno of fcntl(2) with `F_OFD_SETLK`: `ENOLCK`, `EINVAL` or `EOPNOTSUPP` where the file
/// system has no locks.
///
/// # Source
/// fcntl(2), "Open file description locks".
pub fn try_lock_byte(file: &File, offset: u64, is_exclusive: bool) -> io::Result<bool> {
    let kind = if is_exclusive {
        libc::F_WRLCK
    } else {
        libc::F_RDLCK
    };
    let start = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: 1,
        // The kernel demands zero for locks of open files.
        l_pid: 0,
    };
    // SAFETY: the descriptor is open as long as `file` is borrowed; `lock` is a whole `struct
    // flock` that lives across the call, and the kernel only reads it.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch locks of the process, which two files of one process do not exclude each other
    // by, and which vanish when any of them is closed.
    #[test]
    fn locks_belong_to_the_open_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let open = || {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
        };
        let (first, second) = (open().expect("open"), open().expect("open"));
        assert!(try_lock_byte(&first, 1 << 40, true).expect("lock"));
        assert!(!try_lock_byte(&second, 1 << 40, false).expect("lock"));
        assert!(try_lock_byte(&second, (1 << 40) + 1, true).expect("lock"));
        drop(open().expect("open"));
        assert!(!try_lock_byte(&second, 1 << 40, false).expect("lock"));
        drop(first);
        assert!(try_lock_byte(&second, 1 << 40, false).expect("lock"));
    }
}
