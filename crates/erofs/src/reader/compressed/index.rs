//! The index of a compressed file. It has an entry for each logical cluster, most often 4 KiB of
//! the file. The entry says whether an extent begins in the cluster, and where.
//!
//! Source: `fs/erofs/zmap.c` of Linux 6.18.

use super::super::inode::DataLayout;
use super::super::{Inode, Volume, damaged, unsupported};
use crate::layout::{ClusterIndex, CompressedHeader};
use weald_format::Result;
use zerocopy::FromBytes;

/// Bits of the header's `advise`.
mod advise {
    pub const COMPACT_2B: u16 = 1 << 0;
    pub const BIG_CLUSTERS_1: u16 = 1 << 1;
    pub const BIG_CLUSTERS_2: u16 = 1 << 2;
    pub const INLINE_TAIL: u16 = 1 << 3;
    pub const INTERLACED: u16 = 1 << 4;
    pub const FRAGMENT: u16 = 1 << 5;
    pub const KNOWN: u16 = (1 << 6) - 1;
}

/// Bit of the header's `cluster_bits`: the whole file lies in the packed inode, and the header is
/// its offset there.
const WHOLE_FRAGMENT: u8 = 1 << 7;
/// The same bit in the header as a number of 64 bits.
const WHOLE_FRAGMENT_64: u64 = 1 << 63;
/// Bit of the first distance behind a head: the rest is the number of blocks of the cluster.
const BLOCK_COUNT: u32 = 1 << 11;
/// Bit of `advise` of an entry: only a part of the cluster's data is used.
const PARTIAL: u16 = 1 << 15;
/// Bytes of a full entry.
const FULL_LEN: u64 = size_of::<ClusterIndex>() as u64;
/// Unit of the packs of 16 entries of 2 bytes.
const PACK_LEN: u64 = 32;
/// Largest base-2 logarithm of a logical cluster that packed entries have room for.
const PACKED_BITS_MAX: u32 = 14;

/// Description of a cluster by its index entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An extent begins, and its data are stored as they are.
    Plain,
    /// An extent begins.
    Head {
        /// It has the second codec.
        is_second: bool,
    },
    /// An earlier extent goes on.
    Inside {
        /// Blocks of its physical cluster, if the entry gives it.
        block_count: Option<u32>,
    },
}

/// One entry of the index.
#[derive(Debug, Clone, Copy)]
pub struct Cluster {
    pub kind: Kind,
    /// Where the extent begins in the cluster.
    pub offset: u64,
    /// First block of the physical cluster.
    pub block: u32,
    /// Offset behind the entry in the image, or behind its pack.
    pub end: u64,
}

/// The index of a compressed file.
#[derive(Debug)]
pub struct Index {
    /// Base-2 logarithm of the logical cluster size.
    pub cluster_bits: u32,
    /// Number of logical clusters.
    pub count: u64,
    codecs: u8,
    /// Offset of the tail in the packed inode.
    pub fragment: u64,
    /// Bytes of a tail behind the index.
    pub inline_len: u64,
    advise: u16,
    is_compact: bool,
    is_whole_fragment: bool,
    start: u64,
    /// Entries of 4 bytes before those of 2 bytes, and the number of those.
    first_count: u64,
    small_count: u64,
}

impl Index {
    /// Reads the header of the index of `inode`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Unsupported`.
    pub fn read(volume: &Volume, inode: &Inode) -> Result<Self> {
        let is_compact = match inode.layout {
            DataLayout::Compressed { is_compact } => is_compact,
            _ => return Err(damaged("an index of data that are not compressed")),
        };
        let start = inode.end().next_multiple_of(8);
        let mut bytes = [0; size_of::<CompressedHeader>()];
        volume.windows.read(start, &mut bytes, "index")?;
        // Images of the first format have no header.
        if !is_compact && !volume.geometry.has_cluster_headers {
            bytes.fill(0);
        }
        let header = CompressedHeader::read_from_bytes(&bytes).map_err(|_| damaged("index"))?;
        let mut index = Self {
            cluster_bits: u32::from(volume.geometry.block_bits)
                .saturating_add(u32::from(header.cluster_bits & 7)),
            count: 0,
            codecs: header.codec,
            fragment: header.fragment_offset.get().into(),
            inline_len: (header.fragment_offset.get() >> 16).into(),
            advise: header.advise.get(),
            is_compact,
            is_whole_fragment: header.cluster_bits & WHOLE_FRAGMENT != 0,
            start: start.saturating_add(FULL_LEN),
            first_count: 0,
            small_count: 0,
        };
        if index.is_whole_fragment {
            index.fragment = u64::from_le_bytes(bytes) ^ WHOLE_FRAGMENT_64;
            return Ok(index);
        }
        if index.advise & !advise::KNOWN != 0 || header.cluster_bits & 0x78 != 0 {
            return Err(unsupported(format_args!(
                "an index with the features {:#x} and {:#x}",
                index.advise, header.cluster_bits
            )));
        }
        index.count = inode.size.div_ceil(1 << index.cluster_bits);
        index.lay_out()?;
        let len = index.place(index.count).0.saturating_sub(index.start);
        volume.windows.check_range(index.start, len, "index")?;
        Ok(index)
    }

