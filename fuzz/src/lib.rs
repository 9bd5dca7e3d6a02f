//! Shared code of the fuzz targets: unpacks records from the fuzzer's bytes, seals them into an
//! image, and examines images.

pub mod erofs;
pub mod oci;

use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::container::{Codec, Footer, RecordRef, RecordType, SuperblockRecord};
use weald_format::directory::{Category, Directory, IndexPage, PageRef, Section, Stream};
use weald_format::limits::{BLOCK_LEN_MAX, REFS_PER_PAGE};
use weald_format::{ByteLen, Digest, FileKind, Result};
use weald_image::{CheckOptions, Image, OpenOptions};
use zerocopy::IntoBytes;

/// Maximum names visited in one image: forged trees can be endless.
const NAMES_MAX: usize = 300;
/// Number of bytes read from one file.
const READ_LEN: usize = 1 << 16;
/// Maximum bytes of contents that a check may decode.
const CONTENT_LEN_MAX: u64 = 16 << 20;

/// Streams of a forged image, in the builder's order.
const CATEGORIES: [Category; 5] = [
    Category::General,
    Category::Incompressible,
    Category::X86,
    Category::Made,
    Category::Arm64,
];
/// Number of codes of record types: they are consecutive and begin at 1.
const TYPE_CODE_COUNT: u8 = RecordType::ALL.len() as u8 + 1;
/// Number of codecs.
const CODEC_COUNT: u8 = 7;

/// One record of a forged image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Framed {
    /// Type of the record.
    pub record_type: RecordType,
    /// Stream of a data record; for a dictionary 0, or the stream's number + 1.
    pub stream: u8,
    /// Codec of the record.
    pub codec: Codec,
    /// Raw length in the header.
    pub raw_len: u64,
    /// Number of items in the index.
    pub items: u64,
    /// Stored bytes.
    pub stored: Vec<u8>,
}

/// Unpacks records from the fuzzer's bytes: type, stream, codec (one byte each), stored length (2),
/// raw length (4), items (8), then the stored bytes. Stops at the first bytes that are not a
/// record.
pub fn unframe(mut data: &[u8]) -> Vec<Framed> {
    let mut records = Vec::new();
    while let Some((head, rest)) = data.split_at_checked(17) {
        let stored_len = usize::from(u16::from_le_bytes([head[3], head[4]]));
        let (Some(record_type), Some(codec)) = (
            RecordType::from_code(head[0] % TYPE_CODE_COUNT).filter(is_of_section),
            Codec::from_code(head[2] % CODEC_COUNT),
        ) else {
            return records;
        };
        let (stored, rest) = rest.split_at(stored_len.min(rest.len()));
        records.push(Framed {
            record_type,
            stream: stream_of(record_type, head[1]),
            codec,
            raw_len: u64::from(u32::from_le_bytes([head[5], head[6], head[7], head[8]])),
            items: u64::from_le_bytes(head[9..17].try_into().unwrap()),
            stored: stored.to_vec(),
        });
        data = rest;
    }
    records
}

/// Stream for a byte of the fuzzer. The stream of recipes has no blocks. A dictionary belongs to
/// metadata or to a stream.
fn stream_of(record_type: RecordType, byte: u8) -> u8 {
    let count = CATEGORIES.len() as u8;
    match record_type {
        RecordType::Dictionary => byte % (count + 1),
        RecordType::Data => match byte % count {
            no if CATEGORIES[usize::from(no)] == Category::Made => 0,
            no => no,
        },
        _ => 0,
    }
}

/// Whether the fuzzer may choose this type. Index pages and the directory follow from the other
/// records.
fn is_of_section(record_type: &RecordType) -> bool {
    !matches!(record_type, RecordType::Index | RecordType::Directory)
}

/// The inverse of [`unframe`].
pub fn frame(records: &[Framed]) -> Vec<u8> {
    let mut out = Vec::new();
    for r in records {
        out.extend_from_slice(&[r.record_type as u8, r.stream, r.codec as u8]);
        out.extend_from_slice(&(r.stored.len() as u16).to_le_bytes());
        out.extend_from_slice(&(r.raw_len as u32).to_le_bytes());
        out.extend_from_slice(&r.items.to_le_bytes());
        out.extend_from_slice(&r.stored);
    }
    out
}

