//! Generations: each tree appended to an image stays readable and costs only its new data.

use crate::support::*;
use std::fs;
use std::path::{Path, PathBuf};
use weald_builder::{
    BuildOptions, Report, RewriteOptions, TargetKind, build_image, recover_image, rewrite_image,
};
use weald_format::ErrorKind;
use weald_format::container::{FOOTER_LEN, RecordType};
use weald_image::{Image, OpenOptions, generations};
use weald_testkit::Rng;

fn appending() -> BuildOptions {
    let mut options = BuildOptions {
        append: true,
        allow_removal: true,
        block_len: 64 << 10,
        memory_len: 192 << 20,
        ..quick()
    };
    options.categories.deflate = true;
    options
}

fn append(source: &Path, image: &Path) -> Report {
    let observer = Meddler::new(|_| ());
    let report = build_image(source, image, false, &appending(), &observer).unwrap();
    assert_eq!(observer.lines(), Vec::<String>::new());
    report
}

/// Copies the source, to keep the tree of a generation.
fn keep(source: &Path, name: &str) -> PathBuf {
    let copy = source.parent().unwrap().join(name);
    shell(
        source.parent().unwrap(),
        &format!("cp -a --sparse=always source {name}"),
    );
    copy
}

fn open(image: &Path, generation: u64) -> Image {
    let options = OpenOptions {
        generation: Some(generation),
        ..OpenOptions::default()
    };
    Image::open_path(image, 0, &options).unwrap()
}

/// Would catch: contents, directories, attributes or links of another generation; streams continued
/// at a wrong address; recipes that name wrong contents; parts of an older generation lost.
#[test]
fn every_generation_shows_its_own_tree() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let image = scratch.path().join("image");
    make_all_kinds(&source);
    // After the last change, almost nothing is left.
    let changes = CHANGES.into_iter().chain(["rm -r d e; rm -f *.gz noise*"]);
    let mut reports = vec![append(&source, &image)];
    let mut copies = vec![keep(&source, "copy1")];
    assert_eq!(reports[0].generation, 1);
    for (change, number) in changes.zip(2u64..) {
        shell(&source, change);
        let before = fs::read(&image).unwrap();
        let report = append(&source, &image);
        let after = fs::read(&image).unwrap();
        assert!(
            after.starts_with(&before),
            "an older generation was changed"
        );
        assert_eq!(report.generation, number);
        assert_eq!(
            report.appended_len,
            Some((after.len() - before.len()) as u64)
        );
        reports.push(report);
        copies.push(keep(&source, &format!("copy{number}")));
        assert_same(&image, &source);
        for (copy, number) in copies.iter().zip(1u64..) {
            let differences = differences(&open(&image, number), copy);
            assert!(differences.is_empty(), "{number}: {differences:#?}");
        }
        // A new build of the same tree has the same identity.
        let anew = scratch.path().join("anew");
        let options = BuildOptions {
            append: false,
            ..appending()
        };
        let built = build(&source, &anew, &options);
        assert_eq!(built.tree_digest, reports.last().unwrap().tree_digest);
    }
    assert_listed(&image, &reports, &copies);
    // A rewrite keeps only the last generation.
    let rewritten = scratch.path().join("rewritten");
    let rewrite = RewriteOptions {
        codec: None,
        x86_codec: None,
        arm64_codec: None,
        block_len: None,
        threads: 2,
        memory_len: 256 << 20,
        limit_len: 0,
        memory_len_max: 0,
        target_kind: TargetKind::File,
        label: None,
    };
    let last = open(&image, 4);
    rewrite_image(&last, &rewritten, false, &rewrite, &weald_builder::Silent).unwrap();
    assert_eq!(generations(&rewritten).unwrap().len(), 1);
    assert_same(&rewritten, &source);
}

