//! The directory, record references and index pages.

use crate::{reference, rule};
use weald_format::Digest;
use weald_format::container::{Codec, RecordRef, RecordType};
use weald_format::directory::{
    Category, Directory, IndexPage, PageRef, Section, Stream, check_lens,
};
use weald_format::limits::{BLOCK_LEN_MAX, NUMBER_MAX};

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
        label: weald_format::label::Label::default(),
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

/// The rule that the directory breaks after `edit`.
fn edited(edit: &dyn Fn(&mut Directory)) -> &'static str {
    let mut directory = directory();
    edit(&mut directory);
    rule(Directory::parse(&directory.encode()))
}

#[test]
fn directories() {
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
}

#[test]
fn categories_and_sections() {
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
}

/// A record in place of a page with one record.
#[test]
fn direct_references() {
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
}

#[test]
fn records_fit_into_the_image() {
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
