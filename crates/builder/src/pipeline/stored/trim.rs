//! Removes the blocks from an image of a store that its tree does not use.
//!
//! All addresses count from the front of a section, so a block cannot be taken out. A block of
//! zeros of the same length replaces each unused block. It takes a few hundred bytes, once for all
//! images. All other records stay the same blocks of the store.

use super::used_blocks::used_blocks;
use crate::write::image_writer::{ImageWriter, Outgoing, Sealed, Sink};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use weald_codec::{CodecSpec, Encoded, Encoder};
use weald_format::container::{RecordRef, RecordType};
use weald_format::store::{ImageMap, Part};
use weald_format::{Error, Result};
use weald_image::Image;
use weald_store::Incoming;

/// Shortest stored block that is replaced, bytes. A shorter one takes no more space than a block of
/// zeros.
pub const FILLED_LEN_MIN: u64 = 4 << 10;

/// Records of an image of a store, by offset in the image.
pub struct PartTable<'a> {
    parts: Vec<(u64, &'a Part)>,
}

impl<'a> PartTable<'a> {
    /// Creates the table of `map`.
    pub fn new(map: &'a ImageMap) -> Self {
        let mut at = 0;
        let parts = map.parts.iter().map(|part| {
            let start = at;
            at += part.len();
            (start, part)
        });
        Self {
            parts: parts.collect(),
        }
    }

    /// Returns the block of the store that holds `record`.
    ///
    /// # Errors
    /// `Corrupt` if the map has no such record.
    pub fn block(&self, record: &RecordRef) -> Result<Part> {
        let wanted = record.offset;
        let found = self
            .parts
            .binary_search_by_key(&wanted, |(start, _)| *start);
        match found.ok().and_then(|at| self.parts.get(at)) {
            Some((_, part @ Part::Block { record: found, .. }))
                if found.digest == record.digest =>
            {
                Ok((*part).clone())
            }
            _ => {
                let what = "the image's index names a record that its map does not have";
                Err(Error::corrupt("image map", wanted, "S-3.9", what))
            }
        }
    }
}

/// Encoded blocks of zeros, by length.
#[derive(Default)]
struct Zeros(HashMap<u64, Encoded>);

impl Zeros {
    fn block(&mut self, len: u64) -> Result<Encoded> {
        if let Some(known) = self.0.get(&len) {
            return Ok(known.clone());
        }
        let encoded = Encoder::new(CodecSpec::Zstd(1), len)?.encode(&vec![0; len as usize])?;
        self.0.insert(len, encoded.clone());
        Ok(encoded)
    }
}

/// Decision about a block of an image that is rewritten.
pub enum Fate {
    /// Keep the block.
    Stays,
    /// Replace the block by zeros: nothing uses it.
    Zeros,
    /// Replace the block by a block of the store with the same raw length.
    Other(Part),
    /// Replace the block by a new block with the same raw length.
    New(Outgoing),
}

/// Rewrites `image`, whose bytes are `map`, into `incoming` as a first generation. For each data
/// block, `decide` gets its stream, number, record and block of the store, and returns its fate.
/// The tree digest stays. Returns the identity of the new image.
///
/// # Errors
/// `Io`, `Full`, `Corrupt`, and those of `decide`.
/// # Cost
/// Writes the index of the image; reads no data.
pub fn replace_blocks(
    image: &Image,
    map: &ImageMap,
    incoming: &Arc<Mutex<Incoming>>,
    decide: &mut dyn FnMut(u8, u64, &RecordRef, &Part) -> Result<Fate>,
) -> Result<Sealed> {
    incoming.lock().begin_with(Vec::new());
    let mut writer = ImageWriter::begin(Sink::Store(incoming.clone()))?;
    let (table, mut zeros) = (PartTable::new(map), Zeros::default());
    let directory = image.directory();
    for section in &directory.sections {
        let (record_type, stream) = (section.record_type, section.stream as u8);
        let mut no = 0;
        image.each_record(record_type, stream, &mut |record, item_count| {
            let part = table.block(record)?;
            let fate = match record_type {
                RecordType::Data => decide(stream, no, record, &part)?,
                _ => Fate::Stays,
            };
            no += 1;
            let (raw_len, len) = (record.raw_len, item_count);
            match fate {
                Fate::Stays => writer.write_stored(part, record, stream, item_count),
                Fate::Zeros => {
                    let encoded = zeros.block(raw_len)?;
                    writer.write(&Outgoing::new(record_type, stream, encoded, raw_len, len))
                }
                Fate::Other(part) => {
                    let Part::Block { record, .. } = &part else {
                        return Err(Error::invalid("a block is no block"));
                    };
                    let record = *record;
                    writer.write_stored(part, &record, stream, item_count)
                }
                Fate::New(outgoing) => writer.write(&outgoing),
            }
        })?;
    }
    writer.seal(
        &directory.label,
        directory.tree_digest,
        directory.name_count,
        directory.streams.clone(),
        directory.bases.clone(),
        false,
    )
}

/// Rewrites `image`, whose bytes are `map`, into `incoming` without the blocks that its tree does
/// not use.
///
/// # Errors
/// As [`replace_blocks`].
/// # Cost
/// Reads the metadata of the image, and the blocks that have a history.
pub fn trim(
    image: &Image,
    map: &ImageMap,
    is_used: &[bool],
    incoming: &Arc<Mutex<Incoming>>,
) -> Result<Sealed> {
    let blocks = used_blocks(image, is_used)?;
    replace_blocks(image, map, incoming, &mut |stream, no, record, _| {
        let blocks = blocks.get(usize::from(stream));
        let is_needed = blocks.is_none_or(|blocks| blocks.is_needed(no));
        Ok(if is_needed || record.stored_len < FILLED_LEN_MIN {
            Fate::Stays
        } else {
            Fate::Zeros
        })
    })
}
