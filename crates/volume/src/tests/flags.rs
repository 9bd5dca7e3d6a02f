//! Flags of inodes in rows and logs.

use super::*;
use weald_format::volume::VolumeRow;
use weald_format::{Ino, InodeFlags};
use weald_store::WriteOptions;

fn row(place: &TestStore) -> VolumeRow {
    let writer = place.store().write(WriteOptions::new("a test"));
    writer.expect("a writer").volume_row("v").expect("a row")
}

fn set(volume: &Volume, ino: Ino, flags: InodeFlags) {
    let new = NewStat {
        flags: Some(flags),
        ..NewStat::default()
    };
    volume.set_stat(ino, &new, 7).expect("flags");
}

// Would catch: a flag that a program without flags meets in rows or in the log, since the version
// of the volume does not keep it out; flags that a crash or a salvage loses.
#[test]
fn the_version_of_a_volume_tells_of_flags() {
    let options = || OpenOptions {
        background: false,
        log_len: 256 << 10,
        syncs_without_log: 0,
        ..OpenOptions::default()
    };
    let place = TestStore::new();
    let volume = Volume::open(&place.store(), "v", options()).expect("open");
    let f = file(&volume, Ino::ROOT, "f").ino;
    volume.sync().expect("sync");
    // The log takes this one.
    volume.write(f, 0, b"data", 1).expect("write");
    volume.sync().expect("sync");
    let commits = || volume.status().expect("status").commits;
    let before = commits();
    assert!(!row(&place.crashed()).has_flags && !volume.has_flags());
    // The first flag needs a commit, the next ones do not.
    set(&volume, f, InodeFlags::IMMUTABLE);
    volume.sync().expect("sync");
    assert!(commits() > before);
    let crashed = place.crashed();
    assert!(row(&crashed).has_flags && row(&crashed).has_sync_log);
    let before = commits();
    set(
        &volume,
        Ino::ROOT,
        InodeFlags::APPEND_ONLY.with(InodeFlags::NO_DUMP),
    );
    volume.sync().expect("sync");
    assert_eq!(commits(), before);
    let crashed = place.crashed();
    crashed.check();
    let again = crashed.open();
    let flags = |ino| again.stat(ino).expect("stat").flags;
    assert_eq!(flags(f), InodeFlags::IMMUTABLE);
    assert_eq!(flags(Ino::ROOT).bits(), 2 | 8);
    assert_eq!(errno(again.write(f, 0, b"x", 9)), Some(Errno::PERM));
    assert_eq!(errno(again.unlink(Ino::ROOT, b"f", 9)), Some(Errno::PERM));
    set(&again, f, InodeFlags::NONE);
    again.write(f, 0, b"x", 9).expect("write");
    drop(again);
    crashed.check();
    assert!(row(&crashed).has_flags);
}
