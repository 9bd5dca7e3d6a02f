//! Drops directories in which nothing but directories is left.

use super::assemble::find_dirs;
use super::shard::{Entry, NOT_ENTERED, Shard};
use super::walk::Walked;
use weald_format::FileKind;

/// Drops the directories below the root without a file, symlink or special file in or below them.
/// Those of other file systems, which are not entered, stay, and so do those that could not be
/// listed, which are problems.
pub fn prune_empty_dirs(walked: &mut Walked) {
    let shards = &mut walked.shards;
    let found = find_dirs(shards, walked.dir_count);
    let mut is_empty = vec![false; found.len()];
    // The numbers of directories are larger than those of the directories that they lie in.
    for (number, location) in found.iter().enumerate().rev() {
        if location.is_unlisted() {
            continue;
        }
        let shard = &shards[location.shard as usize];
        let dir = &shard.dirs[location.index as usize];
        let mut entries = shard.entries[dir.first..dir.first + dir.count].iter();
        is_empty[number] = entries.all(|entry| is_pruned(shard, entry, &is_empty));
    }
    for shard in shards {
        prune_shard(shard, &is_empty);
    }
}

fn is_pruned(shard: &Shard, entry: &Entry, is_empty: &[bool]) -> bool {
    let is_dir = shard.attributes[entry.attributes as usize].0 == FileKind::Directory;
    let is_entered = is_dir && entry.link != NOT_ENTERED;
    is_entered && is_empty.get(entry.link as usize) == Some(&true)
}

/// Moves the entries that stay to the front of their directory.
fn prune_shard(shard: &mut Shard, is_empty: &[bool]) {
    for index in 0..shard.dirs.len() {
        let (first, count) = (shard.dirs[index].first, shard.dirs[index].count);
        let mut end = first;
        for at in first..first + count {
            if is_pruned(shard, &shard.entries[at], is_empty) {
                continue;
            }
            shard.entries[end] = shard.entries[at];
            if !shard.more_times.is_empty() {
                shard.more_times[end] = shard.more_times[at];
            }
            end += 1;
        }
        shard.dirs[index].count = end - first;
    }
}
