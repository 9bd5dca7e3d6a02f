//! Tests of the volume as a whole, on a store in a temporary directory.

pub(crate) mod apart;
mod changes;
mod cutting;
mod flags;
mod garbage;
mod hostile;
mod many;
mod modes;
mod part;
mod properties;
mod salvage;
mod salvaged_logs;
mod scrub;
mod snapshots;
mod syncs;

use crate::{CheckOptions, OpenOptions, Volume, VolumeOptions, check, create, remove};
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use weald_format::FileKind;
use weald_format::limits::FILE_LEN_MAX;
use weald_store::Store;
use weald_store::disk::HostDisk;
use weald_store::engine::{Batch, Table};
use weald_vfs::{
    AllocateMode, FilePlace, Ino, NewInode, NewStat, Outcome, RenameMode, Stat, WritableFs,
    XattrMode,
};

fn store_at(path: &Path) -> Store {
    Store::open(Arc::new(HostDisk::new(path))).expect("a store")
}

/// Copies a directory. A process that did it would inherit the locks of other tests for a moment.
fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("list") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_dir(&entry.path(), &to)
        } else {
            assert!(std::fs::copy(entry.path(), to).is_ok())
        }
    }
}

pub struct TestStore {
    dir: TempDir,
}

impl TestStore {
    pub fn new() -> Self {
        Self::with(&VolumeOptions::default())
    }

    pub fn with(options: &VolumeOptions) -> Self {
        let dir = TempDir::new().expect("a directory");
        let path = dir.path().join("store");
        let disk = Arc::new(HostDisk::new(&path));
        let store = Store::create(disk, [3; 16], 1 << 20).expect("a store");
        create(&store, "v", options, [9; 16], 5).expect("a volume");
        Self { dir }
    }

    pub fn store(&self) -> Store {
        store_at(&self.dir.path().join("store"))
    }

    pub fn open(&self) -> Arc<Volume> {
        let options = OpenOptions {
            background: false,
            ..OpenOptions::default()
        };
        Volume::open(&self.store(), "v", options).expect("open")
    }

    /// The store as a crash would leave it now, with all that reached the kernel.
    pub fn crashed(&self) -> TestStore {
        let dir = TempDir::new().expect("a directory");
        let to = dir.path().join("store");
        copy_dir(&self.dir.path().join("store"), &to);
        TestStore { dir }
    }

    pub fn check(&self) {
        let options = CheckOptions { reads_data: true };
        let report = check(&self.store(), "v", &options).expect("a check");
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }
}

pub(crate) fn new_inode(kind: FileKind) -> NewInode<'static> {
    NewInode {
        kind,
        permissions: 0o644,
        uid: 1,
        gid: 2,
        rdev: 0,
        target: &[],
        xattrs: &[],
    }
}

pub fn file(volume: &Volume, dir: Ino, name: &str) -> Stat {
    let new = new_inode(FileKind::Regular);
    volume
        .create(dir, name.as_bytes(), &new, 10)
        .expect("create")
}

fn dir(volume: &Volume, parent: Ino, name: &str) -> Stat {
    let new = new_inode(FileKind::Directory);
    volume
        .create(parent, name.as_bytes(), &new, 10)
        .expect("mkdir")
}

fn read(volume: &Volume, ino: Ino) -> Vec<u8> {
    let mut bytes = Vec::new();
    volume.read(ino, 0, 1 << 30, &mut bytes).expect("read");
    bytes
}

fn errno<T>(outcome: Outcome<T>) -> Option<Errno> {
    outcome.err().map(|failure| failure.errno)
}

pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8 | 1
    };
    (0..len).map(|_| next()).collect()
}

fn names(volume: &Volume, dir: Ino) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let visit = &mut |listed: weald_vfs::Listed<'_>| {
        assert!(listed.cookie >= 3);
        names.push(listed.name.to_vec());
        true
    };
    volume.list(dir, 0, visit).expect("list");
    names.sort();
    names
}

