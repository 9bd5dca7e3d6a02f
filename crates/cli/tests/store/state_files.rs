//! Every small file of a store, damaged: what a check says must go with what other commands show.

use crate::ground::Ground;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use weald_testkit::Rng;

/// What users look at.
const LOOKS: [&[&str]; 10] = [
    &["store", "info", "--json", "store"],
    &["store", "ls", "--json", "store"],
    &["tier", "stat", "--json", "store"],
    &["replica", "ls", "store"],
    &["replica", "status", "--json", "store"],
    &["scrub", "status", "--json", "store"],
    &["volume", "ls", "--json", "store"],
    &["snapshot", "ls", "--json", "store:v"],
    &["sum", "store:v1"],
    &["sum", "store:v@s"],
];

/// Files that are gone are as if nobody had asked for what stands in them.
const MAY_BE_MISSING: [&str; 4] = ["scrub", "scrub.policy", "scrub.report", "tiers.report"];

/// What changes from one moment to the next.
const MOMENTARY: [&str; 3] = ["disk_bytes", "disk_free_bytes", "behind_seconds"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Overwritten,
    Empty,
    Long,
    Removed,
    Fifo,
    Symlink,
}

const DAMAGES: [Damage; 7] = [
    Damage::Overwritten,
    Damage::Overwritten,
    Damage::Empty,
    Damage::Long,
    Damage::Removed,
    Damage::Fifo,
    Damage::Symlink,
];

/// Whether a file of the store is one of many, with tests of its own.
fn is_large(path: &Path) -> bool {
    let path = path.to_string_lossy();
    let dirs = ["/segments/", "/journal/", "/images/"];
    dirs.iter().any(|dir| path.contains(dir)) || path.ends_with("/meta")
}

fn damage(ground: &Ground, path: &Path, damage: Damage, rng: &mut Rng) {
    let mut bytes = fs::read(path).expect("read");
    match damage {
        Damage::Overwritten => {
            let at = rng.below(bytes.len().saturating_sub(15).max(1) as u64) as usize;
            let end = bytes.len().min(at + 16);
            for byte in bytes.get_mut(at..end).expect("in the file") {
                *byte ^= rng.below(255) as u8 + 1;
            }
        }
        Damage::Empty => bytes.clear(),
        Damage::Long => bytes.resize(2 << 20, 0),
        Damage::Removed | Damage::Fifo | Damage::Symlink => {
            fs::remove_file(path).expect("remove");
            match damage {
                Damage::Fifo => drop(ground.sh(&format!("mkfifo {}", path.display()))),
                Damage::Symlink => symlink("/etc/passwd", path).expect("link"),
                _ => {}
            }
            return;
        }
    }
    fs::write(path, bytes).expect("write");
}

/// The output of a command, and whether it succeeded.
fn look(ground: &Ground, command: &[&str]) -> (Option<i32>, String) {
    let output = ground.0.weald(command);
    assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
    let text = output.text();
    let lines = text.lines().map(|line| match serde_json::from_str(line) {
        Ok(Value::Object(mut object)) => {
            object.retain(|key, _| !MOMENTARY.contains(&key.as_str()));
            Value::Object(object).to_string()
        }
        _ => line.to_owned(),
    });
    (output.code, lines.collect::<Vec<_>>().join("\n"))
}

/// Would catch: a file of the store that is damaged or lost, without a word of a check, while
/// commands show something else than before; one whose copy is not used; a command that hangs.
#[test]
fn a_check_names_each_small_file_that_shows_something_else() {
    let ground = Ground::with_store();
    ground.sh("$WEALD volume create -q store:v --from v1.weald
        $WEALD snapshot create -q store:v@s
        $WEALD tier add -q store slow --name slow --same-disk --max-age 30d
        $WEALD volume set store:v etc --tier slow
        $WEALD tier run -q store
        $WEALD replica add -q store replica --name far
        $WEALD replica send -q store
        $WEALD scrub set store --every 30d
        $WEALD scrub start -q --wait store
        mkdir whole; cp -a store slow replica whole");
    ground.assert_clean("store");
    let files: Vec<PathBuf> = ["store", "slow"]
        .iter()
        .flat_map(|dir| ground.contents(dir))
        .map(|(path, _)| path)
        .filter(|path| !is_large(path))
        .collect();
    for name in MAY_BE_MISSING {
        assert!(files.contains(&ground.at("store").join(name)), "{name}");
    }
    assert!(files.len() >= 18, "{files:?}");
    let whole = LOOKS.map(|command| look(&ground, command));
    assert!(whole.iter().all(|(code, _)| *code == Some(0)), "{whole:?}");
    let mut rng = Rng::new(3);
    let mut untold = Vec::new();
    let mut told = 0;
    for path in &files {
        let name = path.strip_prefix(ground.at("")).expect("below");
        let is_empty = fs::metadata(path).expect("stat").len() == 0;
        for kind in DAMAGES {
            if is_empty && matches!(kind, Damage::Overwritten | Damage::Empty) {
                continue;
            }
            damage(&ground, path, kind, &mut rng);
            let (checked, said) = look(&ground, &["store", "check", "store"]);
            let found = LOOKS.map(|command| look(&ground, command));
            let changed: Vec<_> = LOOKS
                .iter()
                .zip(found.iter().zip(&whole))
                .filter(|(_, (found, whole))| found != whole)
                .map(|(command, _)| command.join(" "))
                .collect();
            let may_change =
                kind == Damage::Removed && MAY_BE_MISSING.iter().any(|name| path.ends_with(name));
            if checked == Some(0) && !changed.is_empty() && !may_change {
                untold.push(format!("{} {kind:?}: {changed:?}", name.display()));
            }
            if checked == Some(1) {
                told += 1;
                let file = path.file_name().expect("a name").to_string_lossy();
                assert!(said.contains(&*file), "{} {kind:?}: {said}", name.display());
            }
            // The directories stay: a tier knows that of its store.
            ground.sh("for dir in store slow replica; do
                    find $dir -mindepth 1 -delete; cp -a whole/$dir/. $dir/
                done");
        }
    }
    assert!(untold.is_empty(), "{}", untold.join("\n"));
    assert!(told > 20, "{told} damages are told");
    assert_eq!(LOOKS.map(|command| look(&ground, command)), whole);
}
