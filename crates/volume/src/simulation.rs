//! Runs the whole volume on a simulated disk, one run per seed. After any crash or failure the
//! volume must be as the model was after one of its operations. No operation that a sync
//! acknowledged may be missing, and a check must find nothing.
//!
//! `WEALD_SEEDS=FIRST..END` selects the seeds, `WEALD_BUG=NAME` one planted bug. A failure prints
//! its seed and the fewest steps that still fail.

mod perform;
mod rename_steps;
mod run;
mod scrub_steps;
mod sealed;
mod snapshot_steps;
mod steps;

use crate::options::PlantedBug;
use crate::tests::new_inode;
use crate::{Hold, OpenOptions, Volume, VolumeOptions, create};
use run::Plan;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use weald_format::{Digest, FileKind};
use weald_store::Store;
use weald_store::simulated_disk::{Random, SimDisk};
use weald_vfs::{Ino, NewStat, WritableFs};

/// Seeds of a run of the tests; `make soak PART=volumes` takes a million.
const SEEDS: Range<u64> = 0..3000;
/// Seeds within which each planted bug must be found.
const BUG_SEEDS: u64 = 3000;

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("WEALD_SEEDS") else {
        return SEEDS;
    };
    let (first, end) = text.split_once("..").expect("WEALD_SEEDS=FIRST..END");
    first.parse().expect("a seed")..end.parse().expect("a seed")
}

/// The first seed whose run fails, tried by all processors.
fn first_failure(seeds: Range<u64>, bug: Option<PlantedBug>) -> Option<u64> {
    first_failure_with(seeds, bug, false)
}

/// As [`first_failure`]; with `sorts`, blocks are sorted in place of each collection.
fn first_failure_with(seeds: Range<u64>, bug: Option<PlantedBug>, sorts: bool) -> Option<u64> {
    let next = AtomicU64::new(seeds.start);
    let failed = AtomicU64::new(u64::MAX);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || seed > failed.load(Ordering::Relaxed) {
                return;
            }
            let plan = Plan::of_seed(seed, bug).with_sorts(sorts);
            if plan.run().0.is_err() {
                failed.fetch_min(seed, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        let count = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..count {
            scope.spawn(work);
        }
    });
    Some(failed.into_inner()).filter(|seed| *seed != u64::MAX)
}

// Would catch an order of writes, syncs and commits that fails in a crash or an error: a synced
// operation is lost, a part of one is kept, a byte changes, space is miscounted.
#[test]
fn a_volume_is_a_prefix_of_its_operations_after_every_fault() {
    assert_prefix(seeds(), false);
}

// Would catch a sort of blocks into segments that loses one when a commit, a seal, a removal or a
// fault comes between its steps.
#[test]
fn a_volume_whose_blocks_are_sorted_is_a_prefix_of_its_operations() {
    let seeds = seeds();
    let third = (seeds.end - seeds.start) / 3;
    assert_prefix(seeds.start..seeds.start + third, true);
}

// Would catch a simulation that finds no bug of sorts.
#[test]
fn planted_bugs_of_sorts_are_found() {
    for bug in [
        PlantedBug::SegmentRemovedEarly,
        PlantedBug::MovedBeforeData,
        PlantedBug::MapsNotRenewed,
        PlantedBug::HeldBlocksMoved,
    ] {
        let seed = first_failure_with(0..BUG_SEEDS, Some(bug), true);
        println!("{bug:?}: {seed:?}");
        assert!(seed.is_some(), "not found: {bug:?}");
    }
}

fn assert_prefix(seeds: Range<u64>, sorts: bool) {
    let Some(seed) = first_failure_with(seeds, None, sorts) else {
        return;
    };
    let plan = Plan::of_seed(seed, None).with_sorts(sorts);
    let count = plan.steps.len();
    let plan = plan.minimise();
    let (verdict, trace) = plan.run();
    panic!(
        "seed {seed}: {verdict:?}\n{} of {count} steps:\n  {}",
        plan.steps.len(),
        trace.join("\n  ")
    );
}

