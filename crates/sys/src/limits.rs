//! Limits of the process and of file systems.

use crate::faked;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

/// Raises the limit of open files from the soft to the hard limit; returns the new limit.
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

/// Maximum number of files that the process may have open at once.
pub fn open_file_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Free space for ordinary users in the file system of `fd`, bytes.
///
/// # Errors
/// The errno of fstatfs(2).
pub fn free_len(fd: impl AsFd) -> io::Result<u64> {
    let state = rustix::fs::fstatvfs(fd)?;
    Ok(state.f_bavail.saturating_mul(state.f_frsize))
}

/// Number of free inodes for ordinary users in the file system of `fd`; `u64::MAX` if it has no
/// such limit.
///
/// # Errors
/// The errno of fstatfs(2).
pub fn free_inode_count(fd: impl AsFd) -> io::Result<u64> {
    let state = rustix::fs::fstatvfs(fd)?;
    Ok(match state.f_files {
        0 => u64::MAX,
        _ => state.f_favail,
    })
}

/// Whether `fd` is in a btrfs file system.
pub fn is_btrfs(fd: impl AsFd) -> bool {
    /// `BTRFS_SUPER_MAGIC` of Linux.
    const BTRFS: u64 = 0x9123_683e;
    rustix::fs::fstatfs(fd).is_ok_and(|state| state.f_type as u64 == BTRFS)
}

/// Effective user and group id. New files of this process get them, unless their directory or file
/// system says otherwise.
pub fn effective_ids() -> (u32, u32) {
    if faked::is_on() {
        return faked::effective_ids();
    }
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (uid.as_raw(), gid.as_raw())
}

/// Umask of this process; `None` if `/proc` does not show it.
pub fn umask() -> Option<u16> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("Umask:"))?;
    u16::from_str_radix(line.trim(), 8).ok()
}

/// Memory that this process may use, bytes: the machine's memory, or the lowest limit of its
/// control groups.
pub fn memory_len() -> u64 {
    let info = rustix::system::sysinfo();
    let total = info.totalram.saturating_mul(u64::from(info.mem_unit));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().filter_map(group_limit);
    limits.min().map_or(total, |limit| limit.min(total))
}

/// Resident memory of this process (`VmRSS`), bytes; `None` if `/proc` does not show it.
pub fn resident_len() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Memory limit of a control group in a line of `/proc/self/cgroup`, for version 1 or 2 of control
/// groups.
fn group_limit(line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, group) = (parts.next()?, parts.next()?);
    let root = Path::new("/sys/fs/cgroup");
    if controllers.is_empty() {
        lowest_limit(root, group, "memory.max")
    } else if controllers.split(',').any(|c| c == "memory") {
        lowest_limit(&root.join("memory"), group, "memory.limit_in_bytes")
    } else {
        None
    }
}

/// The lowest number in the files `name` on the path from `root` down to `group`; `None` if there
/// is none.
fn lowest_limit(root: &Path, group: &str, name: &str) -> Option<u64> {
    let group = root.join(group.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|dir| dir.starts_with(root));
    // The word "max" means no limit.
    let limit = |dir: &Path| -> Option<u64> {
        let limit = std::fs::read_to_string(dir.join(name)).ok()?;
        limit.trim_end().parse().ok()
    };
    groups.filter_map(limit).min()
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
    fn memory_is_that_of_the_machine_or_less() {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total = text.lines().find_map(|l| l.strip_prefix("MemTotal:"));
        let kib = total.and_then(|t| t.trim().strip_suffix(" kB")).unwrap();
        let total = kib.parse::<u64>().unwrap() << 10;
        assert!((1..=total).contains(&memory_len()));
        let held = vec![1u8; 64 << 20];
        let resident = resident_len().unwrap();
        assert!((held.len() as u64..memory_len()).contains(&resident));
    }

    /// Catches: a container that is killed because only its own group's limit was read, not a lower
    /// one above.
    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("outer/inner");
        std::fs::create_dir_all(&inner).unwrap();
        let limit = || lowest_limit(root.path(), "/outer/inner", "memory.max");
        assert_eq!(limit(), None);
        std::fs::write(inner.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit(), None);
        std::fs::write(root.path().join("outer/memory.max"), "1000\n").unwrap();
        assert_eq!(limit(), Some(1000));
        std::fs::write(inner.join("memory.max"), "3000\n").unwrap();
        assert_eq!(limit(), Some(1000));
        std::fs::write(root.path().join("memory.max"), "500\n").unwrap();
        assert_eq!(limit(), Some(500));
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
