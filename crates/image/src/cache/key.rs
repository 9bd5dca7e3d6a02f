//! Keys and values of the cache, in the form that all kinds of cached items share.

use super::hash::mix_bits;
use std::any::Any;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use weald_format::Digest;

/// A type whose values the cache can keep.
pub trait CachedValue: Any + Send + Sync {
    /// Bytes of memory behind the value.
    fn memory_len(&self) -> usize;
}

impl CachedValue for Vec<u8> {
    fn memory_len(&self) -> usize {
        self.len()
    }
}

/// A value of any type.
pub type Value = Arc<dyn Any + Send + Sync>;

/// Kind of a cached item. It decides which part of the budget pays for the item, and it separates
/// the numbers of one kind from those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CachedKind {
    /// A decoded block, or the bytes that a recipe makes.
    Block,
    /// A parsed metadata record.
    Page,
    /// The list of sub-directories of a directory.
    Children,
    /// The position of a directory in the tree.
    View,
}

/// Part of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetPart {
    /// File contents.
    Blocks,
    /// The tree and its indexes.
    Pages,
}

impl CachedKind {
    /// The part of the budget that pays for items of this kind.
    pub const fn budget_part(self) -> BudgetPart {
        match self {
            Self::Block => BudgetPart::Blocks,
            Self::Page | Self::Children | Self::View => BudgetPart::Pages,
        }
    }
}

/// A key that is unique among the items of one kind and one image.
pub trait CacheKey: Copy {
    /// A sub-kind and a number.
    fn kind_and_no(self) -> (u32, u64);

    /// More bits of the key of an item that several images share; `None` for an item of one image.
    fn shared_bits(self) -> Option<[u64; 2]> {
        None
    }
}

impl CacheKey for u64 {
    fn kind_and_no(self) -> (u32, u64) {
        (0, self)
    }
}

/// Identity of a decoded record among those of several images: 160 bits of a digest of its source
/// and the raw length, of which the low 32 bits are all for every record but a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordBits {
    /// Goes into [`Key::no`].
    pub no: u64,
    /// Goes into [`Key::shared_bits`].
    pub more: [u64; 2],
}

impl RecordBits {
    /// The bits of a record with this digest and raw length.
    pub fn new(digest: &Digest, raw_len: u64) -> Self {
        let bytes = &digest.0;
        let word = |at: usize| {
            let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
            word.map_or(0, |word| u64::from_le_bytes(*word))
        };
        Self {
            no: word(0),
            more: [word(8), word(16) << 32 | (raw_len & u64::from(u32::MAX))],
        }
    }
}

/// Name of an entry in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Number of the image, or of the store whose images share the item.
    pub tag: u64,
    /// Kind of the item.
    pub kind: CachedKind,
    /// Sub-kind, as [`CacheKey::kind_and_no`] gives it.
    pub sub_kind: u32,
    /// Number of the item.
    pub no: u64,
    /// More bits of a shared item, as [`CacheKey::shared_bits`] gives them; zeros for others.
    pub shared_bits: [u64; 2],
}

impl Key {
    /// The bits that tell most keys apart, mixed: neighbouring numbers land in different shards.
    pub fn mixed(&self) -> u64 {
        let kind = match self.kind {
            CachedKind::Block => 0u64,
            CachedKind::Page => 1,
            CachedKind::Children => 2,
            CachedKind::View => 3,
        };
        let kind = u64::from(self.sub_kind) << 2 | kind;
        let first = mix_bits(self.tag ^ kind.rotate_left(32));
        mix_bits(first ^ self.no)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mixed());
    }
}
