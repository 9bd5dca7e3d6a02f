//! Images rewritten with other blocks show the same tree.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_builder::{
    BuildOptions, CodecSpec, Order, RewriteOptions, RewriteReport, Silent, build_from_image,
    rewrite_image,
};
use weald_format::directory::Category;
use weald_format::{ByteLen, ErrorKind, Result};
use weald_image::{Image, OpenOptions};

fn options() -> RewriteOptions {
    RewriteOptions {
        codec: None,
        x86_codec: None,
        arm64_codec: None,
        block_len: None,
        threads: 2,
        memory_len: 1 << 30,
        limit_len: 0,
        memory_len_max: 0,
        target_kind: weald_builder::TargetKind::File,
        label: None,
    }
}

fn open(path: &Path) -> Image {
    let options = OpenOptions {
        cache_len: ByteLen(1 << 20),
        generation: None,
        ..OpenOptions::default()
    };
    Image::open_path(path, 0, &options).unwrap()
}

fn rewrite(from: &Path, to: &Path, options: &RewriteOptions) -> Result<RewriteReport> {
    rewrite_image(&open(from), to, true, options, &Silent)
}

/// Repeats, noise, a hole, hard links, a gzip file, xattrs; blocks of 64 KiB, so that there are
/// many.
fn built(scratch: &Scratch) -> (PathBuf, PathBuf) {
    let mut plan = Plan::default();
    plan.dir("d").xattrs.push(("user.a".into(), b"b".to_vec()));
    for n in 0..40u64 {
        plan.file(
            format!("d/text{n}"),
            text(n % 30, 20_000 + n as usize * 100),
        );
    }
    plan.file("noise", noise(1, 300_000));
    plan.add(
        "sparse",
        Kind::File(vec![(1 << 20, text(99, 5000))], 3 << 20),
    );
    plan.add("hard", Kind::Link("noise".into()));
    let source = scratch.dir("source");
    plan.make(&source, 1);
    let script = "gzip -9 -c d/text1 d/text2 d/text3 > all.gz";
    let status = std::process::Command::new("sh")
        .args(["-ec", script])
        .current_dir(&source)
        .status();
    assert!(status.unwrap().success());
    let image = scratch.path().join("image");
    let mut options = quick();
    options.block_len = 64 << 10;
    options.categories.deflate = true;
    let report = build(&source, &image, &options);
    assert!(report.made_len > 0);
    (source, image)
}

/// Would catch: blocks out of order, cut wrongly, or missing; streams with a wrong block length.
#[test]
fn the_tree_is_the_same_for_any_blocks() {
    let scratch = Scratch::tmpfs("256m");
    let (source, image) = built(&scratch);
    let digest = open(&image).summary().tree_digest;
    let target = scratch.path().join("target");
    let codecs = [
        None,
        Some(CodecSpec::None),
        Some(CodecSpec::Lz4),
        Some(CodecSpec::Zstd(3)),
        Some(CodecSpec::Xz(1)),
    ];
    for codec in codecs {
        for block_len in [None, Some(4096), Some(100_000), Some(8 << 20)] {
            let options = RewriteOptions {
                codec,
                block_len,
                ..options()
            };
            let report = rewrite(&image, &target, &options).unwrap();
            assert_eq!(report.tree_digest, digest, "{options:?}");
            assert_eq!(report.image_len, std::fs::metadata(&target).unwrap().len());
            let rewritten = open(&target);
            assert_eq!(rewritten.summary().image_digest, report.image_digest);
            if let Some(len) = block_len {
                assert!(rewritten.directory().streams[0].block_len_max == len);
            }
            drop(rewritten);
            // Checks the whole image and compares it with the source.
            assert_same(&target, &source);
        }
    }
}

