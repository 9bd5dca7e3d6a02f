//! Compares the rows of a volume with each other and with the blocks of its files.

use super::paths::{PathlessFinding, Subject, named};
use super::report::Report;
use super::scan::{VisitRow, each_row};
use crate::quotas::{Account, Accounts};
use std::collections::{BTreeMap, BTreeSet};
use weald_format::volume::{
    ExtentsRow, InodeRow, NamePlace, NameRow, QuotaRow, VolumeRow, WindowPlace, counted_xattr_len,
    first_cookie, fold_case, is_entry_name, split_key,
};
use weald_format::{BlockId, ErrorKind, FileKind, Ino, Result};
use weald_store::engine::Table;
use weald_store::{BlockStates, StoreWriter};

/// Most damaged ranges of a file that are told one by one.
const RANGES_MAX: usize = 8;

/// The rows of a volume: its inodes in memory, the others as they are needed.
pub struct Rows {
    volume: VolumeRow,
    inodes: BTreeMap<Ino, InodeRow>,
    found: Vec<PathlessFinding>,
}

/// Damaged ranges of a file.
#[derive(Default)]
struct Damaged {
    ranges: Vec<(u64, u64, String)>,
    more_len: u64,
}

impl Damaged {
    fn add(&mut self, start: u64, end: u64, why: String) {
        let count = self.ranges.len();
        match self.ranges.last_mut() {
            Some((_, last, known)) if *last == start && *known == why => *last = end,
            _ if count < RANGES_MAX => self.ranges.push((start, end, why)),
            _ => self.more_len += end - start,
        }
    }

    fn texts(self) -> impl Iterator<Item = String> {
        let more = (self.more_len > 0).then(|| format!("{} more bytes", self.more_len));
        let ranges = self.ranges.into_iter();
        ranges
            .map(|(start, end, why)| format!("bytes {start} to {end} cannot be read: {why}"))
            .chain(more.map(|more| format!("{more} cannot be read")))
    }
}

impl Rows {
    /// Reads the inodes.
    ///
    /// # Errors
    /// `Io`.
    pub fn read(writer: &StoreWriter, volume: VolumeRow, report: &mut Report) -> Result<Self> {
        let mut rows = Self {
            volume,
            inodes: BTreeMap::new(),
            found: Vec::new(),
        };
        let mut inodes = BTreeMap::new();
        rows.each(writer, Table::Inodes, &mut |key, value| {
            inodes.insert(split_key(key)?.1, InodeRow::parse(value)?);
            Ok(())
        })?;
        rows.inodes = inodes;
        report.inode_count = rows.inodes.len() as u64;
        Ok(rows)
    }

    /// Visits the rows of a table; those that cannot be read are findings.
    fn each(&mut self, writer: &StoreWriter, table: Table, visit: &mut VisitRow<'_>) -> Result<()> {
        let wrong = each_row(&*writer.engine(), (table, self.volume.volume_no), visit)?;
        let found = wrong.into_iter().map(|what| (Subject::Nothing, what));
        self.found.extend(found);
        Ok(())
    }

    fn found(&mut self, ino: Ino, what: String) {
        self.found.push((Subject::Inode(ino), what));
    }

    /// The blocks that files lie in.
    ///
    /// # Errors
    /// `Io`.
    pub fn blocks(&self, writer: &StoreWriter) -> Result<BTreeSet<BlockId>> {
        let mut blocks = BTreeSet::new();
        let of = (Table::Extents, self.volume.volume_no);
        each_row(&*writer.engine(), of, &mut |_, value| {
            let pieces = ExtentsRow::parse(value, self.volume.chunk_len)?.0;
            blocks.extend(pieces.iter().map(|piece| piece.block));
            Ok(())
        })?;
        Ok(blocks)
    }

    /// Finds the rows that a scan finds and a look-up does not.
    ///
    /// # Errors
    /// `Io`.
    pub fn look_up(&mut self, writer: &StoreWriter) -> Result<()> {
        let engine = writer.engine();
        for table in Table::OF_VOLUMES {
            let mut missing: Vec<Ino> = Vec::new();
            each_row(
                &*engine,
                (table, self.volume.volume_no),
                &mut |key, value| {
                    let is_found = match engine.get(table, key) {
                        Err(error) if error.kind() == ErrorKind::Corrupt => false,
                        found => found?.as_deref() == Some(value),
                    };
                    if !is_found {
                        missing.push(split_key(key)?.1);
                    }
                    Ok(())
                },
            )?;
            if let Some(first) = missing.first() {
                let what = format!(
                    "table {}: {} rows are not found where a reader looks for them, the first is \
                     one of inode {first}",
                    table.name(),
                    missing.len()
                );
                self.found.push((Subject::Nothing, what));
            }
        }
        Ok(())
    }

