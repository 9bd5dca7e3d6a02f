//! Tiers on disks of their own: data moves there and back, by hand and by itself; disks that are
//! not here, that fail, and that were exchanged; servers that are killed.

use crate::ground::{Ground, steps_of_manual};
use crate::replicas::ALL;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use weald_testkit::compare::assert_same;
use weald_testkit::mounts::eventually;
use weald_testkit::rng::Rng;

/// Makes the disk `NAME.img` with ext4 and mounts it on `NAME`.
fn make_disk(ground: &Ground, name: &str) {
    ground.sh(&format!(
        "truncate -s 64M {name}.img; mkfs.ext4 -q -m 0 {name}.img; mkdir {name}"
    ));
    plug(ground, name);
}

fn plug(ground: &Ground, name: &str) {
    ground.sh(&format!("mount -o loop {name}.img {name}"));
}

/// A store of small segments with two images, and the tier `slow` on another disk.
pub fn with_tier() -> Ground {
    let ground = Ground::with_images();
    ground.weald(&["store", "create", "-q", "--segment-size", "256K", "store"]);
    ground.weald(&["store", "import", "-q", "store", "v1.weald", "v2.weald"]);
    make_disk(&ground, "slow");
    ground.weald(&["tier", "add", "-q", "store", "slow/tier", "--name", "slow"]);
    ground
}

/// As [`with_tier`], with the volume `home`, which is mounted and has a tree.
fn with_volume() -> (Ground, PathBuf) {
    let ground = with_tier();
    ground.weald(&["volume", "create", "-q", "store:home"]);
    let dir = ground.0.dir("home");
    ground.0.mount(Path::new("store:home"), &dir, &[]);
    ground.sh(
        "cp -a v1 home/; head -c 2M /dev/urandom > home/noise; cp home/noise kept; sync -f home",
    );
    (ground, dir)
}

pub fn stat(ground: &Ground, name: &str) -> Value {
    let all = ground.json(&["tier", "stat", "--json", "store"]);
    let found = all.into_iter().find(|tier| tier["name"] == name);
    found.expect("a tier")
}

pub fn len(ground: &Ground, name: &str) -> u64 {
    stat(ground, name)["bytes"].as_u64().expect("bytes")
}