/// Would catch: uncompressed blocks that exceed a processor's cache, and a rewrite that cuts them
/// again without need.
#[test]
fn uncompressed_data_has_short_blocks() {
    let scratch = Scratch::tmpfs("64m");
    let mut plan = Plan::default();
    plan.file("noise", noise(1, 5 << 19));
    plan.file("text", text(1, 50_000));
    let source = scratch.dir("source");
    plan.make(&source, 1);
    let (image, target) = (scratch.path().join("image"), scratch.path().join("target"));
    let mut build_options = quick();
    (build_options.block_len, build_options.memory_len) = (4 << 20, 256 << 20);
    build(&source, &image, &build_options);
    let lens = |path| {
        let streams = open(path).directory().streams.clone();
        let len = |category| {
            let stream = streams.iter().find(|s| s.category == category).unwrap();
            stream.block_len_max
        };
        (len(Category::General), len(Category::Incompressible))
    };
    assert_eq!(lens(&image), (4 << 20, 512 << 10));
    for (wanted, expected, copied_count) in [
        (8 << 20, (8 << 20, 512 << 10), 5),
        (64 << 10, (64 << 10, 64 << 10), 0),
    ] {
        let block_len = Some(wanted);
        let options = RewriteOptions {
            block_len,
            ..options()
        };
        let report = rewrite(&image, &target, &options).unwrap();
        assert_eq!(lens(&target), expected);
        assert_eq!(report.copied_count, copied_count);
        assert_same(&target, &source);
    }
}

/// Would catch: work that is not needed, and bytes that depend on threads.
#[test]
fn unchanged_blocks_are_copied_and_threads_do_not_matter() {
    let scratch = Scratch::tmpfs("256m");
    let (_, image) = built(&scratch);
    let target = |name: &str| scratch.path().join(name);
    let report = rewrite(&image, &target("copy"), &options()).unwrap();
    assert_eq!(report.encoded_count, 0);
    // Data comes before the rest now, so offsets take other bytes in the index.
    assert!(
        report.image_len.abs_diff(report.old_len) < 100,
        "{report:?}"
    );
    // Incompressible blocks are copied although the codec changes.
    let zstd = RewriteOptions {
        codec: Some(CodecSpec::Zstd(5)),
        ..options()
    };
    let report = rewrite(&image, &target("one"), &zstd).unwrap();
    assert!(
        report.encoded_count > 5 && report.copied_count >= 5,
        "{report:?}"
    );
    let one_thread = RewriteOptions { threads: 1, ..zstd };
    rewrite(&image, &target("other"), &one_thread).unwrap();
    let read = |name: &str| std::fs::read(target(name)).unwrap();
    assert!(read("one") == read("other"));
}

/// Would catch: bad options, a small budget or damage that do not give an error, or that leave a
/// file.
#[test]
fn a_failed_rewrite_reports_and_leaves_no_file() {
    let scratch = Scratch::tmpfs("256m");
    let (_, image) = built(&scratch);
    let target = scratch.path().join("target");
    let kind = |options: &RewriteOptions| rewrite(&image, &target, options).unwrap_err().kind();
    let bad = [
        (Some(CodecSpec::Zstd(23)), None),
        (Some(CodecSpec::Xz(10)), None),
        (Some(CodecSpec::Brotli(12)), None),
        (None, Some(4095)),
        (None, Some((64 << 20) + 1)),
    ];
    for (codec, block_len) in bad {
        let options = RewriteOptions {
            codec,
            block_len,
            ..options()
        };
        assert_eq!(kind(&options), ErrorKind::Invalid);
    }
    let small = RewriteOptions {
        codec: Some(CodecSpec::Zstd(19)),
        block_len: Some(16 << 20),
        memory_len: 100 << 20,
        ..options()
    };
    assert_eq!(kind(&small), ErrorKind::Limit);
    let bytes = std::fs::read(&image).unwrap();
    for at in (64..bytes.len()).step_by(bytes.len() / 40) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        let opened = Image::open(
            Arc::new(damaged),
            &OpenOptions {
                cache_len: ByteLen(1 << 20),
                generation: None,
                ..OpenOptions::default()
            },
        );
        let result = opened.and_then(|i| rewrite_image(&i, &target, true, &options(), &Silent));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt, "byte {at}");
        assert!(!target.exists());
    }
    assert_eq!(names(&scratch.path()), ["image", "source"]);
}

/// Builds an image from the image at `from`.
fn pack(from: &Path, to: &Path, options: &BuildOptions) -> Result<weald_builder::Report> {
    build_from_image(&Arc::new(open(from)), to, true, options, &Silent)
}

