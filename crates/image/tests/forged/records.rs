//! Forged containers: directory, index, headers, codecs.

use super::Shows::*;
use super::support::*;
use super::{Case, case, of_type, records, refs};
use weald_format::Digest;
use weald_format::container::{Codec, RecordType};
use weald_format::directory::{Base, Category, Stream};
use weald_format::limits::{BLOCK_LEN_MAX, NUMBER_MAX, PAGE_LEN_MAX};

/// A zstd frame of `raw_len` zeros.
pub fn bomb(raw_len: u64) -> Vec<u8> {
    zstd::bulk::compress(&vec![0; raw_len as usize], 1).unwrap()
}

fn base(name: &[u8], stream_count: u64) -> Base {
    Base {
        image_digest: Digest::of(b"base"),
        name: name.to_vec(),
        stream_count,
    }
}

pub fn container_cases() -> Vec<Case> {
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
        case("base without streams of it", "F-7.14", Open, |p| {
            p.edit_directory = Some(Box::new(|d| d.bases.push(base(b"base", 1))));
        }),
        case("stream of no base", "F-7.14", Open, |p| {
            p.edit_directory = Some(Box::new(|d| d.streams[0].category = Category::Base));
        }),
        case("base with a path for a name", "F-7.15", Open, |p| {
            p.edit_directory = Some(Box::new(|d| d.bases.push(base(b"../base", 0))));
        }),
        case("base that has no stream", "F-7.14", Open, |p| {
            p.edit_directory = Some(Box::new(|d| d.bases.push(base(b"base", 0))));
        }),
        case("base that is nowhere", "F-22.1", Open, |p| {
            p.edit_directory = Some(Box::new(|d| {
                d.bases.push(base(b"base", 1));
                d.streams.push(Stream {
                    category: Category::Base,
                    block_len_max: 4096,
                });
            }));
        }),
        case("directory of a wrong type", "F-4.6", Open, |p| {
            p.edit_directory_record = Some(Box::new(|r| r.record_type = RecordType::Index));
        }),
        case("directory with another digest", "F-4.6", Open, |p| {
            p.edit_directory_record = Some(Box::new(|r| r.digest = Digest::of(b"other")));
        }),
        case(
            "directory longer than stored, without codec",
            "F-7.3",
            Open,
            |p| {
                p.edit_directory_record = Some(Box::new(|r| r.raw_len += 1));
            },
        ),
        case("directory of 2^60 bytes", "F-7.2", Open, |p| {
            p.edit_directory_record =
                Some(Box::new(|r| (r.codec, r.raw_len) = (Codec::Zstd, 1 << 60)));
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
        case(
            "records that the file has no room for",
            "F-7.12",
            Open,
            |p| {
                p.edit_directory = Some(Box::new(|d| {
                    let pages = &mut d
                        .sections
                        .iter_mut()
                        .find(|s| s.record_type == RecordType::Contents)
                        .unwrap()
                        .pages;
                    *pages = vec![pages[0]; 10_000];
                    pages
                        .iter_mut()
                        .for_each(|p| (p.record_count, p.item_count) = (1024, 1 << 20));
                }));
            },
        ),
        case("more items than records can have", "F-7.9", Open, |p| {
            p.edit_directory = Some(Box::new(|d| {
                let section = d
                    .sections
                    .iter_mut()
                    .find(|s| s.record_type == RecordType::Contents)
                    .unwrap();
                section.pages[0].item_count = 1 << 60;
            }));
        }),
        case("a stream that is not there", "F-7.6", Open, |p| {
            p.edit_directory = Some(Box::new(|d| d.streams.clear()));
        }),
        case("a data section of stream 7", "F-7.6", Open, |p| {
            p.edit_directory = Some(Box::new(|d| d.sections[0].stream = 7));
        }),
        case("a label of two lines", "F-36.1", Open, |p| {
            p.directory_tail = b"\x03a\nb".to_vec();
        }),
        case(
            "a label that moves a terminal's cursor",
            "F-36.1",
            Open,
            |p| {
                p.directory_tail = b"\x04\x1b[2J".to_vec();
            },
        ),
        case("a label that is no UTF-8", "F-36.1", Open, |p| {
            p.directory_tail = b"\x02\xc3(".to_vec();
        }),
        case("an empty label", "F-36.1", Open, |p| {
            p.directory_tail = vec![0];
        }),
        case("a label that is too long", "F-2.3", Open, |p| {
            p.directory_tail = [&[201, 1][..], &[b'x'; 201]].concat();
        }),
        case("a label that is cut off", "F-2.1", Open, |p| {
            p.directory_tail = b"\x09short".to_vec();
        }),
        case("a comment that is cut off", "F-2.1", Open, |p| {
            p.directory_tail = b"\x01x\0".to_vec();
        }),
        case("neither comment nor command lines", "F-37.1", Open, |p| {
            p.directory_tail = b"\x01x\0\0".to_vec();
        }),
        case("a comment that moves the cursor", "F-37.2", Open, |p| {
            p.directory_tail = b"\0\x04\x1b[2J\0".to_vec();
        }),
        case("command lines that are no UTF-8", "F-37.2", Open, |p| {
            p.directory_tail = b"\0\0\x02\xc3(".to_vec();
        }),
        case("a comment that is too long", "F-2.3", Open, |p| {
            p.directory_tail = [&[0, 0x81, 0x20][..], &[b'x'; 4097], &[0]].concat();
        }),
        case("bytes behind the command lines", "F-2.4", Open, |p| {
            p.directory_tail = b"\0\x01c\0\0".to_vec();
        }),
        case("2^62 + 1 names", "F-2.3", Open, |p| {
            p.name_count = NUMBER_MAX + 1
        }),
        case("one template", "F-9.2", Open, |p| p.templates.truncate(1)),
        refs(
            "record behind the end",
            "F-3.13",
            Read,
            RecordType::Entries,
            |r, _| r.offset += 1 << 30,
        ),
        refs(
            "record at another place",
            "F-3.14",
            Read,
            RecordType::Entries,
            |r, _| r.offset -= 1,
        ),
        refs(
            "header with another length",
            "F-3.14",
            Read,
            RecordType::Entries,
            |r, _| {
                (r.codec, r.raw_len) = (Codec::Zstd, r.raw_len + 1);
            },
        ),
        refs(
            "record with another digest",
            "F-3.14",
            Read,
            RecordType::Data,
            |r, _| r.digest = Digest::of(b"x"),
        ),
        refs(
            "block longer than its stream's",
            "F-7.13",
            Read,
            RecordType::Data,
            |r, items| {
                (r.codec, r.raw_len, *items) = (Codec::Zstd, 5000, 5000);
            },
        ),
        refs(
            "stored bytes beyond all bounds",
            "F-7.2",
            Read,
            RecordType::Entries,
            |r, _| {
                (r.stored_len, r.raw_len) = (PAGE_LEN_MAX + 1, PAGE_LEN_MAX + 1);
            },
        ),
        refs(
            "more items than the page has",
            "F-7.9",
            Read,
            RecordType::Contents,
            |_, items| *items = 1000,
        ),
        refs(
            "no items",
            "F-7.9",
            Read,
            RecordType::Attributes,
            |_, items| *items = 0,
        ),
        refs(
            "2^61 entries in a block",
            "F-7.9",
            Open,
            RecordType::Entries,
            |_, items| *items = 1 << 61,
        ),
        case("two records for the same bytes", "F-7.11", Check, |p| {
            p.edit_refs = Some((
                RecordType::Attributes,
                Box::new(|refs, items| {
                    refs.push(refs[0]);
                    items.push(items[0]);
                }),
            ));
        }),
        case("1024 records for the same bytes", "F-7.11", Check, |p| {
            p.blocks.push(vec![7; 4096 * 20]);
            p.edit_refs = Some((
                RecordType::Xattrs,
                Box::new(|refs, items| {
                    *refs = vec![refs[0]; 1024];
                    *items = vec![items[0]; 1024];
                }),
            ));
        }),
        records(
            "a record that nothing refers to, broken",
            "F-2.4",
            Check,
            |records| {
                let mut spare = of_type(records, RecordType::Xattrs).clone();
                spare.stored.push(0);
                spare.raw_len += 1;
                records.push(spare);
            },
        ),
    ]
}

pub fn codec_cases() -> Vec<Case> {
    vec![
        records(
            "a frame that expands to more than was said",
            "F-3.11",
            Read,
            |records| {
                let data = of_type(records, RecordType::Data);
                (data.codec, data.stored) = (Codec::Zstd, bomb(1 << 20));
                assert!(data.stored.len() as u64 <= data.raw_len);
            },
        ),
        case(
            "a block of 64 MiB from a few bytes, that are less",
            "F-3.11",
            Check,
            |p| {
                p.streams[0].block_len_max = BLOCK_LEN_MAX;
                p.edit_records = Some(Box::new(|records| {
                    let data = of_type(records, RecordType::Data);
                    (data.codec, data.stored) = (Codec::Zstd, bomb(BLOCK_LEN_MAX - 1));
                    (data.raw_len, data.items) = (BLOCK_LEN_MAX, BLOCK_LEN_MAX);
                }));
            },
        ),
        case(
            "64 MiB of xz with a dictionary of 1.5 GiB",
            "F-3.11",
            Read,
            |p| {
                p.streams[0].block_len_max = BLOCK_LEN_MAX;
                p.edit_records = Some(Box::new(|records| {
                    let data = of_type(records, RecordType::Data);
                    (data.codec, data.stored) = (Codec::Xz, xz(&[0; 1000], 1536 << 20));
                    (data.raw_len, data.items) = (BLOCK_LEN_MAX, BLOCK_LEN_MAX);
                }));
            },
        ),
        records(
            "entries that decode to 16 MiB of zeros",
            "F-8.1",
            Read,
            |records| {
                let page = of_type(records, RecordType::Entries);
                (page.codec, page.stored, page.raw_len) =
                    (Codec::Zstd, bomb(PAGE_LEN_MAX), PAGE_LEN_MAX);
            },
        ),
        records(
            "contents that decode to 16 MiB of zeros",
            "F-2.4",
            Read,
            |records| {
                let page = of_type(records, RecordType::Contents);
                (page.codec, page.stored, page.raw_len) =
                    (Codec::Zstd, bomb(PAGE_LEN_MAX), PAGE_LEN_MAX);
            },
        ),
        records("lz4 noise", "F-3.11", Read, |records| {
            let data = of_type(records, RecordType::Data);
            data.codec = Codec::Lz4;
            data.stored.iter_mut().for_each(|b| *b |= 0xf0);
            data.stored.truncate(100);
        }),
        records(
            "a dictionary is needed and there is none",
            "F-3.12",
            Read,
            |records| {
                let page = of_type(records, RecordType::Entries);
                page.codec = Codec::ZstdDictionary;
            },
        ),
        records("a dictionary that is none", "F-3.12", Read, |records| {
            of_type(records, RecordType::Entries).codec = Codec::ZstdDictionary;
            let mut forged = vec![0x37, 0xa4, 0x30, 0xec];
            forged.extend((0..500u32).map(|i| (i * i % 251) as u8));
            records.push(Raw::plain(RecordType::Dictionary, forged, 1));
        }),
        records(
            "a dictionary that needs a dictionary",
            "F-3.12",
            Read,
            |records| {
                of_type(records, RecordType::Entries).codec = Codec::ZstdDictionary;
                let mut dictionary = Raw::plain(RecordType::Dictionary, vec![9; 500], 1);
                dictionary.codec = Codec::ZstdDictionary;
                records.push(dictionary);
            },
        ),
        records("two dictionaries", "F-3.12", Read, |records| {
            of_type(records, RecordType::Entries).codec = Codec::ZstdDictionary;
            records.extend([0, 1].map(|i| Raw::plain(RecordType::Dictionary, vec![i; 500], 1)));
        }),
        records("a block needs a dictionary", "F-24.1", Read, |records| {
            of_type(records, RecordType::Data).codec = Codec::ZstdDictionary;
        }),
        records("two dictionaries of a stream", "F-24.1", Read, |records| {
            of_type(records, RecordType::Data).codec = Codec::ZstdDictionary;
            records.extend([0, 1].map(|i| Raw {
                stream: 1,
                ..Raw::plain(RecordType::Dictionary, vec![i; 500], 1)
            }));
        }),
        records(
            "a dictionary of a stream that needs itself",
            "F-24.1",
            Read,
            |records| {
                of_type(records, RecordType::Data).codec = Codec::ZstdDictionary;
                records.push(Raw {
                    stream: 1,
                    codec: Codec::ZstdDictionary,
                    ..Raw::plain(RecordType::Dictionary, vec![9; 500], 1)
                });
            },
        ),
        records(
            "a dictionary of a stream that is none",
            "F-24.2",
            Read,
            |records| {
                of_type(records, RecordType::Data).codec = Codec::ZstdDictionary;
                let mut forged = vec![0x37, 0xa4, 0x30, 0xec];
                forged.extend((0..500u32).map(|i| (i * i % 251) as u8));
                records.push(Raw {
                    stream: 1,
                    ..Raw::plain(RecordType::Dictionary, forged, 1)
                });
            },
        ),
        records("a dictionary of any bytes", "F-3.11", Read, |records| {
            of_type(records, RecordType::Entries).codec = Codec::ZstdDictionary;
            records.push(Raw::plain(RecordType::Dictionary, vec![9; 500], 1));
        }),
        records("a history without records", "F-25.1", Read, |records| {
            after(of_type(records, RecordType::Data), &[]);
        }),
        records("a history that is not there", "F-25.1", Read, |records| {
            after(of_type(records, RecordType::Data), &[1 << 40]);
        }),
        records("a history in no base image", "F-25.2", Read, |records| {
            let data = of_type(records, RecordType::Data);
            after(data, &[0]);
            data.stored[1] = 1;
        }),
        records("a history of itself", "F-25.1", Read, |records| {
            after(of_type(records, RecordType::Data), &[0]);
        }),
        records("a page with itself before it", "F-25.1", Read, |records| {
            after(of_type(records, RecordType::Entries), &[0]);
        }),
        records("a dictionary with a history", "F-3.12", Read, |records| {
            of_type(records, RecordType::Entries).codec = Codec::ZstdDictionary;
            let mut dictionary = Raw::plain(RecordType::Dictionary, vec![9; 500], 1);
            after(&mut dictionary, &[0]);
            records.push(dictionary);
        }),
        records(
            "histories longer than they may be",
            "F-25.1",
            Read,
            |records| {
                let entries = of_type(records, RecordType::Entries);
                let mut long = Raw::plain(RecordType::Entries, vec![0; 16 << 20], 1);
                let other = Raw::plain(RecordType::Entries, vec![0], 1);
                after(entries, &[1, 2]);
                long.codec = Codec::Zstd;
                records.extend([long, other]);
            },
        ),
        records(
            "a frame that is none behind a history",
            "F-3.11",
            Read,
            |records| {
                let entries = of_type(records, RecordType::Entries);
                after(entries, &[1]);
                let last = entries.stored.len() - 1;
                entries.stored[last] ^= 0xff;
                entries.stored[3] ^= 0xff;
                records.push(Raw::plain(RecordType::Entries, vec![1; 100], 1));
            },
        ),
    ]
}

/// Gives a record the history of the records with these numbers.
fn after(record: &mut Raw, numbers: &[u64]) {
    record.codec = Codec::ZstdHistory;
    let frame = record.stored.clone();
    let history = weald_format::history::History {
        base_stream: None,
        numbers: numbers.to_vec(),
    };
    record.stored = history.encode();
    record.stored.extend_from_slice(&frame);
    // A record is never longer than its raw bytes.
    record.raw_len = record.raw_len.max(record.stored.len() as u64);
    if record.record_type == RecordType::Data {
        record.items = record.raw_len;
    }
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
