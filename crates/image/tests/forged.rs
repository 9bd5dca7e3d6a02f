//! Images whose digests all agree but whose content lies: each lie must be an error with its rule, in bounded time and
//! memory, whichever way one comes upon it.

mod support;

use std::time::{Duration, Instant};
use support::*;
use weald_format::container::{Codec, RecordType};
use weald_format::entries::EntryKind;
use weald_format::limits::{BLOCK_LEN_MAX, DEPTH_MAX, NUMBER_MAX, PAGE_LEN_MAX};
use weald_format::pages::{Extent, Source, Template};
use weald_format::{Digest, Error};

/// What `docs` of the project promise for any hostile image of this size.
const TIME_MAX: Duration = Duration::from_secs(2);
const MEMORY_MAX: u64 = 256 << 20;

/// How a lie shows.
#[derive(Clone, Copy, PartialEq)]
enum Shows {
    /// The image does not open.
    Open,
    /// Reading everything fails, and so does a check.
    Read,
    /// Reading gives something sane or fails elsewhere; a check names the rule.
    Check,
}

struct Case {
    what: &'static str,
    rule: &'static str,
    shows: Shows,
    forge: Box<dyn Fn(&mut Parts)>,
}

fn case(what: &'static str, rule: &'static str, shows: Shows, forge: impl Fn(&mut Parts) + 'static) -> Case {
    Case { what, rule, shows, forge: Box::new(forge) }
}

/// A case that edits the raw records.
fn records(what: &'static str, rule: &'static str, shows: Shows, edit: fn(&mut Vec<Raw>)) -> Case {
    case(what, rule, shows, move |p| p.edit_records = Some(Box::new(edit)))
}

/// A case that edits what the index says of the records of one type.
fn refs(
    what: &'static str,
    rule: &'static str,
    shows: Shows,
    of: RecordType,
    edit: impl Fn(&mut weald_format::container::RecordRef, &mut u64) + Clone + 'static,
) -> Case {
    case(what, rule, shows, move |p| {
        let edit = edit.clone();
        p.edit_refs = Some((of, Box::new(move |refs, items| edit(&mut refs[0], &mut items[0]))));
    })
}

fn of_type(records: &mut [Raw], record_type: RecordType) -> &mut Raw {
    records.iter_mut().find(|r| r.record_type == record_type).unwrap()
}

fn position(parts: &Parts, name: &str) -> usize {
    parts.entries.iter().position(|e| e.name == name.as_bytes()).unwrap()
}

fn named<'a>(parts: &'a mut Parts, name: &str) -> &'a mut Entry {
    let at = position(parts, name);
    &mut parts.entries[at]
}

/// A zstd frame of `raw_len` zeros.
fn bomb(raw_len: u64) -> Vec<u8> {
    zstd::bulk::compress(&vec![0; raw_len as usize], 1).unwrap()
}

