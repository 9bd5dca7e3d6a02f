//! Processes that keep a mount: those that use it, and those in whose mount namespace it is.
//! Nothing here sends a request to a file system. Processes of other users are found by root only.

use crate::device_no::DeviceNo;
use crate::mount::shown_source;
use crate::mount_table::{MountEntry, mount_table};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most processes that are named.
const NAMED_MAX: usize = 4;

/// A process that keeps a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Its name, without control characters.
    pub name: String,
    /// Its user.
    pub uid: u32,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)?;
        if self.uid != rustix::process::geteuid().as_raw() {
            write!(f, " of user {}", self.uid)?;
        }
        Ok(())
    }
}

/// The holders in a message, such as `process 7 (sleep) and process 9 (bash)`.
pub fn shown_holders(holders: &[Holder]) -> String {
    let named = holders.iter().take(NAMED_MAX).map(Holder::to_string);
    let mut words: Vec<String> = named.collect();
    let more = holders.len().saturating_sub(NAMED_MAX);
    if more > 0 {
        words.push(format!("{more} more"));
    }
    match words.pop() {
        None => String::new(),
        Some(last) if words.is_empty() => last,
        Some(last) => format!("{} and {last}", words.join(", ")),
    }
}

/// The process `pid`; `None` if it has ended.
pub fn holder(pid: u32) -> Option<Holder> {
    let proc = proc_of(pid);
    // The name of the kernel is `exe` for a server that started itself again.
    let line = std::fs::read(proc.join("cmdline")).ok()?;
    let name = line.split(|&byte| byte == 0).next().unwrap_or_default();
    let name = name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    let safe = |c: char| if c.is_control() { '?' } else { c };
    Some(Holder {
        pid,
        name: name.trim_end_matches('\n').chars().map(safe).collect(),
        uid: std::fs::metadata(&proc).ok()?.uid(),
    })
}

/// One process of each mount namespace, except our own, in which the mount `what` is.
pub fn holders_elsewhere(what: &Identity) -> Vec<Holder> {
    let namespace = |proc: &Path| std::fs::read_link(proc.join("ns/mnt")).ok();
    let mut seen: BTreeSet<PathBuf> = namespace(Path::new("/proc/self")).into_iter().collect();
    let mut found = Vec::new();
    for pid in processes() {
        if namespace(&proc_of(pid)).is_some_and(|one| seen.insert(one))
            && entries(pid, what.device).iter().any(|entry| what.is(entry))
        {
            found.extend(holder(pid));
        }
    }
    found
}

/// Processes that have a file of the file system `device` open or mapped, or work in it.
pub fn users_of(device: DeviceNo) -> Vec<Holder> {
    let users = processes().into_iter().filter(|&pid| uses(pid, device));
    users.filter_map(holder).collect()
}

/// Whether the mount `what` is in our mount namespace.
pub fn is_mounted_here(what: &Identity) -> bool {
    mount_table("self").is_ok_and(|table| table.iter().any(|entry| what.is(entry)))
}

/// What a mount is known by. The kernel gives a device number again when its mount is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Device number (major, minor).
    pub device: DeviceNo,
    /// Directory on which it was made.
    pub dir: PathBuf,
    /// Image or volume.
    pub source: OsString,
}

impl Identity {
    fn is(&self, entry: &MountEntry) -> bool {
        let is_source =
            || entry.source == self.source || entry.source.as_bytes() == shown_source(&self.source);
        entry.device == self.device && (entry.dir == self.dir || is_source())
    }
}

fn uses(pid: u32, device: DeviceNo) -> bool {
    let proc = proc_of(pid);
    let mounted = entries(pid, device);
    let links = ["cwd", "root", "exe"].into_iter();
    let mut paths = links.filter_map(|name| std::fs::read_link(proc.join(name)).ok());
    if paths.any(|path| mounted.iter().any(|entry| path.starts_with(&entry.dir))) {
        return true;
    }
    let is_open = |info: &str| {
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        let id: Option<u64> = id.and_then(|id| id.trim().parse().ok());
        mounted.iter().any(|entry| Some(entry.id) == id)
    };
    let infos = std::fs::read_dir(proc.join("fdinfo")).into_iter().flatten();
    let mut infos = infos.flatten().map(|info| info.path());
    if infos.any(|path| std::fs::read_to_string(path).is_ok_and(|info| is_open(&info))) {
        return true;
    }
    let number = format!(" {:02x}:{:02x} ", device.major, device.minor);
    std::fs::read(proc.join("maps")).is_ok_and(|maps| {
        let maps = String::from_utf8_lossy(&maps);
        maps.lines().any(|line| line.contains(&number))
    })
}

fn entries(pid: u32, device: DeviceNo) -> Vec<MountEntry> {
    let mut table = mount_table(&pid.to_string()).unwrap_or_default();
    table.retain(|entry| entry.device == device);
    table
}

fn proc_of(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// All processes, in order.
fn processes() -> BTreeSet<u32> {
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    names
        .filter_map(|name| name.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_the_file_system_of_an_open_file() {
        let file = tempfile::NamedTempFile::new().expect("file");
        let device = crate::device_of(file.path()).expect("device");
        let users = users_of(device);
        assert!(
            users.iter().any(|user| user.pid == std::process::id()),
            "{users:?}"
        );
        let root = mount_table("self").expect("/proc").swap_remove(0);
        let mut what = Identity {
            device: root.device,
            dir: root.dir,
            source: "/none".into(),
        };
        assert!(is_mounted_here(&what));
        what.dir = "/none".into();
        assert!(!is_mounted_here(&what));
        let unused = DeviceNo {
            major: 4095,
            minor: 1_048_575,
        };
        assert!(users_of(unused).is_empty());
    }

    #[test]
    fn holders_are_named_and_counted() {
        let one = |pid| Holder {
            pid,
            name: "x".into(),
            uid: rustix::process::geteuid().as_raw(),
        };
        let shown = |count| shown_holders(&(1..=count).map(one).collect::<Vec<_>>());
        assert_eq!(shown(0), "");
        assert_eq!(shown(2), "process 1 (x) and process 2 (x)");
        assert!(shown(6).ends_with("process 4 (x) and 2 more"));
    }
}
