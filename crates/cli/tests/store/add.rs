//! `weald store add`, and `weald store gc` with blocks that are partly in use.

use crate::crashes::{WRITES, kill_soon, spawn, time};
use crate::ground::{Ground, injected, refused};
use weald_testkit::Rng;

/// Adds an image of the directory `name` with the same name.
fn add(ground: &Ground, name: &str) -> serde_json::Value {
    let args = ["store", "add", "--json", "-l", "2", "store", name];
    ground.json(&args).remove(0)
}

/// Checks that the image `name` of the store has the tree of the directory `dir`.
#[track_caller]
fn assert_tree(ground: &Ground, name: &str, dir: &str) {
    ground.sh(&format!(
        "$WEALD build -q -f {dir} anew.weald; $WEALD diff anew.weald store:{name}"
    ));
}

/// Would catch: an image whose tree differs from its source, blocks that are stored again, a valid
/// source or name that is refused.
#[test]
fn images_are_built_into_a_store() {
    let ground = Ground::with_images();
    ground.weald(&["store", "create", "-q", "store"]);
    let first = add(&ground, "v1");
    assert_eq!(first["like"], serde_json::Value::Null);
    let second = add(&ground, "v2");
    assert_eq!(second["like"], "v1");
    let new_len = second["new_len"].as_u64().expect("a number");
    assert!(new_len < 20_000, "{new_len} new bytes for 4,000");
    ground.sh(
        "tar c --xattrs -C v2 . | $WEALD store add -q store - --name streamed
        $WEALD store add -q store:placed v1
        tar c --xattrs -C v1 . > v1.tar
        $WEALD store add -q --from tar store v1.tar --like v2 --name filed
        find v1 -print0 | $WEALD store add -q --from listing store - --name listed",
    );
    for (name, dir) in [
        ("v1", "v1"),
        ("v2", "v2"),
        ("streamed", "v2"),
        ("placed", "v1"),
    ] {
        assert_tree(&ground, name, dir);
    }
    ground.assert_clean("store");
    ground.refused(
        &["store", "add", "store", "v1"],
        &["store:v1", "an image of this name exists"],
    );
    ground.refused(&["store", "add", "store", "."], &["--name NAME"]);
    ground.refused(
        &[
            "store", "add", "store", "v1", "--name", "x", "--like", "none",
        ],
        &["store:none", "no such image"],
    );
    ground.refused(
        &["store", "add", "store", "none"],
        &["none", "No such file"],
    );
    ground.refused(
        &["store", "add", "store", "v1", "--name", "../x"],
        &["name", "without '/'"],
    );
    ground.refused(&["store", "add", "v1", "v2"], &["v1", "is no store"]);
    assert_eq!(ground.json(&["store", "ls", "--json", "store"]).len(), 6);
    // An exported image equals an image that was built as a file.
    ground.weald(&["store", "export", "store:v2", "exported.weald"]);
    ground.sh("$WEALD check exported.weald; $WEALD diff exported.weald v2.weald");
}

/// Would catch: a killed build that leaves an incomplete image in the list, or a damaged store.
#[test]
fn a_killed_build_leaves_a_whole_store() {
    let ground = Ground::with_images();
    ground.sh("mkdir big; for i in $(seq 12); do head -c 500000 /dev/urandom > big/$i; done");
    ground.weald(&["store", "create", "-q", "--segment-size", "256K", "store"]);
    add(&ground, "v1");
    let args = ["store", "add", "-q", "-l", "2", "store", "big"];
    let mut span = time(&ground, &args);
    let mut rng = Rng::from_environment();
    let mut killed = 0;
    for _ in 0..12 {
        let listed = ground.json(&["store", "ls", "--json", "store"]);
        if listed.len() == 2 {
            assert_tree(&ground, "big", "big");
            ground.weald(&["store", "rm", "store:big"]);
        }
        killed += u64::from(kill_soon(spawn(&ground, &args), &mut rng, &mut span));
        ground.assert_clean("store");
        assert_tree(&ground, "v1", "v1");
    }
    println!("{killed} of 12 builds were killed");
    assert!(killed > 2, "{killed} builds were killed before they ended");
}

/// Would catch: a failed write of a build that is ignored.
#[test]
fn a_build_may_find_the_disk_full() {
    let ground = Ground::with_images();
    ground.weald(&["store", "create", "-q", "--segment-size", "128K", "store"]);
    add(&ground, "v1");
    ground.sh("cp -a store before");
    let args = ["store", "add", "-q", "-l", "1", "store", "v2"];
    let mut number = 0;
    loop {
        number += 1;
        ground.sh("rm -rf store; cp -a before store");
        let inject = format!("{WRITES}:error=ENOSPC:when={number}+");
        let output = injected(&ground, &inject, &args);
        if output.code == Some(0) {
            break;
        }
        refused(&output, &["No space left on device"]);
        ground.assert_clean("store");
        assert_eq!(ground.json(&["store", "ls", "--json", "store"]).len(), 1);
    }
    println!("{} writes found the disk full", number - 1);
    assert!(number > 4, "{number}");
    assert_tree(&ground, "v2", "v2");
}

/// Would catch: a collection that keeps blocks of which only a small part is in use, that changes
/// an image in use, or that loses data when it is killed.
#[test]
fn half_used_blocks_are_encoded_again() {
    let ground = Ground::new();
    ground.sh(
        "mkdir -p a; cd a; for i in $(seq 300); do head -c 16000 /dev/urandom > $i; done
        cd ..; cp -a a b; cd b; for i in $(seq 300); do test $((i % 8)) = 0 || rm $i; done",
    );
    ground.weald(&["store", "create", "-q", "store"]);
    ground.sh("for t in a b; do $WEALD store add -q --match-size 0 -l 3 store $t; done");
    ground.weald(&["store", "rm", "store:a"]);
    ground.sh("cp -a store before");
    ground.weald(&["store", "gc", "-q", "--reencode-below", "0", "store"]);
    let len = || ground.json(&["store", "info", "--json", "store"])[0]["segments_len"].clone();
    let before = len().as_u64().expect("a number");
    let done = ground.json(&["store", "gc", "--json", "store"]).remove(0);
    let after = len().as_u64().expect("a number");
    println!("{before} bytes before, {after} after: {done}");
    assert!(done["reencoded_block_count"].as_u64() > Some(0), "{done}");
    assert!(after < before / 2, "{before} bytes before, {after} after");
    ground.assert_clean("store");
    assert_tree(&ground, "b", "b");
    // Kills collections at random moments, and continues them.
    ground.sh("rm -rf store; cp -a before store");
    let mut rng = Rng::from_environment();
    let args = ["store", "gc", "-q", "store"];
    let mut span = time(&ground, &args);
    let mut killed = 0;
    for _ in 0..12 {
        ground.sh("rm -rf store; cp -a before store");
        killed += u64::from(kill_soon(spawn(&ground, &args), &mut rng, &mut span));
        ground.assert_clean("store");
        assert_tree(&ground, "b", "b");
        ground.weald(&args);
        ground.assert_clean("store");
        assert_tree(&ground, "b", "b");
    }
    println!("{killed} of 12 collections were killed");
    assert!(killed > 2, "{killed}");
}
