//! Snapshots of a volume are removed in every order, and their space is what a recount says.

use super::*;
use crate::properties::SNAPSHOTS;
use crate::{OpenStore, PolicyStep, check_store};
use std::ops::ControlFlow;
use weald_format::snapshot::{SNAPSHOTS_MAX, SnapshotRow, snapshot_key};
use weald_format::store::BlockRow;
use weald_format::{ErrorKind, SnapshotNo};
use weald_store::engine::Batch;
use weald_store::simulated_disk::{Random, SimDisk};
use weald_store::{SnapshotSpace, Steps};

const COUNT: usize = 6;

/// All orders of the numbers below `count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for order in orders(count - 1) {
        for at in 0..count {
            let mut longer = order.clone();
            longer.insert(at, count - 1);
            all.push(longer);
        }
    }
    all
}

fn open(disk: &SimDisk) -> Arc<Volume> {
    let store = Store::open(Arc::new(disk.clone())).expect("open");
    let options = OpenOptions {
        background: false,
        steps: Steps::small(),
        ..OpenOptions::default()
    };
    let shared = OpenStore::open(&store, &options).expect("a store");
    Volume::open_in(&shared, "v", options).expect("a volume")
}

/// Blocks that have references, and their bytes.
fn blocks(volume: &Volume) -> (u64, u64) {
    let (mut count, mut len) = (0, 0);
    let engine = volume.core.shared.reader.engine();
    engine
        .scan(Table::Blocks, &[], &mut |_, value| {
            let row = BlockRow::parse(value)?;
            if row.references > 0 {
                (count, len) = (count + 1, len + row.len());
            }
            Ok(ControlFlow::Continue(()))
        })
        .expect("rows");
    (count, len)
}

/// A disk with a volume and [`COUNT`] snapshots, `s0` and on.
fn with_history() -> SimDisk {
    let disk = SimDisk::new(1);
    let store = Store::create(Arc::new(disk.clone()), [1; 16], 1 << 20).expect("a store");
    let options = VolumeOptions {
        chunk_len: 4096,
        ..VolumeOptions::default()
    };
    create(&store, "v", &options, [1; 16], 0).expect("a volume");
    drop(store);
    let volume = open(&disk);
    let mut random = Random::new(5);
    let mut bytes = |len: usize| -> Vec<u8> { (0..len).map(|_| random.next() as u8).collect() };
    let new = new_inode(FileKind::Regular);
    let file = volume.create(Ino::ROOT, b"file", &new, 1).expect("create");
    for number in 0..COUNT as u64 {
        // Each block lives in some snapshots that follow each other, and in no others.
        for window in 0..=number {
            let written = volume.write(file.ino, window * 4096, &bytes(4096), 1);
            written.expect("write");
        }
        let name = format!("n{number}");
        volume
            .create(Ino::ROOT, name.as_bytes(), &new, 1)
            .expect("create");
        if number > 1 {
            let old = format!("n{}", number - 2);
            let removed = volume.unlink(Ino::ROOT, old.as_bytes(), 1).expect("unlink");
            volume.forget(removed.ino).expect("forget");
        }
        let taken = volume.take_snapshot(&format!("s{number}"), 0);
        taken.expect("a snapshot");
    }
    let written = volume.write(file.ino, 0, &bytes(6 * 4096), 1);
    written.expect("write");
    volume.close().expect("close");
    drop(volume);
    disk
}

