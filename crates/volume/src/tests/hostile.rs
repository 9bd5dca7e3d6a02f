//! Volumes whose rows have right checksums and wrong contents: every operation ends, with an error
//! where the rows make no sense.
//!
//! `WEALD_MUTATIONS=FIRST..END` selects the mutations of the last test.

use super::{TestStore, dir, errno, file, new_inode, noise};
use crate::{CheckOptions, OpenOptions, Volume, VolumeOptions, VolumeReader, check, create};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use weald_format::volume::{ExtentsRow, InodeRow, NameRow, QuotaRow, VolumeRow, inode_key};
use weald_format::{BlockId, FileKind, VolumeCommitNo, VolumeNo};
use weald_store::engine::{Batch, Table};
use weald_store::simulated_disk::{Random, SimDisk};
use weald_store::{Store, WriteOptions};
use weald_vfs::{AllocateMode, FilePlace, Ino, NewStat, RenameMode, WritableFs, XattrMode};

/// Longest time of one operation; a hang takes longer.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Fails if `work` takes too long. A thread that hangs is left behind.
fn within_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || drop(sender.send(work())));
    let done = receiver.recv_timeout(WATCHDOG);
    match done {
        Ok(done) => done,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("an operation does not end"),
        Err(_) => std::panic::resume_unwind(thread.join().expect_err("a panic")),
    }
}

/// Changes rows of the volume `v`, with right checksums.
fn change_rows(store: &Store, change: impl FnOnce(VolumeNo, &mut Batch)) {
    let writer = store.write(WriteOptions::new("test")).expect("a writer");
    let volume_no = writer.volume_row("v").expect("a row").volume_no;
    let mut batch = Batch::default();
    change(volume_no, &mut batch);
    writer.engine().commit(&batch).expect("a commit");
}

fn inode_row(store: &Store, ino: Ino) -> InodeRow {
    let writer = store.write(WriteOptions::new("test")).expect("a writer");
    let volume_no = writer.volume_row("v").expect("a row").volume_no;
    let value = writer
        .engine()
        .get(Table::Inodes, &inode_key(volume_no, ino));
    InodeRow::parse(&value.expect("a read").expect("a row")).expect("an inode")
}

// Would catch: an operation that follows parents or quotas in a circle for ever, under the lock of
// the volume, so that nothing can be unmounted.
#[test]
fn circles_of_parents_and_quotas_are_errors() {
    let place = TestStore::new();
    let volume = place.open();
    let one = dir(&volume, Ino::ROOT, "one").ino;
    let two = dir(&volume, one, "two").ino;
    let quota = dir(&volume, Ino::ROOT, "quota").ino;
    let limit = weald_vfs::XattrMode::Set;
    let set = volume.set_xattr(quota, b"trusted.weald.quota", b"1M", limit, 1);
    set.expect("a quota");
    let kept = file(&volume, quota, "kept").ino;
    volume.close().expect("close");
    drop(volume);
    let store = place.store();
    let mut row = inode_row(&store, one);
    row.parent = two;
    change_rows(&store, |volume_no, batch| {
        batch.put(Table::Inodes, &inode_key(volume_no, one), row.encode());
        let quota_row = QuotaRow {
            parent: quota,
            len_max: 1 << 20,
            count: 1,
            ..QuotaRow::default()
        };
        let key = inode_key(volume_no, quota);
        batch.put(Table::Quotas, &key, quota_row.encode());
    });
    within_time(move || {
        let volume = place.open();
        let other = dir(&volume, Ino::ROOT, "other").ino;
        let renamed =
            |mode| volume.rename((Ino::ROOT, &b"other"[..]), (two, &b"other"[..]), mode, 2);
        assert_eq!(errno(renamed(RenameMode::Replace)), Some(Errno::IO));
        let new = new_inode(FileKind::Regular);
        let made = volume.create(quota, b"new", &new, 2);
        assert_eq!(errno(made), Some(Errno::IO));
        let written = volume.write(kept, 0, b"bytes", 2);
        assert_eq!(errno(written), Some(Errno::IO));
        assert_eq!(errno(volume.capacity_at(kept)), Some(Errno::IO));
        // All else goes on.
        dir(&volume, other, "below");
        volume.sync().expect("sync");
        volume.close().expect("close");
    });
}

