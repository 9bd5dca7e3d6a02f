//! The inodes with several names on both sides.

use super::tree::LinkKey;
use crate::text::shown;
use std::collections::HashMap;

/// For inodes with several names: which inode of one tree corresponds to which of the other.
#[derive(Default)]
pub struct Links {
    to_right: HashMap<LinkKey, (LinkKey, Box<[u8]>)>,
    to_left: HashMap<LinkKey, (LinkKey, Box<[u8]>)>,
}

impl Links {
    /// Adds a pair. Returns whether it is known, and the first names of both inodes if the pair
    /// contradicts a known one.
    pub fn add(
        &mut self,
        left: LinkKey,
        right: LinkKey,
        path: &[u8],
    ) -> (bool, Option<(String, String)>) {
        let word = |known: Option<&(LinkKey, Box<[u8]>)>| {
            known.map_or_else(String::new, |(_, first)| {
                format!("linked to {}", shown(first))
            })
        };
        let (of_left, of_right) = (self.to_right.get(&left), self.to_left.get(&right));
        let (is_known, words) = match (of_left, of_right) {
            (Some(a), Some(b)) if a.0 == right && b.0 == left => (true, None),
            (None, None) => (false, None),
            (a, b) => (false, Some((word(a), word(b)))),
        };
        // The new side is added even after a contradiction, so that its other names contradict,
        // too.
        self.to_right
            .entry(left)
            .or_insert_with(|| (right, path.into()));
        self.to_left
            .entry(right)
            .or_insert_with(|| (left, path.into()));
        (is_known, words)
    }
}
