//! Every level and every codec: builds, checks clean, reads back byte for byte; and the times overlay.

mod build_support;

use build_support::*;
use std::path::Path;
use weald_build::{BuildOptions, CodecSpec, MtimeRule, RewriteOptions, Silent, rewrite_image};
use weald_format::Timestamp;
use weald_format::container::Codec;
use weald_format::directory::Category;
use weald_image::{Image, OpenOptions};

/// Text, noise, executables, zeros, repeats near and far, an almost equal twin, holes, links.
fn sample() -> Plan {
    let mut plan = Plan::default();
    plan.dir("a");
    plan.dir("a/b");
    plan.file("a/text", text(1, 700_000));
    plan.file("a/noise", noise(2, 600_000));
    plan.file("a/zeros", vec![0; 300_000]);
    plan.file("a/b/copy", text(1, 700_000));
    let mut twin = text(1, 700_000);
    twin.splice(350_000..350_010, *b"other things");
    plan.file("a/b/twin", twin);
    plan.file("a/b/program", std::fs::read("/bin/sh").unwrap());
    plan.file("a/b/tail", noise(2, 600_000)[1234..].to_vec());
    plan.file("a/b/one", vec![7]);
    plan.file("a/b/none", vec![]);
    plan.add(
        "a/b/sparse",
        Kind::File(vec![(1 << 20, text(3, 100_000))], 9 << 20),
    );
    plan.add("a/b/only-hole", Kind::File(vec![], 1 << 33));
    plan.add("a/hard", Kind::Link("a/text".into()));
    plan.file("long", text(4, 100_000).repeat(53));
    plan
}

/// Would catch: a level or codec that loses data or writes what the reader refuses.
#[test]
fn every_level_reads_back() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    sample().make(&source, 1);
    let mut lens = Vec::new();
    for level in 0..=9 {
        lens.push(build_and_compare(&source, &BuildOptions::level(level).unwrap()).image_len);
    }
    assert!(lens[9] < lens[1] && lens[1] < lens[0], "{lens:?}");
}

/// Would catch: as before, for what `--codec` and `--block-size` reach and no level does.
#[test]
fn every_codec_and_block_size_reads_back() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    sample().make(&source, 1);
    let specs = [
        CodecSpec::None,
        CodecSpec::Lz4,
        CodecSpec::Lz4Hc(12),
        CodecSpec::Zstd(1),
        CodecSpec::Zstd(22),
        CodecSpec::Xz(0),
        CodecSpec::Xz(6),
    ];
    for codec in specs {
        build_and_compare(
            &source,
            &BuildOptions {
                codec,
                block_len: 1 << 20,
                ..quick()
            },
        );
    }
    for block_len in [4096, 5000, 65_536, 64 << 20] {
        build_and_compare(
            &source,
            &BuildOptions {
                block_len,
                memory_len: 2 << 30,
                ..quick()
            },
        );
    }
    for match_len_min in [0, 64, 4096] {
        build_and_compare(
            &source,
            &BuildOptions {
                match_len_min,
                ..quick()
            },
        );
    }
}

/// A name that costs something wherever it is told.
fn file_name(no: u64) -> String {
    let hex: String = noise(no, 60).iter().map(|b| format!("{b:02x}")).collect();
    format!("file{no:02}-{hex}")
}

/// 200 copies of a directory of 50 files, with hard links inside, every copy with other times.
fn copies() -> Plan {
    let mut plan = Plan::default();
    plan.dir("top");
    // More than one block of entries, or the names would be told only once even without sharing.
    for c in 0..400 {
        plan.dir(format!("top/copy{c:03}"));
        for f in 0..50 {
            plan.file(
                format!("top/copy{c:03}/{}", file_name(f)),
                format!("file {f}").into_bytes(),
            );
        }
        plan.add(
            format!("top/copy{c:03}/linked"),
            Kind::Link(format!("top/copy{c:03}/{}", file_name(7))),
        );
    }
    for copy in (0..400).step_by(9) {
        plan.add(
            format!("top/copy{copy:03}/zz-across"),
            Kind::Link(format!("top/copy000/{}", file_name(3))),
        );
    }
    plan
}

