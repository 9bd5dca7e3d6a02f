//! Mounts that cannot be, and what the message says.

use crate::ground::{Ground, names};
use rustix::process::Uid;
use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;
use weald_testkit::mounts::finish;

/// The metadata image in the cache.
fn metadata(ground: &Ground) -> PathBuf {
    let images = ground.at("cache/images");
    let name = names(&images)
        .into_iter()
        .find(|name| name.ends_with(".cfs"));
    images.join(name.expect("a metadata image"))
}

/// The fs-verity digest in the record of the view.
fn digest(ground: &Ground) -> String {
    let record = fs::read_to_string(metadata(ground).with_extension("view")).expect("record");
    let line = record
        .lines()
        .find_map(|line| line.strip_prefix("image-digest "));
    line.expect("a digest").to_owned()
}

#[track_caller]
fn expect(ground: &Ground, words: &[&str], text: &str) {
    let said = ground.try_mount(words).expect(2);
    assert!(said.stderr.contains(text), "{words:?}: {}", said.stderr);
    assert!(!ground.is_mounted());
}

/// Would catch: a metadata image with another digest that is mounted although `--digest` demands
/// one.
#[test]
fn a_damaged_metadata_image_is_not_mounted_where_a_digest_is_demanded() {
    let ground = Ground::with_image();
    ground.mount(&[]);
    ground.umount();
    let digest = digest(&ground);
    ground.mount(&["--digest", &digest]);
    ground.umount();
    ground.mount(&["-o", &format!("fsverity={digest}")]);
    ground.umount();
    let other = "ab".repeat(32);
    expect(&ground, &["--digest", &other], "and --digest demands abab");
    let image = metadata(&ground);
    let mut bytes = fs::read(&image).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&image, bytes).expect("write");
    expect(&ground, &["--digest", &digest], "or the file is damaged");
    ground.weald(&["store", "gc", "--views", "cache"]).expect(0);
    ground.mount(&["--digest", &digest]);
    ground.umount();
}

/// Would catch: half of a metadata image that is taken for a whole one.
#[test]
fn a_view_that_is_not_complete_is_made_again() {
    let ground = Ground::with_image();
    ground.mount(&[]);
    ground.umount();
    let image = metadata(&ground);
    let whole = fs::read(&image).expect("read");
    for damage in ["short image", "no image", "short record", "no record"] {
        let record = image.with_extension("view");
        match damage {
            "short image" => fs::write(&image, &whole[..4096]).expect("write"),
            "no image" => fs::remove_file(&image).expect("remove"),
            "short record" => fs::write(&record, "weald view 1\nimage-len 7\n").expect("write"),
            _ => fs::remove_file(&record).expect("remove"),
        }
        ground.mount(&[]);
        let text = fs::read_to_string(ground.mnt().join("dir/long")).expect("read");
        assert_eq!(text, "a\n".repeat(4000), "{damage}");
        ground.umount();
        assert_eq!(fs::read(&image).expect("read"), whole, "{damage}");
    }
}

/// Would catch: a user without rights who gets an errno, and options without effect that are taken.
#[test]
fn options_and_rights_are_checked_first() {
    let ground = Ground::with_image();
    expect(
        &ground,
        &["-o", "uid=7"],
        "a mount by the kernel has no such option",
    );
    expect(
        &ground,
        &["-o", "subdir=dir"],
        "a mount by the kernel has no such option",
    );
    let said = ground
        .weald(&["mount", "-o", "upperdir=u", "a.weald", "mnt"])
        .expect(2);
    assert!(
        said.stderr.contains("give --kernel or -o kernel, too"),
        "{}",
        said.stderr
    );
    let said = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let uid = Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(uid, uid, uid).expect("another user");
            ground.try_mount(&[])
        });
        thread.join().expect("the other user")
    });
    let text = "--kernel needs root (CAP_SYS_ADMIN): leave it out to mount through FUSE";
    assert!(said.stderr.contains(text), "{}", said.stderr);
    assert!(!ground.at("cache").exists(), "a directory was made");
    // fs-verity is not in every kernel: either it protects the objects, or the message says why
    // not.
    let said = ground.try_mount(&["--verity", "require"]);
    match said.code {
        Some(0) => ground.umount(),
        _ => assert!(said.stderr.contains("has no fs-verity"), "{}", said.stderr),
    }
}

/// Would catch: a mount of a user that takes options for fs-verity and does not verify.
#[test]
fn a_mount_of_a_user_refuses_to_promise_verification() {
    let ground = Ground::with_image();
    let digest = "ab".repeat(32);
    let fsverity = format!("fsverity={digest}");
    let verify = "verity require: a mount of a user cannot verify data by fs-verity; use --kernel";
    let name = "--digest and -o fsverity=HEX are for mounts by the kernel: use -o digest=HEX";
    for (words, text) in [
        (["--verity", "require"], verify),
        (["-o", "verity=require"], verify),
        (["--digest", &digest], name),
        (["-o", &fsverity], name),
    ] {
        let [flag, value] = words;
        let said = ground
            .weald(&["mount", "--overlay", flag, value, "a.weald", "mnt"])
            .expect(2);
        assert!(said.stderr.contains(text), "{words:?}: {}", said.stderr);
        assert!(!ground.is_mounted());
    }
}

/// Would catch: a cache that another user could change, and files of others that gc would remove.
#[test]
fn the_cache_is_a_directory_of_its_own() {
    let ground = Ground::with_image();
    let cache = ground.dir("cache");
    fs::write(cache.join("objects"), "of somebody").expect("write");
    expect(&ground, &[], "has files and is no view cache");
    let said = ground.weald(&["store", "gc", "--views", "cache"]).expect(2);
    assert!(
        said.stderr.contains("neither a store nor the view cache"),
        "{}",
        said.stderr
    );
    fs::remove_file(cache.join("objects")).expect("remove");
    chown(&cache, Some(1234), None).expect("chown");
    expect(&ground, &[], "this directory belongs to user 1234");
    chown(&cache, Some(0), None).expect("chown");
    ground.mount(&[]);
    ground.umount();
    fs::write(cache.join("weald-views"), "version 3\n").expect("write");
    expect(
        &ground,
        &[],
        "a later version of weald made this view cache",
    );
}

/// Would catch: an errno of overlayfs instead of what is missing.
#[test]
fn a_layer_needs_xattrs_and_its_work_directory_beside_it() {
    let ground = Ground::with_image();
    let ram = ground.dir("ram");
    finish(
        Command::new("mount")
            .args(["-t", "ramfs", "ramfs"])
            .arg(&ram),
    )
    .expect(0);
    expect(
        &ground,
        &["--upper", "ram/changes"],
        "its file system has no xattrs",
    );
    expect(
        &ground,
        &["--upper", "changes", "--work", "ram/work"],
        "is not on the file system of",
    );
    // Objects may lie on a file system without xattrs.
    let words = [
        "mount",
        "--kernel",
        "--view-cache",
        "ram/cache",
        "a.weald",
        "mnt",
    ];
    ground.weald(&words).expect(0);
    assert_eq!(
        fs::read(ground.mnt().join("secret")).expect("read").len(),
        90
    );
    ground.umount();
    finish(Command::new("umount").arg(&ram)).expect(0);
}