// Would catch: a directory that is found below itself, and visited for ever.
#[test]
fn a_quota_above_a_circle_of_names_is_refused() {
    let place = TestStore::new();
    let volume = place.open();
    let top = dir(&volume, Ino::ROOT, "top").ino;
    let one = dir(&volume, top, "one").ino;
    volume.close().expect("close");
    drop(volume);
    let store = place.store();
    let writer = store.write(WriteOptions::new("test")).expect("a writer");
    let mut batch = Batch::default();
    let names = writer.engine();
    let scanned = names.scan(Table::Names, &[], &mut |key, value| {
        let row = NameRow::parse(value)?;
        if row.ino == one {
            // The same name below itself.
            let mut key = key.to_vec();
            key[4..12].copy_from_slice(&one.0.to_be_bytes());
            batch.put(Table::Names, &key, row.encode());
        }
        Ok(ControlFlow::Continue(()))
    });
    scanned.expect("names");
    names.commit(&batch).expect("a commit");
    drop((names, writer, store));
    within_time(move || {
        let volume = place.open();
        let set = volume.set_xattr(top, b"trusted.weald.quota", b"1M", XattrMode::Set, 1);
        assert_eq!(errno(set), Some(Errno::IO));
        volume.close().expect("close");
    });
}

/// A volume with a bit of everything, closed.
fn original() -> SimDisk {
    let disk = SimDisk::new(7);
    let store = Store::create(Arc::new(disk.clone()), [1; 16], 1 << 20).expect("a store");
    let options = VolumeOptions {
        chunk_len: 4096,
        ..VolumeOptions::default()
    };
    create(&store, "v", &options, [1; 16], 0).expect("a volume");
    let volume = Volume::open(&store, "v", open_options()).expect("open");
    let mut dirs = vec![Ino::ROOT];
    for number in 0..6 {
        let parent = dirs[number / 2];
        dirs.push(dir(&volume, parent, &format!("dir-{number}")).ino);
    }
    let set = |ino, name: &[u8], value: &[u8]| {
        let done = volume.set_xattr(ino, name, value, XattrMode::Set, 1);
        done.expect("an attribute");
    };
    set(dirs[1], b"trusted.weald.quota", b"1M");
    set(dirs[3], b"trusted.weald.quota.count", b"50");
    set(dirs[2], b"user.weald.chunking", b"content");
    for (number, dir) in dirs.iter().enumerate() {
        let ino = file(&volume, *dir, "file").ino;
        let bytes = noise(3000 * (number + 1), number as u64);
        volume.write(ino, 100, &bytes, 1).expect("write");
        set(ino, b"user.note", &bytes[..40]);
        let link = weald_vfs::NewInode {
            target: b"a/target",
            ..new_inode(FileKind::Symlink)
        };
        volume.create(*dir, b"link", &link, 1).expect("a symlink");
        let linked = volume.link(ino, *dir, b"second", 1);
        linked.expect("a link");
    }
    let open = file(&volume, Ino::ROOT, "removed").ino;
    volume.write(open, 0, b"bytes", 1).expect("write");
    volume.unlink(Ino::ROOT, b"removed", 1).expect("unlink");
    volume.close().expect("close");
    drop(volume);
    disk.restart()
}

fn open_options() -> OpenOptions {
    OpenOptions {
        background: false,
        ..OpenOptions::default()
    }
}

/// A number that a damaged or a hostile row may have in place of `old`.
fn number(random: &mut Random, old: u64) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => u64::MAX >> random.below(64),
        2 => old ^ 1 << random.below(64),
        3 => old.wrapping_add(1),
        4 => old.wrapping_sub(1),
        _ => random.below(40),
    }
}

