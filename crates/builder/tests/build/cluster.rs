//! Clustering: similar pieces are adjacent, so that versions take less space; the tree is the same.

use crate::support::*;
use std::fs;
use std::path::Path;
use weald_builder::{BuildOptions, CodecSpec, SmallTree};
use weald_image::{Image, OpenOptions};

fn options(cluster_len: u64) -> BuildOptions {
    BuildOptions {
        codec: CodecSpec::Zstd(3),
        block_len: 256 << 10,
        cluster_len,
        threads: 2,
        ..BuildOptions::level(7).unwrap()
    }
}

/// Versions of a program that differ about every 50 bytes: all are similar, but no repeat is long.
/// Next to each lies unrelated data.
fn make_versions(dir: &Path, versions: std::ops::Range<u64>) {
    let base: Vec<u8> = noise(1, 1 << 20).iter().map(|byte| byte & 63).collect();
    for version in versions {
        let mut program = base.clone();
        let places = noise(version + 100, program.len() / 50);
        for (chunk, place) in program.chunks_mut(50).zip(places) {
            let at = usize::from(place) % chunk.len();
            chunk[at] = version as u8;
        }
        fs::write(dir.join(format!("{version:02}-program")), program).unwrap();
        fs::write(
            dir.join(format!("{version:02}-text")),
            text(version, 60_000),
        )
        .unwrap();
    }
}

/// Would catch: similar pieces that are not adjacent, bytes that are lost, an order that depends on
/// threads.
#[test]
fn versions_take_less_space_and_are_restored() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    make_versions(&source, 0..8);
    let path = |name: &str| scratch.path().join(name);
    let plain = build(&source, &path("plain"), &options(0));
    let clustered = build(&source, &path("clustered"), &options(16 << 10));
    assert_same(&path("clustered"), &source);
    assert_eq!(clustered.tree_digest, plain.tree_digest);
    assert!(
        clustered.image_len * 2 < plain.image_len,
        "{} {}",
        clustered.image_len,
        plain.image_len
    );
    let one = BuildOptions {
        threads: 1,
        ..options(16 << 10)
    };
    let one = build(&source, &path("one"), &one);
    assert_eq!(one.image_digest, clustered.image_digest);
}

/// Would catch: addresses of an older generation or of a base that are moved together with new
/// data.
#[test]
fn addresses_of_generations_and_bases_do_not_change() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let path = |name: &str| scratch.path().join(name);
    make_versions(&source, 0..4);
    build(&source, &path("image"), &options(16 << 10));
    make_versions(&source, 4..9);
    let append = BuildOptions {
        append: true,
        ..options(32 << 10)
    };
    build(&source, &path("image"), &append);
    assert_same(&path("image"), &source);
    make_versions(&source, 9..12);
    let base = BuildOptions {
        bases: vec![path("image")],
        ..options(16 << 10)
    };
    build(&source, &path("behind"), &base);
    assert_same(&path("behind"), &source);
}

/// Would catch: a small tree without long blocks, a large one with them, a user's block size that
/// is overridden, and bytes that are lost on the way from one kind of block to the other.
#[test]
fn a_small_tree_has_long_blocks() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    make_versions(&source, 0..5);
    fs::write(source.join("program"), fs::read("/bin/sh").unwrap()).unwrap();
    let path = |name: &str| scratch.path().join(name);
    let level = BuildOptions::level(7).unwrap();
    let small = level.small_tree.unwrap();
    let built = |name: &str, options: &BuildOptions| {
        let report = build(&source, &path(name), options);
        assert_same(&path(name), &source);
        let image = Image::open_path(&path(name), 0, &OpenOptions::default()).unwrap();
        (image.summary().block_len_max, report.image_len)
    };
    let alike = BuildOptions {
        small_tree: None,
        ..level.clone()
    };
    let (long, short) = (built("small", &level), built("alike", &alike));
    assert_eq!((long.0, short.0), (16 << 20, 4 << 20));
    assert!(long.1 < short.1, "{long:?} {short:?}");
    let asked = BuildOptions {
        block_len: 1 << 20,
        ..level.clone()
    };
    assert_eq!(built("asked", &asked).0, 1 << 20);
    let little = SmallTree {
        len_max: 3 << 20,
        ..small
    };
    let large = BuildOptions {
        small_tree: Some(little),
        ..level.clone()
    };
    assert_eq!(built("large", &large).0, 4 << 20);
}
