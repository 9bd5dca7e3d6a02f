//! Seals and imports that go on at damage, and name what they leave out.

use super::*;
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::limits::{FILE_LEN_MAX, XATTR_SET_LEN_MAX};
use weald_format::volume::{InodeRow, NameRow};
use weald_format::{Ino, VolumeNo};
use weald_store::disk::HostDisk;
use weald_store::engine::{Batch, Table};
use weald_store::{Store, WriteOptions};

/// Files below the mount, `b` and `b2` of one inode.
const FILES: &str = "
    mkdir -p mnt/d/deep; for f in a d/b d/deep/c; do head -c 300000 /dev/urandom > mnt/$f; done
    ln mnt/d/b mnt/d/deep/b2; echo small > mnt/small; cp -a mnt whole";

/// Overwrites 16 bytes of `content`, which random bytes make unique, in a file at or below `path`.
fn damage(path: &Path, content: &[u8]) {
    let wanted = &content[5000..5032];
    let files = if path.is_dir() {
        fs::read_dir(path)
            .expect("list")
            .map(|entry| entry.expect("an entry").path())
            .collect()
    } else {
        vec![path.to_owned()]
    };
    for file in files {
        let bytes = fs::read(&file).expect("read");
        if let Some(at) = bytes.windows(32).position(|bytes| bytes == wanted) {
            let file = File::options().write(true).open(file).expect("open");
            return file.write_all_at(&[0x55; 16], at as u64).expect("write");
        }
    }
    panic!("the content is not in {}", path.display());
}

/// The paths that standard error names, and what it says of all of them.
fn named(output: &Output) -> Vec<String> {
    let lines = output.stderr.lines().map(|line| {
        let line = line.strip_prefix("weald: ").expect("a message");
        line.split_once(": left out")
            .unwrap_or_else(|| panic!("{line}"))
            .0
            .to_owned()
    });
    lines.collect()
}

/// Checks an image of the files without those of `without`.
fn assert_image(ground: &Ground, image: &str, without: &str) {
    ground.weald(&["check", image]);
    ground.sh(&format!(
        "rm -rf out want; cp -a whole want; cd want; rm -r {without}; cd ..; touch -r whole/d want/d
         touch -r whole/d/deep want/d/deep; touch -r whole want; $WEALD extract -q {image} out"
    ));
    let options = CompareOptions {
        link_counts: false,
        ..EXTRACTED
    };
    assert_same(&ground.at("want"), &ground.at("out"), &options);
}

/// Would catch: a damaged block that ends a backup, a file that is stored short, and one that is
/// left out without a word.
#[test]
fn a_seal_names_damaged_files_and_goes_on() {
    let ground = Ground::new();
    ground.mount(&[]);
    ground.sh(FILES);
    ground.umount();
    let content = fs::read(ground.at("whole/d/b")).expect("read");
    damage(&ground.at("store/segments"), &content);
    for is_mounted in [false, true] {
        if is_mounted {
            ground.mount(&[]);
        }
        for to in [["--image", "i.weald"], ["--name", "i"]] {
            let seal = |more: &[&str]| {
                let args = [&["volume", "seal", VOLUME][..], &to, more].concat();
                ground.0.weald(&args)
            };
            seal(&["-q", "--strict"]).expect_refusal(&["d/b"]);
            assert!(!ground.at("i.weald").exists());
            assert_eq!(ground.sh("ls store/images"), "");
            let sealed = seal(&["--json", "--progress", "none"]).expect(1);
            assert_eq!(named(&sealed), ["d/b", "d/deep/b2"], "{}", sealed.stderr);
            let report: Value = serde_json::from_str(&sealed.text()).expect("JSON");
            let paths = report["left_out"].as_array().expect("a list").iter();
            let paths: Vec<_> = paths.map(|left| left["path"].as_str()).collect();
            assert_eq!(paths, [Some("d/b"), Some("d/deep/b2")]);
            assert_eq!(report["problem_count"], 2);
            match to[0] {
                "--image" => assert_image(&ground, "i.weald", "d/b d/deep/b2"),
                _ => {
                    assert_image(&ground, "store:i", "d/b d/deep/b2");
                    ground.weald(&["store", "rm", "store:i"]);
                }
            }
            ground.sh("rm -f i.weald");
        }
        if is_mounted {
            ground.umount();
        }
    }
}

