//! For each rule that a parser alone can enforce: an input that breaks it, and the error that cites
//! it.

use weald_format::column::Column;
use weald_format::container::{
    Codec, Footer, FooterRecord, HeaderRecord, RecordRef, RecordType, SuperblockRecord,
};
use weald_format::cursor::{Cursor, put_varint, zigzag};
use weald_format::directory::{
    Category, Directory, IndexPage, PageRef, Section, Stream, check_lens,
};
use weald_format::entries::EntryBlock;
use weald_format::limits::{BLOCK_LEN_MAX, NUMBER_MAX, RECIPE_LEN_MAX, XATTR_SET_LEN_MAX};
use weald_format::names::Names;
use weald_format::pages::{self, ContentPage, ExtentPage, TemplatePage, TimesPage};
use weald_format::recipes::{Method, Part, Recipe, RecipePage};
use weald_format::sync_log::{DeltaBuilder, DeltaStart, SyncLogId, parse_body};
use weald_format::{ContentId, Digest, ErrorKind, Result};
use zerocopy::{FromBytes, IntoBytes};

/// The rule that the error in `result` cites.
fn rule<T>(result: Result<T>) -> &'static str {
    match result {
        Ok(_) => "none",
        Err(error) => error.place().map_or("no place", |p| p.rule),
    }
}

/// Runs a decoder that may stop before the end of its bytes.
fn column(count: usize, bytes: &[u8]) -> &'static str {
    rule(Column::decode(&mut Cursor::new(bytes, "test"), count))
}

fn names(count: usize, bytes: &[u8]) -> &'static str {
    rule(Names::decode(&mut Cursor::new(bytes, "test"), count))
}

#[test]
fn numbers() {
    let varint = |bytes: &[u8]| rule(Cursor::new(bytes, "test").varint());
    assert_eq!(varint(&[]), "F-2.1");
    assert_eq!(varint(&[0x80]), "F-2.1");
    assert_eq!(rule(Cursor::new(&[1], "test").bytes(2)), "F-2.1");
    assert_eq!(rule(Cursor::new(&[0; 31], "test").digest()), "F-2.1");
    assert_eq!(varint(&[0x80, 0]), "F-2.2");
    assert_eq!(
        varint(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]),
        "F-2.2"
    );
    assert_eq!(varint(&[0x80; 11]), "F-2.2");
    assert_eq!(rule(Cursor::new(&[6], "test").bounded(5, "test")), "F-2.3");
    assert_eq!(rule(Cursor::new(&[6], "test").finish()), "F-2.4");
}

fn reference() -> RecordRef {
    RecordRef {
        record_type: RecordType::Data,
        codec: Codec::Zstd,
        offset: 64,
        stored_len: 5,
        raw_len: 9,
        digest: Digest::of(b"x"),
    }
}

/// Writes the correct checksum over the last `len` bytes.
fn sum(bytes: &mut [u8], len: usize) {
    let (head, tail) = bytes.split_at_mut(bytes.len() - len);
    tail.copy_from_slice(&blake3::hash(head).as_bytes()[..len]);
}

