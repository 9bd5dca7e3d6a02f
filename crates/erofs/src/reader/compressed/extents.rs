//! Extents of a compressed file, in order.

use super::super::{Inode, Volume, damaged};
use super::index::{Cluster, Index, Kind};
use std::ops::Range;
use weald_format::Result;

/// Largest physical cluster that the kernel reads, bytes.
const STORED_LEN_MAX: u64 = 1 << 20;
/// Longest extent that the kernel decodes, bytes (`Z_EROFS_PCLUSTER_MAX_DSIZE`).
const EXTENT_LEN_MAX: u64 = 12 << 20;

/// Where the data of an extent come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtentSource {
    /// Stored bytes of the image, as they are.
    Plain {
        /// Place in the image.
        place: Range<u64>,
        /// The first byte of the data is this byte of the block; the data go on at its start.
        shift: u64,
    },
    /// Bytes of the image that a codec decodes.
    Codec {
        /// Place in the image.
        place: Range<u64>,
        /// Number of the codec.
        codec: u8,
    },
    /// The packed inode, from this offset on.
    Packed(u64),
}

/// An extent of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// Bytes of the file.
    pub range: Range<u64>,
    /// Where their data come from.
    pub source: ExtentSource,
}

/// Finds extents.
#[derive(Debug)]
pub struct Extents {
    index: Index,
    size: u64,
}

impl Extents {
    /// Extents of `inode`, which has data.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Unsupported`.
    pub fn read(volume: &Volume, inode: &Inode) -> Result<Self> {
        Ok(Self {
            index: Index::read(volume, inode)?,
            size: inode.size,
        })
    }

    /// The extent that holds the byte `offset` of the file.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn at(&self, volume: &Volume, offset: u64) -> Result<Mapped> {
        if self.index.is_whole_fragment() {
            return Ok(Mapped {
                range: 0..self.size,
                source: ExtentSource::Packed(self.index.fragment),
            });
        }
        let (head_no, head) = self.head(volume, offset)?;
        let start = self.start(head_no, &head);
        let (end, block_count) = self.end(volume, head_no)?;
        let end = end.unwrap_or(self.size);
        let is_last = end >= self.size;
        let range = start..end.min(self.size);
        if !range.contains(&offset) {
            return Err(damaged(format_args!("no extent at {offset}")));
        }
        let source = match is_last {
            true if self.index.has_inline_tail() => self.inline_tail(volume, &head, &range)?,
            true if self.index.has_fragment() => {
                ExtentSource::Packed(if self.index.has_wide_fragment() {
                    self.index.fragment | u64::from(head.block) << 32
                } else {
                    self.index.fragment
                })
            }
            _ => {
                let blocks = if self.index.has_big_cluster(head.kind) {
                    block_count.unwrap_or(1)
                } else {
                    1
                };
                let place = u64::from(head.block) << volume.geometry.block_bits;
                let len = u64::from(blocks) << volume.geometry.block_bits;
                self.stored(volume, &head, &range, place..place.saturating_add(len))?
            }
        };
        let len = range.end.saturating_sub(range.start);
        if matches!(source, ExtentSource::Packed(_)) || len <= EXTENT_LEN_MAX {
            Ok(Mapped { range, source })
        } else {
            Err(damaged(format_args!("an extent of {len} bytes")))
        }
    }

    fn start(&self, no: u64, head: &Cluster) -> u64 {
        (no << self.index.cluster_bits).saturating_add(head.offset)
    }

    /// The entry where the extent of `offset` begins.
    fn head(&self, volume: &Volume, offset: u64) -> Result<(u64, Cluster)> {
        let mut no = offset >> self.index.cluster_bits;
        let no_min = offset.saturating_sub(EXTENT_LEN_MAX) >> self.index.cluster_bits;
        loop {
            let cluster = self.index.cluster(volume, no)?;
            let is_head = !matches!(cluster.kind, Kind::Inside { .. });
            if is_head && self.start(no, &cluster) <= offset {
                return Ok((no, cluster));
            }
            no = match no.checked_sub(1).filter(|&no| no >= no_min) {
                Some(no) => no,
                None => return Err(damaged(format_args!("no extent begins before {offset}"))),
            };
        }
    }

    /// The end of the extent that begins in cluster `head_no`, `None` for the end of the file; and
    /// the blocks of its physical cluster, if the index gives their number.
    fn end(&self, volume: &Volume, head_no: u64) -> Result<(Option<u64>, Option<u32>)> {
        let (mut blocks, mut no) = (None, head_no.saturating_add(1));
        let no_max = no.saturating_add(EXTENT_LEN_MAX >> self.index.cluster_bits);
        while no < self.index.count {
            let cluster = self.index.cluster(volume, no)?;
            match cluster.kind {
                Kind::Inside { block_count } => {
                    if no == head_no.saturating_add(1) {
                        blocks = block_count;
                    }
                }
                _ => return Ok((Some(self.start(no, &cluster)), blocks)),
            }
            no = no.saturating_add(1);
            // The last extent may be longer if it lies in the packed inode.
            if no > no_max && !self.index.has_fragment() {
                return Err(damaged("an extent is too long"));
            }
        }
        Ok((None, blocks))
    }

    fn inline_tail(
        &self,
        volume: &Volume,
        head: &Cluster,
        range: &Range<u64>,
    ) -> Result<ExtentSource> {
        let last = self
            .index
            .cluster(volume, self.index.count.saturating_sub(1))?;
        let end = last.end.saturating_add(self.index.inline_len);
        self.stored(volume, head, range, last.end..end)
    }

    fn stored(
        &self,
        volume: &Volume,
        head: &Cluster,
        range: &Range<u64>,
        place: Range<u64>,
    ) -> Result<ExtentSource> {
        let stored_len = place.end.saturating_sub(place.start);
        if stored_len == 0 || stored_len > STORED_LEN_MAX {
            return Err(damaged(format_args!("a cluster of {stored_len} bytes")));
        }
        volume
            .windows
            .check_range(place.start, stored_len, "data")?;
        let codec = match head.kind {
            Kind::Head { is_second } => self.index.codec(is_second),
            _ => {
                let len = range.end.saturating_sub(range.start);
                if len > stored_len {
                    return Err(damaged(format_args!("{len} bytes in {stored_len}")));
                }
                let shift = if self.index.is_interlaced() {
                    range.start.checked_rem(volume.block_len()).unwrap_or(0)
                } else {
                    0
                };
                return Ok(ExtentSource::Plain { place, shift });
            }
        };
        Ok(ExtentSource::Codec { place, codec })
    }
}
