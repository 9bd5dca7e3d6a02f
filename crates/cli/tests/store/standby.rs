//! Standbys: what they show, how one takes the place of its store, and how the old one comes back.

use crate::ground::Ground;
use crate::replicas::{ALL, files, with_volume};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weald_testkit::compare::assert_same;
use weald_testkit::mounts::eventually;
use weald_testkit::rng::Rng;

/// A store with the volume `home`, which is mounted, its replica `place`, and the standby.
fn with_standby() -> (Ground, std::path::PathBuf) {
    let (ground, dir) = with_volume();
    ground.weald(&["replica", "add", "-q", "store", "place", "--every", "1s"]);
    ground.sh("cp -a v1 home/; sync -f home");
    ground.weald(&["replica", "send", "-q", "store"]);
    ground.weald(&["replica", "follow", "-q", "place", "standby"]);
    (ground, dir)
}

/// Mounts the volume of a store read-only and compares it with `tree`.
fn assert_shows(ground: &Ground, store: &str, tree: &Path) {
    let dir = ground.0.dir("shown");
    let source = format!("{store}:home");
    ground.0.mount(Path::new(&source), &dir, &["-o", "ro"]);
    assert_same(tree, &dir, &ALL);
    ground.0.umount(&dir);
}

/// Would catch: a mount of a standby that stays where it was, that shows what the kernel has kept
/// of an older state, or that can be written to; images that a standby lacks, and a standby that
/// other commands change.
#[test]
fn a_mounted_standby_moves_on() {
    let (ground, dir) = with_standby();
    // As often as it was told, by the server of the mount.
    let weald = weald_testkit::command::weald_bin();
    ground.sh(&format!(
        "timeout 2 '{weald}' replica follow -q --every 1s place standby || [ $? = 124 ]"
    ));
    let shown = ground.0.dir("shown");
    ground
        .0
        .mount(Path::new("standby:home"), &shown, &["-o", "ro"]);
    ground.sh("echo one > home/file; sync -f home");
    shows(&shown.join("file"), "one\n");
    let open = fs::File::open(shown.join("file")).expect("open");
    ground.sh("echo two > home/file; mv home/v1 home/moved; sync -f home");
    shows(&shown.join("file"), "two\n");
    let mut bytes = [0; 4];
    open.read_exact_at(&mut bytes, 0).expect("read");
    assert_eq!(&bytes, b"two\n");
    drop(open);
    eventually("a directory has moved", || {
        !shown.join("v1").exists() && shown.join("moved").is_dir()
    });
    assert_same(&dir.join("moved"), &shown.join("moved"), &ALL);
    fs::write(shown.join("own"), b"x").expect_err("a standby that is written to");
    ground.refused(
        &["replica", "follow", "place", "standby"],
        &["standby", "a volume of it is mounted"],
    );
    for name in ["v1", "v2"] {
        ground.assert_exported("standby", name);
    }
    ground.0.umount(&shown);
    ground.0.umount(&dir);
}