/// Another value of a row, which parses.
fn changed(random: &mut Random, table: Table, old: &[u8]) -> Option<Vec<u8>> {
    match table {
        Table::Inodes => {
            let mut row = InodeRow::parse(old).ok()?;
            match random.below(9) {
                0 => row.parent = Ino(number(random, row.parent.0)),
                1 => row.quota = Ino(number(random, row.quota.0)),
                2 => row.size = number(random, row.size) >> 1,
                3 => row.allocated = number(random, row.allocated),
                4 => row.nlink = number(random, row.nlink.into()) as u32,
                5 => row.xattr_count = number(random, row.xattr_count.into()) as u32,
                6 => {
                    let kinds = [FileKind::Directory, FileKind::Regular, FileKind::Fifo];
                    row.kind = kinds[random.below(3) as usize];
                    row.target.clear();
                }
                7 => row.parent = Ino(1 + random.below(20)),
                _ => row.quota = Ino(1 + random.below(20)),
            }
            Some(row.encode())
        }
        Table::Names => {
            let mut row = NameRow::parse(old).ok()?;
            match random.below(3) {
                0 => row.kind = FileKind::Directory,
                1 => row.name = vec![b'x'; 1 + random.below(255) as usize],
                _ => row.ino = Ino(number(random, row.ino.0).max(1)),
            }
            Some(row.encode())
        }
        Table::Extents => {
            let mut row = ExtentsRow::parse(old, 4096).ok()?;
            let count = row.0.len() as u64;
            let piece = row.0.get_mut(random.below(count) as usize)?;
            match random.below(4) {
                0 => piece.block = BlockId(number(random, piece.block.0)),
                1 => piece.offset = number(random, piece.offset.into()) as u32 & 0xff_ffff,
                2 => piece.len = 1 + random.below(4096) as u32,
                _ => piece.start = random.below(4096) as u32,
            }
            let value = row.encode();
            ExtentsRow::parse(&value, 4096).ok().map(|_| value)
        }
        Table::Quotas => {
            let mut row = QuotaRow::parse(old).ok()?;
            let fields = [
                &mut row.parent.0,
                &mut row.len_max,
                &mut row.count_max,
                &mut row.len,
                &mut row.count,
            ];
            let at = random.below(6) as usize % 5;
            for (no, field) in fields.into_iter().enumerate() {
                if no == at {
                    *field = number(random, *field);
                }
            }
            Some(row.encode())
        }
        Table::Volumes => {
            let mut row = VolumeRow::parse(old).ok()?;
            match random.below(4) {
                0 => row.next_ino = Ino(number(random, row.next_ino.0).max(2)),
                1 => row.commit = VolumeCommitNo(number(random, row.commit.0)),
                2 => row.secret[0] ^= 1,
                _ => row.chunk_len = 4096 << random.below(10),
            }
            Some(row.encode())
        }
        _ => {
            let mut value = old.to_vec();
            let at = random.below(value.len().max(1) as u64) as usize;
            *value.get_mut(at)? ^= 1 << random.below(8);
            Some(value)
        }
    }
}

/// Changes some rows. Returns what was changed.
fn mutate(store: &Store, random: &mut Random) -> Vec<String> {
    const TABLES: [Table; 8] = [
        Table::Inodes,
        Table::Names,
        Table::Extents,
        Table::Quotas,
        Table::Xattrs,
        Table::Orphans,
        Table::Volumes,
        Table::Blocks,
    ];
    let writer = store.write(WriteOptions::new("test")).expect("a writer");
    let engine = writer.engine();
    let mut batch = Batch::default();
    let mut done = Vec::new();
    for _ in 0..1 + random.below(4) {
        let table = TABLES[random.below(10).saturating_sub(2) as usize];
        let mut rows = Vec::new();
        let scanned = engine.scan(table, &[], &mut |key, value| {
            rows.push((key.to_vec(), value.to_vec()));
            Ok(ControlFlow::Continue(()))
        });
        scanned.expect("rows");
        if rows.is_empty() {
            continue;
        }
        let (key, value) = rows[random.below(rows.len() as u64) as usize].clone();
        match random.below(8) {
            0 if table != Table::Volumes => batch.remove(table, &key),
            1 if !matches!(table, Table::Volumes | Table::Blocks) => {
                // The same row of another inode.
                let mut key = key.clone();
                key[11] = random.below(30) as u8;
                batch.put(table, &key, value);
            }
            _ => match changed(random, table, &value) {
                Some(value) => batch.put(table, &key, value),
                None => continue,
            },
        }
        done.push(format!("{} {:02x?}", table.name(), key));
    }
    engine.commit(&batch).expect("a commit");
    done
}