/// The records of a sync log that count are judged by the store, whose tests have V-6.4.
#[test]
fn sync_logs() {
    let id = SyncLogId {
        uuid: [3; 16],
        snapshot: 9,
    };
    let good = id.encode_superblock(8192);
    let edited = |at: usize, value: u8| {
        let mut bytes = good.as_bytes().to_vec();
        bytes[at] = value;
        sum(&mut bytes, 16);
        id.check_superblock(&bytes)
    };
    assert_eq!(edited(63, 0).unwrap(), 8192);
    assert_eq!(rule(id.check_superblock(&good.as_bytes()[..63])), "V-6.1");
    assert_eq!(rule(edited(0, 0)), "V-6.1");
    let mut torn = good.as_bytes().to_vec();
    torn[63] ^= 1;
    assert_eq!(rule(id.check_superblock(&torn)), "V-6.1");
    assert_eq!(edited(8, 2).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(rule(edited(16, 0)), "V-6.2");
    assert_eq!(rule(edited(32, 0)), "V-6.2");
    assert_eq!(rule(edited(40, 1)), "V-6.3");
    assert_eq!(rule(edited(41, 0)), "V-6.3");
    assert_eq!(rule(edited(45, 1)), "V-6.3");

    let body = |change: &[u8]| {
        let start = DeltaStart {
            next_ino: 2,
            now: 0,
        };
        let mut bytes = DeltaBuilder::new(start).finish();
        bytes.extend_from_slice(change);
        rule(parse_body(&bytes, &mut |_| Ok(())))
    };
    assert_eq!(body(&[3, 1, 0, 1]), "none");
    assert_eq!(body(&[0]), "V-6.5");
    assert_eq!(body(&[6]), "V-6.5");
    assert_eq!(body(&[1, 0, 0, 0]), "V-6.5");
    assert_eq!(body(&[1, 6, 0, 0]), "V-6.5");
    assert_eq!(body(&[3, 1, 0, 0]), "V-6.6");
    let mut far = vec![3, 1];
    put_varint(&mut far, i64::MAX as u64);
    assert_eq!(body(&[&far[..], &[1]].concat()), "V-6.6");
    let mut behind = vec![4, 1, 0, 2, 1];
    put_varint(&mut behind, BLOCK_LEN_MAX - 1);
    assert_eq!(body(&behind), "V-6.6");
    behind[3] = 1;
    assert_eq!(body(&behind), "none");
    assert_eq!(body(&[2, 1, 0, 5, 0]), "F-2.1");
}

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
    assert_eq!((edited(4, 0), edited(4, 15)), ("F-3.4", "F-3.4"));
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

#[test]
fn columns() {
    assert_eq!(column(1, &[8, 0]), "F-5.1");
    assert_eq!(
        (column(1, &[2, 0, 0]), column(1, &[2, 0, 65])),
        ("F-5.3", "F-5.3")
    );
    assert_eq!(column(2, &[2, 0, 1, 0b100]), "F-5.3", "padding");
    assert_eq!(column(9, &[2, 0, 1, 0]), "F-2.1");
    assert_eq!(column(2, &[4, 1, 7, 0, 1]), "F-5.5");
    assert_eq!(
        column(2, &[4, 0x81, 0x02, 7]),
        "F-2.3",
        "257 distinct values"
    );
    assert_eq!(
        (
            column(2, &[5, 0, 1]),
            column(2, &[5, 3, 1]),
            column(2, &[5, 1, 1])
        ),
        ("F-5.6", "F-5.6", "F-2.1")
    );
    assert_eq!(
        (column(1, &[7, 0, 0, 0]), column(1, &[7, 0, 9, 0])),
        ("F-5.8", "F-5.8")
    );
}

#[test]
fn name_columns() {
    assert_eq!(names(1, &[4]), "F-6.1");
    assert_eq!(names(1, &[0, 0, 0, 0, 3, b'a', b'/', b'b']), "F-6.2");
    assert_eq!(names(1, &[0, 0, 0, 0, 3, b'a', 0, b'b']), "F-6.2");
    let long = [&[1, 0xff, 1][..], &[b'a'; 255], &[0, 0, 0, 5]].concat();
    assert_eq!(names(1, &long), "F-6.2", "256 bytes");
    assert_eq!(
        names(1, &[0, 0, 1, 0, 0]),
        "F-6.3",
        "shares with a name that is not there"
    );
    assert_eq!(
        names(1, &[&[0, 0, 0, 0, 0x80, 2][..], &[b'a'; 256]].concat()),
        "F-6.3",
        "256 bytes"
    );
    assert_eq!(names(1, &[1, 0, 0, 21, 0, 0]), "F-6.4");
    assert_eq!(names(1, &[2, 0, 0, 4, 0, 5]), "F-6.5");
    assert_eq!(
        names(1, &[2, 0, 0, 3, 0, 0, 0x12, 0x34]),
        "F-6.5",
        "padding"
    );
    assert_eq!(names(1, &[2, 0, 0, 0x80, 2]), "F-2.3");
    let ascending = |bits, steps: &[u8], rest: &[u8]| {
        let head = [3, 0, 0, 4, bits, steps.len() as u8];
        names(2, &[&head[..], steps, rest].concat())
    };
    let rest = [0x12, 0x34, 0x56];
    assert_eq!(ascending(4, &[0b0010_1000], &rest), "none");
    assert_eq!(ascending(17, &[0b0010_1000], &[0x12]), "F-6.6", "17 bits");
    assert_eq!(ascending(4, &[0b0010_0000], &rest), "F-6.6", "one step");
    assert_eq!(ascending(4, &[0, 0, 0b1010_0000], &rest), "F-6.6", "16");
    assert_eq!(ascending(4, &[0b0010_1001], &rest), "F-6.6", "spare bit");
    assert_eq!(
        ascending(4, &[0b0010_1000, 0], &rest),
        "F-6.6",
        "spare byte"
    );
    assert_eq!(
        ascending(3, &[0b0010_1000], &[0; 4]),
        "none",
        "13 bits each"
    );
    assert_eq!(ascending(3, &[0b0010_1000], &[0, 0, 0, 1]), "F-6.6");
}

fn directory() -> Directory {
    let record = RecordRef {
        record_type: RecordType::Index,
        codec: Codec::None,
        raw_len: 5,
        ..reference()
    };
    Directory {
        superblock_digest: Digest::of(b"s"),
        generation: 1,
        previous_footer: 0,
        tree_digest: Digest::of(b"t"),
        name_count: 9,
        streams: vec![Stream {
            category: Category::General,
            block_len_max: 4096,
        }],
        bases: Vec::new(),
        sections: vec![Section {
            record_type: RecordType::Data,
            stream: 0,
            pages: vec![PageRef {
                record,
                record_count: 3,
                item_count: 60,
            }],
        }],
    }
}

#[test]
fn directories() {
    let edited = |edit: &dyn Fn(&mut Directory)| {
        let mut directory = directory();
        edit(&mut directory);
        rule(Directory::parse(&directory.encode()))
    };
    assert_eq!(edited(&|_| {}), "none");
    assert_eq!(
        edited(&|d| d.sections[0].pages[0].record.stored_len = 0),
        "F-7.2"
    );
    assert_eq!(
        edited(&|d| d.sections[0].pages[0].record.offset = 63),
        "F-7.4"
    );
    assert_eq!(
        edited(&|d| d.sections[0].pages[0].record.offset = u64::MAX),
        "F-7.4"
    );
    let mut bytes = directory().encode();
    bytes[32 + 2 + 32 + 2] = 200;
    assert_eq!(rule(Directory::parse(&bytes)), "F-7.5");
    assert_eq!(
        edited(&|d| d.sections[0].record_type = RecordType::Index),
        "F-7.6"
    );
    assert_eq!(
        edited(&|d| d.sections[0].record_type = RecordType::Directory),
        "F-7.6"
    );
    assert_eq!(edited(&|d| d.sections[0].stream = 1), "F-7.6");
    assert_eq!(edited(&|d| d.sections.push(d.sections[0].clone())), "F-7.6");
    assert_eq!(edited(&|d| d.streams.clear()), "F-7.6");
    let dictionary = |stream| {
        move |d: &mut Directory| {
            d.sections[0].record_type = RecordType::Dictionary;
            d.sections[0].stream = stream;
            d.sections[0].pages[0].record_count = 1;
            d.sections[0].pages[0].item_count = 1;
        }
    };
    assert_eq!(edited(&dictionary(0)), "none");
    assert_eq!(edited(&dictionary(1)), "none");
    assert_eq!(edited(&dictionary(2)), "F-7.6");
    let is_made = |d: &mut Directory| d.streams[0].category = Category::Made;
    assert_eq!(edited(&is_made), "F-20.1");
    let recipes = |d: &mut Directory| d.sections[0].record_type = RecordType::Recipes;
    assert_eq!(edited(&recipes), "F-20.1");
    let two = |d: &mut Directory| {
        recipes(d);
        is_made(d);
        d.streams.push(d.streams[0]);
    };
    assert_eq!(edited(&two), "F-20.1");
    let links = |d: &mut Directory| d.sections[0].record_type = RecordType::Links;
    let many = |d: &mut Directory| {
        links(d);
        d.sections[0].pages[0].item_count = NUMBER_MAX;
        d.sections[0].pages = vec![d.sections[0].pages[0]; 2];
    };
    assert_eq!(edited(&many), "F-7.7");
    // A record in place of a page with one record.
    let direct = |edit: &dyn Fn(&mut PageRef)| {
        edited(&|d| {
            let mut page = PageRef::direct(reference(), reference().raw_len);
            edit(&mut page);
            d.sections[0].pages[0] = page;
        })
    };
    assert_eq!(direct(&|_| {}), "none");
    assert_eq!(direct(&|p| p.item_count += 1), "F-7.9");
    assert_eq!(direct(&|p| p.record.raw_len = BLOCK_LEN_MAX + 1), "F-7.2");
    assert_eq!(direct(&|p| p.record.codec = Codec::None), "F-7.3");
    assert_eq!(direct(&|p| p.record.offset = 63), "F-7.4");
    assert_eq!(
        edited(&|d| d.sections[0].pages[0].record_count = 1025),
        "F-2.3"
    );
    assert_eq!(
        edited(&|d| d.sections[0].pages[0].item_count = 3 * BLOCK_LEN_MAX + 1),
        "F-7.9"
    );
    assert_eq!(edited(&|d| d.name_count = NUMBER_MAX + 1), "F-2.3");
    assert_eq!(edited(&|d| d.streams = vec![d.streams[0]; 65]), "F-2.3");
    assert_eq!(
        edited(&|d| d.streams[0].block_len_max = BLOCK_LEN_MAX + 1),
        "F-2.3"
    );
    // 64 bytes for the superblock, 65 for each of three records, 64 + 5 for the index page.
    let free_len = 64 + 3 * 65 + 64 + 5;
    assert_eq!(
        (
            rule(directory().check_fits(free_len)),
            rule(directory().check_fits(free_len - 1))
        ),
        ("none", "F-7.12")
    );
    let mut direct = directory();
    direct.sections[0].pages[0] = PageRef::direct(reference(), 9);
    let free_len = 64 + 64 + reference().stored_len;
    assert_eq!(
        (
            rule(direct.check_fits(free_len)),
            rule(direct.check_fits(free_len - 1))
        ),
        ("none", "F-7.12")
    );
}

#[test]
fn references() {
    let edited = |edit: &dyn Fn(&mut RecordRef)| {
        let mut record = reference();
        edit(&mut record);
        rule(check_lens(&record))
    };
    assert_eq!(edited(&|_| {}), "none");
    assert_eq!(edited(&|r| r.raw_len = BLOCK_LEN_MAX + 1), "F-7.2");
    assert_eq!(edited(&|r| r.raw_len = 4), "F-7.2");
    assert_eq!(edited(&|r| (r.raw_len, r.stored_len) = (0, 0)), "F-7.2");
    assert_eq!(edited(&|r| r.codec = Codec::None), "F-7.3");
    assert_eq!(edited(&|r| r.offset = NUMBER_MAX - 68), "F-7.4");
}

#[test]
fn index_pages() {
    let parse = |bytes: &[u8], items| rule(IndexPage::parse(bytes, RecordType::Data, 1, items));
    let page = |codec: u8, items: u8| {
        [
            &[0, 64, 0, 5, 0, 9, 0, codec, 0, items][..],
            &Digest::of(b"x").0,
        ]
        .concat()
    };
    assert_eq!(parse(&page(2, 9), 9), "none");
    assert_eq!(parse(&page(99, 9), 9), "F-3.5");
    assert_eq!(
        (parse(&page(2, 8), 8), parse(&page(2, 9), 10)),
        ("F-7.9", "F-7.9")
    );
    assert_eq!(parse(&page(0, 9), 9), "F-7.3");
    assert_eq!(
        rule(IndexPage::parse(&page(2, 0), RecordType::Entries, 1, 0)),
        "F-7.9"
    );
    assert_eq!(parse(&[page(2, 9), vec![0]].concat(), 9), "F-2.4");
}

/// A block whose first entry has kind `kind`. `tail` follows its five columns. With `mask` 1, the
/// mtime has `ns` nanoseconds.
fn block(count: u8, mask: u8, kind: u8, ns: &[u8], tail: &[u8]) -> &'static str {
    let time = if mask == 1 {
        [&[0, 0, 0][..], ns].concat()
    } else {
        Vec::new()
    };
    rule(EntryBlock::parse(
        &[
            &[count, mask, 0, kind, 0, 0, 0, 0, 0, 1, 0, 0][..],
            &time,
            tail,
        ]
        .concat(),
    ))
}

