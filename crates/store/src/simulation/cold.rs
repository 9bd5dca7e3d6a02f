//! A store with a tier in a bucket. Segments move there and back, the network loses, delays and
//! doubles requests, the bucket goes away, the home fails, fills and loses power, and images come
//! and go meanwhile.
//!
//! What the model says: an image reads as it was committed, or, while the bucket is away, not at
//! all. Whatever happens to the bucket, the store can be written to. When it is back, everything is
//! there, a check finds nothing, and an emptied store leaves no object.

use super::far::SimFar;
use super::{Model, Outcome, random_image, read_all, seeds};
use crate::disk::Disk;
use crate::far_objects::FarPlace;
use crate::faults::{Bug, Faults};
use crate::simulated_disk::{Fault, Random, SimDisk};
use crate::tier::{HOME, NewTier, TierPolicy, TieredDisk};
use crate::{CollectOptions, Steps, Store, StoreWriter, WriteOptions};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use weald_format::{Result, SegmentNo};

const COLD: &str = "cold";
const PLACE: &str = "s3://bucket/cold";

struct ColdRun {
    random: Random,
    home: SimDisk,
    far: SimFar,
    is_gone: bool,
    model: Model,
    pool: Vec<Vec<u8>>,
    bug: Option<Bug>,
    epoch: u64,
    trace: Vec<String>,
}

#[derive(Debug, Clone)]
enum Operation {
    Import(String, Vec<u8>),
    Remove(String),
    Collect,
    Move(u64, &'static str),
    Settle,
    Sweep,
    Reopen,
}

fn collect(writer: &mut StoreWriter) -> Result<()> {
    let options = CollectOptions {
        copy_below_percent: 80,
        copy_len_max: u64::MAX,
    };
    let collected = writer.collect(&options, &mut |_| ControlFlow::Continue(()));
    collected.map(drop)
}

impl ColdRun {
    fn begin(seed: u64, bug: Option<Bug>) -> Self {
        let mut random = Random::new(seed);
        let len = [4096, 8192, 20_000][random.below(3) as usize];
        let run = Self {
            random,
            home: SimDisk::new(seed),
            far: SimFar::new(seed),
            is_gone: false,
            model: Model::new(),
            pool: Vec::new(),
            bug,
            epoch: seed << 32,
            trace: Vec::new(),
        };
        run.plug();
        let store = Store::create(run.disk(), [seed as u8; 16], len).expect("create");
        let new = NewTier {
            name: COLD.into(),
            place: PLACE.into(),
            rank: 1,
            policy: TierPolicy::default(),
            uuid: [1; 16],
            may_share_disk: false,
            is_again: false,
        };
        store.add_tier(&new).expect("a tier");
        run
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(TieredDisk::impatient(Arc::new(self.home.clone())))
    }

    /// A new process knows nothing of what the last one was sending.
    fn plug(&self) {
        let objects = Box::new(self.far.clone());
        let place = FarPlace::new(objects, Faults::of(self.bug), Duration::ZERO);
        self.home.set_far(PLACE, Arc::new(place));
    }

