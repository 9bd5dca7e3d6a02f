//! The header of the engine's file, which redb writes and which has one copy.
//!
//! It has 64 bytes that say how the file is laid out, and two slots of 128 bytes with the last two
//! commits. redb gives up if any of them makes no sense, though one slot leads to all the rest.

use crate::disk::DiskFile;
use weald_format::Result;

const LAYOUT_LEN: usize = 64;
const SLOT_LEN: usize = 128;
/// Bytes of the header.
const LEN: usize = LAYOUT_LEN + 2 * SLOT_LEN;
const MAGIC: &[u8] = b"redb\x1a\x0a\xa9\x0d\x0a";
/// Where the number of a commit lies in its slot.
const COMMIT_AT: usize = 104;
/// Flags behind the magic number: the second slot has the last commit; the file was not closed; a
/// commit is recorded in one step.
const IS_SECOND: u8 = 1;
const IS_OPEN: u8 = 2;
const IN_ONE_STEP: u8 = 4;
const PAGE_LEN: u64 = 4096;
/// Most pages of a region.
const REGION_PAGES: u64 = 1 << 20;

/// Headers that may lead to the tables of `file`, whose own header is damaged, the best first: for
/// each slot, one that has only this slot. redb verifies the checksum of the slot.
///
/// # Errors
/// `Io`.
pub fn mended(file: &dyn DiskFile) -> Result<Vec<[u8; LEN]>> {
    let len = file.len()?;
    if len < 2 * PAGE_LEN {
        return Ok(Vec::new());
    }
    let mut header = [0; LEN];
    file.read_at(&mut header, 0)?;
    let (layout, slots) = header.split_at(LAYOUT_LEN);
    let (first, second) = slots.split_at(SLOT_LEN);
    let flags = layout.get(MAGIC.len()).copied().unwrap_or(0);
    let number = |slot: &[u8]| {
        let bytes = slot.get(COMMIT_AT..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let is_second_newer = match layout.starts_with(MAGIC) {
        true => flags & IS_SECOND != 0,
        false => number(second) > number(first),
    };
    let slots = match is_second_newer {
        true => [second, first],
        false => [first, second],
    };
    let pages = len / PAGE_LEN - 1;
    Ok(slots.map(|slot| with_slot(slot, pages)).to_vec())
}

/// A header of a file with this many pages behind that of the header.
fn with_slot(slot: &[u8], pages: u64) -> [u8; LEN] {
    let mut layout = Vec::with_capacity(LEN);
    layout.extend_from_slice(MAGIC);
    layout.extend_from_slice(&[IS_OPEN | IN_ONE_STEP, 0, 0]);
    for number in [
        PAGE_LEN,
        0,
        REGION_PAGES,
        pages / REGION_PAGES,
        pages % REGION_PAGES,
    ] {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        layout.extend_from_slice(&number.to_le_bytes());
    }
    layout.resize(LAYOUT_LEN, 0);
    layout.extend_from_slice(slot);
    layout.extend_from_slice(slot);
    layout.first_chunk().copied().unwrap_or([0; LEN])
}
