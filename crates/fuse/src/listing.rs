//! Encodes directory listings for READDIR and READDIRPLUS.

use crate::wire::{Dirent, Direntplus, EntryOut, NodeId};
use zerocopy::IntoBytes;

/// Most bytes of one listing. The kernel requests less; the limit bounds memory.
const LISTING_LEN_MAX: u32 = 1 << 20;

/// Alignment of entries in bytes: zero bytes pad each name to a multiple of this.
const ALIGNMENT: usize = 8;

/// Listing under construction, up to the size of the kernel's buffer.
pub(crate) struct Listing<'a> {
    out: &'a mut Vec<u8>,
    len_max: usize,
    /// Offset that follows the last entry.
    next: u64,
    /// Bytes that the entries take without their attributes.
    plain_len: usize,
}

impl<'a> Listing<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>, size: u32) -> Self {
        let len_max = size.min(LISTING_LEN_MAX) as usize;
        Self {
            out,
            len_max,
            next: 0,
            plain_len: 0,
        }
    }

    /// Offset that follows the last entry, and bytes that the entries take without their
    /// attributes, as the kernel caches them. `None` without an entry.
    pub(crate) fn extent(&self) -> Option<(u64, usize)> {
        (self.plain_len > 0).then_some((self.next, self.plain_len))
    }

    /// Appends an entry; returns true if the buffer has no room for it. `next` is the offset of
    /// the following entry.
    pub(crate) fn add(&mut self, node: NodeId, next: u64, kind: u32, name: &[u8]) -> bool {
        let dirent = dirent(node.0, next, kind, name);
        self.push(dirent.as_bytes(), next, name)
    }

    /// Like [`Listing::add`], with attributes.
    pub(crate) fn add_with_attributes(
        &mut self,
        entry: &EntryOut,
        next: u64,
        kind: u32,
        name: &[u8],
    ) -> bool {
        let dirent = dirent(entry.attr.ino, next, kind, name);
        let entry = *entry;
        self.push(Direntplus { entry, dirent }.as_bytes(), next, name)
    }

    fn push(&mut self, record: &[u8], next: u64, name: &[u8]) -> bool {
        let len = (record.len() + name.len()).next_multiple_of(ALIGNMENT);
        let end = self.out.len() + len;
        if end > self.len_max {
            return true;
        }
        self.out.extend_from_slice(record);
        self.out.extend_from_slice(name);
        self.out.resize(end, 0);
        self.next = next;
        self.plain_len += (size_of::<Dirent>() + name.len()).next_multiple_of(ALIGNMENT);
        false
    }
}

fn dirent(ino: u64, off: u64, kind: u32, name: &[u8]) -> Dirent {
    Dirent {
        ino,
        off,
        // A name has at most 255 bytes.
        namelen: name.len() as u32,
        kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a truncated entry at the end of the buffer, and unaligned entries.
    #[test]
    fn entries_are_whole_and_aligned() {
        let mut out = Vec::new();
        let mut listing = Listing::new(&mut out, 100);
        assert!(!listing.add(NodeId(5), 3, 8, b"a"));
        assert!(!listing.add(NodeId(6), 4, 4, b"12345678"));
        assert!(!listing.add(NodeId(7), 5, 4, b"123456789"[..1].as_ref()));
        assert!(listing.add(NodeId(8), 6, 4, b"x"));
        assert_eq!(listing.extent(), Some((5, 32 + 32 + 32)));
        assert_eq!(out.len(), 32 + 32 + 32);
        assert_eq!(&out[24..32], b"a\0\0\0\0\0\0\0");
        assert_eq!(&out[56..64], b"12345678");
    }
}