#[test]
fn synced_files_survive_a_crash_and_others_are_whole_or_absent() {
    let place = TestStore::new();
    let volume = place.open();
    let sub = dir(&volume, Ino::ROOT, "sub").ino;
    let long = file(&volume, sub, "long").ino;
    let bytes = noise(300_000, 1);
    volume.write(long, 0, &bytes, 20).expect("write");
    let short = file(&volume, sub, "short").ino;
    volume.write(short, 0, b"hello", 21).expect("write");
    volume.sync().expect("sync");
    assert_eq!(read(&volume, long), bytes);
    volume.write(short, 0, b"later", 22).expect("write");
    let after = place.crashed();
    after.check();
    let volume = after.open();
    let found = volume.lookup(Ino::ROOT, b"sub").expect("sub");
    assert_eq!(found.nlink, 2);
    let found = volume.lookup(found.ino, b"long").expect("long");
    assert_eq!((found.ino, found.size), (long, 300_000));
    assert_eq!(read(&volume, long), bytes);
    assert_eq!(read(&volume, short), b"hello");
}

#[test]
fn writes_over_committed_content_leave_the_rest() {
    let place = TestStore::new();
    let volume = place.open();
    let ino = file(&volume, Ino::ROOT, "f").ino;
    let mut expected = noise(400_000, 2);
    volume.write(ino, 0, &expected, 1).expect("write");
    for round in 0..60u64 {
        let at = (round * 7919 % 390_000) as usize;
        let new = noise(1 + (round as usize * 37) % 5000, round + 3);
        volume.write(ino, at as u64, &new, 2).expect("write");
        expected[at..at + new.len()].copy_from_slice(&new);
        if round % 3 == 0 {
            volume.sync().expect("sync");
        }
        assert!(read(&volume, ino) == expected, "round {round}");
    }
    let new = NewStat {
        size: Some(150_000),
        ..NewStat::default()
    };
    volume.set_stat(ino, &new, 3).expect("truncate");
    volume.sync().expect("sync");
    let new = NewStat {
        size: Some(400_000),
        ..NewStat::default()
    };
    volume.set_stat(ino, &new, 3).expect("extend");
    expected[150_000..].fill(0);
    assert!(read(&volume, ino) == expected);
    assert_eq!(volume.seek(ino, 0, true).expect("a hole"), 150_000);
    assert_eq!(errno(volume.seek(ino, 150_000, false)), Some(Errno::NXIO));
    volume.close().expect("close");
    drop(volume);
    place.check();
    assert!(read(&place.open(), ino) == expected);
}

#[test]
fn a_copy_of_a_tree_shares_its_blocks() {
    let place = TestStore::new();
    let volume = place.open();
    for copy in ["a", "b"] {
        let top = dir(&volume, Ino::ROOT, copy).ino;
        for no in 0..40 {
            let ino = file(&volume, top, &format!("file{no}")).ino;
            let bytes = noise(1000 + no * 9000, no as u64 + 100);
            volume.write(ino, 0, &bytes, 1).expect("write");
        }
        volume.sync().expect("sync");
    }
    let status = volume.status().expect("status");
    assert!(status.logical_len > 2 * status.unique_len - status.unique_len / 50);
    assert_eq!(status.shared_len, status.logical_len);
    let first = volume.lookup(Ino::ROOT, b"a").expect("a").ino;
    let from = volume.lookup(first, b"file30").expect("a file");
    let to = file(&volume, first, "cloned").ino;
    let copied = volume.copy_range(
        FilePlace::new(from.ino, 0),
        FilePlace::new(to, 0),
        u64::MAX >> 1,
        5,
    );
    assert_eq!(copied.expect("copy"), from.size);
    volume.sync().expect("sync");
    assert!(read(&volume, to) == read(&volume, from.ino));
    assert_eq!(
        volume.status().expect("status").unique_len,
        status.unique_len
    );
    drop(volume);
    place.check();
}

