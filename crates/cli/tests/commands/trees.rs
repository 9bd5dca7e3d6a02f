//! Whole trees through the whole program: packed, mounted, packed again from the mount, and
//! compared after each step. `scripts/trees.sh` does the same with real trees.
use crate::support::Bench;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::path::Path;
use weald_testkit::compare::assert_same;
use weald_testkit::{CompareOptions, torture};

/// A bench whose mount is removed on drop.
struct Mounted(Bench);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(self.0.at("mnt"), UnmountFlags::DETACH);
    }
}

fn assert_same_bytes(a: &Path, b: &Path) {
    let [a_bytes, b_bytes] = [a, b].map(|path| fs::read(path).expect("image"));
    assert!(
        a_bytes == b_bytes,
        "{} and {} differ",
        a.display(),
        b.display()
    );
}

/// Would catch: a mount that differs from the source in the view of the builder (holes and link
/// counts included), and bytes that depend on the file system, the order on disk or the number of
/// threads.
#[test]
fn packing_a_mount_gives_the_same_image() {
    let bench = Mounted(Bench::new());
    let bench = &bench.0;
    for dir in ["source", "mnt"] {
        fs::create_dir(bench.at(dir)).expect("mkdir");
    }
    let options = torture::Options {
        seed: 3,
        big: false,
    };
    torture::make(&bench.at("source"), &options).expect("torture tree");
    bench
        .weald(["build", "-q", "-l", "2", "-t", "1", "source", "image"])
        .expect(0, "");
    // The cache holds two blocks, so that most blocks are loaded repeatedly.
    bench
        .weald(["mount", "-o", "cachesize=2M", "image", "mnt"])
        .expect(0, "");
    assert_same(
        &bench.at("source"),
        &bench.at("mnt"),
        &CompareOptions::default(),
    );
    bench
        .weald(["build", "-q", "-l", "2", "-t", "5", "mnt", "again"])
        .expect(0, "");
    assert_same_bytes(&bench.at("image"), &bench.at("again"));
    bench.weald(["diff", "image", "mnt"]).expect(0, "");
    bench.weald(["umount", "mnt"]).expect(0, "");
}

/// Would catch: a tree that differs between tar, the mount and extract.
#[test]
fn tar_mount_and_extract_give_the_same_tree() {
    let bench = Mounted(Bench::with_image());
    let bench = &bench.0;
    bench.sh("$WEALD extract image extracted; mkdir untarred mnt copied
         $WEALD tar image | tar -C untarred --xattrs --xattrs-include='*' --acls -xpf -
         $WEALD mount image mnt; cp -aT mnt copied; $WEALD umount mnt
         for way in extracted untarred copied; do $WEALD build -q $way $way.weald; done");
    for way in ["extracted.weald", "untarred.weald", "copied.weald"] {
        assert_same_bytes(&bench.at("image"), &bench.at(way));
    }
}
