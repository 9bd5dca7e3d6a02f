//! The whole store on a simulated disk, one seed a run: after any crash or failure the reopened
//! store must equal the model, and a check must find nothing.
//!
//! `WEALD_SEEDS=FIRST..END` chooses the seeds; a failure prints its seed.

mod disk;

use crate::{CollectOptions, Store, StoreWriter, WriteOptions};
use disk::{Fault, Random, SimDisk};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::ops::Range;
use std::sync::Arc;
use weald_format::container::{Codec, Footer, RecordRef, RecordType, SuperblockRecord};
use weald_format::{Digest, Result};
use weald_io::ReadAt;
use zerocopy::IntoBytes;

/// Bugs that are planted to show that the simulation finds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Rows are committed although the bytes that they name are not synced.
    MetadataBeforeData,
    /// An image that is removed leaves a reference of one block.
    LostDecrement,
    /// The files of emptied segments go before the maps are written anew.
    SegmentRemovedBeforeMaps,
}

/// An image of random records, some of them from `pool`: enough for a store, which decodes none.
fn random_image(random: &mut Random, pool: &mut Vec<Vec<u8>>) -> Vec<u8> {
    let mut image = SuperblockRecord::current().as_bytes().to_vec();
    for generation in 1..=1 + random.below(2) {
        for _ in 0..random.below(6) {
            let is_old = !pool.is_empty() && random.is_one_in(2);
            let stored = if is_old {
                pool[random.below(pool.len() as u64) as usize].clone()
            } else {
                let len = [0, 1, 100, 700, 3000, 6000][random.below(6) as usize];
                let new: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
                pool.push(new.clone());
                new
            };
            put_record(&mut image, RecordType::Data, &stored);
        }
        let offset = image.len() as u64;
        let directory: Vec<u8> = (0..40).map(|_| random.next() as u8).collect();
        put_record(&mut image, RecordType::Directory, &directory);
        let footer = Footer {
            generation,
            directory_offset: offset,
            directory_len: image.len() as u64 - offset,
            footer_offset: image.len() as u64,
            previous_footer: None,
            image_digest: Digest::of(&image[offset as usize..]),
            tree_digest: Digest::of(&directory),
        };
        image.extend_from_slice(footer.encode().as_bytes());
    }
    image
}

fn put_record(image: &mut Vec<u8>, record_type: RecordType, stored: &[u8]) {
    let record = RecordRef {
        record_type,
        codec: Codec::None,
        offset: 0,
        stored_len: stored.len() as u64,
        raw_len: stored.len() as u64,
        digest: Digest::of(stored),
    };
    image.extend_from_slice(record.header().as_bytes());
    image.extend_from_slice(stored);
}

type Model = BTreeMap<String, Vec<u8>>;

#[derive(Debug, Clone)]
enum Operation {
    Import(String, Vec<u8>),
    Remove(String),
    Collect(CollectOptions),
    Reopen,
}

struct Run {
    random: Random,
    disk: SimDisk,
    model: Model,
    pool: Vec<Vec<u8>>,
    bug: Option<Bug>,
    history: Vec<String>,
}

/// What a run found wrong.
type Outcome = std::result::Result<(), String>;

