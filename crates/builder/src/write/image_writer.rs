//! Writes records one after the other, keeps the figures for the directory record, and seals the
//! image.

use crate::write::second_copies::SecondCopies;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use weald_codec::{CodecSpec, Encoded, Encoder};
use weald_format::container::{
    Codec, FOOTER_LEN, Footer, HEADER_LEN, RecordRef, RecordType, SuperblockRecord,
};
use weald_format::directory::{Base, Directory, IndexPage, PageRef, Section, Stream};
use weald_format::label::Label;
use weald_format::limits::REFS_PER_PAGE;
use weald_format::pages::FSVERITY_LEN;
use weald_format::store::Part;
use weald_format::{Digest, Error, Result};
use weald_image::{Image, OpenOptions};
use weald_io::{FileSource, OutputFile, ReadAt};
use weald_store::PartSink;
use zerocopy::IntoBytes;

/// Destination of an image: a file, or only a byte counter for size estimates.
pub enum Sink {
    /// The output file.
    File(OutputFile),
    /// No output; only the length is counted.
    Count,
    /// An image of a store; the caller holds it too.
    Store(Arc<Mutex<dyn PartSink>>),
}

/// Bytes written to a file so far, and their number.
struct Written(FileSource, u64);

impl ReadAt for Written {
    fn len(&self) -> u64 {
        self.1
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_exact_at(buf, offset)
    }
}

/// Checks the structure of the image in `file`, if the file can be read back.
fn verify(file: &mut OutputFile, digests: &[Option<Digest>]) -> Result<()> {
    file.flush()?;
    let Some(reader) = file.reader()? else {
        return Ok(());
    };
    let written = Written(reader, file.written_len());
    let checked = Image::open(Arc::new(written), &OpenOptions::default())
        .and_then(|image| image.check_structure(Some(digests)));
    checked.map_err(|error| error.context("the image that was written is damaged"))
}

/// Identity and length of a sealed image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// Digest of the directory record.
    pub image_digest: Digest,
    /// Length of the image, bytes.
    pub image_len: u64,
    /// Generation, from 1.
    pub generation: u64,
}

fn copies_of(sink: &Sink) -> Option<SecondCopies> {
    matches!(sink, Sink::File(_)).then(SecondCopies::default)
}

#[derive(Default)]
struct OpenSection {
    refs: Vec<RecordRef>,
    items: Vec<u64>,
    pages: Vec<PageRef>,
    stored_len: u64,
}

/// Writes one image. Records go out in the order of the calls.
pub struct ImageWriter {
    sink: Sink,
    position: u64,
    /// Number of the generation being written.
    generation: u64,
    previous_footer: Option<u64>,
    sections: BTreeMap<(RecordType, u8), OpenSection>,
    /// Digests of all contents, with which the structure of the sealed image is checked before it
    /// is complete; `None` without a check. Only for a file that can be read back.
    verified: Option<Vec<Option<Digest>>>,
    /// Range of the raw bytes of each new block of a stream; `None` for blocks that are compressed.
    raw_ranges: BTreeMap<u8, Vec<Option<Range<u64>>>>,
    /// Offset at which the generation begins.
    start: u64,
    /// What gets a second copy; `None` outside of files. A store keeps blocks in its own way.
    copies: Option<SecondCopies>,
}

/// An encoded record that is ready to be written.
pub struct Outgoing {
    /// Type.
    pub record_type: RecordType,
    /// Stream number of a data block; 0 for other records.
    pub stream: u8,
    /// Stored bytes.
    pub encoded: Encoded,
    /// Digest of the stored bytes.
    pub digest: Digest,
    /// Raw length, bytes.
    pub raw_len: u64,
    /// Items in the record, as its section counts them.
    pub item_count: u64,
}

/// Takes encoded records in the order in which they go into the file.
pub trait RecordSink {
    /// Takes the next record.
    ///
    /// `Io`, `Full`, also from earlier records.
    fn put_record(&mut self, record: Outgoing) -> Result<()>;
}

