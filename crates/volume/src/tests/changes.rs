//! What differs between two states, compared with walks over both.

use super::*;
use crate::{BlockPlace, OpenStore, VolumeReader};
use std::collections::BTreeMap;
use weald_format::volume::InodeRow;
use weald_io::Spool;
use weald_store::engine::RowsFile;
use weald_store::simulated_disk::{Random, SimDisk};

/// What a comparison sees of a path: the inode without times of access, and where its bytes are.
type Seen = (Ino, InodeRow, Vec<(u64, Option<BlockPlace>)>, Vec<Vec<u8>>);
type Paths = BTreeMap<Vec<u8>, Seen>;

fn paths(reader: &VolumeReader) -> Paths {
    let mut found = Paths::new();
    let mut waiting = vec![(Vec::new(), reader.root())];
    while let Some((path, ino)) = waiting.pop() {
        let row = reader.inode(ino).expect("a row");
        let seen = InodeRow {
            atime: 0,
            ctime: 0,
            parent: Ino::NONE,
            ..(*row).clone()
        };
        let extents = reader.extents(ino).expect("extents").into_iter();
        let xattrs = reader.xattrs(ino).expect("attributes").into_iter();
        let seen = (
            ino,
            seen,
            extents.map(|extent| (extent.len, extent.block)).collect(),
            xattrs
                .map(|xattr| [xattr.name, xattr.value].concat())
                .collect(),
        );
        if row.kind == FileKind::Directory {
            for name in reader.names(ino).expect("names") {
                let below = [&path[..], b"/", &name.name].concat();
                waiting.push((below, name.ino));
            }
        }
        found.insert(path, seen);
    }
    found
}

/// The first part of `path` that is not in both.
fn fork<'a>(path: &'a [u8], [left, right]: [&Paths; 2]) -> &'a [u8] {
    let is_dir = |paths: &Paths, at: &[u8]| {
        let found = paths.get(at);
        found.is_some_and(|(_, row, ..)| row.kind == FileKind::Directory)
    };
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    for (end, _) in ends {
        let at = &path[..end];
        if !is_dir(left, at) || !is_dir(right, at) {
            return at;
        }
    }
    path
}

fn judge(full: [&Paths; 2], pruned: [&Paths; 2]) {
    for side in 0..2 {
        let other = 1 - side;
        for (path, seen) in pruned[side] {
            assert_eq!(full[side].get(path), Some(seen), "a path that is not there");
            let is_there = full[other].contains_key(path) == pruned[other].contains_key(path);
            let shown = String::from_utf8_lossy(path);
            // Below a path that one state has alone, nobody looks.
            assert!(
                is_there || fork(path, full) != &path[..],
                "{shown} on one side"
            );
        }
        for (path, seen) in full[side] {
            let at = fork(path, full);
            let differs = full[other].get(path) != Some(seen);
            if differs && at == &path[..] {
                let shown = String::from_utf8_lossy(path);
                assert!(pruned[side].contains_key(path), "{shown} is left out");
            }
        }
    }
}

/// Changes the tree at random.
fn change(volume: &Volume, random: &mut Random, dirs: &mut Vec<Ino>) {
    let name = |random: &mut Random| format!("n{}", random.below(6)).into_bytes();
    let pick = |random: &mut Random, dirs: &[Ino]| dirs[random.below(dirs.len() as u64) as usize];
    let (dir, to) = (pick(random, dirs), pick(random, dirs));
    let (first, second) = (name(random), name(random));
    let found = volume.lookup(dir, &first).map(|stat| stat.ino);
    // What cannot be done is refused.
    match random.below(9) {
        0 | 1 => drop(volume.create(dir, &first, &new_inode(FileKind::Regular), 1)),
        2 => {
            let made = volume.create(dir, &first, &new_inode(FileKind::Directory), 1);
            dirs.extend(made.map(|stat| stat.ino));
        }
        3 => drop(volume.rename((dir, &first), (to, &second), RenameMode::Replace, 1)),
        4 => drop(volume.rename((dir, &first), (to, &second), RenameMode::Exchange, 1)),
        5 => {
            let _ = volume.unlink(dir, &first, 1);
            let _ = volume.rmdir(dir, &first, 1);
        }
        6 => {
            let bytes = vec![random.next() as u8; random.below(9000) as usize];
            let at = random.below(3) * 4096;
            drop(found.and_then(|ino| volume.write(ino, at, &bytes, 1)));
        }
        7 => drop(found.and_then(|ino| volume.link(ino, to, &second, 1))),
        _ => {
            let value = [random.next() as u8];
            drop(found.and_then(|ino| volume.set_xattr(ino, b"user.a", &value, XattrMode::Set, 1)));
        }
    }
}

/// Would catch: a difference between two states that a comparison of changes leaves out, and
/// anything that it shows on one side by mistake, read from the tables or from a server's copy.
#[test]
fn what_changed_is_what_walks_find() {
    for seed in 0..25 {
        let disk = SimDisk::new(seed);
        let store = Store::create(Arc::new(disk.clone()), [1; 16], 1 << 20).expect("a store");
        let options = VolumeOptions {
            chunk_len: 4096,
            ..VolumeOptions::default()
        };
        create(&store, "v", &options, [1; 16], 0).expect("a volume");
        let options = OpenOptions {
            background: false,
            ..OpenOptions::default()
        };
        let shared = OpenStore::open(&store, &options).expect("a store");
        let volume = Volume::open_in(&shared, "v", options).expect("a volume");
        let (mut random, mut dirs) = (Random::new(seed), vec![Ino::ROOT]);
        let mut states = vec![None];
        for round in 0..5 {
            for _ in 0..random.below(60) {
                change(&volume, &mut random, &mut dirs);
            }
            let name = format!("s{round}");
            volume.take_snapshot(&name, round).expect("a snapshot");
            states.push(Some(name));
        }
        volume.remove_snapshot("s2").expect("remove");
        if seed % 2 == 0 {
            while volume.snapshot_step().expect("a step") {}
        }
        states.retain(|name| name.as_deref() != Some("s2"));
        for _ in 0..random.below(30) {
            change(&volume, &mut random, &mut dirs);
        }
        volume.commit().expect("commit");
        for left in &states {
            for right in &states {
                let names = [left.as_deref(), right.as_deref()];
                compare(&store, &volume, names);
            }
        }
        volume.close().expect("close");
    }
}

fn compare(store: &Store, volume: &Arc<Volume>, names: [Option<&str>; 2]) {
    let (full, pruned) = {
        let writing = volume.core.shared.writing.lock();
        let full = names.map(|name| {
            let name = name.map_or("v".to_owned(), |name| format!("v@{name}"));
            paths(&VolumeReader::open(&writing.writer, &name).expect("a state"))
        });
        let pruned = VolumeReader::open_changed(&writing.writer, "v", names);
        (full, pruned.expect("states").map(|reader| paths(&reader)))
    };
    judge(full.each_ref(), pruned.each_ref());
    if names[0] == names[1] {
        assert!(pruned.iter().all(|paths| paths.len() == 1));
    }
    let dir = std::env::temp_dir();
    let mut files = [(); 2].map(|()| Spool::create(&dir).expect("a file"));
    let mut hold = volume.hold().expect("a hold");
    hold.copy_changes(names, &mut |no, bytes| files[no].append(bytes).map(drop))
        .expect("rows");
    let copied = files.map(|file| {
        let rows = Arc::new(RowsFile::open(Box::new(file)).expect("rows"));
        paths(&VolumeReader::of_rows(store, rows, "v").expect("a state"))
    });
    assert_eq!(copied, pruned);
}