/// Would catch: a standby that lacks what was acknowledged, an old store that goes on, changes of
/// it that are lost without a word, and a way back that sends everything again.
#[test]
fn a_standby_takes_over_and_the_old_store_comes_back() {
    let (ground, dir) = with_standby();
    ground.sh("dd if=/dev/urandom of=home/big bs=1M count=24 status=none; sync -f home");
    ground.weald(&["replica", "send", "-q", "store"]);
    ground.sh("cp -a home sent");
    ground.weald(&["replica", "pause", "store"]);
    ground.sh("mkdir home/own; echo lost > home/own/file; sync -f home");
    let promoted = ground.json(&["replica", "promote", "--json", "standby"]);
    assert_eq!(promoted[0]["epoch"], 1);
    assert_shows(&ground, "standby", &ground.at("sent"));
    ground.assert_clean("standby");
    for name in ["v1", "v2"] {
        ground.assert_exported("standby", name);
    }
    // The old store learns it, and its volume is read-only then.
    let words = ["was replaced by", "standby", "weald replica follow"];
    let send = ["replica", "send", "store", "--name", "replica"];
    eventually("the server's own look at the replica is over", || {
        !(ground.0.weald(send).stderr).contains("another process is sending")
    });
    ground.refused(&send, &words);
    ground.0.umount(&dir);
    ground.refused(&["volume", "create", "store:more"], &words);
    ground.refused(&["store", "rm", "store:v1"], &words);
    let old = ground.0.dir("old");
    ground.0.mount(Path::new("store:home"), &old, &["-o", "ro"]);
    assert_eq!(fs::read(old.join("own/file")).expect("read"), b"lost\n");
    ground.0.umount(&old);
    // The new one goes on, and sends to the same place.
    let new = ground.0.dir("new");
    ground.0.mount(Path::new("standby:home"), &new, &[]);
    ground.sh("echo new > new/new; rm -r new/v1/etc; sync -f new");
    ground.0.umount(&new);
    ground.weald(&["replica", "send", "-q", "standby"]);
    // What only the old one has is listed first.
    let refused = ground.0.weald(["replica", "follow", "place", "store"]);
    assert_eq!(refused.code, Some(2));
    let text = refused.text();
    for word in ["volume home", "own/file"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(refused.stderr.contains("--discard"), "{}", refused.stderr);
    let followed = ground.json(&["replica", "follow", "--json", "--discard", "place", "store"]);
    let read_len = followed[0]["read_len"].as_u64().expect("a number");
    assert!(read_len < 4 << 20, "{read_len} bytes for a few files");
    ground
        .0
        .mount(Path::new("standby:home"), &new, &["-o", "ro"]);
    assert_shows(&ground, "store", &new);
    ground.0.umount(&new);
    ground.assert_clean("store");
    let verified = ground.weald(&["replica", "verify", "standby"]);
    assert!(verified.contains("the last state is whole"), "{verified}");
    // And back again.
    ground.weald(&["replica", "promote", "-q", "store"]);
    ground.refused(&["replica", "send", "standby"], &["was replaced by"]);
    ground.weald(&["replica", "follow", "-q", "place", "standby"]);
    ground.assert_clean("standby");
}

/// Would catch: a server whose store does not change, and that takes changes for hours after
/// another store has taken over.
#[test]
fn an_idle_store_learns_that_it_was_replaced() {
    let (ground, dir) = with_standby();
    // Everything is sent, so that the server sends nothing any more.
    eventually("everything is sent", || {
        let status = ground.weald(&["replica", "status", "store"]);
        status.contains("has all that the store has committed")
    });
    ground.weald(&["replica", "promote", "-q", "standby"]);
    eventually("the volume is read-only", || {
        ground
            .weald(&["replica", "status", "store"])
            .starts_with("replaced by")
    });
    eventually("changes are refused", || {
        fs::write(dir.join("more"), b"x").is_err()
    });
    // What was taken before the server knew is lost, which the end says; else it says nothing.
    let is_lost = !fs::read_dir(&dir)
        .expect("list")
        .all(|entry| entry.expect("entry").file_name() != "more");
    let unmounted = ground.0.weald(["umount", "home"]);
    assert_eq!(
        unmounted.code,
        Some(if is_lost { 2 } else { 0 }),
        "{unmounted:?}"
    );
    assert_eq!(
        unmounted.stderr.contains("was replaced by"),
        is_lost,
        "{unmounted:?}"
    );
}

/// Would catch: 16 damaged bytes of a standby that are there after it has taken everything anew.
#[test]
fn sixteen_damaged_bytes_of_a_standby_are_mended() {
    let (ground, dir) = with_standby();
    ground.0.umount(&dir);
    ground.weald(&["replica", "send", "-q", "store"]);
    ground.weald(&["replica", "follow", "-q", "place", "standby"]);
    ground.sh("cp -a standby whole");
    let mut rng = Rng::new(45);
    for path in files(&ground.at("standby")) {
        let name = path.strip_prefix(ground.at("standby")).expect("below it");
        let len = fs::metadata(&path).expect("stat").len();
        // Space that is kept for hard times, and the lock, have no contents.
        if len < 16 || name == Path::new("reserve") {
            continue;
        }
        let at = rng.below(len - 15);
        let file = fs::File::options().read(true).write(true).open(&path);
        let file = file.expect("open");
        let mut bytes = [0; 16];
        file.read_exact_at(&mut bytes, at).expect("read");
        let bad = bytes.map(|byte| byte ^ 0x35);
        file.write_all_at(&bad, at).expect("write");
        // Damage that neither a check nor a read meets harms nobody.
        let checked = ground.0.weald(["store", "check", "--data", "standby"]);
        let source = ground
            .0
            .weald(["replica", "follow", "--as-clone", "place", "standby"]);
        assert_eq!(
            source.code,
            Some(0),
            "{}: {}",
            name.display(),
            source.text()
        );
        let again = ground.0.weald(["store", "check", "--data", "standby"]);
        let (before, after) = (checked.text(), again.text());
        assert_eq!(
            again.code,
            Some(0),
            "{}: {before}; then {after}",
            name.display()
        );
        ground.sh("diff -r store/segments standby/segments; diff -r store/images standby/images");
        ground.sh("rm -r standby; cp -a whole standby");
    }
}

/// Would catch: a follower or a sender whose sudden end costs an acknowledged state, and a standby
/// that cannot go on after it.
#[test]
fn a_standby_and_its_store_may_be_killed_at_any_moment() {
    let (ground, _) = with_standby();
    let weald = weald_testkit::command::weald_bin();
    let mut rng = Rng::new(46);
    let kills = std::env::var("WEALD_KILLS").ok();
    let kills = kills.and_then(|count| count.parse().ok()).unwrap_or(20u64);
    for round in 0..kills {
        ground.sh(&format!("cp -a v{} home/{round}", 1 + round % 2));
        if round >= 6 {
            ground.sh(&format!("rm -r home/{}", round - 6));
        }
        ground.weald(&["replica", "send", "-q", "store"]);
        let after = rng.below(90) + 5;
        ground.sh(&format!(
            "timeout -s KILL 0.{after:03} '{weald}' replica follow -q place standby \
             2>> errors || true"
        ));
    }
    ground.sh("sync -f home");
    ground.weald(&["replica", "send", "-q", "store"]);
    ground.sh("cp -a home sent");
    // The store ends without a word: its server, and what it had not sent.
    ground.sh("echo late > home/late; \
         kill -KILL $(sed 's/process \\([0-9]*\\).*/\\1/' store/lock); umount -l home");
    ground.weald(&["replica", "promote", "-q", "standby"]);
    assert_shows(&ground, "standby", &ground.at("sent"));
    ground.assert_clean("standby");
}

/// Would catch: a store that becomes a standby of another one, a promotion that has no replica, and
/// a directory with other files that is taken for an empty one.
#[test]
fn what_cannot_follow_is_refused_and_stays_as_it_is() {
    let (ground, dir) = with_standby();
    ground.0.umount(&dir);
    ground.weald(&["replica", "send", "-q", "store"]);
    ground.weald(&["store", "create", "-q", "other"]);
    ground.sh("mkdir full empty; echo x > full/x; cp -a store before");
    ground.refused(
        &["replica", "follow", "place", "other"],
        &["place", "is a replica of another store"],
    );
    ground.refused(
        &["replica", "follow", "place", "full"],
        &["full", "is not empty"],
    );
    ground.refused(
        &["replica", "follow", "empty", "standby-2"],
        &["empty", "there is no replica here"],
    );
    ground.refused(
        &["replica", "follow", "store", "standby-2"],
        &["store", "is a store"],
    );
    ground.refused(&["replica", "promote", "store"], &["is no standby"]);
    ground.refused(
        &["volume", "create", "standby:more"],
        &["is a standby", "weald replica promote"],
    );
    ground.refused(&["store", "salvage", "standby"], &["is a standby"]);
    ground.refused(&["replica", "send", "standby"], &["has no replica"]);
    let words = ["replica", "add", "store", "place-3", "--name", "standby"];
    ground.refused(&words, &["cannot be called standby"]);
    ground.sh("diff -r store before");
    // Another history of the same store.
    ground.weald(&[
        "replica", "add", "-q", "store", "place-2", "--name", "second",
    ]);
    ground.weald(&["replica", "send", "-q", "store", "--name", "second"]);
    ground.refused(
        &["replica", "follow", "place-2", "standby"],
        &["tells another history", "--as-clone"],
    );
    ground.weald(&[
        "replica",
        "follow",
        "-q",
        "--as-clone",
        "place-2",
        "standby",
    ]);
    ground.assert_clean("standby");
    // A store of its own.
    ground.weald(&["replica", "promote", "-q", "--without-place", "standby"]);
    ground.weald(&["volume", "create", "-q", "standby:more"]);
    ground.weald(&["replica", "send", "-q", "store"]);
}

/// Would catch: a sync that returns before the replica has what it synced, one that fails or
/// returns while the replica cannot be reached, and one that waits although it should not.
#[test]
fn a_sync_waits_for_its_replica() {
    let (ground, _) = with_volume();
    // The other side can be cut off.
    ground.sh(&format!(
        "printf '%s\\n' '#!/bin/sh' '[ ! -e \"{here}/cut\" ] || exit 1' \
         'echo $$ > \"{here}/pid\"; exec \"{weald}\" replica receive \"{here}/$1\"' > side; \
         chmod +x side",
        here = ground.0.path().display(),
        weald = weald_testkit::command::weald_bin()
    ));
    let side = |name: &str| format!("command:'{}' {name}", ground.at("side").display());
    ground.weald(&["replica", "add", "-q", "store", &side("place"), "--sync"]);
    ground.0.umount(&ground.at("home"));
    let dir = ground.at("home");
    ground.0.mount(Path::new("store:home"), &dir, &[]);
    let restored = |text: &str| {
        ground.sh("rm -rf restored");
        ground.weald(&["replica", "restore", "-q", "place", "restored"]);
        let shown = ground.0.dir("shown");
        ground
            .0
            .mount(Path::new("restored:home"), &shown, &["-o", "ro"]);
        let found = fs::read_to_string(shown.join("file")).unwrap_or_default();
        ground.0.umount(&shown);
        assert_eq!(found, text);
    };
    for round in 0..5 {
        ground.sh(&format!("echo {round} > home/file; sync home/file"));
        restored(&format!("{round}\n"));
    }
    // Out of reach: it waits, and goes on when the place is there again.
    ground.sh(
        "touch cut; kill -KILL $(cat pid) || true; echo late > home/file; \
         sync home/file & sleep 2; kill -0 $!; rm cut; wait $!",
    );
    restored("late\n");
    // Settings change while it is mounted.
    ground.weald(&["replica", "set", "store", "--every", "1h", "--rate", "100M"]);
    let text = ground.weald(&["replica", "status", "store"]);
    assert!(text.contains("at most 100.0 MiB a second"), "{text}");
    ground.sh("echo slow > home/file; timeout 30 sync home/file");
    restored("slow\n");
    // Nobody waits for one that is paused.
    let cut = "touch cut; kill -KILL $(cat pid) || true";
    ground.sh(&format!(
        "{cut}; echo paused > home/file; sync home/file & echo $!"
    ));
    ground.weald(&["replica", "pause", "store"]);
    ground.sh("timeout 30 sync home/file; rm cut");
    // The other way, it goes on without the replica, and says so.
    ground.weald(&["replica", "remove", "store"]);
    ground.weald(&[
        "replica",
        "add",
        "-q",
        "store",
        &side("place-2"),
        "--sync",
        "--when-lost",
        "degrade",
    ]);
    let status = || ground.weald(&["replica", "status", "store"]);
    eventually("the server knows the new replica", || {
        ground.sh("date > home/other; sync home/other");
        status().contains("has commit")
    });
    ground.sh(&format!(
        "{cut}; echo alone > home/file; timeout 30 sync home/file"
    ));
    let text = status();
    assert!(text.contains("the last try failed"), "{text}");
    assert!(text.contains("a sync waits for it"), "{text}");
    ground.sh("echo more > home/file; timeout 5 sync home/file; rm -r cut place");
    eventually("the replica is there again", || {
        ground.sh("date > home/other; sync home/other");
        !status().contains("the last try failed")
    });
    ground.sh("echo both > home/file; sync home/file; mv place-2 place");
    restored("both\n");
}

/// Waits until a file of a mounted standby has these bytes.
fn shows(path: &Path, text: &str) {
    eventually("the standby shows the new state", || {
        fs::read_to_string(path).is_ok_and(|found| found == text)
    });
}
