//! The kernel's table of mounts, as a process sees it. Reading it sends no request to a file
//! system, so that a dead or stopped server cannot block it.

use crate::block_device::source_of;
use crate::device_no::DeviceNo;
use std::ffi::OsString;
use std::path::PathBuf;
use weald_sys::unescaped;

/// A mount in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Number of the mount, which no other live mount has.
    pub id: u64,
    /// Device of the file system.
    pub device: DeviceNo,
    /// Mount point.
    pub dir: PathBuf,
    /// Type, with the subtype: `fuse.weald`, `fuseblk.weald`.
    pub kind: String,
    /// Where the file system comes from: for mounts of Weald, the image or the volume.
    pub source: OsString,
    /// Where it comes from in the table itself: a volume's mount of type `fuseblk` has a loop
    /// device.
    pub shown: OsString,
    /// User who made a mount of FUSE.
    pub user: Option<u32>,
}

/// The mounts in the mount namespace of a process, `self` or a number, in the order of the kernel:
/// of several on one directory the last one is on top.
///
/// # Errors
/// Those of reading `/proc`: the process has ended, or belongs to another user.
pub fn mount_table(process: &str) -> std::io::Result<Vec<MountEntry>> {
    let text = std::fs::read(format!("/proc/{process}/mountinfo"))?;
    let lines = text.split(|&byte| byte == b'\n').filter_map(parse);
    Ok(lines.map(with_source).collect())
}

/// Finds the source of a mount on a loop device.
fn with_source(mut entry: MountEntry) -> MountEntry {
    if entry.is_on_block_device()
        && let Some(source) = source_of(entry.device)
    {
        entry.source = source;
    }
    entry
}

/// # Source
/// proc_pid_mountinfo(5).
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut words = line.split(|&byte| byte == b' ');
    let mut text = || std::str::from_utf8(words.next()?).ok();
    let id = text()?.parse().ok()?;
    let _parent = text()?;
    let device = DeviceNo::parse(text()?)?;
    let _root = words.next()?;
    let dir = unescaped(words.next()?).into();
    // Optional fields end with a hyphen.
    words.by_ref().find(|word| *word == b"-")?;
    let kind = String::from_utf8_lossy(words.next()?).into_owned();
    let source = unescaped(words.next()?);
    let options = words
        .next()
        .map(String::from_utf8_lossy)
        .unwrap_or_default();
    let user = options
        .split(',')
        .find_map(|word| word.strip_prefix("user_id="));
    let user = user.and_then(|id| id.parse().ok());
    Some(MountEntry {
        id,
        device,
        dir,
        kind,
        shown: source.clone(),
        source,
        user,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let line =
            b"55 24 0:47 / /a\\040b rw shared:1 master:2 - fuse.weald /s\\134:v rw,user_id=7";
        let entry = parse(line).expect("whole");
        assert_eq!((entry.id, entry.device.to_string().as_str()), (55, "0:47"));
        assert_eq!((entry.dir, entry.source), ("/a b".into(), "/s\\:v".into()));
        assert_eq!((entry.kind.as_str(), entry.user), ("fuse.weald", Some(7)));
        for len in 0..40 {
            assert_eq!(parse(&line[..len]), None);
        }
        assert!(!mount_table("self").expect("/proc").is_empty());
    }
}
