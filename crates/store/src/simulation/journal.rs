//! The journal against the tables, and the tables made again from it.

use super::{Operation, Outcome, Random, StoreRun, seeds};
use crate::disk::LocalFiles;
use crate::engine::{Engine, Table};
use crate::faults::Bug;
use crate::journal::JournalRows;
use crate::{SalvageOptions, Store, StoreWriter};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// All rows of the tables.
pub(super) type TableRows = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

fn rows_of(engine: &dyn Engine) -> TableRows {
    let mut rows = TableRows::new();
    for table in Table::ALL {
        let mut visit = |key: &[u8], value: &[u8]| {
            rows.insert((table, key.to_vec()), value.to_vec());
            Ok(ControlFlow::Continue(()))
        };
        engine.scan(table, &[], &mut visit).expect("rows");
    }
    rows
}

/// Compares the rows that the journal has with those of the tables. `must_be_whole` says that
/// nothing has kept the journal from being written.
pub(super) fn compare(writer: &StoreWriter, must_be_whole: bool) -> Outcome {
    if !writer.journal().is_whole() {
        let gone = "the journal was given up".to_owned();
        return if must_be_whole { Err(gone) } else { Ok(()) };
    }
    let rows = JournalRows::read(writer.store()).map_err(|e| format!("journal: {e}"))?;
    let rows = rows.ok_or("no journal")?;
    if let Some(damage) = &rows.damage {
        return Err(format!("journal: {damage}"));
    }
    if rows.commit != writer.commit_no() || *rows.rows() != rows_of(writer.tables()) {
        let of = writer.commit_no();
        return Err(format!("rows of commit {} for those of {of}", rows.commit));
    }
    Ok(())
}

/// Images, with power cuts only, so that the journal has every commit. Then the tables are damaged
/// in one way, and salvaged: all rows that matter are there again.
fn damage_and_salvage(seed: u64, bug: Option<Bug>) -> Outcome {
    let mut run = StoreRun::begin(seed, bug);
    let mut random = Random::new(seed ^ 0x6a6f);
    let (mut older, mut was_whole) = (None, false);
    for _ in 0..3 + random.below(8) {
        let operation = run.choose();
        let mut writer = Some(run.open().map_err(|e| format!("open: {e}"))?);
        if let Some(writer) = &writer {
            compare(writer, was_whole)?;
            was_whole |= writer.journal().is_whole();
        }
        if random.is_one_in(3) {
            let fault = crate::simulated_disk::Fault::PowerCut;
            run.disk.fail_after(random.below(80), fault);
        }
        let done = run.perform(&mut writer, &operation);
        run.disk.cancel_fault();
        let is_whole = writer.as_ref().is_some_and(|w| w.journal().is_whole());
        was_whole |= is_whole && !run.disk.is_off();
        if done.is_err() || random.is_one_in(4) || run.disk.is_off() {
            writer = None;
            run.disk = run.disk.reboot();
        }
        drop(writer);
        let operation = if done.is_ok() {
            StoreRun::apply(&mut run.model, &operation);
            Operation::Reopen
        } else {
            operation
        };
        compare(&run.reopen_and_compare(&operation)?, was_whole)?;
        if random.is_one_in(4) {
            older = Some(run.disk.contents()["meta"].clone());
        }
    }
    let mut writer = run.open().map_err(|e| format!("open: {e}"))?;
    // One change at least, so that there is a journal.
    let kept = super::random_image(&mut run.random, &mut run.pool);
    writer
        .import("kept", &kept)
        .map_err(|e| format!("import: {e}"))?;
    run.model.insert("kept".to_owned(), kept);
    let is_open = random.is_one_in(2);
    let before = rows_of(writer.tables());
    let meta = run.disk.contents()["meta"].clone();
    if is_open {
        // A cut while the writer is open: the journal has to do without its end.
        run.disk = run.disk.reboot();
    }
    drop(writer);
    let kind = random.below(4);
    match (kind, older) {
        (0, _) => run
            .disk
            .remove("meta")
            .map_err(|e| format!("remove: {e}"))?,
        (1, Some(older)) => run.disk.put_back("meta", &older),
        (2, _) => run
            .disk
            .put_back("meta", &meta[..random.below(meta.len() as u64) as usize]),
        _ => {
            let mut meta = run.disk.contents()["meta"].clone();
            let at = random.below(meta.len() as u64 - 16) as usize;
            for byte in &mut meta[at..at + 16] {
                *byte = random.next() as u8;
            }
            run.disk.put_back("meta", &meta);
        }
    }
    let store = Store::open(Arc::new(run.disk.clone())).map_err(|e| format!("store: {e}"))?;
    let salvaged = store.salvage(&SalvageOptions::default());
    let salvaged = salvaged.map_err(|e| format!("salvage: {e}"))?;
    if salvaged.damaged_count() > 0 {
        return Err(format!("{salvaged:?}"));
    }
    let writer = run.reopen_and_compare(&Operation::Reopen)?;
    compare(&writer, true)?;
    let after = rows_of(writer.tables());
    let of = |rows: &TableRows, table: Table| {
        let mut rows = rows.clone();
        rows.retain(|(of, _), _| *of == table);
        rows
    };
    // A salvage drops blocks without references.
    let is_used = |row: &Vec<u8>| {
        weald_format::store::BlockRow::parse(row).is_ok_and(|row| row.references > 0)
    };
    let mut blocks = of(&before, Table::Blocks);
    blocks.retain(|_, row| is_used(row));
    if blocks != of(&after, Table::Blocks) {
        return Err(format!("kind {kind}: other blocks"));
    }
    if of(&before, Table::Images)
        .keys()
        .ne(of(&after, Table::Images).keys())
    {
        return Err(format!("kind {kind}: other images"));
    }
    Ok(())
}

