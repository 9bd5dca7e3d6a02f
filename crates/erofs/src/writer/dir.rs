//! Directories: how their entries are divided into blocks, and the bytes of a block.

use crate::layout::{BLOCK_LEN, Dirent};
use weald_format::FileKind;
use zerocopy::IntoBytes;

/// Largest tail of a directory that lies behind its inode, in bytes. A longer one gets a block.
pub const DIR_TAIL_LEN_MAX: u64 = BLOCK_LEN / 2;

const DIRENT_LEN: u64 = size_of::<Dirent>() as u64;

/// Blocks and tail of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirShape {
    /// Blocks of the directory that lie elsewhere.
    pub block_count: u64,
    /// Bytes behind the inode.
    pub tail_len: u64,
}

impl DirShape {
    /// Size of the directory in its inode.
    pub fn size(&self) -> u64 {
        self.block_count * BLOCK_LEN + self.tail_len
    }
}

/// Divides the entries of a directory into blocks.
#[derive(Debug, Clone, Default)]
pub struct DirLayout {
    full_count: u64,
    used_len: u64,
}

impl DirLayout {
    /// Adds an entry with a name of `name_len` bytes; returns whether it begins a new block, so
    /// that the entries before it fill one.
    pub fn push(&mut self, name_len: usize) -> bool {
        let len = DIRENT_LEN + name_len as u64;
        let begins = self.used_len + len > BLOCK_LEN;
        if begins {
            self.full_count += 1;
            self.used_len = 0;
        }
        self.used_len += len;
        begins
    }

    /// Blocks and tail with the entries so far.
    pub fn shape(&self) -> DirShape {
        if self.used_len > DIR_TAIL_LEN_MAX {
            DirShape {
                block_count: self.full_count + 1,
                tail_len: 0,
            }
        } else {
            DirShape {
                block_count: self.full_count,
                tail_len: self.used_len,
            }
        }
    }
}

/// The entries of one block, in ascending order of names.
#[derive(Debug, Clone, Default)]
pub struct DirBlock {
    /// Inode number, file type and end of the name in `names`.
    entries: Vec<(u64, u8, usize)>,
    names: Vec<u8>,
}

impl DirBlock {
    /// Adds an entry.
    pub fn push(&mut self, name: &[u8], nid: u64, kind: FileKind) {
        self.names.extend_from_slice(name);
        let file_type = file_type(kind);
        self.entries.push((nid, file_type, self.names.len()));
    }

    /// Whether the block has no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Appends the bytes of the block, without zeros behind them, and removes all entries.
    pub fn take(&mut self, out: &mut Vec<u8>) {
        let mut name_offset = self.entries.len() * DIRENT_LEN as usize;
        let mut name_start = 0;
        for (nid, file_type, name_end) in self.entries.drain(..) {
            let entry = Dirent {
                nid: nid.into(),
                name_offset: (name_offset as u16).into(),
                file_type,
                reserved: 0,
            };
            out.extend_from_slice(entry.as_bytes());
            name_offset += name_end - name_start;
            name_start = name_end;
        }
        out.append(&mut self.names);
    }
}

/// The number of a type in directory entries.
fn file_type(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::CharDevice => 3,
        FileKind::BlockDevice => 4,
        FileKind::Fifo => 5,
        FileKind::Socket => 6,
        FileKind::Symlink => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: an entry that fills a block to its last byte and is moved to the next one, and
    /// a tail of half a block that gets a block of its own.
    #[test]
    fn blocks_are_filled_to_their_last_byte() {
        let mut layout = DirLayout::default();
        assert!(!layout.push(4084 - 12 - 100));
        assert!(!layout.push(100));
        assert_eq!(
            (layout.shape().block_count, layout.shape().tail_len),
            (1, 0)
        );
        assert!(layout.push(2036));
        assert_eq!(
            (layout.shape().block_count, layout.shape().tail_len),
            (1, 2048)
        );
        layout.push(1);
        assert_eq!(layout.shape().size(), 8192);
    }
}
