//! Makes forests in directories, compares, interrupts and resumes them.
#![allow(missing_docs)]

use std::path::Path;
use std::sync::Mutex;
use weald_forest::{Body, Forest, Leaf, MakeOptions, Progress, Spec, make, totals, verify};

const RICH: &str = "
seed = 5
fanout = \"3x4x25\"
names = \"words\"
sizes = \"log-normal:2K:1.5\"
duplicates = 0.2
sparse = 0.05
hard-links = 0.05
hard-links-across = 0.05
symlinks = 0.1
xattrs = 0.1
acls = 0.1
modes = \"0644,0755,0600\"
times = \"random:1600000000:86400\"
versions = 3
content-changes = 0.1
name-changes = 0.05
time-changes = 0.2
";

fn forest(text: &str) -> Forest {
    Forest::new(Spec::parse(text).unwrap()).unwrap()
}

fn options(resume: bool) -> MakeOptions {
    MakeOptions {
        thread_count: 3,
        umask: weald_sys::umask().unwrap(),
        resume,
    }
}

fn differences(forest: &Forest, target: &Path) -> Vec<String> {
    let found = Mutex::new(Vec::new());
    let report = |d: &weald_forest::Difference| found.lock().unwrap().push(d.to_string());
    let count = verify(forest, target, 2, &Progress::default(), &report).unwrap();
    let found = found.into_inner().unwrap();
    assert_eq!(found.len() as u64, count);
    found
}

fn count(dir: &Path, args: &[&str]) -> u64 {
    let output = std::process::Command::new("find")
        .arg(dir)
        .args(args)
        .args(["-printf", "x"])
        .output()
        .unwrap();
    output.stdout.len() as u64
}

/// Catches: a forest that differs from the prediction or from itself; attributes that are not set.
#[test]
fn a_forest_of_everything_is_as_predicted() {
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("forest");
    let forest = forest(RICH);
    make(&forest, &target, &options(false), &Progress::default()).unwrap();
    assert_eq!(differences(&forest, &target), [""; 0]);
    let totals = totals(&forest, 2, &Progress::default()).unwrap();
    assert_eq!(totals.directories, count(&target, &["-type", "d"]));
    assert_eq!(totals.symlinks, count(&target, &["-type", "l"]));
    let names = totals.files + totals.hard_links;
    assert_eq!(names, count(&target, &["-type", "f"]));
    assert!(totals.hard_links > 20 && totals.symlinks > 50, "{totals:?}");
    assert!(totals.data_len < totals.len, "holes: {totals:?}");
    assert!(count(&target, &["-type", "f", "-links", "+1"]) > 2 * 20);
    assert!(count(&target, &["-perm", "0755", "-type", "f"]) > 100);
}

/// Catches: a comparison that finds nothing.
#[test]
fn changes_are_found() {
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("forest");
    let forest = forest("fanout = \"2x3x5\"\nsizes = \"constant:5000\"\n");
    make(&forest, &target, &options(false), &Progress::default()).unwrap();
    let at = |path: &str| target.join(path);
    let byte = |path: &str| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(at(path))
            .unwrap();
        file.write_all_at(b"\0", 4500).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        file.set_modified(time).unwrap();
    };
    byte("0/1/2");
    std::fs::remove_file(at("1/0/4")).unwrap();
    std::fs::write(at("1/2/new"), "").unwrap();
    let tool = |args: &[&str], path: &str| {
        let status = std::process::Command::new(args[0])
            .args(&args[1..])
            .arg(at(path))
            .status();
        assert!(status.unwrap().success());
    };
    tool(&["chmod", "600"], "0/0/0");
    tool(&["touch", "-d", "@5"], "0/0/1");
    tool(&["rm", "-r"], "0/2");
    let found = differences(&forest, &target).join("\n");
    for expected in [
        "0/1/2: content: differs at byte 4500",
        "1/0/4: missing",
        "1/2/new: not part of",
        "0/0/0: mode",
        "0/0/1: mtime",
        "0/2: missing",
    ] {
        assert!(found.contains(expected), "{expected} in {found}");
    }
}

