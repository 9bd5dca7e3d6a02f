//! Forged contents, extents and smaller pages.

use super::Shows::*;
use super::records::bomb;
use super::support::*;
use super::{Case, case, named, of_type, records};
use weald_format::container::{Codec, RecordType};
use weald_format::directory::{Category, Stream};
use weald_format::entries::EntryKind;
use weald_format::limits::{BLOCK_LEN_MAX, NUMBER_MAX};
use weald_format::pages::{Extent, Source};
use weald_format::recipes::{DeflatePart, Method, Recipe, Samples};
use weald_format::{ContentId, Digest};

/// Replaces the first `len` bytes of content 0 by a recipe with the input `plain`.
fn make_front(parts: &mut Parts, len: u64, plain: u64) {
    parts.streams.push(Stream {
        category: Category::Made,
        block_len_max: 4096,
    });
    parts.recipes.push(Recipe {
        len,
        plain: ContentId(plain),
        method: Method::from_code(6).unwrap(),
        part: None,
        check: [0; 8],
        corrections: Vec::new(),
    });
    let from = |stream, address, len| Extent {
        len,
        source: Source::Stream { stream, address },
    };
    parts.extents[0] = from(0, len, 150 - len);
    parts.extents.insert(0, from(1, 0, len));
}

pub fn content_cases() -> Vec<Case> {
    let from = |stream, address, len| Extent {
        len,
        source: Source::Stream { stream, address },
    };
    vec![
        case("a content of no bytes", "F-10.1", Read, |p| {
            p.content_lens[1] = 0
        }),
        case("contents of more than 2^62 bytes", "F-10.1", Read, |p| {
            p.content_lens[1] = NUMBER_MAX
        }),
        case("contents that begin late", "F-10.3", Check, |p| {
            p.content_start = 10
        }),
        case(
            "contents that end before the extents",
            "F-10.3",
            Check,
            |p| p.content_lens[2] = 1000,
        ),
        case("contents that pass the extents", "F-11.4", Read, |p| {
            p.content_lens[2] = 2000
        }),
        case("no extents", "F-11.4", Read, |p| p.extents.clear()),
        case("an empty extent", "F-11.1", Read, move |p| {
            p.extents.insert(1, from(0, 0, 0))
        }),
        case("extents of more than 2^62 bytes", "F-11.1", Read, |p| {
            p.extents[1].len = NUMBER_MAX;
            p.edit_records = Some(Box::new(|r| {
                of_type(r, RecordType::Extents).items = NUMBER_MAX
            }));
        }),
        records(
            "an extent of a stream that the page does not know",
            "F-11.2",
            Read,
            |records| {
                // One extent, one stream with head 0, all lengths 1160, all tags 11.
                let page = of_type(records, RecordType::Extents);
                page.stored = vec![1, 1, 0, 0, 0x88, 0x09, 0, 11, 0, 0];
                page.raw_len = 10;
            },
        ),
        case(
            "an extent of a stream that the directory does not know",
            "F-11.5",
            Read,
            move |p| {
                p.streams.push(p.streams[0]);
                p.extents[0] = from(1, 0, 150);
                p.edit_directory = Some(Box::new(|d| d.streams.truncate(1)));
            },
        ),
        case(
            "a recipe made of what a recipe makes",
            "F-20.3",
            Read,
            move |p| make_front(p, 100, 0),
        ),
        case("a recipe made of 17 MiB", "F-20.3", Read, move |p| {
            make_front(p, 100, 2);
            p.extents[2].len = 17 << 20;
            p.content_lens[2] = 10 + (17 << 20);
        }),
        case(
            "a recipe that makes another length",
            "F-20.4",
            Read,
            move |p| make_front(p, 100, 1),
        ),
        // 50 bytes of noise are a stored block of 55.
        case(
            "a recipe that makes other bytes",
            "F-20.5",
            Read,
            move |p| make_front(p, 55, 1),
        ),
        case("a part behind its plain bytes", "F-20.8", Read, move |p| {
            make_front(p, 100, 1);
            p.recipes[0].part = Some(DeflatePart {
                start: 0,
                len: 51,
                sync: 0,
                carry: 1,
                begins_inside: false,
                ends_inside: false,
                is_final: false,
            });
        }),
        case("samples of no FLAC stream", "F-20.6", Read, move |p| {
            make_front(p, 100, 1);
            p.recipes[0].method = Method::Pcm(Samples::bytes(true));
        }),
        case("samples with corrections", "F-20.2", Read, move |p| {
            make_front(p, 100, 1);
            p.recipes[0].method = Method::Pcm(Samples::bytes(true));
            p.recipes[0].corrections = vec![0];
        }),
        case("a picture of no Lepton file", "F-20.7", Read, move |p| {
            make_front(p, 100, 1);
            p.recipes[0].method = Method::Jpeg;
        }),
        case("a recipe that is not there", "F-11.5", Read, move |p| {
            make_front(p, 100, 1);
            p.extents[0] = from(1, 100, 100);
        }),
        case("an address beyond 2^62", "F-11.3", Read, move |p| {
            p.extents[0] = from(0, NUMBER_MAX, 150)
        }),
        case("an address behind the stream", "F-11.5", Read, move |p| {
            p.extents[0] = from(0, 1 << 40, 150)
        }),
        case(
            "an extent that passes its stream",
            "F-11.5",
            Read,
            move |p| p.extents[2] = from(0, 155, 10),
        ),
        case(
            "an extent of 2^61 bytes from a block of 120",
            "F-11.5",
            Check,
            move |p| {
                p.extents = vec![from(0, 100, 1 << 61)];
                p.content_lens = vec![1 << 61];
                p.entries.iter_mut().for_each(|e| {
                    e.fields.body = if e.fields.kind == EntryKind::File {
                        0
                    } else {
                        e.fields.body
                    }
                });
            },
        ),
        case("a hole of 2^61 bytes", "F-16.1", Check, move |p| {
            p.extents[1].len = 1 << 61;
            p.content_lens[2] = 10 + (1 << 61);
        }),
        case(
            "a thousand contents in a block of 64 MiB that does not decode",
            "F-3.11",
            Check,
            move |p| {
                p.streams[0].block_len_max = BLOCK_LEN_MAX;
                p.blocks = vec![vec![0; 100]];
                p.content_lens = vec![1; 1000];
                p.extents = vec![from(0, 0, 1000)];
                p.edit_records = Some(Box::new(|records| {
                    let data = of_type(records, RecordType::Data);
                    (data.codec, data.stored) = (Codec::Zstd, bomb(BLOCK_LEN_MAX - 1));
                    (data.raw_len, data.items) = (BLOCK_LEN_MAX, BLOCK_LEN_MAX);
                }));
            },
        ),
    ]
}

