//! `weald build --append`: what it counts, what it refuses.
#![allow(missing_docs)]

mod build_support;

use build_support::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

fn weald(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(WEALD);
    let command = command.args(args).current_dir(dir).env("LC_ALL", "C");
    command.env_remove("SOURCE_DATE_EPOCH").output().unwrap()
}

#[track_caller]
fn done(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}{text}", stderr(output));
    text
}

/// Runs a command that must end with status 2 and leave `image` alone; returns its message.
#[track_caller]
fn refused(dir: &Path, image: &str, args: &[&str]) -> String {
    let path = dir.join(image);
    let before = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap());
    let output = weald(dir, args);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    assert!(
        fs::read(&path).unwrap() == before.0,
        "the image was touched"
    );
    let time = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec());
    assert_eq!(time(&fs::metadata(&path).unwrap()), time(&before.1));
    stderr(&output)
}

fn make_files(dir: &Path, names: &[&str]) {
    for name in names {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
}

/// Would catch: names that are counted twice or not at all, a directory whose entries are not
/// counted, changes of contents or modes that are missed, an mtime of a directory that counts.
#[test]
fn names_that_come_change_and_go_are_counted() {
    let scratch = Scratch::new("64m");
    let run = |args: &[&str]| weald(scratch.path(), args);
    let tree = scratch.dir("tree");
    make_files(
        &tree,
        &["a", "b", "c", "d/1", "d/2", "gone/1", "gone/x/2", "kind"],
    );
    let first = done(&run(&["build", "--append", "tree", "image"]));
    assert!(!first.contains(" added, "), "{first}");

    fs::write(tree.join("a"), "A").unwrap();
    fs::set_permissions(tree.join("b"), PermissionsExt::from_mode(0o600)).unwrap();
    fs::remove_dir_all(tree.join("gone")).unwrap();
    fs::remove_file(tree.join("kind")).unwrap();
    make_files(&tree, &["kind/new", "d/0", "new/x/y"]);
    // a, b, and kind, which is a directory now. Added: kind/new, d/0, new, new/x, new/x/y.
    let second = done(&run(&["build", "--append", "tree", "image"]));
    let line = "5 added, 3 changed, 4 removed; generation 1 keeps them\n";
    assert!(second.contains(line), "{second}");

    make_files(&tree, &["d/3"]);
    let third = done(&run(&["build", "--append", "--json", "tree", "image"]));
    for field in [
        "\"added_count\":1",
        "\"changed_count\":0",
        "\"removed_count\":0",
    ] {
        assert!(third.replace(' ', "").contains(field), "{third}");
    }
    make_files(&tree, &["d/4"]);
    let fourth = done(&run(&["build", "--append", "tree", "image"]));
    assert!(
        fourth.contains(" 1 added, 0 changed, 0 removed\n"),
        "{fourth}"
    );
    let fifth = done(&run(&["build", "--append", "tree", "image"]));
    assert!(!fifth.contains(" added, "), "{fifth}");
    check(&scratch.at("image"));
}

/// Would catch: a tree that is replaced by what was meant to be added to it, an image that is
/// written before that is found out, a refusal of what removes half or less.
#[test]
fn an_append_that_removes_most_names_is_refused() {
    let scratch = Scratch::new("64m");
    let run = |args: &[&str]| weald(scratch.path(), args);
    make_files(&scratch.dir("tree"), &["a", "b", "c", "d"]);
    make_files(&scratch.dir("more"), &["a", "new"]);
    fs::write(scratch.at("more/a"), "another").unwrap();
    make_files(&scratch.dir("half"), &["a", "b"]);
    done(&run(&["build", "-q", "tree", "image"]));
    let append = ["build", "--append", "more", "image"];
    let message = refused(scratch.path(), "image", &append);
    for part in ["image: ", "3 of the 4 names", "--allow-removal"] {
        assert!(message.contains(part), "{message}");
    }
    let said = done(&run(&[&append[..], &["--allow-removal"]].concat()));
    let line = " 1 added, 1 changed, 3 removed; generation 1 keeps them\n";
    assert!(said.contains(line), "{said}");
    assert_eq!(done(&run(&["ls", "image"])), "a\nnew\n");
    let first = ["ls", "--generation", "1", "image"];
    assert_eq!(done(&run(&first)), "a\nb\nc\nd\n");

    done(&run(&["build", "-q", "tree", "other"]));
    done(&run(&["build", "-q", "--append", "half", "other"]));
    assert_eq!(done(&run(&["ls", "other"])), "a\nb\n");
    check(&scratch.at("image"));
}
