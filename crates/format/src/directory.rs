//! The directory of a generation: the position and digest of every record, given directly or by
//! index pages (`index_page`).

mod index_page;

pub use index_page::IndexPage;

use crate::container::{Codec, HEADER_LEN, RecordRef, RecordType, SUPERBLOCK_LEN};
use crate::cursor::{Cursor, put_varint};
use crate::label::Label;
use crate::limits::{
    BASES_MAX, BLOCK_LEN_MAX, DICTIONARY_LEN_MAX, DIRECTORY_LEN_MAX, ENTRIES_PER_BLOCK,
    ITEMS_PER_PAGE, NAME_LEN_MAX, NUMBER_MAX, PAGE_LEN_MAX, REFS_PER_PAGE, STREAMS_MAX,
    TIMES_PER_RUN,
};
use crate::{Digest, Error, Result};

/// Category of a stream: the kind of data in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Category {
    /// Ordinary data.
    General = 0,
    /// Data that no codec makes smaller.
    Incompressible = 1,
    /// Data that recipes make from contents; the image stores those contents instead.
    Made = 2,
    /// x86 machine code. The writer applies a branch filter to its blocks before it encodes them.
    X86 = 6,
    /// A stream of a base image.
    Base = 4,
    /// ARM64 machine code, with a branch filter of its own.
    Arm64 = 5,
}

impl Category {
    /// Returns the category with this `code`.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::General),
            1 => Some(Self::Incompressible),
            2 => Some(Self::Made),
            4 => Some(Self::Base),
            5 => Some(Self::Arm64),
            6 => Some(Self::X86),
            _ => None,
        }
    }

    /// Name of the category in messages and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Incompressible => "incompressible",
            Self::Made => "made",
            Self::X86 => "x86",
            Self::Base => "base",
            Self::Arm64 => "arm64",
        }
    }
}

/// A stream: a raw address space that blocks fill one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    /// Category of its data.
    pub category: Category,
    /// Maximum raw length of its blocks, bytes.
    pub block_len_max: u64,
}

/// A base image: another image whose streams hold contents of this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// Its image digest.
    pub image_digest: Digest,
    /// File name of the base image; readers look there first.
    pub name: Vec<u8>,
    /// Number of its streams. They are the next so many streams of category `base`.
    pub stream_count: u64,
}

/// A reference from the directory to an index page, or to a record that would be alone on its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRef {
    /// The index page, or the record itself. A record has the type of its section.
    pub record: RecordRef,
    /// References in the page; 1 if `record` is a record itself.
    pub record_count: u64,
    /// Items in the records of this page.
    pub item_count: u64,
}

impl PageRef {
    /// Makes a reference to a record itself, with `item_count` items.
    pub const fn direct(record: RecordRef, item_count: u64) -> Self {
        Self {
            record,
            record_count: 1,
            item_count,
        }
    }

    /// Whether `record` is a record itself, not an index page.
    pub fn is_direct(&self) -> bool {
        self.record.record_type != RecordType::Index
    }
}

/// All records of one type (for data: of one stream), in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Type of its records.
    pub record_type: RecordType,
    /// Stream number of data; of dictionaries the stream + 1; else 0.
    pub stream: u64,
    /// References to its index pages, and to records in place of pages with one record.
    pub pages: Vec<PageRef>,
}

impl Section {
    /// Number of records in the section.
    pub fn record_count(&self) -> u64 {
        self.pages
            .iter()
            .fold(0, |sum, p| sum.saturating_add(p.record_count))
    }

    /// Number of items in the section: bytes for data and recipes, logical bytes for extents,
    /// inodes for links, entries for entry blocks, and so on.
    pub fn item_count(&self) -> u64 {
        self.pages
            .iter()
            .fold(0, |sum, p| sum.saturating_add(p.item_count))
    }
}

/// The decoded directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Digest of the superblock's 64 bytes.
    pub superblock_digest: Digest,
    /// Number of this generation, from 1.
    pub generation: u64,
    /// Offset of the previous footer; 0 if there is none.
    pub previous_footer: u64,
    /// Tree digest: identity of the tree.
    pub tree_digest: Digest,
    /// Number of names in the expanded tree, the root included.
    pub name_count: u64,
    /// Streams by number.
    pub streams: Vec<Stream>,
    /// Base images by number.
    pub bases: Vec<Base>,
    /// Sections; at most one for each type and stream.
    pub sections: Vec<Section>,
    /// What the writer's user says that the generation is.
    pub label: Label,
}