// Would catch a simulation that finds no bug.
#[test]
fn planted_bugs_are_found_within_thousands_of_seeds() {
    let mut missed = Vec::new();
    let chosen = std::env::var("WEALD_BUG").ok();
    let is_chosen = |bug: &PlantedBug| match &chosen {
        Some(word) => format!("{bug:?}") == *word,
        None => true,
    };
    for bug in PlantedBug::ALL.into_iter().filter(is_chosen) {
        let seed = first_failure(0..BUG_SEEDS, Some(bug));
        let Some(seed) = seed else {
            missed.push(bug);
            continue;
        };
        let (verdict, _) = Plan::of_seed(seed, Some(bug)).run();
        println!("{bug:?}: found by seed {seed}: {verdict:?}");
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

// Would catch a commit that does not fit on the disk, because the tables were not counted, and a
// full volume that cannot be emptied.
#[test]
fn a_volume_that_filled_its_disk_with_names_can_be_emptied() {
    let disk = SimDisk::new(1);
    let store = Store::create(Arc::new(disk.clone()), [1; 16], 1 << 20).expect("a store");
    create(&store, "v", &VolumeOptions::default(), [1; 16], 0).expect("a volume");
    disk.limit(disk.used() + (4 << 20));
    let options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    let volume = Volume::open(&store, "v", options).expect("open");
    let new = new_inode(FileKind::Regular);
    // Names that Zstandard does not make shorter fill the disk soon.
    let name = |number: u32| {
        let digest = |part: u8| Digest::of(&[number.to_le_bytes(), [part; 4]].concat()).0;
        let noise: Vec<u8> = (0..6).flat_map(digest).collect();
        noise.iter().map(|byte| byte | 0x80).collect::<Vec<u8>>()
    };
    let count =
        (0..100_000).find(
            |number| match volume.create(Ino::ROOT, &name(*number), &new, 1) {
                Ok(_) => false,
                Err(failure) if failure.errno == Errno::NOSPC => true,
                Err(failure) => panic!("file {number}: {failure:?}"),
            },
        );
    let count = count.expect("a full disk");
    assert!(count > 1000, "full after {count} files");
    volume.sync().expect("sync");
    for number in 0..count {
        let removed = volume.unlink(Ino::ROOT, &name(number), 2).expect("unlink");
        volume.forget(removed.ino).expect("forget");
    }
    volume.sync().expect("sync");
    volume.create(Ino::ROOT, b"new", &new, 3).expect("create");
    volume.close().expect("close");
}

// Would catch a commit that does not fit on the disk, because what it writes was not counted:
// overwritten chunks have rows all over the tables, and dead ones stay while a state is held.
#[test]
fn a_full_disk_takes_scattered_overwrites() {
    let mut random = Random::new(7);
    for _ in 0..6 {
        let disk_len = (3 << 20) + random.below(9 << 20);
        let cache_len = [1u64 << 20, 16 << 20, 64 << 20][random.below(3) as usize];
        overwrite_on_a_full_disk(disk_len, cache_len);
    }
}

fn overwrite_on_a_full_disk(disk_len: u64, cache_len: u64) {
    const CHUNK_LEN: u64 = 4096;
    let disk = SimDisk::new(1);
    let store = Store::create(Arc::new(disk.clone()), [1; 16], 1 << 20).expect("a store");
    let options = VolumeOptions {
        chunk_len: CHUNK_LEN as u32,
        ..VolumeOptions::default()
    };
    create(&store, "v", &options, [1; 16], 0).expect("a volume");
    disk.limit(disk.used() + disk_len);
    let options = OpenOptions {
        background: false,
        cache_len,
        ..OpenOptions::default()
    };
    let volume = Volume::open(&store, "v", options).expect("open");
    let new = new_inode(FileKind::Regular);
    let file = volume.create(Ino::ROOT, b"file", &new, 1).expect("create");
    let mut random = Random::new(cache_len);
    let mut is_full = |at: u64| {
        let bytes: Vec<u8> = (0..CHUNK_LEN).map(|_| random.next() as u8).collect();
        match volume.write(file.ino, at * CHUNK_LEN, &bytes, 1) {
            Ok(()) => false,
            Err(failure) if failure.errno == Errno::NOSPC => true,
            Err(failure) => panic!("{disk_len}, {cache_len}: chunk {at}: {failure:?}"),
        }
    };
    let count = (0..10_000).find(|at| is_full(*at)).expect("a full disk");
    assert!(
        count * CHUNK_LEN > disk_len / 3,
        "full after {count} chunks"
    );
    volume.sync().expect("sync");
    let kept = count / 4 * 3;
    let shorter = NewStat {
        size: Some(kept * CHUNK_LEN),
        ..NewStat::default()
    };
    volume
        .set_stat(file.ino, &shorter, 1)
        .expect("a shorter file");
    volume.sync().expect("sync");
    volume.return_space().expect("return space");
    let mut order = Random::new(1);
    let mut held = None;
    for step in 0..5_000 {
        if step % 700 == 0 || held.as_ref().is_some_and(Hold::is_over) {
            drop(held.take());
            held = volume.hold().ok();
        }
        if is_full(order.below(kept)) {
            break;
        }
    }
    drop(held);
    volume.sync().expect("sync");
    let removed = volume.unlink(Ino::ROOT, b"file", 2).expect("unlink");
    volume.forget(removed.ino).expect("forget");
    volume.sync().expect("sync");
    volume.create(Ino::ROOT, b"new", &new, 3).expect("create");
    volume.close().expect("close");
}
