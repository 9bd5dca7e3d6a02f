//! Tests that take the parts of a commit apart.

use super::*;
use crate::create::create;
use crate::options::VolumeOptions;
use crate::tests::new_inode;
use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use weald_format::container::{Codec, RecordRef, RecordType};
use weald_format::{BlockId, Digest, ErrorKind, FileKind, Ino};
use weald_store::disk::HostDisk;
use weald_store::engine::Table;
use weald_store::{CollectOptions, Collected, NewPart};
use weald_vfs::{FilePlace, WritableFs};

/// A new volume that commits in the calling thread, and the directory of its store.
fn new_volume() -> (tempfile::TempDir, Arc<Volume>) {
    let place = tempfile::tempdir().expect("a directory");
    let disk = Arc::new(HostDisk::new(&place.path().join("store")));
    let store = Store::create(disk, [7; 16], 1 << 20).expect("a store");
    create(&store, "v", &VolumeOptions::default(), [1; 16], 1).expect("a volume");
    let options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    let volume = Volume::open(&store, "v", options).expect("open");
    (place, volume)
}

fn write(volume: &Volume, ino: Ino, offset: u64, bytes: &[u8]) {
    volume.write(ino, offset, bytes, 1).expect("write");
}

fn read(volume: &Volume, ino: Ino) -> Vec<u8> {
    let mut bytes = Vec::new();
    volume.read(ino, 0, 1 << 20, &mut bytes).expect("read");
    bytes
}

/// Would catch: figures that wait for the end of a commit.
#[test]
fn figures_are_there_while_a_commit_runs() {
    let (_place, volume) = new_volume();
    let before = volume.status().expect("figures").commits;
    volume.commit().expect("commit");
    let committer = volume.committer.lock();
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        scope.spawn(|| sender.send(volume.status()));
        let status = receiver.recv_timeout(Duration::from_secs(60));
        drop(committer);
        let status = status
            .expect("no figures during a commit")
            .expect("figures");
        assert_eq!(status.commits, before);
    });
}

/// Would catch: a copy that shares a block which the commit beside it drops.
#[test]
fn a_copy_waits_for_the_commit_beside_it() {
    let (_place, volume) = new_volume();
    let new = new_inode(FileKind::Regular);
    let a = volume.create(Ino::ROOT, b"a", &new, 1).expect("create").ino;
    let b = volume.create(Ino::ROOT, b"b", &new, 1).expect("create").ino;
    let whole: Vec<u8> = (1..=131_072u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8 | 1)
        .collect();
    write(&volume, a, 0, &whole);
    volume.commit().expect("commit");
    // So many pieces that the commit writes the window anew, and drops its block.
    for at in (0..131_072).step_by(2048) {
        write(&volume, a, at, b"changed");
    }
    let expected = read(&volume, a);
    let mut committer = volume.committer.lock();
    let (layer, sequence) = volume
        .core
        .freeze(false, false)
        .expect("freeze")
        .expect("a layer");
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let copied = volume.copy_range(FilePlace::new(a, 0), FilePlace::new(b, 0), 4096, 2);
            sender.send(copied.expect("copy")).expect("sent");
        });
        // A copy that does not wait is done now.
        let early = receiver.recv_timeout(Duration::from_millis(300)).ok();
        let mut writing = volume.core.shared.writing.lock();
        let done = committer.commit(&volume.core, &mut writing, &layer);
        let done = done.expect("commit");
        assert!(!done.dead.is_empty(), "the commit dropped no block");
        let core = &volume.core;
        core.thaw(&layer, sequence, &done.windows);
        let freed = volume.core.shared.free(&writing, &done.dead);
        freed.expect("free");
        drop(writing);
        drop(committer);
        let copied = early.or_else(|| receiver.recv().ok());
        assert_eq!(copied, Some(4096));
    });
    volume.commit().expect("the copy shares blocks that exist");
    assert_eq!(read(&volume, b), &expected[..4096]);
}

