//! Writes a new image into the store: records, and the bytes between them, in order.

use crate::engine::Batch;
use crate::image::StoredImage;
use crate::journal::now;
use crate::layout;
use crate::replace::ImageLock;
use crate::store::Store;
use crate::writer::StoreWriter;
use parking_lot::Mutex;
use std::sync::Arc;
use weald_format::container::{HEADER_LEN, RecordRef};
use weald_format::store::{ImageMap, Part};
use weald_format::{Digest, ImageNo, Result};
use zerocopy::IntoBytes;

/// Results of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    /// Digest of the image's directory record.
    pub image_digest: Digest,
    /// Tree digest: identity of names, attributes and contents.
    pub tree_digest: Digest,
    /// Length of the image, in bytes.
    pub image_len: u64,
    /// Number of records in the image.
    pub block_count: u64,
    /// Number of records that the store did not have.
    pub new_block_count: u64,
    /// Total length of the new records including headers: the growth of the store, in bytes.
    pub new_len: u64,
}

/// Takes the parts of a new image, in order.
pub trait PartSink: Send {
    /// Appends bytes that are not a record: superblock or footer.
    ///
    /// # Errors
    /// `Io`.
    fn put_inline(&mut self, bytes: &[u8]) -> Result<()>;

    /// Appends a record.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt` of the store; nothing can be appended after an error.
    fn put_record(&mut self, record: &RecordRef, stored: &[u8]) -> Result<()>;

    /// Appends a block of the store.
    ///
    /// # Errors
    /// `Io`.
    fn put_part(&mut self, part: Part) -> Result<()>;
}

impl PartSink for Incoming {
    fn put_inline(&mut self, bytes: &[u8]) -> Result<()> {
        self.taken.parts.push(Part::Inline(bytes.to_vec()));
        Ok(())
    }

    fn put_record(&mut self, record: &RecordRef, stored: &[u8]) -> Result<()> {
        let Self { writer, taken, .. } = self;
        writer.refuse_after_failure(|writer| writer.take_record(taken, record, stored))
    }

    fn put_part(&mut self, part: Part) -> Result<()> {
        self.taken.block_count += u64::from(matches!(part, Part::Block { .. }));
        self.taken.parts.push(part);
        Ok(())
    }
}

/// Keeps the parts of an image that nothing stores, with the records that the store does not have.
#[derive(Debug, Clone, Default)]
pub struct PartsInMemory(Arc<Mutex<Vec<Part>>>);

impl PartsInMemory {
    /// The parts so far, which are gone afterwards.
    pub fn take(&self) -> Vec<Part> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl PartSink for PartsInMemory {
    fn put_inline(&mut self, bytes: &[u8]) -> Result<()> {
        self.put_part(Part::Inline(bytes.to_vec()))
    }

    fn put_record(&mut self, record: &RecordRef, stored: &[u8]) -> Result<()> {
        let bytes = [record.header().as_bytes(), stored].concat();
        self.put_part(Part::Inline(bytes))
    }

    fn put_part(&mut self, part: Part) -> Result<()> {
        self.0.lock().push(part);
        Ok(())
    }
}

/// The parts of an image so far, and the number and length of those that the store did not have.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub parts: Vec<Part>,
    pub block_count: u64,
    pub new_block_count: u64,
    pub new_len: u64,
}

impl StoreWriter {
    /// Appends a record to an image: as an existing block of the store, or as a new one.
    pub(crate) fn take_record(
        &mut self,
        taken: &mut Taken,
        record: &RecordRef,
        stored: &[u8],
    ) -> Result<()> {
        let record = RecordRef {
            offset: 0,
            ..*record
        };
        let next = self.next_block_id();
        let id = self.put_block(&record, stored)?;
        taken.block_count += 1;
        if id == next {
            taken.new_block_count += 1;
            taken.new_len += HEADER_LEN as u64 + record.stored_len;
        }
        let location = self.block_row(id)?.location;
        taken.parts.push(Part::Block {
            id,
            location,
            record,
        });
        Ok(())
    }
}