    /// Compares all rows. `states` knows the blocks.
    ///
    /// # Errors
    /// `Io`.
    pub fn check(
        mut self,
        writer: &StoreWriter,
        states: &BlockStates,
        report: &mut Report,
    ) -> Result<()> {
        if let Some(last) = self.inodes.keys().next_back().copied()
            && last >= self.volume.next_ino
        {
            let what = format!("the next new inode would be {}", self.volume.next_ino);
            self.found(last, what);
        }
        let quotas = self.read_quotas(writer)?;
        let links = self.check_names(writer, &quotas, report)?;
        let orphans = self.check_links(writer, &links)?;
        self.check_reach();
        self.check_quotas(writer, &quotas)?;
        self.check_contents(writer, states, report)?;
        self.check_xattrs(writer, &orphans)?;
        let found = std::mem::take(&mut self.found);
        let findings = named(writer, &self.volume, &self.inodes, found)?;
        report.findings.extend(findings);
        Ok(())
    }

    /// Compares names with inodes. Returns the number of links of each inode.
    fn check_names(
        &mut self,
        writer: &StoreWriter,
        quotas: &BTreeMap<Ino, QuotaRow>,
        report: &mut Report,
    ) -> Result<BTreeMap<Ino, u32>> {
        let mut links: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut found = Vec::new();
        let volume = self.volume.clone();
        let inodes = std::mem::take(&mut self.inodes);
        // Names with one hash follow each other.
        let mut before: Vec<(Ino, u64, Vec<u8>)> = Vec::new();
        self.each(writer, Table::Names, &mut |key, value| {
            let (_, NamePlace { dir, cookie }) = NamePlace::split_key(key)?;
            let row = NameRow::parse(value)?;
            report.name_count += 1;
            let folded = fold_case(&row.name, volume.is_case_insensitive).into_owned();
            let hash = cookie.hash();
            before.retain(|(of, at, _)| (*of, *at) == (dir, hash));
            let is_twin = before.iter().any(|(_, _, name)| *name == folded);
            before.push((dir, hash, folded));
            let mut wrong = Vec::new();
            if !is_entry_name(&row.name) {
                wrong.push("no directory can have this name".to_owned());
            }
            let first = first_cookie(&volume.secret, &row.name, volume.is_case_insensitive);
            if first.hash() != hash {
                wrong.push("the name lies where no reader looks for it".to_owned());
            }
            if is_twin {
                wrong.push("the directory has this name twice".to_owned());
            }
            wrong.extend(wrong_directory(&inodes, dir));
            match inodes.get(&row.ino) {
                None => wrong.push(format!("inode {} does not exist", row.ino)),
                Some(inode) if inode.kind != row.kind => {
                    wrong.push(format!("inode {} has another kind", row.ino));
                }
                Some(inode) => {
                    if inode.kind == FileKind::Directory && inode.parent != dir {
                        wrong.push(format!("inode {}: its parent is not {dir}", row.ino));
                    }
                    let quota = if quotas.contains_key(&dir) {
                        dir
                    } else {
                        inodes.get(&dir).map_or(inode.quota, |dir| dir.quota)
                    };
                    if inode.quota != quota {
                        wrong.push(format!(
                            "counts for the quota of {}, not of {quota}",
                            inode.quota
                        ));
                    }
                }
            }
            found.extend(wrong.into_iter().map(|what| {
                let entry = Subject::Entry(dir, row.name.clone(), row.ino);
                (entry, what)
            }));
            *links.entry(row.ino).or_default() += 1;
            if row.kind == FileKind::Directory {
                // A directory counts itself, and its parent counts it.
                *links.entry(row.ino).or_default() += 1;
                *links.entry(dir).or_default() += 1;
            }
            Ok(())
        })?;
        self.inodes = inodes;
        self.found.extend(found);
        *links.entry(volume.root).or_default() += 2;
        Ok(links)
    }

