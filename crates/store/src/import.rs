//! Imports images: their records become blocks, and their order becomes a map.

use crate::engine::{Batch, Table};
use crate::faults::{Bug, Faults};
use crate::incoming::{Imported, PartSink, Taken};
use crate::journal::now;
use crate::layout;
use crate::writer::{Count, StoreWriter};
use weald_format::container::{
    FOOTER_LEN, FOOTER_MAGIC, Footer, HEADER_LEN, RecordRef, SUPERBLOCK_LEN, SuperblockRecord,
};
use weald_format::limits::BLOCK_LEN_MAX;
use weald_format::store::{ImageMap, ImageRow, ImageState, Part};
use weald_format::{Digest, Error, ErrorKind, Result};
use weald_io::ReadAt;

/// Parts whose references are counted in one transaction.
pub(crate) const COUNT_BATCH: usize = 1 << 16;

/// Reads an image from front to back and verifies every digest.
struct Walk<'a> {
    source: &'a dyn ReadAt,
    at: u64,
    end: u64,
}

enum Piece {
    Footer(Footer, Vec<u8>),
    Record(RecordRef, Vec<u8>, Digest),
}

impl<'a> Walk<'a> {
    fn begin(source: &'a dyn ReadAt) -> Result<(Self, Vec<u8>)> {
        let end = source.len();
        let mut superblock = vec![0; SUPERBLOCK_LEN.min(usize::try_from(end).unwrap_or(0))];
        source.read_exact_at(&mut superblock, 0)?;
        SuperblockRecord::parse(&superblock)?;
        Ok((
            Self {
                source,
                at: SUPERBLOCK_LEN as u64,
                end,
            },
            superblock,
        ))
    }

    fn take(&mut self, len: u64) -> Result<Vec<u8>> {
        if self.end - self.at < len {
            let what = "the image ends inside a record: it is truncated";
            return Err(Error::corrupt("image", self.at, "F-3.13", what));
        }
        let mut bytes = vec![0; len as usize];
        self.source.read_exact_at(&mut bytes, self.at)?;
        self.at += len;
        Ok(bytes)
    }

    fn next(&mut self) -> Result<Option<Piece>> {
        if self.at == self.end {
            return Ok(None);
        }
        let start = self.at;
        let header = self.take(HEADER_LEN as u64)?;
        if header.starts_with(&FOOTER_MAGIC) {
            let mut bytes = header;
            bytes.extend(self.take((FOOTER_LEN - HEADER_LEN) as u64)?);
            return Ok(Some(Piece::Footer(Footer::parse(&bytes, start)?, bytes)));
        }
        let record = RecordRef::parse_header(&header, start)?;
        if record.stored_len > BLOCK_LEN_MAX {
            let what = format!("a record of {} bytes", record.stored_len);
            return Err(Error::corrupt("record header", start, "F-2.3", what));
        }
        let stored = self.take(record.stored_len)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&header).update(&stored);
        if Digest::of(&stored) != record.digest {
            let what = "the stored bytes differ from their digest: 'weald check' names the files";
            return Err(Error::corrupt("record", start, "F-3.15", what));
        }
        let with_header = Digest(*hasher.finalize().as_bytes());
        Ok(Some(Piece::Record(record, stored, with_header)))
    }
}

/// Reads the image `source` from front to back, verifies every digest, and hands its parts to
/// `sink`. Returns its image digest and its tree digest.
///
/// # Errors
/// `Corrupt` if the image is damaged; `Io`; those of `sink`.
pub fn read_parts(source: &dyn ReadAt, sink: &mut dyn PartSink) -> Result<(Digest, Digest)> {
    let (mut walk, superblock) = Walk::begin(source)?;
    sink.put_inline(&superblock)?;
    let mut footer = None;
    let mut last_record = None;
    while let Some(piece) = walk.next()? {
        match piece {
            Piece::Footer(found, bytes) => {
                if last_record != Some(found.image_digest) {
                    let what = "the digest of the directory record is not the footer's";
                    let at = found.footer_offset;
                    return Err(Error::corrupt("footer", at, "F-4.5", what));
                }
                footer = Some(found);
                sink.put_inline(&bytes)?;
            }
            Piece::Record(record, stored, with_header) => {
                footer = None;
                last_record = Some(with_header);
                sink.put_record(&record, &stored)?;
            }
        }
    }
    match footer {
        Some(footer) => Ok((footer.image_digest, footer.tree_digest)),
        None => {
            let what = "no footer at the end: the image is truncated or was never finished";
            Err(Error::corrupt("footer", walk.end, "F-4.2", what))
        }
    }
}

/// The parts of an image that is imported.
struct Taking<'a> {
    writer: &'a mut StoreWriter,
    taken: Taken,
}

impl PartSink for Taking<'_> {
    fn put_inline(&mut self, bytes: &[u8]) -> Result<()> {
        self.taken.parts.push(Part::Inline(bytes.to_vec()));
        Ok(())
    }

    fn put_record(&mut self, record: &RecordRef, stored: &[u8]) -> Result<()> {
        self.writer.take_record(&mut self.taken, record, stored)
    }

    fn put_part(&mut self, part: Part) -> Result<()> {
        self.taken.parts.push(part);
        Ok(())
    }
}

