//! The header of the engine's file, which redb writes and which has one copy.
//!
//! It has 64 bytes that say how the file is laid out, and two slots of 128 bytes with the last two
//! commits. redb gives up if any of them makes no sense, though one slot leads to all the rest.

use super::slot_checksum::{self, checksum};
use crate::disk::LocalFile;
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
/// each slot, one that has only this slot. redb verifies the checksum of the slot. Damage between
/// the slots can hit the checksum of the first and the beginning of the second, so that the last
/// headers have checksums that are made anew.
///
/// # Errors
/// `Io`.
pub fn mended(file: &dyn LocalFile) -> Result<Vec<[u8; LEN]>> {
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
    let is_second_newer = if layout.starts_with(MAGIC) {
        flags & IS_SECOND != 0
    } else {
        number(second) > number(first)
    };
    let slots = if is_second_newer {
        [second, first]
    } else {
        [first, second]
    };
    let pages = len / PAGE_LEN - 1;
    let sealed = slots.map(sealed);
    let headers = slots.into_iter().chain(sealed.iter().map(Vec::as_slice));
    Ok(headers.map(|slot| with_slot(slot, pages)).collect())
}

/// A slot with the checksum that its other bytes have.
fn sealed(slot: &[u8]) -> Vec<u8> {
    match slot.first_chunk::<{ slot_checksum::LEN }>() {
        Some(bytes) => [&bytes[..], &checksum(bytes)].concat(),
        None => slot.to_vec(),
    }
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

#[cfg(test)]
mod tests {
    use super::super::tests::open;
    use super::*;
    use crate::disk::{Access, LocalFiles};
    use crate::engine::redb::readable::ReadableTables;
    use crate::engine::{Batch, Engine, Table};
    use crate::simulated_disk::SimDisk;
    use std::sync::Arc;

    // Would catch: 16 bytes of the header whose damage leaves no way to the tables, and a checksum
    // that is not the one of redb.
    #[test]
    fn sixteen_bytes_of_the_header_lose_no_table() {
        let disk = SimDisk::new(1);
        drop(disk.open("meta", Access::Create).expect("create"));
        let engine = open(&disk).expect("open");
        for value in [1, 2, 3] {
            let mut batch = Batch::default();
            batch.put(Table::Images, b"name", vec![value; 9]);
            engine.commit(&batch).expect("commit");
        }
        drop(engine);
        let file = disk.open("meta", Access::Write).expect("meta");
        let mut header = [0; LEN];
        file.read_at(&mut header, 0).expect("read");
        for slot in header[LAYOUT_LEN..].chunks(SLOT_LEN) {
            assert_eq!(sealed(slot), slot, "the checksum of a slot");
        }
        let whole = &disk.contents()["meta"];
        for at in 0..LEN - 16 {
            let disk = SimDisk::new(2);
            let file = disk.open("meta", Access::Create).expect("create");
            file.write_at(whole, 0).expect("write");
            let torn: Vec<u8> = whole[at..at + 16].iter().map(|byte| !byte).collect();
            file.write_at(&torn, at as u64).expect("damage");
            let tables = ReadableTables::open(Arc::from(file), "meta".to_owned(), 1 << 20);
            let tables = tables.unwrap_or_else(|error| panic!("byte {at}: {error}"));
            let mut rows = std::collections::BTreeMap::new();
            let whole = (&[][..], None);
            let from = crate::engine::redb::From::Start;
            assert!(
                tables.read_stored((Table::Images, from), whole, &mut rows),
                "byte {at}"
            );
            assert_eq!(rows.len(), 1, "byte {at}");
        }
    }
}
