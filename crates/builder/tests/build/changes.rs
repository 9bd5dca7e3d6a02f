//! Sources that change during a build: changes are reported, never stored wrong, never waited for.

use crate::support::*;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weald_format::ErrorKind;
use weald_sys::NodeKind;

/// A path, a change made after the scan, and the data that the image must show then (`None`: the
/// file is omitted).
struct Case {
    name: &'static str,
    before: Vec<u8>,
    change: fn(&Path),
    after: Option<Vec<u8>>,
    message: &'static str,
}

fn rewrite(path: &Path, data: &[u8]) {
    // Set another time, in case the clock of the file system is coarse.
    fs::write(path, data).unwrap();
    let mtime = Some(weald_format::Timestamp {
        seconds: 1_000_000_000,
        nanoseconds: 0,
    });
    weald_sys::set_times_fd(
        File::open(path).unwrap(),
        weald_sys::NewTimes { mtime, atime: None },
    )
    .unwrap();
}

fn node(path: &Path, kind: NodeKind) {
    fs::remove_file(path).unwrap();
    let dir = weald_sys::open_dir(path.parent().unwrap()).unwrap();
    weald_sys::make_node_at(
        &dir,
        path.file_name().unwrap().as_encoded_bytes(),
        kind,
        0o600,
    )
    .unwrap();
}

const LONG: usize = 5 << 20;

fn cases() -> Vec<Case> {
    let case = |name, before: usize, change, after, message| Case {
        name,
        before: noise(1, before),
        change,
        after,
        message,
    };
    let grown = || [noise(1, 1000), b"more".to_vec()].concat();
    let stored = "stored as";
    vec![
        case(
            "shrinks",
            100_000,
            |p| rewrite(p, &noise(1, 10)),
            Some(noise(1, 10)),
            stored,
        ),
        case(
            "empties",
            100_000,
            |p| rewrite(p, b""),
            Some(vec![]),
            stored,
        ),
        case(
            "grows",
            1000,
            |p| rewrite(p, &[noise(1, 1000), b"more".to_vec()].concat()),
            Some(grown()),
            stored,
        ),
        case(
            "outgrows",
            1000,
            |p| rewrite(p, &noise(9, LONG)),
            Some(noise(9, LONG)),
            stored,
        ),
        case(
            "other",
            1000,
            |p| rewrite(p, &noise(2, 1000)),
            Some(noise(2, 1000)),
            stored,
        ),
        case(
            "vanishes",
            1000,
            |p| fs::remove_file(p).unwrap(),
            None,
            "left out",
        ),
        case(
            "to-dir",
            1000,
            |p| fs::remove_file(p).and_then(|()| fs::create_dir(p)).unwrap(),
            None,
            "left out",
        ),
        case(
            "to-fifo",
            1000,
            |p| node(p, NodeKind::Fifo),
            None,
            "left out",
        ),
        case(
            "to-socket",
            1000,
            |p| node(p, NodeKind::Socket),
            None,
            "left out",
        ),
        case(
            "to-device",
            1000,
            |p| node(p, NodeKind::CharDevice(1 << 32 | 5)),
            None,
            "left out",
        ),
        case(
            "to-symlink",
            1000,
            |p| {
                fs::remove_file(p)
                    .and_then(|()| std::os::unix::fs::symlink("/etc/passwd", p))
                    .unwrap()
            },
            None,
            "left out",
        ),
        case(
            "long-shrinks",
            LONG,
            |p| rewrite(p, &noise(1, 10)),
            Some(noise(1, 10)),
            stored,
        ),
        case(
            "long-grows",
            LONG + 1,
            |p| rewrite(p, &noise(1, LONG + 9)),
            Some(noise(1, LONG + 9)),
            stored,
        ),
        case(
            "long-empties",
            LONG + 2,
            |p| rewrite(p, b""),
            Some(vec![]),
            stored,
        ),
        case(
            "long-vanishes",
            LONG + 3,
            |p| fs::remove_file(p).unwrap(),
            None,
            "left out",
        ),
        case(
            "long-to-fifo",
            LONG + 4,
            |p| node(p, NodeKind::Fifo),
            None,
            "left out",
        ),
    ]
}

