//! Keys of blocks in the cache, and the part of a block that a reader needs.

use crate::cache::key::CacheKey;

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
    stream: u8,
    no: u64,
    form: BlockForm,
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
            stream,
            no,
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
        let kind = u32::from(self.stream) << 2 | self.form as u32;
        (kind, self.no)
    }
}
