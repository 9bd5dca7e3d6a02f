//! Order in which the names of a leaf are made: the file system's own order, if known.

use crate::tree::{Entry, Leaf};
use std::os::fd::AsFd;

/// Order of the names of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameOrder {
    /// The order in which they are drawn.
    Drawn,
    /// By CRC32C, the key of a name in a directory of btrfs: each new name goes to the end of its
    /// tree, so no item moves.
    Crc32c,
}

impl NameOrder {
    /// The best order for the file system of `dir`.
    pub fn of(dir: impl AsFd) -> Self {
        if weald_sys::is_btrfs(dir) {
            Self::Crc32c
        } else {
            Self::Drawn
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

/// Key of a name in a directory of btrfs (`btrfs_name_hash` in Linux): the register starts at -2
/// and is not inverted at the end.
fn btrfs_hash(name: &[u8]) -> u32 {
    !crc32c::crc32c_append(1, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches: a wrong start value or an inverted result. It would be an order, but not that of
    /// btrfs.
    #[test]
    fn names_hash_as_btrfs_hashes_them() {
        // Output of `btrfs inspect-internal dump-tree`: (256 DIR_ITEM 3050792602) is the entry of
        // "0000".
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
