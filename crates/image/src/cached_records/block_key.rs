//! Keys of blocks in the cache, and the part of a block that a reader needs.

use crate::cache::key::{CacheKey, RecordBits};
use weald_format::container::Codec;
use weald_format::directory::Category;

/// The part of a block that a reader needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Everything.
    Whole,
    /// Its first bytes, this many; later bytes may come with them.
    Front(u64),
}

/// Key of decoded bytes in the cache: those of a block, or those that a recipe makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockKey {
    name: BlockName,
    form: BlockForm,
}

/// Identity of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum BlockName {
    /// Its stream and its number there, for one image.
    Numbered { stream: u8, no: u64 },
    /// Everything that its decoded bytes depend on, for all images of a store: its record, its
    /// codec and its category.
    Shared { kind: u32, bits: RecordBits },
}

/// Form in which a block is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum BlockForm {
    Whole,
    Front,
    Partial,
}

impl BlockKey {
    /// Key of block `no` of a stream, or of the bytes that recipe `no` makes.
    pub const fn whole(stream: u8, no: u64) -> Self {
        Self {
            name: BlockName::Numbered { stream, no },
            form: BlockForm::Whole,
        }
    }

    /// Key of a block that all images of a store share.
    pub fn shared(bits: RecordBits, codec: Codec, category: Category) -> Self {
        Self {
            name: BlockName::Shared {
                kind: (codec as u32) << 8 | category as u32,
                bits,
            },
            form: BlockForm::Whole,
        }
    }

    /// Key of the separately decoded front of the same block.
    pub const fn front(self) -> Self {
        Self {
            form: BlockForm::Front,
            ..self
        }
    }

    /// Key of the same block as a block that is decoded in steps.
    pub const fn partial(self) -> Self {
        Self {
            form: BlockForm::Partial,
            ..self
        }
    }
}

impl CacheKey for BlockKey {
    fn kind_and_no(self) -> (u32, u64) {
        let form = self.form as u32;
        match self.name {
            BlockName::Numbered { stream, no } => (u32::from(stream) << 2 | form, no),
            BlockName::Shared { kind, bits } => (kind << 2 | form, bits.no),
        }
    }

    fn shared_bits(self) -> Option<[u64; 2]> {
        match self.name {
            BlockName::Numbered { .. } => None,
            BlockName::Shared { bits, .. } => Some(bits.more),
        }
    }
}