/// Would catch: a damaged image of which no volume can be made, and a file of the volume that is
/// short.
#[test]
fn a_volume_of_a_damaged_image_has_the_other_files() {
    let ground = Ground::new();
    let dir = ground.0.dir("mnt");
    ground.sh(FILES);
    ground.weald(&["build", "-q", "-l0", "mnt", "i.weald"]);
    ground.sh("rm -r mnt/*");
    let content = fs::read(ground.at("whole/d/b")).expect("read");
    damage(&ground.at("i.weald"), &content);
    let create = |more: &[&str]| {
        let args = ["volume", "create", "store:w", "--from", "i.weald"];
        ground.0.weald([&args[..], more].concat())
    };
    // Files that lie in one block with it are as damaged.
    let lost = ground.sh(
        "cd whole; for f in $(find . -type f -printf '%P\\n' | sort); do
         $WEALD cat ../i.weald $f > ../cat 2> ../log || echo $f; done",
    );
    let lost: Vec<&str> = lost.lines().collect();
    assert!(
        lost.contains(&"d/b") && lost.contains(&"d/deep/b2") && lost.len() < 5,
        "{lost:?}"
    );
    create(&["--strict"]).expect_refusal(&["i.weald", lost[0]]);
    assert_eq!(ground.sh("ls store/volumes"), "v\n");
    let created = create(&["--json"]).expect(1);
    assert_eq!(named(&created), lost, "{}", created.stderr);
    let report: Value = serde_json::from_str(&created.text()).expect("JSON");
    let told = report["left_out"].as_array().expect("a list").iter();
    let told: Vec<_> = told
        .map(|left| left["path"].as_str().expect("a path"))
        .collect();
    assert_eq!(told, lost);
    ground.0.mount(Path::new("store:w"), &dir, &[]);
    let lost = lost.join(" ");
    ground.sh(&format!(
        "cp -a whole want; cd want; rm {lost}; cd ..; diff -r want mnt"
    ));
    ground.umount();
    let said = ground.weald(&["volume", "check", "--data", "store:w"]);
    assert!(said.starts_with("clean: "), "{said}");
}

/// Would catch: a damaged block of an older image that keeps every new one out of the store.
#[test]
fn an_image_is_added_beside_a_mount_although_an_older_one_is_damaged() {
    let ground = Ground::new();
    ground.sh("mkdir mnt");
    ground.sh(FILES);
    ground.sh("rm -r mnt/*");
    ground.weald(&[
        "store", "add", "-q", "-l0", "store", "whole", "--name", "old-1",
    ]);
    let content = fs::read(ground.at("whole/d/b")).expect("read");
    damage(&ground.at("store/segments"), &content);
    ground.mount(&[]);
    ground.sh("rm -r whole/d; echo new > whole/new");
    let added = ground
        .0
        .weald(["store", "add", "-q", "store", "whole", "--name", "old-2"]);
    let added = added.expect(1);
    assert!(
        added
            .stderr
            .starts_with("weald: old-1: damaged, and not continued"),
        "{}",
        added.stderr
    );
    assert_eq!(ground.weald(&["cat", "store:old-2", "new"]), "new\n");
    ground.umount();
}

/// The rows of the volume, changed past its server.
struct Rows {
    writer: weald_store::StoreWriter,
    volume_no: VolumeNo,
    batch: Batch,
}

impl Rows {
    fn open(ground: &Ground) -> Self {
        let store = Store::open(Arc::new(HostDisk::new(&ground.at("store")))).expect("a store");
        let writer = store.write(WriteOptions::new("damage")).expect("a writer");
        let volume_no = writer.volume_row("v").expect("a row").volume_no;
        Self {
            writer,
            volume_no,
            batch: Batch::default(),
        }
    }

    fn key(&self, ino: u64) -> Vec<u8> {
        [&self.volume_no.to_be_bytes()[..], &ino.to_be_bytes()].concat()
    }

    /// Replaces or removes the row of a name.
    fn name(&mut self, name: &str, change: impl Fn(&mut NameRow) -> bool) {
        let mut found = None;
        let mut look = |key: &[u8], value: &[u8]| {
            let row = NameRow::parse(value)?;
            if row.name == name.as_bytes() {
                found = Some((key.to_vec(), row));
            }
            Ok(ControlFlow::Continue(()))
        };
        let start = self.volume_no.to_be_bytes();
        self.writer
            .engine()
            .scan(Table::Names, &start, &mut look)
            .expect("names");
        let (key, mut row) = found.unwrap_or_else(|| panic!("no name {name}"));
        if change(&mut row) {
            self.batch.put(Table::Names, &key, row.encode())
        } else {
            self.batch.remove(Table::Names, &key)
        }
    }