/// All operations on whatever the volume has. Their errors do not matter.
fn use_everything(disk: &SimDisk) {
    let Ok(store) = Store::open(Arc::new(disk.clone())) else {
        return;
    };
    let _ = check(&store, "v", &CheckOptions { reads_data: true });
    if let Ok(volume) = Volume::open(&store, "v", open_options()) {
        let inodes = walk(&volume);
        for (number, ino) in inodes.iter().enumerate() {
            use_inode(&volume, *ino, inodes[(number + 3) % inodes.len()]);
            if number % 5 == 4 {
                let _ = volume.commit();
            }
        }
        let _ = volume.sync();
        for ino in &inodes {
            for name in [&b"file"[..], b"new", b"link", b"second", b"moved"] {
                if let Ok(stat) = volume.unlink(*ino, name, 9) {
                    let _ = volume.forget(stat.ino);
                }
            }
        }
        let _ = volume.status();
        let _ = volume.settle(&mut || ControlFlow::Continue(()));
        let _ = volume.return_space();
        let _ = volume.close();
    }
    let Ok(writer) = store.write(WriteOptions::new("test")) else {
        return;
    };
    let Ok(reader) = VolumeReader::open(&writer, "v") else {
        return;
    };
    for ino in 1..40 {
        let _ = (
            reader.inode(Ino(ino)),
            reader.names(Ino(ino)),
            reader.xattrs(Ino(ino)),
        );
        for extent in reader
            .extents(Ino(ino))
            .unwrap_or_default()
            .iter()
            .take(100)
        {
            let _ = reader.read(extent, &mut |_| {});
        }
    }
}

/// The inodes that names lead to.
fn walk(volume: &Volume) -> Vec<Ino> {
    let mut found = BTreeSet::from([Ino::ROOT]);
    let mut pending = vec![Ino::ROOT];
    while let Some(dir) = pending.pop() {
        let _ = volume.list(dir, 0, &mut |listed| {
            if found.insert(listed.stat.ino) {
                pending.push(listed.stat.ino);
            }
            found.len() < 200
        });
    }
    found.into_iter().collect()
}

