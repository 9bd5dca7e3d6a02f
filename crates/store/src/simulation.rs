//! Runs the whole store on a simulated disk, one run per seed. After any crash or failure the
//! reopened store must equal the model, and a check must find no defect.
//!
//! `WEALD_SEEDS=FIRST..END` selects the seeds; a failure prints its seed.

mod bucket;
mod cold;
mod far;
mod journal;
mod lost;
mod machine;
mod network;
mod replica;
mod scrub;
mod standby;
mod tiers;

use crate::disk::LocalFiles;
use crate::faults::{Bug, Faults};
use crate::simulated_disk::{Fault, Random, SimDisk};
use crate::{CollectOptions, IfTaken, Steps, Store, StoreWriter, StoredImage, WriteOptions};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::ops::Range;
use std::sync::Arc;
use weald_format::container::{Codec, Footer, HEADER_LEN, RecordRef, RecordType, SuperblockRecord};
use weald_format::store::Part;
use weald_format::{Digest, Result};
use weald_io::ReadAt;
use zerocopy::IntoBytes;

/// An image of random records, some of them from `pool`. This is a valid image for a store, because
/// a store decodes no block.
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
    Replace(String, Vec<u8>),
    Remove(String),
    Rename(String, String, IfTaken),
    Collect(CollectOptions),
    Reopen,
}

struct StoreRun {
    random: Random,
    disk: SimDisk,
    model: Model,
    pool: Vec<Vec<u8>>,
    bug: Option<Bug>,
    /// Epoch of the next writer.
    epoch: Cell<u64>,
    trace: Vec<String>,
}

/// A reader that opened an image some operations ago.
struct Held {
    image: StoredImage,
    bytes: Vec<u8>,
    /// The name that the image has now; `None` if it was replaced.
    name: Option<String>,
}

impl Held {
    /// Whether the image would be removed.
    fn is_in_the_way(&self, operation: &Operation) -> bool {
        matches!(operation, Operation::Remove(name) if Some(name) == self.name.as_ref())
    }

    /// The operation was done.
    fn follow(&mut self, operation: &Operation) {
        let Some(name) = &self.name else { return };
        match operation {
            Operation::Replace(replaced, _) if replaced == name => self.name = None,
            Operation::Rename(old, new, _) if old == name => self.name = Some(new.clone()),
            Operation::Rename(_, new, _) if new == name => self.name = None,
            _ => {}
        }
    }

    /// It reads what it has opened, wherever the blocks are now.
    fn verify(&self) -> Outcome {
        let mut bytes = vec![0; self.image.len() as usize];
        let read = self.image.read_exact_at(&mut bytes, 0);
        read.map_err(|error| format!("old reader: {error}"))?;
        if bytes == self.bytes {
            Ok(())
        } else {
            Err(format!("old reader of {:?}: other bytes", self.name))
        }
    }
}

/// `Err` describes the first difference that a run found.
type Outcome = std::result::Result<(), String>;