fn container_cases() -> Vec<Case> {
    use Shows::*;
    vec![
        case("directory with another superblock", "F-7.1", Open, |p| {
            p.edit_directory = Some(Box::new(|d| d.superblock_digest = Digest::of(b"other")));
        }),
        case("directory of another generation", "F-7.1", Open, |p| {
            p.edit_footer = Some(Box::new(|f| f.generation = 2));
        }),
        case("footer with another tree digest", "F-7.1", Open, |p| {
            p.edit_footer = Some(Box::new(|f| f.tree_digest = Digest::of(b"other")));
        }),
        case("footer with another image digest", "F-4.5", Open, |p| {
            p.edit_footer = Some(Box::new(|f| f.image_digest = Digest::of(b"other")));
        }),
        case("directory of a wrong type", "F-4.6", Open, |p| {
            p.edit_directory_record = Some(Box::new(|r| r.record_type = RecordType::Index));
        }),
        case("directory with another digest", "F-4.6", Open, |p| {
            p.edit_directory_record = Some(Box::new(|r| r.digest = Digest::of(b"other")));
        }),
        case("directory longer than stored, without codec", "F-7.3", Open, |p| {
            p.edit_directory_record = Some(Box::new(|r| r.raw_len += 1));
        }),
        case("directory of 2^60 bytes", "F-7.2", Open, |p| {
            p.edit_directory_record = Some(Box::new(|r| (r.codec, r.raw_len) = (Codec::Zstd, 1 << 60)));
        }),
        case("directory that is no zstd frame", "F-3.11", Open, |p| {
            p.edit_directory_record = Some(Box::new(|r| r.codec = Codec::Zstd));
        }),
        case("footer that points behind itself", "F-4.4", Open, |p| {
            p.edit_footer = Some(Box::new(|f| f.directory_offset += 1));
        }),
        case("footer before itself", "F-4.4", Open, |p| {
            p.edit_footer = Some(Box::new(|f| f.previous_footer = Some(f.footer_offset)));
        }),
        case("records that the file has no room for", "F-7.12", Open, |p| {
            p.edit_directory = Some(Box::new(|d| {
                let pages = &mut d.sections.iter_mut().find(|s| s.record_type == RecordType::Contents).unwrap().pages;
                *pages = vec![pages[0]; 10_000];
                pages.iter_mut().for_each(|p| (p.record_count, p.item_count) = (1024, 1 << 20));
            }));
        }),
        case("more items than records can have", "F-7.9", Open, |p| {
            p.edit_directory = Some(Box::new(|d| {
                let section = d.sections.iter_mut().find(|s| s.record_type == RecordType::Contents).unwrap();
                section.pages[0].item_count = 1 << 60;
            }));
        }),
        case("a stream that is not there", "F-7.6", Open, |p| {
            p.edit_directory = Some(Box::new(|d| d.streams.clear()));
        }),
        case("a data section of stream 7", "F-7.6", Open, |p| {
            p.edit_directory = Some(Box::new(|d| d.sections[0].stream = 7));
        }),
        case("2^62 + 1 names", "F-2.3", Open, |p| p.name_count = NUMBER_MAX + 1),
        case("one template", "F-9.2", Open, |p| p.templates.truncate(1)),
        refs("record behind the end", "F-3.13", Read, RecordType::Entries, |r, _| r.offset += 1 << 30),
        refs("record at another place", "F-3.14", Read, RecordType::Entries, |r, _| r.offset -= 1),
        refs("header with another length", "F-3.14", Read, RecordType::Entries, |r, _| {
            (r.codec, r.raw_len) = (Codec::Zstd, r.raw_len + 1);
        }),
        refs("record with another digest", "F-3.14", Read, RecordType::Data, |r, _| r.digest = Digest::of(b"x")),
        refs("block longer than its stream's", "F-7.13", Read, RecordType::Data, |r, items| {
            (r.codec, r.raw_len, *items) = (Codec::Zstd, 5000, 5000);
        }),
        refs("stored bytes beyond all bounds", "F-7.2", Read, RecordType::Entries, |r, _| {
            (r.stored_len, r.raw_len) = (PAGE_LEN_MAX + 1, PAGE_LEN_MAX + 1);
        }),
        refs("more items than the page has", "F-7.9", Read, RecordType::Contents, |_, items| *items = 1000),
        refs("no items", "F-7.9", Read, RecordType::Attributes, |_, items| *items = 0),
        refs("2^61 entries in a block", "F-7.9", Open, RecordType::Entries, |_, items| *items = 1 << 61),
        case("two records for the same bytes", "F-7.11", Check, |p| {
            p.edit_refs = Some((RecordType::Attributes, Box::new(|refs, items| {
                refs.push(refs[0]);
                items.push(items[0]);
            })));
        }),
        case("1024 records for the same bytes", "F-7.11", Check, |p| {
            p.blocks.push(vec![7; 4096 * 20]);
            p.edit_refs = Some((RecordType::Xattrs, Box::new(|refs, items| {
                *refs = vec![refs[0]; 1024];
                *items = vec![items[0]; 1024];
            })));
        }),
        records("a record that nothing refers to, broken", "F-2.4", Check, |records| {
            let mut spare = of_type(records, RecordType::Xattrs).clone();
            spare.stored.push(0);
            spare.raw_len += 1;
            records.push(spare);
        }),
    ]
}

