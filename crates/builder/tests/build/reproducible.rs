//! The same source gives the same bytes for any threads, file system and order on disk.

use crate::support::*;
use std::path::Path;
use weald_builder::{BuildOptions, CodecSpec, MtimeRule, Order};

/// A tree with everything whose order could vary: enough directories for a parallel scan, many
/// attributes and xattr sets, hard links inside and across directories, equal files, long files,
/// holes.
fn varied() -> Plan {
    let mut plan = Plan::default();
    for d in 0..120u64 {
        let dir = format!("dir{:03}", d * 37 % 120);
        plan.dir(&dir).permissions = [0o755, 0o700, 0o2755][d as usize % 3];
        for f in 0..8u64 {
            let data = if f < 3 {
                text(f, 900)
            } else {
                text(d * 8 + f, 300 + (d * f % 700) as usize)
            };
            let item = plan.file(format!("{dir}/file{}", f * 5 % 8), data);
            item.owner = ((d % 11) as u32, (f * d % 7) as u32);
            item.permissions = 0o600 + (d % 8) as u16;
            for x in 0..(d + f) % 4 {
                item.xattrs
                    .push((format!("trusted.x{}", x * 3 % 4), noise(d % 9 + x, 20)));
            }
        }
        plan.add(
            format!("{dir}/link"),
            Kind::Symlink(format!("../dir{:03}", d / 2)),
        );
        plan.add(format!("{dir}/inside"), Kind::Link(format!("{dir}/file1")));
        if d > 0 {
            plan.add(format!("{dir}/across"), Kind::Link("dir000/file2".into()));
        }
    }
    add_long_files(&mut plan);
    plan.add("fifo", Kind::Fifo);
    plan.add("null", Kind::CharDevice(1 << 32 | 3));
    plan
}

fn add_long_files(plan: &mut Plan) {
    let long = text(77, 200_000).repeat(25);
    let mut twin = long.clone();
    twin[3_000_000] ^= 1;
    plan.dir("long");
    plan.file("long/a", long.clone());
    plan.file("long/same", long);
    plan.file("long/other", twin);
    plan.file("long/noise", noise(5, 300_000));
    let runs = vec![(65_536, text(8, 10_000)), (8 << 20, noise(6, 5_000))];
    plan.add("long/sparse", Kind::File(runs, 50 << 20));
    // Holes as small as a block, and an xattr too large for the inode: ext4 counts its block in the
    // file's st_blocks.
    for n in 0..4u64 {
        let item = plan.add(
            format!("long/holed{n}"),
            Kind::File(vec![(4096, text(n, 8192))], 12_288),
        );
        item.xattrs.push(("user.large".into(), noise(n, 2000)));
    }
}

fn levels() -> Vec<BuildOptions> {
    let at = |level| BuildOptions::level(level).unwrap();
    let named = BuildOptions {
        order: Order::Name,
        codec: CodecSpec::Zstd(1),
        ..at(2)
    };
    vec![at(1), at(3), at(7), at(9), named]
}

fn bytes(source: &Path, options: &BuildOptions) -> Vec<u8> {
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("image");
    build(source, &target, options);
    std::fs::read(&target).unwrap()
}

/// Would catch: ids in the order of threads, of getdents or of inode numbers; iteration over hash
/// tables; holes guessed from st_blocks; a race between compressors.
#[test]
fn images_do_not_depend_on_threads_or_file_systems() {
    let plan = varied();
    let tmpfs = Scratch::tmpfs("128m");
    let ext4 = Scratch::ext4("128M", "11111111-2222-3333-4444-555555555555");
    let other = Scratch::ext4("128M", "99999999-8888-7777-6666-555555555555");
    let places = [(&tmpfs, 1), (&ext4, 2), (&other, 3), (&tmpfs, 8)];
    let sources: Vec<_> = places
        .iter()
        .enumerate()
        .map(|(n, (fs, _))| fs.dir(&format!("tree{n}")))
        .collect();
    sources
        .iter()
        .enumerate()
        .for_each(|(seed, dir)| plan.make(dir, seed as u64));
    for options in levels() {
        let mut first: Option<Vec<u8>> = None;
        for (source, (_, threads)) in sources.iter().zip(places) {
            let image = bytes(
                source,
                &BuildOptions {
                    threads,
                    memory_len: 1 << 30,
                    ..options.clone()
                },
            );
            let first = first.get_or_insert_with(|| image.clone());
            assert!(
                *first == image,
                "{:?} with {threads} threads in {}",
                options.codec,
                source.display()
            );
        }
    }
    assert_same_image(&sources[1]);
}