/// Would catch: small files that are stored again after a mount.
#[test]
fn packed_pieces_are_found_after_a_mount() {
    let place = tempfile::tempdir().expect("a directory");
    let disk = Arc::new(HostDisk::new(&place.path().join("store")));
    let store = Store::create(disk, [7; 16], 1 << 20).expect("a store");
    create(&store, "v", &VolumeOptions::default(), [1; 16], 1).expect("a volume");
    let options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    let new = new_inode(FileKind::Regular);
    let text = |number: u32| format!("file {number} ").repeat(50).into_bytes();
    // In another order, so that the packs are others.
    let numbers: [Vec<u32>; 2] = [(0..600).collect(), (0..600).rev().collect()];
    let fill = |volume: &Volume, copy: usize| {
        for &number in &numbers[copy] {
            let name = format!("{copy}{number}");
            let stat = volume.create(Ino::ROOT, name.as_bytes(), &new, 1);
            write(volume, stat.expect("create").ino, 0, &text(number));
        }
        volume.commit().expect("commit");
        volume.status().expect("figures").unique_len
    };
    let volume = Volume::open(&store, "v", options.clone()).expect("open");
    let first = fill(&volume, 0);
    volume.close().expect("close");
    drop(volume);
    let volume = Volume::open(&store, "v", options).expect("open again");
    let mut steps = 1;
    while volume.rebuild_index() {
        steps += 1;
    }
    assert!(steps > 1, "600 pieces in one step");
    assert_eq!(fill(&volume, 1), first, "copies took space");
}

/// Would catch: a seal that ends because the disk is full, or beside which new data that goes again
/// takes space; a writer that waits for it, and space that does not come back when it has ended.
#[test]
fn a_seal_outlasts_a_full_disk() {
    let disk = weald_store::simulated_disk::SimDisk::new(1);
    let store = Store::create(Arc::new(disk.clone()), [7; 16], 1 << 20).expect("a store");
    create(&store, "v", &VolumeOptions::default(), [1; 16], 1).expect("a volume");
    disk.limit(disk.used() + (24 << 20));
    let options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    let volume = Volume::open(&store, "v", options).expect("open");
    let new = new_inode(FileKind::Regular);
    let mut random = weald_store::simulated_disk::Random::new(1);
    let mut fill = |name: &[u8], len: u64| {
        let ino = volume.create(Ino::ROOT, name, &new, 1)?.ino;
        for at in (0..len).step_by(1 << 16) {
            let bytes: Vec<u8> = (0..1 << 16).map(|_| random.next() as u8).collect();
            volume.write(ino, at, &bytes, 1)?;
        }
        Outcome::Ok(ino)
    };
    let old = fill(b"old", 12 << 20).expect("room for a file");
    let mut hold = volume.hold().expect("hold");
    hold.copy_rows(&mut |_| Ok(())).expect("copy");
    volume.unlink(Ino::ROOT, b"old", 2).expect("unlink");
    volume.forget(old).expect("forget");
    for round in 0..20 {
        let ino = fill(b"small", 2 << 20).unwrap_or_else(|e| panic!("round {round}: {e:?}"));
        volume.commit().expect("commit");
        volume.unlink(Ino::ROOT, b"small", 2).expect("unlink");
        volume.forget(ino).expect("forget");
        volume.commit().expect("commit");
    }
    let refused = fill(b"new", 12 << 20).expect_err("more than there is beside the hold");
    assert_eq!(refused.errno, rustix::io::Errno::NOSPC);
    volume.commit().expect("commit");
    assert!(!hold.is_over(), "the seal has lost its state");
    let new = volume.lookup(Ino::ROOT, b"new").expect("a part of it").ino;
    volume
        .unlink(Ino::ROOT, b"new", 2)
        .expect("unlink on a full disk");
    volume.forget(new).expect("forget");
    volume.commit().expect("commit");
    drop(hold);
    fill(b"new", 12 << 20).expect("the room that the hold had");
    volume.commit().expect("commit");
}

/// A new record of these bytes.
fn new_part(stored: Vec<u8>) -> NewPart {
    let record = RecordRef {
        record_type: RecordType::Data,
        codec: Codec::None,
        offset: 0,
        stored_len: stored.len() as u64,
        raw_len: stored.len() as u64,
        digest: Digest::of(&stored),
    };
    NewPart::Record(record, stored)
}

fn end() -> NewPart {
    NewPart::End(Digest::default(), Digest::default())
}

