//! Data of paths that users want on a tier: it goes there alone, stays, and moves by hand.

use crate::ground::Ground;
use crate::tiers::{len, stat, with_tier};
use std::path::Path;
use weald_testkit::rng::Rng;

/// A store with the tier `slow`, and the volume `home` with the directories `cold` and `hot`, whose
/// files were written by turns, of 300 KB that no codec makes shorter. The same tree is in `kept`.
fn with_mixed_data() -> Ground {
    let ground = with_tier();
    ground.sh("mkdir -p kept/cold/deep kept/hot
         for i in $(seq 6); do
             head -c 300000 /dev/urandom > kept/cold/deep/$i
             head -c 300000 /dev/urandom > kept/hot/$i
         done");
    ground.weald(&["volume", "create", "-q", "store:home"]);
    let dir = ground.0.dir("home");
    ground.0.mount(Path::new("store:home"), &dir, &[]);
    ground.sh("mkdir -p home/cold/deep home/hot
         for i in $(seq 6); do
             cp kept/cold/deep/$i home/cold/deep/; cp kept/hot/$i home/hot/; sync -f home
         done");
    ground
}

fn unmount(ground: &Ground) {
    ground.0.umount(&ground.at("home"));
}

/// The data is as it was written, and nothing is wrong with the store.
fn assert_whole(ground: &Ground) {
    ground
        .0
        .mount(Path::new("store:home"), &ground.at("home"), &[]);
    ground.sh("diff -r kept home");
    unmount(ground);
    ground.assert_exported("store", "v1");
    ground.assert_exported("store", "v2");
    ground.assert_clean("store");
}

fn moved(ground: &Ground, args: &[&str]) -> u64 {
    let report = ground.json(args);
    report[0]["moved_bytes"].as_u64().expect("bytes")
}

const RUN: [&str; 4] = ["tier", "run", "--json", "store"];

/// Would catch: pinned data that stays where it is or takes other data with it, a policy that takes
/// it away again, work that is done again and again, and files that were lost on the way.
#[test]
fn pinned_data_goes_to_its_tier_alone_and_stays() {
    let ground = with_mixed_data();
    unmount(&ground);
    ground.refused(
        &["volume", "set", "store:home", "cold", "--tier", "none"],
        &["no such tier", "weald tier ls"],
    );
    ground.weald(&["volume", "set", "store:home", "cold", "--tier", "slow"]);
    assert!(
        ground
            .weald(&["tier", "plan", "store"])
            .contains("a part of a segment is pinned")
    );
    assert!(moved(&ground, &RUN) > 1_800_000);
    let on_slow = len(&ground, "slow");
    assert!((1_800_000..2_200_000).contains(&on_slow), "{on_slow}");
    assert_eq!(moved(&ground, &RUN), 0);
    assert_eq!(ground.weald(&["tier", "plan", "store"]), "");
    assert_whole(&ground);
    // Neither reads nor a full home change that.
    ground.weald(&["tier", "set", "store", "slow", "--hits", "1"]);
    ground.weald(&["tier", "set", "store", "home", "--reserve", "1T"]);
    ground.weald(&["volume", "set", "store:home", "hot", "--tier", "home"]);
    ground.weald(&["tier", "set", "store", "slow", "--off"]);
    ground.weald(&["tier", "set", "store", "slow", "--on"]);
    // What of it lies in segments on the tier waits for room at home.
    let report = ground.0.weald(RUN).text();
    assert!(len(&ground, "slow") > on_slow, "{report}");
    let at_home = len(&ground, "home");
    assert!(at_home >= 1_000_000, "{at_home} {report}");
    assert_whole(&ground);
    ground.weald(&["tier", "set", "store", "home", "--reserve", "0"]);
    // What no user wants anywhere follows the policies again.
    ground.weald(&["volume", "set", "store:home", ".", "--tier", "home"]);
    ground.weald(&RUN);
    ground.weald(&["volume", "set", "store:home", ".", "--tier", "default"]);
    let info = ground.weald(&["volume", "info", "store:home", "cold/deep/1"]);
    assert!(info.contains("tier                default"), "{info}");
    assert_whole(&ground);
    ground.sh("umount slow");
}

/// Would catch: a pin that a mounted volume does not notice, new files that land elsewhere, and a
/// tier that is drained or gone, for which nobody hears what waits.
#[test]
fn a_mounted_volume_follows_pins_and_says_what_waits() {
    let ground = with_mixed_data();
    ground.weald(&["volume", "set", "store:home", "cold", "--tier", "slow"]);
    ground.sh("getfattr -n user.weald.tier --only-values home/cold/deep/1 | grep -qx slow");
    assert!(moved(&ground, &RUN) > 1_800_000);
    let on_slow = len(&ground, "slow");
    ground.sh("head -c 300000 /dev/urandom > kept/cold/new; cp kept/cold/new home/cold/new");
    ground.sh("getfattr -n user.weald.tier --only-values home/cold/new | grep -qx slow");
    assert!(moved(&ground, &RUN) >= 300_000);
    assert!(len(&ground, "slow") >= on_slow + 300_000);
    ground.sh("diff -r kept home");
    // A drained tier keeps nothing, and what belongs there waits for it.
    ground.weald(&["tier", "drain", "-q", "store", "slow"]);
    assert_eq!(len(&ground, "slow"), 0);
    let report = ground.0.weald(RUN);
    assert_eq!(report.code, Some(1), "{}", report.text());
    let waits = stat(&ground, "home")["waiting_for"].to_string();
    assert!(waits.contains("tier slow is drained"), "{waits}");
    ground.weald(&["tier", "set", "store", "slow", "--on"]);
    ground.weald(&RUN);
    assert!(len(&ground, "slow") >= on_slow + 300_000);
    unmount(&ground);
    assert_whole(&ground);
    ground.sh("umount slow");
}

/// Would catch: reads of a path that count elsewhere or not at all, and counters that a server
/// brings back after they were set to zero.
#[test]
fn heat_is_shown_by_path_and_set_to_zero() {
    let ground = with_mixed_data();
    ground.weald(&RUN);
    let reads = |path: &str| {
        let lines = ground.json(&["tier", "heat", "--json", "store:home", path]);
        assert!(!lines.is_empty());
        let reads = lines
            .iter()
            .map(|line| line["reads"].as_f64().expect("reads"));
        (lines.len(), reads.fold(0.0, f64::max))
    };
    assert_eq!(reads(".").0, 12);
    assert_eq!(reads("hot").0, 6);
    unmount(&ground);
    ground
        .0
        .mount(Path::new("store:home"), &ground.at("home"), &[]);
    ground.sh("cat home/hot/6 > /dev/null");
    ground.weald(&RUN);
    assert!(reads("hot/6").1 > 0.0);
    ground.weald(&["tier", "heat", "--reset", "store:home", "hot"]);
    assert_eq!(reads("hot").1, 0.0);
    ground.weald(&RUN);
    assert!(reads("hot").1 < 1.0);
    let text = ground.weald(&["tier", "heat", "store:home", "hot/6"]);
    assert!(text.contains("home") && text.contains("  0-"), "{text}");
    let all = ground.json(&["tier", "heat", "--json", "store"]);
    assert!(
        all.iter()
            .all(|line| line["segment"].is_u64() && line["bytes"].is_u64())
    );
    ground.refused(&["tier", "heat", "store:home", "gone"], &["no such file"]);
    ground.refused(&["tier", "heat", "store", "hot"], &["STORE:NAME"]);
    unmount(&ground);
    ground.sh("umount slow");
}

/// Would catch: a move of a path that takes what is beside it, or a range that is ignored; and a
/// path that is not there.
#[test]
fn paths_and_ranges_move_by_hand() {
    let ground = with_mixed_data();
    for is_mounted in [true, false] {
        if !is_mounted {
            unmount(&ground);
        }
        let file = [
            "tier",
            "move",
            "--json",
            "store:home",
            "cold/deep/1",
            "--to",
            "slow",
        ];
        assert!((300_000..400_000).contains(&moved(&ground, &file)));
        assert!((300_000..400_000).contains(&len(&ground, "slow")));
        assert_eq!(moved(&ground, &file), 0);
        let part = [
            "tier",
            "move",
            "--json",
            "store:home",
            "/hot/2",
            "--range",
            "0-128K",
            "--to",
            "slow",
        ];
        assert!((128_000..200_000).contains(&moved(&ground, &part)));
        let all = ["tier", "move", "--json", "store:home", ".", "--to", "slow"];
        assert!(moved(&ground, &all) > 3_000_000);
        let back = ["tier", "move", "-q", "store:home", ".", "--to", "home"];
        ground.weald(&back);
        assert_eq!(len(&ground, "slow"), 0);
        let words: [(&[&str], &str); 4] = [
            (&["store:home", "gone", "--to", "slow"], "no such file"),
            (&["store:home", "../x", "--to", "slow"], "without '..'"),
            (
                &["store:home", "hot", "--range", "0-1", "--to", "slow"],
                "only a file",
            ),
            (&["store:v1", "etc", "--to", "slow"], "moves as a whole"),
        ];
        for (args, word) in words {
            ground.refused(&[&["tier", "move"], args].concat(), &[word]);
        }
    }
    assert_whole(&ground);
    ground.sh("umount slow");
}

/// Would catch: a sort that loses something when its server is killed, or after which the next
/// server does not find its way.
#[test]
fn a_server_may_be_killed_while_it_sorts() {
    let ground = with_mixed_data();
    unmount(&ground);
    let kills = std::env::var("WEALD_KILLS").ok();
    let kills = kills.and_then(|count| count.parse().ok()).unwrap_or(8u64);
    let mut random = Rng::new(kills);
    for round in 0..kills {
        ground
            .0
            .mount(Path::new("store:home"), &ground.at("home"), &[]);
        let (path, tier) = [
            ("hot", "slow"),
            ("cold", "home"),
            ("hot", "home"),
            ("cold", "slow"),
        ][(round % 4) as usize];
        let pause = random.below(400) as f64 / 1000.0;
        ground.sh(&format!(
            "$WEALD volume set store:home {path} --tier {tier}
             $WEALD tier run -q store > /dev/null 2>&1 &
             sleep {pause}; cmp kept/hot/3 home/hot/3
             kill -KILL $(sed 's/process \\([0-9]*\\).*/\\1/' store/lock); wait; umount -l home"
        ));
        assert_whole(&ground);
    }
    ground.weald(&["volume", "set", "store:home", "cold", "--tier", "slow"]);
    ground.weald(&["volume", "set", "store:home", "hot", "--tier", "home"]);
    ground.weald(&RUN);
    assert_eq!(ground.weald(&["tier", "plan", "store"]), "");
    // The ends of files that were written together share blocks, which lie on the fastest tier.
    let on_slow = len(&ground, "slow");
    assert!(on_slow >= 1_500_000, "{on_slow}");
    assert_whole(&ground);
    ground.sh("umount slow");
}
