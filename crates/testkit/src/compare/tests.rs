//! Every difference is found, and nothing else.

use super::*;
use crate::torture::{Options, make};
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use weald_format::Timestamp;
use weald_sys::{NewTimes, NodeKind};

struct Trees {
    _temp: tempfile::TempDir,
    dirs: [PathBuf; 2],
}

/// Makes two equal trees with a bit of everything.
fn trees() -> Trees {
    let temp = tempfile::tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| temp.path().join(name));
    for dir in &dirs {
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        std::fs::write(dir.join("file"), vec![7; 100_000]).unwrap();
        std::fs::write(dir.join("copy"), b"x").unwrap();
        std::fs::hard_link(dir.join("file"), dir.join("sub/link")).unwrap();
        symlink("target", dir.join("symlink")).unwrap();
        let sparse = std::fs::File::create(dir.join("sparse")).unwrap();
        sparse.set_len(10 << 30).unwrap();
        sparse.write_all_at(b"data", 5 << 30).unwrap();
        let fd = weald_sys::open_dir(dir).unwrap();
        weald_sys::make_node_at(&fd, b"device", NodeKind::CharDevice(5 << 32 | 6), 0o600).unwrap();
        set_times(dir);
    }
    Trees { _temp: temp, dirs }
}

/// Sets the mtime of everything in `dir` to the same value again.
fn set_times(dir: &Path) {
    let fd = weald_sys::open_dir(dir).unwrap();
    let mtime = Some(Timestamp {
        seconds: 1_000_000_000,
        nanoseconds: 5,
    });
    for name in ["file", "copy", "symlink", "sparse", "device", "sub", ""] {
        weald_sys::set_times_at(&fd, name.as_bytes(), NewTimes { mtime, atime: None }).unwrap();
    }
}

/// Differences that our walk, without rsync, finds after `change` was applied to the second tree.
fn after(change: impl FnOnce(&Path, &OwnedFd)) -> Vec<String> {
    let trees = trees();
    let second = &trees.dirs[1];
    change(second, &weald_sys::open_dir(second).unwrap());
    set_times(second);
    let options = CompareOptions {
        rsync: false,
        ..CompareOptions::default()
    };
    compare(&trees.dirs[0], second, &options).unwrap()
}

#[test]
fn equal_trees_have_no_differences() {
    let trees = trees();
    assert_same(&trees.dirs[0], &trees.dirs[1], &CompareOptions::default());
    assert_eq!(after(|_, _| {}), [""; 0]);
}

#[test]
fn every_single_change_is_found() {
    let write = |path: PathBuf, bytes: &[u8], offset| {
        std::fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .write_all_at(bytes, offset)
            .unwrap();
    };
    let found = [
        after(|_, fd| weald_sys::chmod_at(fd, b"file", 0o604).unwrap()),
        after(|_, fd| weald_sys::chown_at(fd, b"symlink", 0, 1).unwrap()),
        after(|_, fd| weald_sys::set_xattr_at(fd, b"sub", b"user.x", b"y").unwrap()),
        after(|dir, _| write(dir.join("file"), b"!", 99_999)),
        after(|dir, _| write(dir.join("sparse"), b"!", (5 << 30) + 3)),
        after(|dir, _| write(dir.join("sparse"), &[0; 8192], 1 << 30)),
        after(|dir, _| std::fs::write(dir.join("sub/new"), b"").unwrap()),
        after(|dir, _| {
            std::fs::remove_file(dir.join("symlink")).unwrap();
            symlink("targe", dir.join("symlink")).unwrap();
        }),
        after(|dir, fd| {
            std::fs::remove_file(dir.join("device")).unwrap();
            weald_sys::make_node_at(fd, b"device", NodeKind::CharDevice(5 << 32 | 7), 0o600)
                .unwrap();
        }),
        after(|dir, _| {
            std::fs::remove_file(dir.join("copy")).unwrap();
            std::fs::create_dir(dir.join("copy")).unwrap();
        }),
    ];
    let expected: [&[&str]; 10] = [
        &[
            "file: permissions 644 against 604",
            "sub/link: permissions 644 against 604",
        ],
        &["symlink: owner 0:0 against 0:1"],
        &["sub: xattr user.x of 1 bytes only so in the second tree"],
        &[
            "file: contents differ at byte 99999",
            "sub/link: contents differ at byte 99999",
        ],
        &["sparse: contents differ at byte 5368709123"],
        &["sparse: data at 5368709120..5368713216 against 1073741824..1073750016"],
        &["sub/new: only in the second tree"],
        &[
            "symlink: size 6 against 5",
            "symlink: target target against targe",
        ],
        &["device: device 500000006 against 500000007"],
        &["copy: Regular against Directory"],
    ];
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected);
    }
}

#[test]
fn times_are_compared_to_the_nanosecond() {
    let trees = trees();
    let fd = weald_sys::open_dir(&trees.dirs[1]).unwrap();
    let mtime = Some(Timestamp {
        seconds: 1_000_000_000,
        nanoseconds: 6,
    });
    weald_sys::set_times_at(&fd, b"sub", NewTimes { mtime, atime: None }).unwrap();
    let options = CompareOptions {
        rsync: false,
        ..CompareOptions::default()
    };
    let found = compare(&trees.dirs[0], &trees.dirs[1], &options).unwrap();
    assert!(
        found.len() == 1 && found[0].starts_with("sub: mtime"),
        "{found:?}"
    );
}

#[test]
fn wrong_hard_links_are_found() {
    let unlinked = after(|dir, _| {
        std::fs::remove_file(dir.join("sub/link")).unwrap();
        std::fs::copy(dir.join("file"), dir.join("sub/link")).unwrap();
        let sub = weald_sys::open_dir(&dir.join("sub")).unwrap();
        let mtime = Some(Timestamp {
            seconds: 1_000_000_000,
            nanoseconds: 5,
        });
        weald_sys::set_times_at(&sub, b"link", NewTimes { mtime, atime: None }).unwrap();
    });
    let expected = [
        "sub/link: hard-linked to file in the first tree only",
        "file: link count 2 against 1",
    ];
    assert_eq!(unlinked, expected);
    let outside = after(|dir, _| {
        std::fs::hard_link(dir.join("file"), dir.with_extension("outside")).unwrap()
    });
    assert_eq!(outside, ["file: link count 2 against 3"]);
}

#[test]
fn rsync_is_really_asked() {
    let trees = trees();
    std::fs::write(trees.dirs[1].join("copy"), b"y").unwrap();
    set_times(&trees.dirs[1]);
    let found = compare(&trees.dirs[0], &trees.dirs[1], &CompareOptions::default()).unwrap();
    assert_eq!(found, ["rsync: >fc........ copy"]);
}

#[test]
fn a_copy_by_cp_of_the_torture_tree_is_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| temp.path().join(name));
    std::fs::create_dir(&dirs[0]).unwrap();
    make(
        &dirs[0],
        &Options {
            seed: 7,
            big: false,
        },
    )
    .unwrap();
    let status = Command::new("cp")
        .args(["-a", "--sparse=auto"])
        .args(&dirs)
        .status()
        .unwrap();
    assert!(status.success());
    // cp finds holes as we do, but makes different holes. Everything else must agree.
    assert_same(
        &dirs[0],
        &dirs[1],
        &CompareOptions {
            holes: false,
            ..CompareOptions::default()
        },
    );
}