/// Maximum raw length of a record of this type, bytes.
pub fn raw_len_max(record_type: RecordType) -> u64 {
    match record_type {
        RecordType::Data | RecordType::Copies => BLOCK_LEN_MAX,
        RecordType::Dictionary => DICTIONARY_LEN_MAX,
        RecordType::Directory => DIRECTORY_LEN_MAX,
        _ => PAGE_LEN_MAX,
    }
}

/// Maximum number of items in a record of this type. It bounds every count that a directory claims.
pub fn items_max(record_type: RecordType) -> u64 {
    match record_type {
        RecordType::Data => BLOCK_LEN_MAX,
        RecordType::Dictionary => 1,
        RecordType::Entries => ENTRIES_PER_BLOCK as u64,
        RecordType::Times => TIMES_PER_RUN as u64,
        // Logical bytes, bytes of a stream and inode numbers: readers hold none of them one by one.
        RecordType::Extents | RecordType::Recipes | RecordType::Links => NUMBER_MAX,
        _ => ITEMS_PER_PAGE as u64,
    }
}

/// Checks the lengths and the position in a record reference (or in the directory's header).
///
/// # Errors
/// `Corrupt` for lengths or a position that no record of that type can have.
pub fn check_lens(r: &RecordRef) -> Result<()> {
    let bad = |rule, what: String| Error::corrupt("record reference", 0, rule, what);
    let raw_max = raw_len_max(r.record_type);
    // A record's stored bytes are never longer than its raw bytes: else the writer uses codec
    // `none`.
    if r.raw_len == 0 || r.raw_len > raw_max || r.stored_len > r.raw_len || r.stored_len == 0 {
        let what = format!(
            "{} record: expected 1 to {raw_max} raw bytes and at most as many stored bytes, \
             found {} and {}",
            r.record_type.name(),
            r.raw_len,
            r.stored_len
        );
        return Err(bad("F-7.2", what));
    }
    if r.codec == Codec::None && r.stored_len != r.raw_len {
        let what = format!(
            "codec none: expected {} stored bytes, as many as raw bytes, found {}",
            r.raw_len, r.stored_len
        );
        return Err(bad("F-7.3", what));
    }
    if r.offset < SUPERBLOCK_LEN as u64 || r.end() > NUMBER_MAX {
        return Err(bad("F-7.4", format!("offset {} is out of range", r.offset)));
    }
    Ok(())
}

fn codec_of(cursor: &Cursor<'_>, code: u64) -> Result<Codec> {
    let codec = u8::try_from(code).ok().and_then(Codec::from_code);
    codec.ok_or_else(|| cursor.error("F-3.5", format!("unknown codec {code}")))
}

