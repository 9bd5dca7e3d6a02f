//! Limits: everything that Linux allows is stored; data beyond the format's limits is refused with
//! a clear message.

use crate::support::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use weald_builder::{BuildOptions, MtimeRule, Silent, build_image};
use weald_format::limits::{ENTRIES_PER_BLOCK, ITEMS_PER_PAGE};
use weald_format::{ErrorKind, Timestamp};
use weald_sys::{NewTimes, NodeKind};

/// Would catch: a length at the kernel's limit that does not fit its field.
#[test]
fn longest_names_targets_and_xattrs_are_stored() {
    let scratch = Scratch::tmpfs("128m");
    let source = scratch.dir("source");
    let mut plan = Plan::default();
    plan.dir("n".repeat(255));
    plan.file(format!("{0}/{0}", "n".repeat(255)), b"x".to_vec());
    plan.add("link", Kind::Symlink("t".repeat(4095)));
    plan.add("target255", Kind::Symlink("s".repeat(255)));
    // The kernel limits a value to 64 KiB; the set just fits the format's 4 MiB.
    let large = plan.file("large", b"y".to_vec());
    large.xattrs = (0..63)
        .map(|n| (format!("trusted.{n:03}"), noise(n, 65_536)))
        .collect();
    let named = plan.file("named", vec![]);
    named.xattrs = (0..200)
        .map(|n| (format!("user.{n:0250}"), vec![]))
        .collect();
    for n in 0..1500u64 {
        plan.file(format!("x{n}"), vec![]).xattrs =
            vec![("user.n".into(), n.to_string().into_bytes())];
    }
    plan.make(&source, 1);
    build_and_compare(&source, &quick());
}

/// Would catch: an image that no reader opens, or a panic, because an inode has more xattrs than
/// the format allows.
#[test]
fn xattrs_beyond_the_format_are_reported_and_omitted() {
    for count in [64, 300] {
        let scratch = Scratch::tmpfs("128m");
        let source = scratch.dir("source");
        let mut plan = Plan::default();
        plan.file("huge", b"data".to_vec()).xattrs = (0..count)
            .map(|n| (format!("trusted.{n:03}"), noise(n, 65_536)))
            .collect();
        plan.file("other", b"more".to_vec());
        plan.make(&source, 1);
        let target = scratch.path().join("image");
        let (_, problems) = build_meddled(&source, &target, &quick(), |_| ()).unwrap();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].starts_with("huge: extended attributes"),
            "{problems:?}"
        );
        let image = open_checked(&target);
        let huge = at(&image, "huge").unwrap();
        assert_eq!(data(&image, &huge), b"data");
        assert!(image.xattrs(&huge).unwrap().is_empty());
        assert!(at(&image, "other").is_some());
    }
}

/// Would catch: a page or block of entries, attributes or xattr sets that ends one item too early
/// or too late.
#[test]
fn item_counts_around_page_limits_are_stored() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    let root = weald_sys::open_dir(&source).unwrap();
    let (page, block) = (ITEMS_PER_PAGE as u32, ENTRIES_PER_BLOCK as u32);
    let counts = [
        1,
        1024,
        page - 1,
        page,
        page + 1,
        block - 1,
        block,
        block + 1,
        2 * page + 1 + block,
    ];
    for count in counts {
        let name = format!("d{count}");
        weald_sys::make_dir_at(&root, name.as_bytes(), 0o755).unwrap();
        let dir = weald_sys::open_dir(&source.join(&name)).unwrap();
        for n in 0..count {
            let name = format!("{:x}", n.wrapping_mul(2_654_435_761));
            weald_sys::make_node_at(&dir, name.as_bytes(), NodeKind::EmptyFile, 0o644).unwrap();
            if count == 2 * page + 1 + block {
                weald_sys::chown_at(&dir, name.as_bytes(), n, n / 2).unwrap();
            }
            if count == page + 1 {
                weald_sys::set_xattr_at(&dir, name.as_bytes(), b"user.n", &n.to_le_bytes())
                    .unwrap();
            }
        }
    }
    let report = build_and_compare(&source, &quick());
    let expected = counts.iter().sum::<u32>() + counts.len() as u32 + 1;
    assert_eq!(report.entry_count, u64::from(expected));
    // One time for all: only counters remain, which must cost no more than a byte or two.
    let target = scratch.path().join("image");
    build(
        &source,
        &target,
        &BuildOptions {
            mtime: MtimeRule::Set(0),
            ..quick()
        },
    );
    open_checked(&target);
}

