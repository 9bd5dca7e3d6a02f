//! Replicas: what they have, what damage costs, and senders that are killed.

use crate::ground::Ground;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weald_testkit::compare::{CompareOptions, assert_same};
use weald_testkit::mounts::eventually;
use weald_testkit::rng::Rng;

/// What a file system keeps.
pub const ALL: CompareOptions = CompareOptions {
    rsync: true,
    holes: false,
    link_counts: true,
};

/// A store with the images `v1` and `v2`, and the volume `home`, which is mounted.
pub fn with_volume() -> (Ground, PathBuf) {
    let ground = Ground::with_store();
    ground.weald(&["volume", "create", "-q", "store:home"]);
    let dir = ground.0.dir("home");
    ground.0.mount(Path::new("store:home"), &dir, &[]);
    (ground, dir)
}

fn status(ground: &Ground, name: &str) -> Value {
    let all = ground.json(&["replica", "status", "--json", "store"]);
    let found = all.into_iter().find(|status| status["name"] == name);
    found.expect("a replica")
}

/// Waits until a replica has all that is committed, and more than `commit`.
fn caught_up(ground: &Ground, name: &str, commit: u64) -> u64 {
    eventually("the replica has everything", || {
        let status = status(ground, name);
        status["behind"] == 0 && status["commit"].as_u64() > Some(commit)
    });
    status(ground, name)["commit"].as_u64().expect("a number")
}

/// Restores a state and compares its volume with `tree`.
pub fn assert_restored(ground: &Ground, place: &str, at: Option<u64>, tree: &Path) {
    let target = ground.at("restored");
    if target.exists() {
        fs::remove_dir_all(&target).expect("removed");
    }
    let at = at.map(|at| at.to_string());
    let mut args = vec!["replica", "restore", "-q", place, "restored"];
    if let Some(at) = &at {
        args.extend(["--at", at]);
    }
    ground.weald(&args);
    ground.assert_clean("restored");
    let dir = ground.0.dir("restored-home");
    ground.0.mount(Path::new("restored:home"), &dir, &[]);
    assert_same(tree, &dir, &ALL);
    ground.0.umount(&dir);
}

/// Would catch: a server that does not send, a replica beside a mounted volume that is of no one
/// moment, a state that a later one has overwritten, images that are missing, and a replica that
/// other users can read.
#[test]
fn servers_send_what_mounted_volumes_commit() {
    let (ground, dir) = with_volume();
    let far = format!(
        "command:'{}' replica receive --keep-all '{}'",
        weald_testkit::command::weald_bin(),
        ground.at("far").display()
    );
    for (name, place) in [("near", "near"), ("far", &far)] {
        ground.weald(&[
            "replica", "add", "-q", "store", place, "--name", name, "--every", "1s",
        ]);
    }
    ground.sh("cp -a v1 home/; sync -f home");
    let first = caught_up(&ground, "near", 0);
    ground.sh(
        "cp -a home before; rm -r home/v1/etc; cp -a v2 home/; seq 5 > home/five; sync -f home",
    );
    caught_up(&ground, "near", first);
    caught_up(&ground, "far", 0);
    for place in ["near", "far"] {
        let mode = fs::metadata(ground.at(place))
            .expect("stat")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700, "{place}");
        ground.weald(&["replica", "verify", place]);
        assert_restored(&ground, place, None, &dir);
    }
    assert_restored(&ground, "near", Some(first), &ground.at("before"));
    let mode = fs::metadata(ground.at("restored"))
        .expect("stat")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    for name in ["v1", "v2"] {
        ground.assert_exported("restored", name);
    }
    // A replica that is paused gets nothing.
    ground.weald(&["replica", "pause", "store", "--name", "near"]);
    std::thread::sleep(Duration::from_millis(2500));
    let paused = status(&ground, "near")["commit"].clone();
    ground.sh("echo more > home/more; sync -f home");
    let last = status(&ground, "far")["commit"].as_u64().expect("a number");
    caught_up(&ground, "far", last);
    assert_eq!(status(&ground, "near")["commit"], paused);
    // A command sends what was written just before.
    ground.sh("echo late > home/late");
    ground.weald(&["replica", "send", "store", "--name", "near"]);
    assert_restored(&ground, "near", None, &dir);
    ground.0.umount(&dir);
    // Without a server, too.
    ground.weald(&["replica", "send", "store", "--name", "near"]);
    assert_eq!(status(&ground, "near")["behind"], 0);
}