/// Makes all calls to a mounted ext4 fail, as an unplugged disk does (EXT4_IOC_SHUTDOWN).
fn shut_down(ground: &Ground, name: &str) {
    ground.sh(&format!(
        "python3 -c 'import fcntl, os, struct
fcntl.ioctl(os.open(\"{name}\", os.O_RDONLY), 0x8004587d, struct.pack(\"I\", 2))'"
    ));
}

/// Would catch: a segment that is lost or left on its way, an image that is read from where it was,
/// and a tier that is removed with data on it.
#[test]
fn an_image_moves_to_a_tier_and_back() {
    let ground = with_tier();
    let before = len(&ground, "home");
    let moved = ground.json(&["tier", "move", "--json", "store:v1", "--to", "slow"]);
    assert!(
        moved[0]["moved_bytes"].as_u64() > Some(500_000),
        "{moved:?}"
    );
    assert!(len(&ground, "slow") > 500_000);
    assert_eq!(len(&ground, "slow") + len(&ground, "home"), before);
    let read = |ground: &Ground| {
        for name in ["v1", "v2"] {
            ground.assert_exported("store", name);
            ground.weald(&["check", "-q", &format!("store:{name}")]);
        }
        ground.assert_clean("store");
    };
    read(&ground);
    let dir = ground.0.dir("mnt");
    ground.0.mount(Path::new("store:v1"), &dir, &[]);
    assert_same(&ground.at("v1"), &dir, &ALL);
    ground.refused(
        &["tier", "remove", "store", "slow"],
        &["segments", "weald tier drain"],
    );
    ground.weald(&["tier", "move", "-q", "store:v1", "--to", "home"]);
    assert_eq!(len(&ground, "slow"), 0);
    assert_same(&ground.at("v1"), &dir, &ALL);
    ground.0.umount(&dir);
    // What dies there is collected there.
    ground.weald(&["tier", "move", "-q", "store:v2", "--to", "slow"]);
    ground.weald(&["store", "rm", "store:v1", "store:v2"]);
    ground.weald(&["store", "gc", "-q", "store"]);
    assert_eq!(len(&ground, "slow") + len(&ground, "home"), 0);
    assert_eq!(ground.sh("ls slow/tier/segments"), "");
    ground.weald(&["store", "import", "-q", "store", "v1.weald", "v2.weald"]);
    ground.weald(&["tier", "move", "-q", "store:v1", "--to", "slow"]);
    // Programs that know no tiers refuse the store while it has one.
    let features = || fs::read(ground.at("store/store")).expect("superblock")[48];
    assert_eq!(features(), 3);
    ground.weald(&["tier", "drain", "-q", "store", "slow"]);
    ground.weald(&["tier", "remove", "store", "slow"]);
    assert_eq!(ground.sh("ls slow/tier"), "segments\n");
    assert_eq!(features(), 1);
    read(&ground);
    ground.sh("umount slow");
}

/// Would catch: a tier that is not here, or is another one, that costs more than what lies there;
/// tools that call it lost; and a foreign disk that is written to.
#[test]
fn a_tier_that_is_not_here_costs_what_lies_there_alone() {
    let ground = with_tier();
    ground.weald(&["tier", "move", "-q", "store:v1", "--to", "slow"]);
    ground.weald(&["volume", "create", "-q", "store:home"]);
    ground.weald(&["store", "backup", "-q", "store", "backup"]);
    ground.sh("umount slow");
    let report = ground.0.weald(["store", "check", "store"]);
    assert_eq!(report.code, Some(1));
    let text = report.text();
    for words in ["tier slow is not here", "is not lost", "weald tier stat"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let words = ["tier slow is not here", "bring it back first"];
    ground.refused(&["store", "salvage", "store"], &words);
    ground.refused(
        &["tier", "remove", "store", "slow"],
        &["not here", "--lost"],
    );
    // A replica has it, but a segment in two places must not differ.
    let scrubbed = ground.0.weald(["store", "scrub", "store"]);
    assert_eq!(scrubbed.code, Some(1), "{}", scrubbed.stderr);
    assert_eq!(stat(&ground, "home")["segments"], 0);
    // Names are there, data is not, and everything else works.
    ground.weald(&["store", "ls", "store"]);
    let read = ground.0.weald(["cat", "store:v1", "noise"]);
    assert!(
        read.stderr.contains("tier slow is not here"),
        "{}",
        read.stderr
    );
    let dir = ground.0.dir("home");
    ground.0.mount(Path::new("store:home"), &dir, &[]);
    ground.sh("seq 100000 > home/numbers; sync -f home; rm -r home/numbers; echo x > home/x");
    ground.weald(&["store", "gc", "-q", "store"]);
    ground.0.umount(&dir);
    // The disk of another store, and the tier of a copy.
    make_disk(&ground, "other");
    ground.weald(&["store", "create", "-q", "second"]);
    ground.weald(&[
        "tier",
        "add",
        "-q",
        "second",
        "other/tier",
        "--name",
        "slow",
    ]);
    ground.sh("umount other; mount -o loop other.img slow");
    let away = stat(&ground, "slow")["error"].to_string();
    assert!(away.contains("another tier"), "{away}");
    let before = ground.contents("slow/tier");
    ground.weald(&["store", "gc", "-q", "store"]);
    ground.sh("umount slow");
    plug(&ground, "slow");
    ground.sh("cp -a store copy");
    let text = ground.weald(&["tier", "stat", "copy"]);
    assert!(text.contains("may be a copy"), "{text}");
    ground.weald(&["store", "rm", "copy:v1", "copy:v2"]);
    ground.weald(&["store", "gc", "-q", "copy"]);
    ground.assert_exported("store", "v1");
    ground.assert_clean("store");
    // A store that has moved keeps its tiers.
    ground.sh("mv store moved; mv moved/tiers t; mv t moved/tiers");
    ground.assert_exported("moved", "v1");
    assert!(!before.is_empty());
    ground.sh("umount slow");
}

/// Would catch: a mounted volume that stops when the disk of a tier fails, or that does not see it
/// come back.
#[test]
fn a_disk_that_fails_under_a_mounted_volume_comes_back() {
    let (ground, dir) = with_volume();
    ground.weald(&["tier", "move", "-q", "store:home", "--to", "slow"]);
    assert!(len(&ground, "slow") > 2_000_000);
    ground.sh("cmp kept home/noise; echo new > home/new; sync -f home");
    shut_down(&ground, "slow");
    ground.sh(
        "echo 3 > /proc/sys/vm/drop_caches; ls -lR home > /dev/null; cat home/new; \
         head -c 1M /dev/urandom > home/more; cp home/more more; sync -f home; rm home/v1/noise; \
         sync -f home; cmp more home/more",
    );
    let read = ground.sh("cat home/noise > /dev/null 2> said || true; cat said");
    assert!(
        read.is_empty() || read.contains("Input/output error"),
        "{read}"
    );
    ground.weald(&["store", "gc", "-q", "store"]);
    // The kernel knows it as another device now.
    ground.sh("umount -l slow; cp slow.img again.img; mount -o loop again.img slow");
    eventually("the tier is back", || {
        let same = ground.0.script("cmp kept home/noise").status();
        same.is_ok_and(|status| status.success())
    });
    ground.weald(&["tier", "drain", "-q", "store", "slow"]);
    assert_eq!(len(&ground, "slow"), 0);
    ground.0.umount(&dir);
    ground.assert_clean("store");
    ground.sh("umount slow");
}

/// Would catch: policies that do nothing, that move what is in use, or that fill a disk.
#[test]
fn data_moves_by_itself() {
    let (ground, dir) = with_volume();
    ground.weald(&["tier", "set", "store", "home", "--max-age", "2s"]);
    eventually("what is old has moved", || len(&ground, "slow") > 2_000_000);
    ground.sh("cmp kept home/noise");
    ground.weald(&["tier", "set", "store", "home", "--max-age", "0"]);
    ground.weald(&[
        "tier", "set", "store", "slow", "--hits", "2", "--rate", "1G",
    ]);
    let before = len(&ground, "slow");
    ground.0.umount(&dir);
    ground.0.mount(Path::new("store:home"), &dir, &[]);
    ground.sh("cmp kept home/noise");
    eventually("what is read has moved back", || {
        len(&ground, "slow") < before
    });
    // A tier that is too full waits, and says why.
    ground.weald(&[
        "tier",
        "set",
        "store",
        "slow",
        "--hits",
        "0",
        "--reserve",
        "1T",
    ]);
    ground.weald(&["tier", "set", "store", "home", "--max-age", "1s"]);
    let planned = ground.json(&["tier", "plan", "--json", "store"]);
    assert!(planned.iter().all(|planned| planned["to"].is_null()));
    eventually("it is told what waits", || {
        stat(&ground, "home")["waiting_bytes"].as_u64() > Some(0)
    });
    let run = ground.0.weald(["tier", "run", "store"]);
    assert_eq!(run.code, Some(1));
    assert!(run.text().contains("room"), "{}", run.text());
    let said = ground.weald(&["volume", "stat", "store:home"]);
    assert!(said.contains("\ntier slow "), "{said}");
    let metrics = ground.weald(&["tier", "stat", "--prometheus", "store"]);
    assert!(
        metrics.contains("weald_tier_waiting_bytes{store="),
        "{metrics}"
    );
    ground.0.umount(&dir);
    ground.assert_clean("store");
    ground.sh("umount slow");
}

/// Would catch: a move that loses or doubles something when its server is killed.
#[test]
fn a_server_may_be_killed_while_it_moves() {
    let (ground, dir) = with_volume();
    let kills = std::env::var("WEALD_KILLS").ok();
    let kills = kills.and_then(|count| count.parse().ok()).unwrap_or(12u64);
    let mut random = Rng::new(kills);
    for round in 0..kills {
        let to = ["slow", "home"][round as usize % 2];
        let wait = random.below(60);
        ground.sh(&format!(
            "head -c 300K /dev/urandom > home/w{round}; cp home/w{round} w{round}; sync -f home
             (while echo x >> home/log; do :; done 2> /dev/null) &
             \"$WEALD\" tier move -q store:home --to {to} 2> /dev/null & sleep 0.0{wait:02}
             kill -KILL $(sed 's/process \\([0-9]*\\).*/\\1/' store/lock); wait; umount -l home"
        ));
        ground.0.mount(Path::new("store:home"), &dir, &[]);
        ground.sh("cmp kept home/noise; for f in w*; do cmp $f home/$f; done");
    }
    ground.0.umount(&dir);
    ground.assert_clean("store");
    ground.weald(&["tier", "drain", "-q", "store", "slow"]);
    ground.weald(&["tier", "remove", "store", "slow"]);
    assert_eq!(
        ground
            .sh("ls slow/tier slow/tier/segments; ls store | grep moving || true")
            .matches('0')
            .count(),
        0
    );
    ground.sh("umount slow");
}

/// Would catch: a file of a tier of which 16 damaged bytes cost more than themselves.
#[test]
fn sixteen_damaged_bytes_in_any_file_of_a_tier_cost_nothing_else() {
    let ground = with_tier();
    ground.weald(&["tier", "move", "-q", "store:v1", "--to", "slow"]);
    ground.weald(&["tier", "run", "-q", "store"]);
    for name in [
        "store/tiers",
        "store/tiers.copy",
        "store/tiers.report",
        "store/tiers.pins",
        "slow/tier/tier",
        "slow/tier/tier.copy",
    ] {
        let file = fs::File::options().write(true).open(ground.at(name));
        let file = file.expect(name);
        let before = fs::read(ground.at(name)).expect(name);
        file.write_all_at(&[0xa5; 16], before.len() as u64 / 2)
            .expect(name);
        ground.assert_exported("store", "v1");
        if name == "store/tiers.report" {
            let report = ground.0.weald(["store", "check", "store"]);
            assert!(report.text().contains("tiers.report"), "{}", report.text());
        } else {
            ground.assert_clean("store");
        }
        // The next change makes it whole.
        ground.weald(&["tier", "set", "store", "slow", "--rank", "2"]);
        ground.weald(&["tier", "run", "-q", "store"]);
        fs::write(ground.at(name), before).expect(name);
    }
    // Without the list, the superblock says that there was one.
    ground.sh("mkdir list; mv store/tiers store/tiers.copy list");
    let words = ["tiers is missing", "--again"];
    ground.refused(&["store", "salvage", "store"], &words);
    let report = ground.0.weald(["store", "check", "store"]);
    assert!(report.text().contains("is not lost"), "{}", report.text());
    ground.sh("mv list/tiers list/tiers.copy store");
    // Both files of the store: the list is made again.
    for name in ["store/tiers", "store/tiers.copy"] {
        fs::write(ground.at(name), b"nonsense").expect(name);
    }
    let words = ["what the store knows of its tiers is damaged", "--again"];
    ground.refused(&["tier", "ls", "store"], &words);
    assert_eq!(ground.weald(&["store", "ls", "store"]).lines().count(), 2);
    ground.weald(&[
        "tier",
        "add",
        "-q",
        "store",
        "slow/tier",
        "--name",
        "slow",
        "--again",
    ]);
    ground.assert_exported("store", "v1");
    ground.assert_clean("store");
    ground.sh("umount slow");
}

/// Would catch: bad input that changes something, or does not say what to do.
#[test]
fn bad_input_is_refused() {
    let ground = with_tier();
    make_disk(&ground, "more");
    ground.sh("mkdir more/full; touch more/full/x; ln -s ../store more/link");
    ground.weald(&["store", "create", "-q", "second"]);
    let before = (
        ground.contents("store"),
        ground.contents("slow"),
        ground.contents("more"),
    );
    let add = |place: &str, name: &str, words: &[&str]| {
        ground.refused(&["tier", "add", "store", place, "--name", name], words);
    };
    add("more/a", "../a", &["letters"]);
    add("more/a", "home", &["the store's own directory"]);
    add("more/a", "slow", &["there is a tier of this name"]);
    add("more/full", "a", &["not empty"]);
    add("store/a", "a", &["lies in a store"]);
    add("more/link/a", "a", &["lies in a store"]);
    add(".", "a", &["the store lies in it"]);
    add("slow/tier", "a", &["is a tier of this store", "--again"]);
    add("slow/b", "a", &["same file system as slow", "--same-disk"]);
    add("here", "a", &["same file system as home", "--same-disk"]);
    ground.refused(
        &["tier", "add", "second", "slow/tier", "--name", "a"],
        &["another store"],
    );
    ground.refused(
        &[
            "tier", "add", "store", "more/a", "--name", "a", "--rank", "0",
        ],
        &["rank 0"],
    );
    ground.refused(
        &["tier", "add", "store", "more/a", "--name", "a", "--again"],
        &["is no tier"],
    );
    let none = ["no such tier", "weald tier ls"];
    ground.refused(&["tier", "set", "store", "nowhere", "--off"], &none);
    ground.refused(&["tier", "drain", "store", "nowhere"], &none);
    ground.refused(&["tier", "remove", "store", "nowhere"], &none);
    ground.refused(&["tier", "remove", "store", "home"], &none);
    ground.refused(
        &["tier", "move", "store:v1", "--to", "nowhere"],
        &["no such tier"],
    );
    ground.refused(
        &["tier", "move", "store:none", "--to", "slow"],
        &["no such image"],
    );
    ground.refused(
        &["tier", "move", "store", "--to", "slow"],
        &["names a store"],
    );
    ground.sh("rmdir here 2> /dev/null || true; rmdir more/a slow/b 2> /dev/null || true");
    let left = |before: Vec<(PathBuf, Vec<u8>)>, dir: &str| {
        let after = ground.contents(dir);
        let names = |list: &[(PathBuf, Vec<u8>)]| -> Vec<PathBuf> {
            list.iter().map(|(path, _)| path.clone()).collect()
        };
        assert_eq!(names(&before), names(&after));
        let same = |path: &Path| !path.ends_with("meta") && !path.ends_with("lock");
        for ((path, before), (_, after)) in before.iter().zip(&after) {
            assert!(before == after || !same(path), "{}", path.display());
        }
    };
    left(before.0, "store");
    left(before.1, "slow");
    left(before.2, "more");
    ground.assert_clean("store");
    ground.sh("umount slow more");
}

/// Would catch: a command of the manual that does not work, in the order in which it stands there.
#[test]
fn the_manual_of_tiers_works_from_beginning_to_end() {
    let ground = Ground::with_images();
    ground.sh("mkdir -p srv mnt; cp v1.weald tools.weald");
    ground.weald(&["store", "create", "-q", "srv/store"]);
    ground.weald(&["store", "import", "-q", "srv/store", "tools.weald"]);
    make_disk(&ground, "mnt/hdd");
    ground.weald(&["volume", "create", "-q", "srv/store:work"]);
    ground.sh(
        "mkdir work; $WEALD mount srv/store:work work; mkdir -p work/photos/now
         seq 9999 > work/photos/old; seq 8888 > work/photos/now/new; $WEALD umount work",
    );
    let mut count = 0;
    let mut is_of_bucket = false;
    for line in steps_of_manual("tiers.md") {
        if line.starts_with("## ") {
            // The tests with a server have it.
            is_of_bucket = line == "## A bucket";
        } else if !is_of_bucket {
            ground.run_of_manual(&line, &["/srv/", "/mnt/"]);
            count += 1;
        }
    }
    assert!(count >= 10, "{count} commands");
    ground.weald(&["check", "-q", "srv/store:tools"]);
    ground.assert_clean("srv/store");
    ground.sh("umount mnt/hdd");
}

/// Would catch: a command of the manual that does not work, in the order in which it stands there.
#[test]
fn the_manual_of_snapshots_works_from_beginning_to_end() {
    let ground = Ground::new();
    ground.sh("mkdir -p srv mnt/home mnt/before");
    ground.weald(&["store", "create", "-q", "srv/store"]);
    ground.weald(&["volume", "create", "-q", "srv/store:home"]);
    ground.sh("$WEALD mount srv/store:home mnt/home; echo text > mnt/home/report.txt");
    let mut count = 0;
    for line in steps_of_manual("snapshots.md") {
        if line.starts_with("weald ") {
            ground.run_of_manual(&line, &["/srv/", "/mnt/"]);
            count += 1;
        }
    }
    assert!(count >= 10, "{count} commands");
    ground.sh("grep text mnt/home/report.txt; $WEALD umount mnt/home");
    ground.assert_clean("srv/store");
}

/// Would catch: a store that is full while a tier has room, a file that fails in its middle, tables
/// without space because data took it, and a full store that cannot be emptied.
#[test]
fn capacity_is_the_sum() {
    let ground = Ground::new();
    make_disk(&ground, "fast");
    make_disk(&ground, "slow");
    ground.weald(&[
        "store",
        "create",
        "-q",
        "--segment-size",
        "4M",
        "fast/store",
    ]);
    let add = [
        "tier",
        "add",
        "-q",
        "fast/store",
        "slow/tier",
        "--name",
        "slow",
    ];
    ground.weald(&add);
    ground.weald(&["volume", "create", "-q", "fast/store:home"]);
    let dir = ground.0.dir("home");
    ground.0.mount(Path::new("fast/store:home"), &dir, &[]);
    let free = |path: &str| -> u64 {
        let text = ground.sh(&format!("df --output=avail -B1 {path} | tail -n 1"));
        text.trim().parse().expect("a number")
    };
    assert!(free("home") > free("fast") + 30_000_000);
    ground.sh(
        "head -c 80M /dev/urandom > noise; cp noise home/noise; sync -f home; cmp noise home/noise
         seq 1000 | split -l 1 - home/small; sync -f home",
    );
    let lens: Vec<u64> = ground
        .json(&["tier", "stat", "--json", "fast/store"])
        .iter()
        .map(|tier| tier["bytes"].as_u64().expect("bytes"))
        .collect();
    assert!(lens.iter().all(|len| *len > 20_000_000), "{lens:?}");
    // Until both are full.
    let full = ground
        .0
        .script("set -e; head -c 80M /dev/urandom > home/more; sync -f home")
        .status();
    assert!(!full.expect("sh").success());
    ground.sh("rm home/more home/small*; sync -f home; cmp noise home/noise");
    ground.0.umount(&dir);
    ground.0.mount(Path::new("fast/store:home"), &dir, &[]);
    ground.sh("cmp noise home/noise; rm home/noise; sync -f home");
    eventually("the space is back", || free("home") > 90_000_000);
    ground.sh("echo x > home/x; sync -f home");
    ground.0.umount(&dir);
    ground.assert_clean("fast/store");
    ground.sh("umount slow fast");
}
