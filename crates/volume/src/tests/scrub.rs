//! Scrubs of a store with a volume and its snapshots: the paths that they name are those that
//! cannot be read.

use super::*;
use crate::{OpenStore, ScrubEnd, scrub_alone};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use weald_store::scrub::{ScrubReport, ScrubWish, WHOLE};
use weald_store::simulated_disk::{Random, SimDisk};

/// A path in the volume, or in one of its snapshots.
type Named = (Option<String>, Vec<u8>);

const WISH: ScrubWish = ScrubWish {
    run: 1,
    tries: 0,
    is_paused: false,
    rate: 0,
    share: WHOLE,
    is_since: false,
};

fn open(disk: &SimDisk) -> weald_format::Result<Arc<Volume>> {
    let store = Store::open(Arc::new(disk.clone()))?;
    let options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    let shared = OpenStore::open(&store, &options)?;
    Volume::open_in(&shared, "v", options)
}

/// Changes a volume at random: files in directories, names that move, snapshots.
fn change(volume: &Arc<Volume>, random: &mut Random, step: u64) {
    let names = [&b"a"[..], b"b", b"c\nd", b"e\xff", b"deep"];
    let name = |random: &mut Random| names[random.below(5) as usize];
    let dirs: Vec<Ino> = {
        let (mut dirs, mut at) = (vec![Ino::ROOT], 0);
        while let Some(&dir) = dirs.get(at) {
            let listed = volume.list(dir, 0, &mut |listed| {
                if listed.stat.kind == FileKind::Directory {
                    dirs.push(listed.stat.ino);
                }
                true
            });
            listed.expect("list");
            at += 1;
        }
        dirs
    };
    let dir = |random: &mut Random| dirs[random.below(dirs.len() as u64) as usize];
    let (here, there) = (dir(random), dir(random));
    match random.below(10) {
        0..=1 => {
            let new = new_inode(FileKind::Directory);
            let _ = volume.create(here, name(random), &new, 1);
        }
        2..=5 => {
            let new = new_inode(FileKind::Regular);
            let _ = volume.create(here, name(random), &new, 1);
            if let Ok(found) = volume.lookup(here, name(random))
                && found.kind == FileKind::Regular
            {
                let bytes = noise(100 + random.below(9000) as usize, random.below(40));
                let written = volume.write(found.ino, random.below(3) * 4096, &bytes, 1);
                written.expect("write");
            }
        }
        6 => {
            let (from, to) = (name(random), name(random));
            let _ = volume.rename((here, from), (there, to), RenameMode::Replace, 1);
        }
        7 => {
            if let Ok(found) = volume.lookup(here, name(random)) {
                let _ = volume.link(found.ino, there, name(random), 1);
            }
        }
        8 => {
            if let Ok(removed) = volume.unlink(here, name(random), 1) {
                volume.forget(removed.ino).expect("forget");
            }
        }
        _ => {
            let name = format!("s{step}");
            volume.take_snapshot(&name, 0).expect("a snapshot");
        }
    }
}

fn filled(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let segment_len = [20_000, 80_000, 1 << 20][(seed % 3) as usize];
    let store = Store::create(Arc::new(disk.clone()), [1; 16], segment_len).expect("a store");
    let options = VolumeOptions {
        chunk_len: 4096,
        ..VolumeOptions::default()
    };
    create(&store, "v", &options, [1; 16], 0).expect("a volume");
    drop(store);
    let volume = open(&disk).expect("open");
    let mut random = Random::new(seed);
    for step in 0..40 + random.below(60) {
        change(&volume, &mut random, step);
    }
    volume.close().expect("close");
    drop(volume);
    disk.restart()
}

/// The contents of all files of one state that can be read.
fn read_state(volume: &Volume, snapshot: Option<&str>, found: &mut BTreeMap<Named, Vec<u8>>) {
    let mut pending = vec![(Ino::ROOT, Vec::new())];
    while let Some((dir, path)) = pending.pop() {
        let mut files = Vec::new();
        let _ = volume.list(dir, 0, &mut |listed| {
            let slash = if path.is_empty() { &b""[..] } else { b"/" };
            let path = [&path[..], slash, listed.name].concat();
            match listed.stat.kind {
                FileKind::Directory => pending.push((listed.stat.ino, path)),
                _ => files.push((listed.stat.ino, path)),
            }
            true
        });
        for (ino, path) in files {
            let mut bytes = Vec::new();
            if volume.read(ino, 0, 1 << 30, &mut bytes).is_ok() {
                found.insert((snapshot.map(str::to_owned), path), bytes);
            }
        }
    }
}

/// The contents of all files of the volume and of its snapshots that can be read.
fn read_all(disk: &SimDisk) -> weald_format::Result<BTreeMap<Named, Vec<u8>>> {
    let volume = open(disk)?;
    let mut found = BTreeMap::new();
    read_state(&volume, None, &mut found);
    for snapshot in volume.snapshots()? {
        if let Ok(state) = volume.open_snapshot_no(snapshot.no) {
            read_state(&state, Some(&snapshot.name), &mut found);
        }
    }
    volume.close()?;
    Ok(found)
}