/// All files below a directory.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Would catch: 16 damaged bytes of a replica that a verification does not find, a store that is
/// restored from them in silence with other files, and a repair that leaves some.
#[test]
fn sixteen_damaged_bytes_are_found_and_repaired() {
    let (ground, dir) = with_volume();
    ground.weald(&["replica", "add", "-q", "store", "place"]);
    for step in 0..3 {
        ground.sh(&format!("cp -a v1 home/{step}; sync -f home; sync"));
        eventually("the volume is committed", || {
            ground.weald(&["replica", "send", "-q", "store"]);
            status(&ground, "replica")["commit"].as_u64() > Some(3 + step)
        });
    }
    ground.sh("cp -a home tree");
    ground.0.umount(&dir);
    ground.weald(&["replica", "send", "-q", "store"]);
    ground.weald(&["replica", "verify", "place"]);
    let mut rng = Rng::new(43);
    for path in files(&ground.at("place")) {
        let good = fs::read(&path).expect("read");
        let at = rng.below(good.len() as u64).min(good.len() as u64 - 16);
        let file = fs::File::options().write(true).open(&path).expect("open");
        let bad: Vec<u8> = good[at as usize..][..16]
            .iter()
            .map(|byte| byte ^ 0x35)
            .collect();
        file.write_all_at(&bad, at).expect("write");
        let verified = ground.0.weald(["replica", "verify", "place"]);
        assert_eq!(verified.code, Some(1), "{}", path.display());
        let _ = fs::remove_dir_all(ground.at("restored"));
        let restored = ground
            .0
            .weald(["replica", "restore", "-q", "place", "restored"]);
        if restored.code == Some(0) {
            assert_restored(&ground, "place", None, &ground.at("tree"));
        } else {
            assert!(!restored.stderr.is_empty(), "{}", path.display());
        }
        ground.0.weald(["replica", "verify", "store", "--repair"]);
        assert_restored(&ground, "place", None, &ground.at("tree"));
        // Rows and items of earlier states are nowhere else.
        let is_item = path.parent() == Some(&ground.at("place/items"));
        if is_item || !fs::read(&path).is_ok_and(|bytes| bytes == good) {
            fs::write(&path, &good).expect("write");
        }
        let verified = ground.0.weald(["replica", "verify", "place"]);
        assert_eq!(
            verified.code,
            Some(0),
            "{}: {}",
            path.display(),
            verified.text()
        );
    }
}

/// Would catch: a sender or a receiver whose sudden end leaves a replica that is damaged, that
/// cannot be continued, or that has an item twice.
#[test]
fn both_sides_may_be_killed_at_any_moment() {
    let (ground, dir) = with_volume();
    let weald = weald_testkit::command::weald_bin();
    // The other side is killed after a while, which differs.
    ground.sh(&format!(
        "echo 0.010 > delay; printf '%s\\n' '#!/bin/sh' \
         'exec timeout -s KILL $(cat \"{here}/delay\") \"{weald}\" replica receive \
         \"{here}/place\"' > side; \
         chmod +x side",
        here = ground.0.path().display()
    ));
    ground.sh("echo 60 > delay");
    let place = format!("command:'{}'", ground.at("side").display());
    ground.weald(&["replica", "add", "-q", "store", &place]);
    let mut rng = Rng::new(44);
    let kills = std::env::var("WEALD_KILLS").ok();
    let kills = kills.and_then(|count| count.parse().ok()).unwrap_or(20u64);
    for round in 0..kills {
        ground.sh(&format!(
            "cp -a v{} home/{round}; sync -f home",
            1 + round % 2
        ));
        if round > 20 {
            ground.sh(&format!("rm -rf home/{}", round - 20));
        }
        if round % 5 == 4 {
            ground.sh(&format!("rm -r home/{}", round - 2));
        }
        let (mine, theirs) = match round % 2 {
            0 => (rng.below(120) + 5, 60_000),
            _ => (60_000, rng.below(120) + 5),
        };
        ground.sh(&format!(
            "echo {}.{:03} > delay",
            theirs / 1000,
            theirs % 1000
        ));
        ground.sh(&format!(
            "timeout -s KILL {}.{:03} '{weald}' replica send -q store 2>> errors || true",
            mine / 1000,
            mine % 1000
        ));
    }
    ground.sh("echo 60 > delay; cp -a home tree");
    ground.0.umount(&dir);
    ground.weald(&["replica", "send", "store"]);
    assert_eq!(status(&ground, "replica")["behind"], 0);
    let verified = ground.weald(&["replica", "verify", "store"]);
    assert!(verified.contains("the last state is whole"), "{verified}");
    assert_restored(&ground, "place", None, &ground.at("tree"));
}