#[test]
fn removed_files_give_their_space_back() {
    let place = TestStore::new();
    let volume = place.open();
    let mut files = Vec::new();
    for no in 0..6 {
        let ino = file(&volume, Ino::ROOT, &format!("f{no}")).ino;
        volume.write(ino, 0, &noise(1 << 20, no), 1).expect("write");
        files.push(ino);
    }
    volume.sync().expect("sync");
    assert!(volume.status().expect("status").stored_len > 6 << 20);
    for no in 0..6 {
        let stat = volume.unlink(Ino::ROOT, format!("f{no}").as_bytes(), 2);
        assert_eq!(stat.expect("unlink").nlink, 0);
    }
    assert_eq!(read(&volume, files[0]), noise(1 << 20, 0));
    volume.sync().expect("sync");
    assert_eq!(read(&volume, files[1]), noise(1 << 20, 1));
    let after = place.crashed();
    for ino in &files {
        volume.forget(*ino).expect("forget");
    }
    volume.sync().expect("sync");
    volume.return_space().expect("space");
    assert_eq!(errno(volume.stat(files[0])), Some(Errno::NOENT));
    let status = volume.status().expect("status");
    assert_eq!((status.stored_len, status.logical_len), (0, 0));
    assert!(status.dead_len < 2 << 20, "{status:?}");
    drop(volume);
    place.check();
    // A crash while they were open: opening drops them.
    after.check();
    let volume = after.open();
    volume.commit().expect("commit");
    assert_eq!(volume.status().expect("status").logical_len, 0);
    drop(volume);
    after.check();
}

#[test]
fn names_are_added_and_removed_as_posix_says() {
    let place = TestStore::new();
    let volume = place.open();
    let root = Ino::ROOT;
    let (a, b) = (dir(&volume, root, "a").ino, dir(&volume, root, "b").ino);
    let f = file(&volume, a, "f").ino;
    let again = volume.create(a, b"f", &new_inode(FileKind::Regular), 1);
    assert_eq!(errno(again), Some(Errno::EXIST));
    assert_eq!(volume.link(f, b, b"g", 11).expect("link").nlink, 2);
    assert_eq!(errno(volume.link(a, b, b"d", 11)), Some(Errno::PERM));
    assert_eq!(errno(volume.unlink(root, b"a", 11)), Some(Errno::ISDIR));
    assert_eq!(errno(volume.rmdir(root, b"a", 11)), Some(Errno::NOTEMPTY));
    assert_eq!(errno(volume.rmdir(a, b"f", 11)), Some(Errno::NOTDIR));
    drop(volume);
    place.check();
}

#[test]
fn renames_behave_as_posix_says() {
    use RenameMode::{Exchange, KeepExisting, LeaveWhiteout, Replace};
    let place = TestStore::new();
    let volume = place.open();
    let root = Ino::ROOT;
    let (a, b) = (dir(&volume, root, "a").ino, dir(&volume, root, "b").ino);
    let f = file(&volume, a, "f").ino;
    volume.link(f, b, b"g", 11).expect("link");
    let rename = |from: (Ino, &str), to: (Ino, &str), mode| {
        let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
        volume.rename(from, to, mode, 12)
    };
    for (from, to, mode, expected) in [
        ((root, "a"), (a, "x"), Replace, Errno::INVAL),
        ((a, "f"), (root, "b"), Replace, Errno::ISDIR),
        ((root, "a"), (b, "g"), Replace, Errno::NOTDIR),
        ((a, "f"), (b, "g"), KeepExisting, Errno::EXIST),
    ] {
        assert_eq!(errno(rename(from, to, mode)), Some(expected), "{to:?}");
    }
    let stat = rename((a, "f"), (b, "g"), Replace).expect("same inode");
    assert_eq!(stat, None);
    assert_eq!(names(&volume, a), [b"f"]);
    rename((a, "f"), (root, "b"), Exchange).expect("exchange");
    assert_eq!(volume.parent(b).expect("parent"), a);
    assert_eq!(volume.stat(root).expect("root").nlink, 3);
    assert_eq!(volume.stat(a).expect("a").nlink, 3);
    rename((root, "b"), (root, "c"), LeaveWhiteout).expect("whiteout");
    let white = volume.lookup(root, b"b").expect("a whiteout");
    assert_eq!((white.kind, white.rdev), (FileKind::CharDevice, 0));
    assert_eq!(names(&volume, root), [b"a", b"b", b"c"]);
    volume.sync().expect("sync");
    assert_eq!(names(&volume, root), [b"a", b"b", b"c"]);
    let stat = rename((root, "c"), (b, "g"), Replace).expect("same inode");
    assert_eq!(stat, None);
    let h = file(&volume, root, "h").ino;
    let stat = rename((root, "h"), (b, "g"), Replace).expect("rename");
    assert_eq!((stat, volume.stat(f).expect("f").nlink), (None, 1));
    assert_eq!(volume.lookup(b, b"g").expect("g").ino, h);
    drop(volume);
    place.check();
}

