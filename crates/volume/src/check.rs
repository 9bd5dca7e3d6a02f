//! Recounts everything that the rows of a volume contain, and checks whole stores.
//!
//! `scan` reads rows past damage, `paths` names the files of findings, `rows` compares the rows of
//! a volume with each other and with the blocks of the store, `store` checks all images and volumes
//! of a store.

mod paths;
mod report;
mod rows;
mod scan;
mod store;

pub use report::{CheckOptions, Finding, Report};
pub use store::{StoreReport, check_store};

use crate::garbage::uses_of;
use rows::Rows;
use scan::VisitRow;
use std::ops::ControlFlow;
use weald_format::volume::{VolumeRow, counted_xattr_len, split_key};
use weald_format::{ErrorKind, Result, VolumeNo};
use weald_store::engine::{Engine, Table};
use weald_store::{BlockReader, Store, StoreWriter};

/// Bytes that a volume uses.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub logical_len: u64,
    pub unique_len: u64,
    pub unshared_len: u64,
    pub stored_len: u64,
    pub dead_len: u64,
    pub attribute_len: u64,
}

fn each_row_of(
    engine: &dyn Engine,
    table: Table,
    volume_no: VolumeNo,
    visit: &mut VisitRow<'_>,
) -> Result<()> {
    let start = volume_no.to_be_bytes();
    engine.scan(table, &start, &mut |key, value| {
        if split_key(key)?.0 != volume_no {
            return Ok(ControlFlow::Break(()));
        }
        visit(key, value)?;
        Ok(ControlFlow::Continue(()))
    })
}

/// Adds up what the extents of a volume refer to, beside its commits: a block that a commit removes
/// meanwhile does not count.
pub(crate) fn usage(reader: &BlockReader, volume_no: VolumeNo) -> Result<Usage> {
    let mut usage = Usage::default();
    let engine = reader.engine();
    let uses = uses_of(engine, volume_no, &mut |piece| {
        usage.logical_len += u64::from(piece.len);
    })?;
    let mut unused_len = 0;
    for block in uses.values() {
        usage.unique_len += block.used_len();
        usage.stored_len += block.stored_len;
        unused_len += block.unused_stored_len();
        if block.is_own() && block.len == block.used_len() {
            usage.unshared_len += block.len;
        }
    }
    each_row_of(engine, Table::Xattrs, volume_no, &mut |key, value| {
        let (_, _, name) = split_key(key)?;
        usage.attribute_len += counted_xattr_len(name, value);
        Ok(())
    })?;
    usage.dead_len = reader.dead_len()?.saturating_add(unused_len);
    Ok(usage)
}

/// Compares the rows of the volume `name` with each other and with the blocks that its files lie
/// in, and verifies its sync log. Damage elsewhere in the store does not count. Changes nothing: of
/// changes that a crash left in the sync log, it verifies the records only. Rows that cannot be
/// read are findings, and the check goes on.
///
/// # Errors
/// `NotFound`; `Busy` while the store is being written; `Io`; `Corrupt` if the tables cannot be
/// opened.
///
/// # Cost
/// About 250 bytes of memory per inode and 30 per block of the volume.
pub fn check(store: &Store, name: &str, options: &CheckOptions) -> Result<Report> {
    let writer_name = format!("process {}", std::process::id());
    let writer = store.write_for_check(writer_name)?;
    let mut report = Report::default();
    let volume = match writer.volume_row(name) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            let what = format!("its own row cannot be read: {}", error.what());
            report.findings.push(Finding::new(what));
            return Ok(report);
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // A reader sees the name.
            if !store.volume_names()?.iter().any(|shown| shown == name) {
                return Err(error);
            }
            report.findings.push(Finding::new("it has no row"));
            return Ok(report);
        }
        other => other?,
    };
    check_log(&writer, &volume, &mut report)?;
    let mut rows = Rows::read(&writer, volume, &mut report)?;
    let states = writer.check_blocks(&rows.blocks(&writer)?, options.reads_data)?;
    report.verified_len = states.verified_len;
    // A reader looks rows up, and pages that lead to them may be damaged.
    if writer.check_pages()?.is_some() {
        rows.look_up(&writer)?;
    }
    rows.check(&writer, &states, &mut report)?;
    Ok(report)
}

/// Verifies the sync log of a volume.
fn check_log(writer: &StoreWriter, row: &VolumeRow, report: &mut Report) -> Result<()> {
    match writer.check_sync_log(row) {
        Ok(log) => {
            report.log_record_count = log.record_count;
            report.findings.extend(log.findings().map(Finding::new));
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            report.findings.push(Finding::new(error.to_string()));
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
