//! The second pass: where each inode lies.

use super::contents::Contents;
use super::options::{ErofsOptions, check_cancelled};
use super::shape::Measured;
use super::shared::SharedXattrs;
use super::tree::each_inode;
use crate::spill::{Numbers, Spill};
use weald_erofs::layout::SLOT_LEN;
use weald_format::{Error, InodeNo, Result};
use weald_image::Image;

/// Least offset of the first inode, the root, in the metadata. Number 0 would be inode number 0,
/// which programs take for a deleted entry.
const FIRST_INODE: u64 = SLOT_LEN;

/// Positions of all inodes.
pub(super) struct InodePositions {
    /// Offset of the inode in the metadata, for each name in order of numbers.
    starts: Spill,
    /// Bytes of the metadata, without blocks of directories.
    pub len: u64,
    pub inode_count: u64,
    /// Position of the root's inode, in the first or second block.
    pub root_start: u64,
}

impl InodePositions {
    /// A reader of the list.
    pub fn reader(&self) -> PositionReader<'_> {
        PositionReader(Numbers::new(&self.starts))
    }
}

/// Reads positions, best in order of the numbers.
pub(super) struct PositionReader<'a>(Numbers<'a>);

impl PositionReader<'_> {
    /// The position of the inode with number `no`.
    ///
    /// # Errors
    /// `Io`: the temporary file.
    pub fn of(&mut self, no: InodeNo) -> Result<u64> {
        let mut bytes = [0; 8];
        self.0.get(&mut bytes, no.0.saturating_sub(1) * 8)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Computes the positions.
pub(super) fn compute(
    image: &Image,
    contents: &Contents,
    shared: &SharedXattrs,
    options: &ErofsOptions<'_>,
) -> Result<InodePositions> {
    let memory_len = (options.memory_len / 8).min(64 << 20) as usize;
    let mut starts = Spill::new(memory_len, options.temp_dir.to_owned());
    let root = image.root()?;
    let epoch = root.times.mtime;
    let measured = Measured::new(image, contents, shared, (None, &root), epoch)?;
    let root_start = measured.shape.start(FIRST_INODE);
    starts.append(&root_start.to_le_bytes())?;
    let (mut end, mut inode_count) = (measured.end(root_start), 1);
    each_inode(image, root_start / SLOT_LEN, &mut |dir, _, inode| {
        check_cancelled(options)?;
        let expected = starts.len() / 8 + 1;
        if inode.name_no.0 != expected {
            let what = format!("name {} where {expected} was expected", inode.name_no.0);
            return Err(Error::invalid(what));
        }
        let start = if inode.ino == inode.name_no {
            let measured =
                Measured::new(image, contents, shared, (Some(&dir.opened), inode), epoch)?;
            let start = measured.shape.start(end);
            end = measured.end(start);
            inode_count += 1;
            start
        } else {
            let mut bytes = [0; 8];
            starts.read_at(&mut bytes, inode.ino.0.saturating_sub(1) * 8)?;
            u64::from_le_bytes(bytes)
        };
        starts.append(&start.to_le_bytes())?;
        Ok(start / SLOT_LEN)
    })?;
    Ok(InodePositions {
        starts,
        len: end,
        inode_count,
        root_start,
    })
}