/// Would catch: a change that is not reported, a fifo that blocks, zeros stored in place of data, a
/// panic on a length that differs from the scan.
#[test]
fn files_that_change_after_the_scan_are_reported_and_stored_as_read() {
    let scratch = Scratch::tmpfs("256m");
    let source = scratch.dir("source");
    let cases = cases();
    for case in &cases {
        fs::write(source.join(case.name), &case.before).unwrap();
    }
    fs::write(source.join("steady"), b"as it was").unwrap();
    let target = scratch.path().join("image");
    let change = |asked| {
        if asked == 0 {
            cases
                .iter()
                .for_each(|case| (case.change)(&source.join(case.name)));
        }
    };
    let (_, problems) = build_meddled(&source, &target, &quick(), change).unwrap();
    let image = open_checked(&target);
    for case in &cases {
        let line: Vec<_> = problems
            .iter()
            .filter(|p| p.starts_with(&format!("{}: ", case.name)))
            .collect();
        assert!(
            line.len() == 1 && line[0].contains(case.message),
            "{}: {line:?}",
            case.name
        );
        let shown = at(&image, case.name).map(|inode| data(&image, &inode));
        assert!(
            shown == case.after,
            "{}: {:?} bytes",
            case.name,
            shown.map(|s| s.len())
        );
    }
    assert_eq!(problems.len(), cases.len(), "{problems:#?}");
    assert_eq!(
        at(&image, "steady").map(|i| data(&image, &i)).unwrap(),
        b"as it was"
    );
}

/// Would catch: holes that appear, vanish or move between scan and reading and break the lengths of
/// runs.
#[test]
fn sparse_files_that_change_after_the_scan_are_stored_as_read() {
    let scratch = Scratch::tmpfs("256m");
    let source = scratch.dir("source");
    let mut plan = Plan::default();
    for name in ["filled", "holed", "outgrown", "cut"] {
        plan.add(
            name,
            Kind::File(
                vec![(8192, noise(3, 8192)), (65_536, noise(4, 4096))],
                1 << 20,
            ),
        );
    }
    plan.make(&source, 0);
    let target = scratch.path().join("image");
    let change = |asked| {
        if asked > 0 {
            return;
        }
        let open = |name: &str| File::options().write(true).open(source.join(name)).unwrap();
        open("filled").write_all_at(&noise(5, 1 << 20), 0).unwrap();
        weald_sys::punch_hole(&open("holed"), 8192..12_288).unwrap();
        let outgrown = open("outgrown");
        outgrown.write_all_at(&noise(6, 9 << 20), 1 << 20).unwrap();
        outgrown.set_len(40 << 20).unwrap();
        open("cut").set_len(10_000).unwrap();
    };
    let (_, problems) = build_meddled(&source, &target, &quick(), change).unwrap();
    assert_eq!(problems.len(), 4, "{problems:#?}");
    assert!(
        problems.iter().all(|p| p.contains("stored as")),
        "{problems:#?}"
    );
    let image = open_checked(&target);
    for name in ["filled", "holed", "outgrown", "cut"] {
        let inode = at(&image, name).unwrap();
        assert!(
            data(&image, &inode) == fs::read(source.join(name)).unwrap(),
            "{name}"
        );
    }
}

/// Would catch: an omitted file that still has another name in the image, or that is reported under
/// one name only.
#[test]
fn all_names_of_a_vanished_file_are_omitted() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    let mut plan = Plan::default();
    plan.dir("a");
    plan.dir("b");
    plan.file("a/one", noise(1, 100));
    plan.add("a/two", Kind::Link("a/one".into()));
    plan.add("b/three", Kind::Link("a/one".into()));
    plan.file("b/zz", noise(2, 100));
    plan.add("a/zz", Kind::Link("b/zz".into()));
    plan.make(&source, 0);
    let target = scratch.path().join("image");
    let change = |asked| {
        if asked == 0 {
            ["a/one", "a/two", "b/three"]
                .iter()
                .for_each(|p| fs::remove_file(source.join(p)).unwrap());
        }
    };
    let (report, problems) = build_meddled(&source, &target, &quick(), change).unwrap();
    assert_eq!(problems.len(), 3, "{problems:#?}");
    let image = open_checked(&target);
    assert_eq!(
        (
            report.entry_count,
            list(&image, at(&image, "a").unwrap().ino).len()
        ),
        (5, 1)
    );
    let (a, b) = (at(&image, "a/zz").unwrap(), at(&image, "b/zz").unwrap());
    assert_eq!((a.ino, a.nlink), (b.ino, 2));
}