fn put(
    out: &mut Vec<u8>,
    record_type: RecordType,
    codec: Codec,
    raw_len: u64,
    stored: &[u8],
) -> RecordRef {
    let (offset, stored_len) = (out.len() as u64, stored.len() as u64);
    let record = RecordRef {
        record_type,
        codec,
        offset,
        stored_len,
        raw_len,
        digest: Digest::of(stored),
    };
    out.extend_from_slice(record.header().as_bytes());
    out.extend_from_slice(stored);
    record
}

/// Makes an image of these records, with correct digests everywhere. The tree digest is zero. The
/// count of names is that of the last template.
pub fn seal(records: &[Framed]) -> Vec<u8> {
    let mut out = SuperblockRecord::current().as_bytes().to_vec();
    let mut found: Vec<((RecordType, u8), Vec<RecordRef>, Vec<u64>)> = Vec::new();
    let mut name_count = 0;
    for r in records {
        let record = put(&mut out, r.record_type, r.codec, r.raw_len, &r.stored);
        if r.record_type == RecordType::Templates && r.codec == Codec::None {
            let page = weald_format::pages::TemplatePage::parse(&r.stored);
            let last = page.ok().and_then(|p| p.get(p.count().checked_sub(1)?));
            name_count = last.map_or(name_count, |t| t.subtree_count);
        }
        let key = (r.record_type, r.stream);
        match found.iter_mut().find(|s| s.0 == key) {
            Some(section) => {
                section.1.push(record);
                section.2.push(r.items);
            }
            None => found.push((key, vec![record], vec![r.items])),
        }
    }
    let sections = found
        .into_iter()
        .map(|((record_type, stream), refs, items)| {
            let pages = refs.chunks(REFS_PER_PAGE).zip(items.chunks(REFS_PER_PAGE));
            Section {
                record_type,
                stream: u64::from(stream),
                pages: pages
                    .map(|(refs, items)| put_page(&mut out, refs, items))
                    .collect(),
            }
        });
    let sections = sections.collect();
    put_end(&mut out, name_count, sections);
    out
}

/// Appends an index page of `refs`, unless it would have one reference alone.
fn put_page(out: &mut Vec<u8>, refs: &[RecordRef], items: &[u64]) -> PageRef {
    if let ([record], [items]) = (refs, items) {
        return PageRef::direct(*record, *items);
    }
    let raw = IndexPage::encode(refs, items);
    let record = put(out, RecordType::Index, Codec::None, raw.len() as u64, &raw);
    let item_count = items.iter().fold(0u64, |sum, i| sum.saturating_add(*i));
    PageRef {
        record,
        record_count: refs.len() as u64,
        item_count,
    }
}

/// Appends the directory and the footer.
fn put_end(out: &mut Vec<u8>, name_count: u64, sections: Vec<Section>) {
    let stream = |category| Stream {
        category,
        block_len_max: BLOCK_LEN_MAX,
    };
    let directory = Directory {
        superblock_digest: Digest::of(SuperblockRecord::current().as_bytes()),
        generation: 1,
        previous_footer: 0,
        tree_digest: Digest::default(),
        name_count,
        streams: CATEGORIES.map(stream).to_vec(),
        label: weald_format::label::Label::default(),
        bases: Vec::new(),
        sections,
    };
    let raw = directory.encode();
    let at = out.len();
    let raw_len = raw.len() as u64;
    put(out, RecordType::Directory, Codec::None, raw_len, &raw);
    let footer = Footer {
        generation: 1,
        directory_offset: at as u64,
        directory_len: (out.len() - at) as u64,
        footer_offset: out.len() as u64,
        previous_footer: None,
        image_digest: Digest::of(&out[at..]),
        tree_digest: directory.tree_digest,
    };
    out.extend_from_slice(footer.encode().as_bytes());
}

