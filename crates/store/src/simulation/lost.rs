//! Whole segments and maps that are lost, emptied, unreadable, and brought back at random moments,
//! also between a power cut and the next writer.
//!
//! The model says what may fail: reading an image whose map, or a segment that its map names, is
//! not whole, and changing an image whose map is not whole. Everything else works as before, with
//! the same writer, and when all files are back, everything does.

use super::{Model, Operation, Outcome, StoreRun, read_all, seeds};
use crate::disk::Disk;
use crate::engine::{Batch, Table, key_of};
use crate::faults::Bug;
use crate::layout;
use crate::simulated_disk::Fault;
use crate::{Store, StoreWriter};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weald_format::store::Part;
use weald_format::{BlockId, ErrorKind};

/// An image of which a power cut has left an operation half done, while a hidden map is lost: as
/// it was before, and after.
type Doubtful = (String, [Option<Vec<u8>>; 2]);

/// An operation in words, without the bytes of its image.
fn shown_start(operation: &Operation) -> String {
    let mut shown = format!("{operation:?}");
    shown.truncate(60);
    shown
}

struct LostRun {
    run: StoreRun,
    writer: Option<StoreWriter>,
    /// Bytes of the files that are lost, emptied or unreadable.
    away: BTreeMap<String, Vec<u8>>,
    doubtful: Option<Doubtful>,
}

impl LostRun {
    fn begin(seed: u64, bug: Option<Bug>) -> Self {
        Self {
            run: StoreRun::begin(seed, bug),
            writer: None,
            away: BTreeMap::new(),
            doubtful: None,
        }
    }

    fn store(&self) -> Result<Store, String> {
        let disk: Arc<dyn Disk> = Arc::new(self.run.disk.clone());
        Store::open(disk).map_err(|e| format!("store: {e}"))
    }

    /// Loses or empties a file, or makes it unreadable, but not the segment that the writer appends
    /// to.
    fn lose(&mut self) {
        let appended = self.writer.as_ref().and_then(|w| w.open_segment_no());
        let appended = appended.map(layout::segment_file);
        let is_candidate = |name: &String| {
            let is_map = name.starts_with("images/") && !name.ends_with(".digests");
            let is_hidden = name.starts_with("images/.");
            // Between two operations no hidden map is needed.
            let is_map = is_map && (!is_hidden || self.writer.is_none());
            let is_part = name.starts_with("segments/") || is_map;
            is_part && Some(name) != appended.as_ref() && !self.away.contains_key(name)
        };
        let mut names = self.run.disk.file_names();
        names.retain(is_candidate);
        if names.is_empty() {
            return;
        }
        let name = &names[self.run.random.below(names.len() as u64) as usize];
        let bytes = self.run.disk.lose(name);
        let how = match self.run.random.below(4) {
            0 => {
                self.run.disk.bring_back(name, &[]);
                "is empty"
            }
            1 => {
                self.run.disk.bring_back(name, &bytes);
                self.run.disk.set_unreadable(name, true);
                "cannot be read"
            }
            2 => {
                self.run.disk.bring_back(name, &bytes);
                self.run.disk.set_irregular(name, true);
                "is a directory"
            }
            _ => "is lost",
        };
        self.run.trace.push(format!("{name} {how}"));
        self.away.insert(name.clone(), bytes);
    }

    /// Brings a file back, unless nobody knows it any more.
    fn bring_back(&mut self, name: &str) -> Outcome {
        let bytes = self.away.remove(name).unwrap_or_default();
        let number = name.strip_prefix("segments/");
        if let Some(number) = number.and_then(layout::segment_number) {
            let writer = self.opened()?;
            let row = writer.tables().get(Table::Segments, &key_of(number.0));
            if row.map_err(|e| format!("rows: {e}"))?.is_none() {
                self.run.trace.push(format!("{name} was collected"));
                // What lies in its place stays, and a check names it.
                if self.run.disk.is_irregular(name) {
                    self.run.disk.lose(name);
                }
                return Ok(());
            }
        }
        // A map of which a power cut has left both names.
        let made_again = self.run.disk.contents().remove(name);
        if self.run.disk.is_unreadable(name) || self.run.disk.is_irregular(name) {
            self.run.disk.set_unreadable(name, false);
            self.run.disk.set_irregular(name, false);
            self.run.trace.push(format!("{name} can be read"));
            return Ok(());
        }
        if made_again.is_some_and(|bytes| !bytes.is_empty()) {
            self.run.trace.push(format!("{name} was made again"));
            return Ok(());
        }
        self.run.trace.push(format!("{name} is back"));
        self.run.disk.lose(name);
        self.run.disk.bring_back(name, &bytes);
        Ok(())
    }