// Would catch a journal that lacks a row or a commit, is older than the tables after a crash, or
// that a salvage does not use.
#[test]
fn damaged_tables_come_back_from_the_journal() {
    for seed in seeds(0..400) {
        damage_and_salvage(seed, None).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    for bug in [
        Bug::JournalLacksCommit,
        Bug::JournalUnsynced,
        Bug::CheckpointLacksRow,
    ] {
        let found = (0..3000).find(|&seed| damage_and_salvage(seed, Some(bug)).is_err());
        let seed = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: found by seed {seed}");
    }
}

/// Damages the tables of a store, and reads all rows of an open writer. Returns whether damaged
/// rows were made again.
fn damage_and_read(seed: u64) -> Result<bool, String> {
    let mut run = StoreRun::begin(seed, None);
    let mut random = Random::new(seed ^ 0x7265);
    let mut writer = run.open().map_err(|e| format!("open: {e}"))?;
    for no in 0..4 {
        let image = super::random_image(&mut run.random, &mut run.pool);
        let name = format!("image{no}");
        writer
            .import(&name, &image)
            .map_err(|e| format!("import: {e}"))?;
        run.model.insert(name, image);
    }
    // Rows of volumes, so that tables have several groups.
    let mut batch = crate::engine::Batch::default();
    for no in 0..900u64 {
        let key = [&[0, 0, 0, 1][..], &no.to_be_bytes()].concat();
        let value = (0..20).map(|_| run.random.next() as u8).collect();
        batch.put(Table::Xattrs, &key, value);
    }
    writer.commit(batch).map_err(|e| format!("commit: {e}"))?;
    let before = rows_of(writer.tables());
    drop(writer);
    let mut meta = run.disk.contents()["meta"].clone();
    let at = random.below(meta.len() as u64 - 16) as usize;
    for byte in &mut meta[at..at + 16] {
        *byte ^= random.below(255) as u8 + 1;
    }
    run.disk.put_back("meta", &meta);
    let store = Store::open(Arc::new(run.disk.clone())).map_err(|e| format!("store: {e}"))?;
    let checked = store.write_for_check("a check");
    let is_damaged = checked.is_ok_and(|writer| StoreRun::check(&writer).is_err());
    // A salvage is for damage that keeps the store from being opened.
    let Ok(writer) = run.open() else {
        return Ok(false);
    };
    for table in Table::ALL {
        let mut rows = TableRows::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            rows.insert((table, key.to_vec()), value.to_vec());
            Ok(ControlFlow::Continue(()))
        };
        if writer.tables().scan(table, &[], &mut visit).is_err() {
            return Ok(false);
        }
        let mut wanted = before.clone();
        wanted.retain(|(of, _), _| *of == table);
        // These have no checksums: the sum of all rows tells.
        if rows == wanted {
            continue;
        }
        return match table {
            // These have no checksums: a check adds all rows up.
            Table::Counters | Table::Segments | Table::Images => Ok(false),
            _ => Err(format!("byte {at}: other rows of {table:?}")),
        };
    }
    if is_damaged {
        // The sum may be what is damaged: then the journal is made again.
        compare(&writer, false).map_err(|e| format!("byte {at}: {e}"))?;
    }
    // Unused bytes of a page have its checksum, too, and no reader meets them.
    Ok(is_damaged && StoreRun::check(&writer).is_ok())
}

// Would catch: a damaged group that a writer does not make again, that gets other rows, or that
// leaves rows of its neighbours out.
#[test]
fn damaged_groups_are_made_again_while_the_store_is_open() {
    let mut repaired_count = 0;
    for seed in seeds(0..600) {
        let repaired = damage_and_read(seed);
        let repaired = repaired.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        repaired_count += usize::from(repaired);
    }
    println!("rows were made again after {repaired_count} damages");
    assert!(repaired_count > 50, "{repaired_count}");
}