fn assert_same_image(source: &Path) {
    build_and_compare(source, &quick());
}

/// Would catch: a list of blocks, files or directories whose order depends on timing, which shows
/// only with many in flight.
#[test]
fn many_small_blocks_are_written_in_order() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    let mut plan = Plan::default();
    for d in 0..1500u64 {
        plan.dir(format!("d{d}"));
        plan.file(format!("d{d}/f"), text(d, 2000));
    }
    plan.make(&source, 1);
    let options = |threads| BuildOptions {
        threads,
        block_len: 4096,
        ..quick()
    };
    let first = bytes(&source, &options(1));
    for threads in [2, 3, 8, 8, 8] {
        assert!(
            bytes(&source, &options(threads)) == first,
            "{threads} threads"
        );
    }
    build_and_compare(&source, &options(2));
}

/// Would catch: an owner, mode or time of the source that normalisation misses, also of the root.
/// root.
#[test]
fn normalised_trees_of_different_owners_modes_and_times_are_equal() {
    let scratch = Scratch::tmpfs("16m");
    let make = |name: &str, n: u32| {
        let mut plan = Plan::default();
        plan.dir("d");
        plan.file("d/f", b"content".to_vec());
        plan.add("d/l", Kind::Symlink("f".into()));
        plan.add("d/h", Kind::Link("d/f".into()));
        for item in &mut plan.items {
            item.owner = (n, n + 1);
            item.mtime.seconds += i64::from(n);
            item.mtime.nanoseconds = n;
            item.permissions ^= if n == 0 { 0o6 } else { 0o60 };
        }
        let dir = scratch.dir(name);
        plan.make(&dir, u64::from(n));
        dir
    };
    let sources = [make("one", 0), make("two", 1000)];
    let rule = || weald_builder::mode::ModeRule::parse("u=rwX,go=rX").unwrap();
    let base = BuildOptions {
        uid: Some(7),
        gid: Some(8),
        mode: Some(rule()),
        ..quick()
    };
    for mtime in [
        MtimeRule::Set(1_000_000_000),
        MtimeRule::Clamp(1_000_000_000),
    ] {
        let options = BuildOptions {
            mtime,
            ..base.clone()
        };
        assert!(
            bytes(&sources[0], &options) == bytes(&sources[1], &options),
            "{mtime:?}"
        );
        let temp = tempfile::tempdir().unwrap();
        let target = temp.path().join("image");
        build(&sources[1], &target, &options);
        let image = open_checked(&target);
        for (path, permissions) in [("", 0o755), ("d", 0o755), ("d/f", 0o644), ("d/l", 0o777)] {
            let inode = at(&image, path).unwrap();
            let a = inode.attributes;
            assert_eq!((a.uid, a.gid, a.permissions), (7, 8, permissions), "{path}");
            assert_eq!(
                (inode.times.mtime.seconds, inode.times.mtime.nanoseconds),
                (1_000_000_000, 0),
                "{path}"
            );
        }
    }
}

/// Would catch: a clamp that changes earlier times, drops their nanoseconds or keeps later ones.
#[test]
fn a_clamp_leaves_earlier_times_alone() {
    let scratch = Scratch::tmpfs("16m");
    let source = scratch.dir("source");
    let mut plan = Plan::default();
    let times = [
        (-5, 7),
        (999, 999_999_999),
        (1000, 0),
        (1000, 1),
        (1 << 33, 5),
    ];
    for (n, (seconds, nanoseconds)) in times.into_iter().enumerate() {
        plan.file(format!("f{n}"), vec![n as u8; 10]).mtime = weald_format::Timestamp {
            seconds,
            nanoseconds,
        };
    }
    plan.make(&source, 3);
    let target = scratch.path().join("image");
    build(
        &source,
        &target,
        &BuildOptions {
            mtime: MtimeRule::Clamp(1000),
            ..quick()
        },
    );
    let image = open_checked(&target);
    let shown = |n: usize| at(&image, &format!("f{n}")).unwrap().times.mtime;
    let found: Vec<_> = (0..5)
        .map(|n| (shown(n).seconds, shown(n).nanoseconds))
        .collect();
    assert_eq!(
        found,
        [(-5, 7), (999, 999_999_999), (1000, 0), (1000, 0), (1000, 0)]
    );
}