fn codec_cases() -> Vec<Case> {
    use Shows::*;
    vec![
        records("a frame that expands to more than was said", "F-3.11", Read, |records| {
            let data = of_type(records, RecordType::Data);
            (data.codec, data.stored) = (Codec::Zstd, bomb(1 << 20));
            assert!(data.stored.len() as u64 <= data.raw_len);
        }),
        case("a block of 64 MiB from a few bytes, that are less", "F-3.11", Read, |p| {
            p.streams[0].block_len_max = BLOCK_LEN_MAX;
            p.edit_records = Some(Box::new(|records| {
                let data = of_type(records, RecordType::Data);
                (data.codec, data.stored) = (Codec::Zstd, bomb(BLOCK_LEN_MAX - 1));
                (data.raw_len, data.items) = (BLOCK_LEN_MAX, BLOCK_LEN_MAX);
            }));
        }),
        case("64 MiB of xz with a dictionary of 1.5 GiB", "F-3.11", Read, |p| {
            p.streams[0].block_len_max = BLOCK_LEN_MAX;
            p.edit_records = Some(Box::new(|records| {
                let data = of_type(records, RecordType::Data);
                (data.codec, data.stored) = (Codec::Xz, xz(&[0; 1000], 1536 << 20));
                (data.raw_len, data.items) = (BLOCK_LEN_MAX, BLOCK_LEN_MAX);
            }));
        }),
        records("entries that decode to 16 MiB of zeros", "F-8.1", Read, |records| {
            let page = of_type(records, RecordType::Entries);
            (page.codec, page.stored, page.raw_len) = (Codec::Zstd, bomb(PAGE_LEN_MAX), PAGE_LEN_MAX);
        }),
        records("contents that decode to 16 MiB of zeros", "F-2.4", Read, |records| {
            let page = of_type(records, RecordType::Contents);
            (page.codec, page.stored, page.raw_len) = (Codec::Zstd, bomb(PAGE_LEN_MAX), PAGE_LEN_MAX);
        }),
        records("lz4 noise", "F-3.11", Read, |records| {
            let data = of_type(records, RecordType::Data);
            data.codec = Codec::Lz4;
            data.stored.iter_mut().for_each(|b| *b |= 0xf0);
            data.stored.truncate(100);
        }),
        records("a dictionary is needed and there is none", "F-3.12", Read, |records| {
            let page = of_type(records, RecordType::Entries);
            page.codec = Codec::ZstdDictionary;
        }),
        records("a dictionary that is none", "F-3.12", Read, |records| {
            of_type(records, RecordType::Entries).codec = Codec::ZstdDictionary;
            let mut forged = vec![0x37, 0xa4, 0x30, 0xec];
            forged.extend((0..500u32).map(|i| (i * i % 251) as u8));
            records.push(Raw::plain(RecordType::Dictionary, forged, 1));
        }),
        records("a dictionary that needs a dictionary", "F-3.12", Read, |records| {
            of_type(records, RecordType::Entries).codec = Codec::ZstdDictionary;
            let mut dictionary = Raw::plain(RecordType::Dictionary, vec![9; 500], 1);
            dictionary.codec = Codec::ZstdDictionary;
            records.push(dictionary);
        }),
        records("two dictionaries", "F-3.12", Read, |records| {
            of_type(records, RecordType::Entries).codec = Codec::ZstdDictionary;
            records.extend([0, 1].map(|i| Raw::plain(RecordType::Dictionary, vec![i; 500], 1)));
        }),
        records("a dictionary of any bytes", "F-3.11", Read, |records| {
            of_type(records, RecordType::Entries).codec = Codec::ZstdDictionary;
            records.push(Raw::plain(RecordType::Dictionary, vec![9; 500], 1));
        }),
    ]
}

