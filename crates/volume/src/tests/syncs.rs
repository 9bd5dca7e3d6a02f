//! Syncs that the sync log takes, and what a crash leaves in it.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::log_record::record_len;
use weald_format::sync_log::{ALIGN, SYNC_LOG_COPY_AT};
use weald_format::{ErrorKind, Ino};
use weald_store::WriteOptions;
use weald_store::simulated_disk::SimDisk;

const LOG_LEN: u64 = 256 << 10;

fn options() -> OpenOptions {
    OpenOptions {
        background: false,
        log_len: LOG_LEN,
        syncs_without_log: 0,
        ..OpenOptions::default()
    }
}

fn open(place: &TestStore) -> Arc<Volume> {
    Volume::open(&place.store(), "v", options()).expect("open")
}

fn log_path(place: &TestStore) -> std::path::PathBuf {
    place.dir.path().join("store/volumes/.00000001.log")
}

fn has_sync_log(place: &TestStore) -> bool {
    let writer = place.store().write(WriteOptions::new("a test"));
    let row = writer.expect("a writer").volume_row("v");
    row.expect("a row").has_sync_log
}

/// A volume with the file `f`, whose first sync committed and made the log.
fn begin(place: &TestStore) -> (Arc<Volume>, Ino) {
    let volume = open(place);
    let f = file(&volume, Ino::ROOT, "f").ino;
    volume.sync().expect("sync");
    (volume, f)
}

fn write_synced(volume: &Volume, ino: Ino, at: u64, bytes: &[u8]) {
    volume.write(ino, at, bytes, 1).expect("write");
    volume.sync().expect("sync");
}

/// Overwrites the record with this number in the half of layers with an even number: a page, more
/// than its parity makes good.
fn damage(place: &TestStore, record: u64) {
    let path = log_path(place);
    let mut bytes = std::fs::read(&path).expect("read");
    let at = ALIGN + record * ALIGN;
    bytes[at as usize..][..ALIGN as usize].fill(0x77);
    std::fs::write(path, bytes).expect("write");
}

fn commits(volume: &Volume) -> u64 {
    volume.status().expect("status").commits
}

// Would catch: a sync that commits although the log has room, a record that misses a change, and a
// commit of a replay that miscounts.
#[test]
fn synced_changes_are_in_the_log_and_come_back() {
    let place = TestStore::new();
    let (volume, f) = begin(&place);
    let sub = dir(&volume, Ino::ROOT, "sub").ino;
    let copy = file(&volume, sub, "copy").ino;
    write_synced(&volume, f, 0, &noise(10_000, 1));
    volume.commit().expect("commit");
    let before = commits(&volume);
    volume
        .copy_range(FilePlace::new(f, 0), FilePlace::new(copy, 5000), 9000, 2)
        .expect("copy");
    volume
        .set_xattr(sub, b"trusted.weald.quota", b"1000000", XattrMode::Set, 3)
        .expect("quota");
    volume.sync().expect("sync");
    volume
        .rename((Ino::ROOT, b"f"), (Ino::ROOT, b"g"), RenameMode::Replace, 3)
        .expect("rename");
    let gone = file(&volume, sub, "gone").ino;
    write_synced(&volume, gone, 1 << 40, b"far");
    volume.unlink(sub, b"gone", 4).expect("unlink");
    let hole = AllocateMode::PunchHole;
    volume.allocate(copy, hole, 5000, 4000, 5).expect("punch");
    volume.sync().expect("sync");
    write_synced(&volume, f, 20_000, b"end");
    assert_eq!(commits(&volume), before);
    volume.write(f, 0, b"not synced", 6).expect("write");
    let wanted = read(&volume, copy);

    let after = place.crashed();
    after.check();
    assert!(has_sync_log(&after));
    let reader = Volume::open(
        &after.store(),
        "v",
        OpenOptions {
            is_read_only: true,
            ..options()
        },
    );
    let reader = reader.expect("a reader");
    assert_eq!(read(&reader, copy), wanted);
    assert_eq!(names(&reader, Ino::ROOT), [b"g".to_vec(), b"sub".to_vec()]);
    drop(reader);
    let volume = open(&after);
    assert_eq!(read(&volume, copy), wanted);
    assert_eq!(&read(&volume, f)[..10_000], noise(10_000, 1));
    assert_eq!(&read(&volume, f)[20_000..], b"end");
    assert_eq!(names(&volume, Ino::ROOT), [b"g".to_vec(), b"sub".to_vec()]);
    assert_eq!(names(&volume, sub), [b"copy".to_vec()]);
    let used = volume.xattr(sub, b"user.weald.used").expect("used");
    assert_eq!(used, b"5000");
    drop(volume);
    assert!(!has_sync_log(&after));
    after.check();
}

