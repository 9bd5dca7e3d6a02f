//! Images of which the name moves to another one while they are mounted.

use crate::ground::Ground;
use crate::mounted::{MOUNTED, drop_pages};
use std::fs;
use std::path::Path;
use weald_testkit::compare::assert_same;

/// The store `small` with short segments, the image `latest`, which is the tree `v1`, and `v2`.
fn with_latest() -> Ground {
    let ground = Ground::with_images();
    ground.weald(&["store", "create", "-q", "--segment-size", "256K", "small"]);
    ground.weald(&[
        "store", "import", "-q", "small", "v1.weald", "--name", "latest",
    ]);
    ground.weald(&["store", "import", "-q", "small", "v2.weald"]);
    ground
}

/// The replaced images that the store still has.
fn replaced_count(ground: &Ground) -> u64 {
    let info = ground.json(&["store", "info", "--json", "small"]);
    let count = info[0]["replaced_count"].as_u64().expect("a number");
    let files = fs::read_dir(ground.at("small/images")).expect("list");
    let files = files.filter(|file| {
        let name = file.as_ref().expect("a file").file_name();
        name.to_string_lossy().ends_with(".replaced")
    });
    assert_eq!(files.count() as u64, count);
    count
}

/// Moves all blocks that can move, and drops what the kernel and servers have in memory.
fn collect(ground: &Ground) {
    ground.weald(&["store", "gc", "-q", "--copy-below", "100", "small"]);
    drop_pages();
}

/// Would catch: a replacement that is refused beside a mount, a mount that shows the new image or
/// loses blocks to the collector, and space that does not come back.
#[test]
fn a_mount_goes_on_while_its_name_moves() {
    let ground = with_latest();
    ground.sh(
        "cp -a v2 v3; echo three > v3/usr/version; head -c 900000 /dev/urandom > v3/own
         find v3 -depth -exec touch -h -d '2024-02-29 12:00:00 UTC' {} +",
    );
    let version = |name: &str| ground.weald(&["cat", &format!("small:{name}"), "usr/version"]);
    for args in [&[][..], &["--isolated"]] {
        let (old, new) = (ground.0.dir("old"), ground.0.dir("new"));
        ground.0.mount(Path::new("small:latest"), &old, args);
        let add = "store add -q small v3 --name latest --replace";
        ground.weald(&add.split(' ').collect::<Vec<_>>());
        assert_eq!(version("latest"), "three\n");
        assert_eq!(replaced_count(&ground), 1);
        ground.0.mount(Path::new("small:latest"), &new, args);
        // Both the replaced and the new one are mounted, and lose their names.
        ground.weald(&["store", "mv", "small:latest", "third"]);
        collect(&ground);
        assert_same(&ground.at("v1"), &old, &MOUNTED);
        assert_same(&ground.at("v3"), &new, &MOUNTED);
        ground.refused(&["store", "mv", "small:v2", "third"], &["exists"]);
        ground.weald(&["store", "mv", "--replace", "small:v2", "third"]);
        assert_eq!(replaced_count(&ground), 2);
        ground.weald(&["store", "rm", "small:third"]);
        collect(&ground);
        assert!(ground.json(&["store", "ls", "--json", "small"]).is_empty());
        ground.assert_clean("small");
        assert_same(&ground.at("v1"), &old, &MOUNTED);
        assert_same(&ground.at("v3"), &new, &MOUNTED);
        ground.0.umount(&old);
        collect(&ground);
        assert_eq!(replaced_count(&ground), 1);
        assert_same(&ground.at("v3"), &new, &MOUNTED);
        ground.0.umount(&new);
        collect(&ground);
        assert_eq!(replaced_count(&ground), 0);
        let info = ground.json(&["store", "info", "--json", "small"]);
        assert_eq!(info[0]["live_len"], 0, "{info:?}");
        ground.weald(&[
            "store", "import", "-q", "small", "v1.weald", "--name", "latest",
        ]);
        ground.weald(&["store", "import", "-q", "small", "v2.weald"]);
    }
    ground.assert_clean("small");
}