fn entry_cases() -> Vec<Case> {
    use Shows::*;
    vec![
        case("a name with a slash", "F-6.2", Read, |p| named(p, "y").name = b"y/z".to_vec()),
        case("a name with a NUL", "F-6.2", Read, |p| named(p, "y").name = b"y\0z".to_vec()),
        case("..", "F-8.4", Read, |p| named(p, "a").name = b"..".to_vec()),
        case(".", "F-8.4", Read, |p| named(p, "a").name = b".".to_vec()),
        case("an empty name", "F-8.4", Read, |p| named(p, "a").name = b"".to_vec()),
        case("a root that has a name", "F-8.4", Check, |p| p.entries.last_mut().unwrap().name = b"root".to_vec()),
        case("a root called ..", "F-8.4", Check, |p| p.entries.last_mut().unwrap().name = b"..".to_vec()),
        case("a root that is a file", "F-8.4", Read, |p| {
            let root = p.entries.last_mut().unwrap();
            (root.fields.kind, root.fields.body) = (EntryKind::File, 0);
        }),
        case("names twice", "F-8.7", Read, |p| named(p, "b").name = b"a".to_vec()),
        case("names out of order", "F-8.7", Read, |p| named(p, "a").name = b"c".to_vec()),
        case("a target with a NUL", "F-8.5", Read, |p| named(p, "y").target = b"a\0b".to_vec()),
        case("an empty target", "F-8.5", Read, |p| named(p, "y").target = Vec::new()),
        case("a target of 4096 bytes", "F-8.5", Read, |p| named(p, "y").target = vec![b'a'; 4096]),
        case("10^9 nanoseconds", "F-8.6", Read, |p| named(p, "y").fields.times[0].nanoseconds = 1_000_000_000),
        case("attributes that are not there", "F-12.2", Read, |p| named(p, "y").fields.attributes = 2),
        case("attributes 2^63", "F-12.2", Read, |p| named(p, "y").fields.attributes = 1 << 63),
        case("an xattr set that is not there", "F-13.2", Read, |p| named(p, "a").fields.xattrs = 2),
        case("xattr set 2^64 - 1", "F-13.2", Read, |p| named(p, "a").fields.xattrs = u64::MAX),
        case("a content that is not there", "F-10.2", Read, |p| named(p, "a").fields.body = 3),
        case("content 2^64 - 1", "F-10.2", Read, |p| named(p, "a").fields.body = u64::MAX),
        case("a first name before the directory", "F-8.8", Check, |p| named(p, "h2").fields.link_back = 100),
        case("three names said, two there", "F-8.8", Check, |p| {
            named(p, "h1").fields.nlink = 3;
            named(p, "h2").fields.nlink = 3;
        }),
        case("names of one inode with two contents", "F-8.8", Check, |p| named(p, "h2").fields.body = 0),
        case("names of one inode with two owners", "F-8.8", Check, |p| named(p, "h2").fields.attributes = 1),
        case("names of one inode with two times", "F-8.8", Check, |p| named(p, "h2").fields.times[0].seconds = 0),
        case("names of one inode with two xattr sets", "F-8.8", Check, |p| named(p, "h2").fields.xattrs = 1),
        case("a directory with two names", "F-8.8", Check, |p| named(p, "d").fields.nlink = 2),
        records("an empty block", "F-8.1", Read, |records| of_type(records, RecordType::Entries).stored[0] = 0),
        records("an unknown kind", "F-8.2", Read, |records| {
            // One entry, mtimes, all kinds equal: 8.
            let page = of_type(records, RecordType::Entries);
            (page.stored, page.raw_len) = (vec![1, 1, 0, 8], 4);
        }),
    ]
}

