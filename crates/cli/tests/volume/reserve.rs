//! Removals on a disk that others have filled to the last block.

use super::*;

/// A store with the volumes [`VOLUME`] and `store:w`, and nothing else, on a small disk.
fn small_disk() -> Ground {
    let ground = Ground(mounts::Ground::new());
    ground.sh(
        "truncate -s 64M disk; mkfs.ext4 -q -F -m 0 disk; mkdir small
         mount -o loop disk small
         $WEALD store create -q --segment-size 1M small/store; ln -s small/store store",
    );
    for volume in [VOLUME, "store:w"] {
        ground.weald(&["volume", "create", "-q", "--compress", "none", volume]);
    }
    assert_reserve(&ground, true);
    ground
}

#[track_caller]
fn assert_reserve(ground: &Ground, is_there: bool) {
    assert_eq!(ground.at("small/store/reserve").exists(), is_there);
}

/// Fills the disk beside the store, as other programs do.
fn fill(ground: &Ground) {
    let full = ground.run("head -c 200M /dev/zero > small/others");
    assert!(full.stderr.contains("No space left"), "{}", full.stderr);
    ground.run("while printf %4096s x >> small/rest; do :; done");
    ground.sh("sync -f small; test $(stat -f -c %a small) = 0");
}

fn make_room(ground: &Ground) {
    ground.sh("rm -f small/others small/rest");
}

/// Writes 400 files.
const FILES: &str = "for i in $(seq 400); do head -c 20000 /dev/urandom > mnt/$i; done; sync mnt";

/// Would catch: a disk that is full of other data, on which nothing can be removed from a store
/// that has only volumes: its commits take space before they give any back.
#[test]
fn volumes_are_emptied_on_a_disk_that_others_filled() {
    let ground = small_disk();
    ground.mount(&[]);
    ground.sh(FILES);
    // In a mount, and by its server.
    fill(&ground);
    ground.sh("rm mnt/1*; sync mnt; rm mnt/2*; sync mnt");
    // There is no room for copies, which is told.
    let said = ground.0.weald(["store", "gc", "-q", "store"]);
    let is_told = said.stderr.contains("what needs none is done");
    assert!(said.code == Some(0) || is_told, "{}", said.stderr);
    ground.sh("test $(ls mnt | wc -l) = 178");
    ground.umount();
    make_room(&ground);
    ground.assert_clean();
    // A mount renews the reserve. The disk is full when it begins.
    ground.mount(&[]);
    ground.sh("sync mnt");
    assert_reserve(&ground, true);
    ground.umount();
    fill(&ground);
    ground.mount(&[]);
    ground.sh("rm mnt/3*; sync mnt; test $(ls mnt | wc -l) = 67");
    ground.umount();
    make_room(&ground);
    ground.assert_clean();
    // Nothing is mounted.
    ground.mount(&[]);
    ground.sh("rm mnt/[4-6]*; sync mnt");
    ground.umount();
    fill(&ground);
    let said = ground.0.weald(["store", "gc", "-q", "store"]).expect(0);
    assert!(
        said.stderr.contains("what needs none is done"),
        "{}",
        said.stderr
    );
    make_room(&ground);
    ground.weald(&["store", "gc", "-q", "store"]);
    ground.assert_clean();
    ground.weald(&["volume", "create", "-q", "store:x"]);
    assert_reserve(&ground, true);
    fill(&ground);
    ground.weald(&["volume", "rm", VOLUME]);
    ground.weald(&["volume", "rm", "store:w"]);
    make_room(&ground);
    assert_eq!(ground.weald(&["volume", "ls", "store"]).lines().count(), 1);
    ground.weald(&["store", "check", "--data", "store"]);
    ground.sh("umount small");
}
