//! Moves one segment from the home or a tier to another.
//!
//! 1. The bytes are copied to the file `moving` of the target, beside the writer, and made durable
//!    there. They are read again: a disk that has lost a write is noticed now.
//! 2. The writer holds still while the file takes its name, durably. From now on the segment lies
//!    in both places.
//! 3. The old file is removed.
//!
//! A crash before 2 leaves the file `moving`, which the next move replaces. A crash before 3 leaves
//! the segment in two places with equal bytes, but for ranges that were freed; the first one in the
//! order of readers counts, and [`StoreWriter::settle_tiers`] removes the other.

use super::disk::attach;
use super::record::{HOME, TiersRecord};
use crate::disk::{Access, Disk, LocalFile};
use crate::faults::{Bug, Faults};
use crate::layout;
use crate::role::Role;
use crate::store::Store;
use crate::writer::StoreWriter;
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::{Error, ErrorKind, Result, SegmentNo};

/// Bytes that are copied at once.
const COPY_LEN: usize = 1 << 20;
/// Bytes that are left out if all of them are zero: freed ranges stay free.
const HOLE_LEN: usize = 4096;

/// A place in which segments lie: the home or a tier.
pub(super) struct TierDisk {
    pub name: String,
    pub disk: std::result::Result<Arc<dyn Disk>, String>,
}

/// A segment on its way.
#[derive(Debug)]
pub struct SegmentMove {
    /// Keeps other moves away.
    _token: Arc<()>,
    number: SegmentNo,
    from: (String, Arc<dyn Disk>),
    to: (String, Arc<dyn Disk>),
    source: Box<dyn LocalFile>,
    target: Box<dyn LocalFile>,
    len: u64,
    at: u64,
    faults: Faults<Bug>,
}

/// How a move ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// The segment lies at its new place; so many bytes.
    Done(u64),
    /// It stays, because it has changed or is gone.
    Stays,
}

/// An error of a tier, which costs the tier and not the store.
fn of_tier(name: &str, error: &Error) -> Error {
    Error::new(error.kind(), format!("tier {name}: {error}"))
}

impl Store {
    /// The directory of the store alone.
    pub(super) fn home(&self) -> Result<Arc<dyn Disk>> {
        let what = format!("{}: this store cannot have tiers", self.shown());
        self.disk
            .home()
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, what))
    }

    /// The home and the tiers, in the order of readers.
    pub(super) fn tier_disks(&self) -> Result<Vec<TierDisk>> {
        let home = self.home()?;
        let record = TiersRecord::read(&*home)?;
        let mut disks = vec![TierDisk {
            name: HOME.into(),
            disk: Ok(home.clone()),
        }];
        for tier in record.tiers {
            let disk = attach(&home, &tier);
            let name = tier.name;
            disks.push(TierDisk { name, disk });
        }
        Ok(disks)
    }
}

/// The disk of the tier `name`.
fn disk_of<'a>(disks: &'a [TierDisk], name: &str) -> Result<&'a Arc<dyn Disk>> {
    let found = disks.iter().find(|tier| tier.name == name);
    let found = found.ok_or_else(|| Error::not_found(format!("{name}: no such tier")))?;
    let why = |why: &String| Error::lost(format!("tier {name} is not here: {why}"));
    found.disk.as_ref().map_err(why)
}

