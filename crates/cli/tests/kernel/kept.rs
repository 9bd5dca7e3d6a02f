//! Images whose kept fs-verity digests are wrong, on real mounts: an image of somebody else may
//! promise anything.

use crate::contents::OPTIONS;
use crate::ground::{Ground, names};
use crate::rootless::{as_nobody, said_or_too_old};
use crate::support::Parts;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use weald_testkit::compare;

const OTHER_DIGEST: &str = "another fs-verity digest than the image keeps";

/// Contents of the small tree that become objects, and a file of each.
const OBJECTS: [usize; 2] = [0, 2];

/// The small tree with a kept digest of each content, which every user may enter. (A mount does not
/// compute the tree digest, which says otherwise.)
fn parts() -> Parts {
    let mut parts = Parts::verity();
    parts.attributes[0].permissions = 0o755;
    parts
}

fn wrong(content: usize) -> Vec<u8> {
    let mut parts = parts();
    parts.fsverity[content][31] ^= 1;
    parts.bytes()
}

/// Would catch: a mount that shows bytes under the digest that the image promises, whatever they
/// are, and a cache that a refused mount leaves unfit for the right image.
#[test]
fn the_kernel_mounts_no_image_with_a_wrong_digest() {
    let ground = Ground::new();
    for content in OBJECTS {
        fs::write(ground.image("a"), wrong(content)).expect("write");
        for _ in 0..2 {
            let said = ground.try_mount(&[]).expect(2);
            assert!(said.stderr.contains(OTHER_DIGEST), "{}", said.stderr);
            assert!(!ground.is_mounted());
        }
        // Through FUSE the same image is mounted: its bytes are verified by their own digests.
        let fuse = ground.dir(&format!("fuse-{content}"));
        ground
            .of_testkit()
            .mount(&ground.image("a"), &fuse, &["--isolated"]);
        fs::write(ground.at("right.weald"), parts().bytes()).expect("write");
        fs::rename(ground.at("right.weald"), ground.image("a")).expect("rename");
        ground.mount(&[]);
        assert_eq!(fs::read(ground.mnt().join("a")).expect("read").len(), 100);
        compare::assert_same(&fuse, &ground.mnt(), &OPTIONS);
        ground.of_testkit().umount(&fuse);
        ground.umount();
        fs::remove_dir_all(ground.at("cache")).expect("an empty cache");
    }
}

/// Would catch: a promised digest that is that of another file of the cache, whose bytes the mount
/// then shows. The cache has the view of this tree, made from an image with right digests.
#[test]
fn the_digest_of_another_object_shows_no_other_bytes() {
    let ground = Ground::new();
    fs::write(ground.image("a"), parts().bytes()).expect("write");
    ground.mount(&[]);
    let right = fs::read(ground.mnt().join("a")).expect("read");
    ground.umount();
    let mut swapped = parts();
    swapped.fsverity[0] = swapped.fsverity[2];
    fs::write(ground.image("a"), swapped.bytes()).expect("write");
    // It claims the tree digest of the view that is there: that is no reason to show it.
    let said = ground.try_mount(&[]).expect(2);
    assert!(said.stderr.contains(OTHER_DIGEST), "{}", said.stderr);
    assert!(!ground.is_mounted());
    fs::write(ground.image("a"), parts().bytes()).expect("write");
    ground.mount(&[]);
    assert_eq!(fs::read(ground.mnt().join("a")).expect("read"), right);
    ground.umount();
}

/// Would catch: the same on the mount of a user.
#[test]
fn an_overlay_mounts_no_image_with_a_wrong_digest() {
    let ground = Ground::new();
    for (name, bytes) in [("right", parts().bytes()), ("wrong", wrong(2))] {
        fs::write(ground.image(name), bytes).expect("write");
        let mode = fs::Permissions::from_mode(0o644);
        fs::set_permissions(ground.image(name), mode).expect("chmod");
    }
    let script = r#"
mkdir m
for time in 1 2; do
    ! "$0" mount --overlay ../wrong.weald m 2>said || exit 1
    grep -c 'another fs-verity digest than the image keeps' said
done
rm said; ls -A m
"$0" mount --overlay ../right.weald m
wc -c <m/a; cmp m/h1 m/h2; cksum <m/h1 >sum
"$0" umount m
"$0" cat ../right.weald h1 | cksum | cmp - sum; rm sum
"#;
    let said = as_nobody(&ground, script);
    if said_or_too_old(said, "1\n1\n100\n") {
        assert_eq!(names(&ground.at("home")), [".cache", "m"]);
    }
}
