//! Finds files that become hard links of each other because they are equal.

use crate::scan::EntryNo;
use crate::write::emit::Emitter;
use std::collections::HashMap;
use weald_format::{Attributes, Timestamp, XattrSet};

/// What files must have in common besides their content.
type Facts<'a> = (Attributes, [Timestamp; 4], Option<&'a XattrSet>);

/// The groups of names for [`crate::scan::ScannedTree::link_equal`]: the hard links of the source,
/// and those of regular files whose content, attributes, times and extended attributes in the image
/// are equal. Empty files, files that are left out and those of an image that is appended to keep
/// the links that they have.
///
/// # Cost
/// 8 bytes for each regular file, and about 200 for each file whose content another one has.
pub fn equal_files(emitter: &Emitter<'_>) -> Vec<Vec<EntryNo>> {
    let tree = emitter.tree;
    let entries = (0..tree.entry_count()).map(EntryNo);
    let mut files: Vec<(u32, EntryNo)> = entries
        .filter_map(|entry| Some((emitter.fresh_content(entry)?, entry)))
        .collect();
    files.sort_unstable();
    let mut groups: Vec<Vec<EntryNo>> = Vec::new();
    for run in files
        .chunk_by(|a, b| a.0 == b.0)
        .filter(|run| run.len() > 1)
    {
        let mut equal: HashMap<Facts<'_>, Vec<EntryNo>> = HashMap::new();
        for (_, entry) in run {
            equal.entry(emitter.facts(*entry)).or_default().push(*entry);
        }
        groups.extend(equal.into_values().filter(|names| names.len() > 1));
    }
    let kept = (0..tree.link_group_count()).map(|group| tree.link_names(group).collect::<Vec<_>>());
    let is_kept = |names: &Vec<EntryNo>| {
        let first = names.first();
        first.is_some_and(|&first| emitter.fresh_content(first).is_none())
    };
    groups.extend(kept.filter(is_kept));
    groups.sort_unstable();
    groups
}