impl RecordSink for ImageWriter {
    fn put_record(&mut self, record: Outgoing) -> Result<()> {
        self.write(&record)
    }
}

impl Outgoing {
    /// Creates a record of encoded bytes and computes their digest.
    pub fn new(
        record_type: RecordType,
        stream: u8,
        encoded: Encoded,
        raw_len: u64,
        item_count: u64,
    ) -> Self {
        let digest = Digest::of(&encoded.stored);
        Self {
            record_type,
            stream,
            encoded,
            digest,
            raw_len,
            item_count,
        }
    }

    /// A page of fs-verity digests, which no codec makes smaller.
    pub fn fsverity_page(stored: Vec<u8>) -> Self {
        let len = stored.len() as u64;
        let encoded = Encoded {
            codec: Codec::None,
            stored,
        };
        let count = len / FSVERITY_LEN as u64;
        Self::new(RecordType::Fsverity, 0, encoded, len, count)
    }
}

impl ImageWriter {
    /// Begins an image and writes the superblock.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn begin(sink: Sink) -> Result<Self> {
        let mut writer = Self {
            copies: copies_of(&sink),
            start: 0,
            sink,
            position: 0,
            generation: 1,
            previous_footer: None,
            sections: BTreeMap::new(),
            verified: None,
            raw_ranges: BTreeMap::new(),
        };
        writer.put(SuperblockRecord::current().as_bytes())?;
        Ok(writer)
    }

    /// Appends a generation to `image`. It keeps all records except those that cover all names by
    /// number (hard links, times), and fs-verity digests, which the image merely claims.
    pub fn resume(sink: Sink, image: &Image) -> Self {
        let summary = image.summary();
        let is_made_anew = |t| {
            matches!(
                t,
                RecordType::Links | RecordType::Times | RecordType::Fsverity
            )
        };
        let sections = image.directory().sections.iter();
        let open = |section: &Section| {
            let key = (section.record_type, section.stream as u8);
            let pages = section.pages.clone();
            let section = OpenSection {
                pages,
                ..OpenSection::default()
            };
            (key, section)
        };
        Self {
            copies: copies_of(&sink),
            start: summary.image_len,
            sink,
            position: summary.image_len,
            generation: summary.generation + 1,
            previous_footer: Some(summary.image_len - FOOTER_LEN as u64),
            sections: sections
                .filter(|s| !is_made_anew(s.record_type))
                .map(open)
                .collect(),
            verified: None,
            raw_ranges: BTreeMap::new(),
        }
    }

    /// Appends a generation to `image` that keeps its contents and nothing of its tree.
    pub fn resume_contents(sink: Sink, image: &Image) -> Self {
        let mut writer = Self::resume(sink, image);
        writer.sections.retain(|(record_type, _), _| {
            matches!(
                record_type,
                RecordType::Data
                    | RecordType::Dictionary
                    | RecordType::Contents
                    | RecordType::Extents
                    | RecordType::Recipes
            )
        });
        writer
    }

    /// Lets [`ImageWriter::seal`] check the structure of what it wrote, whose contents have these
    /// digests, before the file gets its name.
    pub fn verify_at_end(&mut self, digests: Vec<Option<Digest>>) {
        self.verified = Some(digests);
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.sink {
            Sink::File(file) => file.write_all(bytes)?,
            Sink::Store(incoming) => incoming.lock().put_inline(bytes)?,
            Sink::Count => {}
        }
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn put_stored(&mut self, reference: &RecordRef, stored: &[u8]) -> Result<()> {
        if let Sink::Store(incoming) = &mut self.sink {
            incoming.lock().put_record(reference, stored)?;
            self.position = reference.end();
            return Ok(());
        }
        self.put(reference.header().as_bytes())?;
        self.put(stored)
    }

    /// Bytes written so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns a reader of the bytes written, if the output can be read.
    ///
    /// # Errors
    /// `Io`.
    pub fn reader(&self) -> Result<Option<FileSource>> {
        match &self.sink {
            Sink::File(file) => file.reader(),
            Sink::Count | Sink::Store(_) => Ok(None),
        }
    }

    /// Offset for [`ImageWriter::reader`] of block `no` of `stream`, if the block is in the file
    /// and stored uncompressed.
    pub fn raw_offset(&self, stream: u8, no: u64) -> Option<u64> {
        let range = self.raw_ranges.get(&stream)?.get(no as usize)?.as_ref()?;
        match &self.sink {
            Sink::File(file) if range.end <= file.written_len() => Some(range.start),
            _ => None,
        }
    }

    /// Stored bytes of all records of a type, headers included.
    pub fn stored_len(&self, record_type: RecordType) -> u64 {
        self.sections_len(&|t, _| t == record_type)
    }

    /// Stored bytes of all blocks and of their dictionaries, headers included. The dictionary of
    /// metadata, number 0, is not counted.
    pub fn data_len(&self) -> u64 {
        self.sections_len(&|t, no| t == RecordType::Data || t == RecordType::Dictionary && no > 0)
    }

    fn sections_len(&self, is_wanted: &dyn Fn(RecordType, u8) -> bool) -> u64 {
        self.sections
            .iter()
            .filter(|((record_type, no), _)| is_wanted(*record_type, *no))
            .map(|(_, s)| s.stored_len)
            .sum()
    }

    /// Writes the record of second copies.
    fn put_copies(&mut self, stored: Vec<u8>) -> Result<()> {
        let raw_len = stored.len() as u64;
        let encoded = Encoded {
            codec: Codec::None,
            stored,
        };
        let record = Outgoing::new(RecordType::Copies, 0, encoded, raw_len, 0);
        self.append_record(&record).map(|_| ())
    }

    /// The reference to `record` if it is written next.
    fn reference_to(&self, record: &Outgoing) -> RecordRef {
        RecordRef {
            record_type: record.record_type,
            codec: record.encoded.codec,
            offset: self.position,
            stored_len: record.encoded.stored.len() as u64,
            raw_len: record.raw_len,
            digest: record.digest,
        }
    }

    fn append_record(&mut self, record: &Outgoing) -> Result<RecordRef> {
        let reference = self.reference_to(record);
        self.put_stored(&reference, &record.encoded.stored)?;
        if let Some(copies) = &mut self.copies {
            copies.note(&reference, record.stream, &record.encoded.stored);
        }
        Ok(reference)
    }

    /// Writes `record` of a section as the block `part` of the store that it lies in already; its
    /// bytes are not read. Only into a store.
    ///
    /// # Errors
    /// `Io`, `Full` of index pages.
    pub fn write_stored(
        &mut self,
        part: Part,
        record: &RecordRef,
        stream: u8,
        item_count: u64,
    ) -> Result<()> {
        let reference = RecordRef {
            offset: self.position,
            ..*record
        };
        if let Sink::Store(incoming) = &mut self.sink {
            incoming.lock().put_part(part)?;
        }
        self.position = reference.end();
        self.add_to_section(reference, stream, item_count)
    }

    /// Writes a record of a section.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn write(&mut self, record: &Outgoing) -> Result<()> {
        let reference = self.append_record(record)?;
        if record.record_type == RecordType::Data {
            let is_raw = record.encoded.codec == Codec::None;
            let range = is_raw.then(|| reference.end() - reference.stored_len..reference.end());
            self.raw_ranges
                .entry(record.stream)
                .or_default()
                .push(range);
        }
        self.add_to_section(reference, record.stream, record.item_count)
    }

    fn add_to_section(&mut self, reference: RecordRef, stream: u8, item_count: u64) -> Result<()> {
        let key = (reference.record_type, stream);
        let section = self.sections.entry(key).or_default();
        section.stored_len += HEADER_LEN as u64 + reference.stored_len;
        section.refs.push(reference);
        section.items.push(item_count);
        if section.refs.len() == REFS_PER_PAGE {
            self.write_index_page(key)?;
        }
        Ok(())
    }

    fn write_index_page(&mut self, key: (RecordType, u8)) -> Result<()> {
        let section = self.sections.entry(key).or_default();
        let refs = std::mem::take(&mut section.refs);
        let items = std::mem::take(&mut section.items);
        if let ([record], [item_count]) = (&*refs, &*items) {
            section.pages.push(PageRef::direct(*record, *item_count));
            return Ok(());
        }
        if refs.is_empty() {
            return Ok(());
        }
        let raw = IndexPage::encode(&refs, &items);
        let raw_len = raw.len() as u64;
        let encoded = Encoded {
            codec: Codec::None,
            stored: raw,
        };
        let record =
            self.append_record(&Outgoing::new(RecordType::Index, 0, encoded, raw_len, 0))?;
        let page = PageRef {
            record,
            record_count: refs.len() as u64,
            item_count: items.iter().sum(),
        };
        self.sections.entry(key).or_default().pages.push(page);
        Ok(())
    }

    /// Writes the open index pages, the directory and the footer, and gives the file its name.
    ///
    /// # Errors
    /// `Io`, `Full`; `Busy` if the name is taken and `overwrite` is off; `Corrupt` if a check of
    /// what was written fails.
    pub fn seal(
        mut self,
        label: &Label,
        tree_digest: Digest,
        name_count: u64,
        streams: Vec<Stream>,
        bases: Vec<Base>,
        overwrite: bool,
    ) -> Result<Sealed> {
        let keys: Vec<_> = self.sections.keys().copied().collect();
        for key in &keys {
            self.write_index_page(*key)?;
        }
        let section = |(record_type, stream): &(RecordType, u8)| Section {
            record_type: *record_type,
            stream: u64::from(*stream),
            pages: self.sections[&(*record_type, *stream)].pages.clone(),
        };
        let directory = Directory {
            superblock_digest: Digest::of(SuperblockRecord::current().as_bytes()),
            generation: self.generation,
            previous_footer: self.previous_footer.unwrap_or(0),
            tree_digest,
            name_count,
            streams,
            bases,
            sections: keys.iter().map(section).collect(),
            label: label.clone(),
        };
        let image_digest = self.put_directory(&directory)?;
        if let Sink::File(mut file) = self.sink {
            if let Some(digests) = &self.verified {
                verify(&mut file, digests)?;
            }
            file.commit(overwrite)?;
        }
        Ok(Sealed {
            image_digest,
            image_len: self.position,
            generation: self.generation,
        })
    }

    fn put_directory(&mut self, directory: &Directory) -> Result<Digest> {
        let raw = directory.encode();
        let parsed = Directory::parse(&raw);
        assert!(
            parsed.is_ok_and(|d| d == *directory),
            "the directory does not parse as it was written"
        );
        let encoded = Encoder::new(CodecSpec::Zstd(19), raw.len() as u64)?.encode(&raw)?;
        let record = Outgoing::new(RecordType::Directory, 0, encoded, raw.len() as u64, 0);
        let mut bytes = self.reference_to(&record).header().as_bytes().to_vec();
        bytes.extend_from_slice(&record.encoded.stored);
        let image_digest = Digest::of(&bytes);
        let previous_footer = self.previous_footer;
        let footer_for = |directory_offset: u64| Footer {
            generation: directory.generation,
            directory_offset,
            directory_len: bytes.len() as u64,
            footer_offset: directory_offset + bytes.len() as u64,
            previous_footer,
            image_digest,
            tree_digest: directory.tree_digest,
        };
        let range = (self.start, self.position);
        let copies = self.copies.take();
        if let Some(stored) = copies.and_then(|c| c.encode(range, &bytes, &footer_for)) {
            self.put_copies(stored)?;
        }
        let footer = footer_for(self.position);
        self.append_record(&record)?;
        let bytes = footer.encode();
        Footer::parse(bytes.as_bytes(), self.position)
            .map_err(|e| Error::invalid("footer does not parse as written").with_source(e))?;
        // The footer promises that everything before it is on disk.
        if let Sink::File(file) = &mut self.sink {
            file.barrier()?;
        }
        self.put(bytes.as_bytes())?;
        Ok(image_digest)
    }
}