// Would catch: acknowledged changes that are lost without a word, and a volume that nothing opens.
#[test]
fn damage_before_the_last_record_is_reported() {
    let place = TestStore::new();
    let (volume, f) = begin(&place);
    // The commit above was the first one: its layer above is the second, in the first half.
    for no in 0..4 {
        write_synced(&volume, f, no * 10, &noise(10, no + 1));
    }
    let after = place.crashed();
    drop(volume);
    damage(&after, 2);
    let error = Volume::open(&after.store(), "v", options()).expect_err("damage");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("log=drop"), "{error}");
    let report = check(&after.store(), "v", &CheckOptions::default()).expect("check");
    assert!(report.findings[0].what.contains("V-6.4"), "{report:?}");
    let reads = OpenOptions {
        is_read_only: true,
        ..options()
    };
    let reader = Volume::open(&after.store(), "v", reads).expect("a reader");
    assert_eq!(read(&reader, f).len(), 20);
    drop(reader);
    let drops = || OpenOptions {
        drops_damaged_log: true,
        ..options()
    };
    let volume = Volume::open(&after.store(), "v", drops()).expect("open");
    assert_eq!(read(&volume, f).len(), 20);
    let again = after.crashed();
    drop(volume);
    let volume = open(&again);
    assert_eq!(
        read(&volume, f).len(),
        20,
        "the records behind the damage came back"
    );
    drop(volume);
    again.check();

    // Nothing tells the last record from one that was never acknowledged.
    let (volume, _) = begin_again(&again, f);
    let torn = again.crashed();
    drop(volume);
    damage(&torn, 1);
    let volume = open(&torn);
    assert_eq!(read(&volume, f), [noise(10, 1), noise(10, 2)].concat());

    let missing = place.crashed();
    let (volume, _) = begin_again(&missing, f);
    let missing = missing.crashed();
    drop(volume);
    std::fs::remove_file(log_path(&missing)).expect("remove");
    let error = Volume::open(&missing.store(), "v", options()).expect_err("no log");
    assert!(error.to_string().contains("missing"), "{error}");
    Volume::open(&missing.store(), "v", drops()).expect("open");
}

/// Two records in the log after a commit that makes the number of commits odd.
fn begin_again(place: &TestStore, f: Ino) -> (Arc<Volume>, Ino) {
    let volume = open(place);
    loop {
        volume.set_stat(f, &NewStat::default(), 1).expect("touch");
        volume.commit().expect("commit");
        if commits(&volume).is_multiple_of(2) {
            break;
        }
    }
    for seed in [1, 1, 9] {
        write_synced(&volume, f, 0, &noise(10, seed));
    }
    (volume, f)
}