impl Directory {
    /// Encodes the directory, before any codec.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.superblock_digest.0.to_vec();
        put_varint(&mut out, self.generation);
        put_varint(&mut out, self.previous_footer);
        out.extend_from_slice(&self.tree_digest.0);
        put_varint(&mut out, self.name_count);
        put_varint(&mut out, self.streams.len() as u64);
        for stream in &self.streams {
            out.push(stream.category as u8);
            put_varint(&mut out, stream.block_len_max);
        }
        put_varint(&mut out, self.bases.len() as u64);
        for base in &self.bases {
            out.extend_from_slice(&base.image_digest.0);
            put_varint(&mut out, base.stream_count);
            put_varint(&mut out, base.name.len() as u64);
            out.extend_from_slice(&base.name);
        }
        put_varint(&mut out, self.sections.len() as u64);
        for section in &self.sections {
            out.push(section.record_type as u8);
            put_varint(&mut out, section.stream);
            put_varint(&mut out, section.pages.len() as u64);
            for page in &section.pages {
                let record = &page.record;
                let record_count = if page.is_direct() {
                    0
                } else {
                    page.record_count
                };
                for value in [
                    record.offset,
                    record.stored_len,
                    record_count,
                    page.item_count,
                ] {
                    put_varint(&mut out, value);
                }
                if page.is_direct() {
                    put_varint(&mut out, record.raw_len);
                    out.push(record.codec as u8);
                }
                out.extend_from_slice(&record.digest.0);
            }
        }
        self.label.put(&mut out);
        out
    }

    /// Parses a directory's raw bytes.
    ///
    /// # Errors
    /// `Corrupt`; see section 7 of `docs/format.md` for the rules.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "directory");
        let superblock_digest = cursor.digest()?;
        let generation = cursor.bounded(NUMBER_MAX, "generation")?;
        let previous_footer = cursor.bounded(NUMBER_MAX, "previous footer")?;
        let tree_digest = cursor.digest()?;
        let name_count = cursor.bounded(NUMBER_MAX, "name count")?;
        let streams = (0..cursor.count(STREAMS_MAX, "stream count")?)
            .map(|_| parse_stream(&mut cursor))
            .collect::<Result<Vec<_>>>()?;
        let bases = (0..cursor.count(BASES_MAX, "base count")?)
            .map(|_| parse_base(&mut cursor))
            .collect::<Result<Vec<_>>>()?;
        let mut sections: Vec<Section> = Vec::new();
        for _ in 0..cursor.count(
            STREAMS_MAX.saturating_mul(2).saturating_add(16),
            "section count",
        )? {
            let section = parse_section(&mut cursor)?;
            let twin =
                |s: &Section| (s.record_type, s.stream) == (section.record_type, section.stream);
            let stream_count = streams.len() as u64;
            let has_stream = match section.record_type {
                RecordType::Data => section.stream < stream_count,
                RecordType::Dictionary => section.stream <= stream_count,
                _ => true,
            };
            if sections.iter().any(twin) || !has_stream {
                return Err(cursor.error(
                    "F-7.6",
                    "section: expected each type and stream once, and streams that exist",
                ));
            }
            sections.push(section);
        }
        let label = Label::read(&mut cursor)?;
        cursor.finish()?;
        check_made(&streams, &sections)?;
        check_bases(&streams, &bases, &sections)?;
        Ok(Self {
            superblock_digest,
            generation,
            previous_footer,
            tree_digest,
            name_count,
            streams,
            bases,
            sections,
            label,
        })
    }

    /// Finds the base image, and the stream in it, that a stream of category `base` stands for.
    pub fn base_stream(&self, stream: u64) -> Option<(usize, u64)> {
        let stream = usize::try_from(stream).ok()?;
        let is_base = |s: &&Stream| s.category == Category::Base;
        self.streams.get(stream).filter(is_base)?;
        let mut index = self.streams.iter().take(stream).filter(is_base).count() as u64;
        for (no, base) in self.bases.iter().enumerate() {
            match index.checked_sub(base.stream_count) {
                Some(beyond) => index = beyond,
                None => return Some((no, index)),
            }
        }
        None
    }

    /// Checks that all records that the sections count fit into the first `end` bytes of the image.
    /// Then the length of the file bounds what a reader allocates for them.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn check_fits(&self, end: u64) -> Result<()> {
        let least_len = (HEADER_LEN as u64).saturating_add(1);
        let page_len = |p: &PageRef| {
            let records = if p.is_direct() {
                0
            } else {
                p.record_count.saturating_mul(least_len)
            };
            records
                .saturating_add(p.record.stored_len)
                .saturating_add(HEADER_LEN as u64)
        };
        let pages = self.sections.iter().flat_map(|s| &s.pages);
        let sum = pages
            .map(page_len)
            .fold(SUPERBLOCK_LEN as u64, u64::saturating_add);
        if sum <= end {
            Ok(())
        } else {
            let what = format!("records: expected at most {end} bytes, found at least {sum}");
            Err(Error::corrupt("directory", 0, "F-7.12", what))
        }
    }

    /// Finds the section of `record_type` (for data: of `stream`).
    pub fn section(&self, record_type: RecordType, stream: u64) -> Option<&Section> {
        self.sections
            .iter()
            .find(|s| s.record_type == record_type && s.stream == stream)
    }
}

