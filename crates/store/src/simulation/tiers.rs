//! A store with two tiers on three disks of one machine. Segments move, disks fail, fill, and are
//! unplugged, the power goes, and images come and go meanwhile.
//!
//! What the model says: an image reads as it was committed, or, while a disk is unplugged, not at
//! all. Whatever happens to the disk of a tier, the store can be written to. When all disks are
//! back, everything is there, a check finds nothing, and an emptied store leaves no byte.

use super::{Model, Outcome, random_image, read_all, seeds};
use crate::disk::Disk;
use crate::engine::Table;
use crate::faults::{Bug, Faults};
use crate::simulated_disk::{Fault, Random, SimDisk};
use crate::tier::{HOME, Moved, NewTier, TierPolicy, TieredDisk};
use crate::writer::each_row;
use crate::{CollectOptions, Sorting, Steps, Store, StoreWriter, WriteOptions};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::store::BlockRow;
use weald_format::{BlockId, ErrorKind, Result, SegmentNo};

const TIERS: [&str; 2] = ["mid", "slow"];

struct TierRun {
    random: Random,
    home: SimDisk,
    tiers: [SimDisk; 2],
    gone: [bool; 2],
    model: Model,
    pool: Vec<Vec<u8>>,
    bug: Option<Bug>,
    /// Whether blocks are sorted into segments, too.
    sorts: bool,
    epoch: u64,
    /// The seed of a sort after which one segment had blocks of two classes.
    mixed: Option<u64>,
    trace: Vec<String>,
}

#[derive(Debug, Clone)]
enum Operation {
    Import(String, Vec<u8>),
    Remove(String),
    Collect(u64),
    Move(u64, &'static str),
    Sort(u64),
    Settle,
    Reopen,
}

impl TierRun {
    fn begin(seed: u64, bug: Option<Bug>) -> Self {
        let mut random = Random::new(seed);
        let home = SimDisk::new(seed);
        let tiers = [home.beside(seed + 1), home.beside(seed + 2)];
        let run = Self {
            home,
            tiers,
            gone: [false; 2],
            model: Model::new(),
            pool: Vec::new(),
            bug,
            sorts: false,
            epoch: seed << 32,
            mixed: None,
            trace: Vec::new(),
            random: random.clone(),
        };
        run.plug();
        let len = [4096, 8192, 20_000][random.below(3) as usize];
        let store = Store::create(run.disk(), [seed as u8; 16], len).expect("create");
        for (at, name) in TIERS.into_iter().enumerate() {
            let new = NewTier {
                name: name.into(),
                place: name.into(),
                rank: at as u32 + 1,
                policy: TierPolicy::default(),
                uuid: [at as u8 + 1; 16],
                may_share_disk: false,
                is_again: false,
            };
            store.add_tier(&new).expect("a tier");
        }
        run
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(TieredDisk::impatient(Arc::new(self.home.clone())))
    }

    /// Lets the home know the disks that are there.
    fn plug(&self) {
        for (at, name) in TIERS.into_iter().enumerate() {
            self.tiers[at].set_gone(self.gone[at]);
            self.home.set_place(name, &self.tiers[at]);
        }
    }

    fn cut_power(&mut self) {
        let [first, second] = &self.tiers;
        let [home, first, second] = SimDisk::reboot_all([&self.home, first, second]);
        (self.home, self.tiers) = (home, [first, second]);
        self.plug();
    }

    fn open(&mut self) -> Result<StoreWriter> {
        self.epoch += 1;
        let store = Store::open(self.disk())?;
        store.write(WriteOptions {
            faults: Faults::of(self.bug),
            index_len: 28 * 64,
            steps: Steps {
                journal_len: 3000,
                journal_row_count: 20,
                ..Steps::default()
            },
            epoch: self.epoch,
            ..WriteOptions::new("the simulation")
        })
    }

    fn is_whole(&self) -> bool {
        self.gone == [false; 2]
    }