    /// Computes where entries of which length lie.
    fn lay_out(&mut self) -> Result<()> {
        if !self.is_compact {
            self.start = self.start.saturating_add(FULL_LEN);
            return Ok(());
        }
        if self.cluster_bits > PACKED_BITS_MAX {
            return Err(unsupported(format_args!(
                "packed indexes of clusters of 2^{} bytes",
                self.cluster_bits
            )));
        }
        // Packs of small entries begin at multiples of their length.
        let aligned = self.start.next_multiple_of(PACK_LEN);
        self.first_count = aligned.saturating_sub(self.start) >> 2;
        if self.advise & advise::COMPACT_2B != 0 && self.first_count < self.count {
            if self.cluster_bits > 12 {
                return Err(unsupported("small index entries of large clusters"));
            }
            self.small_count = self.count.saturating_sub(self.first_count) & !15;
        }
        Ok(())
    }

    /// Number of the codec of the first or the second kind.
    pub fn codec(&self, is_second: bool) -> u8 {
        if is_second {
            self.codecs >> 4
        } else {
            self.codecs & 15
        }
    }

    /// Whether the whole file lies in the packed inode.
    pub fn is_whole_fragment(&self) -> bool {
        self.is_whole_fragment
    }

    /// Whether the last extent lies in the packed inode.
    pub fn has_fragment(&self) -> bool {
        self.advise & advise::FRAGMENT != 0
    }

    /// Whether the last extent lies behind the index.
    pub fn has_inline_tail(&self) -> bool {
        self.advise & advise::INLINE_TAIL != 0
    }

    /// Whether stored data lie at the offset in their block that they have in the file's.
    pub fn is_interlaced(&self) -> bool {
        self.advise & advise::INTERLACED != 0
    }

    /// Whether entries of the full index hold the upper half of the fragment's offset.
    pub fn has_wide_fragment(&self) -> bool {
        !self.is_compact
    }

    /// Whether the physical cluster of a head may have more than one block.
    pub fn has_big_cluster(&self, kind: Kind) -> bool {
        let bit = match kind {
            Kind::Head { is_second: false } => advise::BIG_CLUSTERS_1,
            _ => advise::BIG_CLUSTERS_2,
        };
        self.advise & bit != 0
    }

    /// Offset of entry `no`, and the base-2 logarithm of its length.
    fn place(&self, no: u64) -> (u64, u32) {
        if !self.is_compact {
            return (self.start.saturating_add(no.saturating_mul(FULL_LEN)), 3);
        }
        let at = |first: u64, small: u64| {
            let len = first.saturating_mul(4).saturating_add(small << 1);
            self.start.saturating_add(len)
        };
        let Some(small) = no.checked_sub(self.first_count) else {
            return (at(no, 0), 2);
        };
        match small.checked_sub(self.small_count) {
            None => (at(self.first_count, small), 1),
            Some(last) => {
                let first = self.first_count.saturating_add(last);
                (at(first, self.small_count), 2)
            }
        }
    }