#[test]
fn large_directories_are_listed_completely_while_they_change() {
    let place = TestStore::new();
    let volume = place.open();
    for no in 0..700 {
        file(&volume, Ino::ROOT, &format!("n{no}"));
        if no == 300 || no == 500 {
            volume.sync().expect("sync");
        }
    }
    for no in 0..100 {
        volume
            .unlink(Ino::ROOT, format!("n{}", no * 7).as_bytes(), 3)
            .expect("unlink");
    }
    let mut seen = Vec::new();
    let mut after = 0;
    loop {
        let (start, mut count) = (after, 0);
        let visit = &mut |listed: weald_vfs::Listed<'_>| {
            seen.push(listed.name.to_vec());
            after = listed.cookie;
            count += 1;
            count < 33
        };
        volume.list(Ino::ROOT, start, visit).expect("list");
        if count == 0 {
            break;
        }
        file(&volume, Ino::ROOT, &format!("late{}", seen.len()));
    }
    let mut old: Vec<_> = seen.iter().filter(|name| name.starts_with(b"n")).collect();
    old.sort();
    old.dedup();
    assert_eq!(old.len(), 600);
    assert_eq!(
        seen.iter().filter(|name| name.starts_with(b"n")).count(),
        600
    );
}

#[test]
fn attributes_are_kept_and_listed() {
    let place = TestStore::new();
    let volume = place.open();
    let f = file(&volume, Ino::ROOT, "f").ino;
    let set = |name: &[u8], value: &[u8], mode| volume.set_xattr(f, name, value, mode, 9);
    assert_eq!(errno(volume.xattr(f, b"user.a")), Some(Errno::NODATA));
    set(b"user.b", b"1", XattrMode::Set).expect("set");
    set(b"user.a", b"2", XattrMode::Create).expect("set");
    assert_eq!(
        errno(set(b"user.a", b"3", XattrMode::Create)),
        Some(Errno::EXIST)
    );
    assert_eq!(
        errno(set(b"user.c", b"3", XattrMode::Replace)),
        Some(Errno::NODATA)
    );
    volume.sync().expect("sync");
    volume.remove_xattr(f, b"user.b", 9).expect("remove");
    set(b"user.c", b"4", XattrMode::Set).expect("set");
    assert_eq!(
        volume.xattr_names(f).expect("names"),
        [b"user.a", b"user.c"]
    );
    drop(volume);
    place.check();
    assert_eq!(place.open().xattr(f, b"user.c").expect("value"), b"4");
}