impl StoreWriter {
    /// Begins to move segment `number` to the tier `to`. Nothing if it lies there already, or
    /// nowhere that is here. It gets no more records.
    ///
    /// # Errors
    /// `NotFound` if there is no such tier; `Lost` if it is not here; `Full`, `Io` of the target.
    pub fn begin_move(&mut self, number: SegmentNo, to: &str) -> Result<Option<SegmentMove>> {
        // Two would write to the same file.
        if self.moving.strong_count() > 0 {
            return Err(Error::new(
                ErrorKind::Busy,
                "another segment is being moved",
            ));
        }
        let disks = self.store().tier_disks()?;
        let target = disk_of(&disks, to)?.clone();
        let name = layout::segment_file(number);
        let mut found = None;
        for tier in &disks {
            let Ok(disk) = &tier.disk else { continue };
            match disk.open(&name, Access::Read) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(of_tier(&tier.name, &error)),
                Ok(file) => {
                    found = Some((tier.name.clone(), disk.clone(), file));
                    break;
                }
            }
        }
        let Some((from, disk, source)) = found.filter(|(from, ..)| from != to) else {
            return Ok(None);
        };
        if self.newest_segment() == number {
            self.close_newest_segment()?;
        }
        let len = source.len()?;
        let room = target.space().map_err(|e| of_tier(to, &e))?.free;
        if room < len {
            let what = format!("tier {to}: {room} bytes are free, and the segment has {len}");
            return Err(Error::new(ErrorKind::Full, what));
        }
        let begun = target.create_moving(number);
        let token = Arc::new(());
        self.moving = Arc::downgrade(&token);
        Ok(Some(SegmentMove {
            _token: token,
            number,
            from: (from, disk),
            to: (to.to_owned(), target),
            source,
            target: begun.map_err(|e| of_tier(to, &e))?,
            len,
            at: 0,
            faults: self.faults,
        }))
    }

    /// Removes what interrupted moves and collections have left in tiers: half-copied segments,
    /// second copies, and segments without a row.
    ///
    /// # Errors
    /// `Io` of the tables. Those of a tier are told.
    pub fn settle_tiers(&mut self) -> Result<()> {
        // It has segments of states whose rows are still to come.
        if self.store().role()? == Role::Standby {
            return Ok(());
        }
        let disks = self.store().tier_disks()?;
        let mut seen: BTreeMap<SegmentNo, &Arc<dyn Disk>> = BTreeMap::new();
        for (index, tier) in disks.iter().enumerate() {
            let Ok(disk) = &tier.disk else { continue };
            let told = |done: Result<()>| {
                if let Err(error) = done {
                    log::warn!("tier {}: {error}", tier.name);
                }
            };
            if self.moving.strong_count() == 0 {
                told(disk.remove_if_there(layout::MOVING));
            }
            let names = match disk.list(layout::SEGMENTS) {
                Ok(names) => names,
                Err(error) => {
                    told(Err(error));
                    continue;
                }
            };
            let mut is_changed = false;
            for number in names.iter().filter_map(|name| layout::segment_number(name)) {
                let first = *seen.entry(number).or_insert(disk);
                let is_second = !Arc::ptr_eq(first, disk);
                // The recovery looks after the home.
                let is_stray = index > 0
                    && !self.faults.has(Bug::StraysStay)
                    && number <= self.newest_segment()
                    && self.find_segment_row(number)?.is_none();
                // What stays has to be durable before the other one goes.
                if is_stray || (is_second && first.sync_dir(layout::SEGMENTS).is_ok()) {
                    told(disk.remove_if_there(&layout::segment_file(number)));
                    is_changed = true;
                }
            }
            if is_changed {
                told(disk.sync_dir(layout::SEGMENTS));
            }
        }
        Ok(())
    }
}

impl SegmentMove {
    /// The segment.
    pub fn number(&self) -> SegmentNo {
        self.number
    }

