//! Clustering: similar pieces are adjacent, so that versions take less space; the tree is the same.

mod build_support;

use build_support::*;
use std::fs;
use std::path::Path;
use weald_builder::{BuildOptions, CodecSpec};

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