fn use_inode(volume: &Volume, ino: Ino, other: Ino) {
    let size = volume.stat(ino).map_or(0, |stat| stat.size);
    let mut bytes = Vec::new();
    let _ = volume.read(ino, 0, 1 << 16, &mut bytes);
    let _ = volume.read(ino, size.saturating_sub(5000), 1 << 16, &mut bytes);
    let _ = (
        volume.parent(ino),
        volume.read_link(ino),
        volume.capacity_at(ino),
    );
    let _ = (volume.seek(ino, 0, true), volume.seek(ino, 1, false));
    for name in volume.xattr_names(ino).unwrap_or_default() {
        let _ = volume.xattr(ino, &name);
    }
    let new = new_inode(FileKind::Regular);
    let _ = volume.create(ino, b"new", &new, 2);
    let _ = volume.create_unnamed(ino, &new, 2);
    let _ = volume.create(ino, b"dir", &new_inode(FileKind::Directory), 2);
    let _ = volume.rename((ino, b"dir"), (other, b"moved"), RenameMode::Replace, 3);
    let _ = volume.rename((ino, b"dir-1"), (other, b"moved"), RenameMode::Exchange, 3);
    let _ = volume.rename((ino, b"dir-0"), (other, b"top"), RenameMode::Replace, 3);
    let _ = volume.link(other, ino, b"linked", 3);
    let _ = volume.write(ino, 2000, &noise(9000, ino.0), 4);
    let _ = volume.write(ino, size, b"appended", 4);
    let _ = volume.copy_range(
        FilePlace::new(ino, 0),
        FilePlace::new(other, 100_000),
        size.min(1 << 20),
        4,
    );
    let modes = [
        AllocateMode::PunchHole,
        AllocateMode::Zero { keeps_size: false },
        AllocateMode::Collapse,
        AllocateMode::Insert,
    ];
    for (mode, offset) in modes.into_iter().zip([3000, 0, 4096, 4096]) {
        let _ = volume.allocate(ino, mode, offset, 4096, 5);
    }
    let shorter = NewStat {
        size: Some(size / 2),
        ..NewStat::default()
    };
    let _ = volume.set_stat(ino, &shorter, 6);
    let sets: [(&[u8], &[u8]); 4] = [
        (b"user.note", b"another"),
        (b"trusted.weald.quota", b"2M"),
        (b"trusted.weald.quota.count", b"100"),
        (b"user.weald.chunk", b"4K"),
    ];
    for (name, value) in sets {
        let _ = volume.set_xattr(ino, name, value, XattrMode::Set, 7);
    }
    let _ = volume.remove_xattr(ino, b"trusted.weald.quota", 8);
    let _ = volume.remove_xattr(ino, b"user.note", 8);
    let _ = volume.rmdir(ino, b"dir-2", 8);
}

fn mutations() -> Range<u64> {
    let Ok(text) = std::env::var("WEALD_MUTATIONS") else {
        return 0..400;
    };
    let (first, end) = text.split_once("..").expect("WEALD_MUTATIONS=FIRST..END");
    first.parse().expect("a number")..end.parse().expect("a number")
}

// Would catch: rows of a hostile or damaged volume that make an operation hang, panic or count
// beyond its numbers.
#[test]
fn whole_volumes_with_changed_rows_neither_hang_nor_panic() {
    let original = original();
    let range = mutations();
    let next = AtomicU64::new(range.start);
    let failed = AtomicU64::new(u64::MAX);
    let began: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
    let since = Instant::now();
    let work = |began: &AtomicU64| {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= range.end || failed.load(Ordering::Relaxed) != u64::MAX {
                began.store(u64::MAX, Ordering::Relaxed);
                return;
            }
            began.store(since.elapsed().as_secs(), Ordering::Relaxed);
            let run = || {
                let disk = original.restart();
                let store = Store::open(Arc::new(disk.clone())).expect("a store");
                let changes = mutate(&store, &mut Random::new(seed));
                drop(store);
                let used = catch_unwind(AssertUnwindSafe(|| use_everything(&disk.restart())));
                assert!(used.is_ok(), "mutation {seed}: {changes:#?}");
            };
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                failed.fetch_min(seed, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for began in &began {
            scope.spawn(|| work(began));
        }
        let is_over = |began: &AtomicU64| began.load(Ordering::Relaxed) == u64::MAX;
        while !began.iter().all(is_over) {
            thread::park_timeout(Duration::from_millis(50));
            let now = since.elapsed();
            for began in began.iter().filter(|began| !is_over(began)) {
                let began = Duration::from_secs(began.load(Ordering::Relaxed));
                if now > began + WATCHDOG {
                    // A thread that hangs cannot be joined.
                    let last = next.load(Ordering::Relaxed);
                    eprintln!("one of the mutations before {last} hangs");
                    std::process::abort();
                }
            }
        }
    });
    let failed = failed.into_inner();
    assert_eq!(failed, u64::MAX, "mutation {failed} failed: see above");
}