/// Checks the stream of category `made`: an image has at most one; recipes replace its data
/// records.
fn check_made(streams: &[Stream], sections: &[Section]) -> Result<()> {
    let is_made = |s: &Stream| s.category == Category::Made;
    let count = streams.iter().filter(|s| is_made(s)).count();
    let has_data = |s: &Section| {
        let stream = usize::try_from(s.stream).ok().and_then(|n| streams.get(n));
        s.record_type == RecordType::Data && stream.is_some_and(is_made)
    };
    let has_recipes = sections
        .iter()
        .any(|s| s.record_type == RecordType::Recipes);
    if count > 1 || (has_recipes && count == 0) || sections.iter().any(has_data) {
        let what = "streams of category made: expected at most one, without blocks; \
             recipes only if there is one";
        Err(Error::corrupt("directory", 0, "F-20.1", what))
    } else {
        Ok(())
    }
}

/// Checks the streams of category `base`: the bases have as many, and none has data records here.
fn check_bases(streams: &[Stream], bases: &[Base], sections: &[Section]) -> Result<()> {
    let is_base = |s: &&Stream| s.category == Category::Base;
    let found = streams.iter().filter(is_base).count() as u64;
    let declared = bases
        .iter()
        .fold(0u64, |sum, b| sum.saturating_add(b.stream_count));
    let is_filled = sections.iter().any(|s| {
        let stream = usize::try_from(s.stream).ok().and_then(|n| streams.get(n));
        s.record_type == RecordType::Data && stream.as_ref().is_some_and(is_base)
    });
    // Each base image has at least one stream. So a reader never opens more images than there may
    // be streams, even if images refer to each other in a circle.
    let is_empty = bases.iter().any(|b| b.stream_count == 0);
    if found == declared && !is_filled && !is_empty {
        Ok(())
    } else {
        let what = format!(
            "streams of category base: expected {declared}, as many as the base images have, \
             without blocks; found {found}"
        );
        Err(Error::corrupt("directory", 0, "F-7.14", what))
    }
}

fn parse_base(cursor: &mut Cursor<'_>) -> Result<Base> {
    let image_digest = cursor.digest()?;
    let stream_count = cursor.bounded(STREAMS_MAX as u64, "streams of a base")?;
    let len = cursor.count(NAME_LEN_MAX, "name of a base")?;
    let name = cursor.bytes(len)?.to_vec();
    if name.contains(&b'/') || name.contains(&0) || matches!(&*name, b"" | b"." | b"..") {
        Err(cursor.error("F-7.15", "name of a base: expected that of a file"))
    } else {
        Ok(Base {
            image_digest,
            name,
            stream_count,
        })
    }
}

fn parse_stream(cursor: &mut Cursor<'_>) -> Result<Stream> {
    let code = cursor.byte()?;
    let category = Category::from_code(code)
        .ok_or_else(|| cursor.error("F-7.5", format!("unknown category {code}")))?;
    let block_len_max = cursor.bounded(BLOCK_LEN_MAX, "block length")?;
    Ok(Stream {
        category,
        block_len_max,
    })
}

fn parse_section(cursor: &mut Cursor<'_>) -> Result<Section> {
    let code = cursor.byte()?;
    let record_type = RecordType::from_code(code)
        .filter(|t| {
            !matches!(
                t,
                RecordType::Index | RecordType::Directory | RecordType::Copies
            )
        })
        .ok_or_else(|| cursor.error("F-7.6", format!("section type: found {code}")))?;
    let stream = cursor.bounded(STREAMS_MAX as u64, "stream")?;
    let has_streams = matches!(record_type, RecordType::Data | RecordType::Dictionary);
    if stream != 0 && !has_streams {
        let what = "stream of a section that is neither data nor dictionary: expected 0";
        return Err(cursor.error("F-7.6", what));
    }
    let page_count = cursor.count(cursor.remaining() / 36, "page count")?;
    let mut pages = Vec::with_capacity(page_count);
    let mut items = 0u64;
    for _ in 0..page_count {
        let page = parse_page_ref(cursor, record_type)?;
        items = items.saturating_add(page.item_count);
        pages.push(page);
    }
    if items > NUMBER_MAX {
        return Err(cursor.error(
            "F-7.7",
            format!("items: expected at most {NUMBER_MAX}, found {items}"),
        ));
    }
    Ok(Section {
        record_type,
        stream,
        pages,
    })
}