fn scrubbed(disk: &SimDisk, wish: &ScrubWish) -> weald_format::Result<ScrubReport> {
    let store = Store::open(Arc::new(disk.clone()))?;
    store.put_scrub_wish(wish)?;
    let is_over = Arc::new(AtomicBool::new(false));
    match scrub_alone(&store, "a test", &is_over, &mut |_| {})? {
        ScrubEnd::Done(report) => Ok(*report),
        other => panic!("{other:?}"),
    }
}

fn named(report: &ScrubReport) -> BTreeSet<Named> {
    let users = report
        .findings
        .iter()
        .flat_map(|f| f.users.iter().flatten());
    let paths = users.filter_map(|user| {
        assert_eq!(user.name, "v");
        Some((user.snapshot.clone(), user.path.clone()?))
    });
    paths.collect()
}

fn damage(disk: &SimDisk, random: &mut Random) -> String {
    let names = disk.file_names();
    let is_segment = |name: &&String| name.starts_with("segments/");
    // Most bytes of a store are those of segments.
    let segments: Vec<&String> = names.iter().filter(is_segment).collect();
    let name = if random.is_one_in(3) || segments.is_empty() {
        &names[random.below(names.len() as u64) as usize]
    } else {
        segments[random.below(segments.len() as u64) as usize]
    };
    let len = disk.contents()[name].len() as u64;
    let at = random.below(len.max(1));
    let end = len.min(at + 16);
    (at..end).for_each(|byte| disk.flip(name, byte as usize, random.below(8) as u8));
    format!("{name}, byte {at}")
}

// Would catch: a scrub that says clean where a reader meets damage, that names a file that can be
// read, or that misses one: by a second name, in a directory that was moved, in a snapshot, or in
// one that is older than the block.
#[test]
fn a_scrub_names_the_paths_that_cannot_be_read() {
    let (mut of_volume, mut of_snapshots, mut refused) = (0, 0, 0);
    for seed in 0..300 {
        let disk = filled(seed);
        let whole = read_all(&disk).expect("read");
        let disk = disk.restart();
        let place = damage(&disk, &mut Random::new(seed ^ 0xabcd));
        let Ok(report) = scrubbed(&disk, &WISH) else {
            refused += 1;
            continue;
        };
        let Ok(found) = read_all(&disk) else {
            assert!(!report.findings.is_empty(), "seed {seed}: {place}");
            continue;
        };
        let lost = whole
            .iter()
            .filter(|(path, bytes)| found.get(path) != Some(bytes));
        let lost: BTreeSet<Named> = lost.map(|(path, _)| path.clone()).collect();
        let named = named(&report);
        assert_eq!(named, lost, "seed {seed}: {place}: {:?}", report.findings);
        of_volume += usize::from(named.iter().any(|(snapshot, _)| snapshot.is_none()));
        of_snapshots += usize::from(named.iter().any(|(snapshot, _)| snapshot.is_some()));
    }
    println!("{of_volume} cost files, {of_snapshots} files of snapshots, {refused} were refused");
    assert!(of_volume > 20 && of_snapshots > 20 && refused < 60);
}

// Would catch: new content that becomes a block which a scrub has found damaged, and damage that
// stays listed when its bytes are back.
#[test]
fn what_is_written_again_is_whole() {
    let disk = filled(4);
    let volume = open(&disk).expect("open");
    let bytes = noise(9000, 77);
    let first = file(&volume, Ino::ROOT, "first");
    volume.write(first.ino, 0, &bytes, 1).expect("write");
    volume.close().expect("close");
    drop(volume);
    let disk = disk.restart();
    let at = disk.contents().into_iter().find_map(|(name, stored)| {
        let at = stored
            .windows(64)
            .position(|part| *part == bytes[4000..4064])?;
        name.starts_with("segments/").then_some((name, at))
    });
    let (name, at) = at.expect("stored as it is");
    disk.flip(&name, at, 0);
    let report = scrubbed(&disk, &WISH).expect("a scrub");
    let of_first: BTreeSet<Named> = BTreeSet::from([(None, b"first".to_vec())]);
    assert_eq!(named(&report), of_first);
    let volume = open(&disk).expect("open");
    let again = file(&volume, Ino::ROOT, "again");
    volume.write(again.ino, 0, &bytes, 1).expect("write");
    volume.commit().expect("commit");
    volume.close().expect("close");
    drop(volume);
    let disk = disk.restart();
    let second = ScrubWish { run: 2, ..WISH };
    assert_eq!(named(&scrubbed(&disk, &second).expect("a scrub")), of_first);
    assert_eq!(
        read_all(&disk).expect("read")[&(None, b"again".to_vec())],
        bytes
    );
    // The same bytes, written to the file itself, take the place of the damaged ones.
    let disk = disk.restart();
    let volume = open(&disk).expect("open");
    volume.write(first.ino, 0, &bytes, 1).expect("write");
    volume.close().expect("close");
    drop(volume);
    let disk = disk.restart();
    let third = ScrubWish { run: 3, ..WISH };
    let report = scrubbed(&disk, &third).expect("a scrub");
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}