/// Would catch: work that grows with the square of the number of names, and link counts cut to 16
/// bits.
#[test]
fn inodes_with_70_000_names_are_stored() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    for name in ["inside", "across", "across/deep"] {
        std::fs::create_dir(source.join(name)).unwrap();
    }
    std::fs::write(source.join("inside/first"), b"one").unwrap();
    std::fs::write(source.join("across/first"), b"two").unwrap();
    let dir = |name: &str| weald_sys::open_dir(&source.join(name)).unwrap();
    let (inside, across, deep) = (dir("inside"), dir("across"), dir("across/deep"));
    for n in 0..70_000 {
        let name = format!("n{n}");
        weald_sys::link_at(&inside, b"first", &inside, name.as_bytes()).unwrap();
        let to = if n % 2 == 0 { &across } else { &deep };
        weald_sys::link_at(&across, b"first", to, name.as_bytes()).unwrap();
    }
    let report = build_and_compare(&source, &quick());
    assert_eq!(report.content_count, 2);
}

/// Would catch: a boundary of a block, piece or probe that drops, repeats or swaps a byte.
#[test]
fn file_lengths_around_every_boundary_are_stored() {
    let scratch = Scratch::tmpfs("256m");
    let source = scratch.dir("source");
    let mut plan = Plan::default();
    let mut number = 0;
    for base in [4096usize, 8192, 65_536, 1 << 20, 2 << 20, 4 << 20, 8 << 20] {
        for len in [base - 1, base, base + 1] {
            number += 1;
            plan.file(format!("noise{len}"), noise(number, len));
            plan.file(
                format!("text{len}"),
                text(number, len / 50).repeat(51)[..len].to_vec(),
            );
        }
    }
    plan.make(&source, 1);
    for block_len in [4096, 65_536, 1 << 20] {
        build_and_compare(
            &source,
            &BuildOptions {
                block_len,
                ..quick()
            },
        );
    }
}

/// Would catch: small files that lose their order or their data in batches.
#[test]
fn ten_thousand_tiny_files_are_stored() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    let mut plan = Plan::default();
    (0..10_000).for_each(|n| _ = plan.file(format!("f{n}"), format!("{n}").into_bytes()));
    plan.make(&source, 1);
    let report = build_and_compare(&source, &quick());
    assert_eq!(report.content_count, 10_000);
}

/// Would catch: reading or hashing the holes of a huge file, and lengths cut to 32 or 40 bits.
#[test]
fn a_sparse_file_of_16_tib_is_stored_quickly() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    for name in ["huge", "same"] {
        let file = File::create_new(source.join(name)).unwrap();
        file.set_len(16 << 40).unwrap();
        file.write_all_at(&text(1, 50_000), (5 << 40) + 4096)
            .unwrap();
        file.write_all_at(&[9; 4096], (16 << 40) - 4096).unwrap();
    }
    let report = build_and_compare(&source, &quick());
    assert_eq!((report.content_count, report.file_len), (1, 32 << 40));
}

/// Would catch: repeats not found because a sparse file makes the input look a million times
/// longer.
#[test]
fn a_huge_hole_does_not_spoil_the_search_for_repeats() {
    let scratch = Scratch::tmpfs("128m");
    let source = scratch.dir("source");
    let mut edited = noise(1, 8 << 20);
    (0..64).for_each(|n| edited[n * 131_072] ^= 1);
    std::fs::write(source.join("base"), noise(1, 8 << 20)).unwrap();
    std::fs::write(source.join("edited"), edited).unwrap();
    File::create_new(source.join("huge"))
        .unwrap()
        .set_len(16 << 40)
        .unwrap();
    let report = build_and_compare(&source, &quick());
    assert!(report.segment_len > 7 << 20, "{report:?}");
}

/// Would catch: sums that overflow, with a panic or a silently wrong result.
#[test]
fn lengths_beyond_the_format_are_refused_with_a_message() {
    let scratch = Scratch::tmpfs("16m");
    let source = sparse_files(&scratch, &[1 << 60; 5]);
    let image = scratch.path().join("image");
    let error = build_image(&source, &image, false, &quick(), &Silent).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert!(error.to_string().contains("2^62"), "{error}");
    assert_eq!(names(&scratch.path()), ["source"]);
}

/// Would catch: a file longer than the format allows that is stored short or empty.
#[test]
fn files_beyond_the_format_are_reported_and_omitted() {
    for len in [(1 << 60) + 1, 1 << 61, i64::MAX as u64] {
        let scratch = Scratch::tmpfs("16m");
        let source = sparse_files(&scratch, &[len, 5]);
        let image = scratch.path().join("image");
        let report = build_image(&source, &image, false, &quick(), &Silent).unwrap();
        assert_eq!((report.problem_count, report.entry_count), (1, 2), "{len}");
    }
}

/// Makes files of these lengths that begin with one byte of data.
fn sparse_files(scratch: &Scratch, lens: &[u64]) -> PathBuf {
    let source = scratch.dir("source");
    for (n, len) in lens.iter().enumerate() {
        let file = File::create_new(source.join(format!("f{n}"))).unwrap();
        file.set_len(*len).unwrap();
        file.write_all_at(&[n as u8 + 1], 0).unwrap();
    }
    source
}

