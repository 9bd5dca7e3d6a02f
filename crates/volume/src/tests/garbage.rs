//! Garbage that overwrites leave in blocks, and how it goes.

use super::{TestStore, dir, file, noise, read};
use crate::properties::{CHUNKING, COMPRESS};
use crate::{OpenOptions, Status, Volume, settle_all};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_store::simulated_disk::Random;
use weald_vfs::{FilePlace, Ino, WritableFs, XattrMode};

const PAGE_LEN: usize = 4096;

fn go_on() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn status(volume: &Volume) -> Status {
    volume.status().expect("figures")
}

/// Overwrites random pages of a file that has `content`, with a sync after each eighth.
fn overwrite(volume: &Volume, ino: Ino, content: &mut [u8], count: u64) {
    let mut random = Random::new(count);
    for number in 0..count {
        let at = random.below((content.len() / PAGE_LEN) as u64) as usize * PAGE_LEN;
        let page = noise(PAGE_LEN, number + 1000);
        volume.write(ino, at as u64, &page, 2).expect("write");
        content[at..at + PAGE_LEN].copy_from_slice(&page);
        if number % 8 == 0 {
            volume.sync().expect("sync");
        }
        if number % 100 == 0 {
            volume.commit().expect("commit");
        }
    }
    volume.commit().expect("commit");
}

fn filled(volume: &Volume, len: usize) -> (Ino, Vec<u8>) {
    let ino = file(volume, Ino::ROOT, "disk").ino;
    let content = noise(len, 7);
    volume.write(ino, 0, &content, 1).expect("write");
    volume.commit().expect("commit");
    (ino, content)
}

fn assert_lean(status: &Status) {
    let stored = status.stored_len;
    assert!(stored * 100 <= status.logical_len * 125, "{status:?}");
    assert!(status.unique_len <= status.logical_len, "{status:?}");
}

// Would catch: random overwrites that take several times the file for ever, that no figure shows,
// and that a copy of the file shares.
#[test]
fn garbage_of_random_overwrites_goes() {
    let place = TestStore::new();
    let volume = place.open();
    let (ino, mut content) = filled(&volume, 4 << 20);
    let before = status(&volume);
    assert_lean(&before);
    overwrite(&volume, ino, &mut content, 1500);
    let fat = status(&volume);
    assert!(fat.stored_len > fat.logical_len * 3 / 2, "{fat:?}");
    assert_eq!(fat.unique_len, fat.logical_len);
    let waste = fat.stored_len - fat.logical_len;
    assert!(fat.dead_len > waste * 9 / 10, "{fat:?}");
    let copy = file(&volume, Ino::ROOT, "copy").ino;
    let len = content.len() as u64;
    let copied = volume.copy_range(FilePlace::new(ino, 0), FilePlace::new(copy, 0), len, 3);
    assert_eq!(copied.expect("a copy"), len);
    volume.settle(&mut go_on).expect("settle");
    let lean = status(&volume);
    assert!(lean.stored_len * 100 <= len * 125, "{lean:?}");
    assert!(read(&volume, ino) == content && read(&volume, copy) == content);
    // There is nothing left to do.
    assert_eq!(volume.settle(&mut go_on).expect("settle"), 0);
    volume.close().expect("close");
    drop(volume);
    place.check();
    assert!(read(&place.open(), ino) == content);
}

// Would catch: a collection of the unmounted store that leaves the garbage of volumes.
#[test]
fn all_volumes_of_a_store_are_settled() {
    let place = TestStore::new();
    let volume = place.open();
    let (ino, mut content) = filled(&volume, 1 << 20);
    overwrite(&volume, ino, &mut content, 400);
    volume.close().expect("close");
    drop(volume);
    let settled = settle_all(&place.store(), "test", &mut go_on).expect("settle");
    assert!(settled.commit_count > 0 && settled.failures.is_empty());
    place.check();
    let volume = place.open();
    assert_lean(&status(&volume));
    assert!(read(&volume, ino) == content);
}

// Would catch: a mounted volume that keeps its garbage until somebody asks.
#[test]
fn a_mounted_volume_settles_when_nothing_waits() {
    let place = TestStore::new();
    let options = OpenOptions {
        commit_interval: Duration::from_millis(20),
        ..OpenOptions::default()
    };
    let volume = Volume::open(&place.store(), "v", options).expect("open");
    let (ino, mut content) = filled(&volume, 1 << 20);
    overwrite(&volume, ino, &mut content, 400);
    let end = Instant::now() + Duration::from_secs(60);
    while status(&volume).stored_len * 100 > (content.len() as u64) * 125 {
        assert!(Instant::now() < end, "{:?}", status(&volume));
        std::thread::yield_now();
    }
    assert!(read(&volume, ino) == content);
    volume.close().expect("close");
    drop(volume);
    place.check();
}