    fn cut_power(&mut self) {
        let [home] = SimDisk::reboot_all([&self.home]);
        self.home = home;
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

    fn choose(&mut self) -> Operation {
        let random = &mut self.random;
        let names: Vec<&String> = self.model.keys().collect();
        match random.below(17) {
            0..=3 => Operation::Import(
                format!("image{}", random.below(8)),
                random_image(random, &mut self.pool),
            ),
            4..=5 if !names.is_empty() => {
                Operation::Remove(names[random.below(names.len() as u64) as usize].clone())
            }
            6 => Operation::Collect,
            7..=12 => {
                let to = [HOME, COLD, COLD][random.below(3) as usize];
                Operation::Move(random.below(6), to)
            }
            13 => Operation::Settle,
            14..=15 => Operation::Sweep,
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
            Operation::Collect => collect(writer),
            Operation::Move(at, to) => self.move_one(writer, *at, to),
            Operation::Settle => writer.settle_tiers(),
            Operation::Sweep => writer.store().sweep_tiers(),
        }
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
        match self.random.below(4) {
            0 => collect(writer)?,
            1 => writer.settle_tiers()?,
            2 => drop(writer.store().sweep_tiers()),
            _ => {}
        }
        if self.random.is_one_in(4) {
            let count = self.random.below(8);
            self.home.fail_after(count, Fault::PowerCut);
        }
        moving.finish(writer).map(drop)
    }

    /// Reads everything, without trouble. Returns what differs from the model.
    fn compare(&mut self, store: &Store, operation: &Operation) -> Outcome {
        self.far.set_trouble(0);
        let mut found = Model::new();
        for name in store.names().map_err(|e| format!("names: {e}"))? {
            let bytes = match read_all(store, &name) {
                Err(error) if self.is_gone && error.is_unreadable() => {
                    self.model.get(&name).cloned().unwrap_or_default()
                }
                other => other.map_err(|e| format!("{name}: {}", e.with_causes()))?,
            };
            found.insert(name, bytes);
        }
        let mut after = self.model.clone();
        match operation {
            Operation::Import(name, image) => {
                after.entry(name.clone()).or_insert_with(|| image.clone());
            }
            Operation::Remove(name) => drop(after.remove(name)),
            _ => {}
        }
        let same = |wanted: &Model| {
            wanted.keys().eq(found.keys())
                && wanted.iter().all(|(name, bytes)| {
                    found[name] == *bytes || (self.is_gone && found[name].is_empty())
                })
        };
        if same(&self.model) {
            return Ok(());
        }
        if !same(&after) {
            let (names, wanted) = (found.keys(), self.model.keys());
            return Err(format!("found {names:?}, the model has {wanted:?}"));
        }
        self.model = after;
        Ok(())
    }

    fn check(&self, writer: &StoreWriter) -> Outcome {
        self.far.set_trouble(0);
        if self.is_gone {
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
        for _ in 0..8 + self.random.below(20) {
            if self.random.is_one_in(8) {
                self.is_gone = !self.is_gone;
                self.far.set_gone(self.is_gone);
            }
            let trouble = [0, 0, 6, 2][self.random.below(4) as usize];
            self.far.set_trouble(trouble);
            let operation = self.choose();
            let fault = match self.random.below(7) {
                0..=1 => Some(Fault::PowerCut),
                2 => Some(Fault::Io),
                3 => Some(Fault::NoSpace),
                _ => None,
            };
            let count = {
                let window = [10, 40, 200][self.random.below(3) as usize];
                self.random.below(window)
            };
            let mut shown = format!("{operation:?}");
            shown.truncate(60);
            let is_gone = self.is_gone;
            self.trace.push(format!(
                "{shown}, {fault:?} after {count}, trouble {trouble}, gone {is_gone}"
            ));
            if let Some(fault) = fault {
                self.home.fail_after(count, fault);
            }
            let done = match operation {
                Operation::Reopen => {
                    drop(writer);
                    let opened = self.open();
                    self.home.cancel_fault();
                    let (opened, done) = match opened {
                        Ok(opened) => (Ok(opened), Ok(())),
                        Err(error) if fault.is_some() => {
                            if self.home.is_off() {
                                self.cut_power();
                            }
                            (self.open(), Err(error))
                        }
                        Err(error) => (Err(error), Ok(())),
                    };
                    writer = opened.map_err(|e| format!("open: {}", e.with_causes()))?;
                    done
                }
                _ => self.perform(&mut writer, &operation),
            };
            let is_off = self.home.is_off();
            self.home.cancel_fault();
            let is_excused = fault.is_some() || is_off || trouble > 0 || self.is_gone;
            if let (Err(error), false) = (&done, is_excused) {
                return Err(format!("{operation:?}: {}", error.with_causes()));
            }
            if done.is_err() && fault.is_none() && !is_off {
                // The bucket costs the store nothing.
                self.compare(&writer.store().clone(), &operation)?;
                let image = random_image(&mut self.random, &mut self.pool);
                let name = format!("after{}", self.trace.len());
                let written = writer.import(&name, &image);
                written.map_err(|e| format!("after trouble: {}", e.with_causes()))?;
                self.model.insert(name, image);
            }
            let is_cut = is_off || self.random.is_one_in(5);
            if is_cut || (done.is_err() && fault.is_some()) {
                drop(writer);
                if is_cut {
                    self.trace.push("power cut".to_owned());
                    self.cut_power();
                }
                let opened = self.open();
                writer = opened.map_err(|e| format!("open: {}", e.with_causes()))?;
            }
            self.compare(&writer.store().clone(), &operation)?;
            self.check(&writer)?;
        }
        drop(writer);
        self.end()
    }

    /// Empties the store, of which nothing is left in the bucket then.
    fn end(&mut self) -> Outcome {
        self.is_gone = false;
        self.far.set_gone(false);
        let mut writer = self.open().map_err(|e| format!("open: {e}"))?;
        self.compare(&writer.store().clone(), &Operation::Reopen)?;
        writer.settle_tiers().map_err(|e| format!("settle: {e}"))?;
        self.check(&writer)?;
        for name in std::mem::take(&mut self.model).into_keys() {
            let removed = writer.remove(&name, false);
            removed.map_err(|e| format!("remove: {e}"))?;
        }
        collect(&mut writer).map_err(|e| format!("collect: {e}"))?;
        self.check(&writer)?;
        self.far.arrive_all();
        let swept = writer.store().disk.sweep(true);
        swept.map_err(|e| format!("sweep: {e}"))?;
        drop(writer);
        if self.far.keys() != ["tier"] {
            return Err(format!(
                "{:?} are left of an emptied store",
                self.far.keys()
            ));
        }
        let names = self.home.file_names();
        let is_left = |name: &&String| name.starts_with("receipts.") && !name.ends_with("/new");
        match names.iter().find(is_left) {
            Some(name) => Err(format!("{name} is left of an emptied store")),
            None => Ok(()),
        }
    }
}

fn run(seed: u64, bug: Option<Bug>) -> (Outcome, Vec<String>) {
    let mut run = ColdRun::begin(seed, bug);
    let outcome = run.steps();
    (outcome, run.trace)
}

// Would catch: a move that loses a segment whatever happens to requests and to the home, a removal
// that arrives late and takes what counts, a bucket whose failure stops the store, and an object
// that nobody removes any more.
#[test]
fn a_store_with_a_bucket_equals_its_model() {
    for seed in seeds(0..1000) {
        let (outcome, trace) = run(seed, None);
        if let Err(what) = outcome {
            panic!("seed {seed}: {what}\nhistory:\n  {}", trace.join("\n  "));
        }
    }
}

// Would catch a simulation that finds no bug.
#[test]
fn planted_bugs_of_buckets_are_found_by_their_seeds() {
    for (bug, seed) in [
        (Bug::PutUnconfirmed, 0),
        (Bug::ReceiptIgnored, 0),
        (Bug::KeyUsedAgain, 277),
    ] {
        assert!(run(seed, Some(bug)).0.is_err(), "{bug:?} with seed {seed}");
    }
}
