//! Properties of files and quotas of directories.

use super::*;
use crate::properties::{CHUNK, COMPRESS, DEDUP, QUOTA, QUOTA_COUNT, USED, USED_COUNT};
use weald_format::volume::{QuotaRow, VolumeRow, inode_key};
use weald_store::WriteOptions;

fn set(volume: &Volume, ino: Ino, name: &[u8], value: &str) -> Outcome<()> {
    volume.set_xattr(ino, name, value.as_bytes(), XattrMode::Set, 7)
}

fn get(volume: &Volume, ino: Ino, name: &[u8]) -> String {
    String::from_utf8(volume.xattr(ino, name).expect("an attribute")).expect("UTF-8")
}

fn used(volume: &Volume, dir: Ino) -> (u64, u64) {
    let number = |name| get(volume, dir, name).parse().expect("a number");
    (number(USED), number(USED_COUNT))
}

/// Text that compresses, different for each seed.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let lines = (0..).flat_map(|no: u64| format!("line {seed} {}\n", no * no).into_bytes());
    lines.take(len).collect()
}

// Would catch: a property that new files do not take, or that changes nothing.
#[test]
fn files_are_stored_as_their_directory_says() {
    let place = TestStore::new();
    let volume = place.open();
    let top = dir(&volume, Ino::ROOT, "top").ino;
    for (name, value) in [
        (COMPRESS, "gzip"),
        (CHUNK, "3"),
        (CHUNK, "256K"),
        (DEDUP, "maybe"),
        (b"user.weald.other", "x"),
        (QUOTA, "0"),
    ] {
        assert_eq!(
            errno(set(&volume, top, name, value)),
            Some(Errno::INVAL),
            "{value}"
        );
    }
    for name in [USED, b"user.weald.quota"] {
        assert_eq!(errno(set(&volume, top, name, "1")), Some(Errno::PERM));
    }
    set(&volume, top, COMPRESS, "zstd:9").expect("set");
    set(&volume, top, CHUNK, "16K").expect("set");
    assert_eq!(get(&volume, top, CHUNK), "16384");
    let below = dir(&volume, top, "below").ino;
    let packed = file(&volume, below, "packed").ino;
    let names = volume.xattr_names(packed).expect("names");
    assert_eq!(names, [CHUNK, COMPRESS]);
    let plain = file(&volume, Ino::ROOT, "plain").ino;
    assert!(volume.xattr_names(plain).expect("names").is_empty());
    let stored = |ino: Ino, seed| {
        let before = volume.status().expect("status").stored_len;
        volume
            .write(ino, 0, &text(1 << 20, seed), 1)
            .expect("write");
        volume.sync().expect("sync");
        volume.status().expect("status").stored_len - before
    };
    let (small, large) = (stored(packed, 1), stored(plain, 2));
    assert!(small < large * 3 / 4, "{small} {large}");
    // Pieces of 16 KiB are found again at another place.
    let other = file(&volume, top, "other").ino;
    let unique = volume.status().expect("status").unique_len;
    volume
        .write(other, 0, &text(1 << 20, 1)[16384 * 3..], 1)
        .expect("write");
    volume.sync().expect("sync");
    assert!(volume.status().expect("status").unique_len - unique < 16384);
    assert!(read(&volume, other) == text(1 << 20, 1)[16384 * 3..]);
    set(&volume, other, DEDUP, "off").expect("set");
    volume
        .write(other, 0, &text(16384 * 8, 1), 1)
        .expect("write");
    volume.sync().expect("sync");
    assert_eq!(
        volume.status().expect("status").unique_len - unique,
        16384 * 8
    );
    volume.write(other, 5, b"xyz", 1).expect("write");
    let mut expected = text(1 << 20, 1)[16384 * 3..].to_vec();
    expected[..16384 * 8].copy_from_slice(&text(16384 * 8, 1));
    expected[5..8].copy_from_slice(b"xyz");
    volume.sync().expect("sync");
    assert!(read(&volume, other) == expected);
    drop(volume);
    place.check();
    assert!(read(&place.open(), other) == expected);
}