    /// Copies the next bytes, beside the writer. Returns how many; 0 at the end, when they are
    /// durable and were read again.
    ///
    /// # Errors
    /// `Io`, `Full`, `Lost`: the move is over, and the segment where it was.
    pub fn copy_some(&mut self) -> Result<u64> {
        let left = self.len - self.at;
        if left == 0 {
            let verified = self.verify().map_err(|e| of_tier(&self.to.0, &e));
            if !self.faults.has(Bug::PutUnconfirmed) {
                verified?;
            }
            return Ok(0);
        }
        let mut bytes = vec![0; COPY_LEN.min(usize::try_from(left).unwrap_or(COPY_LEN))];
        let read = self.source.read_at(&mut bytes, self.at);
        read.map_err(|e| of_tier(&self.from.0, &e))?;
        let mut at = self.at;
        let is_hole = |piece: &[u8]| piece.iter().all(|byte| *byte == 0);
        let pieces: Vec<&[u8]> = bytes.chunks(HOLE_LEN).collect();
        let mut start = 0;
        for run in pieces.chunk_by(|a, b| is_hole(a) == is_hole(b)) {
            let len: usize = run.iter().map(|piece| piece.len()).sum();
            let range = bytes.get(start..start + len).unwrap_or_default();
            if !is_hole(range) {
                let written = self.target.write_at(range, at);
                written.map_err(|e| of_tier(&self.to.0, &e))?;
            }
            start += len;
            at += len as u64;
        }
        self.at = at;
        Ok(bytes.len() as u64)
    }

    /// Makes the copy durable, and reads what the disk has. Ranges that were freed meanwhile are
    /// the only ones that may differ.
    fn verify(&self) -> Result<()> {
        self.target.set_len(self.len)?;
        self.target.sync()?;
        self.target.read_anew()?;
        let (mut ours, mut theirs) = (vec![0; COPY_LEN], vec![0; COPY_LEN]);
        let mut at = 0;
        while at < self.len {
            let len = COPY_LEN.min(usize::try_from(self.len - at).unwrap_or(COPY_LEN));
            let (Some(ours), Some(theirs)) = (ours.get_mut(..len), theirs.get_mut(..len)) else {
                break;
            };
            self.source.read_at(ours, at)?;
            self.target.read_at(theirs, at)?;
            let is_freed = |ours: &[u8], theirs: &[u8]| {
                ours.iter().zip(theirs).all(|(a, b)| a == b || *a == 0)
            };
            if !is_freed(ours, theirs) {
                let what = "the disk does not have what was written to it";
                return Err(Error::corrupt("tier", at, "S-10.6", what));
            }
            at += len as u64;
        }
        Ok(())
    }

    /// Gives the copy its name, and removes the old file. The caller holds the writer, and closes
    /// the segment where it is open for reading, so that its space is free.
    ///
    /// # Errors
    /// `Io` of the target: the segment is where it was.
    pub fn finish(self, writer: &mut StoreWriter) -> Result<Moved> {
        let name = layout::segment_file(self.number);
        let (to, target) = &self.to;
        let row = writer.find_segment_row(self.number)?;
        let is_same = row.is_some_and(|row| !row.is_emptied) && self.source.len()? == self.len;
        let is_same = is_same || writer.faults.has(Bug::MoveIgnoresRow);
        // The collector may have removed the file meanwhile, and its name is in use again nowhere.
        let is_there = self.from.1.open(&name, Access::Read).is_ok();
        let is_there = is_there || writer.faults.has(Bug::MoveIgnoresRow);
        if !is_same || !is_there || self.at < self.len {
            target
                .remove_if_there(layout::MOVING)
                .map_err(|e| of_tier(to, &e))?;
            return Ok(Moved::Stays);
        }
        if writer.faults.has(Bug::MovedBeforeCopy) {
            self.from.1.remove(&name)?;
        }
        let named = target.rename(layout::MOVING, &name).and_then(|()| {
            if writer.faults.has(Bug::MovedUnsynced) {
                return Ok(());
            }
            target.sync_dir(layout::SEGMENTS)
        });
        if let Err(error) = named {
            // The old file counts. A name that may not be durable must not stand beside it.
            let _ = target.remove_if_there(&name);
            return Err(of_tier(to, &error));
        }
        let removed = self
            .from
            .1
            .remove_if_there(&name)
            .and_then(|()| self.from.1.sync_dir(layout::SEGMENTS));
        if let Err(error) = removed {
            log::warn!("tier {}: {error}", self.from.0);
        }
        Ok(Moved::Done(self.len))
    }
}
