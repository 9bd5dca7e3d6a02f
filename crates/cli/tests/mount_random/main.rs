//! Random operations by many threads on a mount; each result is compared with the same operation on
//! the extracted tree.
//!
//! The seed is printed; `WEALD_SEED` repeats a run, `WEALD_OPERATIONS` sets the total number of
//! operations. Needs root and `/dev/fuse`. The extracted tree is under a read-only bind mount, so
//! that both sides refuse changes.
#![allow(missing_docs)]

mod operation;
mod tree;

use operation::{Operation, differ, perform};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tree::Entries;
use weald_testkit::Rng;
use weald_testkit::mounts::{Ground, finish};

/// Default total number of operations.
const OPERATION_COUNT: u64 = 100_000;

/// Number of threads: more than processors, so that requests overlap.
const THREAD_COUNT: u64 = 8;

/// Number of times that the image is mounted again. The kernel's cache is then empty, and requests
/// reach the server.
const ROUND_COUNT: u64 = 5;

/// A run stops after this many differences: the first few suffice.
const LISTED_MAX: usize = 20;

/// The two trees. Their paths have the same length, so that the path limits are the same.
struct Sides {
    mounted: PathBuf,
    extracted: PathBuf,
}

fn operation_count() -> u64 {
    std::env::var("WEALD_OPERATIONS").map_or(OPERATION_COUNT, |count| {
        count.parse().expect("WEALD_OPERATIONS is a number")
    })
}

/// Creates the tree, its image, and the read-only extracted tree.
fn prepare(ground: &Ground, seed: u64) -> (PathBuf, Sides) {
    let (source, image) = (ground.dir("source"), ground.image("image"));
    tree::make(&source, seed);
    ground.build(&source, &image, &["--level", "3"]);
    let (writable, sides) = (
        ground.at("w"),
        Sides {
            mounted: ground.dir("m"),
            extracted: ground.dir("e"),
        },
    );
    let mut extract = ground.command();
    extract.args(["extract", "--quiet"]).arg(&image);
    finish(extract.arg(&writable)).expect(0);
    let mount = |words: &[&str], from: &Path| {
        let mut command = Command::new("mount");
        finish(command.args(words).arg(from).arg(&sides.extracted)).expect(0);
    };
    mount(&["--bind"], &writable);
    mount(&["-o", "remount,ro,bind"], &writable);
    (image, sides)
}

/// Runs the operations of one thread; returns the differences.
fn operate(
    sides: &Sides,
    entries: &Entries,
    rng: &mut Rng,
    count: u64,
    stop: &AtomicBool,
) -> Vec<String> {
    let mut found = Vec::new();
    for index in 0..count {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let operation = Operation::draw(rng, entries);
        let ours = perform(&operation, &sides.mounted);
        let theirs = perform(&operation, &sides.extracted);
        if let Some(difference) = differ(&ours, &theirs) {
            found.push(format!("operation {index}: {operation:?}: {difference}"));
            if found.len() == LISTED_MAX {
                break;
            }
        }
    }
    found
}

/// Stops the other threads if one thread panics.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

fn one_round(sides: &Sides, entries: &Entries, rng: &mut Rng, count: u64) -> Vec<String> {
    let (found, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..THREAD_COUNT {
            let mut own = Rng::new(rng.next_u64());
            let (found, stop) = (&found, &stop);
            scope.spawn(move || {
                let _guard = StopOnPanic(stop);
                let differences = operate(sides, entries, &mut own, count / THREAD_COUNT, stop);
                let differences = differences
                    .iter()
                    .map(|text| format!("thread {thread}: {text}"));
                found.lock().expect("no panic").extend(differences);
            });
        }
    });
    found.into_inner().expect("no panic")
}

// Would catch answers that are wrong only during or after other requests: mixed-up entries in the
// caches of kernel or server, wrong directory offsets, blocks that are used before they are
// complete.
#[test]
fn a_mount_equals_the_extracted_tree_under_concurrent_requests() {
    let mut rng = Rng::from_environment();
    let ground = Ground::new();
    let (image, sides) = prepare(&ground, rng.next_u64());
    let entries = Entries::of(&sides.extracted);
    for _ in 0..ROUND_COUNT {
        // A small cache, so that blocks are evicted and decoded again.
        ground.mount(&image, &sides.mounted, &["-o", "cachesize=16M"]);
        let count = operation_count() / ROUND_COUNT;
        let found = one_round(&sides, &entries, &mut rng, count);
        assert!(found.is_empty(), "{}", found.join("\n"));
        ground.umount(&sides.mounted);
    }
}