// Would catch: an account that misses a change, a limit that is passed, and a crash that takes the
// account or the data alone.
#[test]
fn a_quota_limits_a_directory() {
    let place = TestStore::new();
    let volume = place.open();
    let top = dir(&volume, Ino::ROOT, "top").ino;
    let early = file(&volume, top, "early").ino;
    volume
        .write(early, 0, &noise(100_000, 1), 1)
        .expect("write");
    volume.link(early, top, b"twin", 1).expect("link");
    assert_eq!(errno(set(&volume, early, QUOTA, "1M")), Some(Errno::INVAL));
    assert_eq!(errno(set(&volume, top, QUOTA, "99999")), Some(Errno::DQUOT));
    assert_eq!(errno(volume.xattr(top, USED)), Some(Errno::NODATA));
    set(&volume, top, QUOTA, "300K").expect("a quota");
    assert_eq!(used(&volume, top), (100_000, 1));
    assert_eq!(get(&volume, top, b"user.weald.quota"), "307200");
    let sub = dir(&volume, top, "sub").ino;
    let late = file(&volume, sub, "late").ino;
    volume.write(late, 0, &noise(200_000, 2), 1).expect("write");
    let full = volume.write(late, 200_000, &noise(8000, 3), 1);
    assert_eq!(errno(full), Some(Errno::DQUOT));
    volume
        .write(late, 0, &noise(200_000, 4), 1)
        .expect("an overwrite");
    assert_eq!(used(&volume, top), (300_000, 3));
    let copied = volume.copy_range(
        FilePlace::new(early, 0),
        FilePlace::new(late, 200_000),
        8000,
        1,
    );
    assert_eq!(errno(copied), Some(Errno::DQUOT));
    assert_eq!(volume.stat(late).expect("stat").size, 200_000);
    let capacity = volume.capacity_at(late).expect("figures");
    assert_eq!((capacity.total, capacity.free), (300 << 10, 7200));
    assert!(volume.capacity_at(Ino::ROOT).expect("figures").total > 300 << 10);
    // Data may move at the limit, and be given back.
    volume
        .allocate(late, AllocateMode::PunchHole, 0, 40_960, 1)
        .expect("punch");
    volume
        .write(early, 100_000, &noise(40_960, 5), 1)
        .expect("write");
    volume
        .allocate(late, AllocateMode::Collapse, 0, 40_960, 1)
        .expect("collapse");
    assert_eq!(used(&volume, top), (300_000, 3));
    volume.sync().expect("sync");
    let after = place.crashed();
    after.check();
    assert_eq!(used(&after.open(), top), (300_000, 3));
    set(&volume, top, QUOTA_COUNT, "4").expect("a quota");
    file(&volume, top, "fourth");
    let new = new_inode(FileKind::Regular);
    assert_eq!(
        errno(volume.create(top, b"fifth", &new, 1)),
        Some(Errno::DQUOT)
    );
    // An open file counts until it is closed.
    volume.unlink(sub, b"late", 1).expect("unlink");
    assert_eq!(used(&volume, top).1, 4);
    volume.sync().expect("sync");
    let after = place.crashed();
    volume.forget(late).expect("forget");
    assert_eq!(used(&volume, top), (140_960, 3));
    drop(volume);
    place.check();
    let volume = after.open();
    assert_eq!(used(&volume, top), (140_960, 3));
    drop(volume);
    after.check();
}

// Would catch: a file that changes sides without its account.
#[test]
fn names_stay_on_their_side_of_a_quota() {
    let place = TestStore::new();
    let volume = place.open();
    let (a, b) = (
        dir(&volume, Ino::ROOT, "a").ino,
        dir(&volume, Ino::ROOT, "b").ino,
    );
    let inner = dir(&volume, a, "inner").ino;
    let f = file(&volume, inner, "f").ino;
    volume.write(f, 0, &noise(10_000, 1), 1).expect("write");
    let outside = file(&volume, Ino::ROOT, "outside").ino;
    volume.link(f, b, b"f", 1).expect("link");
    assert_eq!(errno(set(&volume, a, QUOTA, "1M")), Some(Errno::XDEV));
    volume.unlink(b, b"f", 1).expect("unlink");
    set(&volume, inner, QUOTA, "100K").expect("a quota");
    set(&volume, a, QUOTA, "50K").expect("a quota around it");
    assert_eq!(
        (used(&volume, inner), used(&volume, a)),
        ((10_000, 1), (10_000, 2))
    );
    let rename =
        |from: (Ino, &[u8]), to: (Ino, &[u8]), mode| errno(volume.rename(from, to, mode, 2));
    let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
    assert_eq!(rename((inner, b"f"), (a, b"f"), replace), Some(Errno::XDEV));
    assert_eq!(
        rename((Ino::ROOT, b"outside"), (a, b"f"), replace),
        Some(Errno::XDEV)
    );
    assert_eq!(
        rename((Ino::ROOT, b"outside"), (inner, b"f"), exchange),
        Some(Errno::XDEV)
    );
    assert_eq!(errno(volume.link(outside, a, b"f", 1)), Some(Errno::XDEV));
    assert_eq!(errno(volume.link(f, Ino::ROOT, b"g", 1)), Some(Errno::XDEV));
    assert_eq!(rename((Ino::ROOT, b"a"), (b, b"a"), replace), None);
    assert_eq!(rename((inner, b"f"), (inner, b"g"), replace), None);
    // The limit of the outer one holds inside the inner one.
    let full = volume.write(f, 10_000, &noise(50_000, 2), 1);
    assert_eq!(errno(full), Some(Errno::DQUOT));
    volume.remove_xattr(a, QUOTA, 1).expect("no quota");
    assert_eq!(errno(volume.xattr(a, USED)), Some(Errno::NODATA));
    volume
        .write(f, 10_000, &noise(50_000, 2), 1)
        .expect("write");
    assert_eq!(used(&volume, inner), (60_000, 1));
    volume.sync().expect("sync");
    place.crashed().check();
    // A directory goes with its quota, and what is still open in it later.
    volume.unlink(inner, b"g", 3).expect("unlink");
    volume.rmdir(a, b"inner", 3).expect("rmdir");
    volume.forget(inner).expect("forget");
    volume.sync().expect("sync");
    place.crashed().check();
    volume.forget(f).expect("forget");
    volume.sync().expect("sync");
    drop(volume);
    place.check();
    let volume = place.open();
    assert_eq!(rename_all(&volume, a), None);
}

