//! Recounts everything that the rows of a volume contain.

use crate::garbage::uses_of;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use weald_format::volume::{
    ExtentsRow, InodeRow, NameRow, QuotaRow, VolumeRow, counted_xattr_len, split_key,
    split_pair_key,
};
use weald_format::{ErrorKind, FileKind, Result};
use weald_store::engine::{Engine, Table};
use weald_store::{BlockReader, Store, StoreWriter, WriteOptions};

/// Options of a check.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckOptions {
    /// Read every block and verify its digest.
    pub reads_data: bool,
}

/// Results of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of inodes.
    pub inode_count: u64,
    /// Number of names.
    pub name_count: u64,
    /// Bytes of files that are no hole.
    pub logical_len: u64,
    /// Bytes of blocks that were read and verified.
    pub verified_len: u64,
    /// Number of records of the store's sync logs that wait for a commit.
    pub log_record_count: u64,
    /// Defects.
    pub findings: Vec<String>,
}

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

/// Receives key and value of a row.
type VisitRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

fn each_row(
    writer: &StoreWriter,
    table: Table,
    snapshot: u32,
    visit: &mut VisitRow<'_>,
) -> Result<()> {
    each_row_of(&*writer.engine(), table, snapshot, visit)
}

fn each_row_of(
    engine: &dyn Engine,
    table: Table,
    snapshot: u32,
    visit: &mut VisitRow<'_>,
) -> Result<()> {
    let start = snapshot.to_be_bytes();
    engine.scan(table, &start, &mut |key, value| {
        if split_key(key)?.0 != snapshot {
            return Ok(ControlFlow::Break(()));
        }
        visit(key, value)?;
        Ok(ControlFlow::Continue(()))
    })
}

