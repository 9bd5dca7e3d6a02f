//! Mounts that follow the name of an image.

use crate::ground::Ground;
use crate::mounted::{MOUNTED, drop_pages};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use weald_testkit::compare::assert_same;
use weald_testkit::mounts::eventually;

/// The store `small`, in which `latest` is the tree `v1`, mounted on `mnt`.
fn with_followed() -> Ground {
    let ground = Ground::with_images();
    ground.weald(&["store", "create", "-q", "--segment-size", "256K", "small"]);
    ground.weald(&[
        "store", "import", "-q", "small", "v1.weald", "--name", "latest",
    ]);
    let dir = ground.0.dir("mnt");
    ground
        .0
        .mount(Path::new("small:latest"), &dir, &["--follow"]);
    ground
}

fn replace(ground: &Ground, image: &str) {
    ground.weald(&[
        "store",
        "import",
        "-q",
        "--replace",
        "small",
        image,
        "--name",
        "latest",
    ]);
}

fn mounted_digest(ground: &Ground) -> String {
    let mounts = ground.json(&["mounts", "--json"]);
    let shown = mounts.iter().find(|object| object["type"] == "mount");
    shown.expect("a mount")["image_digest"].to_string()
}

/// Would catch: an opener that gets the old image, an open file that changes, numbers that clash, a
/// kernel that shows what it has cached, and an image that stays although nobody reads it.
#[test]
fn openers_get_the_new_image_and_open_files_keep_theirs() {
    let ground = with_followed();
    let dir = ground.at("mnt");
    assert_same(&ground.at("v1"), &dir, &MOUNTED);
    let before = mounted_digest(&ground);
    let mut open = File::open(dir.join("noise")).expect("open");
    let old_ino = fs::metadata(dir.join("usr/version")).expect("stat").ino();
    assert!(!dir.join("usr/zz-new").exists() && !dir.join("gone").exists());
    ground.sh("cp -a v2 v3; mv v3/noise v3/gone; $WEALD build -q v3 v3.weald");
    replace(&ground, "v3.weald");
    assert_same(&ground.at("v3"), &dir, &MOUNTED);
    assert!(dir.join("gone").exists() && !dir.join("noise").exists());
    assert_ne!(mounted_digest(&ground), before);
    let new_ino = fs::metadata(dir.join("usr/version")).expect("stat").ino();
    assert_ne!(new_ino, old_ino);
    ground.weald(&["store", "gc", "-q", "--copy-below", "100", "small"]);
    drop_pages();
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).expect("an open file");
    assert!(bytes == fs::read(ground.at("v1/noise")).expect("read"));
    drop(open);
    // The mount lives, and nobody reads the old image.
    eventually("the end of the old image", || {
        ground.weald(&["store", "gc", "-q", "small"]);
        ground.json(&["store", "info", "--json", "small"])[0]["replaced_count"] == 0
    });
    // Without a name it stays.
    ground.weald(&["store", "mv", "small:latest", "other"]);
    assert_same(&ground.at("v3"), &dir, &MOUNTED);
    ground.weald(&[
        "store", "import", "-q", "small", "v2.weald", "--name", "latest",
    ]);
    assert_same(&ground.at("v2"), &dir, &MOUNTED);
    eventually("the end of the moved image", || {
        ground.0.weald(["store", "rm", "small:other"]).code == Some(0)
    });
    ground.assert_clean("small");
    ground.0.umount(&dir);
    ground.assert_clean("small");
}

/// Reads the files of one directory of the mount again and again, and prints what it saw of each.
const READER: &str = "
import os, sys
seen = set()
while not os.path.exists('over'):
    # One directory, of one version, with all that is in it.
    at = os.open('mnt/part', os.O_RDONLY | os.O_DIRECTORY)
    found = set()
    for name in os.listdir(at):
        with open(os.open(name, os.O_RDONLY, dir_fd=at), 'rb') as file:
            found |= set(file.read())
    os.close(at)
    assert len(found) == 1, found
    # One file in the root, in pieces.
    file = os.open('mnt/large', os.O_RDONLY)
    found = set()
    for offset in range(0, 600000, 50000):
        found |= set(os.pread(file, 50000, offset))
    os.close(file)
    assert len(found) == 1, found
    # A listing of the root.
    marks = {name for name in os.listdir('mnt') if name.startswith('mark')}
    assert len(marks) == 200, len(marks)
    assert len({name.split('-')[1] for name in marks}) == 1, marks
    seen |= found