fn parse_page_ref(cursor: &mut Cursor<'_>, record_type: RecordType) -> Result<PageRef> {
    let offset = cursor.varint()?;
    let stored_len = cursor.varint()?;
    let record_count = cursor.bounded(REFS_PER_PAGE as u64, "records per page")?;
    let item_count = cursor.bounded(NUMBER_MAX, "items per page")?;
    if record_count == 0 {
        let raw_len = cursor.varint()?;
        let code = u64::from(cursor.byte()?);
        let record = RecordRef {
            record_type,
            codec: codec_of(cursor, code)?,
            offset,
            stored_len,
            raw_len,
            digest: cursor.digest()?,
        };
        check_lens(&record)?;
        check_items(cursor, &record, item_count)?;
        return Ok(PageRef::direct(record, item_count));
    }
    let record = RecordRef {
        record_type: RecordType::Index,
        codec: Codec::None,
        offset,
        stored_len,
        raw_len: stored_len,
        digest: cursor.digest()?,
    };
    check_lens(&record)?;
    let items_max = record_count.saturating_mul(items_max(record_type));
    if item_count > items_max {
        return Err(cursor.error(
            "F-7.9",
            format!("items: expected at most {items_max}, found {item_count}"),
        ));
    }
    Ok(PageRef {
        record,
        record_count,
        item_count,
    })
}

/// Checks that a record of this type and length can have `item_count` items.
fn check_items(cursor: &Cursor<'_>, record: &RecordRef, item_count: u64) -> Result<()> {
    let range = match record.record_type {
        RecordType::Data => record.raw_len..=record.raw_len,
        other => 1..=items_max(other),
    };
    if range.contains(&item_count) {
        Ok(())
    } else {
        let what = format!("items: expected {range:?}, found {item_count}");
        Err(cursor.error("F-7.9", what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record at `offset`.
    pub(super) fn reference(offset: u64) -> RecordRef {
        RecordRef {
            record_type: RecordType::Data,
            codec: Codec::Zstd,
            offset,
            stored_len: 10,
            raw_len: 20,
            digest: Digest::of(&offset.to_le_bytes()),
        }
    }

    #[test]
    fn directories_round_trip_and_refuse_prefixes() {
        let record = RecordRef {
            record_type: RecordType::Index,
            codec: Codec::None,
            stored_len: 20,
            ..reference(64)
        };
        let page = PageRef {
            record,
            record_count: 3,
            item_count: 60,
        };
        let directory = Directory {
            superblock_digest: Digest::of(b"s"),
            generation: 1,
            previous_footer: 0,
            tree_digest: Digest::of(b"t"),
            name_count: 99,
            streams: [Category::Base, Category::General, Category::Base]
                .map(|category| Stream {
                    category,
                    block_len_max: 1 << 22,
                })
                .to_vec(),
            bases: vec![Base {
                image_digest: Digest::of(b"b"),
                name: b"base.weald".to_vec(),
                stream_count: 2,
            }],
            sections: vec![Section {
                record_type: RecordType::Data,
                stream: 1,
                pages: vec![page, page, PageRef::direct(reference(500), 20)],
            }],
            label: Label::default(),
        };
        let bytes = directory.encode();
        assert_eq!(Directory::parse(&bytes).unwrap(), directory);
        let labelled = Directory {
            label: Label::new("before the upgrade").unwrap(),
            ..directory.clone()
        };
        let with_label = labelled.encode();
        assert!(with_label.starts_with(&bytes));
        assert_eq!(Directory::parse(&with_label).unwrap(), labelled);
        for len in bytes.len() + 1..with_label.len() {
            Directory::parse(&with_label[..len]).expect_err("a label that is cut off");
        }
        for bytes in [
            [&with_label[..], b"x"].concat(),
            [&bytes[..], b"\0"].concat(),
        ] {
            Directory::parse(&bytes).expect_err("bytes behind the directory");
        }
        let found: Vec<_> = (0..4).map(|no| directory.base_stream(no)).collect();
        assert_eq!(found, [Some((0, 0)), None, Some((0, 1)), None]);
        for len in 0..bytes.len() {
            assert!(Directory::parse(&bytes[..len]).is_err());
        }
    }
}
