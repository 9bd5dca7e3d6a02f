//! Which filter blocks of a category go through before they are encoded. The one place where that is decided, for writers
//! and readers.

use crate::{arm64, x86};
use weald_format::directory::Category;

/// Whether blocks of `category` are filtered.
pub const fn is_filtered(category: Category) -> bool {
    matches!(category, Category::X86 | Category::Arm64)
}

/// Filters a block of `category`: it is as long as before.
pub fn filter(category: Category, block: &mut [u8]) {
    match category {
        Category::X86 => x86::filter(block),
        Category::Arm64 => arm64::filter(block),
        _ => (),
    }
}

/// Undoes [`filter`] for a whole block.
pub fn unfilter(category: Category, block: &mut [u8]) {
    match category {
        Category::X86 => x86::unfilter(block),
        Category::Arm64 => arm64::unfilter(block, 0),
        _ => (),
    }
}

/// Bytes at the end of a front that [`unfilter`] may leave as they were where the block goes on behind it.
pub const fn front_tail_len(category: Category) -> usize {
    match category {
        Category::X86 => x86::FRONT_TAIL_LEN,
        Category::Arm64 => arm64::WORD_LEN - 1,
        _ => 0,
    }
}
