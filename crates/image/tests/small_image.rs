//! The unforged image of the hostile tests: read, checked, and damaged bit by bit.

mod support;

use support::*;
use weald_image::Finding;

#[test]
fn the_base_image_is_clean_and_shows_what_went_in() {
    for parts in [Parts::base(), Parts::overlay(), Parts::verity()] {
        let image = open(parts.bytes()).unwrap();
        for digests_only in [true, false] {
            let (findings, report) = check(&image, digests_only);
            assert!(report.is_clean() && findings.is_empty(), "{findings:?}");
        }
        let all = read_everything(&image).unwrap();
        assert_eq!(all.len(), 10);
        assert_eq!(by_path(&image, "b").ino, by_path(&image, "d/x").ino);
        assert_eq!(
            (by_path(&image, "h1").ino, by_path(&image, "h1").nlink),
            (by_path(&image, "h2").ino, 2)
        );
        let sparse = all.iter().find(|s| s.path == b"/h2").unwrap();
        assert_eq!(sparse.runs, [(0, 1000, true), (1000, 10, false)]);
        assert_eq!(sparse.data[1000..], parts.blocks[1][30..]);
        let x = all.iter().find(|s| s.path == b"/d/x").unwrap();
        assert_eq!(
            x.data,
            [&parts.blocks[0][100..], &parts.blocks[1][..30]].concat()
        );
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = Parts::base().bytes();
    for len in 0..bytes.len() {
        let error = open(bytes[..len].to_vec())
            .err()
            .unwrap_or_else(|| panic!("opened {len} bytes"));
        assert!(error.place().is_some(), "{error}");
    }
}

#[test]
fn every_flipped_bit_is_found_by_reading_and_by_both_checks() {
    for parts in [Parts::base(), Parts::overlay(), Parts::verity()] {
        let bytes = parts.bytes();
        let whole = read_everything(&open(bytes.clone()).unwrap()).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let Ok(image) = open(bad) else { continue };
            if let Ok(shown) = read_everything(&image) {
                assert_eq!(
                    shown, whole,
                    "bit {bit}: read other things than were written"
                );
                panic!("bit {bit}: reading everything noticed nothing");
            }
            for digests_only in [true, false] {
                let (findings, report) = check(&image, digests_only);
                assert!(!report.is_clean(), "bit {bit}");
                assert!(
                    findings.iter().any(|f| matches!(f, Finding::Structure(_))),
                    "bit {bit}"
                );
            }
        }
    }
}