pub fn page_cases() -> Vec<Case> {
    vec![
        case("permissions of 13 bits", "F-12.1", Read, |p| {
            p.attributes[0].permissions = 0o10000
        }),
        case("xattrs out of order", "F-13.1", Read, |p| {
            let mut other = p.xattrs[0][0].clone();
            other.name = b"user.a".to_vec();
            p.xattrs[0].push(other);
        }),
        case("an xattr without name", "F-13.1", Read, |p| {
            p.xattrs[0][0].name.clear()
        }),
        case("a link of one name", "F-14.1", Read, |p| {
            p.links[0].nlink = 1
        }),
        case("links out of order", "F-14.1", Read, |p| {
            p.links[1] = p.links[0]
        }),
        case("a name that is not in the table", "F-14.3", Read, |p| {
            p.links.truncate(1)
        }),
        case("another name in the table", "F-14.2", Read, |p| {
            p.links[1].name_no = 10
        }),
        case("names of one inode, two first ones", "F-14.3", Check, |p| {
            p.links[1].first_no = 9
        }),
        case("names of one inode, two counts", "F-14.3", Check, |p| {
            p.links[1].nlink = 3
        }),
        case(
            "names across directories with two contents",
            "F-14.4",
            Check,
            |p| named(p, "x").fields.body = 0,
        ),
        case(
            "names across directories with two owners",
            "F-14.4",
            Check,
            |p| named(p, "x").fields.attributes = 1,
        ),
        case("no mtimes", "F-15.2", Read, |p| p.mask = 0),
        case("mtimes inside and beside", "F-15.2", Read, |p| {
            p.times = vec![TIME; 10]
        }),
        case("too few mtimes beside", "F-15.3", Check, |p| {
            (p.mask, p.times) = (0, vec![TIME; 9])
        }),
        case("a times page of other times", "F-15.1", Read, |p| {
            (p.mask, p.times) = (0, vec![TIME; 10]);
            p.edit_records = Some(Box::new(|r| of_type(r, RecordType::Times).stored[1] = 3));
        }),
        case("a page of half a digest", "F-28.1", Check, |p| {
            p.fsverity = Parts::verity().fsverity;
            p.edit_records = Some(Box::new(|r| {
                let page = of_type(r, RecordType::Fsverity);
                page.stored.truncate(80);
                page.raw_len = 80;
            }));
        }),
        case("no fs-verity digest of a content", "F-28.2", Check, |p| {
            p.fsverity = Parts::verity().fsverity[..2].to_vec();
        }),
        case(
            "more fs-verity digests than contents",
            "F-28.2",
            Check,
            |p| {
                p.fsverity = Parts::verity().fsverity;
                p.fsverity.push([0; 32]);
            },
        ),
        case("another fs-verity digest", "F-28.3", Check, |p| {
            p.fsverity = Parts::verity().fsverity;
            p.fsverity[2][31] ^= 1;
        }),
        case("another tree digest", "F-16.1", Check, |p| {
            p.tree_digest = Digest::of(b"other")
        }),
        case("another name", "F-16.1", Check, |p| {
            named(p, "z").name = b"zz".to_vec()
        }),
        case("another mtime", "F-16.1", Check, |p| {
            named(p, "z").fields.times[0].nanoseconds += 1
        }),
    ]
}
