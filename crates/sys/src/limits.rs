//! Limits of the process and of file systems.

use crate::faked;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
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
    let limits = control_groups().into_iter().map(|group| group.limit_len);
    limits.min().map_or(total, |limit| limit.min(total))
}

/// Memory that this process may still take, bytes: what the machine can give without swapping
/// (`MemAvailable`), or what the tightest of its control groups leaves. Caches of files count as
/// free.
pub fn free_memory_len() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    // Linux has the line since 3.14.
    let available = kib.map_or_else(|| memory_len() / 2, |kib| kib.saturating_mul(1024));
    let left = control_groups().into_iter().map(|group| group.left_len());
    left.min().map_or(available, |left| left.min(available))
}

/// Resident memory of this process (`VmRSS`), bytes; `None` if `/proc` does not show it.
pub fn resident_len() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The limit of a control group, and what its processes use.
#[derive(Debug, PartialEq, Eq)]
struct ControlGroup {
    /// Limit of memory, bytes.
    limit_len: u64,
    /// Used memory, bytes, without the caches of files.
    used_len: u64,
}

impl ControlGroup {
    fn left_len(&self) -> u64 {
        self.limit_len.saturating_sub(self.used_len)
    }
}

/// Names of the files of a control group, in version 1 or 2.
struct FileNames {
    limit: &'static str,
    usage: &'static str,
    /// Key in `memory.stat` of the bytes that are caches of files.
    cached: &'static str,
}

const VERSION_1: FileNames = FileNames {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cached: "total_cache",
};
const VERSION_2: FileNames = FileNames {
    limit: "memory.max",
    usage: "memory.current",
    cached: "file",
};

/// All control groups of this process that limit its memory.
fn control_groups() -> Vec<ControlGroup> {
    // Names of groups are bytes.
    let groups = std::fs::read("/proc/self/cgroup").unwrap_or_default();
    let lines = groups.split(|byte| *byte == b'\n');
    lines.flat_map(limiting_groups).collect()
}

/// The limiting groups in a line of `/proc/self/cgroup`.
fn limiting_groups(line: &[u8]) -> Vec<ControlGroup> {
    let mut parts = line.splitn(3, |byte| *byte == b':').skip(1);
    let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else {
        return Vec::new();
    };
    let root = Path::new("/sys/fs/cgroup");
    if controllers.is_empty() {
        groups_on_path(root, group, &VERSION_2)
    } else if controllers
        .split(|byte| *byte == b',')
        .any(|c| c == b"memory")
    {
        groups_on_path(&root.join("memory"), group, &VERSION_1)
    } else {
        Vec::new()
    }
}

/// The groups with a limit on the path from `root` down to `group`.
fn groups_on_path(root: &Path, group: &[u8], names: &FileNames) -> Vec<ControlGroup> {
    let group = OsStr::from_bytes(group.strip_prefix(b"/").unwrap_or(group));
    let group = root.join(group);
    let groups = group.ancestors().take_while(|dir| dir.starts_with(root));
    let read = |dir: &Path| -> Option<ControlGroup> {
        let text = |name| std::fs::read_to_string(dir.join(name)).ok();
        // The word "max" means no limit.
        let limit_len = text(names.limit)?.trim_end().parse().ok()?;
        let number = |text: String| text.trim_end().parse::<u64>().ok();
        let usage = text(names.usage).and_then(number).unwrap_or(0);
        let stat = text("memory.stat").unwrap_or_default();
        let cached = stat.lines().find_map(|line| {
            let (key, value) = line.split_once(' ')?;
            (key == names.cached).then(|| value.parse::<u64>().ok())?
        });
        Some(ControlGroup {
            limit_len,
            used_len: usage.saturating_sub(cached.unwrap_or(0)),
        })
    };
    groups.filter_map(read).collect()
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
        let left = || {
            let groups = groups_on_path(root.path(), b"/outer/inner", &VERSION_2);
            let limit = groups.iter().map(|group| group.limit_len).min();
            (limit, groups.iter().map(ControlGroup::left_len).min())
        };
        let write = |path: &str, text| std::fs::write(root.path().join(path), text).unwrap();
        assert_eq!(left(), (None, None));
        write("outer/inner/memory.max", "max\n");
        assert_eq!(left(), (None, None));
        write("outer/memory.max", "1000\n");
        assert_eq!(left(), (Some(1000), Some(1000)));
        write("outer/inner/memory.max", "3000\n");
        assert_eq!(left(), (Some(1000), Some(1000)));
        write("memory.max", "500\n");
        assert_eq!(left(), (Some(500), Some(500)));
        write("outer/inner/memory.current", "2900\n");
        assert_eq!(left(), (Some(500), Some(100)));
        write(
            "outer/inner/memory.stat",
            "anon 2300\nfile 600\nfile_dirty 9\n",
        );
        assert_eq!(left(), (Some(500), Some(500)));
    }

    #[test]
    fn free_memory_is_part_of_the_memory() {
        assert!((1..=memory_len()).contains(&free_memory_len()));
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
