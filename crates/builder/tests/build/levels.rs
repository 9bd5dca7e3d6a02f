//! Every level and codec: the image is built, checks clean and reads back exactly; and the times
//! overlay.

use crate::support::*;
use std::path::Path;
use weald_builder::{BuildOptions, CodecSpec, MtimeRule, RewriteOptions, Silent, rewrite_image};
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

/// Would catch: a level or codec that loses data or writes records that the reader refuses.
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

/// Would catch: the same for codecs and block sizes that no level uses.
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
        CodecSpec::Brotli(0),
        CodecSpec::Brotli(6),
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

/// A name that costs several bytes wherever it is stored.
fn file_name(no: u64) -> String {
    let hex: String = noise(no, 60).iter().map(|b| format!("{b:02x}")).collect();
    format!("file{no:02}-{hex}")
}

/// 200 copies of a directory of 50 files, with hard links inside; every copy has other times.
fn copies() -> Plan {
    let mut plan = Plan::default();
    plan.dir("top");
    // More than one block of entries; otherwise names would be stored only once even without
    // sharing.
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

/// Would catch: an overlay that is not chosen although it is smaller, or whose numbers differ from
/// those of the names.
#[test]
fn times_go_into_an_overlay_if_only_they_differ() {
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
    // With one time for all no overlay is needed: this is the saving of the overlay.
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
fn times_go_into_the_entries_if_nothing_is_shared() {
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

/// Would catch: times and links numbered as if omitted files were still in the tree.
#[test]
fn omitted_files_take_no_numbers() {
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
            // The directories show the time of the removal now; the scanned time counts.
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

/// Would catch: a codec for programs that is used for other data, or that a rewrite forgets.
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
        arm64_codec: None,
        block_len: None,
        threads: 1,
        memory_len: 1 << 30,
        limit_len: 0,
        memory_len_max: 0,
        target_kind: weald_builder::TargetKind::File,
        label: None,
    };
    let opened = Image::open_path(&image, 0, &OpenOptions::default()).unwrap();
    rewrite_image(&opened, &rewritten, false, &options, &Silent).unwrap();
    assert_eq!(codecs(&rewritten), (vec![Codec::Zstd], vec![Codec::Lz4]));
    assert_same(&rewritten, &source);
}

/// An ARM64 program of `count` instructions; every other one calls one of forty functions.
fn arm64_program(seed: u64, count: usize) -> Vec<u8> {
    let mut code = b"\x7fELF\x02\x01\x01".to_vec();
    code.resize(64, 0);
    code[18] = 183;
    let noise = noise(seed, count * 2);
    for (at, random) in (16..).zip(noise.chunks(2)) {
        let place = i32::from(random[0] % 40) * 911;
        let word = match at % 2 {
            0 => 0x9400_0000 | (place - at) as u32 & 0x03ff_ffff,
            _ => 0x9100_0000 | u32::from(random[1] & 7),
        };
        code.extend(word.to_le_bytes());
    }
    code
}

/// Stored bytes of the image's blocks of a category.
fn stored_len(image: &Path, category: Category) -> u64 {
    let image = Image::open_path(image, 0, &OpenOptions::default()).unwrap();
    let sections = image.sections().unwrap();
    let of = |s: &&weald_image::SectionInfo| s.stream.is_some_and(|s| s.1 == category);
    sections
        .iter()
        .filter(of)
        .map(|s| s.total().stored_len)
        .sum()
}

/// Writes two programs that share most of their instructions.
fn write_arm64_programs(source: &Path) {
    let first = arm64_program(1, 100_000);
    let mut second = first.clone();
    // Repeats of odd lengths; the fresh instructions between them begin at any position of a block.
    for n in 0..20 {
        let at = 400_000 / 20 * n + 1000;
        second.splice(
            at..at + 10 + n,
            arm64_program(n as u64 + 2, 800)[64..].to_vec(),
        );
        let at = second.len() - 5000;
        second.splice(at..at, noise(n as u64, 1 + n % 4));
    }
    std::fs::write(source.join("first"), &first).unwrap();
    std::fs::write(source.join("second"), &second).unwrap();
}

/// Checks that every fresh extent of the ARM64 stream has the alignment of its place in the file.
fn assert_aligned(opened: &Image) {
    let arm64 = opened.directory().streams.iter();
    let no = arm64
        .clone()
        .position(|s| s.category == Category::Arm64)
        .unwrap();
    let (mut head, mut fresh_count) = (0, 0);
    for path in ["first", "second"] {
        let mut place = 0;
        let content = at(opened, path).unwrap().content.unwrap();
        let visit = &mut |extent: weald_format::pages::Extent| {
            let weald_format::pages::Source::Stream { stream, address } = extent.source else {
                panic!("a hole")
            };
            if usize::from(stream) == no && address >= head {
                assert_eq!(address % 4, place % 4, "{path} at {place}");
                assert!(address - head < 4, "{path} at {place}");
                head = address + extent.len;
                fresh_count += 1;
            }
            place += extent.len;
            Ok(())
        };
        opened.each_extent_of(content, visit).unwrap();
    }
    assert!(fresh_count > 10, "{fresh_count}");
}

/// Would catch: instructions that lose their alignment in a block; a filter that is not applied, or
/// not reversed after a rewrite with other blocks; programs detected although the category is off.
#[test]
fn arm64_instructions_keep_their_alignment() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    let [image, other] = ["image", "other"].map(|name| scratch.path().join(name));
    write_arm64_programs(&source);
    let mut options = quick();
    options.codec = CodecSpec::Zstd(3);
    options.categories.arm64 = true;
    build(&source, &image, &options);
    assert_same(&image, &source);
    let opened = open_checked(&image);
    assert_aligned(&opened);
    let filtered_len = stored_len(&image, Category::Arm64);
    options.categories.arm64 = false;
    build(&source, &other, &options);
    assert_eq!(stored_len(&other, Category::Arm64), 0);
    let plain_len = stored_len(&other, Category::General);
    assert!(
        filtered_len * 10 < plain_len * 8,
        "{filtered_len} of {plain_len}"
    );

    let options = RewriteOptions {
        codec: None,
        x86_codec: None,
        arm64_codec: Some(CodecSpec::Xz(1)),
        block_len: Some(64 << 10),
        threads: 2,
        memory_len: 1 << 30,
        limit_len: 0,
        memory_len_max: 0,
        target_kind: weald_builder::TargetKind::File,
        label: None,
    };
    rewrite_image(&opened, &other, true, &options, &Silent).unwrap();
    assert_same(&other, &source);
    let rewritten_len = stored_len(&other, Category::Arm64);
    assert!(
        rewritten_len * 10 < plain_len * 8,
        "{rewritten_len} of {plain_len}"
    );
}

/// Would catch: a universal file that goes to one stream, or that is not restored.
#[test]
fn programs_in_a_universal_file_are_separated() {
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    let image = scratch.path().join("image");
    let programs = [
        (0x0100_0007u32, text(1, 50_000)),
        (0x0100_000c, arm64_program(1, 20_000)),
    ];
    let mut file = 0xcafe_babe_u32.to_be_bytes().to_vec();
    file.extend(2u32.to_be_bytes());
    let mut start = 4096;
    for (cpu, program) in &programs {
        let len = program.len() as u32;
        file.extend([*cpu, 0, start, len, 12].map(u32::to_be_bytes).concat());
        start = (start + len).next_multiple_of(4096);
    }
    for (_, program) in &programs {
        file.resize(file.len().next_multiple_of(4096), 0);
        file.extend(program);
    }
    file.extend(text(2, 10_000));
    std::fs::write(source.join("several"), file).unwrap();
    let mut options = quick();
    (options.categories.x86, options.categories.arm64) = (true, true);
    build(&source, &image, &options);
    assert_same(&image, &source);
    let image = Image::open_path(&image, 0, &OpenOptions::default()).unwrap();
    let sections = image.sections().unwrap();
    let raw_len = |category| {
        let section = sections
            .iter()
            .find(|s| s.stream.is_some_and(|s| s.1 == category));
        section.unwrap().item_count
    };
    assert_eq!(raw_len(Category::X86), 50_000);
    assert_eq!(raw_len(Category::Arm64), programs[1].1.len() as u64);
    assert!(raw_len(Category::General) >= 10_000);
}

/// Would catch: repeats of uncompressed blocks searched at a wrong offset of the output, or no
/// longer.
#[test]
fn repeats_of_uncompressed_blocks_are_found() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let (long, other) = (noise(1, 9 << 20), noise(2, 3 << 20));
    let write = |name: &str, bytes: &[u8]| std::fs::write(source.join(name), bytes).unwrap();
    write("a", &long);
    write("b", &other);
    // Both far behind the window, beginning at odd offsets.
    write(
        "c",
        &[&long[12_345..5 << 20], b"new", &other[77..]].concat(),
    );
    for (block_len, codec) in [(64 << 10, CodecSpec::None), (1 << 20, CodecSpec::Zstd(1))] {
        let mut options = BuildOptions {
            block_len,
            codec,
            match_len_min: 256,
            memory_len: 128 << 20,
            ..quick()
        };
        for threads in [1, 3] {
            options.threads = threads;
            let report = build_and_compare(&source, &options);
            let distinct = (long.len() + other.len()) as u64;
            assert!(report.block_raw_len < distinct + 4096, "{report:?}");
        }
    }
}
