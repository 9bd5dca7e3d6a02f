//! Figures for `docs/design/0020-metadata.md`: `columns IMAGE COUNT` prints for each part of the
//! entries of IMAGE how many bytes they take less without it, divided by COUNT. zstd 19 compresses
//! each block of entries on its own; the parts add up to less than the whole, since each is
//! compressed with the help of the others.

#[path = "../tests/format/records.rs"]
mod records;

use weald_codec::{CodecSpec, Encoder};
use weald_format::Timestamp;
use weald_format::container::RecordType;
use weald_format::entries::{EntryBlock, EntryBlockBuilder, EntryFields, EntryKind, time_mask};

fn entry_blocks(image: &[u8]) -> Vec<EntryBlock> {
    let records = records::records(image).into_iter();
    records
        .filter(|(record, _)| record.record_type == RecordType::Entries)
        .map(|(_, raw)| EntryBlock::parse(&raw).expect("entries"))
        .collect()
}

/// One entry of a block, as a part leaves it.
struct Entry<'a> {
    name: &'a [u8],
    target: &'a [u8],
    fields: EntryFields,
}

type Change = fn(&mut Entry<'_>);

/// A part of the entries, and what leaves it out.
const PARTS: [(&str, Change); 13] = [
    ("seconds", |e| e.fields.times[0].seconds = 0),
    ("nanoseconds", |e| e.fields.times[0].nanoseconds = 0),
    ("seconds and nanoseconds", |e| {
        e.fields.times[0] = Timestamp::default();
    }),
    ("links, attributes, xattrs", |e| {
        e.fields.attributes = 0;
        e.fields.xattrs = 0;
        e.fields.nlink = 1;
        e.fields.link_back = 0;
    }),
    ("ids of contents", |e| {
        if e.fields.kind == EntryKind::File {
            e.fields.body = 0;
        }
    }),
    ("ids of templates", |e| {
        if e.fields.kind == EntryKind::Directory {
            e.fields.body = 0;
        }
    }),
    ("targets", |e| e.target = &e.target[..e.target.len().min(1)]),
    ("targets, second key", |e| {
        if let Some(at) = e.target.iter().rposition(|&b| b == b'/') {
            e.target = &e.target[..at];
        }
    }),
    ("targets, directories before the key", |e| {
        if let Some(at) = key_at(e.target) {
            e.target = &e.target[at..];
        }
    }),
    ("names of files", |e| leave_out(e, EntryKind::File)),
    ("names of directories", |e| {
        leave_out(e, EntryKind::Directory)
    }),
    ("names of links", |e| leave_out(e, EntryKind::Symlink)),
    ("all names", |e| e.name = b"x"),
];

fn leave_out(entry: &mut Entry<'_>, kind: EntryKind) {
    if entry.fields.kind == kind {
        entry.name = b"x";
    }
}

/// Where the name of the key's directory begins in the target of an annexed file.
fn key_at(target: &[u8]) -> Option<usize> {
    let last = target.iter().rposition(|&b| b == b'/')?;
    let before = target[..last].iter().rposition(|&b| b == b'/')?;
    Some(before + 1)
}

fn stored_len(blocks: &[EntryBlock], change: Change) -> usize {
    let len_of = |block: &EntryBlock| {
        let mut builder = EntryBlockBuilder::default();
        for at in 0..block.count() {
            let mtime = block.time(0, at).unwrap_or_default();
            let mut entry = Entry {
                name: block.name(at),
                target: block.target(at),
                fields: EntryFields {
                    kind: block.kind(at),
                    attributes: block.attributes(at),
                    xattrs: block.xattrs(at),
                    nlink: block.nlink(at),
                    link_back: block.link_back(at),
                    times: [mtime; 4],
                    body: match block.kind(at) {
                        EntryKind::Symlink => 0,
                        _ => block.body(at),
                    },
                },
            };
            change(&mut entry);
            builder.push(entry.name, entry.target, &entry.fields);
        }
        let (raw, borders) = builder.encode_with_borders(time_mask::MTIME);
        let mut encoder = Encoder::new(CodecSpec::Zstd(19), raw.len() as u64).expect("encoder");
        let encoded = encoder.encode_in_parts(&raw, &borders);
        encoded.expect("encode").stored.len()
    };
    blocks.iter().map(len_of).sum()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [image, count] = &arguments[..] else {
        panic!("usage: columns IMAGE COUNT");
    };
    let count: f64 = count.parse().expect("a number");
    let blocks = entry_blocks(&std::fs::read(image).expect("readable"));
    let whole = stored_len(&blocks, |_| {});
    let print = |name: &str, len: usize| println!("{:7.2} {name}", len as f64 / count);
    print("entries", whole);
    for (name, change) in PARTS {
        print(name, whole.saturating_sub(stored_len(&blocks, change)));
    }
}