/// Would catch: a long file truncated during reading whose tail is stored as zeros; hours spent on
/// reading the missing part.
#[test]
fn a_long_file_truncated_during_reading_is_omitted_or_complete() {
    for has_twin in [false, true] {
        let scratch = Scratch::tmpfs("256m");
        let source = scratch.dir("source");
        fs::write(source.join("a"), noise(1, 20 << 20)).unwrap();
        // The same front followed by zeros: what a reader would return that fills a truncated file
        // with zeros.
        let front = [noise(1, 20 << 20)[..4 << 20].to_vec(), vec![0; 16 << 20]].concat();
        fs::write(source.join("b"), if has_twin { front } else { vec![1] }).unwrap();
        let target = scratch.path().join("image");
        let cut = |asked| {
            if asked == 3 {
                File::options()
                    .write(true)
                    .open(source.join("a"))
                    .unwrap()
                    .set_len(4 << 20)
                    .unwrap();
            }
        };
        let (report, problems) = build_meddled(&source, &target, &quick(), cut).unwrap();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("a: "), "{problems:?}");
        let image = open_checked(&target);
        if let Some(inode) = at(&image, "a") {
            assert!(
                data(&image, &inode) == noise(1, 20 << 20)[..4 << 20],
                "has twin: {has_twin}"
            );
        }
        assert!(at(&image, "b").is_some());
        assert!(
            report.block_raw_len < if has_twin { 26 << 20 } else { 6 << 20 },
            "{report:?}"
        );
    }
}

/// Would catch: a long file that changed and is stored as the content of its twin without a report.
#[test]
fn a_long_file_that_becomes_its_twin_is_reported() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    fs::write(source.join("a"), noise(1, LONG)).unwrap();
    fs::write(source.join("b"), noise(2, LONG)).unwrap();
    let target = scratch.path().join("image");
    let change = |asked| {
        if asked == 0 {
            rewrite(&source.join("b"), &noise(1, LONG));
        }
    };
    let (report, problems) = build_meddled(&source, &target, &quick(), change).unwrap();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(report.content_count, 1);
    let image = open_checked(&target);
    assert!(data(&image, &at(&image, "b").unwrap()) == noise(1, LONG));
}

/// Would catch: errors in combinations that no other test has: other processes change files all the
/// time.
#[test]
fn sources_that_change_all_the_time_give_valid_images() {
    let scratch = Scratch::tmpfs("256m");
    let source = scratch.dir("source");
    for n in 0..600 {
        fs::write(source.join(format!("f{n:03}")), noise(n, 20_000)).unwrap();
    }
    let is_done = AtomicBool::new(false);
    let target = scratch.path().join("image");
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (source, is_done) = (&source, &is_done);
            scope.spawn(move || disturb(source, seed, is_done));
        }
        for _ in 0..4 {
            let built = build_meddled(&source, &target, &quick(), |_| ());
            let (_, problems) = built
                .inspect_err(|_| is_done.store(true, Ordering::Relaxed))
                .unwrap();
            let is_shown = |p: &&String| {
                !["left out", "stored as", "vanished"]
                    .iter()
                    .any(|w| p.contains(w))
            };
            let odd: Vec<_> = problems.iter().filter(is_shown).collect();
            let image = std::panic::catch_unwind(|| open_checked(&target));
            if image.is_err() || !odd.is_empty() {
                is_done.store(true, Ordering::Relaxed);
                panic!("{odd:?}");
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

fn disturb(source: &Path, seed: u64, is_done: &AtomicBool) {
    let mut rng = weald_testkit::Rng::new(seed);
    let end = Instant::now() + Duration::from_secs(60);
    while !is_done.load(Ordering::Relaxed) && Instant::now() < end {
        let path = source.join(format!("f{:03}", rng.below(600)));
        let _ = match rng.below(6) {
            0 => fs::remove_file(&path),
            1 => fs::write(&path, noise(rng.next_u64(), 30_000)),
            2 => fs::rename(&path, source.join(format!("f{:03}", rng.below(600)))),
            3 => fs::hard_link(&path, source.join(format!("f{:03}", rng.below(600)))),
            4 => File::options()
                .append(true)
                .open(&path)
                .and_then(|mut f| f.write_all(&noise(1, 500))),
            _ => File::options()
                .write(true)
                .open(&path)
                .and_then(|f| f.set_len(rng.below(40_000))),
        };
    }
}

/// Would catch: a vanished source directory that is reported as another error.
#[test]
fn a_missing_source_is_reported_as_not_found() {
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("image");
    let error = build_meddled(&temp.path().join("none"), &target, &quick(), |_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(names(temp.path()), Vec::<String>::new());
}