/// Checks that `image` has four generations, those of `reports`, with the trees in `copies`.
fn assert_listed(image: &Path, reports: &[Report], copies: &[PathBuf]) {
    let listed = generations(image).unwrap();
    let numbers: Vec<u64> = listed.iter().map(|g| g.number).collect();
    assert_eq!(numbers, [4, 3, 2, 1]);
    for generation in &listed {
        let report = &reports[generation.number as usize - 1];
        assert_eq!(generation.image_digest, report.image_digest);
        assert_eq!(generation.tree_digest, report.tree_digest);
        // A digest finds its generation. Truncated behind a generation, the file is that
        // generation.
        let by_digest = OpenOptions {
            expected_digest: Some(generation.image_digest),
            ..OpenOptions::default()
        };
        let found = Image::open_path(image, 0, &by_digest).unwrap();
        assert_eq!(found.summary().generation, generation.number);
        let cut = image.with_file_name("cut");
        let bytes = fs::read(image).unwrap();
        fs::write(&cut, &bytes[..generation.image_len as usize]).unwrap();
        assert_same(&cut, &copies[generation.number as usize - 1]);
    }
    let none = OpenOptions {
        generation: Some(5),
        ..OpenOptions::default()
    };
    let error = Image::open_path(image, 0, &none).err().unwrap();
    assert!(
        error
            .to_string()
            .contains("generation: expected 1 to 4, found 5"),
        "{error}"
    );
}

/// Would catch: an image that grows although nothing changed, or by more than the new data.
#[test]
fn existing_data_is_not_stored_again() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let image = scratch.path().join("image");
    make_all_kinds(&source);
    append(&source, &image);
    let before = fs::read(&image).unwrap();
    let report = append(&source, &image);
    assert_eq!((report.generation, report.appended_len), (1, Some(0)));
    assert!(fs::read(&image).unwrap() == before);

    // A version of every file, edited in one place: parts of old files, whole old files under new
    // names.
    shell(
        &source,
        "cp -a d v2; for f in v2/text1*; do sed -i '1s/^/edited /' $f; done",
    );
    let appended = append(&source, &image).appended_len.unwrap();
    assert!(appended < 16_000, "{appended} bytes for a few edits");
    // Back to the first tree: at most the directories above the differences are written again.
    shell(&source, "rm -r v2");
    shell(&source, "touch -d @1600000000 .");
    let appended = append(&source, &image).appended_len.unwrap();
    assert!(appended < 2_000, "{appended} bytes for nothing new");
    assert_same(&image, &source);
}

/// Would catch: new blocks and pages compressed without a history or with the wrong records as
/// history; a history that has a history; readers that look up numbers in another generation.
#[test]
fn small_blocks_and_pages_use_the_existing_history() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let image = scratch.path().join("image");
    for i in 0..40 {
        fs::write(source.join(format!("file{i}")), known_words(i)).unwrap();
    }
    let options = BuildOptions {
        codec: weald_builder::CodecSpec::Zstd(19),
        ..appending()
    };
    let append = || build(&source, &image, &options);
    append();
    let first_len = fs::metadata(&image).unwrap().len();
    let mut lens = Vec::new();
    for i in 1..4 {
        // Part of the old text, so that a repeat leads there, and something new.
        let old = known_words(i);
        let new = format!("{}{}", &old[..2000], &known_words(100 + i)[..6000]);
        fs::write(source.join(format!("new{i}")), new).unwrap();
        lens.push(append().appended_len.unwrap());
        assert_same(&image, &source);
    }
    let opened = open(&image, 4);
    let after_history = after_history(&opened);
    for record in &after_history {
        assert!(record.offset >= first_len);
        // Without a history, hexadecimal digits take at least half of their bytes.
        let is_small = record.stored_len * 20 < record.raw_len * 9;
        assert!(
            is_small || record.record_type != RecordType::Data,
            "{record:?}"
        );
    }
    // The cost of a read includes the history: at least four blocks of the first generation.
    let mut cost = weald_image::DecodeCost::default();
    let content = at(&opened, "new3").unwrap().content.unwrap();
    let len = opened.content_len(content).unwrap();
    opened
        .add_decode_cost(content, len - 1..len, &mut cost)
        .unwrap();
    assert!(cost.decoded_len() > 4 << 16, "{}", cost.decoded_len());
    let wanted = [RecordType::Data, RecordType::Entries];
    assert!(
        wanted
            .iter()
            .all(|t| after_history.iter().any(|r| r.record_type == *t)),
        "{after_history:?}"
    );
    assert!(lens.iter().all(|&len| len < 4500), "{lens:?}");
}