fn block_count(volume: &Volume) -> usize {
    let engine = volume.core.shared.writing.lock().writer.engine();
    let mut count = 0;
    let scanned = engine.scan(Table::Blocks, &[], &mut |_, _| {
        count += 1;
        Ok(ControlFlow::Continue(()))
    });
    scanned.expect("rows of blocks");
    count
}

/// Would catch: an image that is given up and stays listed, keeps its name or its blocks, or takes
/// blocks along that another image is about to refer to.
#[test]
fn an_image_that_is_given_up_leaves_nothing() {
    let (place, volume) = new_volume();
    let names = || {
        let disk = Arc::new(HostDisk::new(&place.path().join("store")));
        let store = Store::open(disk).expect("open");
        store.names().expect("names")
    };
    let parts = || (0..9u8).map(|byte| new_part(vec![byte; 5000]));
    let hold = volume.hold_blocks().expect("hold");
    for steps in 0..4 {
        let mut adding = hold.add_image("i").expect("begin");
        adding.put(parts().collect()).expect("records");
        if steps > 0 {
            adding.put(vec![end()]).expect("the end");
            adding.write_map().expect("map");
        }
        for _ in 1..steps {
            assert!(adding.count_some().expect("count"), "all parts in a step");
        }
        drop(adding);
        assert_eq!(names(), Vec::<String>::new(), "{steps} steps");
    }
    let other = volume.hold_blocks().expect("hold");
    let mut stays = other.add_image("stays").expect("begin");
    stays.put(parts().collect()).expect("records");
    let mut adding = hold.add_image("i").expect("begin");
    adding.put(parts().chain([end()]).collect()).expect("parts");
    drop(adding);
    drop(hold);
    stays.put(vec![end()]).expect("the end");
    let mut same = other.add_image("stays").expect("the name is free so far");
    same.put(vec![new_part(b"other".to_vec()), end()])
        .expect("parts");
    let added = stays.finish().expect("an image");
    assert_eq!((added.block_count, names()), (9, vec!["stays".to_owned()]));
    let refused = same.finish().expect_err("the name is taken");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    drop(other);
    assert_eq!(block_count(&volume), 9);
    volume.close().expect("close");
}

