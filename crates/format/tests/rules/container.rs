//! Superblocks, record headers and footers.

use crate::{reference, rule, sum};
use weald_format::container::{Footer, FooterRecord, HeaderRecord, RecordRef, SuperblockRecord};
use weald_format::{Digest, ErrorKind};
use zerocopy::{FromBytes, IntoBytes};

#[test]
fn superblocks() {
    let good = SuperblockRecord::current();
    let edited = |at: usize, value: u8| {
        let mut bytes = good.as_bytes().to_vec();
        bytes[at] = value;
        sum(&mut bytes, 16);
        SuperblockRecord::read_from_bytes(&bytes).unwrap()
    };
    assert_eq!(
        rule(SuperblockRecord::parse(&good.as_bytes()[..63])),
        "F-3.7"
    );
    assert_eq!(
        rule(SuperblockRecord::parse(edited(1, b'w').as_bytes())),
        "F-3.8"
    );
    let mut bytes = good.as_bytes().to_vec();
    bytes[20] = 1;
    assert_eq!(rule(SuperblockRecord::parse(&bytes)), "F-3.9");
    assert_eq!(
        rule(SuperblockRecord::parse(edited(47, 1).as_bytes())),
        "F-3.10"
    );
    assert_eq!(
        rule(SuperblockRecord::parse(edited(16, 1).as_bytes())),
        "none",
        "compat bits are ignored"
    );
    assert_eq!(
        rule(SuperblockRecord::parse(edited(24, 1).as_bytes())),
        "none",
        "as are bits for those who append"
    );
    for (at, value) in [(8, 2), (12, 128), (32, 1), (39, 0x80)] {
        let newer = edited(at, value);
        let error = SuperblockRecord::parse(newer.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "byte {at}");
        assert!(error.to_string().contains("newer Weald"), "{error}");
    }
}

#[test]
fn headers() {
    let good: HeaderRecord = reference().header();
    let edited = |at: usize, value: u8| {
        let mut bytes = good.as_bytes().to_vec();
        bytes[at] = value;
        sum(&mut bytes, 8);
        rule(RecordRef::parse_header(&bytes, 64))
    };
    assert_eq!(
        rule(RecordRef::parse_header(&good.as_bytes()[1..], 64)),
        "F-3.1"
    );
    assert_eq!(edited(0, b'w'), "F-3.2");
    let mut bytes = good.as_bytes().to_vec();
    bytes[63] ^= 1;
    assert_eq!(rule(RecordRef::parse_header(&bytes, 64)), "F-3.3");
    assert_eq!((edited(4, 0), edited(4, 16)), ("F-3.4", "F-3.4"));
    assert_eq!(edited(5, 200), "F-3.5");
    assert_eq!((edited(6, 1), edited(7, 1)), ("F-3.6", "F-3.6"));
}

#[test]
fn footers() {
    let good = Footer {
        generation: 1,
        directory_offset: 64,
        directory_len: 100,
        footer_offset: 164,
        previous_footer: None,
        image_digest: Digest::of(b"i"),
        tree_digest: Digest::of(b"t"),
    };
    let parse = |footer: Footer| rule(Footer::parse(footer.encode().as_bytes(), 164));
    assert_eq!(parse(good), "none");
    assert_eq!(
        rule(Footer::parse(&good.encode().as_bytes()[1..], 164)),
        "F-4.1"
    );
    let mut record: FooterRecord = good.encode();
    record.magic[0] = 0;
    assert_eq!(rule(Footer::parse(record.as_bytes(), 164)), "F-4.2");
    record = good.encode();
    record.tree_digest[0] ^= 1;
    assert_eq!(rule(Footer::parse(record.as_bytes(), 164)), "F-4.3");
    let bad = [
        Footer {
            generation: 0,
            ..good
        },
        Footer {
            directory_offset: 63,
            directory_len: 101,
            ..good
        },
        Footer {
            directory_offset: 100,
            directory_len: 64,
            ..good
        },
        Footer {
            directory_len: 99,
            ..good
        },
        Footer {
            directory_len: u64::MAX,
            ..good
        },
        Footer {
            footer_offset: 165,
            ..good
        },
        Footer {
            previous_footer: Some(64),
            ..good
        },
        Footer {
            previous_footer: Some(u64::MAX),
            ..good
        },
    ];
    bad.into_iter()
        .for_each(|footer| assert_eq!(parse(footer), "F-4.4", "{footer:?}"));
}