/// Would catch: an overlay that is not chosen where it pays, or whose numbers are not those of the names.
#[test]
fn times_lie_beside_the_tree_where_only_they_differ() {
    let scratch = Scratch::tmpfs("256m");
    let source = scratch.dir("source");
    copies().make(&source, 1);
    let report = build_and_compare(&source, &quick());
    assert!(
        report.stored_entry_count * 5 < report.entry_count,
        "{report:?}"
    );
    let target = scratch.path().join("image");
    build(&source, &target, &quick());
    assert!(has_times_section(&target));
    // With one time for all, nothing has to lie beside: this is what the overlay saves the rest from.
    let set = build(
        &source,
        &target,
        &BuildOptions {
            mtime: MtimeRule::Set(0),
            ..quick()
        },
    );
    assert!(!has_times_section(&target));
    assert_eq!(set.stored_entry_count, report.stored_entry_count);
}

/// Would catch: an overlay although the tree is smaller without it.
#[test]
fn times_lie_in_the_tree_where_nothing_is_shared() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    let mut plan = Plan::default();
    for d in 0..100 {
        plan.dir(format!("d{d}"));
        (0..20).for_each(|f| _ = plan.file(format!("d{d}/{d}-{f}"), vec![f]));
    }
    plan.make(&source, 1);
    let target = scratch.path().join("image");
    build(&source, &target, &quick());
    assert!(!has_times_section(&target));
    assert_same(&target, &source);
}

fn has_times_section(target: &std::path::Path) -> bool {
    let image = open_checked(target);
    image
        .sections()
        .unwrap()
        .iter()
        .any(|s| s.record_type == weald_format::container::RecordType::Times)
}

/// Would catch: times and links numbered as if files that could not be read were still there.
#[test]
fn files_left_out_take_no_numbers() {
    let scratch = Scratch::tmpfs("256m");
    let source = scratch.dir("source");
    copies().make(&source, 1);
    let target = scratch.path().join("image");
    let gone = [(0, 0), (3, 49), (100, 20), (199, 49)]
        .map(|(c, f)| format!("copy{c:03}/{}", file_name(f)));
    let remove = |asked| {
        if asked == 0 {
            gone.iter()
                .for_each(|path| std::fs::remove_file(source.join("top").join(path)).unwrap());
            // Their directories show the time of the removal now; what was scanned counts.
            let times = copies().items;
            for item in times
                .iter()
                .filter(|i| gone.iter().any(|g| i.path == format!("top/{}", &g[..7])))
            {
                let dir = weald_sys::open_dir(&source.join(&item.path)).unwrap();
                let mtime: Option<Timestamp> = Some(item.mtime);
                weald_sys::set_times_fd(&dir, weald_sys::NewTimes { mtime, atime: None }).unwrap();
            }
        }
    };
    let (_, problems) = build_meddled(&source, &target, &quick(), remove).unwrap();
    assert_eq!(problems.len(), 4, "{problems:#?}");
    assert!(has_times_section(&target));
    assert_same(&target, &source);
}

/// Would catch: a codec for programs that other data gets, or that rewriting forgets.
#[cfg(target_arch = "x86_64")]
#[test]
fn programs_can_have_a_codec_of_their_own() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    let image = scratch.path().join("image");
    let rewritten = scratch.path().join("rewritten");
    shell(&source, "cp /bin/ls program; seq 1 50000 > text");
    let mut options = quick();
    options.codec = CodecSpec::Zstd(1);
    options.x86_codec = Some(CodecSpec::Xz(1));
    options.categories.x86 = true;
    build(&source, &image, &options);
    assert_same(&image, &source);
    let codecs = |path: &Path| {
        let image = Image::open_path(path, 0, &OpenOptions::default()).unwrap();
        let of = |category| {
            let sections = image.sections().unwrap();
            let section = sections
                .iter()
                .find(|s| s.stream.is_some_and(|s| s.1 == category));
            section
                .unwrap()
                .by_codec
                .keys()
                .copied()
                .collect::<Vec<_>>()
        };
        (of(Category::General), of(Category::X86))
    };
    assert_eq!(codecs(&image), (vec![Codec::Zstd], vec![Codec::Xz]));
    let options = RewriteOptions {
        codec: None,
        x86_codec: Some(CodecSpec::Lz4Hc(9)),
        block_len: None,
        threads: 1,
        memory_len: 1 << 30,
    };
    let opened = Image::open_path(&image, 0, &OpenOptions::default()).unwrap();
    rewrite_image(&opened, &rewritten, false, &options, &Silent).unwrap();
    assert_eq!(codecs(&rewritten), (vec![Codec::Zstd], vec![Codec::Lz4]));
    assert_same(&rewritten, &source);
}
