//! Where the data of files lie that are not compressed.

use super::inode::DataLayout;
use super::{Inode, Volume, damaged, unsupported};
use crate::layout::{ChunkIndex, chunk};
use std::ops::Range;
use weald_format::{Error, Result};
use zerocopy::FromBytes;

/// Runs of data that a sparse file may have.
const RUNS_MAX: usize = 1 << 20;

/// Bytes of a file that lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Offset of the first byte in the file.
    pub start: u64,
    pub len: u64,
    /// Offset in the image; `None` for a hole.
    pub place: Option<u64>,
}

impl Extent {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }
}

impl Volume {
    /// The extent that holds the byte `offset` of `inode`, which has that many. The image has all
    /// bytes of the extent.
    pub(super) fn extent(&self, inode: &Inode, offset: u64) -> Result<Extent> {
        let extent = match inode.layout {
            DataLayout::Plain { start } => Extent {
                start: 0,
                len: inode.size,
                place: Some(start),
            },
            DataLayout::Inline { start } => self.inline_extent(inode, start, offset)?,
            DataLayout::Chunked { format } => self.chunk(inode, format, offset)?,
            DataLayout::Compressed { .. } => return Err(unsupported("compressed metadata")),
        };
        if let Some(place) = extent.place {
            self.windows.check_range(place, extent.len, "data")?;
        }
        if extent.start <= offset && offset < extent.end() {
            Ok(extent)
        } else {
            Err(damaged(format_args!("no data at {offset}")))
        }
    }

    fn inline_extent(&self, inode: &Inode, start: u64, offset: u64) -> Result<Extent> {
        let block_len = self.block_len();
        let block_count = inode.size.div_ceil(block_len);
        let tail_start = block_count.saturating_sub(1).saturating_mul(block_len);
        if offset < tail_start {
            return Ok(Extent {
                start: 0,
                len: tail_start,
                place: Some(start),
            });
        }
        let (place, len) = (inode.end(), inode.size.saturating_sub(tail_start));
        let in_block = place.checked_rem(block_len).unwrap_or_default();
        if in_block.saturating_add(len) > block_len {
            return Err(damaged("inline data pass the end of their block"));
        }
        Ok(Extent {
            start: tail_start,
            len,
            place: Some(place),
        })
    }

    fn chunk(&self, inode: &Inode, format: u32, offset: u64) -> Result<Extent> {
        if format & !(chunk::SIZE_BITS | chunk::HAS_INDEXES) != 0 {
            return Err(unsupported(format_args!("chunk format {format:#x}")));
        }
        let bits = u32::from(self.geometry.block_bits).saturating_add(format & chunk::SIZE_BITS);
        let chunk_no = offset.checked_shr(bits).unwrap_or_default();
        let start = chunk_no.checked_shl(bits).unwrap_or_default();
        let chunk_len = 1_u64.checked_shl(bits).unwrap_or(u64::MAX);
        let address = match format & chunk::HAS_INDEXES {
            0 => self.chunk_address(inode, chunk_no)?,
            _ => self.indexed_chunk_address(inode, chunk_no)?,
        };
        Ok(Extent {
            start,
            len: chunk_len.min(inode.size.saturating_sub(start)),
            place: match address {
                chunk::HOLE => None,
                block => Some(u64::from(block) << self.geometry.block_bits),
            },
        })
    }

    fn chunk_address(&self, inode: &Inode, chunk_no: u64) -> Result<u32> {
        let mut address = [0; 4];
        let start = inode.end().next_multiple_of(4);
        let place = start.saturating_add(chunk_no.saturating_mul(4));
        self.windows.read(place, &mut address, "chunk")?;
        Ok(u32::from_le_bytes(address))
    }

    fn indexed_chunk_address(&self, inode: &Inode, chunk_no: u64) -> Result<u32> {
        let mut bytes = [0; size_of::<ChunkIndex>()];
        let start = inode.end().next_multiple_of(bytes.len() as u64);
        let place = start.saturating_add(chunk_no.saturating_mul(bytes.len() as u64));
        self.windows.read(place, &mut bytes, "chunk index")?;
        let index = ChunkIndex::read_from_bytes(&bytes).map_err(|_| damaged("chunk index"))?;
        if index.start.get() != chunk::HOLE && index.device.get() != 0 {
            return Err(unsupported(format_args!(
                "data on other devices (the image needs its device {}): make the image \
                 without --blobdev",
                index.device.get()
            )));
        }
        Ok(index.start.get())
    }

    /// Runs of data of `inode`, in order, with holes between them; `None` if it has no holes.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage; `Limit` for more than 2^20 runs.
    pub fn data_runs(&self, inode: &Inode) -> Result<Option<Vec<Range<u64>>>> {
        if !matches!(inode.layout, DataLayout::Chunked { .. }) {
            return Ok(None);
        }
        let (mut runs, mut at) = (Vec::<Range<u64>>::new(), 0);
        while at < inode.size {
            let extent = self.extent(inode, at)?;
            at = extent.end();
            let run_count = runs.len();
            match runs.last_mut() {
                _ if extent.place.is_none() => {}
                Some(last) if last.end == extent.start => last.end = at,
                _ if run_count == RUNS_MAX => {
                    return Err(Error::limit(format!(
                        "inode {}: a sparse file of more than {RUNS_MAX} runs",
                        inode.nid
                    )));
                }
                _ => runs.push(extent.start..at),
            }
        }
        let whole = 0..inode.size;
        let is_dense = inode.size == 0 || (runs.len() == 1 && runs.contains(&whole));
        Ok((!is_dense).then_some(runs))
    }

    /// Fills `out` with the bytes of `inode` from `start` on.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage and behind the end; `Unsupported` for compressed data.
    pub(super) fn read_plain(&self, inode: &Inode, start: u64, out: &mut [u8]) -> Result<()> {
        let (mut at, mut rest) = (start, out);
        while !rest.is_empty() {
            let extent = self.extent(inode, at)?;
            let skip = at.saturating_sub(extent.start);
            let len = extent.len.saturating_sub(skip).min(rest.len() as u64);
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(len as usize);
            match extent.place {
                None => head.fill(0),
                Some(place) => {
                    let place = place.saturating_add(skip);
                    // Small data are metadata mostly: directories, and tails behind inodes.
                    if len <= self.block_len() {
                        self.windows.read(place, head, "data")?
                    } else {
                        self.windows.read_data(place, head, "data")?
                    }
                }
            }
            (rest, at) = (tail, at.saturating_add(len));
        }
        Ok(())
    }
}
