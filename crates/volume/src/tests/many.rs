//! Several volumes of one store, open through one writer.

use crate::tests::new_inode;
use crate::{CheckOptions, OpenOptions, OpenStore, Volume, VolumeOptions, check, create};
use rustix::io::Errno;
use std::sync::Arc;
use weald_format::{ErrorKind, FileKind};
use weald_store::simulated_disk::{Fault, SimDisk};
use weald_store::{Store, WriteOptions};
use weald_vfs::{Ino, WritableFs};

fn new_store() -> (SimDisk, Store) {
    let disk = SimDisk::new(1);
    let store = Store::create(Arc::new(disk.clone()), [1; 16], 1 << 20).expect("a store");
    for name in ["a", "b"] {
        create(&store, name, &VolumeOptions::default(), [1; 16], 0).expect("a volume");
    }
    (disk, store)
}

fn options() -> OpenOptions {
    OpenOptions {
        background: false,
        ..OpenOptions::default()
    }
}

fn open_both(store: &Store) -> [Arc<Volume>; 2] {
    let shared = OpenStore::open(store, &options()).expect("open");
    ["a", "b"].map(|name| Volume::open_in(&shared, name, options()).expect("open"))
}

fn write(volume: &Volume, name: &[u8], bytes: &[u8]) -> Ino {
    let new = new_inode(FileKind::Regular);
    let ino = volume.create(Ino::ROOT, name, &new, 1).expect("create").ino;
    volume.write(ino, 0, bytes, 1).expect("write");
    ino
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut random = weald_store::simulated_disk::Random::new(seed);
    (0..len).map(|_| random.next() as u8).collect()
}

/// Would catch: content that two volumes store twice, and a volume that takes the blocks of the
/// other one with it.
#[test]
fn two_volumes_share_blocks_and_either_can_go() {
    let (disk, store) = new_store();
    let [a, b] = open_both(&store);
    let bytes = noise(1, 512 << 10);
    write(&a, b"file", &bytes);
    a.commit().expect("commit");
    let once = disk.len_below("segments/");
    let copy = write(&b, b"copy", &bytes);
    b.commit().expect("commit");
    let twice = disk.len_below("segments/");
    assert!(twice - once < 4 << 10, "{once} bytes, then {twice}");
    let removed = a.unlink(Ino::ROOT, b"file", 2).expect("unlink");
    a.forget(removed.ino).expect("forget");
    a.commit().expect("commit");
    a.return_space().expect("return space");
    a.close().expect("close");
    drop(a);
    let mut found = Vec::new();
    b.read(copy, 0, bytes.len(), &mut found).expect("read");
    assert_eq!(found, bytes);
    b.close().expect("close");
    drop(b);
    for name in ["a", "b"] {
        let report = check(&store, name, &CheckOptions { reads_data: true }).expect("check");
        assert!(report.findings.is_empty(), "{:?}", report.findings);
    }
}

/// Would catch: space that two volumes both promise, so that the commit of one meets a full disk,
/// and a volume that waits for ever for space that the other one has.
#[test]
fn changes_of_all_volumes_count_against_the_free_space() {
    let (disk, store) = new_store();
    disk.limit(disk.used() + (12 << 20));
    let [a, b] = open_both(&store);
    let piece = 256 << 10;
    let mut seed = 0;
    let mut full = [false; 2];
    while full != [true; 2] {
        for (volume, full) in [&a, &b].into_iter().zip(&mut full) {
            seed += 1;
            let new = new_inode(FileKind::Regular);
            let name = format!("file-{seed}");
            let created = volume.create(Ino::ROOT, name.as_bytes(), &new, 1);
            let written = created.and_then(|stat| {
                let bytes = noise(seed, piece);
                volume.write(stat.ino, 0, &bytes, 1)
            });
            match written {
                Ok(()) => {}
                Err(failure) if failure.errno == Errno::NOSPC => *full = true,
                Err(failure) => panic!("file {seed}: {failure:?}"),
            }
        }
        assert!(seed < 1000, "the disk is not full");
    }
    for volume in [&a, &b] {
        volume.commit().expect("a commit on a full disk");
    }
    // Removals work although the other volume has changes.
    for number in 1..=seed {
        for volume in [&a, &b] {
            let name = format!("file-{number}");
            match volume.unlink(Ino::ROOT, name.as_bytes(), 2) {
                Ok(removed) => volume.forget(removed.ino).expect("forget"),
                Err(failure) => assert_eq!(failure.errno, Errno::NOENT),
            }
        }
    }
    for volume in [&a, &b] {
        volume.commit().expect("commit");
        volume.return_space().expect("return space");
    }
    write(&a, b"new", &noise(0, piece));
    a.commit().expect("commit");
}