/// Without quotas, names move everywhere.
fn rename_all(volume: &Volume, dir: Ino) -> Option<Errno> {
    let moved = volume.rename((Ino::ROOT, b"outside"), (dir, b"x"), RenameMode::Replace, 1);
    errno(moved)
}

/// Random operations below and around two quotas.
struct Walk<'a> {
    volume: &'a Volume,
    random: u64,
    outer: Ino,
    inner: Ino,
    dirs: [Ino; 4],
    /// Removed files that are open.
    open: Vec<Ino>,
}

impl Walk<'_> {
    fn next(&mut self, below: u64) -> u64 {
        let next = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = next.wrapping_add(1);
        (self.random >> 33) % below
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.next(of.len() as u64) as usize]
    }

    /// Makes one step, which may be refused: by a quota, or because a name is or is not there.
    fn step(&mut self, now: i128) {
        let volume = self.volume;
        let (dir, other) = (self.pick(&self.dirs.clone()), self.pick(&self.dirs.clone()));
        let names = [format!("f{}", self.next(6)), format!("f{}", self.next(6))];
        let (name, to) = (names[0].as_bytes(), names[1].as_bytes());
        let found = volume.lookup(dir, name).ok().map(|stat| stat.ino);
        let action = self.next(12);
        let Some(ino) = found.filter(|_| action < 9) else {
            return match action {
                0..=8 => drop(volume.create(dir, name, &new_inode(FileKind::Regular), now)),
                9 => self.limit(now),
                _ => self.forget(),
            };
        };
        match action {
            0..=3 => self.content(ino, now),
            4 | 5 => {
                let modes = [
                    RenameMode::Replace,
                    RenameMode::Exchange,
                    RenameMode::LeaveWhiteout,
                ];
                let mode = self.pick(&modes);
                let renamed = volume.rename((dir, name), (other, to), mode, now);
                self.open
                    .extend(renamed.ok().flatten().map(|stat| stat.ino));
            }
            6 => drop(volume.link(ino, other, to, now)),
            _ => {
                let removed = volume.unlink(dir, name, now).expect("unlink");
                self.open
                    .extend((removed.nlink == 0).then_some(removed.ino));
            }
        }
    }

    fn content(&mut self, ino: Ino, now: i128) {
        let offset = self.next(200_000);
        match self.next(4) {
            0 => {
                let new = NewStat {
                    size: Some(offset),
                    ..NewStat::default()
                };
                drop(self.volume.set_stat(ino, &new, now));
            }
            1 => {
                let modes = [
                    AllocateMode::PunchHole,
                    AllocateMode::Collapse,
                    AllocateMode::Insert,
                ];
                let mode = self.pick(&modes);
                drop(self.volume.allocate(ino, mode, offset & !4095, 8192, now));
            }
            _ => {
                let bytes = noise(1 + self.next(60_000) as usize, offset);
                drop(self.volume.write(ino, offset, &bytes, now));
            }
        }
    }

    fn limit(&mut self, now: i128) {
        let (of, limit) = (
            self.pick(&[self.outer, self.inner]),
            self.pick(&[QUOTA, QUOTA_COUNT]),
        );
        match self.pick(&["", "20", "150000", "300000"]) {
            "" => drop(self.volume.remove_xattr(of, limit, now)),
            value => drop(set(self.volume, of, limit, value)),
        }
    }

    fn forget(&mut self) {
        if let Some(ino) = self.open.pop() {
            self.volume.forget(ino).expect("forget");
        }
        if self.next(3) == 0 {
            self.volume.sync().expect("sync");
        }
    }
}