fn template_cases() -> Vec<Case> {
    use Shows::*;
    vec![
        case("a directory that holds itself", "F-9.4", Read, |p| named(p, "d").fields.body = 1),
        case("a directory that holds its parent", "F-9.4", Read, |p| named(p, "d").fields.body = 2),
        case("template 2^64 - 1", "F-9.4", Read, |p| named(p, "d").fields.body = u64::MAX),
        case("a root that is the holder", "F-9.4", Read, |p| p.entries.last_mut().unwrap().fields.body = 2),
        case("more names below than there are", "F-9.5", Read, |p| p.templates[1].subtree_count = 50),
        case("fewer names below than there are", "F-9.5", Read, |p| p.templates[1].subtree_count = 7),
        case("no sub-directories said", "F-9.5", Read, |p| p.templates[1].directory_count = 0),
        case("more sub-directories than entries", "F-9.1", Read, |p| p.templates[1].directory_count = 8),
        case("another number of names", "F-9.3", Read, |p| p.name_count = 11),
        case("a root with a sibling", "F-9.3", Read, |p| {
            p.entries.push(entry("z", EntryKind::Empty, 0));
            p.templates[2] = Template { entry_count: 2, subtree_count: 11, ..p.templates[2] };
            p.name_count = 11;
        }),
        case("templates that begin too late", "F-9.6", Read, |p| p.templates[0].entry_start = 1),
        case("an entry of no template", "F-9.6", Check, |p| {
            p.entries.push(entry("spare", EntryKind::Empty, 0));
        }),
        case("entries 2^61 to 2^61 + 2", "F-9.6", Read, |p| p.templates[0].entry_start = 1 << 61),
        case("entries 2^61 to 2^61 + 2, when one looks", "F-9.8", Read, |p| p.templates[0].entry_start = 1 << 61),
        case("a chain of directories that is too deep", "F-9.7", Check, |p| chain(p, DEPTH_MAX as u64 + 1)),
        case("a chain of directories that is too deep, times apart", "F-9.7", Check, |p| {
            chain(p, DEPTH_MAX as u64 + 1);
            (p.mask, p.times) = (0, vec![TIME; DEPTH_MAX + 2]);
        }),
        case("a chain of directories that is just not too deep, times apart", "F-16.1", Check, |p| {
            chain(p, DEPTH_MAX as u64 - 2);
            (p.mask, p.times) = (0, vec![TIME; DEPTH_MAX - 1]);
        }),
        case("2^61 names", "F-16.1", Check, |p| doubling(p, 60)),
        case("2^61 names, their times inside and beside", "F-15.3", Check, |p| {
            doubling(p, 60);
            p.times = vec![TIME; 4000];
        }),
        case("2^61 names, their times beside", "F-15.3", Check, |p| {
            doubling(p, 60);
            (p.mask, p.times) = (0, vec![TIME; 4000]);
        }),
    ]
}

/// A root with `count` directories in each other, the last one empty.
fn chain(parts: &mut Parts, count: u64) {
    let directory = |id: u64| entry("d", EntryKind::Directory, id);
    parts.entries = (0..count).map(directory).collect();
    parts.entries.push(entry("", EntryKind::Directory, count));
    let template = |i: u64| Template {
        entry_start: i.saturating_sub(1),
        entry_count: u64::from(i > 0),
        subtree_count: i,
        directory_count: u64::from(i > 0),
    };
    parts.templates = (0..=count + 1).map(template).collect();
    parts.name_count = count + 1;
    parts.links.clear();
}

/// A root with two equal directories, each with two equal directories and so on, `levels` times; below, one file.
fn doubling(parts: &mut Parts, levels: u64) {
    parts.entries = vec![entry("a", EntryKind::File, 0)];
    parts.templates = vec![Template { entry_start: 0, entry_count: 1, subtree_count: 1, directory_count: 0 }];
    for level in 0..levels {
        parts.entries.push(entry("a", EntryKind::Directory, level));
        parts.entries.push(entry("b", EntryKind::Directory, level));
        let below = parts.templates[level as usize].subtree_count;
        let template =
            Template { entry_start: 1 + level * 2, entry_count: 2, subtree_count: 2 + 2 * below, directory_count: 2 };
        parts.templates.push(template);
    }
    parts.entries.push(entry("", EntryKind::Directory, levels));
    let below = parts.templates[levels as usize].subtree_count;
    let entry_start = 1 + levels * 2;
    parts.templates.push(Template { entry_start, entry_count: 1, subtree_count: 1 + below, directory_count: 1 });
    parts.name_count = 1 + below;
    parts.links.clear();
}