/// Replaces the checksum of a superblock, header or footer by the correct one.
pub fn with_checksum(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let len = match (bytes.len(), bytes.first()) {
        (64, Some(b'W')) => 8,
        (64 | 128, _) => 16,
        _ => return out,
    };
    let (head, tail) = out.split_at_mut(bytes.len() - len);
    tail.copy_from_slice(&blake3::hash(head).as_bytes()[..len]);
    out
}

/// Stops a salvage of a large tree.
struct Stop(std::sync::atomic::AtomicU64);

impl weald_builder::Observer for Stop {
    fn is_cancelled(&self) -> bool {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > NAMES_MAX as u64
    }
}

/// Salvages what is left of an image. Errors are fine; panics, hangs and unbounded memory are not.
pub fn salvage(bytes: Vec<u8>) {
    let options = OpenOptions {
        cache_len: ByteLen(4 << 20),
        ..OpenOptions::default()
    };
    let mut watch = |_| std::ops::ControlFlow::Continue(());
    let Ok(damaged) = weald_image::Damaged::open(Arc::new(bytes), &options, &mut watch) else {
        return;
    };
    if damaged.image.summary().content_len <= CONTENT_LEN_MAX {
        let (digests, _) = damaged.image.left_content_digests(1);
        let stop = Stop(0.into());
        let _ = weald_builder::salvage(&damaged, &digests, &|_, _| {}, &options, &stop);
    }
}

/// Opens, checks, walks and reads an image. Errors are fine; panics, hangs and unbounded memory are
/// not.
pub fn examine(bytes: Vec<u8>) {
    let options = OpenOptions {
        cache_len: ByteLen(4 << 20),
        ..OpenOptions::default()
    };
    let Ok(image) = Image::open(Arc::new(bytes), &options) else {
        return;
    };
    let is_small = image.summary().content_len <= CONTENT_LEN_MAX;
    for digests_only in [true, false] {
        let options = CheckOptions {
            digests_only,
            threads: 1,
            path_count_max: 10,
        };
        if digests_only || is_small {
            image.check(&options, &mut |_| {});
        }
    }
    let _ = image.sections();
    let _ = walk(&image);
}

fn walk(image: &Image) -> Result<()> {
    let mut open = vec![image.root()?];
    let mut count = 0;
    while let Some(inode) = open.pop() {
        count += 1;
        if count > NAMES_MAX {
            break;
        }
        let _ = image.xattrs(&inode);
        let _ = image.parent(inode.name_no);
        match inode.kind {
            FileKind::Symlink => assert!(image.read_link(&inode)?.len() as u64 == inode.size.0),
            FileKind::Regular => {
                if let Ok(data) = image.read(&inode, inode.size.0 / 3, READ_LEN) {
                    assert_eq!(
                        data.len() as u64,
                        (inode.size.0 - inode.size.0 / 3).min(READ_LEN as u64)
                    );
                }
                let mut end = 0;
                let mut runs = 0;
                let result = image.runs(&inode, 0, &mut |run| {
                    assert!(run.offset == end && run.len > 0);
                    end = run.offset + run.len;
                    runs += 1;
                    if runs > 1000 {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                });
                assert!(result.is_err() || runs > 1000 || end == inode.size.0);
            }
            FileKind::Directory => {
                let mut last: Vec<u8> = Vec::new();
                let _ = image.read_dir(inode.name_no, 0, &mut |_, name, child| {
                    assert!(last.as_slice() < name && name != b".." && !name.contains(&b'/'));
                    last = name.to_vec();
                    open.push(child.clone());
                    if open.len() > NAMES_MAX {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                });
                let _ = image.lookup(inode.name_no, &last);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Reads a stream of `format`. It must not count more data than there is.
pub fn examine_stream(data: &[u8], format: weald_ingest::Format) {
    // Compressed input may grow to any length, and decompression is not under test.
    let magics = [&[0x1f, 0x8b][..], &[0x28, 0xb5, 0x2f, 0xfd], b"\xfd7zXZ\0"];
    if magics.iter().any(|magic| data.starts_with(magic)) {
        return;
    }
    let source = Box::new(std::io::Cursor::new(data.to_vec()));
    if let Ok(scanned) = weald_ingest::scan_stream(source, format, 1 << 20) {
        assert!(scanned.data_len <= data.len() as u64);
    }
}