/// Would catch: a removal that frees less or more than nothing else uses, than `ls` has said, or
/// that depends on the order.
#[test]
fn snapshots_are_removed_in_every_order() {
    let disk = with_history();
    let disk = disk.restart();
    for order in orders(COUNT) {
        let disk = disk.restart();
        let volume = open(&disk);
        for number in &order {
            let known = volume.snapshots().expect("snapshots");
            let name = format!("s{number}");
            let found = known.iter().find(|snapshot| snapshot.name == name);
            let found = found.expect("it");
            let said = volume.snapshot_spaces(&[[found.no; 2]]).expect("space")[0];
            let before = blocks(&volume).1;
            volume.remove_snapshot(&name).expect("remove");
            while volume.snapshot_step().expect("a step") {}
            assert_eq!(
                before - blocks(&volume).1,
                said.own_len,
                "{order:?}: {name}"
            );
            for left in volume.snapshots().expect("snapshots") {
                let space = volume.snapshot_spaces(&[[left.no; 2]]).expect("space")[0];
                assert_ne!(space, SnapshotSpace::default(), "{order:?}: {}", left.name);
            }
        }
        // What is left is the volume's alone.
        let engine = volume.core.shared.reader.engine();
        for table in [Table::Kept, Table::KeptBySnapshot] {
            let mut count = 0;
            let scanned = engine.scan(table, &[], &mut |_, _| {
                count += 1;
                Ok(ControlFlow::Continue(()))
            });
            scanned.expect("rows");
            assert_eq!(count, 0, "{order:?}: {}", table.name());
        }
        assert_eq!(blocks(&volume).0, 6, "{order:?}");
        volume.close().expect("close");
    }
    let store = Store::open(Arc::new(disk.restart())).expect("open");
    let writer = store.write_for_check("a test").expect("a writer");
    let options = CheckOptions { reads_data: true };
    let report = check_store(&writer, &options, &mut |_| {}).expect("a check");
    assert_eq!(report.findings, []);
}

/// Would catch: snapshots that are removed together and free something else than is said of them,
/// or take something along that the ones around them have.
#[test]
fn snapshots_that_follow_each_other_are_removed_together() {
    let disk = with_history().restart();
    for first in 0..COUNT {
        for last in first..COUNT {
            let disk = disk.restart();
            let volume = open(&disk);
            let known = volume.snapshots().expect("snapshots");
            let said = volume.snapshot_spaces(&[[known[first].no, known[last].no]]);
            let said = said.expect("space")[0];
            let before = blocks(&volume).1;
            let names = (first..=last).map(|number| format!("s{number}"));
            for name in names {
                volume.remove_snapshot(&name).expect("remove");
            }
            while volume.snapshot_step().expect("a step") {}
            let freed = before - blocks(&volume).1;
            assert_eq!(freed, said.own_len, "{first} to {last}");
            assert_eq!(volume.removed_snapshots().expect("a count"), 0);
            let left = volume.snapshots().expect("snapshots");
            assert_eq!(left.len(), COUNT - (last - first + 1));
            // Each of the others is read as before: its newest file is there.
            for found in &left {
                let opened = volume.open_snapshot(&found.name).expect("a snapshot");
                let name = found.name.replace('s', "n");
                opened.lookup(Ino::ROOT, name.as_bytes()).expect("its file");
                let file = opened.lookup(Ino::ROOT, b"file").expect("a file");
                let mut bytes = Vec::new();
                let read = opened.read(file.ino, 0, 6 * 4096, &mut bytes);
                read.expect("its bytes");
            }
            volume.close().expect("close");
            let store = Store::open(Arc::new(disk.restart())).expect("open");
            let writer = store.write_for_check("a test").expect("a writer");
            let options = CheckOptions { reads_data: true };
            let report = check_store(&writer, &options, &mut |_| {}).expect("a check");
            assert_eq!(report.findings, [], "{first} to {last}");
        }
    }
}

