//! Divides the stored bytes of blocks among the contents that lie in them.

use crate::image::Image;
use weald_format::container::{HEADER_LEN, RecordType};
use weald_format::directory::Category;
use weald_format::{Error, Result};

/// Most blocks of an image whose bytes are divided: 640 MB of memory.
const BLOCKS_MAX: usize = 1 << 24;

/// A block, and how much of it contents refer to.
struct Block {
    /// Address of its first byte in the stream.
    start: u64,
    /// Address behind its last byte.
    end: u64,
    /// Stored bytes with the header of the record.
    stored_len: u64,
    /// Bytes that contents refer to; those of two contents count twice.
    referenced_len: u64,
    /// The part of `referenced_len` whose share was taken already.
    charged_len: u64,
}

impl Block {
    /// Share of the stored bytes that belongs to the next `len` referenced bytes. The shares of all
    /// referenced bytes add up to `stored_len`.
    fn charge(&mut self, len: u64) -> u64 {
        let before = self.share_of(self.charged_len);
        self.charged_len = self
            .charged_len
            .saturating_add(len)
            .min(self.referenced_len);
        self.share_of(self.charged_len).saturating_sub(before)
    }

    fn share_of(&self, len: u64) -> u64 {
        let scaled = u128::from(self.stored_len).saturating_mul(u128::from(len));
        let share = scaled.checked_div(u128::from(self.referenced_len));
        u64::try_from(share.unwrap_or(0)).unwrap_or(u64::MAX)
    }
}

/// The blocks of an image, by stream; none for streams of base images and of recipes.
pub struct BlockCharges {
    streams: Vec<Vec<Block>>,
}

impl BlockCharges {
    /// All blocks, to which nothing refers yet.
    ///
    /// # Errors
    /// `Limit` for more than [`BLOCKS_MAX`] blocks; `Io`, `Corrupt`.
    /// # Cost
    /// Reads the index of the blocks; 40 bytes of memory for each block.
    pub fn of(image: &Image) -> Result<Self> {
        let mut streams = Vec::new();
        let mut block_count = 0usize;
        for (no, stream) in image.directory().streams.iter().enumerate() {
            let mut blocks = Vec::new();
            if !matches!(stream.category, Category::Base | Category::Made) {
                let mut start = 0u64;
                image.each_record(RecordType::Data, no as u8, &mut |record, item_count| {
                    block_count = block_count.saturating_add(1);
                    if block_count > BLOCKS_MAX {
                        let what = format!("the image has more than {BLOCKS_MAX} blocks");
                        return Err(Error::limit(what));
                    }
                    let end = start.saturating_add(item_count);
                    blocks.push(Block {
                        start,
                        end,
                        stored_len: record.stored_len.saturating_add(HEADER_LEN as u64),
                        referenced_len: 0,
                        charged_len: 0,
                    });
                    start = end;
                    Ok(())
                })?;
            }
            streams.push(blocks);
        }
        Ok(Self { streams })
    }

    /// Counts a reference to `len` bytes of `stream` from `address` on.
    pub fn refer(&mut self, stream: u8, address: u64, len: u64) {
        self.each_part(stream, address, len, &mut |block, len| {
            block.referenced_len = block.referenced_len.saturating_add(len);
        });
    }

    /// Stored bytes that belong to a reference that was counted.
    pub fn charge(&mut self, stream: u8, address: u64, len: u64) -> u64 {
        let mut charged = 0u64;
        self.each_part(stream, address, len, &mut |block, len| {
            charged = charged.saturating_add(block.charge(len));
        });
        charged
    }

    /// Stored bytes of blocks to which nothing refers.
    pub fn unreferenced_len(&self) -> u64 {
        let blocks = self.streams.iter().flatten();
        let unreferenced = blocks.filter(|block| block.referenced_len == 0);
        let lens = unreferenced.map(|block| block.stored_len);
        lens.fold(0, u64::saturating_add)
    }

    /// Visits the blocks of a range, each with the length of its part.
    fn each_part(
        &mut self,
        stream: u8,
        address: u64,
        len: u64,
        visit: &mut dyn FnMut(&mut Block, u64),
    ) {
        let Some(blocks) = self.streams.get_mut(usize::from(stream)) else {
            return;
        };
        let end = address.saturating_add(len);
        let first = blocks.partition_point(|block| block.end <= address);
        for block in blocks.iter_mut().skip(first) {
            if block.start >= end {
                break;
            }
            let part_end = block.end.min(end);
            let part_len = part_end.saturating_sub(block.start.max(address));
            visit(block, part_len);
        }
    }
}