#[test]
fn entry_blocks() {
    let name = [0, 0, 0, 0, 1, b'n'];
    assert_eq!(block(1, 1, 0, &[0], &name), "none");
    assert_eq!(
        (block(0, 1, 0, &[0], &name), block(1, 16, 0, &[], &name)),
        ("F-8.1", "F-8.1")
    );
    assert_eq!(block(1, 0, 8, &[], &name), "F-8.2");
    let symlink = |target: &[u8]| [&[0, target.len() as u8][..], target, &name].concat();
    assert_eq!(block(1, 0, 3, &[], &symlink(b"t")), "none");
    assert_eq!(
        (
            block(1, 0, 3, &[], &symlink(b"")),
            block(1, 0, 3, &[], &symlink(b"\0"))
        ),
        ("F-8.5", "F-8.5")
    );
    assert_eq!(
        block(
            1,
            0,
            3,
            &[],
            &[&[0, 0x80, 0x20][..], &[b't'; 4096]].concat()
        ),
        "F-8.5"
    );
    assert_eq!(block(1, 1, 0, &[0x80, 0x94, 0xeb, 0xdc, 3], &name), "F-8.6");
}

#[test]
fn smaller_pages() {
    assert_eq!(
        rule(TemplatePage::parse(&[1, 0, 0, 1, 0, 0, 0, 2])),
        "F-9.1"
    );
    let big = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    assert_eq!(
        rule(TemplatePage::parse(
            &[&[1, 0, 0][..], &big, &[0, 0, 0, 0]].concat()
        )),
        "F-9.1"
    );
    assert_eq!(
        (
            rule(ContentPage::parse(&[1, 0, 0, 0])),
            rule(ContentPage::parse(&[1, 0, 0, 1]))
        ),
        ("F-10.1", "none")
    );
    assert_eq!(
        rule(ContentPage::parse(&[&[1, 0, 0][..], &big].concat())),
        "F-10.1"
    );
    // One extent, one stream with head 0: lengths, sources, steps.
    let extent = |len: &[u8], source: u8, step: &[u8]| {
        rule(ExtentPage::parse(
            &[&[1, 1, 0, 0][..], len, &[0, source, 0], step].concat(),
        ))
    };
    assert_eq!(
        (
            extent(&[5], 0, &[0]),
            extent(&[5], 1, &[0]),
            extent(&[5], 2, &[8])
        ),
        ("none", "none", "none")
    );
    assert_eq!(
        (extent(&[0], 1, &[0]), extent(&big, 1, &[0])),
        ("F-11.1", "F-11.1")
    );
    assert_eq!(
        (extent(&[5], 3, &[0]), extent(&[5], 4, &[0])),
        ("F-11.2", "F-11.2")
    );
    assert_eq!(extent(&[5], 2, &[1]), "F-11.3", "an address before 0");
    assert_eq!(
        rule(pages::parse_attributes(&[
            1, 0, 0x80, 0x20, 0, 0, 0, 0, 0, 0
        ])),
        "F-12.1"
    );
    assert_eq!(
        rule(pages::parse_attributes(&[
            1, 0, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x10, 0, 0, 0, 0
        ])),
        "F-12.1"
    );
    let set = |xattrs: &[u8]| rule(pages::parse_xattrs(&[&[1][..], xattrs].concat()));
    assert_eq!(set(&[2, 1, b'a', 0, 1, b'b', 0]), "none");
    assert_eq!((set(&[1, 0, 0]), set(&[1, 1, 0, 0])), ("F-13.1", "F-13.1"));
    assert_eq!(
        (
            set(&[2, 1, b'b', 0, 1, b'a', 0]),
            set(&[2, 1, b'a', 0, 1, b'a', 0])
        ),
        ("F-13.1", "F-13.1")
    );
    let links = |bytes: &[u8]| rule(pages::parse_links(bytes));
    assert_eq!(links(&[2, 1, 3, 2, 0, 0, 0, 2]), "none");
    assert_eq!(
        (links(&[1, 0, 3, 0, 3, 0, 2]), links(&[1, 0, 3, 0, 4, 0, 2])),
        ("F-14.1", "F-14.1")
    );
    assert_eq!(
        (links(&[1, 0, 3, 0, 0, 0, 1]), links(&[2, 0, 3, 0, 0, 0, 2])),
        ("F-14.1", "F-14.1")
    );
    assert_eq!(
        (
            rule(TimesPage::parse(&[1, 3, 0, 0, 0, 0])),
            rule(TimesPage::parse(&[1, 1, 0, 0, 0, 0])),
            // One time more than a page may list one by one.
            rule(TimesPage::parse(&[0x81, 0x20, 1, 0, 0, 0, 0])),
            rule(TimesPage::parse(&[0x81, 0x20, 2, 0, 0, 0]))
        ),
        ("F-15.1", "none", "F-15.1", "none")
    );
    // The last representable second, and a step of half a second.
    let run = |count| {
        let mut bytes = vec![count, 2];
        put_varint(&mut bytes, zigzag(i64::MAX));
        put_varint(&mut bytes, 0);
        put_varint(&mut bytes, zigzag(500_000_000));
        rule(TimesPage::parse(&bytes))
    };
    assert_eq!((run(0), run(2), run(3)), ("F-15.4", "none", "F-15.4"));
}