/// Adds up what the extents of a volume refer to, beside its commits: a block that a commit removes
/// meanwhile does not count.
pub(crate) fn usage(reader: &BlockReader, snapshot: u32) -> Result<Usage> {
    let mut usage = Usage::default();
    let engine = reader.engine();
    let uses = uses_of(engine, snapshot, &mut |piece| {
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
    each_row_of(engine, Table::Xattrs, snapshot, &mut |key, value| {
        let (_, _, name) = split_key(key)?;
        usage.attribute_len += counted_xattr_len(name, value);
        Ok(())
    })?;
    usage.dead_len = reader.dead_len()?.saturating_add(unused_len);
    Ok(usage)
}

/// Compares the rows of the volume `name` with each other, and the blocks of the whole store with
/// all images and volumes. Changes nothing: of changes that a crash left in the sync log, it
/// verifies the records only. A table that cannot be read to its end is a finding, and what it
/// would be compared with is left out.
///
/// # Errors
/// `NotFound`; `Busy` while the store is being written; `Io`, `Corrupt` if the tables cannot be
/// opened, or do not have the volume.
pub fn check(store: &Store, name: &str, options: &CheckOptions) -> Result<Report> {
    let writer_name = format!("process {}", std::process::id());
    let writer = store.for_reading().write(WriteOptions::new(writer_name))?;
    let volume = writer.volume_row(name)?;
    let mut report = Report::default();
    let checked = writer.check(options.reads_data, &mut |_| {});
    if let Some(checked) = found(checked, &mut report)? {
        report.verified_len = checked.verified_len;
        report.log_record_count = checked.log_record_count;
        for finding in checked.findings {
            let of = finding.image.map_or(String::new(), |of| format!("{of}: "));
            report.findings.push(format!("{of}{}", finding.what));
        }
    }
    let mut inodes: BTreeMap<u64, InodeRow> = BTreeMap::new();
    let read = each_row(
        &writer,
        Table::Inodes,
        volume.snapshot,
        &mut |key, value| {
            inodes.insert(split_key(key)?.1, InodeRow::parse(value)?);
            Ok(())
        },
    );
    report.inode_count = inodes.len() as u64;
    if found(read, &mut report)?.is_none() {
        return Ok(report);
    }
    if let Some((last, _)) = inodes.last_key_value()
        && *last >= volume.next_ino
    {
        let what = format!(
            "inode {last}: the next new one would be {}",
            volume.next_ino
        );
        report.findings.push(what);
    }
    let orphans = check_names(&writer, volume.snapshot, &inodes, &mut report);
    let orphans = found(orphans, &mut report)?;
    let quotas = check_quotas(&writer, &volume, &inodes, &mut report);
    found(quotas, &mut report)?;
    let contents = check_contents(
        &writer,
        (volume.snapshot, volume.chunk_len),
        &inodes,
        orphans.as_ref(),
        &mut report,
    );
    found(contents, &mut report)?;
    Ok(report)
}

/// Adds damage that ended a part of the check to the findings.
fn found<T>(part: Result<T>, report: &mut Report) -> Result<Option<T>> {
    match part {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            report.findings.push(error.to_string());
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// Compares names with inodes. Returns the orphans.
fn check_names(
    writer: &StoreWriter,
    snapshot: u32,
    inodes: &BTreeMap<u64, InodeRow>,
    report: &mut Report,
) -> Result<BTreeSet<u64>> {
    let mut links: BTreeMap<u64, u32> = BTreeMap::new();
    each_row(writer, Table::Names, snapshot, &mut |key, value| {
        let (_, dir, _) = split_pair_key(key)?;
        let row = NameRow::parse(value)?;
        report.name_count += 1;
        let shown = String::from_utf8_lossy(&row.name).into_owned();
        if inodes
            .get(&dir)
            .is_none_or(|dir| dir.kind != FileKind::Directory)
        {
            report
                .findings
                .push(format!("name {shown:?}: inode {dir} is no directory"));
        }
        match inodes.get(&row.ino) {
            None => report
                .findings
                .push(format!("name {shown:?}: inode {} does not exist", row.ino)),
            Some(inode) if inode.kind != row.kind => report.findings.push(format!(
                "name {shown:?}: inode {} has another kind",
                row.ino
            )),
            Some(inode) if inode.kind == FileKind::Directory && inode.parent != dir => {
                let what = format!("inode {}: its parent is not {dir}", row.ino);
                report.findings.push(what);
            }
            Some(_) => {}
        }
        *links.entry(row.ino).or_default() += 1;
        if row.kind == FileKind::Directory {
            // A directory counts itself, and its parent counts it.
            *links.entry(row.ino).or_default() += 1;
            *links.entry(dir).or_default() += 1;
        }
        Ok(())
    })?;
    *links.entry(1).or_default() += 2;
    let mut orphans = BTreeSet::new();
    each_row(writer, Table::Orphans, snapshot, &mut |key, _| {
        orphans.insert(split_key(key)?.1);
        Ok(())
    })?;
    for (ino, inode) in inodes {
        let counted = links.get(ino).copied().unwrap_or(0);
        if inode.nlink != counted {
            let what = format!("inode {ino}: {} links, {counted} were counted", inode.nlink);
            report.findings.push(what);
        }
        if (inode.nlink == 0) != orphans.contains(ino) {
            let what = format!(
                "inode {ino}: {} links, and the orphans disagree",
                inode.nlink
            );
            report.findings.push(what);
        }
    }
    Ok(orphans)
}

/// Recounts the accounts of quotas.
fn check_quotas(
    writer: &StoreWriter,
    volume: &VolumeRow,
    inodes: &BTreeMap<u64, InodeRow>,
    report: &mut Report,
) -> Result<()> {
    let mut quotas: BTreeMap<u64, QuotaRow> = BTreeMap::new();
    each_row(writer, Table::Quotas, volume.snapshot, &mut |key, value| {
        quotas.insert(split_key(key)?.1, QuotaRow::parse(value)?);
        Ok(())
    })?;
    // Bytes of attributes and targets, which older versions did not count.
    let mut attributes: BTreeMap<u64, u64> = BTreeMap::new();
    if volume.counts_attributes && !quotas.is_empty() {
        let targets = inodes
            .iter()
            .map(|(ino, row)| (*ino, row.target.len() as u64));
        attributes.extend(targets.filter(|(_, len)| *len > 0));
        each_row(writer, Table::Xattrs, volume.snapshot, &mut |key, value| {
            let (_, ino, name) = split_key(key)?;
            let len = attributes.entry(ino).or_default();
            *len = len.saturating_add(counted_xattr_len(name, value));
            Ok(())
        })?;
    }
    let mut counted: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (ino, inode) in inodes {
        if inode.quota != 0 && !quotas.contains_key(&inode.quota) {
            let what = format!("inode {ino}: directory {} has no quota", inode.quota);
            report.findings.push(what);
        }
        let (mut at, mut depth) = (inode.quota, 0);
        while let Some(row) = quotas.get(&at).filter(|_| depth <= quotas.len()) {
            let account = counted.entry(at).or_default();
            let attributes = attributes.get(ino).copied().unwrap_or(0);
            account.0 = account.0.saturating_add(inode.allocated);
            account.0 = account.0.saturating_add(attributes);
            account.1 += 1;
            (at, depth) = (row.parent, depth + 1);
        }
    }
    for (dir, row) in &quotas {
        let (len, count) = counted.get(dir).copied().unwrap_or_default();
        if (row.len, row.count) != (len, count) {
            report.findings.push(format!(
                "quota of directory {dir}: {} bytes in {} inodes, {len} in {count} were counted",
                row.len, row.count
            ));
        }
    }
    Ok(())
}

/// Compares extents and attributes with inodes.
fn check_contents(
    writer: &StoreWriter,
    (snapshot, chunk_len): (u32, u32),
    inodes: &BTreeMap<u64, InodeRow>,
    orphans: Option<&BTreeSet<u64>>,
    report: &mut Report,
) -> Result<()> {
    let mut allocated: BTreeMap<u64, u64> = BTreeMap::new();
    each_row(writer, Table::Extents, snapshot, &mut |key, value| {
        let (_, ino, window) = split_pair_key(key)?;
        let row = ExtentsRow::parse(value, chunk_len)?;
        let len: u64 = row.0.iter().map(|piece| u64::from(piece.len)).sum();
        *allocated.entry(ino).or_default() += len;
        let last = row.0.last().map_or(0, |piece| piece.end());
        let end = window.saturating_mul(chunk_len.into()) + u64::from(last);
        if inodes.get(&ino).is_some_and(|inode| end > inode.size) {
            report
                .findings
                .push(format!("inode {ino}: content behind its end"));
        }
        Ok(())
    })?;
    let mut xattrs: BTreeMap<u64, u32> = BTreeMap::new();
    each_row(writer, Table::Xattrs, snapshot, &mut |key, _| {
        *xattrs.entry(split_key(key)?.1).or_default() += 1;
        Ok(())
    })?;
    let owners: BTreeSet<u64> = allocated.keys().chain(xattrs.keys()).copied().collect();
    let is_orphan = |ino: &u64| orphans.is_none_or(|orphans| orphans.contains(ino));
    for ino in owners.iter().filter(|ino| !is_orphan(ino)) {
        if !inodes.contains_key(ino) {
            let what = format!("inode {ino}: it has content or attributes, but no row");
            report.findings.push(what);
        }
    }
    for (ino, inode) in inodes {
        let counted = allocated.get(ino).copied().unwrap_or(0);
        report.logical_len += counted;
        if inode.allocated != counted {
            let what = format!(
                "inode {ino}: {} allocated bytes, {counted} were counted",
                inode.allocated
            );
            report.findings.push(what);
        }
        let counted = xattrs.get(ino).copied().unwrap_or(0);
        if inode.xattr_count != counted {
            let what = format!(
                "inode {ino}: {} attributes, {counted} were counted",
                inode.xattr_count
            );
            report.findings.push(what);
        }
    }
    Ok(())
}