fn read_all(store: &Store, name: &str) -> Result<Vec<u8>> {
    let image = StoredImage::open(store.clone(), name)?;
    let mut bytes = vec![0; image.len() as usize];
    image.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

impl StoreRun {
    fn begin(seed: u64, bug: Option<Bug>) -> Self {
        crate::engine::trial::set(seed, bug == Some(Bug::DividedRowsLost));
        let mut random = Random::new(seed);
        let disk = SimDisk::new(seed);
        let segment_len = [4096, 8192, 20_000][random.below(3) as usize];
        Store::create(Arc::new(disk.clone()), [seed as u8; 16], segment_len).expect("create");
        let (model, pool, trace) = Default::default();
        Self {
            random,
            disk,
            model,
            pool,
            bug,
            epoch: Cell::new(seed << 32),
            trace,
        }
    }

    fn open(&self) -> Result<StoreWriter> {
        let store = Store::open(Arc::new(self.disk.clone()))?;
        store.write(self.options())
    }

    fn options(&self) -> WriteOptions {
        WriteOptions {
            faults: Faults::of(self.bug),
            index_len: 28 * 64,
            steps: Steps {
                journal_len: 3000,
                journal_row_count: 20,
                scrub_len: 3000,
                scrub_block_count: 5,
                ..Steps::default()
            },
            epoch: self.epoch.replace(self.epoch.get() + 1),
            ..WriteOptions::new("the simulation")
        }
    }

    fn choose(&mut self) -> Operation {
        let names: Vec<&String> = self.model.keys().collect();
        let pick = |random: &mut Random| names[random.below(names.len() as u64) as usize].clone();
        match self.random.below(13) {
            10..=11 if !names.is_empty() => {
                let name = pick(&mut self.random);
                Operation::Replace(name, random_image(&mut self.random, &mut self.pool))
            }
            12 if !names.is_empty() => {
                let name = pick(&mut self.random);
                let new = format!("image{}", self.random.below(8));
                let if_taken = [IfTaken::Fail, IfTaken::Replace];
                Operation::Rename(name, new, if_taken[self.random.below(2) as usize])
            }
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

    /// Whether an image would get a name that is taken, or that it has.
    fn is_refused(model: &Model, operation: &Operation) -> bool {
        match operation {
            Operation::Rename(old, new, if_taken) => {
                old == new || *if_taken == IfTaken::Fail && model.contains_key(new)
            }
            _ => false,
        }
    }

    fn apply(model: &mut Model, operation: &Operation) {
        match operation {
            Operation::Import(name, image) => {
                model.entry(name.clone()).or_insert_with(|| image.clone());
            }
            Operation::Replace(name, image) => drop(model.insert(name.clone(), image.clone())),
            Operation::Remove(name) => drop(model.remove(name)),
            rename if Self::is_refused(model, rename) => {}
            Operation::Rename(old, new, _) => {
                let image = model.remove(old);
                model.extend(image.map(|image| (new.clone(), image)));
            }
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
            Operation::Import(name, image) => {
                writer.import(name, image)?;
                match image.len() % 2 {
                    0 => writer.put_content_digests(name, &[Some(Digest::of(image)), None]),
                    _ => Ok(()),
                }
            }
            Operation::Replace(name, image) => writer.import_over(name, image).map(drop),
            Operation::Remove(name) => writer.remove(name, false),
            Operation::Rename(old, new, if_taken) => {
                let done = writer.rename(old, new, *if_taken);
                if Self::is_refused(&self.model, operation) {
                    done.expect_err("an image gets a name that is taken");
                    return Ok(());
                }
                done
            }
            Operation::Collect(options) => writer
                .collect(options, &mut |_| ControlFlow::Continue(()))
                .map(drop),
            Operation::Reopen => Ok(()),
        }
    }

    /// Reads every image of the store and returns the contents.
    fn verify(&self, store: &Store) -> std::result::Result<Model, String> {
        let names = store.names().map_err(|e| format!("names: {e}"))?;
        let mut found = Model::new();
        for name in names {
            let bytes =
                read_all(store, &name).map_err(|e| format!("{name}: {}", e.with_causes()))?;
            found.insert(name, bytes);
        }
        Ok(found)
    }

    fn check(writer: &StoreWriter) -> Outcome {
        let checked = writer
            .check(true, &mut |_| {})
            .map_err(|e| format!("check: {e}"))?;
        if checked.findings.is_empty() {
            Ok(())
        } else {
            Err(format!("check: {:?}", checked.findings))
        }
    }

    /// Opens the store after a failure. Its contents must equal the model before or after
    /// `operation`, and become the new model.
    fn reopen_and_compare(
        &mut self,
        operation: &Operation,
    ) -> std::result::Result<StoreWriter, String> {
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
        journal::compare(&writer, false)?;
        Ok(writer)
    }

    fn run(mut self) -> (Outcome, Vec<String>) {
        let outcome = self.steps();
        (outcome, self.trace)
    }

    fn steps(&mut self) -> Outcome {
        let mut writer = None;
        let mut held: Option<Held> = None;
        for _ in 0..4 + self.random.below(12) {
            let operation = self.choose();
            let mut shown = format!("{operation:?}");
            shown.truncate(60);
            self.trace.push(shown);
            if held.is_none() || self.random.is_one_in(4) {
                drop(held.take());
                held = self.hold();
            }
            let fault = match self.random.below(6) {
                0..=1 => Some(Fault::PowerCut),
                2 => Some(Fault::Io),
                3 => Some(Fault::NoSpace),
                _ => None,
            };
            if let Some(fault) = fault {
                let window = [20, 60, 200][self.random.below(3) as usize];
                let count = self.random.below(window);
                self.trace.push(format!("{fault:?} after {count} calls"));
                self.disk.fail_after(count, fault);
            }
            let is_held = held
                .as_ref()
                .is_some_and(|held| held.is_in_the_way(&operation));
            let done = if is_held {
                // A reader has the image open, so that its removal is skipped.
                self.perform(&mut writer, &Operation::Reopen)
            } else {
                self.perform(&mut writer, &operation)
            };
            self.disk.cancel_fault();
            match done {
                Ok(()) if is_held => {}
                Ok(()) => {
                    let is_refused = Self::is_refused(&self.model, &operation);
                    if let Some(held) = held.as_mut().filter(|_| !is_refused) {
                        held.follow(&operation);
                    }
                    Self::apply(&mut self.model, &operation);
                }
                Err(_) if fault.is_some() => {}
                Err(error) => return Err(format!("{operation:?}: {error}")),
            }
            let failed = done.is_err() && fault.is_some();
            let is_cut = self.disk.is_off() || self.random.is_one_in(4);
            if is_cut {
                self.trace.push("power cut".to_owned());
                drop(held.take());
                (writer, self.disk) = (None, self.disk.reboot());
            } else if failed {
                // Which name it has now is not known.
                drop(held.take());
            } else if let Some(held) = &held {
                held.verify()?;
            }
            if failed || is_cut {
                drop(writer.take());
                let operation = if failed { operation } else { Operation::Reopen };
                writer = Some(self.reopen_and_compare(&operation)?);
            }
        }
        drop((writer, held));
        self.end()
    }

    /// Opens an image, which may be replaced or get another name later.
    fn hold(&mut self) -> Option<Held> {
        let count = self.model.len() as u64;
        let at = self.random.below(count.max(1)) as usize;
        let (name, bytes) = self.model.iter().nth(at)?;
        let store = Store::open(Arc::new(self.disk.clone())).ok()?;
        Some(Held {
            image: StoredImage::open(store, name).ok()?,
            bytes: bytes.clone(),
            name: Some(name.clone()),
        })
    }

    /// Empties the store; no segment and no map may remain.
    fn end(&mut self) -> Outcome {
        let mut writer = self.reopen_and_compare(&Operation::Reopen)?;
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
        let leaked_len = self.disk.len_below("segments/") + self.disk.len_below("images/");
        match leaked_len {
            0 => Ok(()),
            leaked_len => Err(format!("{leaked_len} bytes are left of an emptied store")),
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

// Would catch an order of writes, syncs, commits and removals in which a crash or an error loses an
// image, changes a byte, miscounts or leaks space.
#[test]
fn a_store_equals_its_model_after_every_fault() {
    for seed in seeds(0..1000) {
        let (outcome, trace) = StoreRun::begin(seed, None).run();
        if let Err(what) = outcome {
            panic!("seed {seed}: {what}\nhistory:\n  {}", trace.join("\n  "));
        }
    }
}

// Would catch a simulation that finds no bug.
#[test]
fn planted_bugs_are_found_within_thousands_of_seeds() {
    for bug in [
        Bug::MetadataBeforeData,
        Bug::LostDecrement,
        Bug::SegmentRemovedBeforeMaps,
        Bug::ReplacedMapNotKept,
        Bug::ReplacedReleasedEarly,
        Bug::RenamedMapNotHidden,
        Bug::DividedRowsLost,
        Bug::NoteNamesOthers,
        Bug::MarkBeforeCommit,
    ] {
        let found = (0..10_000).find(|&seed| StoreRun::begin(seed, Some(bug)).run().0.is_err());
        let seed = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: found by seed {seed}");
    }
}

/// Who tells that tables are older than the rest of the store.
#[derive(Debug, Clone, Copy)]
enum Told {
    /// The mark, the journal, and the notes in segments.
    All,
    /// The journal and the notes.
    Journal,
    /// The notes alone.
    Segments,
}

/// Puts tables back that are older than the segments. Writers must refuse them and change no byte;
/// with the right tables the store is as before. `told` says what there is that tells older tables.
fn put_older_tables_back(seed: u64, bug: Option<Bug>, told: Told) -> Outcome {
    let mut run = StoreRun::begin(seed, bug);
    let mut writer = run.open().map_err(|e| format!("open: {e}"))?;
    let import = |run: &mut StoreRun, writer: &mut StoreWriter, name: &str| {
        let image = random_image(&mut run.random, &mut run.pool);
        writer
            .import(name, &image)
            .map_err(|e| format!("import: {e}"))?;
        run.model.insert(name.to_owned(), image);
        Outcome::Ok(())
    };
    import(&mut run, &mut writer, "first")?;
    let older = seed
        .is_multiple_of(2)
        .then(|| run.disk.contents()["meta"].clone());
    drop(writer);
    let older = older.unwrap_or_else(|| run.disk.contents()["meta"].clone());
    let mut writer = run.open().map_err(|e| format!("open again: {e}"))?;
    import(&mut run, &mut writer, "second")?;
    // What tells older tables otherwise: a map without a row.
    writer
        .remove("second", false)
        .map_err(|e| format!("remove: {e}"))?;
    run.model.remove("second");
    drop(writer);
    run.disk = run.disk.reboot();
    let newer = run.disk.contents()["meta"].clone();
    let is_removed = |name: &String| match told {
        Told::All => false,
        Told::Journal => name == "mark",
        Told::Segments => name == "mark" || name.starts_with("journal/"),
    };
    for name in run.disk.contents().into_keys().filter(is_removed) {
        let removed = run.disk.remove(&name);
        removed.map_err(|e| format!("{name}: {e}"))?;
    }
    run.disk.put_back("meta", &older);
    let before = run.disk.contents();
    let refused = run.open().and_then(|mut writer| {
        let image = random_image(&mut run.random, &mut run.pool);
        writer.import("third", &image)
    });
    let after = run.disk.contents();
    let segments = |files: &BTreeMap<String, Vec<u8>>| {
        let mut files = files.clone();
        files.retain(|name, _| name.starts_with("segments/"));
        files
    };
    if segments(&before) != segments(&after) {
        return Err(format!("a segment changed: {:?}", refused.err()));
    }
    match refused {
        Err(error) if error.to_string().contains("is older than the rest") => {}
        other => return Err(format!("older tables: {other:?}")),
    }
    run.disk.put_back("meta", &newer);
    drop(run.reopen_and_compare(&Operation::Reopen)?);
    Ok(())
}

// Would catch a writer that takes the records of newer commits for those of a crash, and truncates
// them.
#[test]
fn tables_that_are_older_than_the_segments_are_refused() {
    for seed in seeds(0..200) {
        for told in [Told::All, Told::Journal, Told::Segments] {
            let outcome = put_older_tables_back(seed, None, told);
            outcome.unwrap_or_else(|what| panic!("seed {seed}, {told:?}: {what}"));
        }
    }
    let bug = Some(Bug::TailTruncated);
    let found = (0..200).find(|&seed| put_older_tables_back(seed, bug, Told::Segments).is_err());
    println!(
        "TailTruncated: found by seed {}",
        found.expect("a planted bug")
    );
}

/// A store with three images that share records, and its model.
fn filled(seed: u64) -> StoreRun {
    let mut run = StoreRun::begin(seed, None);
    let mut writer = run.open().expect("open");
    for n in 0..3 {
        let image = random_image(&mut run.random, &mut run.pool);
        let name = format!("image{n}");
        writer.import(&name, &image).expect("import");
        run.model.insert(name, image);
    }
    run
}

// Would catch a salvage that loses an image, counts wrongly, or assigns a number twice.
#[test]
fn salvage_restores_every_image() {
    for seed in 0..50 {
        let run = filled(seed);
        run.disk.remove("meta").expect("remove");
        let refused = run
            .open()
            .map(drop)
            .expect_err("a store without its metadata");
        assert!(
            refused.to_string().contains("weald store salvage"),
            "{refused}"
        );
        let store = Store::open(Arc::new(run.disk.clone())).expect("open");
        let salvaged = store
            .salvage(&crate::SalvageOptions::default())
            .expect("salvage");
        assert_eq!(
            (salvaged.images.len(), salvaged.damaged.len()),
            (3, 0),
            "seed {seed}"
        );
        let mut writer = run.open().expect("open after salvage");
        StoreRun::check(&writer).expect("a clean store");
        assert_eq!(
            run.verify(&store).expect("images"),
            run.model,
            "seed {seed}"
        );
        let again = run.model.values().next().expect("an image").clone();
        let imported = writer.import("again", &again).expect("import");
        assert_eq!(imported.new_block_count, 0, "seed {seed}");
        StoreRun::check(&writer).expect("a clean store");
    }
}

// Would catch a check that misses damage or does not name the image, and an import that takes a
// damaged block for a duplicate.
#[test]
fn damage_is_named_and_can_be_replaced() {
    let run = filled(7);
    let (name, image) = run.model.iter().next().expect("an image");
    let store = Store::open(Arc::new(run.disk.clone())).expect("open");
    let map = store.map(name).expect("a map");
    let place = map.parts.iter().find_map(|part| match part {
        Part::Block {
            location, record, ..
        } if record.stored_len > 0 => Some(*location),
        _ => None,
    });
    let place = place.expect("a record with bytes");
    let byte = place.offset as usize + HEADER_LEN;
    run.disk
        .flip(&crate::layout::segment_file(place.segment), byte, 3);
    let mut writer = run.open().expect("open");
    let checked = writer.check(true, &mut |_| {}).expect("check");
    let named: Vec<_> = checked
        .findings
        .iter()
        .filter_map(|f| f.image.as_ref())
        .collect();
    assert!(named.contains(&name), "{checked:?}");
    // Without the data, the check finds a consistent structure.
    assert!(
        writer
            .check(false, &mut |_| {})
            .expect("check")
            .findings
            .is_empty()
    );
    drop(writer);
    let options = WriteOptions {
        verifies_duplicates: true,
        ..WriteOptions::new("a test")
    };
    writer = store.write(options).expect("open");
    for (no, image) in run.model.values().enumerate() {
        writer.import(&format!("copy{no}"), image).expect("import");
    }
    let copy = read_all(&store, "copy0").expect("a copy");
    assert!(copy == *image, "the copy of {name} differs");
}

// Would catch a second writer beside the first one, and a message that does not name the first.
#[test]
fn a_second_writer_gets_the_name_of_the_first() {
    let run = filled(1);
    let first = run.open().expect("open");
    let busy = run.open().map(drop).expect_err("two writers");
    assert_eq!(busy.kind(), weald_format::ErrorKind::Busy);
    assert!(
        busy.to_string()
            .contains("is being written by the simulation"),
        "{busy}"
    );
    drop(first);
    run.open().expect("open after the first");
}

// Would catch replaced images that pile up without a limit, one that goes while it is read, and one
// that stays when nobody reads it.
#[test]
fn replaced_images_stay_for_their_readers_up_to_a_limit() {
    let mut run = filled(3);
    let mut writer = run.open().expect("open");
    let store = writer.store().clone();
    let mut readers = Vec::new();
    for _ in 0..crate::layout::REPLACED_COUNT_MAX {
        let bytes = read_all(&store, "image0").expect("read");
        let image = StoredImage::open(store.clone(), "image0").expect("an image");
        readers.push((image, bytes));
        let image = random_image(&mut run.random, &mut run.pool);
        writer.import_over("image0", &image).expect("replace");
    }
    let names = ["image0", "image1", "image2"];
    assert_eq!(store.names().expect("names"), names);
    let last = StoredImage::open(store.clone(), "image0").expect("an image");
    for error in [
        writer.import_over("image0", &run.model["image1"]).map(drop),
        writer.rename("image1", "image0", IfTaken::Replace),
    ] {
        let error = error.expect_err("one more");
        assert_eq!(error.kind(), weald_format::ErrorKind::Limit, "{error}");
    }
    let all = CollectOptions {
        copy_below_percent: 100,
        ..CollectOptions::default()
    };
    let collect = |writer: &mut StoreWriter| {
        let done = writer.collect(&all, &mut |_| ControlFlow::Continue(()));
        done.expect("collect");
        StoreRun::check(writer).expect("a clean store");
    };
    collect(&mut writer);
    for (image, bytes) in &readers {
        let mut found = vec![0; bytes.len()];
        image.read_exact_at(&mut found, 0).expect("an old image");
        assert!(found == *bytes, "other bytes");
    }
    let before = run.disk.len_below("segments/");
    drop((readers, last));
    drop(writer);
    writer = run.open().expect("open again");
    assert_eq!(writer.replaced_images().expect("rows"), [""; 0]);
    collect(&mut writer);
    assert!(run.disk.len_below("segments/") < before);
    writer
        .rename("image1", "image0", IfTaken::Replace)
        .expect("replace");
    assert_eq!(
        read_all(&store, "image0").expect("read"),
        run.model["image1"]
    );
}

// Would catch a removal without `--force` of an image that a reader has open.
#[test]
fn an_open_image_cannot_be_removed() {
    let run = filled(2);
    let mut writer = run.open().expect("open");
    let image = StoredImage::open(writer.store().clone(), "image0").expect("an image");
    let busy = writer.remove("image0", false).expect_err("an image in use");
    assert_eq!(busy.kind(), weald_format::ErrorKind::Busy, "{busy}");
    drop(image);
    writer.remove("image0", false).expect("remove");
}
