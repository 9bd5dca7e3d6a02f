//! Blocks that share a dictionary: it is trained on files of the whole tree, used, kept by appends,
//! and dropped when blocks are encoded again.

use crate::support::*;
use std::fs;
use std::path::Path;
use weald_builder::{BuildOptions, CodecSpec, RewriteOptions, Silent, rewrite_image};
use weald_format::container::{Codec, RecordType};
use weald_image::{Image, OpenOptions};
use weald_testkit::Rng;

const GENERAL: u8 = 0;

fn options(threads: usize) -> BuildOptions {
    BuildOptions {
        codec: CodecSpec::Zstd(3),
        block_len: 64 << 10,
        match_len_min: 256,
        dictionary_len: 32 << 10,
        memory_len: 512 << 20,
        threads,
        ..BuildOptions::level(7).unwrap()
    }
}

/// Phrases that all files share, in any order, so that no repeat is long.
fn make_files(dir: &Path, seed: u64, count: u64) {
    let phrases: Vec<Vec<u8>> = (0..400).map(|n| text(n, 30)).collect();
    let mut rng = Rng::new(seed);
    for n in 0..count {
        let mut bytes = Vec::new();
        while bytes.len() < 24_000 {
            bytes.extend_from_slice(rng.pick::<Vec<u8>>(&phrases));
        }
        fs::write(dir.join(format!("f{seed}-{n}")), bytes).unwrap();
    }
}

fn open(path: &Path) -> Image {
    Image::open_path(path, 0, &OpenOptions::default()).unwrap()
}

/// Codecs of the blocks of ordinary data, in order.
fn codecs(image: &Image) -> Vec<Codec> {
    let mut codecs = Vec::new();
    image
        .each_record(RecordType::Data, GENERAL, &mut |record, _| {
            codecs.push(record.codec);
            Ok(())
        })
        .unwrap();
    codecs
}

/// Would catch: a dictionary that is not used, is useless, depends on threads, or is lost or
/// changed later.
#[test]
fn a_dictionary_is_trained_used_kept_and_dropped() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    make_files(&source, 1, 300);
    let path = |name: &str| scratch.path().join(name);
    let one = build(&source, &path("one"), &options(1));
    let two = build(&source, &path("two"), &options(3));
    assert_eq!(one.image_digest, two.image_digest);
    let image = open(&path("one"));
    let dictionary = image.stream_dictionary(GENERAL).unwrap().unwrap();
    assert!((4096..=32 << 10).contains(&dictionary.len()));
    let used = codecs(&image);
    assert!(used.len() > 50 && used.iter().all(|&c| c == Codec::ZstdDictionary));
    assert_same(&path("one"), &source);
    let without = BuildOptions {
        dictionary_len: 0,
        ..options(2)
    };
    let plain = build(&source, &path("plain"), &without);
    assert!(
        one.image_len * 20 < plain.image_len * 19,
        "{one:?} {plain:?}"
    );

    // A new generation uses the existing dictionary, or none if there is none.
    make_files(&source, 2, 100);
    for (name, codec) in [("one", Codec::ZstdDictionary), ("plain", Codec::Zstd)] {
        let before = codecs(&open(&path(name))).len();
        let options = BuildOptions {
            append: true,
            ..options(2)
        };
        build(&source, &path(name), &options);
        let image = open(&path(name));
        let appended = codecs(&image).split_off(before);
        assert!(appended.len() > 10 && appended.iter().all(|&c| c == codec));
        let kept = image.stream_dictionary(GENERAL).unwrap();
        assert_eq!(kept, (name == "one").then(|| dictionary.clone()));
        assert_same(&path(name), &source);
    }

    // A base is read with its own dictionary, whatever the upper image has.
    make_files(&source, 3, 300);
    let over = BuildOptions {
        bases: vec![path("one")],
        ..options(2)
    };
    let report = build(&source, &path("over"), &over);
    assert!(report.base_len > 8_000_000, "{report:?}");
    assert_same(&path("over"), &source);

    // Copied blocks keep the dictionary; blocks that are encoded again use none.
    for (codec, kept) in [(None, true), (Some(CodecSpec::Zstd(1)), false)] {
        let rewrite = RewriteOptions {
            codec,
            x86_codec: None,
            arm64_codec: None,
            block_len: None,
            threads: 2,
            memory_len: 512 << 20,
            limit_len: 0,
            memory_len_max: 0,
            target_kind: weald_builder::TargetKind::File,
            label: None,
        };
        rewrite_image(&open(&path("one")), &path("new"), true, &rewrite, &Silent).unwrap();
        let image = open(&path("new"));
        assert_eq!(image.stream_dictionary(GENERAL).unwrap().is_some(), kept);
        assert_eq!(codecs(&image)[0] == Codec::ZstdDictionary, kept);
        assert_eq!(
            image.summary().tree_digest,
            open(&path("one")).summary().tree_digest
        );
    }
}

/// Would catch: a dictionary that costs more than it can save.
#[test]
fn small_trees_have_none() {
    let scratch = Scratch::tmpfs("128m");
    let source = scratch.dir("source");
    make_files(&source, 1, 40);
    let path = scratch.path().join("image");
    build(&source, &path, &options(2));
    let image = open(&path);
    assert_eq!(image.stream_dictionary(GENERAL).unwrap(), None);
    assert!(codecs(&image).iter().all(|&c| c == Codec::Zstd));
}