    fn choose(&mut self) -> Operation {
        let random = &mut self.random;
        let names: Vec<&String> = self.model.keys().collect();
        match random.below(if self.sorts { 20 } else { 16 }) {
            0..=4 => Operation::Import(
                format!("image{}", random.below(8)),
                random_image(random, &mut self.pool),
            ),
            5..=6 if !names.is_empty() => {
                Operation::Remove(names[random.below(names.len() as u64) as usize].clone())
            }
            7..=8 => Operation::Collect([50, 80, 100][random.below(3) as usize]),
            9..=13 => {
                let to = [HOME, TIERS[0], TIERS[1]][random.below(3) as usize];
                Operation::Move(random.below(6), to)
            }
            14 => Operation::Settle,
            16.. => Operation::Sort(random.below(u64::MAX)),
            _ => Operation::Reopen,
        }
    }

    fn perform(&mut self, writer: &mut StoreWriter, operation: &Operation) -> Result<()> {
        match operation {
            Operation::Import(name, image) if !self.model.contains_key(name) => {
                writer.import(name, image).map(drop)
            }
            Operation::Import(..) | Operation::Reopen => Ok(()),
            Operation::Remove(name) => writer.remove(name, false),
            Operation::Collect(copy_below_percent) => {
                let options = CollectOptions {
                    copy_below_percent: *copy_below_percent,
                    copy_len_max: u64::MAX,
                };
                let collected = writer.collect(&options, &mut |_| ControlFlow::Continue(()));
                collected.map(drop)
            }
            Operation::Move(at, to) => self.move_one(writer, *at, to),
            Operation::Settle => writer.settle_tiers(),
            Operation::Sort(seed) => self.sort(writer, *seed),
        }
    }

