//! Images with base images: data of a base is referred to, read through the upper image, and
//! verified with it.

use crate::support::*;
use std::fs;
use std::path::{Path, PathBuf};
use weald_builder::{BuildOptions, Report, RewriteOptions, Silent, build_image, rewrite_image};
use weald_format::container::RecordType;
use weald_format::{ByteLen, ErrorKind, Result};
use weald_image::{CheckOptions, Image, OpenOptions};

fn options(bases: &[&Path]) -> BuildOptions {
    let mut options = BuildOptions {
        block_len: 64 << 10,
        memory_len: 256 << 20,
        bases: bases.iter().map(|path| path.to_path_buf()).collect(),
        ..quick()
    };
    options.categories.deflate = true;
    options
}

fn make(source: &Path, image: &Path, bases: &[&Path]) -> Report {
    build(source, image, &options(bases))
}

fn open(path: &Path, dirs: &[PathBuf]) -> Result<Image> {
    let options = OpenOptions {
        cache_len: ByteLen(32 << 20),
        base_dirs: dirs.to_vec(),
        ..OpenOptions::default()
    };
    Image::open_path(path, 0, &options)
}

fn len(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

/// Would catch: extents that lead to wrong streams of a base; data stored twice; recipes whose
/// plain content is itself made by recipes.
#[test]
fn data_of_bases_is_not_stored_again_and_is_restored() {
    let scratch = Scratch::tmpfs("512m");
    let (source, other) = (scratch.dir("source"), scratch.dir("other"));
    let image = |name: &str| scratch.path().join(name);
    make_all_kinds(&source);
    make(&source, &image("one"), &[]);
    // The same tree: names and extents, no data.
    let report = make(&source, &image("same"), &[&image("one")]);
    assert_eq!(report.block_raw_len, 0);
    assert!(report.base_len > 5_000_000, "{report:?}");
    assert!(len(&image("same")) < 8_000, "{}", len(&image("same")));
    assert_same(&image("same"), &source);

    // New files with parts of the base's files; the same plain bytes in another stream; a gzip file
    // of the base inside a zip file.
    shell(
        &source,
        "cp -a d e; for f in e/text1*; do sed -i '1s/^/edited /' $f; done; cat noise d/text7 huge \
         > long
         gzip -1 -c d/text9 > new.gz; gzip -6 -c all.gz > twice.gz; head -c 100000 /dev/urandom > \
          fresh",
    );
    let report = make(&source, &image("two"), &[&image("one")]);
    assert!(report.block_raw_len < 200_000, "{report:?}");
    assert_same(&image("two"), &source);

    // Two bases, one of which has a base itself; each holds a part of the tree.
    fs::write(other.join("other"), noise(9, 500_000)).unwrap();
    make(&other, &image("three"), &[]);
    fs::copy(other.join("other"), source.join("other")).unwrap();
    let report = make(&source, &image("four"), &[&image("two"), &image("three")]);
    assert!(report.block_raw_len < 1000, "{report:?}");
    assert_same(&image("four"), &source);
    let digests = |image: &Image| {
        image
            .directory()
            .bases
            .iter()
            .map(|b| b.image_digest)
            .collect::<Vec<_>>()
    };
    let opened = open(&image("four"), &[]).unwrap();
    let digest = |name: &str| open(&image(name), &[]).unwrap().summary().image_digest;
    assert_eq!(digests(&opened), [digest("two"), digest("three")]);

    // The tree is the same as without a base, and the bytes do not depend on threads.
    let alone = make(&source, &image("alone"), &[]);
    assert_eq!(alone.tree_digest, report.tree_digest);
    for threads in [1, 3] {
        let options = BuildOptions {
            threads,
            ..options(&[&image("two"), &image("three")])
        };
        build(&source, &image("again"), &options);
        assert!(fs::read(image("again")).unwrap() == fs::read(image("four")).unwrap());
    }

    // After a rewrite or an append the image keeps its bases.
    let rewrite = RewriteOptions {
        codec: Some(weald_builder::CodecSpec::Zstd(1)),
        x86_codec: None,
        arm64_codec: None,
        block_len: Some(4096),
        threads: 2,
        memory_len: 256 << 20,
        limit_len: 0,
        memory_len_max: 0,
        target_kind: weald_builder::TargetKind::File,
        label: None,
    };
    rewrite_image(&opened, &image("rewritten"), false, &rewrite, &Silent).unwrap();
    assert_same(&image("rewritten"), &source);
    shell(&source, "cp -a d f; echo more >> f/text3");
    let append = BuildOptions {
        append: true,
        ..options(&[])
    };
    let report = build_image(&source, &image("four"), false, &append, &Silent).unwrap();
    assert_eq!(report.generation, 2);
    assert!(report.appended_len.unwrap() < 4000, "{report:?}");
    assert_same(&image("four"), &source);
}

/// Would catch: a wrong image taken for the base, a base looked up in wrong directories, an older
/// generation that is not found.
#[test]
fn bases_are_found_by_their_digests() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    make_all_kinds(&source);
    let at = |name: &str| scratch.path().join(name);
    make(&source, &at("base"), &[]);
    fs::write(source.join("new"), "new").unwrap();
    make(&source, &at("top"), &[&at("base")]);
    // Another image has the name of the base; the base lies next to it under another name.
    fs::rename(at("base"), at("renamed")).unwrap();
    fs::copy(at("top"), at("base")).unwrap();
    assert_same(&at("top"), &source);
    // The base is in another directory.
    let dir = scratch.dir("bases");
    fs::rename(at("renamed"), dir.join("base")).unwrap();
    let error = open(&at("top"), &[]).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(
        text.contains("F-22.1") && text.contains("base with image digest"),
        "{text}"
    );
    let image = open(&at("top"), std::slice::from_ref(&dir)).unwrap();
    assert_eq!(differences(&image, &source), Vec::<String>::new());
    // The base has a newer generation.
    let append = BuildOptions {
        append: true,
        ..options(&[])
    };
    build_image(&source, &dir.join("base"), false, &append, &Silent).unwrap();
    let image = open(&at("top"), std::slice::from_ref(&dir)).unwrap();
    assert_eq!(differences(&image, &source), Vec::<String>::new());
    // The base is missing.
    fs::remove_file(dir.join("base")).unwrap();
    assert!(open(&at("top"), &[dir]).is_err());
    let missing = build_image(&source, &at("x"), false, &options(&[&at("none")]), &Silent);
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!at("x").exists());
}