fn content_cases() -> Vec<Case> {
    use Shows::*;
    let from = |stream, address, len| Extent { len, source: Source::Stream { stream, address } };
    vec![
        case("a content of no bytes", "F-10.1", Read, |p| p.content_lens[1] = 0),
        case("contents of more than 2^62 bytes", "F-10.1", Read, |p| p.content_lens[1] = NUMBER_MAX),
        case("contents that begin late", "F-10.3", Check, |p| p.content_start = 10),
        case("contents that end before the extents", "F-10.3", Check, |p| p.content_lens[2] = 1000),
        case("contents that pass the extents", "F-11.4", Read, |p| p.content_lens[2] = 2000),
        case("no extents", "F-11.4", Read, |p| p.extents.clear()),
        case("an empty extent", "F-11.1", Read, move |p| p.extents.insert(1, from(0, 0, 0))),
        case("extents of more than 2^62 bytes", "F-11.1", Read, |p| {
            p.extents[1].len = NUMBER_MAX;
            p.edit_records = Some(Box::new(|r| of_type(r, RecordType::Extents).items = NUMBER_MAX));
        }),
        records("an extent of a stream that the page does not know", "F-11.2", Read, |records| {
            // One extent, one stream with head 0, all lengths 1160, all tags 11.
            let page = of_type(records, RecordType::Extents);
            page.stored = vec![1, 1, 0, 0, 0x88, 0x09, 0, 11, 0, 0];
            page.raw_len = 10;
        }),
        case("an extent of a stream that the directory does not know", "F-11.5", Read, move |p| {
            p.streams.push(p.streams[0]);
            p.extents[0] = from(1, 0, 150);
            p.edit_directory = Some(Box::new(|d| d.streams.truncate(1)));
        }),
        case("an address beyond 2^62", "F-11.3", Read, move |p| p.extents[0] = from(0, NUMBER_MAX, 150)),
        case("an address behind the stream", "F-11.5", Read, move |p| p.extents[0] = from(0, 1 << 40, 150)),
        case("an extent that passes its stream", "F-11.5", Read, move |p| p.extents[2] = from(0, 155, 10)),
        case("an extent of 2^61 bytes from a block of 120", "F-11.5", Check, move |p| {
            p.extents = vec![from(0, 100, 1 << 61)];
            p.content_lens = vec![1 << 61];
            p.entries.iter_mut().for_each(|e| e.fields.body = if e.fields.kind == EntryKind::File { 0 } else { e.fields.body });
        }),
        case("a hole of 2^61 bytes", "F-16.1", Check, move |p| {
            p.extents[1].len = 1 << 61;
            p.content_lens[2] = 10 + (1 << 61);
        }),
        case("a thousand contents in a block of 64 MiB that does not decode", "F-3.11", Read, move |p| {
            p.streams[0].block_len_max = BLOCK_LEN_MAX;
            p.blocks = vec![vec![0; 100]];
            p.content_lens = vec![1; 1000];
            p.extents = vec![from(0, 0, 1000)];
            p.edit_records = Some(Box::new(|records| {
                let data = of_type(records, RecordType::Data);
                (data.codec, data.stored) = (Codec::Zstd, bomb(BLOCK_LEN_MAX - 1));
                (data.raw_len, data.items) = (BLOCK_LEN_MAX, BLOCK_LEN_MAX);
            }));
        }),
    ]
}