#[test]
fn ranges_are_punched_collapsed_and_inserted() {
    let place = TestStore::new();
    let volume = place.open();
    let f = file(&volume, Ino::ROOT, "f").ino;
    let mut expected = noise(600_000, 5);
    volume.write(f, 0, &expected, 1).expect("write");
    for round in 0..2 {
        volume
            .allocate(f, AllocateMode::PunchHole, 100_000, 200_000, 2)
            .expect("punch");
        expected[100_000..300_000].fill(0);
        volume
            .allocate(f, AllocateMode::Collapse, 49_152, 32_768, 2)
            .expect("collapse");
        expected.drain(49_152..81_920);
        volume
            .allocate(f, AllocateMode::Insert, 8192, 40_960, 2)
            .expect("insert");
        expected.splice(8192..8192, vec![0; 40_960]);
        for mode in [AllocateMode::Collapse, AllocateMode::Insert] {
            let outcome = volume.allocate(f, mode, 10_000, 4096, 2);
            assert_eq!(errno(outcome), Some(Errno::INVAL), "{mode:?}");
        }
        assert!(read(&volume, f) == expected, "round {round}");
        volume.sync().expect("sync");
        assert!(read(&volume, f) == expected, "round {round}");
    }
    let size = FILE_LEN_MAX;
    let big = volume.write(f, size - 3, b"end", 3);
    big.expect("the last byte of the longest file");
    assert_eq!(
        errno(volume.write(f, size - 2, b"end", 3)),
        Some(Errno::FBIG)
    );
    volume.sync().expect("sync");
    assert_eq!(
        volume.seek(f, expected.len() as u64, false).expect("data"),
        size - 3
    );
    drop(volume);
    place.check();
}

/// A committed file of `len` bytes whose windows of 4 KiB all share 256 blocks.
fn long_file(volume: &Volume, len: u64) -> Ino {
    let ino = file(volume, Ino::ROOT, "long").ino;
    volume.write(ino, 0, &noise(1 << 20, 5), 20).expect("write");
    let mut done = 1 << 20;
    while done < len {
        let part = done.min(len - done);
        let copied = volume.copy_range(FilePlace::new(ino, 0), FilePlace::new(ino, done), part, 21);
        assert_eq!(copied.ok(), Some(part));
        volume.sync().expect("sync");
        done += part;
    }
    ino
}