print(len(seen))
";

/// Would catch: a mixture of two images in one directory, one file or one listing.
#[test]
fn each_opener_sees_one_whole_version() {
    let ground = Ground::new();
    ground.sh("for version in a b c d e f g h i j; do
            mkdir -p $version/part
            for file in $(seq 30); do
                head -c 5000 /dev/zero | tr '\\0' $version > $version/part/$file
            done
            head -c 600000 /dev/zero | tr '\\0' $version > $version/large
            for mark in $(seq 200); do : > $version/mark$mark-$version-$(seq -s. 40); done
            $WEALD build -q --level 1 --block-size 64K $version $version.weald
         done
         $WEALD store create -q --segment-size 256K small
         $WEALD store import -q small a.weald --name latest");
    let dir = ground.0.dir("mnt");
    ground
        .0
        .mount(Path::new("small:latest"), &dir, &["-o", "follow"]);
    fs::write(ground.at("reader.py"), READER).expect("write");
    let seen = ground.sh("readers=
        for reader in 1 2 3; do
            python3 -P reader.py > seen$reader & readers=\"$readers $!\"
        done
        for version in b c d e f g h i j a; do
            $WEALD store import -q --replace small $version.weald --name latest
            test $(head -c 1 mnt/large) = $version
            $WEALD store gc -q --copy-below 100 small
            echo 3 > /proc/sys/vm/drop_caches
        done
        touch over
        for reader in $readers; do wait $reader; done; cat seen*");
    assert!(seen.lines().any(|count| count != "1"), "{seen}");
    ground.assert_clean("small");
    eventually("the end of the old images", || {
        ground.weald(&["store", "gc", "-q", "small"]);
        ground.json(&["store", "info", "--json", "small"])[0]["replaced_count"] == 0
    });
    ground.0.umount(&dir);
}

/// Would catch: options that mean nothing for a name that moves, a directory of the image that is
/// not followed, a broken image that ends the mount.
#[test]
fn a_part_is_followed_and_what_makes_no_sense_is_refused() {
    let ground = with_followed();
    ground.sh("mkdir part");
    ground.0.mount(
        Path::new("small:latest"),
        &ground.at("part"),
        &["-o", "follow,subdir=usr"],
    );
    assert_eq!(ground.sh("cat part/version"), "zzz\n");
    replace(&ground, "v2.weald");
    assert_eq!(
        ground.sh("cat part/version; ls part"),
        "two\nversion\nzz-new\n"
    );
    // An image without that directory.
    ground.sh("mkdir -p v4/other; echo four > v4/other/file; $WEALD build -q v4 v4.weald");
    replace(&ground, "v4.weald");
    assert_eq!(
        ground.sh("cat part/version; cat mnt/other/file"),
        "two\nfour\n"
    );
    replace(&ground, "v1.weald");
    assert_eq!(ground.sh("cat part/version"), "zzz\n");
    ground.sh("mkdir no");
    let digest = format!("follow,digest={}", "0".repeat(64));
    for (args, part) in [
        (
            ["mount", "--follow", "v1.weald", "no"].as_slice(),
            "STORE:NAME",
        ),
        (&["mount", "-o", &digest, "small:latest", "no"], "digest="),
        (
            &["mount", "-o", "follow,generation=1", "small:latest", "no"],
            "generation=",
        ),
    ] {
        ground.refused(args, &["follow", part]);
    }
    ground.refused(
        &["serve", "--take-over", "--background"],
        &["follows a name"],
    );
    for dir in ["part", "mnt"] {
        ground.0.umount(&ground.at(dir));
    }
    ground.assert_clean("small");
}
