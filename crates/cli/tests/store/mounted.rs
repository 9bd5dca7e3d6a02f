//! Mounted images of a store that changes.

use crate::ground::Ground;
use rustix::fs::Advice;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use weald_testkit::compare::{CompareOptions, assert_same};
use weald_testkit::mounts::{Server, eventually};

pub const MOUNTED: CompareOptions = CompareOptions {
    rsync: true,
    holes: false,
    link_counts: true,
};

/// Drops the kernel's page cache, so that the server reads again.
pub fn drop_pages() {
    fs::write("/proc/sys/vm/drop_caches", "3").expect("drop_caches, as root");
}

/// Would catch: a mount with another tree, an image that is removed under its mount, a collection
/// that removes blocks of a mounted image or moves them where its reader does not find them.
#[test]
fn a_mounted_image_stays_whole_while_others_leave() {
    let ground = Ground::with_store();
    // Segments with few live blocks, so that the collector has something to copy.
    ground.weald(&["store", "create", "-q", "--segment-size", "256K", "small"]);
    ground.weald(&["store", "import", "-q", "small", "v1.weald", "v2.weald"]);
    for args in [&[][..], &["--isolated"]] {
        let dir = ground.0.dir("mnt");
        ground.0.mount(Path::new("small:v2"), &dir, args);
        assert_same(&ground.at("v2"), &dir, &MOUNTED);
        ground.refused(
            &["store", "rm", "small:v2"],
            &["small:v2: is in use", "unmount it first"],
        );
        let mounts = ground.json(&["mounts", "--json"]);
        let shown = mounts.iter().find(|object| object["type"] == "mount");
        let image = shown.expect("a mount")["image"].as_str().expect("a path");
        assert_eq!(image, ground.at("small:v2").to_str().expect("UTF-8"));
        ground.weald(&["store", "rm", "small:v1"]);
        ground.weald(&["store", "gc", "-q", "--copy-below", "100", "small"]);
        drop_pages();
        assert_same(&ground.at("v2"), &dir, &MOUNTED);
        ground.0.umount(&dir);
        ground.weald(&["store", "import", "-q", "small", "v1.weald"]);
    }
    ground.weald(&["store", "rm", "small:v2"]);
    ground.assert_clean("small");
}

/// Sets the flag on drop, also after a failed assertion, so that the threads end.
struct RaiseOnDrop<'a>(&'a AtomicBool);

impl Drop for RaiseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Would catch: a read that fails or returns wrong bytes while blocks move and segments are
/// removed.
#[test]
fn a_mounted_image_is_readable_while_others_change() {
    let ground = Ground::with_images();
    ground.weald(&["store", "create", "-q", "--segment-size", "128K", "store"]);
    // The two images alternate in the segments.
    for name in ["v1", "v2"] {
        ground.weald(&["store", "import", "-q", "store", &format!("{name}.weald")]);
    }
    let dir = ground.0.dir("mnt");
    ground
        .0
        .mount(Path::new("store:v2"), &dir, &["-o", "cachesize=0"]);
    let expected = fs::read(ground.at("v2/noise")).expect("read");
    let is_over = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let end = RaiseOnDrop(&is_over);
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !is_over.load(Ordering::Relaxed) {
                let mut file = fs::File::open(dir.join("noise")).expect("open");
                rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("fadvise");
                let mut found = Vec::new();
                file.read_to_end(&mut found)
                    .expect("read while the store changes");
                assert!(found == expected, "other bytes in read {reads}");
                reads += 1;
            }
            reads
        });
        for round in 0..12 {
            ground.weald(&["store", "rm", "store:v1"]);
            ground.weald(&["store", "gc", "-q", "--copy-below", "100", "store"]);
            let image = if round % 2 == 0 {
                "v1.weald"
            } else {
                "v2.weald"
            };
            ground.weald(&["store", "import", "-q", "store", image, "--name", "v1"]);
        }
        drop(end);
        reader.join().expect("the reader")
    });
    println!(
        "{reads} reads of {} bytes while the store changed",
        expected.len()
    );
    assert!(reads > 12, "{reads}");
    ground.0.umount(&dir);
    ground.assert_clean("store");
}

/// Would catch: a mount that reads another store after the directory is renamed and replaced.
#[test]
fn a_mount_stays_with_the_store_that_was_opened() {
    let ground = Ground::with_store();
    let dir = ground.0.dir("mnt");
    ground.0.mount(Path::new("store:v1"), &dir, &[]);
    ground.sh("mv store moved; $WEALD store create -q store; \
        $WEALD store import -q store v2.weald --name v1");
    drop_pages();
    assert_same(&ground.at("v1"), &dir, &MOUNTED);
    // A removal in the renamed store also finds the reader.
    ground.refused(&["store", "rm", "moved:v1"], &["is in use"]);
    ground.0.umount(&dir);
    ground.weald(&["store", "rm", "moved:v1"]);
}