/// Would catch: a page that ends in a part of a digest, or holds none or too many.
#[test]
fn fsverity_pages() {
    let digests = pages::parse_fsverity(&[7; 96]).unwrap();
    assert_eq!(digests, [[7; 32]; 3]);
    for len in [0, 31, 33, 32 * (weald_format::limits::ITEMS_PER_PAGE + 1)] {
        assert_eq!(
            rule(pages::parse_fsverity(&vec![0; len])),
            "F-28.1",
            "{len}"
        );
    }
}

#[test]
fn xattr_sets_have_a_limit() {
    let value = vec![0; XATTR_SET_LEN_MAX / 2];
    let xattr = |name: &str, value: &[u8]| weald_format::Xattr {
        name: name.into(),
        value: value.into(),
    };
    let parse = |set| rule(pages::parse_xattrs(&pages::encode_xattrs(&[set])));
    assert_eq!(
        parse(vec![xattr("a", &value), xattr("b", &value[20..])]),
        "none"
    );
    assert_eq!(
        parse(vec![xattr("a", &value), xattr("b", &value)]),
        "F-13.3"
    );
}

#[test]
fn recipes() {
    let recipe = Recipe {
        len: 10,
        plain: ContentId(5),
        method: Method::from_code(6).unwrap(),
        part: None,
        check: [1; 8],
        corrections: vec![1, 2],
    };
    let parsed = |edit: &dyn Fn(&mut Recipe)| {
        let mut recipe = recipe.clone();
        edit(&mut recipe);
        rule(RecipePage::parse(&RecipePage::encode(&[recipe])))
    };
    assert_eq!(parsed(&|_| ()), "none");
    // A column with one length, then a column with one method: 6.
    let page = RecipePage::encode(std::slice::from_ref(&recipe));
    assert_eq!(page[..5], [1, 0, 10, 0, 6]);
    // Parts exist for levels 4 to 9.
    for unknown in [
        0, 10, 15, 24, 32, 42, 47, 49, 64, 67, 74, 80, 96, 99, 106, 127,
    ] {
        let mut page = page.clone();
        page[4] = unknown;
        assert_eq!(rule(RecipePage::parse(&page)), "F-20.2");
    }
    assert_eq!(parsed(&|r| r.len = 0), "F-20.2");
    assert_eq!(parsed(&|r| r.len = RECIPE_LEN_MAX + 1), "F-20.2");
    assert_eq!(parsed(&|r| r.plain = ContentId(NUMBER_MAX + 1)), "F-20.3");
    let part = Part {
        start: 5000,
        len: 100,
        sync: Part::SYNC_MAX,
        carry: 1,
        begins_inside: true,
        ends_inside: true,
        is_final: true,
    };
    let with = |part: Part| parsed(&|r| r.part = Some(part));
    assert_eq!(with(part), "none");
    assert_eq!(with(Part { carry: 255, ..part }), "none");
    let is_open = Part {
        ends_inside: false,
        ..part
    };
    assert_eq!(with(is_open), "F-20.8");
    assert_eq!(with(Part { len: 0, ..part }), "F-20.8");
    assert_eq!(
        with(Part {
            start: 4000,
            ..part
        }),
        "F-20.8"
    );
    assert_eq!(
        with(Part {
            start: NUMBER_MAX - 99,
            ..part
        }),
        "F-20.8"
    );
    assert_eq!(with(Part { carry: 0, ..part }), "F-20.8");
    let sync = Part::SYNC_MAX + 1;
    assert_eq!(with(Part { sync, ..part }), "F-20.8");
}