/// Would catch: a volume that goes on with a writer that failed, and one that is opened then.
#[test]
fn after_a_failure_all_volumes_are_read_only_and_say_why() {
    let (disk, store) = new_store();
    let [a, b] = open_both(&store);
    write(&a, b"file", b"content");
    let kept = write(&b, b"file", b"content");
    b.commit().expect("commit");
    disk.fail_after(0, Fault::Io);
    a.commit().expect_err("a failure");
    let new = new_inode(FileKind::Regular);
    for volume in [&a, &b] {
        let refused = volume.create(Ino::ROOT, b"new", &new, 2);
        assert_eq!(refused.expect_err("read-only").errno, Errno::ROFS);
        assert!(volume.status().expect("figures").failure.is_some());
    }
    let mut found = Vec::new();
    b.read(kept, 0, 7, &mut found).expect("read");
    assert_eq!(found, b"content");
    let shared = Arc::clone(a.store());
    drop(a);
    let again = Volume::open_in(&shared, "a", options()).expect_err("failed");
    assert_eq!(again.kind(), ErrorKind::Io);
}

/// Would catch: changes in the log of a volume that is open for reading, which the process commits
/// since another volume is open for writing.
#[test]
fn a_volume_that_is_only_read_keeps_its_log() {
    let (disk, store) = new_store();
    let logged = OpenOptions {
        syncs_without_log: 0,
        ..options()
    };
    let b = Volume::open(&store, "b", logged.clone()).expect("open");
    write(&b, b"first", b"committed");
    b.sync().expect("a commit that makes the log");
    let ino = write(&b, b"file", b"synced");
    b.sync().expect("a record of the log");
    let disk = disk.restart();
    let store = Store::open(Arc::new(disk)).expect("a store");
    let report = check(&store, "b", &CheckOptions::default()).expect("check");
    assert_eq!(report.log_record_count, 1);
    let shared = OpenStore::open(&store, &options()).expect("open");
    let read_only = OpenOptions {
        is_read_only: true,
        ..options()
    };
    let a = Volume::open_in(&shared, "a", options()).expect("open");
    let b = Volume::open_in(&shared, "b", read_only).expect("open");
    let content = |volume: &Volume| {
        let mut found = Vec::new();
        volume.read(ino, 0, 100, &mut found).map(|()| found)
    };
    assert_eq!(content(&b).expect("read"), b"synced");
    let commits = b.status().expect("figures").commits;
    write(&a, b"file", b"content");
    a.commit().expect("commit");
    b.commit().expect("nothing to commit");
    shared.commit_others(&a.core.state);
    assert_eq!(shared.info("b").expect("a volume").commits, commits);
    b.close().expect("close");
    drop(b);
    let b = Volume::open_in(&shared, "b", logged).expect("open for writing");
    assert_eq!(content(&b).expect("read"), b"synced");
    assert!(shared.info("b").expect("a volume").commits > commits);
}

/// Would catch: a volume that is open twice, modes of the store that differ, and a writer that
/// stays when the last volume is closed.
#[test]
fn a_second_open_and_other_modes_are_refused() {
    let (_disk, store) = new_store();
    let [a, b] = open_both(&store);
    let refused = |name: &str, options: OpenOptions, words: &str| {
        let error = Volume::open_in(a.store(), name, options).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains(words), "{error}");
    };
    refused("a", options(), "is open already");
    b.close().expect("close");
    drop(b);
    let unsynced = OpenOptions {
        ignores_barriers: true,
        ..options()
    };
    refused("b", unsynced, "barrier=honour");
    let read_only = OpenOptions {
        is_read_only: true,
        ..options()
    };
    let b = Volume::open_in(a.store(), "b", read_only).expect("read-only beside a writer");
    let changed = b.create(Ino::ROOT, b"new", &new_inode(FileKind::Regular), 1);
    assert_eq!(changed.expect_err("read-only").errno, Errno::ROFS);
    write(&a, b"file", b"content");
    a.commit().expect("commit");
    drop(a);
    let busy = store.write(WriteOptions::new("another")).expect_err("open");
    assert_eq!(busy.kind(), ErrorKind::Busy);
    drop(b);
    store.write(WriteOptions::new("another")).expect("closed");
}
