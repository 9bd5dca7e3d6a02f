//! The tree has the documented contents and depends only on the seed.

use super::*;
use crate::{CompareOptions, compare};

#[test]
fn the_same_seed_makes_the_same_tree_and_another_seed_another() {
    let temp = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "c"].map(|name| temp.path().join(name));
    for (dir, seed) in dirs.iter().zip([1, 1, 2]) {
        std::fs::create_dir(dir).unwrap();
        make(dir, &Options { seed, big: false }).unwrap();
    }
    let options = CompareOptions::default();
    assert_eq!(compare(&dirs[0], &dirs[1], &options).unwrap(), [""; 0]);
    assert_ne!(compare(&dirs[0], &dirs[2], &options).unwrap().len(), 0);
}

#[test]
fn big_and_deep_trees_have_what_was_asked_for() {
    let temp = tempfile::tempdir().unwrap();
    make_big(&temp.path().join("big"), 1234, 250).unwrap();
    let count = |path: &str| std::fs::read_dir(temp.path().join(path)).unwrap().count();
    assert_eq!(
        (
            count("big/million"),
            count("big/spread"),
            count("big/spread/0002")
        ),
        (1234, 3, 50)
    );
    make_deep(temp.path(), 1000).unwrap();
    let deep = std::process::Command::new("find")
        .arg(temp.path())
        .args(["-name", "bottom"])
        .output()
        .unwrap();
    assert_eq!(
        deep.stdout
            .split(|&b| b == b'/')
            .filter(|part| part.starts_with(b"level-"))
            .count(),
        1000
    );
    assert!(
        std::process::Command::new("rm")
            .arg("-rf")
            .arg(temp.path())
            .status()
            .unwrap()
            .success()
    );
}