// Would catch: a log that outlives its volume, or that a collection or a salvage makes useless.
#[test]
fn collections_salvage_and_removal_know_the_log() {
    let place = TestStore::new();
    let (volume, f) = begin(&place);
    let other = file(&volume, Ino::ROOT, "other").ino;
    volume.write(f, 0, &noise(300_000, 1), 1).expect("write");
    volume.commit().expect("commit");
    volume
        .copy_range(FilePlace::new(f, 0), FilePlace::new(other, 0), 300_000, 2)
        .expect("copy");
    volume.unlink(Ino::ROOT, b"f", 3).expect("unlink");
    volume.forget(f).expect("forget");
    volume.sync().expect("sync");
    let after = place.crashed();
    drop(volume);
    let store = after.store();
    let all = weald_store::CollectOptions {
        copy_below_percent: 100,
        ..weald_store::CollectOptions::default()
    };
    let mut writer = store.write(WriteOptions::new("gc")).expect("a writer");
    let check_cancelled = &mut |_: &_| std::ops::ControlFlow::Continue(());
    writer.collect(&all, check_cancelled).expect("collect");
    drop(writer);
    store
        .salvage(&weald_store::SalvageOptions::default())
        .expect("salvage");
    crate::apply_sync_log(&store, "v", "a test").expect("applied");
    after.check();
    let volume = after.open();
    assert!(read(&volume, other) == noise(300_000, 1));
    assert_eq!(names(&volume, Ino::ROOT), [b"other".to_vec()]);
    drop(volume);
    assert!(log_path(&after).exists());
    remove(&store, "v", false).expect("remove");
    assert!(!log_path(&after).exists());
}

// Would catch: a log that is made although it is not wanted, or for a few syncs.
#[test]
fn a_log_is_made_for_frequent_syncs_only() {
    for (log_len, syncs_without_log, is_made) in
        [(0, 0, false), (LOG_LEN, 3, false), (LOG_LEN, 2, true)]
    {
        let place = TestStore::new();
        let volume = Volume::open(
            &place.store(),
            "v",
            OpenOptions {
                log_len,
                syncs_without_log,
                ..options()
            },
        );
        let volume = volume.expect("open");
        let f = file(&volume, Ino::ROOT, "f").ino;
        for no in 0..3 {
            write_synced(&volume, f, no, b"x");
        }
        assert_eq!(
            log_path(&place).exists(),
            is_made,
            "{log_len} {syncs_without_log}"
        );
    }
}

// Would catch: a sync that fails because the log has no room on the disk or in its file.
#[test]
fn without_room_a_sync_commits() {
    let disk = SimDisk::new(1);
    let store = Store::create(Arc::new(disk.clone()), [1; 16], 1 << 20).expect("a store");
    create(&store, "v", &VolumeOptions::default(), [1; 16], 0).expect("a volume");
    let volume = Volume::open(&store, "v", options()).expect("open");
    let f = file(&volume, Ino::ROOT, "f").ino;
    let mut last = 0;
    for no in 0..100 {
        write_synced(&volume, f, no * 4096, &noise(4096, no + 1));
        last = commits(&volume);
    }
    // A half has room for 16 records of two pages.
    assert!((4..20).contains(&last), "{last} commits");
    volume.close().expect("close");
    drop(volume);
    disk.limit(disk.used() + (6 << 20));
    let big = OpenOptions {
        log_len: 16 << 20,
        ..options()
    };
    create(&store, "w", &VolumeOptions::default(), [1; 16], 0).expect("a volume");
    let volume = Volume::open(&store, "w", big).expect("open");
    let f = file(&volume, Ino::ROOT, "f").ino;
    for no in 0..3 {
        write_synced(&volume, f, no * 10, b"x");
        assert_eq!(commits(&volume), no + 1);
    }
}

/// A write of a number to the file of a thread.
type Written = (usize, u64);