/// Would catch: names, attributes, xattrs, links or holes lost when an image is the source; times
/// that are not kept; an image that differs from one built from the directory.
#[test]
fn an_image_can_be_a_source() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    make_all_kinds(&source);
    shell(
        &source,
        "seq 1 200000 > n; gzip -9 < n > n.gz; seq 1 2000000 > long; truncate -s 9M long; ln long \
         long2",
    );
    let (image, again, third) = (
        scratch.path().join("image"),
        scratch.path().join("again"),
        scratch.path().join("third"),
    );
    for keeps_times in [false, true] {
        let mut options = quick();
        options.memory_len = 192 << 20;
        options.categories.deflate = true;
        (options.keep_ctime, options.keep_btime) = (keeps_times, keeps_times);
        let built = build(&source, &image, &options);
        let packed = pack(&image, &again, &options).unwrap();
        assert_eq!(packed.tree_digest, built.tree_digest);
        assert_eq!(packed.problem_count, 0);
        // Holes are at the same offsets too, and the bytes are the same.
        assert!(std::fs::read(&image).unwrap() == std::fs::read(&again).unwrap());
        assert_same(&again, &source);
        options.order = Order::Name;
        options.categories.deflate = false;
        options.codec = CodecSpec::Lz4;
        let packed = pack(&again, &third, &options).unwrap();
        assert_eq!(packed.tree_digest, built.tree_digest);
        assert_eq!(packed.made_len, 0);
        assert_same(&third, &source);
    }
}

/// Would catch: data of older generations that is copied, and a target that cannot be its own
/// source.
#[test]
fn a_rebuild_drops_older_generations() {
    let scratch = Scratch::tmpfs("256m");
    let source = scratch.dir("source");
    let image = scratch.path().join("image");
    std::fs::write(source.join("stays"), text(1, 100_000)).unwrap();
    std::fs::write(source.join("goes"), noise(1, 3_000_000)).unwrap();
    let mut options = quick();
    options.append = true;
    options.memory_len = 192 << 20;
    build(&source, &image, &options);
    std::fs::remove_file(source.join("goes")).unwrap();
    let report = build(&source, &image, &options);
    assert!(report.image_len > 3_000_000);
    options.append = false;
    let packed = pack(&image, &image, &options).unwrap();
    assert_eq!(packed.tree_digest, report.tree_digest);
    assert!(packed.image_len < 100_000, "{}", packed.image_len);
    assert_eq!(packed.generation, 1);
    assert_same(&image, &source);
}

/// Would catch: attributes that do not change, and rules that work for files on disk only.
#[test]
fn owners_and_rules_work_on_images_too() {
    let scratch = Scratch::tmpfs("256m");
    let (_, image) = built(&scratch);
    let target = scratch.path().join("target");
    let mut options = quick();
    options.uid = Some(77);
    options
        .filter
        .push_exclude("/d/text3*")
        .and_then(|()| options.filter.push_exclude("noise"))
        .unwrap();
    pack(&image, &target, &options).unwrap();
    let packed = open(&target);
    let root = packed.root().unwrap();
    assert_eq!(root.attributes.uid, 77);
    let name = |dir, name: &[u8]| packed.lookup(dir, name).unwrap();
    assert!(name(root.ino, b"noise").is_none());
    let d = name(root.ino, b"d").unwrap();
    assert!(name(d.ino, b"text2").is_some_and(|i| i.attributes.uid == 77));
    for n in [b"text3".as_slice(), b"text33"] {
        assert!(name(d.ino, n).is_none());
    }
}

/// Would catch: a damaged file silently missing in the image that replaces its source.
#[test]
fn a_damaged_image_is_not_rebuilt() {
    let scratch = Scratch::tmpfs("256m");
    let (_, image) = built(&scratch);
    let target = scratch.path().join("target");
    let mut bytes = std::fs::read(&image).unwrap();
    // The first record behind the superblock is data.
    bytes[4096] ^= 1;
    std::fs::write(&image, &bytes).unwrap();
    let error = pack(&image, &target, &quick()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(!target.exists());
    assert!(std::fs::read(&image).unwrap() == bytes);
}
