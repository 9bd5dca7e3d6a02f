//! Random operations by many threads at once on a mount, each held against the same operation on
//! the extracted tree.
//!
//! The seed is printed; `WEALD_SEED` repeats a run, `WEALD_OPERATIONS` says how many operations
//! there are in all. Runs as root, needs `/dev/fuse`. The extracted tree lies under a read-only
//! bind mount, so that what changes a tree is refused on both sides.
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

/// Operations in all, unless `WEALD_OPERATIONS` says otherwise.
const OPERATION_COUNT: u64 = 100_000;

/// Threads that operate at once: more than processors, so that requests meet.
const THREAD_COUNT: u64 = 8;

/// Times that the image is mounted anew: the kernel then knows nothing of it, and the server is
/// asked again.
const ROUND_COUNT: u64 = 5;

/// Differences after which a run stops: the first few say it all.
const LISTED_MAX: usize = 20;

/// The two trees. Their paths are of one length, so that a path too long for one is too long for
/// the other.
struct Sides {
    mounted: PathBuf,
    extracted: PathBuf,
}

fn operation_count() -> u64 {
    std::env::var("WEALD_OPERATIONS").map_or(OPERATION_COUNT, |count| {
        count.parse().expect("WEALD_OPERATIONS is a number")
    })
}

/// Makes the tree, its image, and what was extracted from that, read-only.
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

/// What one thread does; returns the differences.
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

/// Lets the other threads end when one of them panics.
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

// Would catch answers that are wrong only beside other requests, or only after them: caches of the
// kernel or of the server that mix things up, offsets of directories that lead elsewhere, blocks
// that are handed out before they are whole.
#[test]
fn a_mount_answers_as_the_extracted_tree_whatever_is_asked_beside() {
    let mut rng = Rng::from_environment();
    let ground = Ground::new();
    let (image, sides) = prepare(&ground, rng.next_u64());
    let entries = Entries::of(&sides.extracted);
    for _ in 0..ROUND_COUNT {
        // Small, so that blocks are dropped and decoded again meanwhile.
        ground.mount(&image, &sides.mounted, &["-o", "cachesize=16M"]);
        let count = operation_count() / ROUND_COUNT;
        let found = one_round(&sides, &entries, &mut rng, count);
        assert!(found.is_empty(), "{}", found.join("\n"));
        ground.umount(&sides.mounted);
    }
}