/// Would catch: bytes that depend on threads, memory or timing.
#[test]
fn equal_appends_give_equal_bytes() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    make_all_kinds(&source);
    let image = |name: &str| scratch.path().join(name);
    append(&source, &image("old"));
    shell(
        &source,
        "cp -a d e; echo x >> e/text1; cat d/text* > all; head -c 600000 /dev/urandom > more",
    );
    // Blocks and pages reach the writer at different times in every run.
    let mut bytes = Vec::new();
    for threads in [1, 3, 2, 1, 3, 2, 1, 3, 2, 1] {
        fs::copy(image("old"), image("new")).unwrap();
        let options = BuildOptions {
            threads,
            ..appending()
        };
        build_image(
            &source,
            &image("new"),
            false,
            &options,
            &weald_builder::Silent,
        )
        .unwrap();
        bytes.push(fs::read(image("new")).unwrap());
    }
    assert!(bytes.windows(2).all(|pair| pair[0] == pair[1]));
}

/// Would catch: a tail that hides a complete generation, a cut at a wrong offset, and a cut that is
/// not needed.
#[test]
fn the_tail_of_an_interrupted_append_is_cut_off() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let image = scratch.path().join("image");
    make_all_kinds(&source);
    append(&source, &image);
    shell(
        &source,
        "cp -a d e; echo x >> e/text1; head -c 100000 /dev/urandom > more",
    );
    append(&source, &image);
    let whole = fs::read(&image).unwrap();
    let lens: Vec<usize> = generations(&image)
        .unwrap()
        .iter()
        .map(|g| g.image_len as usize)
        .collect();
    let [second, first] = lens[..] else {
        panic!("two generations")
    };
    assert_eq!(recover_image(&image, false).unwrap().tail_len, 0);
    let mut rng = Rng::from_environment();
    for _ in 0..60 {
        let end = first + 1 + rng.below((second - first) as u64 - 1) as usize;
        fs::write(&image, &whole[..end]).unwrap();
        let error = Image::open_path(&image, 0, &OpenOptions::default()).err();
        assert_eq!(error.unwrap().kind(), ErrorKind::Corrupt);
        let dry = recover_image(&image, true).unwrap();
        assert_eq!(
            (dry.generation.number, dry.tail_len),
            (1, (end - first) as u64)
        );
        assert_eq!(fs::metadata(&image).unwrap().len(), end as u64);
        recover_image(&image, false).unwrap();
        assert!(fs::read(&image).unwrap() == whole[..first]);
    }
    // The same source appended again restores the lost generation.
    append(&source, &image);
    assert!(fs::read(&image).unwrap() == whole);
    // The file has no complete generation: nothing is cut.
    for end in [0, 63, 64, first - 1] {
        fs::write(&image, &whole[..end]).unwrap();
        let error = recover_image(&image, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{end}");
        assert_eq!(fs::metadata(&image).unwrap().len(), end as u64);
    }
}

