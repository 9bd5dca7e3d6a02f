//! The rules of section 18 of `docs/format.md`, which only a writer can satisfy.

use crate::records::records;
use crate::support::{Source, fixed, small};
use std::path::Path;
use weald_builder::{BuildOptions, CodecSpec, Observer, Silent, build_image};
use weald_format::container::{Codec, RecordType};
use weald_format::directory::{Directory, IndexPage};

fn everything() -> Vec<u8> {
    Source::everything().image(&small(CodecSpec::Zstd(3)))
}

fn make_in_order(names: impl Iterator<Item = u32>) -> Source {
    let source = Source::empty();
    for i in names {
        source.file(
            &format!("f{i}"),
            format!("content {}", i % 50)
                .repeat(i as usize % 300)
                .as_bytes(),
        );
    }
    source
}

#[test]
fn the_same_tree_gives_the_same_bytes() {
    let rule = "W-1";
    let (up, down) = (make_in_order(0..400), make_in_order((0..400).rev()));
    let build = |source: &Source, threads| {
        // The names of the root directories differ, and permissions depend on the umask.
        source.image(&BuildOptions {
            threads,
            ..fixed(CodecSpec::Zstd(3))
        })
    };
    let expected = build(&up, 1);
    for threads in [2, 7] {
        assert!(build(&up, threads) == expected, "{rule}: {threads} threads");
    }
    assert!(build(&down, 3) == expected, "{rule}: another order on disk");
}

#[test]
fn incompressible_data_is_stored_uncompressed() {
    let mut plain = 0;
    for (record, _) in records(&everything()) {
        let is_plain = record.codec == Codec::None;
        assert_eq!(
            is_plain,
            record.stored_len == record.raw_len,
            "{}: {record:?}",
            "W-2"
        );
        plain += u32::from(is_plain && record.record_type == RecordType::Data);
    }
    assert!(plain > 0, "no incompressible block in the example");
}

#[test]
fn every_record_decodes_and_sections_stand_in_order() {
    let image = everything();
    let records = records(&image);
    assert!(records.len() > 12, "{}: every record was decoded", "W-3");
    let (_, raw) = records.last().unwrap();
    let directory = Directory::parse(raw).unwrap();
    let mut seen = 0;
    for section in &directory.sections {
        let mut end = 64;
        for page in &section.pages {
            let found = records.iter().find(|(r, _)| r.offset == page.record.offset);
            let count = page.record_count as usize;
            let page = if page.is_direct() {
                IndexPage::single(page.record, page.item_count)
            } else {
                let (_, raw) = found.unwrap();
                IndexPage::parse(raw, section.record_type, count, page.item_count).unwrap()
            };
            for record in page.refs {
                assert!(record.offset >= end, "{}: {record:?}", "W-4");
                end = record.end();
                seen += 1;
            }
        }
    }
    let leading = |t: RecordType| matches!(t, RecordType::Index | RecordType::Directory);
    assert_eq!(
        seen,
        records
            .iter()
            .filter(|(r, _)| !leading(r.record_type))
            .count()
    );
}

#[test]
fn equal_directories_and_files_are_stored_once() {
    let source = Source::empty();
    for copy in ["one", "two", "three"] {
        std::fs::create_dir_all(source.root().join(copy).join("deep")).unwrap();
        for file in ["a", "b", "deep/a"] {
            source.file(&format!("{copy}/{file}"), b"the same bytes");
        }
    }
    let target = source.root().with_file_name("image");
    let report = build_image(
        &source.root(),
        &target,
        false,
        &fixed(CodecSpec::None),
        &Silent,
    )
    .unwrap();
    // The root, one of three directories, one of three subdirectories.
    assert_eq!(
        (report.template_count, report.content_count),
        (3, 1),
        "{}",
        "W-5"
    );
    assert_eq!(report.entry_count, 1 + 3 * 5);
}

struct Cancelled;

impl Observer for Cancelled {
    fn is_cancelled(&self) -> bool {
        true
    }
}

fn names_in(dir: &Path) -> Vec<String> {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn an_unfinished_image_has_no_name() {
    let source = Source::everything();
    let dir = source.root().parent().unwrap().to_owned();
    let error = build_image(
        &source.root(),
        &dir.join("image"),
        false,
        &small(CodecSpec::None),
        &Cancelled,
    );
    assert!(error.is_err());
    assert_eq!(names_in(&dir), ["tree"], "{}", "W-6");
}

#[test]
fn reserved_bytes_are_zero() {
    let image = everything();
    assert_eq!(
        image[16..48],
        [0; 32],
        "{}: features and reserved bytes",
        "W-7"
    );
    for (record, _) in records(&image) {
        let flags = record.offset as usize + 6;
        assert_eq!(image[flags..flags + 2], [0, 0], "W-7");
    }
}
