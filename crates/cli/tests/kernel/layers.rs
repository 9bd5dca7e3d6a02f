//! The writable layer, and the view cache.

use crate::ground::{Ground, names};
use serde_json::Value;
use std::fs;
use std::process::Command;
use weald_testkit::mounts::finish;

/// Would catch: changes that are lost at unmount, a deleted file that comes back, a root whose
/// attributes are those of a new directory, and a work directory that stays behind.
#[test]
fn changes_are_kept_in_the_layer() {
    let ground = Ground::with_image();
    ground.mount(&["--upper", "changes"]);
    let mnt = ground.mnt();
    fs::write(mnt.join("new"), "new").expect("write");
    let long = fs::read_to_string(mnt.join("dir/long")).expect("read");
    fs::write(mnt.join("dir/long"), format!("{long}more\n")).expect("write");
    fs::remove_file(mnt.join("short")).expect("remove");
    fs::rename(mnt.join("dir"), mnt.join("renamed")).expect("rename of a directory");
    ground.umount();
    assert_eq!(
        names(&ground.at("changes")),
        ["dir", "new", "renamed", "short"]
    );
    assert!(
        !ground.at(".changes.weald-work").exists(),
        "the work directory stayed"
    );
    ground.mount(&["--upper", "changes"]);
    let expected = ["link", "new", "renamed", "secret", "symlink"];
    assert_eq!(names(&mnt), expected);
    let found = fs::read_to_string(mnt.join("renamed/long")).expect("read");
    assert_eq!(found, format!("{}more\n", "a\n".repeat(4000)));
    let mode = fs::metadata(&mnt).expect("stat").permissions();
    assert_eq!(
        mode,
        fs::metadata(ground.at("a")).expect("stat").permissions()
    );
    ground.umount();
    // Without the layer the tree is as it was.
    ground.mount(&[]);
    assert_eq!(names(&mnt), ["dir", "link", "secret", "short", "symlink"]);
    ground.umount();
}

/// Would catch: two mounts that change one layer, and paths that the options of overlayfs cannot
/// hold as they are.
#[test]
fn a_layer_has_one_mount_whatever_its_path() {
    let ground = Ground::with_image();
    ground.mount(&["--upper", "changes"]);
    ground.dir("other");
    let first = [
        "mount",
        "--kernel",
        "--view-cache",
        "cache",
        "--upper",
        "changes",
    ];
    let said = ground.weald(&[&first[..], &["a.weald", "other"]].concat());
    assert!(
        said.expect(2)
            .stderr
            .contains("is the writable layer of the mount on")
    );
    ground.umount();
    let odd = "with, a : and a \\";
    let long = format!("{}/{}", "d".repeat(200), "e".repeat(200));
    fs::create_dir_all(ground.at(&long)).expect("mkdir");
    for upper in [odd.to_owned(), format!("{long}/changes")] {
        for cache in ["cache", "ca, :che", &format!("{long}/cache")] {
            let words = [
                "mount",
                "--kernel",
                "--upper",
                &upper,
                "--view-cache",
                cache,
            ];
            ground
                .weald(&[&words[..], &["a.weald", "mnt"]].concat())
                .expect(0);
            fs::write(ground.mnt().join("new"), cache).expect("write");
            assert_eq!(
                fs::read(ground.mnt().join("secret")).expect("read").len(),
                90
            );
            ground.umount();
            let kept = fs::read_to_string(ground.at(&upper).join("new")).expect("read");
            assert_eq!(kept, cache);
        }
    }
}