// Would catch: packs of small files that stay whole for the last of them, and data that is not
// found any more after it was written again.
#[test]
fn packs_and_runs_are_written_again() {
    let place = TestStore::new();
    let volume = place.open();
    let top = dir(&volume, Ino::ROOT, "top").ino;
    let set = volume.set_xattr(top, CHUNKING, b"content", XattrMode::Set, 1);
    set.expect("set");
    let versioned = file(&volume, top, "versioned").ino;
    let bytes = noise(1_500_000, 3);
    volume.write(versioned, 0, &bytes, 1).expect("write");
    let small = |number: u64| noise(3000 + number as usize, number);
    for number in 0..200 {
        let ino = file(&volume, top, &format!("small-{number}")).ino;
        volume.write(ino, 0, &small(number), 1).expect("write");
    }
    volume.commit().expect("commit");
    for number in (0..200).filter(|number| number % 4 != 0) {
        let name = format!("small-{number}");
        let gone = volume.unlink(top, name.as_bytes(), 2).expect("unlink");
        volume.forget(gone.ino).expect("forget");
    }
    // A quarter of all runs goes.
    for at in (0..1_500_000).step_by(262_144) {
        let hole = weald_vfs::AllocateMode::PunchHole;
        let done = volume.allocate(versioned, hole, at, 65_536, 2);
        done.expect("a hole");
    }
    volume.settle(&mut go_on).expect("settle");
    let lean = status(&volume);
    assert!(lean.stored_len * 100 <= lean.logical_len * 125, "{lean:?}");
    for number in (0..200).step_by(4) {
        let name = format!("small-{number}");
        let found = volume.lookup(top, name.as_bytes()).expect("a file");
        assert!(read(&volume, found.ino) == small(number), "{number}");
    }
    // The runs that are left are known.
    let again = file(&volume, top, "again").ino;
    let kept = &bytes[262_144 + 65_536..262_144 * 2];
    volume.write(again, 0, kept, 3).expect("write");
    volume.commit().expect("commit");
    let grown = status(&volume).stored_len - lean.stored_len;
    assert!(grown < kept.len() as u64 / 2, "{grown}");
    volume.close().expect("close");
    drop(volume);
    place.check();
}

/// Text that compresses better at a high level.
fn text(len: usize) -> Vec<u8> {
    let mut random = Random::new(5);
    let words: Vec<String> = (0..300)
        .map(|no: u64| format!("w{:x}", no * no * 7919))
        .collect();
    let mut text = Vec::new();
    while text.len() < len {
        let word = &words[random.below(300) as usize];
        text.extend_from_slice(word.as_bytes());
        text.push(b' ');
    }
    text.truncate(len);
    text
}

// Would catch: a slow codec that one user chooses and that the syncs of all others wait for.
#[test]
fn a_commit_spends_a_limited_time_in_slow_codecs() {
    let bytes = text(2 << 20);
    let stored = |slow_encoding_max, settles: bool| {
        let place = TestStore::new();
        let options = OpenOptions {
            background: false,
            slow_encoding_max,
            ..OpenOptions::default()
        };
        let volume: Arc<Volume> = Volume::open(&place.store(), "v", options).expect("open");
        let ino = file(&volume, Ino::ROOT, "slow").ino;
        let set = volume.set_xattr(ino, COMPRESS, b"zstd:19", XattrMode::Set, 1);
        set.expect("set");
        volume.write(ino, 0, &bytes, 1).expect("write");
        volume.commit().expect("commit");
        if settles {
            volume.settle(&mut go_on).expect("settle");
        }
        assert!(read(&volume, ino) == bytes);
        let stored_len = status(&volume).stored_len;
        volume.close().expect("close");
        drop(volume);
        place.check();
        stored_len
    };
    // 600 ns for a byte: two of sixteen blocks.
    let short = Duration::from_nanos(600 * 2 * 131_072);
    let slow = stored(Duration::MAX, false);
    let (fast, hurried) = (stored(Duration::ZERO, true), stored(short, false));
    assert!(slow < hurried && hurried < fast, "{slow} {hurried} {fast}");
    let is_between = (fast - hurried) * 16 <= (fast - slow) * 3;
    assert!(is_between, "{slow} {hurried} {fast}");
    assert_eq!(stored(short, true), slow);
}
