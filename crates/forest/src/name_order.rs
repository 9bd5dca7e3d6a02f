//! In which order the names of a leaf are made: that in which the file system keeps them, where it
//! is known.

use crate::tree::{Entry, Leaf};
use std::os::fd::AsFd;

/// An order of the names of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameOrder {
    /// As they are drawn.
    Drawn,
    /// By their CRC32C, which is the key of a name in a directory of btrfs: what is added behind
    /// everything else moves nothing.
    Crc32c,
}

impl NameOrder {
    /// The best order for the file system of `dir`.
    pub fn of(dir: impl AsFd) -> Self {
        match weald_sys::is_btrfs(dir) {
            true => Self::Crc32c,
            false => Self::Drawn,
        }
    }

    /// The entries of `leaf` in this order.
    pub fn entries(self, leaf: &Leaf) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = leaf.entries.iter().collect();
        if self == Self::Crc32c {
            entries.sort_by_cached_key(|entry| btrfs_hash(leaf.name(entry)));
        }
        entries
    }
}

/// The key of a name in a directory of btrfs (`btrfs_name_hash` in Linux): the register begins at
/// -2 and is not inverted at the end.
fn btrfs_hash(name: &[u8]) -> u32 {
    !crc32c::crc32c_append(1, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: another start of the register, or an inverted end, which would be some order
    /// but not that of btrfs.
    #[test]
    fn names_hash_as_btrfs_hashes_them() {
        // As `btrfs inspect-internal dump-tree` shows them: (256 DIR_ITEM 3050792602) is the entry
        // of "0000".
        let keys: [(&[u8], u32); 4] = [
            (b"default", 2_378_154_706),
            (b"0000", 3_050_792_602),
            (b"0001", 1_203_561_881),
            (b"d", 4_189_400_016),
        ];
        for (name, key) in keys {
            assert_eq!(btrfs_hash(name), key);
        }
    }
}