/// Would catch: records with other bytes than their digest says, or blocks that another image
/// guessed, in an image; an image with more blocks than a reader takes.
#[test]
fn wrong_parts_of_an_image_are_refused() {
    let (_place, volume) = new_volume();
    let hold = volume.hold_blocks().expect("hold");
    let NewPart::Record(record, _) = new_part(vec![1; 100]) else {
        unreachable!("a record")
    };
    for part in [
        NewPart::Record(record, vec![2; 100]),
        NewPart::Record(record, vec![1; 99]),
        NewPart::Stored(BlockId(77), record),
    ] {
        let mut adding = hold.add_image("i").expect("begin");
        let refused = adding.put(vec![part]).expect_err("a wrong part");
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
    let adding = hold.add_image("i").expect("begin");
    let refused = adding.finish().expect_err("no end");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let refused = hold.add_image("v").expect_err("the name of the volume");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(volume.core.state.read().failure.is_none());
    drop(hold);
    assert_eq!(block_count(&volume), 0);
}

/// Would catch: an image that takes the space which changes need that wait for a commit, so that
/// the commit fails.
#[test]
fn an_image_takes_no_space_that_changes_need() {
    let disk = weald_store::simulated_disk::SimDisk::new(1);
    let store = Store::create(Arc::new(disk.clone()), [7; 16], 1 << 20).expect("a store");
    create(&store, "v", &VolumeOptions::default(), [1; 16], 1).expect("a volume");
    disk.limit(disk.used() + (24 << 20));
    let options = OpenOptions {
        background: false,
        cache_len: 128 << 20,
        ..OpenOptions::default()
    };
    let volume = Volume::open(&store, "v", options).expect("open");
    let mut random = weald_store::simulated_disk::Random::new(1);
    let mut noise = || -> Vec<u8> { (0..1 << 16).map(|_| random.next() as u8).collect() };
    let new = new_inode(FileKind::Regular);
    let ino = volume.create(Ino::ROOT, b"a", &new, 1).expect("create").ino;
    for at in (0..12 << 20).step_by(1 << 16) {
        write(&volume, ino, at, &noise());
    }
    let hold = volume.hold_blocks().expect("hold");
    let mut adding = hold.add_image("i").expect("begin");
    let refused = (0..400).find_map(|_| adding.put(vec![new_part(noise())]).err());
    let refused = refused.expect("an image of 25 MB on a disk of 24 MB");
    assert_eq!(refused.kind(), ErrorKind::Full);
    volume.commit().expect("the commit of 12 MB");
    drop(adding);
    drop(hold);
    volume.sync().expect("sync");
    assert_eq!(volume.stat(ino).expect("stat").size, 12 << 20);
    volume.close().expect("close");
}

/// Would catch: a collection that moves blocks under a seal, two collections at a time, and one
/// that goes on after the volume was closed.
#[test]
fn a_collection_gives_way_to_holds_and_to_other_collections() {
    let (_place, volume) = new_volume();
    let options = CollectOptions::default();
    let refused = |why: &str| {
        let refused = volume.begin_collection(&options).expect_err(why);
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    };
    let hold = volume.hold_blocks().expect("hold");
    refused("a hold lasts");
    drop(hold);
    let mut first = volume.begin_collection(&options).expect("begin");
    refused("a collection lasts");
    let hold = volume.hold().expect("hold");
    assert_eq!(first.step().expect("a step"), CollectStep::Waiting);
    drop(hold);
    while first.step().expect("a step") != CollectStep::Done {}
    drop(first);
    let mut last = volume.begin_collection(&options).expect("begin");
    volume.close().expect("close");
    let over = last.step().expect_err("the volume is closed");
    assert_eq!(over.kind(), ErrorKind::Busy);
}

/// Would catch: a block that moves although the map that names it cannot be rewritten, so that the
/// map names places that are gone when it is back, and a collection that a damaged map ends.
#[test]
fn beside_a_damaged_or_missing_map_no_block_moves() {
    let (place, volume) = new_volume();
    let hold = volume.hold_blocks().expect("hold");
    for (name, parts) in [("a", 1..9u8), ("b", 7..9)] {
        let mut adding = hold.add_image(name).expect("begin");
        let parts = parts.map(|part| new_part(vec![part; 9000]));
        adding.put(parts.chain([end()]).collect()).expect("parts");
        adding.finish().expect("an image");
    }
    drop(hold);
    let removing = volume.begin_removal("a", false).expect("begin");
    removing.finish().expect("removed");
    let map = place.path().join("store/images/b");
    let mut bytes = std::fs::read(&map).expect("a map");
    bytes[90] ^= 1;
    std::fs::write(&map, &bytes).expect("damage");
    let collect = || -> weald_format::Result<Collected> {
        let mut collecting = volume.begin_collection(&CollectOptions::default())?;
        while collecting.step()? != CollectStep::Done {}
        Ok(*collecting.done())
    };
    let segments = || std::fs::read_dir(place.path().join("store/segments")).map(Iterator::count);
    let before = segments().expect("segments");
    for forgotten in [6, 0] {
        let done = collect().expect("a collection beside a damaged or missing map");
        let found = (done.maps_damaged, done.copied_len, done.blocks_forgotten);
        assert_eq!(found, (1, 0, forgotten));
        assert!(volume.core.state.read().failure.is_none());
        let found = (block_count(&volume), segments().expect("segments"));
        assert_eq!(found, (2, before));
        if forgotten > 0 {
            std::fs::remove_file(&map).expect("lose");
        }
    }
    bytes[90] ^= 1;
    std::fs::write(&map, &bytes).expect("repair");
    let done = collect().expect("a collection");
    assert_eq!((done.maps_damaged, done.segments_removed), (0, 1));
    assert!(done.copied_len >= 2 * 9000, "{done:?}");
    assert_eq!(block_count(&volume), 2);
    volume.close().expect("close");
}

/// Would catch: a damaged block that ends a collection beside a mount, or is lost with its segment,
/// and content that becomes a block that is known to be damaged.
#[test]
fn a_damaged_block_keeps_its_segment_and_is_not_used_again() {
    let (place, volume) = new_volume();
    let new = new_inode(FileKind::Regular);
    let make = |name: &[u8]| volume.create(Ino::ROOT, name, &new, 1).expect("create").ino;
    let mut random = weald_store::simulated_disk::Random::new(3);
    let bytes: Vec<u8> = (0..9000).map(|_| random.below(256) as u8).collect();
    let damaged = make(b"damaged");
    write(&volume, damaged, 0, &bytes);
    volume.commit().expect("commit");
    let hold = volume.hold_blocks().expect("hold");
    let mut adding = hold.add_image("i").expect("begin");
    let parts = vec![new_part(vec![1; 9000]), end()];
    adding.put(parts).expect("parts");
    adding.finish().expect("an image");
    drop(hold);
    let removing = volume.begin_removal("i", false).expect("begin");
    removing.finish().expect("removed");
    let path = place.path().join("store/segments/0000000000000001");
    let whole = std::fs::read(&path).expect("a segment");
    let at = whole
        .windows(64)
        .position(|part| *part == bytes[4000..4064]);
    let mut torn = whole.clone();
    torn[at.expect("the bytes are stored as they are")] ^= 1;
    std::fs::write(&path, &torn).expect("damage");
    let collect = || -> Collected {
        let options = CollectOptions {
            copy_below_percent: 100,
            ..CollectOptions::default()
        };
        let mut collecting = volume.begin_collection(&options).expect("begin");
        while collecting.step().expect("a step") != CollectStep::Done {}
        *collecting.done()
    };
    let done = collect();
    assert_eq!(
        (done.segments_kept, done.segments_removed),
        (1, 0),
        "{done:?}"
    );
    // The file is there, and its bytes are those of before.
    let again = make(b"again");
    write(&volume, again, 0, &bytes);
    volume.commit().expect("commit");
    volume.close().expect("close");
    drop(volume);
    let store = Store::open(Arc::new(HostDisk::new(&place.path().join("store"))));
    let store = store.expect("a store");
    let options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    let open = || Volume::open(&store, "v", options.clone()).expect("open");
    let volume = open();
    assert!(read(&volume, again) == bytes);
    let failed = volume.read(damaged, 0, 9000, &mut Vec::new());
    assert_eq!(failed.expect_err("damage").errno, rustix::io::Errno::IO);
    volume.close().expect("close");
    drop(volume);
    std::fs::write(&path, &whole).expect("mend");
    let volume = open();
    assert!(read(&volume, damaged) == bytes && read(&volume, again) == bytes);
    volume.close().expect("close");
}

/// Would catch: a read that has found the place of a block, and then finds its segment removed.
#[test]
fn a_collection_removes_files_when_no_read_is_under_way() {
    let (place, volume) = new_volume();
    let new = new_inode(FileKind::Regular);
    let ino = volume.create(Ino::ROOT, b"a", &new, 1).expect("create").ino;
    let bytes: Vec<u8> = (0..9000u32).flat_map(u32::to_le_bytes).collect();
    write(&volume, ino, 0, &bytes);
    volume.commit().expect("commit");
    let hold = volume.hold_blocks().expect("hold");
    let mut adding = hold.add_image("i").expect("begin");
    adding
        .put(vec![new_part(vec![1; 9000]), end()])
        .expect("parts");
    adding.finish().expect("an image");
    drop(hold);
    let removing = volume.begin_removal("i", false).expect("begin");
    removing.finish().expect("removed");
    let first = place.path().join("store/segments/0000000000000001");
    let options = CollectOptions {
        copy_below_percent: 100,
        ..CollectOptions::default()
    };
    let mut collecting = volume.begin_collection(&options).expect("begin");
    thread::scope(|scope| {
        let gate = volume.core.shared.gate.read();
        let collector =
            scope.spawn(|| while collecting.step().expect("a step") != CollectStep::Done {});
        // Nobody gets in any more when the collection waits for the read that is under way.
        while volume.core.shared.gate.try_read().is_some() && !collector.is_finished() {
            thread::yield_now();
        }
        assert!(first.exists() && !collector.is_finished());
        drop(gate);
    });
    assert!(!first.exists());
    assert!(read(&volume, ino) == bytes);
    volume.close().expect("close");
}