/// Would catch: a policy that takes none in some hour or two in one, that removes what it has to
/// keep or what is not its own, or that takes snapshots of nothing or behind removals.
#[test]
fn a_policy_is_followed_hour_by_hour() {
    const HOUR: i128 = 3_600_000_000_000;
    let disk = SimDisk::new(1);
    let store = Store::create(Arc::new(disk.clone()), [1; 16], 1 << 20).expect("a store");
    create(&store, "v", &VolumeOptions::default(), [1; 16], 0).expect("a volume");
    drop(store);
    let volume = open(&disk);
    let set = |value: &[u8]| volume.set_xattr(Ino::ROOT, SNAPSHOTS, value, XattrMode::Set, 1);
    for bad in [&b"hourly=0"[..], b"soon", b""] {
        assert!(set(bad).is_err());
    }
    set(b"hourly=3 daily=2").expect("a policy");
    let file = volume
        .create(Ino::ROOT, b"file", &new_inode(FileKind::Regular), 1)
        .expect("create");
    let elsewhere = volume.set_xattr(file.ino, SNAPSHOTS, b"hourly=1", XattrMode::Set, 1);
    assert!(elsewhere.is_err());
    volume.take_snapshot("own", 0).expect("a snapshot");
    let names = || -> Vec<String> {
        let all = volume.snapshots().expect("a list").into_iter();
        all.map(|found| found.name).collect()
    };
    let remove_all = || while volume.snapshot_step().expect("a step") {};
    for hour in 0..30 {
        for (minute, expected) in [(1, PolicyStep::Taken), (30, PolicyStep::Nothing)] {
            let written = volume.write(file.ino, 0, &[hour as u8, minute as u8], 1);
            written.expect("write");
            let now = hour * HOUR + minute * (HOUR / 60);
            let step = volume.follow_snapshot_policy(now).expect("a policy");
            assert_eq!(step, expected, "hour {hour}");
            remove_all();
        }
    }
    let at = |day: u32, hour: u32| format!("auto-1970-01-{day:02}T{hour:02}.01.00Z");
    let kept = ["own".to_owned(), at(1, 23), at(2, 3), at(2, 4), at(2, 5)];
    assert_eq!(names(), kept);
    // Nothing has changed since: there is nothing to take, and later there is again.
    volume.write(file.ino, 0, b"a", 1).expect("write");
    let taken = volume.follow_snapshot_policy(100 * HOUR).expect("a policy");
    assert_eq!(taken, PolicyStep::Taken);
    let idle = volume.follow_snapshot_policy(101 * HOUR).expect("a policy");
    assert_eq!(idle, PolicyStep::Nothing);
    // Removals that are behind.
    let mut hours = 102..110;
    let behind = hours.find_map(|hour| {
        volume.write(file.ino, 0, &[hour as u8], 1).expect("write");
        let before = names();
        let step = volume.follow_snapshot_policy(hour * HOUR);
        match step.expect("a policy") {
            PolicyStep::Behind(count) => {
                assert_eq!(names(), before);
                Some(count)
            }
            step => {
                assert_eq!(step, PolicyStep::Taken);
                None
            }
        }
    });
    assert!(behind.is_some_and(|count| count > 2), "{behind:?}");
    remove_all();
    let caught_up = volume.follow_snapshot_policy(110 * HOUR).expect("a policy");
    assert_eq!(caught_up, PolicyStep::Taken);
    remove_all();
    volume.close().expect("close");
}

/// Would catch: a volume with more snapshots than a list of them may have, or one too few.
#[test]
fn a_volume_has_no_more_snapshots_than_a_list_may_have() {
    let volume = open(&with_history());
    let engine = volume.core.shared.reader.engine();
    let first = volume.snapshots().expect("snapshots").swap_remove(0);
    let volume_no = first.volume.volume_no;
    let key = |no: usize| snapshot_key(volume_no, SnapshotNo(no as u32));
    let row = engine.get(Table::Snapshots, &key(first.no.0 as usize));
    let row = SnapshotRow::parse(&row.expect("read").expect("a row")).expect("parse");
    let mut batch = Batch::default();
    for no in 0..SNAPSHOTS_MAX - COUNT - 1 {
        let name = format!("more-{no}");
        let row = SnapshotRow {
            name,
            ..row.clone()
        };
        batch.put(Table::Snapshots, &key(1000 + no), row.encode());
    }
    let writer = volume.core.shared.writing.lock().writer.engine();
    writer.commit(&batch).expect("commit");
    volume
        .take_snapshot("last", 1)
        .expect("the last that can be");
    let refused = volume.take_snapshot("more", 2).expect_err("one too many");
    assert_eq!(refused.kind(), ErrorKind::Limit, "{refused}");
    assert_eq!(volume.snapshots().expect("a list").len(), SNAPSHOTS_MAX);
    volume.remove_snapshot("more-7").expect("remove");
    while volume.snapshot_step().expect("a step") {}
    volume.take_snapshot("more", 3).expect("room again");
}