// Would catch: an operation that changes what is below a quota and not the account, whatever comes
// before it, and a commit that has one of both.
#[test]
fn accounts_match_a_recount_after_random_operations() {
    for seed in 0..12u64 {
        let place = TestStore::new();
        let volume = place.open();
        let outer = dir(&volume, Ino::ROOT, "outer").ino;
        let inner = dir(&volume, outer, "inner").ino;
        let mut walk = Walk {
            volume: &volume,
            random: seed * 7919 + 1,
            outer,
            inner,
            dirs: [Ino::ROOT, outer, inner, dir(&volume, inner, "deep").ino],
            open: Vec::new(),
        };
        for step in 0..400 {
            walk.step(step);
            if step % 80 == 79 {
                let after = place.crashed();
                after.check();
                drop(after.open());
                after.check();
            }
        }
        drop(volume);
        place.check();
    }
}

// Would catch: bytes that no quota counts, with which a user fills the tables.
#[test]
fn attributes_and_targets_count_for_a_quota() {
    let place = TestStore::new();
    let volume = place.open();
    let top = dir(&volume, Ino::ROOT, "top").ino;
    set(&volume, top, QUOTA, "1M").expect("a quota");
    let ino = file(&volume, top, "file").ino;
    let value = noise(60_000, 1);
    let put = |number: u32, value: &[u8]| {
        let name = format!("user.a{number}");
        errno(volume.set_xattr(ino, name.as_bytes(), value, XattrMode::Set, 7))
    };
    let count = (0..100).find(|number| put(*number, &value).is_some());
    assert_eq!(put(100, &value), Some(Errno::DQUOT));
    assert_eq!(count, Some(17));
    let names_len = 10 * 7 + 7 * 8;
    assert_eq!(used(&volume, top), (17 * 60_000 + names_len, 1));
    volume.sync().expect("sync");
    place.crashed().check();
    // A shorter value, and a removed one.
    assert_eq!(put(0, &value[..1000]), None);
    volume.remove_xattr(ino, b"user.a1", 7).expect("remove");
    let link = NewInode {
        target: &[b'x'; 4000],
        ..new_inode(FileKind::Symlink)
    };
    let before = used(&volume, top);
    let made = volume.create(top, b"link", &link, 7).expect("a symlink");
    assert_eq!(used(&volume, top), (before.0 + 4000, before.1 + 1));
    // A quota that comes later finds the same.
    let outer = used(&volume, top).0;
    set(&volume, Ino::ROOT, QUOTA, "2M").expect("a quota");
    assert_eq!(used(&volume, Ino::ROOT), (outer, 3));
    volume.sync().expect("sync");
    place.crashed().check();
    for (name, ino) in [(&b"file"[..], ino), (b"link", made.ino)] {
        volume.unlink(top, name, 8).expect("unlink");
        volume.forget(ino).expect("forget");
    }
    assert_eq!(used(&volume, top), (0, 0));
    volume.close().expect("close");
    drop(volume);
    place.check();
}

// Would catch: accounts of an older version that become wrong with the first change, or a check
// that takes them for wrong.
#[test]
fn accounts_of_an_older_version_are_counted_again() {
    let place = TestStore::new();
    let volume = place.open();
    let top = dir(&volume, Ino::ROOT, "top").ino;
    set(&volume, top, QUOTA, "1M").expect("a quota");
    let inner = dir(&volume, top, "inner").ino;
    set(&volume, inner, QUOTA, "500K").expect("a quota");
    let ino = file(&volume, inner, "file").ino;
    volume.write(ino, 0, &noise(5000, 1), 7).expect("write");
    set(&volume, ino, b"user.note", "0123456789").expect("an attribute");
    let wanted = (used(&volume, top), used(&volume, inner));
    assert_eq!(wanted, ((5019, 2), (5019, 1)));
    volume.close().expect("close");
    drop(volume);
    let store = place.store();
    let writer = store.write(WriteOptions::new("test")).expect("a writer");
    let row = writer.volume_row("v").expect("a row");
    assert!(row.counts_attributes);
    let mut batch = Batch::default();
    for (dir, parent, count) in [(top, Ino::NONE, 2), (inner, top, 1)] {
        let old = QuotaRow {
            parent,
            len_max: 1 << 20,
            count_max: 0,
            len: 5000,
            count,
        };
        batch.put(Table::Quotas, &inode_key(row.volume_no, dir), old.encode());
    }
    let row = VolumeRow {
        counts_attributes: false,
        ..row
    };
    batch.put(Table::Volumes, b"v", row.encode());
    writer.engine().commit(&batch).expect("a commit");
    drop(writer);
    place.check();
    let volume = place.open();
    assert_eq!((used(&volume, top), used(&volume, inner)), wanted);
    volume.close().expect("close");
    drop(volume);
    place.check();
}