/// Threads write numbers, each to its file, and sync, until the power fails after `count` syncs.
/// Returns the writes in their order, and the last synced number of each thread.
fn race(
    volume: &Volume,
    files: &[Ino],
    disk: &SimDisk,
    count: u64,
) -> (SimDisk, Vec<Written>, Vec<u64>) {
    let history = parking_lot::Mutex::new(Vec::new());
    let synced: Vec<_> = files.iter().map(|_| AtomicU64::new(0)).collect();
    let (sent, done) = std::sync::mpsc::channel();
    let work = |thread: usize, sent: std::sync::mpsc::Sender<()>| {
        loop {
            let number = {
                let mut history = history.lock();
                let number = history.len() as u64 + 1;
                let bytes = number.to_le_bytes();
                if volume.write(files[thread], 0, &bytes, 1).is_err() {
                    return;
                }
                history.push((thread, number));
                number
            };
            if volume.sync().is_err() {
                return;
            }
            synced[thread].store(number, Ordering::SeqCst);
            // The test has seen enough.
            let _ = sent.send(());
        }
    };
    let (after, known) = std::thread::scope(|scope| {
        for thread in 0..files.len() {
            let (work, sent) = (&work, sent.clone());
            scope.spawn(move || work(thread, sent));
        }
        for _ in 0..count {
            done.recv().expect("a sync");
        }
        let known: Vec<_> = synced.iter().map(|it| it.load(Ordering::SeqCst)).collect();
        (disk.reboot(), known)
    });
    (after, history.into_inner(), known)
}

// Would catch: a sync that returns before its record or one before it is durable, records out of
// order, a commit that overtakes a record, and a power cut between records that loses one of them.
#[test]
fn threads_that_sync_at_once_lose_nothing() {
    for seed in 0..12 {
        let disk = SimDisk::new(seed);
        let store = Store::create(Arc::new(disk.clone()), [1; 16], 1 << 20).expect("a store");
        create(&store, "v", &VolumeOptions::default(), [1; 16], 0).expect("a volume");
        let options = OpenOptions {
            background: true,
            commit_interval: std::time::Duration::from_millis(1 << seed),
            ..options()
        };
        let volume = Volume::open(&store, "v", options.clone()).expect("open");
        let names: Vec<_> = (0..6).map(|no| format!("f{no}")).collect();
        let files = names.iter().map(|name| file(&volume, Ino::ROOT, name).ino);
        let files: Vec<_> = files.collect();
        volume.sync().expect("sync");
        let (disk, history, known) = race(&volume, &files, &disk, 50 + seed * 17);
        drop((volume, store));
        let store = Store::open(Arc::new(disk.clone())).expect("a store");
        let report = check(&store, "v", &CheckOptions { reads_data: true }).expect("check");
        assert!(report.findings.is_empty(), "seed {seed}: {report:?}");
        let volume = Volume::open(&store, "v", options).expect("open");
        let found = files.iter().map(|file| {
            let bytes = read(&volume, *file);
            bytes.try_into().map_or(0, u64::from_le_bytes)
        });
        let found: Vec<u64> = found.collect();
        let last = found.iter().copied().max().unwrap_or(0);
        for (thread, found) in found.iter().enumerate() {
            assert!(
                *found >= known[thread],
                "seed {seed}: a synced write is lost"
            );
            let of = |(of, number): &&Written| *of == thread && *number <= last;
            let wanted = history.iter().rfind(of).map_or(0, |(_, number)| *number);
            assert_eq!(*found, wanted, "seed {seed}: no prefix");
        }
    }
}