/// Would catch: a complete generation that is cut off because an earlier record is damaged.
#[test]
fn damage_is_not_taken_for_an_interrupted_append() {
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let image = scratch.path().join("image");
    make_all_kinds(&source);
    append(&source, &image);
    let first = fs::read(&image).unwrap().len();
    shell(&source, "head -c 100000 /dev/urandom > more");
    append(&source, &image);
    let whole = fs::read(&image).unwrap();
    // The headers of the first record and of the first record of generation 2.
    for at in [64, first] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&image, &damaged).unwrap();
        let found = recover_image(&image, false).unwrap();
        assert_eq!((found.generation.number, found.tail_len), (2, 0));
        // A later append was interrupted.
        damaged.extend_from_slice(&[7; 5000]);
        fs::write(&image, &damaged).unwrap();
        let error = recover_image(&image, false).unwrap_err().to_string();
        assert!(error.contains("was finished behind it"), "{error}");
        assert!(fs::read(&image).unwrap() == damaged);
    }
    // The last byte of the directory of generation 2; the footer follows it.
    let mut damaged = whole.clone();
    damaged[whole.len() - FOOTER_LEN - 1] ^= 1;
    fs::write(&image, &damaged).unwrap();
    let error = recover_image(&image, false).unwrap_err().to_string();
    assert!(error.contains("finished and is damaged"), "{error}");
    assert!(fs::read(&image).unwrap() == damaged);
}

/// Would catch: a failed append that leaves an image that cannot be opened or was truncated too
/// far; two appends at once.
#[test]
fn a_failed_append_leaves_the_image_unchanged() {
    let scratch = Scratch::tmpfs("24m");
    let other = Scratch::tmpfs("256m");
    let source = other.dir("source");
    let image = scratch.path().join("image");
    make_all_kinds(&source);
    append(&source, &image);
    let before = fs::read(&image).unwrap();
    fs::write(source.join("large"), noise(7, 40 << 20)).unwrap();
    let failed = build_image(&source, &image, false, &appending(), &weald_builder::Silent);
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Full);
    assert!(fs::read(&image).unwrap() == before);
    // An append never builds on damage.
    fs::write(source.join("large"), "small").unwrap();
    let mut damaged = before.clone();
    damaged[before.len() / 3] ^= 1;
    fs::write(&image, &damaged).unwrap();
    let failed = build_image(&source, &image, false, &appending(), &weald_builder::Silent);
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(fs::read(&image).unwrap() == damaged);
    // Another process appends to the image.
    fs::write(&image, &before).unwrap();
    let held = fs::File::open(&image).unwrap();
    held.lock().unwrap();
    let failed = build_image(&source, &image, false, &appending(), &weald_builder::Silent);
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Busy);
    drop(held);
    append(&source, &image);
    assert_same(&image, &source);
}

/// Would catch: a generation that leads to a wrong one, or to itself.
#[test]
fn forged_chains_of_generations_are_refused() {
    use weald_format::container::{FOOTER_LEN, Footer};
    use zerocopy::IntoBytes;
    let scratch = Scratch::tmpfs("512m");
    let source = scratch.dir("source");
    let image = scratch.path().join("image");
    make_all_kinds(&source);
    append(&source, &image);
    fs::write(source.join("more"), "more").unwrap();
    append(&source, &image);
    let whole = fs::read(&image).unwrap();
    let at = whole.len() - FOOTER_LEN;
    let footer = Footer::parse(&whole[at..], at as u64).unwrap();
    let forge = |change: &dyn Fn(&mut Footer)| {
        let mut footer = footer;
        change(&mut footer);
        let mut bytes = whole.clone();
        bytes[at..].copy_from_slice(footer.encode().as_bytes());
        fs::write(&image, bytes).unwrap();
        let error = generations(&image).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(
            Image::open_path(&image, 0, &OpenOptions::default()).is_err(),
            "the directory has another value"
        );
        error.to_string()
    };
    assert!(forge(&|f| f.generation = 3).contains("F-4.7"));
    assert!(forge(&|f| f.previous_footer = None).contains("F-4.7"));
    assert!(forge(&|f| f.previous_footer = Some(64)).contains("F-4.2"));
}