/// Would catch: bytes of a damaged base that are returned, or an error that names no file.
#[test]
fn damage_of_a_base_is_found_through_the_upper_image() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    make_all_kinds(&source);
    let at = |name: &str| scratch.path().join(name);
    make(&source, &at("base"), &[]);
    make(&source, &at("top"), &[&at("base")]);
    let mut bytes = fs::read(at("base")).unwrap();
    // Within the data, which comes first.
    bytes[10_000] ^= 1;
    fs::write(at("base"), &bytes).unwrap();
    let image = open(&at("top"), &[]).unwrap();
    let check = CheckOptions {
        digests_only: false,
        threads: 2,
        path_count_max: 100,
    };
    let mut findings = Vec::new();
    let report = image.check(&check, &mut |finding| findings.push(format!("{finding:?}")));
    assert!(
        report.path_count > 0 && report.structure_count > 0,
        "{findings:#?}"
    );
}

/// Would catch: an unlimited number of images on top of each other.
#[test]
fn the_number_of_stacked_images_is_limited() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    fs::write(source.join("file"), noise(1, 5000)).unwrap();
    let at = |n: u32| scratch.path().join(format!("image{n}"));
    let plain = options(&[]);
    build_image(&source, &at(0), false, &plain, &Silent).unwrap();
    let mut failed = None;
    // An image has the streams of all images below it, so the number of streams limits the height.
    for n in 1..20 {
        let below = at(n - 1);
        match build_image(&source, &at(n), false, &options(&[&below]), &Silent) {
            Ok(_) => assert_same(&at(n), &source),
            Err(error) => {
                failed = Some((n, error.kind()));
                break;
            }
        }
    }
    assert!(
        matches!(failed, Some((n, ErrorKind::Limit)) if n > 8),
        "{failed:?}: F-22.2 is for forged ones"
    );
}

/// Would catch: new blocks and pages compressed without the history of the base, or with records of
/// another image or stream as history.
#[test]
fn small_blocks_and_pages_use_the_history_of_a_base() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let at = |name: &str| scratch.path().join(name);
    for i in 0..40 {
        fs::write(source.join(format!("file{i}")), known_words(i)).unwrap();
    }
    let options = |bases: &[&Path]| BuildOptions {
        codec: weald_builder::CodecSpec::Zstd(19),
        ..options(bases)
    };
    build(&source, &at("other"), &options(&[]));
    fs::write(source.join("noise"), noise(1, 3000)).unwrap();
    build(&source, &at("base"), &options(&[]));
    build(&source, &at("middle"), &options(&[&at("base")]));
    let old = known_words(3);
    let new = format!("{}{}", &old[..2000], &known_words(100)[..6000]);
    fs::write(source.join("new"), new).unwrap();
    for (name, bases) in [
        ("one", &[at("base")][..]),
        ("two", &[at("other"), at("base")]),
        ("tower", &[at("middle")]),
    ] {
        let bases: Vec<&Path> = bases.iter().map(PathBuf::as_path).collect();
        build(&source, &at(name), &options(&bases));
        assert_same(&at(name), &source);
        let image = open(&at(name), &[]).unwrap();
        // A single record of a type needs no index page.
        let sections = image.sections().unwrap();
        assert!(sections.iter().all(|s| s.total().record_count == 1));
        let after = after_history(&image);
        let has = |is_data| {
            let mut types = after.iter().map(|r| r.record_type);
            types.any(|t| (t == RecordType::Data) == is_data)
        };
        // Pages of the middle image have histories themselves.
        assert!(
            has(true) && (has(false) || name == "tower"),
            "{name}: {after:?}"
        );
        // The cost of a read includes the blocks of the base.
        let mut cost = weald_image::DecodeCost::default();
        let content = crate::support::at(&image, "new").unwrap().content.unwrap();
        let len = image.content_len(content).unwrap();
        image
            .add_decode_cost(content, len - 1..len, &mut cost)
            .unwrap();
        assert!(cost.decoded_len() > 4 << 16, "{}", cost.decoded_len());
    }
    // After a rewrite the extents still lead to the base.
    let rewrite = RewriteOptions {
        codec: None,
        x86_codec: None,
        arm64_codec: None,
        block_len: None,
        threads: 1,
        memory_len: 256 << 20,
        limit_len: 0,
        memory_len_max: 0,
        target_kind: weald_builder::TargetKind::File,
        label: None,
    };
    let image = open(&at("one"), &[]).unwrap();
    rewrite_image(&image, &at("again"), false, &rewrite, &Silent).unwrap();
    assert_same(&at("again"), &source);
}
