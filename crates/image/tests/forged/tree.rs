//! Forged trees: entries and templates.

use super::Shows::*;
use super::support::*;
use super::{Case, case, named, of_type, records};
use weald_format::container::RecordType;
use weald_format::entries::EntryKind;
use weald_format::limits::DEPTH_MAX;
use weald_format::pages::Template;

pub fn entry_cases() -> Vec<Case> {
    vec![
        case("a name with a slash", "F-6.2", Read, |p| {
            named(p, "y").name = b"y/z".to_vec()
        }),
        case("a name with a NUL", "F-6.2", Read, |p| {
            named(p, "y").name = b"y\0z".to_vec()
        }),
        case("..", "F-8.4", Read, |p| named(p, "a").name = b"..".to_vec()),
        case(".", "F-8.4", Read, |p| named(p, "a").name = b".".to_vec()),
        case("an empty name", "F-8.4", Read, |p| {
            named(p, "a").name = b"".to_vec()
        }),
        case("a root that has a name", "F-8.4", Check, |p| {
            p.entries.last_mut().unwrap().name = b"root".to_vec()
        }),
        case("a root called ..", "F-8.4", Check, |p| {
            p.entries.last_mut().unwrap().name = b"..".to_vec()
        }),
        case("a root that is a file", "F-8.4", Read, |p| {
            let root = p.entries.last_mut().unwrap();
            (root.fields.kind, root.fields.body) = (EntryKind::File, 0);
        }),
        case("names twice", "F-8.7", Read, |p| {
            named(p, "b").name = b"a".to_vec()
        }),
        case("names out of order", "F-8.7", Read, |p| {
            named(p, "a").name = b"c".to_vec()
        }),
        case("a target with a NUL", "F-8.5", Read, |p| {
            named(p, "y").target = b"a\0b".to_vec()
        }),
        case("an empty target", "F-8.5", Read, |p| {
            named(p, "y").target = Vec::new()
        }),
        case("a target of 4096 bytes", "F-8.5", Read, |p| {
            named(p, "y").target = vec![b'a'; 4096]
        }),
        case("10^9 nanoseconds", "F-8.6", Read, |p| {
            named(p, "y").fields.times[0].nanoseconds = 1_000_000_000
        }),
        case("attributes that are not there", "F-12.2", Read, |p| {
            named(p, "y").fields.attributes = 2
        }),
        case("attributes 2^63", "F-12.2", Read, |p| {
            named(p, "y").fields.attributes = 1 << 63
        }),
        case("an xattr set that is not there", "F-13.2", Read, |p| {
            named(p, "a").fields.xattrs = 2
        }),
        case("xattr set 2^64 - 1", "F-13.2", Read, |p| {
            named(p, "a").fields.xattrs = u64::MAX
        }),
        case("a content that is not there", "F-10.2", Read, |p| {
            named(p, "a").fields.body = 3
        }),
        case("content 2^64 - 1", "F-10.2", Read, |p| {
            named(p, "a").fields.body = u64::MAX
        }),
        case("a first name before the directory", "F-8.8", Check, |p| {
            named(p, "h2").fields.link_back = 100
        }),
        case("three names said, two there", "F-8.8", Check, |p| {
            named(p, "h1").fields.nlink = 3;
            named(p, "h2").fields.nlink = 3;
        }),
        case(
            "names of one inode with two contents",
            "F-8.8",
            Check,
            |p| named(p, "h2").fields.body = 0,
        ),
        case("names of one inode with two owners", "F-8.8", Check, |p| {
            named(p, "h2").fields.attributes = 1
        }),
        case("names of one inode with two times", "F-8.8", Check, |p| {
            named(p, "h2").fields.times[0].seconds = 0
        }),
        case(
            "names of one inode with two xattr sets",
            "F-8.8",
            Check,
            |p| named(p, "h2").fields.xattrs = 1,
        ),
        case("a directory with two names", "F-8.8", Check, |p| {
            named(p, "d").fields.nlink = 2
        }),
        records("an empty block", "F-8.1", Read, |records| {
            of_type(records, RecordType::Entries).stored[0] = 0
        }),
        records("an unknown kind", "F-8.2", Read, |records| {
            // One entry, mtimes, all kinds equal: 8.
            let page = of_type(records, RecordType::Entries);
            (page.stored, page.raw_len) = (vec![1, 1, 0, 8], 4);
        }),
    ]
}

