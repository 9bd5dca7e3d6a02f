//! Durability of a sync in each mode, and volumes in memory.

use super::*;
use crate::SyncMode;

fn open(place: &TestStore, change: impl FnOnce(&mut OpenOptions)) -> Arc<Volume> {
    let mut options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    change(&mut options);
    Volume::open(&place.store(), "v", options).expect("open")
}

// Would catch: a sync that is less durable than its mode says, or that commits without need.
#[test]
fn a_sync_of_data_waits_for_content_only() {
    let place = TestStore::new();
    let volume = open(&place, |options| options.sync_mode = SyncMode::Data);
    let commits = || volume.status().expect("status").commits;
    let sub = dir(&volume, Ino::ROOT, "sub").ino;
    let f = file(&volume, sub, "f").ino;
    volume.sync_inode(sub).expect("sync");
    volume.sync_inode(f).expect("sync");
    assert_eq!(commits(), 0);
    volume.write(f, 0, b"content", 1).expect("write");
    volume.sync_inode(sub).expect("sync");
    assert_eq!(commits(), 0);
    volume.sync_inode(f).expect("sync");
    assert_eq!(commits(), 1);
    let after = place.crashed();
    after.check();
    assert_eq!(read(&after.open(), f), b"content");
    file(&volume, sub, "g");
    volume.sync().expect("sync of everything");
    assert_eq!(commits(), 2);
}

// Would catch: a mark that stays after everything was synced, or that is missing before.
#[test]
fn a_volume_without_barriers_says_so_until_it_is_closed() {
    let place = TestStore::new();
    let mark = |place: &TestStore| place.dir.path().join("store/unsynced").exists();
    let volume = open(&place, |options| options.ignores_barriers = true);
    let f = file(&volume, Ino::ROOT, "f").ino;
    volume.write(f, 0, &noise(100_000, 1), 1).expect("write");
    volume.sync().expect("sync");
    assert!(mark(&place));
    let after = place.crashed();
    volume.write(f, 0, &noise(100_000, 2), 1).expect("write");
    volume.close().expect("close");
    assert!(!mark(&place));
    drop(volume);
    place.check();
    assert!(read(&place.open(), f) == noise(100_000, 2));
    // The kernel had everything; the next writer syncs it.
    assert!(mark(&after));
    assert!(read(&after.open(), f) == noise(100_000, 1));
    assert!(!mark(&after));
    after.check();
    let reader = open(&place, |options| {
        (options.ignores_barriers, options.is_read_only) = (true, true);
    });
    assert!(!mark(&place));
    drop(reader);
}

// Would catch: a volume whose content is read from the disk although it is in memory.
#[test]
fn a_preloaded_volume_has_its_content_in_memory() {
    let place = TestStore::new();
    let volume = place.open();
    let f = file(&volume, Ino::ROOT, "f").ino;
    volume.write(f, 0, &noise(1 << 20, 1), 1).expect("write");
    volume.close().expect("close");
    drop(volume);
    let volume = open(&place, |options| options.is_preloaded = true);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while volume.cached_len() < 1 << 20 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
    // Without the segments, only memory has the content.
    std::fs::remove_dir_all(place.dir.path().join("store/segments")).expect("remove");
    assert!(read(&volume, f) == noise(1 << 20, 1));
}