    fn opened(&mut self) -> Result<&mut StoreWriter, String> {
        if self.writer.is_none() {
            let opened = self.run.open();
            self.writer = Some(opened.map_err(|e| format!("open: {e:?}"))?);
        }
        self.writer.as_mut().ok_or_else(|| "no writer".to_owned())
    }

    fn is_map_away(&self, name: &str) -> bool {
        self.away.contains_key(layout::map(name).path())
    }

    /// Whether an image cannot be read, by its map and what is away.
    fn is_hurt(&self, store: &Store, name: &str) -> bool {
        if self.is_map_away(name) {
            return true;
        }
        let Ok(map) = store.map(name) else {
            return false;
        };
        map.parts.iter().any(|part| match part {
            Part::Block { location, .. } => self
                .away
                .contains_key(&layout::segment_file(location.segment)),
            Part::Inline(_) => false,
        })
    }

    /// Reads all images, and compares what fails with what may fail.
    fn compare(&mut self) -> Outcome {
        let store = self.store()?;
        let doubtful = self.doubtful.as_ref().map(|(name, _)| name);
        for (name, wanted) in self.run.model.iter().filter(|(n, _)| Some(*n) != doubtful) {
            let is_hurt = self.is_hurt(&store, name);
            match read_all(&store, name) {
                Ok(bytes) if !is_hurt && bytes == *wanted => {}
                Ok(_) if !is_hurt => return Err(format!("{name}: other bytes")),
                Ok(_) => return Err(format!("{name}: is whole without a part of it")),
                Err(error) if !is_hurt => return Err(format!("{name}: {error:?}")),
                Err(error) if error.kind() == ErrorKind::NotFound && !self.is_map_away(name) => {
                    return Err(format!("{name}: never existed: {error}"));
                }
                Err(_) => {}
            }
        }
        let names = store.names().map_err(|e| format!("names: {e}"))?;
        let mut known = self.run.model.keys().chain(doubtful);
        match names.iter().find(|name| !known.any(|k| k == *name)) {
            Some(name) if !self.run.model.contains_key(name) && Some(name) != doubtful => {
                Err(format!("{name} is there"))
            }
            _ => Ok(()),
        }
    }

    /// A check names the images that cannot be read, and no others; it finds nothing in a whole
    /// store.
    fn check(&mut self) -> Outcome {
        let store = self.store()?;
        let is_whole = self.away.is_empty() && self.doubtful.is_none();
        let hurt: BTreeSet<String> = self.run.model.keys().cloned().collect();
        let hurt: BTreeSet<String> = hurt
            .into_iter()
            .filter(|name| self.is_hurt(&store, name))
            .collect();
        let has_doubt = self.doubtful.is_some();
        let writer = self.opened()?;
        let checked = writer.check(true, &mut |_| {});
        let found = checked.map_err(|e| format!("check: {e}"))?.findings;
        if is_whole && !found.is_empty() {
            return Err(format!("check: {found:?}"));
        }
        let named: BTreeSet<String> = found.iter().filter_map(|f| f.image.clone()).collect();
        if named == hurt || has_doubt {
            Ok(())
        } else {
            Err(format!("check names {named:?}, not {hurt:?}: {found:?}"))
        }
    }

    /// Counts a block that exists and one that does not: the whole change fails.
    fn count_unknown(&mut self) -> Outcome {
        let store = self.store()?;
        let blocks = self.run.model.keys().find_map(|name| {
            let map = store.map(name).ok()?;
            map.blocks().next().map(|(id, _, _)| id)
        });
        let Some(id) = blocks else { return Ok(()) };
        let counts = BTreeMap::from([(id, 1), (BlockId(u64::MAX), 1)]);
        let writer = self.opened()?;
        let counted = writer.commit_counts(&counts, Batch::default(), &mut |_| {});
        match counted {
            Ok(_) => Err("a block that does not exist is counted".to_owned()),
            Err(_) => Ok(()),
        }
    }

