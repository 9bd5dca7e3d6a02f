//! Limits of the process and of file systems.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::fd::AsFd;

/// Raises the limit of open files as far as the process may (soft to hard limit); returns the limit now in force.
///
/// # Errors
/// The errno of setrlimit(2).
pub fn raise_open_file_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            },
        )?;
    }
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

/// Files that the process may have open at once.
pub fn open_file_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Bytes that an ordinary user can still write to the file system of `fd`.
///
/// # Errors
/// The errno of fstatfs(2).
pub fn free_len(fd: impl AsFd) -> io::Result<u64> {
    let state = rustix::fs::fstatvfs(fd)?;
    Ok(state.f_bavail.saturating_mul(state.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_open_file_limit_reaches_the_hard_limit() {
        let raised = raise_open_file_limit().unwrap();
        assert_eq!(open_file_limit(), raised);
    }

    #[test]
    fn free_space_is_that_of_the_file_system() {
        assert_eq!(
            free_len(crate::open_dir("/proc".as_ref()).unwrap()).unwrap(),
            0
        );
        assert!(free_len(crate::open_dir("/".as_ref()).unwrap()).unwrap() > 0);
    }
}