/// Would catch: a new server that cannot open an image of a store again, or that opens another one.
#[test]
fn a_take_over_keeps_images_of_stores() {
    let ground = Ground::with_store();
    let dir = ground.0.dir("mnt");
    ground.0.mount(Path::new("store:v1"), &dir, &[]);
    let mut command = ground.0.command();
    let mut taker = Server::start(command.args(["serve", "--take-over"]));
    let id = i64::from(taker.id());
    eventually("the take-over", || {
        assert!(taker.is_running(), "{}", taker.log());
        let report = ground.json(&["mounts", "--json"]);
        let mounts = report.iter().filter(|object| object["type"] == "mount");
        mounts.count() == 1 && report.iter().any(|object| object["pid"] == id)
    });
    drop_pages();
    assert_same(&ground.at("v1"), &dir, &MOUNTED);
    ground.refused(&["store", "rm", "store:v1"], &["is in use"]);
    ground.0.umount(&dir);
    ground.weald(&["store", "rm", "store:v1"]);
}

/// Would catch: a server that searches base images beside the store, not in it, and one that does
/// not take a store for `basedir`.
#[test]
fn base_images_of_a_mount_are_found_in_stores() {
    let ground = Ground::with_store();
    ground.sh(
        "mkdir apart; $WEALD build -q --base store:v1 v2 apart/based.weald
        $WEALD store import -q store apart/based.weald; rm v1.weald",
    );
    let dir = ground.0.dir("mnt");
    let store = format!("basedir={}", ground.at("store").display());
    for (image, args) in [
        ("store:based", &[][..]),
        ("apart/based.weald", &["-o", &store]),
    ] {
        ground.0.mount(Path::new(image), &dir, args);
        assert_same(&ground.at("v2"), &dir, &MOUNTED);
        // The base is in use as well as the image.
        let both = ["store", "rm", "store:v1", "store:based"];
        ground.refused(&both, &["store:", "is in use"]);
        ground.0.umount(&dir);
        ground.sh("$WEALD store ls store | grep -q based ||
            $WEALD store import -q store apart/based.weald");
    }
    // Nor is it removed while the image is there.
    let needed = ["store:v1: is the base image of based, which cannot be read without it"];
    ground.refused(&["store", "rm", "store:v1"], &needed);
    ground.weald(&["store", "rm", "--force", "store:v1"]);
    ground.refused(
        &["mount", "store:based", "mnt"],
        &["v1", "is not in", "store"],
    );
}

/// Would catch: mount options and messages that only work for image files.
#[test]
fn mounts_of_missing_images_are_refused() {
    let ground = Ground::with_store();
    ground.0.dir("mnt");
    ground.refused(
        &["mount", "store:gone", "mnt"],
        &["no such image", "weald store ls"],
    );
    ground.refused(
        &["mount", "-o", "offset=4096", "store:v1", "mnt"],
        &["begins at byte 0"],
    );
    let other = "1".repeat(64);
    ground.refused(
        &["mount", "-o", &format!("digest={other}"), "store:v1", "mnt"],
        &["image digest: expected"],
    );
    assert_eq!(ground.0.mounts().len(), 0);
}

/// Would catch: space of removed files that stays until somebody calls gc, and a collection that
/// never ends, or that runs without garbage.
#[test]
fn space_comes_back_by_itself() {
    let ground = Ground::new();
    ground.weald(&["store", "create", "-q", "--segment-size", "1M", "store"]);
    ground.weald(&["volume", "create", "-q", "store:v"]);
    let dir = ground.0.dir("home");
    ground.0.mount(Path::new("store:v"), &dir, &[]);
    ground.sh("python3 -c 'import os, random
random.seed(1)
for number in range(8000):
    open(f\"home/{number}\", \"wb\").write(os.urandom(random.randrange(200, 9000)))'
         sync -f home");
    let len = || {
        let stat = ground.json(&["volume", "stat", "--json", "store:v"]);
        let figure = |name: &str| stat[0][name].as_u64().expect(name);
        (figure("stored_len"), figure("dead_len"))
    };
    let (before, _) = len();
    // Half of each segment.
    ground.sh("rm home/*[13579]; sync -f home; cp -a home kept");
    eventually("the space is back", || {
        let (stored, debt) = len();
        stored < before * 6 / 10 && debt * 10 <= stored
    });
    let segments = || ground.sh("ls store/segments");
    std::thread::sleep(std::time::Duration::from_secs(6));
    let quiet = segments();
    std::thread::sleep(std::time::Duration::from_secs(11));
    assert_eq!(quiet, segments(), "nothing is left to do");
    ground.sh("diff -r home kept");
    ground.0.umount(&dir);
    ground.assert_clean("store");
}