/// Would catch: objects of a mounted view that are removed, also if the mount is in another mount
/// namespace, objects that stay although no view has them, and a limit that is not kept.
#[test]
fn gc_removes_what_no_mount_has() {
    let ground = Ground::with_image();
    for name in ["b", "c"] {
        ground.build(name);
        ground.dir(&format!("mnt-{name}"));
    }
    let gc = |words: &[&str]| -> Vec<u64> {
        let words = [&["store", "gc", "--views", "--json", "cache"], words].concat();
        let said = ground.weald(&words).expect(0).text();
        let json: Value = serde_json::from_str(&said).expect("JSON");
        let names = [
            "removed_view_count",
            "kept_view_count",
            "mounted_view_count",
        ];
        names
            .map(|name| json[name].as_u64().expect("a number"))
            .to_vec()
    };
    let mount = ["mount", "--kernel", "--view-cache", "cache"];
    ground.mount(&[]);
    ground
        .weald(&[&mount[..], &["b.weald", "mnt-b"]].concat())
        .expect(0);
    ground.weald(&["umount", "mnt-b"]).expect(0);
    // A mount that this process does not see.
    let script = "\"$0\" mount --kernel --view-cache cache c.weald mnt-c && echo && read end && \
                  cat mnt-c/dir/long";
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-c", script])
        .arg(weald_testkit::command::weald_path());
    command
        .current_dir(ground.at(""))
        .stdin(std::process::Stdio::piped());
    let mut hidden = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("unshare");
    let mut line = [0; 1];
    std::io::Read::read_exact(hidden.stdout.as_mut().expect("piped"), &mut line).expect("a line");
    assert_eq!(gc(&[]), [1, 2, 2]);
    assert_eq!(gc(&[]), [0, 2, 2]);
    let mut end = hidden.stdin.take().expect("piped");
    std::io::Write::write_all(&mut end, b"\n").expect("write");
    let output = hidden.wait_with_output().expect("end");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "c\n".repeat(4000));
    let text = fs::read_to_string(ground.mnt().join("dir/long")).expect("read");
    assert_eq!(text, "a\n".repeat(4000));
    assert_eq!(gc(&["--view-limit", "1G"]), [0, 2, 1]);
    assert_eq!(gc(&["--view-limit", "1K"]), [1, 1, 1]);
    ground.umount();
    assert_eq!(gc(&[]), [1, 0, 0]);
    let objects = walk(&ground.at("cache/objects"));
    assert_eq!((objects, walk(&ground.at("cache/images"))), (0, 0));
}

/// Number of files below a directory.
fn walk(dir: &std::path::Path) -> usize {
    let output = finish(Command::new("find").arg(dir).args(["-type", "f"])).expect(0);
    output.text().lines().count()
}

/// Would catch: a view of an image in a store that lies elsewhere, a store that is damaged by it,
/// and objects of equal contents that are made for each image.
#[test]
fn images_of_a_store_share_the_objects_in_it() {
    let ground = Ground::with_image();
    fs::create_dir(ground.at("a/more")).expect("mkdir");
    fs::write(ground.at("a/more/file"), "more\n".repeat(100)).expect("write");
    ground.weald(&["store", "create", "store"]).expect(0);
    ground
        .weald(&["store", "import", "store", "a.weald"])
        .expect(0);
    ground
        .weald(&["store", "add", "store", "a", "--name", "b", "--quiet"])
        .expect(0);
    ground
        .weald(&["mount", "--kernel", "store:a", "mnt"])
        .expect(0);
    let count = walk(&ground.at("store/views/objects"));
    let listed = ground.weald(&["mounts", "--json"]).expect(0).text();
    let at = |name: &str| ground.at(name).display().to_string();
    // Other tests have mounts, too.
    let mut lines = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let json = lines
        .find(|json| json["dir"] == at("mnt"))
        .expect("the mount");
    assert_eq!(json["type"], "kernel_mount");
    assert_eq!(json["image"], at("store:a"));
    assert_eq!(json["objects"], at("store/views/objects"));
    assert_eq!(json["dir"], at("mnt"));
    let table = ground.weald(&["mounts"]).expect(0).text();
    assert!(table.contains(&at("store:a")), "{table}");
    ground.dir("mnt-b");
    ground
        .weald(&["mount", "--kernel", "store:b", "mnt-b"])
        .expect(0);
    assert_eq!(walk(&ground.at("store/views/objects")), count + 1);
    ground.weald(&["umount", "mnt-b"]).expect(0);
    ground.umount();
    ground
        .weald(&["store", "check", "--data", "store"])
        .expect(0);
    ground.weald(&["store", "gc", "store"]).expect(0);
    ground.weald(&["store", "gc", "--views", "store"]).expect(0);
    assert_eq!(walk(&ground.at("store/views/objects")), 0);
}
