//! Processes that have an image of a store open, for the message of a command that cannot have it.

use crate::disk::Disk;
use crate::layout;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use weald_format::{Error, ErrorKind, ImageNo};
use weald_sys::unescaped;

/// Most processes that a message names.
const NAMED_MAX: usize = 4;

/// The error of a command that needs the image `name` for itself, while others have it open;
/// `advice` says what to do.
pub(crate) fn in_use(disk: &dyn Disk, name: &str, image_no: ImageNo, advice: &str) -> Error {
    let shown = disk.shown();
    let source = std::fs::canonicalize(&shown).map(|dir| format!("{}:{name}", dir.display()));
    let offset = layout::image_lock(image_no);
    let by = readers_of(disk, offset, &source.unwrap_or_default());
    let what = format!("{shown}:{name}: is in use{by}: {advice}");
    Error::new(ErrorKind::Busy, what)
}

/// The words ` by PROCESS, PROCESS` about those that have locked the byte `offset`; nothing if none
/// is seen: only root sees the files of other users' processes.
pub(crate) fn readers_of(disk: &dyn Disk, offset: u64, source: &str) -> String {
    let files = [layout::SUPERBLOCK, layout::SUPERBLOCK_COPY].into_iter();
    let holders = files.flat_map(|name| disk.holders_of_lock(name, offset));
    let pids: BTreeSet<u32> = holders.collect();
    let mut users: Vec<String> = pids.iter().map(|pid| describe(*pid, source)).collect();
    let more = users.len().saturating_sub(NAMED_MAX);
    users.truncate(NAMED_MAX);
    if more > 0 {
        users.push(format!("{more} more"));
    }
    if users.is_empty() {
        String::new()
    } else {
        format!(" by {}", users.join(", "))
    }
}

/// A process: its number, name and user, and where it has `source` mounted.
fn describe(pid: u32, source: &str) -> String {
    let proc = format!("/proc/{pid}");
    // The name of the kernel is `exe` for a server that started itself again.
    let line = std::fs::read(format!("{proc}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    let name = line
        .split('\0')
        .next()
        .and_then(|path| path.rsplit('/').next());
    let name = name.unwrap_or_default().to_owned();
    let safe = |c: char| if c.is_control() { '?' } else { c };
    let name: String = name.trim_end().chars().map(safe).collect();
    let mut text = format!("process {pid} ({name})");
    if let Ok(metadata) = std::fs::metadata(&proc) {
        text.push_str(&format!(" of user {}", metadata.uid()));
    }
    // Names in the table may be no UTF-8, also those of mounts of others.
    let table = std::fs::read(format!("{proc}/mountinfo")).unwrap_or_default();
    let mut lines = table.split(|byte| *byte == b'\n');
    if let Some(dir) = lines.find_map(|line| dir_of(line, source)) {
        text.push_str(&format!(", mounted on {}", String::from_utf8_lossy(dir)));
    }
    text
}

/// The mount point in a line of mountinfo, with the kernel's escapes, if the mount has this source.
fn dir_of<'a>(line: &'a [u8], source: &str) -> Option<&'a [u8]> {
    let mut words = line.split(|byte| *byte == b' ');
    let dir = words.nth(4)?;
    // Optional words end with a hyphen.
    words.find(|word| *word == b"-")?;
    let found = unescaped(words.nth(1)?);
    (found == source).then_some(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_source() {
        let line = b"9 1 0:50 / /mnt/\xff rw shared:1 - fuse.weald /s\\040\\134t:img ro";
        assert_eq!(dir_of(line, "/s \\t:img"), Some(&b"/mnt/\xff"[..]));
        assert_eq!(dir_of(line, "/s:img"), None);
        assert_eq!(dir_of(b"9 1", "/s:img"), None);
    }
}