    /// Whether the operation may fail.
    fn may_fail(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Replace(name, _) | Operation::Remove(name) => self.is_map_away(name),
            Operation::Rename(old, new, _) => self.is_map_away(old) || self.is_map_away(new),
            _ => false,
        }
    }

    fn is_of_doubtful(&self, operation: &Operation) -> bool {
        let names = match operation {
            Operation::Import(name, _) | Operation::Replace(name, _) | Operation::Remove(name) => {
                [name, name]
            }
            Operation::Rename(old, new, _) => [old, new],
            _ => return false,
        };
        self.doubtful
            .as_ref()
            .is_some_and(|(other, _)| names.contains(&other))
    }

    fn step(&mut self) -> Outcome {
        let operation = self.run.choose();
        if self.is_of_doubtful(&operation) {
            return Ok(());
        }
        self.run.trace.push(shown_start(&operation));
        // After a rename that was half done, two names are in doubt.
        let is_rename = matches!(operation, Operation::Rename(..));
        let cut = (self.doubtful.is_none() && !is_rename && self.run.random.is_one_in(5))
            .then(|| self.run.random.below(80));
        if let Some(count) = cut {
            self.opened()?;
            self.run.disk.fail_after(count, Fault::PowerCut);
        }
        let done = self.run.perform(&mut self.writer, &operation);
        self.run.disk.cancel_fault();
        let mut after = self.run.model.clone();
        StoreRun::apply(&mut after, &operation);
        if self.run.disk.is_off() {
            self.run.trace.push("power cut".to_owned());
            return self.restart(&operation, after);
        }
        match done {
            Ok(()) => self.run.model = after,
            Err(_) if self.may_fail(&operation) => {}
            Err(error) => return Err(format!("{}: {error:?}", shown_start(&operation))),
        }
        let is_usable = self.writer.as_ref().is_none_or(StoreWriter::is_usable);
        if is_usable {
            Ok(())
        } else {
            Err("the writer ended".to_owned())
        }
    }

    /// Opens the store after a power cut. Its last operation is done or not, which a hidden map
    /// decides that may be lost meanwhile.
    fn restart(&mut self, operation: &Operation, after: Model) -> Outcome {
        self.writer = None;
        self.run.disk = self.run.disk.reboot();
        let before = self.run.model.clone();
        let changed = before.keys().chain(after.keys());
        let changed = changed.filter(|name| before.get(*name) != after.get(*name));
        if let Some(name) = changed.clone().next().cloned() {
            if self.run.random.is_one_in(2) {
                self.lose();
            }
            let states = [before.get(&name).cloned(), after.get(&name).cloned()];
            self.doubtful = Some((name, states));
        }
        let is_settled = self.away.is_empty();
        self.opened()
            .map_err(|e| format!("after {}: {e}", shown_start(operation)))?;
        if is_settled { self.settle() } else { Ok(()) }
    }

    /// Finds out how an image is, of which an operation was half done, in a whole store.
    fn settle(&mut self) -> Outcome {
        let Some((name, states)) = self.doubtful.take() else {
            return Ok(());
        };
        let store = self.store()?;
        let found = match read_all(&store, &name) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(format!("{name}, when all is back: {error:?}")),
        };
        if !states.contains(&found) {
            return Err(format!("{name} is neither as before nor as after"));
        }
        match found {
            Some(bytes) => drop(self.run.model.insert(name, bytes)),
            None => drop(self.run.model.remove(&name)),
        }
        Ok(())
    }

    fn steps(&mut self) -> Outcome {
        for _ in 0..6 + self.run.random.below(14) {
            match self.run.random.below(8) {
                0..=1 => self.lose(),
                2 => {
                    let name = self.away.keys().next().cloned();
                    name.map_or(Ok(()), |name| self.bring_back(&name))?;
                }
                3 => self.count_unknown()?,
                _ => {}
            }
            self.step()?;
            self.compare()?;
            if self.run.random.is_one_in(4) {
                self.check()?;
            }
        }
        for name in self.away.keys().cloned().collect::<Vec<_>>() {
            self.bring_back(&name)?;
        }
        self.writer = None;
        self.opened()?;
        self.settle()?;
        self.compare()?;
        self.check()?;
        self.writer = None;
        self.run.end()
    }
}

fn run(seed: u64, bug: Option<Bug>) -> (Outcome, Vec<String>) {
    let mut run = LostRun::begin(seed, bug);
    let outcome = run.steps();
    (outcome, run.run.trace)
}

// Would catch an item that is lost or damaged and takes others with it: a writer that ends or does
// not open, an image that cannot be read without need, a change that is half done, blocks that move
// away from a map that comes back, and a store that is not whole when all is back.
#[test]
fn what_is_lost_costs_what_is_in_it_and_nothing_else() {
    for seed in seeds(0..1000) {
        let (outcome, trace) = run(seed, None);
        if let Err(what) = outcome {
            panic!("seed {seed}: {what}\nhistory:\n  {}", trace.join("\n  "));
        }
    }
}

/// Bugs of which a lost item shows the harm, each with a seed that finds it.
const BUGS: [(Bug, u64); 3] = [
    (Bug::ItemEndsWriter, 0),
    (Bug::RowsNotUndone, 0),
    (Bug::MissingMapIgnored, 3),
];

// Would catch a simulation that finds no bug of this kind.
#[test]
fn planted_bugs_are_found_by_their_seeds() {
    for (bug, seed) in BUGS {
        let found = run(seed, Some(bug)).0.is_err();
        let first = (0..2000).find(|&seed| run(seed, Some(bug)).0.is_err());
        println!("{bug:?}: found by seed {first:?}");
        assert!(
            found,
            "{bug:?} is not found by seed {seed}, but by {first:?}"
        );
    }
}