/// A new image that is being written, with the writer of its store.
///
/// The image is not listed before [`Incoming::publish`]. If it is dropped before that, its new
/// blocks remain without references until the next collection.
#[derive(Debug)]
pub struct Incoming {
    writer: StoreWriter,
    name: String,
    /// Lock of the image that this one replaces, if any.
    lock: Option<ImageLock>,
    taken: Taken,
}

impl Incoming {
    /// Starts an empty image with the name `name`.
    ///
    /// # Errors
    /// `Busy` if the name is taken; `Invalid` for a name that no image can have; `Io`.
    pub fn new(writer: StoreWriter, name: &str) -> Result<Self> {
        layout::check_name(name)?;
        writer.refuse_taken(name)?;
        Ok(Self {
            writer,
            name: name.to_owned(),
            lock: None,
            taken: Taken::default(),
        })
    }

    /// Starts an empty image that will replace the image `name`. `lock` prevents readers from
    /// opening that image meanwhile.
    pub fn over(writer: StoreWriter, name: &str, lock: ImageLock) -> Self {
        Self {
            writer,
            name: name.to_owned(),
            lock: Some(lock),
            taken: Taken::default(),
        }
    }

    /// The writer of the store.
    pub fn writer(&self) -> &StoreWriter {
        &self.writer
    }

    /// The store as readers see it.
    pub fn store(&self) -> &Store {
        self.writer.store()
    }

    /// Reads each block that becomes part of the image again, and stores it anew if it is damaged.
    pub fn verify_duplicates(&mut self) {
        self.writer.verify_duplicates();
    }

    /// Starts the image again with `parts`, whose blocks are in the store. Blocks that were new to
    /// the store before still count as new.
    pub fn begin_with(&mut self, parts: Vec<Part>) {
        let is_block = |part: &&Part| matches!(part, Part::Block { .. });
        self.taken.block_count = parts.iter().filter(is_block).count() as u64;
        self.taken.parts = parts;
    }

    /// Finds the block of this image whose stored bytes have this digest.
    pub fn part_of(&self, digest: &Digest) -> Option<Part> {
        let is_it = |part: &&Part| match part {
            Part::Block { record, .. } => record.digest == *digest,
            Part::Inline(_) => false,
        };
        self.taken.parts.iter().find(is_it).cloned()
    }

    /// Opens the image so far for reading, like a complete image.
    ///
    /// # Errors
    /// `Io`, `Full` while appended records are written to disk.
    pub fn read_back(&mut self) -> Result<(StoredImage, ImageMap)> {
        self.writer
            .refuse_after_failure(|writer| writer.commit(Batch::default()))?;
        let map = ImageMap {
            image_no: ImageNo(u64::MAX),
            image_digest: Digest::default(),
            tree_digest: Digest::default(),
            added: 0,
            parts: self.taken.parts.clone(),
        };
        Ok((StoredImage::unlisted(self.store().clone(), &map), map))
    }

    /// Returns the writer, after the image was published or abandoned.
    pub fn into_writer(self) -> StoreWriter {
        self.writer
    }

    /// Lists the image; nothing can be appended afterwards.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn publish(&mut self, image_digest: Digest, tree_digest: Digest) -> Result<Imported> {
        let map = ImageMap {
            image_no: self.writer.take_image_no(),
            image_digest,
            tree_digest,
            added: now(),
            parts: std::mem::take(&mut self.taken.parts),
        };
        let image_len = map.image_len();
        let is_over = self.lock.take();
        self.writer.refuse_after_failure(|writer| match &is_over {
            None => writer.publish(&self.name, &map),
            Some(_) => writer.replace(&self.name, &map),
        })?;
        if is_over.is_some() {
            drop(is_over);
            self.writer.release_replaced()?;
        }
        Ok(Imported {
            image_digest,
            tree_digest,
            image_len,
            block_count: self.taken.block_count,
            new_block_count: self.taken.new_block_count,
            new_len: self.taken.new_len,
        })
    }
}