fn read_all(store: &Store, name: &str) -> Result<Vec<u8>> {
    let image = store.image(name)?;
    let mut bytes = vec![0; image.len() as usize];
    image.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

impl Run {
    fn begin(seed: u64, bug: Option<Bug>) -> Self {
        let mut random = Random::new(seed);
        let disk = SimDisk::new(seed);
        let segment_len = [4096, 8192, 20_000][random.below(3) as usize];
        Store::create(Arc::new(disk.clone()), [seed as u8; 16], segment_len).expect("create");
        let (model, pool, history) = Default::default();
        Self {
            random,
            disk,
            model,
            pool,
            bug,
            history,
        }
    }

    fn open(&self) -> Result<StoreWriter> {
        let store = Store::open(Arc::new(self.disk.clone()))?;
        let options = WriteOptions {
            bug: self.bug,
            index_len: 28 * 64,
            ..WriteOptions::new("the simulation")
        };
        store.write(options)
    }

    fn choose(&mut self) -> Operation {
        let names: Vec<&String> = self.model.keys().collect();
        let pick = |random: &mut Random| names[random.below(names.len() as u64) as usize].clone();
        match self.random.below(10) {
            0..=4 => {
                let name = format!("image{}", self.random.below(8));
                Operation::Import(name, random_image(&mut self.random, &mut self.pool))
            }
            5..=6 if !names.is_empty() => Operation::Remove(pick(&mut self.random)),
            7..=8 => Operation::Collect(CollectOptions {
                copy_below_percent: [50, 80, 100][self.random.below(3) as usize],
                copy_len_max: [u64::MAX, 5000][self.random.below(2) as usize],
            }),
            _ => Operation::Reopen,
        }
    }

    fn apply(model: &mut Model, operation: &Operation) {
        match operation {
            Operation::Import(name, image) => {
                model.entry(name.clone()).or_insert_with(|| image.clone());
            }
            Operation::Remove(name) => drop(model.remove(name)),
            Operation::Collect(_) | Operation::Reopen => {}
        }
    }

    fn perform(&self, writer: &mut Option<StoreWriter>, operation: &Operation) -> Result<()> {
        if writer.is_none() || matches!(operation, Operation::Reopen) {
            *writer = None;
            *writer = Some(self.open()?);
        }
        let Some(writer) = writer else { return Ok(()) };
        match operation {
            Operation::Import(name, image) if self.model.contains_key(name) => {
                writer
                    .import(name, image)
                    .map(drop)
                    .expect_err("an image of a name that is taken");
                Ok(())
            }
            Operation::Import(name, image) => writer.import(name, image).map(drop),
            Operation::Remove(name) => writer.remove(name, false),
            Operation::Collect(options) => writer
                .collect(options, &mut |_| ControlFlow::Continue(()))
                .map(drop),
            Operation::Reopen => Ok(()),
        }
    }

    /// Everything that must hold of the store now; returns what it holds.
    fn verify(&self, store: &Store) -> std::result::Result<Model, String> {
        let names = store.names().map_err(|e| format!("names: {e}"))?;
        let mut found = Model::new();
        for name in names {
            let bytes = read_all(store, &name).map_err(|e| format!("{name}: {e}"))?;
            found.insert(name, bytes);
        }
        Ok(found)
    }

    fn check(writer: &StoreWriter) -> Outcome {
        let checked = writer
            .check(true, &mut |_| {})
            .map_err(|e| format!("check: {e}"))?;
        match checked.findings.is_empty() {
            true => Ok(()),
            false => Err(format!("check: {:?}", checked.findings)),
        }
    }

    /// Opens the store after a failure, and adopts what it holds if it is the model before or
    /// after `operation`.
    fn settle(&mut self, operation: &Operation) -> std::result::Result<StoreWriter, String> {
        let writer = self.open().map_err(|e| format!("open: {e:?}"))?;
        let found = self.verify(writer.store())?;
        let mut after = self.model.clone();
        Self::apply(&mut after, operation);
        if found != self.model && found != after {
            let names: Vec<&String> = found.keys().collect();
            let wanted: Vec<&String> = self.model.keys().collect();
            return Err(format!(
                "found {names:?}, the model has {wanted:?}, before {operation:?}"
            ));
        }
        self.model = found;
        Self::check(&writer)?;
        Ok(writer)
    }

    fn go(mut self) -> (Outcome, Vec<String>) {
        let outcome = self.steps();
        (outcome, self.history)
    }

    fn steps(&mut self) -> Outcome {
        let mut writer = None;
        for _ in 0..4 + self.random.below(12) {
            let operation = self.choose();
            let mut shown = format!("{operation:?}");
            shown.truncate(60);
            self.history.push(shown);
            let reader = self.model.keys().next().cloned();
            let old = reader.and_then(|name| {
                let store = Store::open(Arc::new(self.disk.clone())).ok()?;
                Some((store.image(&name).ok()?, name))
            });
            let fault = match self.random.below(6) {
                0..=1 => Some(Fault::PowerCut),
                2 => Some(Fault::Io),
                3 => Some(Fault::NoSpace),
                _ => None,
            };
            if let Some(fault) = fault {
                let count = self.random.below(60);
                self.history.push(format!("{fault:?} after {count} calls"));
                self.disk.fail_after(count, fault);
            }
            let is_held =
                matches!((&operation, &old), (Operation::Remove(a), Some((_, b))) if a == b);
            let done = match is_held {
                // An image that is read cannot be removed; then it can.
                true => self.perform(&mut writer, &Operation::Reopen),
                false => self.perform(&mut writer, &operation),
            };
            self.disk.heal();
            match done {
                Ok(()) if is_held => {}
                Ok(()) => Self::apply(&mut self.model, &operation),
                Err(_) if fault.is_some() => {}
                Err(error) => return Err(format!("{operation:?}: {error}")),
            }
            let failed = done.is_err() && fault.is_some();
            let is_cut = self.disk.is_off() || self.random.is_one_in(4);
            if is_cut {
                self.history.push("power cut".to_owned());
                (writer, self.disk) = (None, self.disk.reboot());
            } else if let Some((image, name)) = old.filter(|_| !failed) {
                // A reader from before must go on, wherever the blocks lie now.
                let mut bytes = vec![0; image.len() as usize];
                image
                    .read_exact_at(&mut bytes, 0)
                    .map_err(|e| format!("old reader: {e}"))?;
                if self.model.get(&name).is_some_and(|wanted| *wanted != bytes) {
                    return Err(format!("old reader of {name}: other bytes"));
                }
            }
            if failed || is_cut {
                drop(writer.take());
                let operation = if failed { operation } else { Operation::Reopen };
                writer = Some(self.settle(&operation)?);
            }
        }
        drop(writer);
        self.end()
    }

    /// Nothing may be left of a store that is emptied.
    fn end(&mut self) -> Outcome {
        let mut writer = self.settle(&Operation::Reopen)?;
        for name in std::mem::take(&mut self.model).into_keys() {
            writer
                .remove(&name, false)
                .map_err(|e| format!("remove: {e}"))?;
        }
        let options = CollectOptions::default();
        writer
            .collect(&options, &mut |_| ControlFlow::Continue(()))
            .map_err(|e| format!("collect: {e}"))?;
        Self::check(&writer)?;
        drop(writer);
        let left = self.disk.len_below("segments/") + self.disk.len_below("images/");
        match left {
            0 => Ok(()),
            left => Err(format!("{left} bytes are left of an emptied store")),
        }
    }
}

fn seeds(usual: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var("WEALD_SEEDS") else {
        return usual;
    };
    let (first, end) = text.split_once("..").expect("WEALD_SEEDS=FIRST..END");
    first.parse().expect("a seed")..end.parse().expect("a seed")
}

// Would catch any order of writes, syncs, commits and removals that a crash or an error can turn
// into a lost image, a wrong byte, a wrong count or lost space.
#[test]
fn a_store_equals_its_model_after_every_fault() {
    for seed in seeds(0..1000) {
        let (outcome, history) = Run::begin(seed, None).go();
        if let Err(what) = outcome {
            panic!("seed {seed}: {what}\nhistory:\n  {}", history.join("\n  "));
        }
    }
}

// Would catch a simulation that finds nothing.
#[test]
fn planted_bugs_are_found_within_a_thousand_seeds() {
    for bug in [
        Bug::MetadataBeforeData,
        Bug::LostDecrement,
        Bug::SegmentRemovedBeforeMaps,
    ] {
        let found = (0..1000).find(|&seed| Run::begin(seed, Some(bug)).go().0.is_err());
        let seed = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: found by seed {seed}");
    }
}