// Would catch: damage that counts as a torn end although a later record says that its record was
// durable: acknowledged changes would be lost without a word. Of the two records that were under
// way last, nothing says that.
#[test]
fn damage_is_reported_but_for_the_two_records_under_way_last() {
    const COUNT: u64 = 8;
    let place = TestStore::new();
    let (volume, f) = begin(&place);
    let record = |number: u64| {
        let bytes = noise(10, number + 1);
        volume.write(f, number * 10, &bytes, 1).expect("write");
        let record = volume.begin_record().expect("a record");
        record.expect("a log with room")
    };
    for number in (0..COUNT).step_by(2) {
        let (first, second) = (record(number), record(number + 1));
        volume.sync_record(&second).expect("sync");
        volume.sync_record(&first).expect("sync");
        volume.wait_for_record(&second).expect("a durable record");
    }
    let after = place.crashed();
    drop(volume);
    for number in 0..COUNT {
        let damaged = after.crashed();
        damage(&damaged, number);
        let report = check(&damaged.store(), "v", &CheckOptions::default());
        let findings = report.expect("check").findings;
        match Volume::open(&damaged.store(), "v", options()) {
            Err(error) => {
                assert!(number < COUNT - 2, "record {number}: {error}");
                assert!(error.to_string().contains("log=drop"), "{error}");
                assert!(findings[0].what.contains("V-6.4"), "{findings:?}");
            }
            Ok(volume) => {
                assert!(number >= COUNT - 2, "record {number}: nothing is said");
                assert!(findings.is_empty(), "{findings:?}");
                assert_eq!(read(&volume, f).len() as u64, number * 10);
            }
        }
    }
}

// Would catch: a byte of a record that a check does not read, a place at which 16 damaged bytes
// cost a record, and damage of what nobody uses that is told.
#[test]
fn a_check_of_the_store_reads_every_byte_of_the_log() {
    let place = TestStore::new();
    let (volume, f) = begin(&place);
    let other = file(&volume, Ino::ROOT, "other").ino;
    volume.write(f, 0, &noise(9000, 1), 1).expect("write");
    volume.commit().expect("commit");
    // The second commit: its layer above is the third, in the second half.
    let mut records = Vec::new();
    let mut at = ALIGN + LOG_LEN / 2;
    for no in 0..5 {
        let copied = volume.copy_range(
            FilePlace::new(f, 0),
            FilePlace::new(other, no * 9000),
            9000,
            2,
        );
        copied.expect("copy");
        write_synced(
            &volume,
            f,
            no * 7000,
            &noise(1000 + no as usize * 3000, no + 2),
        );
        let bytes = std::fs::read(log_path(&place)).expect("read");
        let field = bytes[at as usize + 64..].first_chunk();
        let body_len = u64::from_le_bytes(*field.expect("a header"));
        records.push(at..at + record_len(body_len));
        at += record_len(body_len);
    }
    let after = place.crashed();
    drop(volume);
    let whole = std::fs::read(log_path(&after)).expect("read");
    let check = || {
        let writer = after.store().write(WriteOptions::new("a check"));
        let checked = writer.expect("a writer").check(false, &mut |_| {});
        checked.expect("check")
    };
    assert_eq!((check().findings.len(), check().log_record_count), (0, 5));
    // The last one may be torn: nobody was told of it.
    records.pop();
    let used = [0..64, SYNC_LOG_COPY_AT..SYNC_LOG_COPY_AT + 64];
    let used: Vec<_> = used.into_iter().chain(records).collect();
    let within = (0..100)
        .chain(2000..2200)
        .chain(ALIGN + LOG_LEN / 2..at)
        .step_by(61);
    for start in within.chain((0..whole.len() as u64 - 16).step_by(9973)) {
        let damaged = start..start + 16;
        let mut bytes = whole.clone();
        for at in damaged.clone() {
            bytes[at as usize] ^= 0xff;
        }
        std::fs::write(log_path(&after), bytes).expect("write");
        let overlaps =
            |range: &std::ops::Range<u64>| range.start < damaged.end && damaged.start < range.end;
        let hit = used.iter().filter(|range| overlaps(range)).count();
        let checked = check();
        let found = &checked.findings;
        assert_eq!(found.len(), hit, "byte {start}: {found:?}");
        for finding in found {
            let what = &finding.what;
            assert_eq!(finding.image.as_deref(), Some("v"));
            for word in ["volumes/.00000001.log", "nothing is lost"] {
                assert!(what.contains(word), "byte {start}: {what}");
            }
        }
        assert_eq!(checked.log_record_count, 5, "byte {start}");
    }
}