    /// Compares the numbers of links. Returns the orphans.
    fn check_links(
        &mut self,
        writer: &StoreWriter,
        links: &BTreeMap<Ino, u32>,
    ) -> Result<BTreeSet<Ino>> {
        let mut orphans = BTreeSet::new();
        self.each(writer, Table::Orphans, &mut |key, _| {
            orphans.insert(split_key(key)?.1);
            Ok(())
        })?;
        let mut found = Vec::new();
        for (ino, inode) in &self.inodes {
            let counted = links.get(ino).copied().unwrap_or(0);
            if inode.nlink != counted {
                let what = format!("{} links, {counted} were counted", inode.nlink);
                found.push((*ino, what));
            }
            if (inode.nlink == 0) != orphans.contains(ino) {
                let what = format!("{} links, and the orphans disagree", inode.nlink);
                found.push((*ino, what));
            }
        }
        if !self.inodes.contains_key(&self.volume.root) {
            found.push((
                self.volume.root,
                "the root directory does not exist".to_owned(),
            ));
        }
        for (ino, what) in found {
            self.found(ino, what);
        }
        Ok(orphans)
    }

    /// Finds directories from which parents do not lead to the root.
    fn check_reach(&mut self) {
        let mut known: BTreeMap<Ino, bool> = BTreeMap::from([(self.volume.root, true)]);
        let mut lost = Vec::new();
        let dirs = self.inodes.iter();
        let dirs = dirs.filter(|(_, row)| row.kind == FileKind::Directory && row.nlink > 0);
        for (&ino, _) in dirs {
            let (mut at, mut walked) = (ino, Vec::new());
            let is_reached = loop {
                if let Some(known) = known.get(&at) {
                    break *known;
                }
                // Reached again on this walk, it is in a circle.
                known.insert(at, false);
                walked.push(at);
                match self.inodes.get(&at) {
                    Some(row) if row.kind == FileKind::Directory => at = row.parent,
                    _ => break false,
                }
            };
            for at in walked {
                known.insert(at, is_reached);
            }
            if !is_reached {
                lost.push(ino);
            }
        }
        for ino in lost {
            self.found(ino, "its parents do not lead to the root".to_owned());
        }
    }

    fn read_quotas(&mut self, writer: &StoreWriter) -> Result<BTreeMap<Ino, QuotaRow>> {
        let mut quotas = BTreeMap::new();
        self.each(writer, Table::Quotas, &mut |key, value| {
            quotas.insert(split_key(key)?.1, QuotaRow::parse(value)?);
            Ok(())
        })?;
        Ok(quotas)
    }

    /// Recounts the accounts of quotas.
    fn check_quotas(
        &mut self,
        writer: &StoreWriter,
        quotas: &BTreeMap<Ino, QuotaRow>,
    ) -> Result<()> {
        // Bytes of attributes and targets, which older versions did not count.
        let mut attributes: BTreeMap<Ino, u64> = BTreeMap::new();
        if self.volume.counts_attributes && !quotas.is_empty() {
            let targets = self.inodes.iter();
            let targets = targets.map(|(ino, row)| (*ino, row.target.len() as u64));
            attributes.extend(targets.filter(|(_, len)| *len > 0));
            // The check of attributes tells what cannot be read of them.
            let of = (Table::Xattrs, self.volume.volume_no);
            each_row(&*writer.engine(), of, &mut |key, value| {
                let (_, ino, name) = split_key(key)?;
                let len = attributes.entry(ino).or_default();
                *len = len.saturating_add(counted_xattr_len(name, value));
                Ok(())
            })?;
        }
        let mut counted = Accounts::new();
        let mut found = Vec::new();
        for (ino, inode) in &self.inodes {
            if !inode.quota.is_none() && !quotas.contains_key(&inode.quota) {
                let what = format!("directory {} has no quota", inode.quota);
                found.push((*ino, what));
            }
            let of_attributes = attributes.get(ino).copied().unwrap_or(0);
            let len = inode.allocated.saturating_add(of_attributes);
            let account = counted.entry(inode.quota).or_default();
            account.add(Account { len, count: 1 });
        }
        for dir in add_up(quotas, &mut counted) {
            found.push((dir, "its quota is within itself".to_owned()));
        }
        for (dir, row) in quotas {
            let Account { len, count } = counted.get(dir).copied().unwrap_or_default();
            if (row.len, row.count) != (len, count) {
                let what = format!(
                    "quota: {} bytes in {} inodes, {len} in {count} were counted",
                    row.len, row.count
                );
                found.push((*dir, what));
            }
            if self
                .inodes
                .get(dir)
                .is_some_and(|inode| inode.quota != row.parent)
            {
                found.push((
                    *dir,
                    format!("its quota is not within that of {}", row.parent),
                ));
            }
        }
        for (ino, what) in found {
            self.found(ino, what);
        }
        Ok(())
    }