fn page_cases() -> Vec<Case> {
    use Shows::*;
    vec![
        case("permissions of 13 bits", "F-12.1", Read, |p| p.attributes[0].permissions = 0o10000),
        case("xattrs out of order", "F-13.1", Read, |p| {
            let mut other = p.xattrs[0][0].clone();
            other.name = b"user.a".to_vec();
            p.xattrs[0].push(other);
        }),
        case("an xattr without name", "F-13.1", Read, |p| p.xattrs[0][0].name.clear()),
        case("a link of one name", "F-14.1", Read, |p| p.links[0].nlink = 1),
        case("links out of order", "F-14.1", Read, |p| p.links[1] = p.links[0]),
        case("a name that is not in the table", "F-14.3", Read, |p| p.links.truncate(1)),
        case("another name in the table", "F-14.2", Read, |p| p.links[1].name_no = 10),
        case("names of one inode, two first ones", "F-14.3", Check, |p| p.links[1].first_no = 9),
        case("names of one inode, two counts", "F-14.3", Check, |p| p.links[1].nlink = 3),
        case("names across directories with two contents", "F-14.4", Check, |p| named(p, "x").fields.body = 0),
        case("names across directories with two owners", "F-14.4", Check, |p| named(p, "x").fields.attributes = 1),
        case("no mtimes", "F-15.2", Read, |p| p.mask = 0),
        case("mtimes inside and beside", "F-15.2", Read, |p| p.times = vec![TIME; 10]),
        case("too few mtimes beside", "F-15.3", Check, |p| (p.mask, p.times) = (0, vec![TIME; 9])),
        case("a times page of other times", "F-15.1", Read, |p| {
            (p.mask, p.times) = (0, vec![TIME; 10]);
            p.edit_records = Some(Box::new(|r| of_type(r, RecordType::Times).stored[1] = 2));
        }),
        case("another tree digest", "F-16.1", Check, |p| p.tree_digest = Digest::of(b"other")),
        case("another name", "F-16.1", Check, |p| named(p, "z").name = b"zz".to_vec()),
        case("another mtime", "F-16.1", Check, |p| named(p, "z").fields.times[0].nanoseconds += 1),
    ]
}

fn xz(raw: &[u8], dictionary_len: u32) -> Vec<u8> {
    use liblzma::stream::{Action, Check, Filters, LzmaOptions, Stream};
    let mut options = LzmaOptions::new_preset(0).unwrap();
    options.dict_size(dictionary_len);
    let mut filters = Filters::new();
    filters.lzma2(&options);
    let mut stream = Stream::new_stream_encoder(&filters, Check::None).unwrap();
    let mut out = Vec::with_capacity(4096);
    stream.process_vec(raw, &mut out, Action::Finish).unwrap();
    out
}

/// Most memory since the last call, bytes.
fn peak_len() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    let peak = line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024;
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    peak
}

fn rule_of(error: &Error) -> &'static str {
    error.place().map_or("?", |p| p.rule)
}

/// Opens, reads and checks; says in words what did not go as `case` says.
fn try_case(case: &Case) -> Result<(), String> {
    let mut parts = Parts::base();
    (case.forge)(&mut parts);
    let bytes = parts.bytes();
    drop(parts);
    let image = match open(bytes) {
        Err(error) => {
            let is_right = case.shows == Shows::Open && rule_of(&error) == case.rule;
            return if is_right { Ok(()) } else { Err(format!("does not open: {error}")) };
        }
        Ok(_) if case.shows == Shows::Open => return Err("opens".into()),
        Ok(image) => image,
    };
    let (findings, report) = timed("check", || check(&image, false))?;
    image.drop_caches();
    let shown = timed("reading", || read_some(&image, 500))?;
    if shown.is_ok() && case.shows == Shows::Read {
        return Err("everything can be read".into());
    }
    let is_met = shown.is_err_and(|e| rule_of(&e) == case.rule) || rules(&findings).contains(&case.rule);
    if report.is_clean() || !is_met {
        return Err(format!("check finds {findings:?}"));
    }
    image.drop_caches();
    timed("check of digests", || check(&image, true)).map(|_| ())
}

fn timed<T>(what: &str, run: impl FnOnce() -> T) -> Result<T, String> {
    peak_len();
    let start = Instant::now();
    let out = run();
    let (time, memory) = (start.elapsed(), peak_len());
    match time < TIME_MAX && memory < MEMORY_MAX {
        true => Ok(out),
        false => Err(format!("{what} took {time:?} and {} MiB", memory >> 20)),
    }
}

#[test]
fn every_lie_is_an_error_in_bounded_time_and_memory() {
    let cases = [
        container_cases(),
        codec_cases(),
        entry_cases(),
        template_cases(),
        content_cases(),
        page_cases(),
    ];
    let mut wrong = Vec::new();
    for case in cases.iter().flatten() {
        if let Err(what) = try_case(case) {
            wrong.push(format!("{} ({}): {what}", case.what, case.rule));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
