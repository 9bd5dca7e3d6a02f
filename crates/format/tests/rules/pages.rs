//! Entry blocks, recipes and the smaller pages.

use crate::rule;
use weald_format::ContentId;
use weald_format::cursor::{put_varint, zigzag};
use weald_format::entries::EntryBlock;
use weald_format::limits::{NUMBER_MAX, RECIPE_LEN_MAX, XATTR_SET_LEN_MAX};
use weald_format::pages::{self, ContentPage, ExtentPage, TemplatePage, TimesPage};
use weald_format::recipes::{DeflatePart, Method, Recipe, RecipePage};

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

/// The varint of 2^63 - 1, which is more than `NUMBER_MAX`.
const BIG: [u8; 9] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];

#[test]
fn template_and_content_pages() {
    assert_eq!(
        rule(TemplatePage::parse(&[1, 0, 0, 1, 0, 0, 0, 2])),
        "F-9.1"
    );
    assert_eq!(
        rule(TemplatePage::parse(
            &[&[1, 0, 0][..], &BIG, &[0, 0, 0, 0]].concat()
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
        rule(ContentPage::parse(&[&[1, 0, 0][..], &BIG].concat())),
        "F-10.1"
    );
}

#[test]
fn extent_pages() {
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
        (extent(&[0], 1, &[0]), extent(&BIG, 1, &[0])),
        ("F-11.1", "F-11.1")
    );
    assert_eq!(
        (extent(&[5], 3, &[0]), extent(&[5], 4, &[0])),
        ("F-11.2", "F-11.2")
    );
    assert_eq!(extent(&[5], 2, &[1]), "F-11.3", "an address before 0");
}

#[test]
fn attribute_pages() {
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
}

#[test]
fn xattr_pages() {
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
}

#[test]
fn link_pages() {
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
}

#[test]
fn times_pages() {
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
    let part = DeflatePart {
        start: 5000,
        len: 100,
        sync: DeflatePart::SYNC_MAX,
        carry: 1,
        begins_inside: true,
        ends_inside: true,
        is_final: true,
    };
    let with = |part: DeflatePart| parsed(&|r| r.part = Some(part));
    assert_eq!(with(part), "none");
    assert_eq!(with(DeflatePart { carry: 255, ..part }), "none");
    let is_open = DeflatePart {
        ends_inside: false,
        ..part
    };
    assert_eq!(with(is_open), "F-20.8");
    assert_eq!(with(DeflatePart { len: 0, ..part }), "F-20.8");
    assert_eq!(
        with(DeflatePart {
            start: 4000,
            ..part
        }),
        "F-20.8"
    );
    assert_eq!(
        with(DeflatePart {
            start: NUMBER_MAX - 99,
            ..part
        }),
        "F-20.8"
    );
    assert_eq!(with(DeflatePart { carry: 0, ..part }), "F-20.8");
    let sync = DeflatePart::SYNC_MAX + 1;
    assert_eq!(with(DeflatePart { sync, ..part }), "F-20.8");
}