/// Would catch: a moment at which the name means nothing, or a mixture.
#[test]
fn an_opener_finds_the_old_image_or_the_new_one() {
    let ground = with_latest();
    let seen = ground.sh("readers=
        for reader in 1 2; do
            while [ ! -e over ]; do $WEALD cat small:latest usr/version; done > seen$reader &
            readers=\"$readers $!\"
        done
        for round in $(seq 6); do
            $WEALD store import -q --replace small v2.weald --name latest
            $WEALD store import -q --replace small v1.weald --name latest
            $WEALD store mv --replace small:v2 latest
            $WEALD store import -q small v2.weald
        done
        touch over
        for reader in $readers; do wait $reader; done
        cat seen1 seen2 | sort -u");
    assert!(
        ["two\nzzz\n", "two\n", "zzz\n"].contains(&seen.as_str()),
        "{seen}"
    );
    collect(&ground);
    assert_eq!(replaced_count(&ground), 0);
    ground.assert_clean("small");
}

/// Would catch: a server that takes over and shows the new image, or loses the mount; and a killed
/// server, whose image stays for ever.
#[test]
fn servers_change_while_an_image_is_replaced() {
    let ground = with_latest();
    let dir = ground.0.dir("mnt");
    ground.0.mount(Path::new("small:latest"), &dir, &[]);
    ground.weald(&["store", "mv", "--replace", "small:v2", "latest"]);
    ground.weald(&["serve", "--take-over", "--background"]);
    assert_eq!(replaced_count(&ground), 1);
    collect(&ground);
    assert_same(&ground.at("v1"), &dir, &MOUNTED);
    ground.sh("cat mnt/usr/version | grep -qx zzz
         kill -KILL $($WEALD mounts --json | python3 -I -c '
import json, sys
for line in sys.stdin:
    entry = json.loads(line)
    if entry[\"type\"] == \"server\": print(entry[\"pid\"])')");
    ground.0.umount(&dir);
    collect(&ground);
    assert_eq!(replaced_count(&ground), 0);
    ground.assert_clean("small");
}

/// Would catch: a server of a volume, which is the writer of its store, that keeps what nobody
/// reads any more, or takes away what is read.
#[test]
fn the_server_of_a_volume_releases_replaced_images() {
    let ground = with_latest();
    let (dir, home) = (ground.0.dir("mnt"), ground.0.dir("home"));
    ground
        .0
        .mount(Path::new("small:latest"), &dir, &["--isolated"]);
    ground.weald(&["store", "mv", "--replace", "small:v2", "latest"]);
    ground.weald(&["volume", "create", "-q", "small:home"]);
    ground.0.mount(Path::new("small:home"), &home, &[]);
    ground.sh("seq 10000 > home/file");
    collect(&ground);
    assert_same(&ground.at("v1"), &dir, &MOUNTED);
    assert_eq!(replaced_count(&ground), 1);
    ground.0.umount(&dir);
    collect(&ground);
    assert_eq!(replaced_count(&ground), 0);
    ground.sh("seq 10000 | cmp - home/file");
    ground.0.umount(&home);
    ground.assert_clean("small");
}

/// Would catch: a name that cannot move while a volume of the store is mounted, a volume that loses
/// what was written meanwhile, a mount that loses the replaced image, and space that stays.
#[test]
fn names_move_beside_a_mounted_volume() {
    let ground = with_latest();
    let (dir, home) = (ground.0.dir("mnt"), ground.0.dir("home"));
    ground.weald(&["volume", "create", "-q", "small:home"]);
    ground.0.mount(Path::new("small:home"), &home, &[]);
    ground.sh("seq 10000 > home/first");
    ground
        .0
        .mount(Path::new("small:latest"), &dir, &["--isolated"]);
    ground.weald(&["store", "mv", "small:v2", "second"]);
    ground.refused(
        &["store", "mv", "small:second", "latest"],
        &["latest: an image of this name exists"],
    );
    ground.sh("cp -a v2 v3; echo three > v3/usr/version");
    ground.weald(&[
        "store",
        "add",
        "-q",
        "small",
        "v3",
        "--name",
        "latest",
        "--replace",
    ]);
    let version = |name: &str| ground.weald(&["cat", &format!("small:{name}"), "usr/version"]);
    assert_eq!(version("latest"), "three\n");
    ground.weald(&[
        "store",
        "import",
        "-q",
        "--replace",
        "small",
        "v1.weald",
        "--name",
        "latest",
    ]);
    ground.weald(&["diff", "small:latest", "v1"]);
    // The one that was latest between has no readers.
    assert_eq!(replaced_count(&ground), 1);
    ground.sh("seq 20000 > home/second");
    ground.weald(&["store", "mv", "--replace", "small:second", "latest"]);
    ground.weald(&["diff", "small:latest", "v2"]);
    collect(&ground);
    assert_same(&ground.at("v1"), &dir, &MOUNTED);
    ground.0.umount(&dir);
    collect(&ground);
    assert_eq!(replaced_count(&ground), 0);
    ground.sh("seq 10000 | cmp - home/first; seq 20000 | cmp - home/second");
    assert_eq!(ground.sh("ls small/images"), "latest\n");
    ground.0.umount(&home);
    ground.assert_clean("small");
}

/// Would catch: an image that replaces its own base image, which goes when nobody reads it.
#[test]
fn an_image_does_not_replace_its_base() {
    let ground = with_latest();
    ground.weald(&["build", "-q", "--base", "v1.weald", "v2", "delta.weald"]);
    let home = ground.0.dir("home");
    for is_mounted in [false, true] {
        if is_mounted {
            ground.weald(&["volume", "create", "-q", "small:home"]);
            ground.0.mount(Path::new("small:home"), &home, &[]);
        }
        let import = "store import -q --replace small delta.weald --name latest";
        ground.refused(
            &import.split(' ').collect::<Vec<_>>(),
            &["latest: stays as it was; the new image is called latest~new"],
        );
        ground.weald(&["diff", "small:latest", "v1"]);
        ground.weald(&["diff", "small:latest~new", "v2"]);
        let mv = ["store", "mv", "--replace", "small:latest~new", "latest"];
        ground.refused(&mv, &["is the base image of latest~new"]);
        ground.weald(&["store", "rm", "small:latest~new"]);
    }
    ground.0.umount(&home);
    ground.assert_clean("small");
}