/// Would catch: times at the ends of their range whose difference overflows.
#[test]
fn times_at_the_ends_of_their_range_are_stored() {
    let scratch = Scratch::tmpfs("16m");
    let source = scratch.dir("source");
    let seconds = [
        i64::MIN,
        i64::MAX,
        0,
        -1,
        1,
        i64::MIN + 1,
        i64::MAX - 1,
        1 << 40,
    ];
    for copy in 0..40 {
        let dir = source.join(format!("d{copy}"));
        std::fs::create_dir(&dir).unwrap();
        for n in 0..8 {
            let file = File::create_new(dir.join(format!("f{n}"))).unwrap();
            let mtime = Timestamp {
                seconds: seconds[(n + copy) % 8],
                nanoseconds: 999_999_999,
            };
            weald_sys::set_times_fd(
                &file,
                NewTimes {
                    mtime: Some(mtime),
                    atime: None,
                },
            )
            .unwrap();
        }
    }
    let report = build_and_compare(&source, &quick());
    assert_eq!(report.entry_count, 361);
}

/// Would catch: an image that readers refuse, a stack overflow, memory that grows with the depth.
#[test]
fn trees_up_to_the_depth_limit_are_stored_and_deeper_ones_refused() {
    for (depth, is_kept) in [(65_534, true), (65_535, false)] {
        let scratch = Scratch::tmpfs("512m");
        let source = scratch.dir("source");
        let mut dir = weald_sys::open_dir(&source).unwrap();
        for _ in 0..depth {
            weald_sys::make_dir_at(&dir, b"d", 0o755).unwrap();
            dir = weald_sys::open_dir_at(&dir, b"d").unwrap();
        }
        drop(dir);
        let target = scratch.path().join("image");
        let options = BuildOptions {
            mtime: MtimeRule::Set(0),
            memory_len: 512 << 20,
            ..quick()
        };
        let built = build_image(&source, &target, false, &options, &Silent);
        if is_kept {
            assert_eq!(built.unwrap().entry_count, depth + 1);
            open_checked(&target);
        } else {
            let error = built.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
            assert!(
                error.to_string().contains("fewer than 65536 levels"),
                "{error}"
            );
            assert_eq!(names(&scratch.path()), ["source"]);
        }
    }
}

/// Would catch: a budget that is exceeded silently, or refused without naming a sufficient one.
#[test]
fn a_small_budget_is_refused_and_a_sufficient_one_named() {
    let scratch = Scratch::tmpfs("16m");
    let source = scratch.dir("source");
    std::fs::write(source.join("f"), b"data").unwrap();
    let target = scratch.path().join("image");
    let with = |memory_len| {
        let options = BuildOptions {
            memory_len,
            ..BuildOptions::level(7).unwrap()
        };
        build_image(&source, &target, true, &options, &Silent)
    };
    let error = with(50 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    let text = error.to_string();
    let needed: u64 = text
        .split_once("need ")
        .and_then(|(_, rest)| rest.split_once(" MiB"))
        .and_then(|(number, _)| number.parse().ok())
        .unwrap_or_else(|| panic!("{text}"));
    assert!(
        text.contains("50 MiB") && names(&scratch.path()) == ["source"],
        "{text}"
    );
    assert!(with((needed - 1) << 20).is_err());
    // The named budget is sufficient, although some shares grow with the budget.
    with(needed << 20).unwrap_or_else(|e| panic!("{needed} MiB: {e}"));
}

/// Would catch: a look-up that descends from the root, so that a walk of a deep tree takes time by
/// the square of its depth: minutes for this one.
#[test]
fn look_ups_in_a_deep_tree_take_time_by_its_depth() {
    const DEPTH: usize = 30_000;
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let mut dir = weald_sys::open_dir(&source).unwrap();
    for _ in 0..DEPTH {
        for name in [b"d", b"a"] {
            weald_sys::make_dir_at(&dir, name, 0o755).unwrap();
        }
        dir = weald_sys::open_dir_at(&dir, b"d").unwrap();
    }
    let target = scratch.path().join("image");
    let options = BuildOptions {
        memory_len: 512 << 20,
        ..quick()
    };
    build(&source, &target, &options);
    let image = weald_image::Image::open_path(&target, 0, &weald_image::OpenOptions::default());
    let image = image.unwrap();
    let since = std::time::Instant::now();
    let is_fast = || since.elapsed() < std::time::Duration::from_secs(60);
    // One walk goes down, another one goes up beside it, as two threads would.
    let mut down = image.root().unwrap();
    let mut ways = vec![down.clone()];
    for level in 0..DEPTH {
        down = image.lookup(down.ino, b"d").unwrap().expect("a directory");
        ways.push(down.clone());
        let above = &ways[level / 2];
        let side = image.lookup(above.ino, b"a").unwrap().expect("a directory");
        assert_eq!(image.parent(side.ino).unwrap(), above.ino);
        assert!(is_fast(), "level {level}");
    }
    for (level, dir) in ways.iter().enumerate().rev() {
        assert_eq!(image.inode(dir.ino).unwrap(), *dir);
        let side = image.lookup(dir.ino, b"a").unwrap();
        assert_eq!(side.is_some(), level < DEPTH);
        assert!(is_fast(), "level {level}");
    }
}