pub fn template_cases() -> Vec<Case> {
    vec![
        case("a directory that holds itself", "F-9.4", Read, |p| {
            named(p, "d").fields.body = 1
        }),
        case("a directory that holds its parent", "F-9.4", Read, |p| {
            named(p, "d").fields.body = 2
        }),
        case("template 2^64 - 1", "F-9.4", Read, |p| {
            named(p, "d").fields.body = u64::MAX
        }),
        case("a root that is the holder", "F-9.4", Read, |p| {
            p.entries.last_mut().unwrap().fields.body = 2
        }),
        case("more names below than there are", "F-9.5", Read, |p| {
            p.templates[1].subtree_count = 50
        }),
        case("fewer names below than there are", "F-9.5", Read, |p| {
            p.templates[1].subtree_count = 7
        }),
        case("no sub-directories said", "F-9.5", Read, |p| {
            p.templates[1].directory_count = 0
        }),
        case("more sub-directories than entries", "F-9.1", Read, |p| {
            p.templates[1].directory_count = 8
        }),
        case("another number of names", "F-9.3", Read, |p| {
            p.name_count = 11
        }),
        case("a root with a sibling", "F-9.3", Read, |p| {
            p.entries.push(entry("z", EntryKind::Empty, 0));
            p.templates[2] = Template {
                entry_count: 2,
                subtree_count: 11,
                ..p.templates[2]
            };
            p.name_count = 11;
        }),
        case("templates that begin too late", "F-9.6", Read, |p| {
            p.templates[0].entry_start = 1
        }),
        case("an entry of no template", "F-9.6", Check, |p| {
            p.entries.push(entry("spare", EntryKind::Empty, 0));
        }),
        case("entries 2^61 to 2^61 + 2", "F-9.6", Read, |p| {
            p.templates[0].entry_start = 1 << 61
        }),
        case(
            "entries 2^61 to 2^61 + 2, when one looks",
            "F-9.8",
            Read,
            |p| p.templates[0].entry_start = 1 << 61,
        ),
        case(
            "a chain of directories that is too deep",
            "F-9.7",
            Check,
            |p| chain(p, DEPTH_MAX as u64 + 1),
        ),
        case(
            "a chain of directories that is too deep, times apart",
            "F-9.7",
            Check,
            |p| {
                chain(p, DEPTH_MAX as u64 + 1);
                (p.mask, p.times) = (0, vec![TIME; DEPTH_MAX + 2]);
            },
        ),
        case(
            "a chain of directories that is just not too deep, times apart",
            "F-16.1",
            Check,
            |p| {
                chain(p, DEPTH_MAX as u64 - 2);
                (p.mask, p.times) = (0, vec![TIME; DEPTH_MAX - 1]);
            },
        ),
        case("2^61 names", "F-16.1", Check, |p| doubling(p, 60)),
        case(
            "2^61 names, their times inside and beside",
            "F-15.3",
            Check,
            |p| {
                doubling(p, 60);
                p.times = vec![TIME; 4000];
            },
        ),
        case("2^61 names, their times beside", "F-15.3", Check, |p| {
            doubling(p, 60);
            (p.mask, p.times) = (0, vec![TIME; 4000]);
        }),
    ]
}

/// A root with `count` nested directories, the innermost one empty.
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

/// A root with two equal directories, each with two equal directories and so on, `levels` times;
/// below, one file.
fn doubling(parts: &mut Parts, levels: u64) {
    parts.entries = vec![entry("a", EntryKind::File, 0)];
    parts.templates = vec![Template {
        entry_start: 0,
        entry_count: 1,
        subtree_count: 1,
        directory_count: 0,
    }];
    for level in 0..levels {
        parts.entries.push(entry("a", EntryKind::Directory, level));
        parts.entries.push(entry("b", EntryKind::Directory, level));
        let below = parts.templates[level as usize].subtree_count;
        let template = Template {
            entry_start: 1 + level * 2,
            entry_count: 2,
            subtree_count: 2 + 2 * below,
            directory_count: 2,
        };
        parts.templates.push(template);
    }
    parts.entries.push(entry("", EntryKind::Directory, levels));
    let below = parts.templates[levels as usize].subtree_count;
    let entry_start = 1 + levels * 2;
    parts.templates.push(Template {
        entry_start,
        entry_count: 1,
        subtree_count: 1 + below,
        directory_count: 1,
    });
    parts.name_count = 1 + below;
    parts.links.clear();
}
