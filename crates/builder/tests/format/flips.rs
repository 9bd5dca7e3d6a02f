//! Damaged images: every truncation, and a flipped bit in every byte, give an error and never wrong
//! data.

use crate::read::{check, open, paths, read_everything};
use crate::support::{Source, gzip_in_small_blocks, noise, small, text};
use weald_builder::{BuildOptions, CodecSpec};
use weald_format::container::{Codec, HEADER_LEN, RecordRef, RecordType};

/// Flips one bit in every `step`-th byte, then reads everything and checks all digests.
fn flip(bytes: &[u8], step: usize) {
    let whole = read_everything(&open(bytes.to_vec()).unwrap()).unwrap();
    let flip_range = |range: std::ops::Range<usize>| {
        for byte in range.step_by(step) {
            let bit = byte * 7 % 8;
            let mut bad = bytes.to_vec();
            bad[byte] ^= 1 << bit;
            let Ok(image) = open(bad) else { continue };
            if let Ok(shown) = read_everything(&image) {
                assert!(
                    shown == whole,
                    "byte {byte}, bit {bit}: wrong data was returned"
                );
                panic!("byte {byte}, bit {bit}: no read detected the flip");
            }
            let (findings, report) = check(&image, true);
            assert!(
                !report.is_clean() && !findings.is_empty(),
                "byte {byte}, bit {bit}"
            );
            if byte % 16 == 0 {
                assert!(!check(&image, false).1.is_clean(), "byte {byte}, bit {bit}");
            }
        }
    };
    let half = bytes.len() / 2 / step * step;
    std::thread::scope(|scope| {
        scope.spawn(|| flip_range(0..half));
        flip_range(half..bytes.len());
    });
}

fn has(bytes: &[u8], record_type: RecordType, codec: Codec) -> bool {
    let sections = open(bytes.to_vec()).unwrap().sections().unwrap();
    sections
        .iter()
        .any(|s| s.record_type == record_type && s.by_codec.contains_key(&codec))
}

#[test]
fn undamaged_images_are_clean_with_every_codec() {
    let source = Source::everything();
    let options = BuildOptions::level(7).unwrap();
    let mut digests = vec![open(source.image(&options)).unwrap().summary().tree_digest];
    for codec in [
        CodecSpec::None,
        CodecSpec::Lz4,
        CodecSpec::Zstd(3),
        CodecSpec::Xz(1),
        CodecSpec::Brotli(4),
    ] {
        let image = open(source.image(&small(codec))).unwrap();
        let (findings, _) = check(&image, false);
        assert!(findings.is_empty(), "{codec:?}: {findings:?}");
        let shown = read_everything(&image).unwrap();
        let by_path = |path: &str| shown.iter().find(|s| s.path == path.as_bytes()).unwrap();
        assert_eq!(
            by_path("/text").data,
            std::fs::read(source.root().join("text")).unwrap()
        );
        assert_eq!(
            by_path("/noise").data,
            std::fs::read(source.root().join("noise")).unwrap()
        );
        assert_eq!(
            by_path("/made.gz").data,
            std::fs::read(source.root().join("made.gz")).unwrap()
        );
        assert_eq!(by_path("/dir/deep/er/small").inode.nlink, 3);
        digests.push(image.summary().tree_digest);
    }
    digests.dedup();
    assert_eq!(digests.len(), 1, "the tree digest depends on the codec");
}

#[test]
fn flips_in_every_byte_of_a_zstd_image_are_detected() {
    let bytes = Source::everything().image(&small(CodecSpec::Zstd(3)));
    assert!(has(&bytes, RecordType::Data, Codec::None), "no raw block");
    assert!(
        has(&bytes, RecordType::Data, Codec::Zstd),
        "no compressed block"
    );
    assert!(
        has(&bytes, RecordType::Recipes, Codec::Zstd)
            || has(&bytes, RecordType::Recipes, Codec::None),
        "no recipe"
    );
    flip(&bytes, 1);
}

#[test]
fn flips_in_images_of_other_codecs_are_detected() {
    let source = Source::everything();
    for (spec, codec) in [
        (CodecSpec::Lz4, Codec::Lz4),
        (CodecSpec::Xz(1), Codec::Xz),
        (CodecSpec::Brotli(4), Codec::Brotli),
    ] {
        let bytes = source.image(&small(spec));
        assert!(has(&bytes, RecordType::Data, codec), "{codec:?}");
        flip(&bytes, 7);
    }
}

#[test]
fn flips_in_a_times_overlay_are_detected() {
    let bytes = Source::many_times().image(&small(CodecSpec::Zstd(3)));
    let sections = open(bytes.clone()).unwrap().sections().unwrap();
    assert!(
        sections.iter().any(|s| s.record_type == RecordType::Times),
        "no overlay"
    );
    flip(&bytes, 23);
}

#[test]
fn every_truncation_is_refused() {
    let bytes = Source::everything().image(&small(CodecSpec::Zstd(3)));
    for len in 0..bytes.len() {
        assert!(open(bytes[..len].to_vec()).is_err(), "{len} bytes");
    }
}

/// Type and offset of the first stored byte of every record.
fn records(image: &[u8]) -> Vec<(RecordType, usize)> {
    let mut out = Vec::new();
    let mut at = 64;
    while at < image.len() - 128 {
        let record = RecordRef::parse_header(&image[at..at + HEADER_LEN], at as u64).unwrap();
        out.push((record.record_type, at + HEADER_LEN));
        at = record.end() as usize;
    }
    out
}

/// Would catch: a file made by recipes that is not named although its plain bytes or its recipe are
/// damaged, or that is named although other data is damaged.
#[test]
fn damage_of_a_recipe_input_names_the_file() {
    let source = Source::empty();
    // The data around the stream lies in the last block; the other blocks are used only by the
    // recipe.
    let plain = text(9000);
    source.file("a-plain", &plain);
    source.file("made.gz", &gzip_in_small_blocks(&plain));
    source.file("noise", &noise(1, 8300));
    let bytes = source.image(&small(CodecSpec::Zstd(3)));
    let mut named = Vec::new();
    for (record_type, at) in records(&bytes) {
        if !matches!(record_type, RecordType::Data | RecordType::Recipes) {
            continue;
        }
        let mut bad = bytes.clone();
        bad[at] ^= 1;
        let image = open(bad).unwrap();
        let mut found = paths(&check(&image, false).0);
        found.sort();
        let mut of_digests = paths(&check(&image, true).0);
        of_digests.sort();
        assert_eq!(found, of_digests, "{record_type:?} at {at}");
        named.push((record_type, found));
    }
    let count = |record_type, paths: &[&str]| {
        named
            .iter()
            .filter(|n| n.0 == record_type && n.1 == paths)
            .count()
    };
    let plain_count = count(RecordType::Data, &["a-plain", "made.gz"]);
    assert!(plain_count >= 2, "{named:?}");
    assert_eq!(count(RecordType::Recipes, &["made.gz"]), 1);
    let noise_count = count(RecordType::Data, &["noise"]);
    assert!(noise_count >= 2, "{named:?}");
    assert_eq!(plain_count + noise_count + 1, named.len(), "{named:?}");
}