/// Catches: leaves that stay missing or incomplete after an interruption; leaves that are made
/// again.
#[test]
fn only_missing_leaves_are_made() {
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("forest");
    let forest = forest("fanout = \"4x100x3\"\nhard-links-across = 0.3\nsizes = \"constant:10\"\n");
    make(&forest, &target, &options(false), &Progress::default()).unwrap();
    // As if the program had been killed around leaf 250: some leaves after it exist, some before it
    // do not.
    for leaf in (240..400).filter(|n| ![244, 256, 260].contains(n)) {
        let path = target.join(format!("{}/{:02}", leaf / 100, leaf % 100));
        std::fs::remove_dir_all(path).unwrap();
    }
    std::fs::create_dir(target.join("2/.weald-forest-251")).unwrap();
    std::fs::write(target.join("2/.weald-forest-251/0"), "half").unwrap();
    std::fs::remove_dir(target.join("3")).unwrap();
    let progress = Progress::default();
    make(&forest, &target, &options(true), &progress).unwrap();
    assert_eq!(differences(&forest, &target), [""; 0]);
    let made = progress.entries.into_inner();
    assert_eq!(made, 157 * 3);
    assert_eq!(progress.leaves.into_inner(), 400);
    // A complete forest is not changed.
    let progress = Progress::default();
    make(&forest, &target, &options(true), &progress).unwrap();
    assert_eq!(progress.entries.into_inner(), 0);
}

/// Catches: a forest made into a directory with other files.
#[test]
fn strange_targets_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("forest");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("mine"), "precious").unwrap();
    let forest = forest("fanout = \"2x3\"\n");
    let refuse = |forest: &Forest, target: &Path, resume| {
        let made = make(forest, target, &options(resume), &Progress::default());
        made.unwrap_err().to_string()
    };
    let error = refuse(&forest, &target, false);
    assert!(error.contains("not empty; use --resume"), "{error}");
    let error = refuse(&forest, &target, true);
    assert!(error.contains("holds mine"), "{error}");
    let file = target.join("mine");
    let error = refuse(&forest, &file, false);
    assert!(error.contains("cannot be opened"), "{error}");
    let error = refuse(&forest, &temp.path().join("no/such"), false);
    assert!(error.contains("cannot be made"), "{error}");
    // Another forest with the same names.
    let target = temp.path().join("other");
    make(&forest, &target, &options(false), &Progress::default()).unwrap();
    let longer = self::forest("fanout = \"2x3\"\nsizes = \"constant:1\"\n");
    let error = refuse(&longer, &target, true);
    assert!(error.contains("holds another forest"), "{error}");
}

/// Catches: wrong forests without levels, or with one file.
#[test]
fn flat_and_tiny_forests_are_made() {
    for text in [
        "fanout = \"50\"\n",
        "fanout = \"1x1x1\"\n",
        "fanout = \"7\"\nversions = 2\nsizes = \"zipf:10K:1\"\n",
    ] {
        let temp = tempfile::tempdir().unwrap();
        let forest = forest(text);
        make(&forest, temp.path(), &options(false), &Progress::default()).unwrap();
        assert_eq!(differences(&forest, temp.path()), [""; 0], "{text}");
        make(&forest, temp.path(), &options(true), &Progress::default()).unwrap();
        assert_eq!(differences(&forest, temp.path()), [""; 0], "{text}");
    }
}

/// Catches: an entry that differs when it is drawn alone, as [`make()`] does, from the entry of a
/// whole leaf, as [`verify()`] draws it.
#[test]
fn an_entry_is_the_same_alone() {
    let forest = forest(RICH);
    let (mut whole, mut one) = (Leaf::default(), Leaf::default());
    for number in 0..forest.leaf_count() {
        forest.leaf(number, &mut whole);
        for entry in &whole.entries {
            forest.entries(number).draw(entry.index, &mut one);
            assert_eq!(one.entries.len(), 1);
            let alone = &one.entries[0];
            assert_eq!(one.name(alone), whole.name(entry));
            assert_eq!(
                (
                    alone.attributes,
                    alone.mtime,
                    alone.has_xattrs,
                    alone.has_acl
                ),
                (
                    entry.attributes,
                    entry.mtime,
                    entry.has_xattrs,
                    entry.has_acl
                )
            );
            match (&alone.body, &entry.body) {
                (Body::Symlink(a), Body::Symlink(b))
                | (Body::HardLinkAcross(a), Body::HardLinkAcross(b)) => {
                    assert_eq!(one.text[a.clone()], whole.text[b.clone()]);
                }
                (a, b) => assert_eq!(a, b),
            }
        }
    }
}

/// Catches: forests that change with the program: resume and verify would refuse forests of older
/// versions.
#[test]
fn a_seed_always_gives_the_same_forest() {
    let temp = tempfile::tempdir().unwrap();
    let forest = forest(RICH);
    make(&forest, temp.path(), &options(false), &Progress::default()).unwrap();
    let script = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum";
    let output = std::process::Command::new("sh")
        .args(["-c", script])
        .current_dir(temp.path())
        .output()
        .unwrap();
    let sum = String::from_utf8(output.stdout).unwrap();
    assert_eq!(&sum[..16], "c00aeb66832d5418", "{sum}");
}
