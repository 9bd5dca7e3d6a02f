//! Which filter blocks of a category go through before they are encoded. The one place where that
//! is decided, for writers and readers.

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

/// Fills `part` with the bytes of a block from `start` on as they are where the filter is undone.
/// Of the block as it was decoded, `block` has the bytes up to the end of the part and
/// [`front_tail_len`] more, or all.
pub fn unfilter_part(category: Category, block: &[u8], start: usize, part: &mut [u8]) {
    let end = start.saturating_add(part.len());
    if let Some(filtered) = block.get(start..end) {
        part.copy_from_slice(filtered);
        match category {
            Category::X86 => x86::unfilter_part(block, start, part),
            Category::Arm64 => arm64::unfilter_part(block, start, part),
            _ => (),
        }
    }
}

/// Bytes at the end of a front that [`unfilter`] may leave as they were where the block goes on
/// behind it.
pub const fn front_tail_len(category: Category) -> usize {
    match category {
        Category::X86 => x86::FRONT_TAIL_LEN,
        Category::Arm64 => arm64::WORD_LEN - 1,
        _ => 0,
    }
}