    /// Compares extents with inodes and blocks.
    fn check_contents(
        &mut self,
        writer: &StoreWriter,
        states: &BlockStates,
        report: &mut Report,
    ) -> Result<()> {
        let chunk_len = self.volume.chunk_len;
        let mut allocated: BTreeMap<Ino, (u64, u64)> = BTreeMap::new();
        let mut damaged: BTreeMap<Ino, Damaged> = BTreeMap::new();
        self.each(writer, Table::Extents, &mut |key, value| {
            let (_, WindowPlace { ino, window }) = WindowPlace::split_key(key)?;
            let start = window.start(chunk_len);
            for piece in ExtentsRow::parse(value, chunk_len)?.0 {
                let of = allocated.entry(ino).or_default();
                of.0 += u64::from(piece.len);
                of.1 = start.saturating_add(piece.end().into());
                let end = u64::from(piece.offset) + u64::from(piece.len);
                if let Some(why) = states.why_unreadable(piece.block, end) {
                    let first = start.saturating_add(piece.start.into());
                    damaged.entry(ino).or_default().add(first, of.1, why);
                }
            }
            Ok(())
        })?;
        let mut found = Vec::new();
        for (ino, inode) in &self.inodes {
            let (counted, end) = allocated.remove(ino).unwrap_or_default();
            report.logical_len += counted;
            if inode.allocated != counted {
                let what = format!(
                    "{} allocated bytes, {counted} were counted",
                    inode.allocated
                );
                found.push((*ino, what));
            }
            if end > inode.size {
                found.push((*ino, "content behind its end".to_owned()));
            }
        }
        for (ino, ranges) in damaged {
            found.extend(ranges.texts().map(|what| (ino, what)));
        }
        // Only rows of no inode are left. Those of a removed file go in steps.
        for (ino, (len, _)) in allocated {
            found.push((
                ino,
                format!("{len} bytes of content, but no row of the inode"),
            ));
        }
        for (ino, what) in found {
            self.found(ino, what);
        }
        Ok(())
    }

    /// Compares extended attributes with inodes.
    fn check_xattrs(&mut self, writer: &StoreWriter, orphans: &BTreeSet<Ino>) -> Result<()> {
        let mut counts: BTreeMap<Ino, u32> = BTreeMap::new();
        self.each(writer, Table::Xattrs, &mut |key, _| {
            *counts.entry(split_key(key)?.1).or_default() += 1;
            Ok(())
        })?;
        let mut found = Vec::new();
        for (ino, inode) in &self.inodes {
            let counted = counts.remove(ino).unwrap_or(0);
            if inode.xattr_count != counted {
                let what = format!("{} attributes, {counted} were counted", inode.xattr_count);
                found.push((*ino, what));
            }
        }
        for ino in counts.keys().filter(|ino| !orphans.contains(ino)) {
            found.push((*ino, "attributes, but no row of the inode".to_owned()));
        }
        // As with attributes, rows of an inode that is being removed go in steps.
        self.found.retain(|(subject, _)| match subject {
            Subject::Inode(ino) => self.inodes.contains_key(ino) || !orphans.contains(ino),
            _ => true,
        });
        for (ino, what) in found {
            self.found(ino, what);
        }
        Ok(())
    }
}

/// Why `dir` can have no names; `None` if it can.
fn wrong_directory(inodes: &BTreeMap<Ino, InodeRow>, dir: Ino) -> Option<String> {
    match inodes.get(&dir) {
        Some(row) if row.kind == FileKind::Directory => None,
        Some(_) => Some(format!("inode {dir}, which has it, is no directory")),
        None => Some(format!("directory {dir}, which has it, does not exist")),
    }
}

/// Adds the accounts of quotas to those around them. Returns the quotas in circles.
pub fn add_up(quotas: &BTreeMap<Ino, QuotaRow>, counted: &mut Accounts) -> Vec<Ino> {
    let mut waiting: BTreeMap<Ino, u64> = BTreeMap::new();
    for row in quotas.values() {
        *waiting.entry(row.parent).or_default() += 1;
    }
    let is_ready = |dir: &Ino| !waiting.contains_key(dir);
    let mut ready: Vec<Ino> = quotas.keys().copied().filter(is_ready).collect();
    let mut left: BTreeSet<Ino> = quotas.keys().copied().collect();
    while let Some(dir) = ready.pop() {
        left.remove(&dir);
        let Some(row) = quotas.get(&dir) else {
            continue;
        };
        let account = counted.get(&dir).copied().unwrap_or_default();
        counted.entry(row.parent).or_default().add(account);
        if let Some(inner) = waiting.get_mut(&row.parent) {
            *inner -= 1;
            if *inner == 0 && quotas.contains_key(&row.parent) {
                ready.push(row.parent);
            }
        }
    }
    left.into_iter().collect()
}