// Would catch: a truncate or a hole that removes millions of rows in one commit, whose memory has
// no bound; and parts that remove too much or too little.
#[test]
fn long_ranges_are_removed_in_several_commits() {
    let place = TestStore::new();
    let options = VolumeOptions {
        chunk_len: 4096,
        ..VolumeOptions::default()
    };
    create(&place.store(), "small", &options, [9; 16], 5).expect("a volume");
    let options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    let volume = Volume::open(&place.store(), "small", options).expect("open");
    let (len, kept) = (300 << 20, 12_345);
    let ino = long_file(&volume, len);
    let commits = || volume.status().expect("figures").commits;
    let before = commits();
    let mode = AllocateMode::PunchHole;
    volume
        .allocate(ino, mode, 10 << 20, len, 30)
        .expect("a hole");
    assert_eq!(commits(), before + 1);
    let stat = volume.stat(ino).expect("stat");
    assert_eq!((stat.size, stat.allocated), (len, 10 << 20));
    let short = NewStat {
        size: Some(kept),
        ..NewStat::default()
    };
    assert!(volume.set_stat(ino, &short, 31).is_ok());
    assert_eq!(read(&volume, ino), noise(1 << 20, 5)[..kept as usize]);
    volume.sync().expect("sync");
    drop(volume);
    let options = CheckOptions { reads_data: true };
    let report = check(&place.store(), "small", &options).expect("a check");
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

#[test]
fn the_thread_commits_and_a_removed_volume_leaves_nothing() {
    let place = TestStore::new();
    let options = OpenOptions {
        commit_interval: std::time::Duration::from_millis(10),
        cache_len: 8 << 20,
        ..OpenOptions::default()
    };
    let volume = Volume::open(&place.store(), "v", options).expect("open");
    let f = file(&volume, Ino::ROOT, "f").ino;
    let mut expected = Vec::new();
    for no in 0..30 {
        let bytes = noise(1 << 20, no);
        volume
            .write(f, expected.len() as u64, &bytes, 1)
            .expect("write");
        expected.extend(bytes);
    }
    assert!(read(&volume, f) == expected);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while volume.status().expect("status").dirty_len > 0 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
    volume.close().expect("close");
    drop(volume);
    let store = place.store();
    assert_eq!(store.volume_names().expect("names"), ["v"]);
    let taken = create(&store, "v", &VolumeOptions::default(), [1; 16], 1);
    assert_eq!(taken.unwrap_err().kind(), weald_format::ErrorKind::Busy);
    remove(&store, "v", false).expect("remove");
    assert!(store.volume_names().expect("names").is_empty());
    let segments = std::fs::read_dir(place.dir.path().join("store/segments"));
    assert_eq!(segments.expect("segments").count(), 0);
}

// Would catch: a collection or a salvage that knows images only, and drops what volumes use.
#[test]
fn collections_and_salvage_keep_what_a_volume_uses() {
    let place = TestStore::new();
    let volume = place.open();
    let mut files = Vec::new();
    for no in 0..20 {
        let ino = file(&volume, Ino::ROOT, &format!("f{no}")).ino;
        volume
            .write(ino, 0, &noise(150_000 + no * 10, no as u64), 1)
            .expect("write");
        volume.sync().expect("sync");
        files.push(ino);
    }
    for no in (0..20).step_by(2) {
        volume
            .unlink(Ino::ROOT, format!("f{no}").as_bytes(), 2)
            .expect("unlink");
        volume.forget(files[no]).expect("forget");
    }
    drop(volume);
    let compare = || {
        place.check();
        let volume = place.open();
        for no in (1..20).step_by(2) {
            assert!(read(&volume, files[no]) == noise(150_000 + no * 10, no as u64));
        }
        assert_eq!(names(&volume, Ino::ROOT).len(), 10);
    };
    let store = place.store();
    let options = weald_store::CollectOptions {
        copy_below_percent: 100,
        ..weald_store::CollectOptions::default()
    };
    let mut writer = store
        .write(weald_store::WriteOptions::new("gc"))
        .expect("write");
    let check_cancelled = &mut |_: &_| std::ops::ControlFlow::Continue(());
    let collected = writer.collect(&options, check_cancelled).expect("collect");
    assert!(collected.copied_len > 0);
    drop(writer);
    compare();
    store
        .salvage(&weald_store::SalvageOptions::default())
        .expect("salvage");
    compare();
    // A salvage that cannot read the rows of volumes must not go on without them.
    let meta = place.dir.path().join("store/meta");
    std::fs::write(&meta, b"").expect("damage");
    let salvaged = store
        .salvage(&weald_store::SalvageOptions::default())
        .expect("salvage");
    assert!(salvaged.restored_commit.is_some());
    compare();
    std::fs::write(&meta, b"").expect("damage");
    std::fs::remove_dir_all(place.dir.path().join("store/journal")).expect("remove");
    let error = store
        .salvage(&weald_store::SalvageOptions::default())
        .expect_err("no rows");
    assert!(error.to_string().contains("backup"), "{error}");
}

/// Would catch: a check that ends at the first row that it cannot read, and finds nothing else.
#[test]
fn a_check_goes_on_behind_a_table_that_cannot_be_read() {
    let place = TestStore::new();
    let volume = place.open();
    let ino = file(&volume, Ino::ROOT, "f").ino;
    volume.write(ino, 0, &noise(300_000, 1), 1).expect("write");
    volume.close().expect("close");
    drop(volume);
    let store = place.store();
    let writer = store.write(weald_store::WriteOptions::new("damage"));
    let writer = writer.expect("write");
    let volume_no = writer.volume_row("v").expect("a row").volume_no;
    let mut damage = Batch::default();
    let key = |ino: u64| weald_format::volume::inode_key(volume_no, Ino(ino));
    // No row of a quota looks like this; and a file that is no inode has an attribute.
    damage.put(Table::Quotas, &key(9), b"damage".to_vec());
    let xattr = [&key(4711)[..], b"user.a"].concat();
    damage.put(Table::Xattrs, &xattr, b"value".to_vec());
    writer.engine().commit(&damage).expect("commit");
    drop(writer);
    let options = CheckOptions { reads_data: true };
    let report = check(&store, "v", &options).expect("a check");
    let findings: String = report.findings.iter().map(|f| format!("{f}\n")).collect();
    assert!(findings.contains("quota"), "{findings}");
    assert!(findings.contains("inode 4711"), "{findings}");
    assert_eq!((report.name_count, report.logical_len), (1, 300_000));
}
