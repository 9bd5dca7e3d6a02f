//! Tables that are older than the segments, as after a backup of `meta` alone was put back.

use crate::ground::{Ground, refused};

/// Commands on the store `st` with the volume `st:v`, in which older tables must be noticed.
const COMMANDS: &[&[&str]] = &[
    &["store", "check", "st"],
    &["store", "gc", "st"],
    &["store", "rm", "st:i"],
    &["store", "import", "st", "v1.weald"],
    &["store", "add", "-q", "st:new", "v1"],
    &["volume", "check", "st:v"],
    &["volume", "create", "st:w"],
    &["mount", "st:v", "m"],
    &["mount", "-o", "ro", "st:v", "m"],
];

/// A store with the image `i` and the volume `v`: `older` and `newer` are its tables before and
/// after the file `b` came into the volume.
fn with_two_tables() -> Ground {
    let ground = Ground::with_images();
    ground.sh(
        "$WEALD store create -q --segment-size 8M st; $WEALD volume create -q st:v
         $WEALD store import -q st v2.weald --name i
         mkdir m; head -c 300000 /dev/urandom > a; head -c 3000000 /dev/urandom > b
         $WEALD mount st:v m; cp a m/a; $WEALD umount m; cp st/meta older
         $WEALD mount st:v m; cp b m/b; $WEALD umount m; cp st/meta newer",
    );
    ground
}

/// Would catch: a writer that takes what older tables do not know for what a crash left, and
/// truncates or overwrites it; a command that does not say what is wrong.
#[test]
fn older_tables_are_refused_and_no_segment_changes() {
    for before in ["true", "rm st/mark"] {
        let ground = with_two_tables();
        ground.sh(&format!("cp older st/meta; {before}"));
        let segments = ground.contents("st/segments");
        for args in COMMANDS {
            let said = ground.0.weald(*args);
            refused(&said, &["st/meta: is older than the rest of the store"]);
            refused(&said, &["put the newer file back", "weald store salvage "]);
            assert!(ground.contents("st/segments") == segments, "{args:?}");
        }
        // Images need no tables.
        ground.weald(&["check", "st:i"]);
        ground.sh("cp newer st/meta");
        ground.assert_clean("st");
        ground.sh("$WEALD mount st:v m; cmp a m/a; cmp b m/b; echo more > m/c; $WEALD umount m");
        ground.assert_clean("st");
    }
}

/// Would catch: a store that stays closed after a salvage of older tables.
#[test]
fn a_salvage_of_older_tables_opens_the_store() {
    let ground = with_two_tables();
    ground.sh("cp older st/meta");
    // The volume has what the older tables know.
    ground.0.weald(["store", "salvage", "st"]);
    ground.sh("$WEALD mount st:v m; cmp a m/a; cp b m/b; $WEALD umount m");
    ground.sh("$WEALD store gc -q st; $WEALD mount st:v m; cmp a m/a; $WEALD umount m");
    ground.sh("$WEALD store export st:i got.weald; cmp got.weald v2.weald");
}

/// Would catch: records of a killed writer that are taken for those of newer tables, and a crash
/// after which the store does not open.
#[test]
fn a_killed_writer_leaves_a_store_that_opens() {
    let ground = Ground::new();
    ground.sh("$WEALD store create -q st; mkdir m; $WEALD volume create -q st:v");
    for round in 0..6 {
        ground.sh(&format!(
            "$WEALD mount -f -o commit-interval=0.1 st:v m 2>/dev/null & server=$!
             while ! mountpoint -q m; do sleep 0.02; done
             size() {{ du -sb st/segments | cut -f 1; }}
             before=$(size)
             (while head -c 3000000 /dev/urandom > m/f{round} && sync m/f{round}; do :; done
             ) 2>/dev/null & writer=$!
             while [ $(size) -lt $((before + 5000000)) ]; do sleep 0.02; done
             kill -9 $server; wait $writer $server || true
             umount -l m 2>/dev/null || true"
        ));
        ground.assert_clean("st");
    }
    let list = ground.sh("$WEALD mount st:v m; ls m; $WEALD umount m");
    assert!(list.contains("f5"), "{list}");
}