    fn inode(&mut self, ino: u64, change: impl Fn(&mut InodeRow)) {
        let key = self.key(ino);
        let value = self.writer.engine().get(Table::Inodes, &key).expect("read");
        let mut row = InodeRow::parse(&value.expect("a row")).expect("sound");
        change(&mut row);
        self.batch.put(Table::Inodes, &key, row.encode());
    }
}

/// Would catch: rows of an older or damaged volume that a seal puts into an image which no reader
/// takes, or that end it.
#[test]
fn a_seal_leaves_out_what_no_image_can_have() {
    let ground = Ground::new();
    let dir = ground.mount(&[]);
    ground.sh(FILES);
    ground.sh(
        "cd mnt; echo long > long; echo acl > acl; setfacl -m u:1000:- acl
         setfattr -n user.a -v b acl
         echo whole > whole; setfacl -m u:1000:r whole
         mkdir loop dots kind lost; for d in loop dots kind lost; do echo $d > $d/inner; done
         mkdir -p sum; for i in 1 2 3 4 5; do truncate -s 1E sum/$i; done; truncate -s 1M sum/6",
    );
    let ino = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(dir.join(name)).expect("stat").ino()
    };
    let inos = ["long", "acl", "lost/inner", "d/deep/c"].map(ino);
    ground.umount();
    let mut rows = Rows::open(&ground);
    rows.inode(inos[0], |row| row.size = FILE_LEN_MAX + 1);
    // More than a set takes, as volumes had it before they counted.
    let count = XATTR_SET_LEN_MAX / 65_000 + 1;
    for no in 0..count {
        let key = [&rows.key(inos[1])[..], format!("user.v{no}").as_bytes()].concat();
        rows.batch.put(Table::Xattrs, &key, vec![no as u8; 65_000]);
    }
    rows.inode(inos[1], |row| row.xattr_count += count as u32);
    let key = rows.key(inos[2]);
    rows.batch.remove(Table::Inodes, &key);
    // Pieces of a file that are gone read as holes.
    rows.inode(inos[3], |row| row.allocated += 1);
    for (from, to) in [("dots", "."), ("small", "..")] {
        rows.name(from, |row| {
            row.name = to.into();
            true
        });
    }
    rows.name("loop", |row| {
        row.ino = Ino::ROOT;
        true
    });
    rows.name("kind", |row| {
        row.kind = weald_format::FileKind::Fifo;
        true
    });
    rows.writer.engine().commit(&rows.batch).expect("commit");
    drop(rows);
    // Its rows are others now.
    ground.sh("rm -r store/journal");
    let sealed = ["volume", "seal", "-q", VOLUME, "--image", "i.weald"];
    let output = ground.0.weald(sealed).expect(1);
    let mut told: Vec<&str> = output.stderr.lines().collect();
    told.sort_unstable();
    let expected = [
        (".", "left out"),
        ("..", "left out"),
        ("acl", "extended attributes left out"),
        ("d/deep/c", "left out"),
        ("kind", "left out"),
        ("long", "left out"),
        ("loop", "left out"),
        ("lost/inner", "left out"),
        ("sum/4", "left out"),
        ("sum/5", "left out"),
    ];
    for (path, what) in expected {
        let begin = format!("weald: {path}: {what}");
        assert!(
            told.iter().any(|line| line.starts_with(&begin)),
            "{path}: {}",
            output.stderr
        );
    }
    assert_eq!(told.len(), expected.len(), "{}", output.stderr);
    ground.weald(&["check", "i.weald"]);
    ground.sh("$WEALD extract -q i.weald out acl whole a lost d");
    ground.sh(
        "cmp whole/a out/a; cmp whole/d/b out/d/b; test ! -e out/d/deep/c; test -d out/lost
         test \"$(stat -c %a out/acl)\" = 600; test \"$(cat out/acl)\" = acl
         getfacl -cn out/whole | grep user:1000:r",
    );
    // The same into the store, checked as it is there.
    let output = ground
        .0
        .weald(["volume", "seal", "-q", VOLUME, "--name", "i"])
        .expect(1);
    assert_eq!(output.stderr.lines().count(), expected.len());
    ground.weald(&["check", "store:i"]);
}