    /// Reads entry `no`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn cluster(&self, volume: &Volume, no: u64) -> Result<Cluster> {
        let (place, len_bits) = self.place(no);
        let cluster = match len_bits {
            3 => self.full(volume, place)?,
            bits => self.packed(volume, place, bits)?,
        };
        let is_head = !matches!(cluster.kind, Kind::Inside { .. });
        if is_head && cluster.offset >> self.cluster_bits != 0 {
            Err(damaged(format_args!(
                "an extent begins at {} of a cluster",
                cluster.offset
            )))
        } else {
            Ok(cluster)
        }
    }

    fn full(&self, volume: &Volume, place: u64) -> Result<Cluster> {
        let mut bytes = [0; FULL_LEN as usize];
        volume.windows.read(place, &mut bytes, "index")?;
        let entry = ClusterIndex::read_from_bytes(&bytes).map_err(|_| damaged("index"))?;
        let advise = entry.advise.get();
        if advise & !(PARTIAL | 3) != 0 {
            return Err(unsupported(format_args!("an index entry {advise:#x}")));
        }
        let union = entry.union.get();
        Ok(Cluster {
            kind: kind(advise.into(), union & 0xffff),
            offset: entry.offset.get().into(),
            block: union,
            end: place.saturating_add(FULL_LEN),
        })
    }

    /// Reads an entry of a pack: 2 entries of 4 bytes or 16 of 2 bytes, a few bits for each, and
    /// the block address that the first head of the pack counts from.
    fn packed(&self, volume: &Volume, place: u64, len_bits: u32) -> Result<Cluster> {
        // Of 32 bytes 28 are for 16 entries, of 8 bytes 4 are for 2 entries.
        let (field_bits, pack_len) = match len_bits {
            1 => (14, PACK_LEN),
            _ => (16, 8),
        };
        let start = place & !pack_len.saturating_sub(1);
        let mut bytes = [0; PACK_LEN as usize];
        let bytes = bytes.get_mut(..pack_len as usize).unwrap_or_default();
        volume.windows.read(start, bytes, "index")?;
        let (fields, base) = bytes
            .split_last_chunk::<4>()
            .ok_or_else(|| damaged("index"))?;
        let pack = Pack {
            fields,
            value_bits: self.cluster_bits.max(12),
            field_bits,
        };
        let no = (place.saturating_sub(start) >> len_bits) as u32;
        let (kind, value) = pack.field(no);
        let block = match kind {
            Kind::Inside { .. } => 0,
            _ => u32::from_le_bytes(*base).wrapping_add(self.blocks_before(&pack, no)?),
        };
        Ok(Cluster {
            kind,
            offset: value.into(),
            block,
            end: start.saturating_add(pack_len),
        })
    }

    /// Blocks of the physical clusters from the start of the pack up to entry `no`.
    fn blocks_before(&self, pack: &Pack<'_>, no: u32) -> Result<u32> {
        let is_big = self.advise & advise::BIG_CLUSTERS_1 != 0;
        let (mut at, mut blocks) = (no, if is_big { 0 } else { 1_u32 });
        // Distances to heads are followed backwards.
        while let Some(before) = at.checked_sub(1) {
            at = before;
            let (kind, value) = pack.field(at);
            match kind {
                Kind::Inside { block_count } => match (is_big, block_count) {
                    (true, Some(count)) => {
                        at = at.saturating_sub(1);
                        blocks = blocks.saturating_add(count);
                    }
                    (true, None) if value <= 1 => return Err(damaged("distance in an index")),
                    (true, None) => at = at.saturating_sub(value.saturating_sub(2)),
                    (false, _) => {
                        if at >= value {
                            at = at.saturating_sub(value);
                            blocks = blocks.saturating_add(1);
                        } else {
                            at = 0;
                        }
                    }
                },
                _ => blocks = blocks.saturating_add(1),
            }
        }
        Ok(blocks)
    }
}

struct Pack<'a> {
    fields: &'a [u8],
    value_bits: u32,
    field_bits: u32,
}

impl Pack<'_> {
    /// Kind and value of entry `no`.
    fn field(&self, no: u32) -> (Kind, u32) {
        let bit = no.saturating_mul(self.field_bits);
        let mut bytes = [0; 4];
        let rest = self.fields.get((bit >> 3) as usize..).unwrap_or_default();
        for (byte, from) in bytes.iter_mut().zip(rest) {
            *byte = *from;
        }
        let bits = u32::from_le_bytes(bytes) >> (bit & 7);
        let mask = 1_u32
            .checked_shl(self.value_bits)
            .unwrap_or(0)
            .wrapping_sub(1);
        let value = bits & mask;
        (
            kind(bits.checked_shr(self.value_bits).unwrap_or(0), value),
            value,
        )
    }
}

fn kind(bits: u32, distance: u32) -> Kind {
    match bits & 3 {
        0 => Kind::Plain,
        1 => Kind::Head { is_second: false },
        3 => Kind::Head { is_second: true },
        _ => Kind::Inside {
            block_count: (distance & BLOCK_COUNT != 0).then_some(distance & !BLOCK_COUNT),
        },
    }
}
