//! Chooses the branch filter of a category. Writers and readers both use this file, so that they
//! agree.
//!
//! Writers filter a block before they encode it. Readers undo the filter after decoding.

use crate::{arm64, x86};
use weald_format::directory::Category;

/// Whether blocks of `category` are filtered.
pub const fn is_filtered(category: Category) -> bool {
    matches!(category, Category::X86 | Category::Arm64)
}

/// Filters a block of `category` in place. Its length stays the same.
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

/// Fills `part` with the unfiltered bytes of a block from `start` on. `block` is the decoded, still
/// filtered block: whole, or up to the end of the part and [`front_tail_len`] bytes more.
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

/// Number of bytes at the end of a front (the first bytes of a block) that [`unfilter`] may leave
/// filtered if the block continues after it.
pub const fn front_tail_len(category: Category) -> usize {
    match category {
        Category::X86 => x86::FRONT_TAIL_LEN,
        Category::Arm64 => arm64::INSTRUCTION_LEN - 1,
        _ => 0,
    }
}