    /// Sorts blocks of three classes in some of the segments, to its end or not.
    fn sort(&mut self, writer: &mut StoreWriter, seed: u64) -> Result<()> {
        let mut random = Random::new(seed);
        let newest = writer.newest_segment();
        let mut sorting = Sorting::default();
        writer.each_segment(&mut |number, _| {
            if !random.is_one_in(4) {
                sorting.segments.insert(number);
            }
            Ok(())
        })?;
        each_row(writer.tables(), Table::Blocks, &mut |id, _| {
            let class = random.below(3) as u8;
            if class < 2 {
                sorting.classes.insert(BlockId(id), class);
            }
            Ok(())
        })?;
        let classes = sorting.classes.clone();
        let mut left = [3, 10, u64::MAX][random.below(3) as usize];
        writer.sort(sorting, &mut |_| {
            left -= 1;
            if left == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        let mut class_of: BTreeMap<SegmentNo, Option<u8>> = BTreeMap::new();
        let mut is_mixed = false;
        each_row(writer.tables(), Table::Blocks, &mut |id, value| {
            let number = BlockRow::parse(value)?.location.segment;
            let class = classes.get(&BlockId(id)).copied();
            if number > newest {
                is_mixed |= *class_of.entry(number).or_insert(class) != class;
            }
            Ok(())
        })?;
        if is_mixed {
            self.mixed = Some(seed);
        }
        Ok(())
    }

    /// Moves one of the segments, while other things happen between the steps.
    fn move_one(&mut self, writer: &mut StoreWriter, at: u64, to: &str) -> Result<()> {
        let mut numbers: Vec<SegmentNo> = Vec::new();
        writer.each_segment(&mut |number, _| {
            numbers.push(number);
            Ok(())
        })?;
        if numbers.is_empty() {
            return Ok(());
        }
        let number = numbers[at as usize % numbers.len()];
        let Some(mut moving) = writer.begin_move(number, to)? else {
            return Ok(());
        };
        while moving.copy_some()? > 0 {}
        match self.random.below(5) {
            0 => {
                let options = CollectOptions {
                    copy_below_percent: 100,
                    ..CollectOptions::default()
                };
                writer.collect(&options, &mut |_| ControlFlow::Continue(()))?;
            }
            1 => {
                let image = random_image(&mut self.random, &mut self.pool);
                if let Entry::Vacant(entry) = self.model.entry("meanwhile".to_owned()) {
                    writer.import(entry.key(), &image)?;
                    entry.insert(image);
                }
            }
            3 if self.sorts => {
                let seed = self.random.below(u64::MAX);
                self.sort(writer, seed)?;
            }
            2 if self.model.contains_key("meanwhile") => {
                writer.remove("meanwhile", false)?;
                self.model.remove("meanwhile");
            }
            _ => {}
        }
        if self.random.is_one_in(4) {
            let disk = [&self.home, &self.tiers[0], &self.tiers[1]][self.random.below(3) as usize];
            disk.fail_after(self.random.below(5), Fault::PowerCut);
        }
        let moved = moving.finish(writer);
        for disk in [&self.home, &self.tiers[0], &self.tiers[1]] {
            disk.cancel_fault();
        }
        match moved? {
            Moved::Done(_) | Moved::Stays => Ok(()),
        }
    }

    /// Reads everything. Returns what differs from the model.
    fn verify(&self, store: &Store) -> std::result::Result<Model, String> {
        let mut found = Model::new();
        for name in store.names().map_err(|e| format!("names: {e}"))? {
            match read_all(store, &name) {
                Ok(bytes) => drop(found.insert(name, bytes)),
                Err(error) if !self.is_whole() && error.is_unreadable() => {
                    let wanted = self.model.get(&name).cloned();
                    found.insert(name, wanted.unwrap_or_default());
                }
                Err(error) => return Err(format!("{name}: {error:?} {}", self.is_whole())),
            }
        }
        Ok(found)
    }

    fn compare(&mut self, store: &Store, operation: &Operation) -> Outcome {
        let found = self.verify(store)?;
        let mut after = self.model.clone();
        match operation {
            Operation::Import(name, image) => {
                after.entry(name.clone()).or_insert_with(|| image.clone());
            }
            Operation::Remove(name) => drop(after.remove(name)),
            // What happened between the steps of a move may be there or not.
            Operation::Move(..) => {
                if let Some(image) = found.get("meanwhile") {
                    after.insert("meanwhile".into(), image.clone());
                } else {
                    after.remove("meanwhile");
                }
            }
            _ => {}
        }
        // An image that cannot be read now was taken for what the model has.
        let same = |wanted: &Model| {
            wanted.keys().eq(found.keys())
                && wanted.iter().all(|(name, bytes)| {
                    found[name] == *bytes || (!self.is_whole() && found[name].is_empty())
                })
        };
        if !same(&self.model) && !same(&after) {
            let names: Vec<&String> = found.keys().collect();
            let wanted: Vec<&String> = self.model.keys().collect();
            return Err(format!(
                "found {names:?}, the model has {wanted:?}, before {operation:?}"
            ));
        }
        self.model = if same(&self.model) {
            self.model.clone()
        } else {
            after
        };
        Ok(())
    }

    fn check(&self, writer: &StoreWriter) -> Outcome {
        if !self.is_whole() {
            return Ok(());
        }
        let checked = writer.check(true, &mut |_| {});
        let checked = checked.map_err(|e| format!("check: {e}"))?;
        if checked.findings.is_empty() {
            Ok(())
        } else {
            Err(format!("check: {:?}", checked.findings))
        }
    }

    fn steps(&mut self) -> Outcome {
        let mut writer = self.open().map_err(|e| format!("open: {e}"))?;
        for _ in 0..6 + self.random.below(14) {
            if self.random.is_one_in(6) {
                let at = self.random.below(2) as usize;
                self.gone[at] = !self.gone[at];
                self.plug();
                self.trace.push(format!("gone {:?}", self.gone));
            }
            let operation = self.choose();
            let mut shown = format!("{operation:?}");
            shown.truncate(60);
            self.trace.push(shown);
            let fault = match self.random.below(7) {
                0..=1 => Some(Fault::PowerCut),
                2 => Some(Fault::Io),
                3 => Some(Fault::NoSpace),
                _ => None,
            };
            let of_tier = self.random.below(4) as usize;
            let count = {
                let window = [10, 40, 200][self.random.below(3) as usize];
                self.random.below(window)
            };
            let disk = self.tiers.get(of_tier).unwrap_or(&self.home).clone();
            if let Some(fault) = fault {
                self.trace
                    .push(format!("{fault:?} of {of_tier} after {count} calls"));
                disk.fail_after(count, fault);
            }
            let done = match operation {
                Operation::Reopen => {
                    drop(writer);
                    let opened = self.open();
                    match opened {
                        Ok(opened) => {
                            writer = opened;
                            Ok(())
                        }
                        Err(error) => {
                            disk.cancel_fault();
                            if fault.is_none() {
                                return Err(format!("open: {error}"));
                            }
                            if self.home.is_off() {
                                self.cut_power();
                            }
                            writer = self.open().map_err(|e| format!("open again: {e}"))?;
                            Err(error)
                        }
                    }
                }
                _ => self.perform(&mut writer, &operation),
            };
            disk.cancel_fault();
            let is_off = self.home.is_off();
            let is_of_tier = of_tier < TIERS.len();
            let is_parked = !self.is_whole()
                && matches!(operation, Operation::Move(..))
                && done.as_ref().is_err_and(|e| !e.is_failed_write());
            match &done {
                Err(error) if fault.is_none() && !is_parked && !is_off => {
                    let trace = self.trace.last().cloned().unwrap_or_default();
                    return Err(format!("{trace}: {}", error.with_causes()));
                }
                _ => {}
            }
            let is_fault = done.is_err();
            if !is_off && is_of_tier {
                // The disk of a tier costs the store nothing.
                self.compare(&writer.store().clone(), &operation)?;
                let image = random_image(&mut self.random, &mut self.pool);
                let name = format!("after{}", self.trace.len());
                let written = writer.import(&name, &image);
                written.map_err(|e| format!("after a failed tier: {}", e.with_causes()))?;
                self.model.insert(name, image);
            }
            let is_cut = is_off || self.random.is_one_in(5);
            if is_cut || (is_fault && !is_of_tier) {
                drop(writer);
                if is_cut {
                    // The disk of an interrupted move is often not there at once.
                    if matches!(operation, Operation::Move(..)) && self.random.is_one_in(2) {
                        let at = self.random.below(2) as usize;
                        self.gone[at] = !self.gone[at];
                    }
                    self.trace.push(format!("power cut, gone {:?}", self.gone));
                    self.cut_power();
                }
                writer = self
                    .open()
                    .map_err(|e| format!("open: {}", e.with_causes()))?;
            }
            let store = writer.store().clone();
            self.compare(&store, &operation)?;
            self.check(&writer)?;
            if let Some(seed) = self.mixed {
                return Err(format!("two classes in one segment after the sort {seed}"));
            }
        }
        drop(writer);
        self.end()
    }

    /// Plugs everything in, and empties the store.
    fn end(&mut self) -> Outcome {
        self.gone = [false; 2];
        self.plug();
        let mut writer = self.open().map_err(|e| format!("open: {e}"))?;
        self.compare(&writer.store().clone(), &Operation::Reopen)?;
        writer.settle_tiers().map_err(|e| format!("settle: {e}"))?;
        self.check(&writer)?;
        for name in std::mem::take(&mut self.model).into_keys() {
            let removed = writer.remove(&name, false);
            removed.map_err(|e| format!("remove: {e}"))?;
        }
        let options = CollectOptions::default();
        let collected = writer.collect(&options, &mut |_| ControlFlow::Continue(()));
        collected.map_err(|e| format!("collect: {e}"))?;
        self.check(&writer)?;
        drop(writer);
        for disk in [&self.home, &self.tiers[0], &self.tiers[1]] {
            let left: Vec<String> = disk.file_names();
            let is_data = |name: &&String| name.starts_with("segments/") || *name == "moving";
            if let Some(name) = left.iter().find(is_data) {
                return Err(format!("{name} is left of an emptied store"));
            }
        }
        Ok(())
    }
}

fn run(seed: u64, bug: Option<Bug>) -> (Outcome, Vec<String>) {
    run_with(seed, bug, false)
}

fn run_with(seed: u64, bug: Option<Bug>, sorts: bool) -> (Outcome, Vec<String>) {
    let mut run = TierRun::begin(seed, bug);
    run.sorts = sorts;
    let outcome = run.steps();
    (outcome, run.trace)
}

// Would catch: a move that loses a segment at any moment of a power cut, a tier whose failure stops
// the store, and a file that nobody removes any more.
#[test]
fn a_store_with_tiers_equals_its_model() {
    for seed in seeds(0..1000) {
        let (outcome, trace) = run(seed, None);
        if let Err(what) = outcome {
            panic!("seed {seed}: {what}\nhistory:\n  {}", trace.join("\n  "));
        }
    }
}

// Would catch: a sort that loses a block at any moment of a power cut, that leaves a map behind, or
// that puts data of two tiers into one segment.
#[test]
fn a_store_whose_blocks_are_sorted_equals_its_model() {
    for seed in seeds(0..600) {
        let (outcome, trace) = run_with(seed, None, true);
        if let Err(what) = outcome {
            panic!("seed {seed}: {what}\nhistory:\n  {}", trace.join("\n  "));
        }
    }
}

// Would catch a simulation that finds no bug of sorts.
#[test]
fn planted_bugs_of_sorts_are_found_by_their_seeds() {
    for (bug, seed) in [
        (Bug::SortedRestLost, 7),
        (Bug::SortedMapsStay, 4),
        (Bug::SortedClassesMixed, 7),
    ] {
        let found = run_with(seed, Some(bug), true).0;
        assert!(found.is_err(), "{bug:?} with seed {seed}");
    }
}

// Would catch a simulation that finds no bug.
#[test]
fn planted_bugs_of_tiers_are_found_by_their_seeds() {
    for (bug, seed) in [
        (Bug::MovedBeforeCopy, 14),
        (Bug::MovedUnsynced, 6),
        (Bug::MoveIgnoresRow, 73),
        (Bug::StraysStay, 143),
        (Bug::MovedStaysOpen, 7080),
        (Bug::TierStopsStore, 47),
    ] {
        assert!(run(seed, Some(bug)).0.is_err(), "{bug:?} with seed {seed}");
    }
}

// Would catch: two moves at once that write to the same file, so that one segment gets the bytes of
// another.
#[test]
fn one_segment_moves_at_a_time() {
    let mut run = TierRun::begin(1, None);
    let mut writer = run.open().expect("open");
    let mut model = Model::new();
    for name in ["one", "two", "three", "four", "five", "six"] {
        let image = random_image(&mut run.random, &mut run.pool);
        writer.import(name, &image).expect("import");
        model.insert(name.to_owned(), image);
    }
    let [first, second] = [1, 2].map(SegmentNo);
    let mut moving = writer
        .begin_move(first, "slow")
        .expect("a move")
        .expect("here");
    let busy = writer
        .begin_move(second, "slow")
        .expect_err("a second move");
    assert_eq!(busy.kind(), ErrorKind::Busy);
    while moving.copy_some().expect("copied") > 0 {}
    assert!(matches!(moving.finish(&mut writer), Ok(Moved::Done(_))));
    // One that was given up does not count.
    drop(
        writer
            .begin_move(second, "mid")
            .expect("a move")
            .expect("here"),
    );
    let mut moving = writer
        .begin_move(second, "slow")
        .expect("a move")
        .expect("here");
    while moving.copy_some().expect("copied") > 0 {}
    assert!(matches!(moving.finish(&mut writer), Ok(Moved::Done(_))));
    assert_eq!(run.verify(writer.store()), Ok(model));
    run.check(&writer).expect("clean");
}
