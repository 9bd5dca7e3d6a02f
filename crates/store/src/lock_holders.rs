//! Finds the processes that hold a lock of a file.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Processes that hold a lock of an open file on the byte at `offset` of `file`.
///
/// # Source
/// proc_pid_fdinfo(5), the field `lock`.
pub(crate) fn holders(file: &Path, offset: u64) -> Vec<u32> {
    let Ok(metadata) = std::fs::metadata(file) else {
        return Vec::new();
    };
    let inode = format!(":{}", metadata.ino());
    let offset = offset.to_string();
    let holds = |pid: &u32| {
        let infos = std::fs::read_dir(format!("/proc/{pid}/fdinfo"));
        infos.into_iter().flatten().flatten().any(|info| {
            let text = std::fs::read_to_string(info.path()).unwrap_or_default();
            let mut locks = text.lines().filter(|line| line.starts_with("lock:"));
            locks.any(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let is_inode = words.iter().any(|word| word.ends_with(&inode));
                is_inode && words.iter().rev().nth(1) == Some(&offset.as_str())
            })
        })
    };
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|name| name.file_name().to_str()?.parse().ok());
    // This process may be trying the lock itself.
    let own = std::process::id();
    pids.filter(|pid| *pid != own).filter(holds).collect()
}