impl StoreWriter {
    /// Imports the image `source` as `name`. Every record is verified; a record that the store has
    /// is not stored again.
    ///
    /// # Errors
    /// `Busy` if the name is taken; `Invalid` for a name that no image can have; `Corrupt` if the
    /// image is damaged; `Io`, `Full`. After an error the image is not listed, and
    /// [`StoreWriter::collect`] frees its space.
    ///
    /// # Cost
    /// Reads and hashes the image once; about 100 bytes of memory per record for its map.
    pub fn import(&mut self, name: &str, source: &dyn ReadAt) -> Result<Imported> {
        layout::check_name(name)?;
        self.refuse_taken(name)?;
        let (map, imported) = self.take_image(source)?;
        self.refuse_after_failure(|writer| writer.publish(name, &map))?;
        Ok(imported)
    }

    /// As [`StoreWriter::import`], but replaces the existing image `name`, whose readers go on.
    /// After a crash the name means either the old or the new image.
    ///
    /// # Errors
    /// As [`StoreWriter::import`]; `NotFound` if there is no image of this name; `Limit` if too
    /// many replaced images are read.
    pub fn import_over(&mut self, name: &str, source: &dyn ReadAt) -> Result<Imported> {
        layout::check_name(name)?;
        self.store().map(name)?;
        self.release_replaced()?;
        self.replaceable(name)?;
        let (map, imported) = self.take_image(source)?;
        self.refuse_after_failure(|writer| writer.replace(name, &map))?;
        self.release_replaced()?;
        Ok(imported)
    }

    fn take_image(&mut self, source: &dyn ReadAt) -> Result<(ImageMap, Imported)> {
        self.refuse_after_failure(|writer| match writer.take_records(source) {
            // The image cannot be read, not the store; the records already taken do no harm.
            Err(error) if !error.is_failed_write() => {
                writer.commit(Batch::default())?;
                Ok(Err(error))
            }
            other => other.map(Ok),
        })?
    }

    /// Fails if an image of the store has this name.
    pub(crate) fn refuse_taken(&self, name: &str) -> Result<()> {
        let is_volume = self
            .tables()
            .get(Table::Volumes, name.as_bytes())?
            .is_some();
        let kind = match self.image_row(name)? {
            Some(_) => "an image",
            None if is_volume => "a volume",
            None => return Ok(()),
        };
        let what = format!(
            "{}:{name}: {kind} of this name exists: remove it first, or take another name",
            self.store().disk.shown()
        );
        Err(Error::new(ErrorKind::Busy, what))
    }

    fn take_records(&mut self, source: &dyn ReadAt) -> Result<(ImageMap, Imported)> {
        let mut taking = Taking {
            writer: self,
            taken: Taken::default(),
        };
        let (image_digest, tree_digest) = read_parts(source, &mut taking)?;
        let taken = taking.taken;
        let map = ImageMap {
            image_no: self.take_image_no(),
            image_digest,
            tree_digest,
            added: now(),
            parts: taken.parts,
        };
        let image_len = map.image_len();
        let imported = Imported {
            image_digest,
            tree_digest,
            image_len,
            block_count: taken.block_count,
            new_block_count: taken.new_block_count,
            new_len: taken.new_len,
        };
        Ok((map, imported))
    }

    /// Lists the image of `map`, whose blocks are stored, as `name`.
    ///
    /// The map is written under a hidden name and synced. Then the references are counted in
    /// limited transactions, each of which records its progress. Then the map is renamed, so that
    /// readers see it. After a crash in between, the next writer undoes the work.
    pub(crate) fn publish(&mut self, name: &str, map: &ImageMap) -> Result<()> {
        let disk = self.store().disk.clone();
        self.count_hidden(name, map, ImageState::Present)?;
        disk.switch(&layout::hidden_map(map.image_no), &layout::map(name))
    }

    /// Writes `map` under its hidden name, and counts the references of its blocks in the row
    /// `key`. The last transaction sets the row's state to `counted`. Returns the row.
    pub(crate) fn count_hidden(
        &mut self,
        key: &str,
        map: &ImageMap,
        counted: ImageState,
    ) -> Result<ImageRow> {
        let bytes = map.encode(self.store().uuid());
        let hidden = layout::hidden_map(map.image_no);
        self.store().disk.put(&hidden, &bytes)?;
        let mut row = ImageRow {
            image_no: map.image_no,
            map_digest: Digest::of(&bytes),
            state: ImageState::Adding,
            counted_parts: 0,
        };
        while self.count_step(key, map, &mut row, counted, COUNT_BATCH)? {}
        Ok(row)
    }

    /// Counts the references of the next parts of `map`, at most `count_max`, in the row `key`. The
    /// last transaction sets the row's state to `counted`. Returns whether there are more.
    pub(crate) fn count_step(
        &mut self,
        key: &str,
        map: &ImageMap,
        row: &mut ImageRow,
        counted: ImageState,
        count_max: usize,
    ) -> Result<bool> {
        let start = usize::try_from(row.counted_parts).unwrap_or(usize::MAX);
        let end = start.saturating_add(count_max).min(map.parts.len());
        let Some(parts) = map.parts.get(start..end).filter(|parts| !parts.is_empty()) else {
            return Ok(false);
        };
        self.count_parts(parts, Count::Up)?;
        row.counted_parts = end as u64;
        if end == map.parts.len() {
            row.state = counted;
        }
        let mut batch = Batch::default();
        batch.put(Table::Images, key.as_bytes(), row.encode());
        self.commit(batch)?;
        Ok(end < map.parts.len())
    }

    /// Counts the references of `parts`.
    pub(crate) fn count_parts(&mut self, parts: &[Part], count: Count) -> Result<()> {
        for part in parts {
            if self.faults.has(Bug::LostIncrement)
                && count == Count::Up
                && matches!(part, Part::Block { .. })
            {
                self.faults = Faults::default();
                continue;
            }
            if let Part::Block { id, .. } = part {
                self.count(*id, count)?;
            }
        }
        Ok(())
    }
}
