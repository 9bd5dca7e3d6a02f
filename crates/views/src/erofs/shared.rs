//! Xattrs of several inodes, stored once.

use super::options::ErofsOptions;
use std::ops::Range;
use weald_erofs::layout::BLOCK_LEN;
use weald_erofs::writer::{EROFS_VALUE_LEN_MAX, put_xattr, xattr_len};
use weald_format::{Error, Result, Xattr, XattrSetId};
use weald_image::{Image, Inode};
use weald_io::OutputFile;

/// Xattrs of one inode that can be shared: their number has 8 bits.
const COUNT_MAX: usize = 255;
/// Shortest set that is shared: a number of 4 bytes stands for each of its xattrs.
const SET_LEN_MIN: u64 = 12;

/// Counts which sets of xattrs are used more than once.
#[derive(Default)]
pub(super) struct SetUses(Vec<u8>);

impl SetUses {
    /// Notes one inode.
    pub fn note(&mut self, inode: &Inode) {
        let Some(id) = inode.xattr_set.filter(|_| inode.ino == inode.name_no) else {
            return;
        };
        let index = id.0 as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        if let Some(uses) = self.0.get_mut(index) {
            *uses = uses.saturating_add(1);
        }
    }
}

/// Xattrs that lie in the shared area, by set.
pub(super) struct SharedXattrs {
    /// Offset of the area in the image.
    pub start: u64,
    /// For each set its numbers in `ids`; empty for a set that is not shared.
    sets: Vec<Range<u32>>,
    ids: Vec<u32>,
}

impl SharedXattrs {
    /// The numbers of the xattrs of `inode`, in the order of the set; empty if they are not shared.
    pub fn of(&self, inode: &Inode) -> &[u32] {
        let set = inode.xattr_set.and_then(|id| self.sets.get(id.0 as usize));
        set.and_then(|range| self.ids.get(range.start as usize..range.end as usize))
            .unwrap_or_default()
    }

    /// Writes the xattrs of all sets that are used twice or more, as far as their numbers take an
    /// eighth of the memory.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt` of the image; `Limit` of the format.
    pub fn write(
        image: &Image,
        uses: &SetUses,
        out: &mut OutputFile,
        options: &ErofsOptions<'_>,
    ) -> Result<Self> {
        let start = out.position();
        let mut shared = Self {
            start,
            sets: Vec::new(),
            ids: Vec::new(),
        };
        let ids_max = (options.memory_len / 8 / size_of::<u32>() as u64) as usize;
        let (mut inode, mut bytes) = (image.root()?, Vec::new());
        for (index, uses) in uses.0.iter().enumerate() {
            let first = shared.ids.len();
            inode.xattr_set = Some(XattrSetId(index as u64));
            if *uses > 1 && shared.ids.len() < ids_max {
                let set = image.xattrs(&inode)?;
                let len: u64 = set.iter().map(|x| xattr_len(&x.name, x.value.len())).sum();
                let has_long = set.iter().any(|x| check_value(x).is_err());
                if set.len() <= COUNT_MAX && len >= SET_LEN_MIN * set.len() as u64 && !has_long {
                    for xattr in set.iter() {
                        let Ok(id) = u32::try_from((out.position() - start) / 4) else {
                            break;
                        };
                        shared.ids.push(id);
                        bytes.clear();
                        put_xattr(&mut bytes, &xattr.name, &xattr.value);
                        bytes.resize(bytes.len().next_multiple_of(4), 0);
                        out.write_all(&bytes)?;
                    }
                    if shared.ids.len() - first < set.len() {
                        shared.ids.truncate(first);
                    }
                }
            }
            shared.sets.push(first as u32..shared.ids.len() as u32);
        }
        let len = out.position().next_multiple_of(BLOCK_LEN) - out.position();
        let zeros = [0; BLOCK_LEN as usize];
        out.write_all(zeros.get(..len as usize).unwrap_or_default())?;
        Ok(shared)
    }
}

/// Checks that EROFS can hold the value.
pub(super) fn check_value(xattr: &Xattr) -> Result<()> {
    if xattr.value.len() > EROFS_VALUE_LEN_MAX {
        Err(Error::limit(format!(
            "xattr '{}' has {} bytes, EROFS holds {EROFS_VALUE_LEN_MAX}",
            xattr.name.escape_ascii(),
            xattr.value.len()
        )))
    } else {
        Ok(())
    }
}
