//! A new image whose parts come in slices: another process makes it, and between two slices the
//! writer of the store does other things.
//!
//! An unfinished image needs no care after a crash: blocks without references are nobody's, and the
//! row of an image that is being added says how many of its parts are counted.

use crate::incoming::{Imported, PartSink, Taken};
use crate::journal::now;
use crate::layout;
use crate::store::Store;
use crate::writer::StoreWriter;
use std::collections::BTreeSet;
use weald_format::container::{HEADER_LEN, RecordRef};
use weald_format::limits::BLOCK_LEN_MAX;
use weald_format::store::{ImageMap, ImageRow, ImageState, MAP_LEN_MAX, Part};
use weald_format::{BlockId, Digest, Error, Result};
use zerocopy::IntoBytes;

/// Longest map, bytes.
const LEN_MAX: u64 = if cfg!(test) { 256 << 10 } else { MAP_LEN_MAX };
/// Fewest bytes of a map that a block takes.
const BLOCK_ENTRY_LEN: u64 = 40;
/// Longest bytes between records.
const INLINE_LEN_MAX: usize = 64 << 10;

const INLINE: u8 = 0;
const RECORD: u8 = 1;
const STORED: u8 = 2;
const END: u8 = 3;

/// A part of an image that another process makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewPart {
    /// Bytes that are no record.
    Inline(Vec<u8>),
    /// A record and its stored bytes.
    Record(RecordRef, Vec<u8>),
    /// A block of the store, and the record that it must be.
    Stored(BlockId, RecordRef),
    /// The end: image digest and tree digest.
    End(Digest, Digest),
}

/// Sends the parts of an image as bytes, which a [`PartsParser`] takes apart.
pub struct PartsWriter<P>(P);

impl<P: FnMut(&[u8]) -> Result<()> + Send> PartsWriter<P> {
    /// Hands all bytes to `put`.
    pub fn new(put: P) -> Self {
        Self(put)
    }

    /// Ends the image.
    ///
    /// # Errors
    /// Those of the callback.
    pub fn finish(&mut self, image_digest: Digest, tree_digest: Digest) -> Result<()> {
        (self.0)(&[&[END], &image_digest.0[..], &tree_digest.0[..]].concat())
    }
}

impl<P: FnMut(&[u8]) -> Result<()> + Send> PartSink for PartsWriter<P> {
    fn put_inline(&mut self, bytes: &[u8]) -> Result<()> {
        let len = (bytes.len() as u32).to_le_bytes();
        (self.0)(&[&[INLINE], &len[..], bytes].concat())
    }

    fn put_record(&mut self, record: &RecordRef, stored: &[u8]) -> Result<()> {
        (self.0)(&[RECORD])?;
        (self.0)(record.header().as_bytes())?;
        (self.0)(stored)
    }

    fn put_part(&mut self, part: Part) -> Result<()> {
        match part {
            Part::Inline(bytes) => self.put_inline(&bytes),
            Part::Block { id, record, .. } => {
                (self.0)(&[&[STORED], &id.0.to_le_bytes()[..]].concat())?;
                (self.0)(record.header().as_bytes())
            }
        }
    }
}

/// Takes the bytes of a [`PartsWriter`] apart.
#[derive(Debug, Default)]
pub struct PartsParser {
    waiting: Vec<u8>,
    has_ended: bool,
}

impl PartsParser {
    /// Appends the parts that end within `bytes` to `parts`.
    ///
    /// # Errors
    /// `Invalid`, `Corrupt`, `Limit` for bytes that no [`PartsWriter`] sends.
    pub fn push(&mut self, bytes: &[u8], parts: &mut Vec<NewPart>) -> Result<()> {
        self.waiting.extend_from_slice(bytes);
        let mut used = 0;
        while let Some((part, len)) = first_part(self.waiting.get(used..).unwrap_or_default())? {
            if self.has_ended {
                return Err(Error::invalid("a part of an image behind its end"));
            }
            self.has_ended = matches!(part, NewPart::End(..));
            used += len;
            parts.push(part);
        }
        self.waiting.drain(..used);
        Ok(())
    }
}

/// The part at the beginning of `bytes` and its length; `None` if they end before it does.
fn first_part(bytes: &[u8]) -> Result<Option<(NewPart, usize)>> {
    let Some((tag, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let header = |rest: &[u8]| {
        let header = rest.get(..HEADER_LEN);
        header
            .map(|header| RecordRef::parse_header(header, 0))
            .transpose()
    };
    let part = match *tag {
        INLINE => rest
            .split_first_chunk::<4>()
            .map_or(Ok(None), |(len, rest)| {
                let len = u32::from_le_bytes(*len) as usize;
                if len > INLINE_LEN_MAX {
                    return Err(Error::limit(format!("{len} bytes between records")));
                }
                let bytes = rest.get(..len);
                Ok(bytes.map(|bytes| (NewPart::Inline(bytes.to_vec()), 5 + len)))
            })?,
        RECORD => match header(rest)? {
            Some(record) if record.stored_len > BLOCK_LEN_MAX => {
                return Err(Error::limit(format!(
                    "a record of {} bytes",
                    record.stored_len
                )));
            }
            Some(record) => {
                let end = HEADER_LEN + record.stored_len as usize;
                let stored = rest.get(HEADER_LEN..end);
                stored.map(|stored| (NewPart::Record(record, stored.to_vec()), 1 + end))
            }
            None => None,
        },
        STORED => match rest.split_first_chunk::<8>() {
            Some((id, rest)) => {
                let id = BlockId(u64::from_le_bytes(*id));
                header(rest)?.map(|record| (NewPart::Stored(id, record), 9 + HEADER_LEN))
            }
            None => None,
        },
        END => {
            let digests = rest.get(..64).and_then(<[u8]>::split_first_chunk::<32>);
            digests.and_then(|(image, tree)| {
                let end = NewPart::End(Digest(*image), Digest(tree.try_into().ok()?));
                Some((end, 65))
            })
        }
        _ => return Err(Error::invalid("a part of an image of no kind")),
    };
    Ok(part)
}

/// A new image that is being put together.
#[derive(Debug)]
pub struct Addition {
    name: String,
    taken: Taken,
    /// Parts whose references are counted in one step, while nothing else is committed.
    step: usize,
    /// Bytes that the map has at least.
    map_len: u64,
    /// The map and its row, when all parts are there.
    complete: Option<(ImageMap, ImageRow)>,
}

impl Addition {
    /// Begins an image with the name `name`.
    ///
    /// # Errors
    /// `Busy` if the name is taken; `Invalid` for a name that no image can have; `Io`.
    pub fn begin(writer: &StoreWriter, name: &str) -> Result<Self> {
        layout::check_name(name)?;
        writer.refuse_taken(name)?;
        Ok(Self {
            name: name.to_owned(),
            taken: Taken::default(),
            step: writer.options().steps.part_count,
            map_len: 0,
            complete: None,
        })
    }

    /// Adds a part, or completes the image with its end. Returns the number of the block if it is
    /// new to the store: nothing may remove it before [`Addition::count_some`] has counted it.
    ///
    /// # Errors
    /// `Invalid` for bytes that are not as their digest says, for a block that the store does not
    /// have, and for a part behind the end; `Limit` for more parts than a map can have: the store
    /// is as before. `Io`, `Full`, `Corrupt`.
    pub fn put(&mut self, writer: &mut StoreWriter, part: NewPart) -> Result<Option<BlockId>> {
        if self.complete.is_some() {
            return Err(Error::invalid("a part of an image behind its end"));
        }
        self.map_len += match &part {
            NewPart::Inline(bytes) => bytes.len() as u64,
            _ => BLOCK_ENTRY_LEN,
        };
        refuse_long_map(self.map_len)?;
        match part {
            NewPart::Inline(bytes) => self.taken.parts.push(Part::Inline(bytes)),
            NewPart::Record(record, stored) => {
                let has_len = record.stored_len == stored.len() as u64;
                if !has_len || Digest::of(&stored) != record.digest {
                    return Err(Error::invalid("a record of a new image has another digest"));
                }
                let next = writer.next_block_id();
                writer.refuse_after_failure(|writer| {
                    writer.take_record(&mut self.taken, &record, &stored)
                })?;
                return Ok((writer.next_block_id() > next).then_some(next));
            }
            NewPart::Stored(id, record) => {
                let other = || Error::invalid(format!("block {id} is not that of the new image"));
                let row = writer.find_block_row(id)?.ok_or_else(other)?;
                let record = RecordRef {
                    offset: 0,
                    ..record
                };
                if row.record != record {
                    return Err(other());
                }
                self.taken.block_count += 1;
                self.taken.parts.push(Part::Block {
                    id,
                    location: row.location,
                    record,
                });
            }
            NewPart::End(image_digest, tree_digest) => {
                let map = ImageMap {
                    image_no: writer.take_image_no(),
                    image_digest,
                    tree_digest,
                    added: now(),
                    parts: std::mem::take(&mut self.taken.parts),
                };
                let row = ImageRow {
                    image_no: map.image_no,
                    map_digest: Digest::default(),
                    state: ImageState::Adding,
                    counted_parts: 0,
                };
                self.complete = Some((map, row));
            }
        }
        Ok(None)
    }

    /// Writes the map of the complete image. Changes nothing else, and takes long for large images.
    ///
    /// # Errors
    /// `Invalid` if the image is not complete; `Limit` if the map is too long; `Io`, `Full`.
    pub fn write_map(&mut self, store: &Store) -> Result<()> {
        let (map, row) = self.complete.as_mut().ok_or_else(incomplete)?;
        let bytes = map.encode(store.uuid());
        refuse_long_map(bytes.len() as u64)?;
        row.map_digest = Digest::of(&bytes);
        store.disk.put(&layout::hidden_map(map.image_no), &bytes)
    }

    /// Number of parts whose references [`Addition::count_some`] counts next.
    pub fn next_count(&self) -> usize {
        let rest = self.complete.as_ref().map_or(0, |(map, row)| {
            let counted = usize::try_from(row.counted_parts).unwrap_or(usize::MAX);
            map.parts.len().saturating_sub(counted)
        });
        rest.min(self.step)
    }

    /// Counts the references of the next parts, after [`Addition::write_map`]. Returns whether
    /// there are more.
    ///
    /// # Errors
    /// `Invalid` if the image is not complete; `Busy` if the name was taken meanwhile; `Io`,
    /// `Full`.
    pub fn count_some(&mut self, writer: &mut StoreWriter) -> Result<bool> {
        let (map, row) = self.complete.as_mut().ok_or_else(incomplete)?;
        if row.counted_parts == 0 {
            writer.refuse_taken(&self.name)?;
        }
        writer.refuse_after_failure(|writer| {
            writer.count_step(&self.name, map, row, ImageState::Present, self.step)
        })
    }

    /// Lists the image, whose parts are all counted.
    ///
    /// # Errors
    /// `Invalid` if they are not; `Io`.
    pub fn show(&self, store: &Store) -> Result<Imported> {
        let (map, row) = self.complete.as_ref().ok_or_else(incomplete)?;
        if row.state != ImageState::Present {
            return Err(incomplete());
        }
        let hidden = layout::hidden_map(map.image_no);
        store.disk.switch(&hidden, &layout::map(&self.name))?;
        Ok(Imported {
            image_digest: map.image_digest,
            tree_digest: map.tree_digest,
            image_len: map.image_len(),
            block_count: self.taken.block_count,
            new_block_count: self.taken.new_block_count,
            new_len: self.taken.new_len,
        })
    }

    /// Lists the image before its references are counted: a deliberate bug.
    ///
    /// # Errors
    /// As [`Addition::show`].
    pub fn show_early(&self, store: &Store) -> Result<()> {
        let (map, row) = self.complete.as_ref().ok_or_else(incomplete)?;
        if row.counted_parts > 0 {
            return Ok(());
        }
        let bytes = map.encode(store.uuid());
        store.disk.put(&layout::map(&self.name), &bytes)
    }

    /// Drops the references that are counted, and the map. For an image that is not shown. Returns
    /// its blocks, some of which may have no reference.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn undo(self, writer: &mut StoreWriter) -> Result<BTreeSet<BlockId>> {
        let id_of = |part: &Part| match part {
            Part::Block { id, .. } => Some(*id),
            Part::Inline(_) => None,
        };
        let Some((map, row)) = self.complete else {
            return Ok(self.taken.parts.iter().filter_map(id_of).collect());
        };
        let ids = map.parts.iter().filter_map(id_of).collect();
        let removing = ImageRow {
            state: ImageState::Removing,
            ..row
        };
        let is_counted = row.counted_parts > 0;
        writer.refuse_after_failure(|writer| {
            if is_counted {
                writer.finish_removal(&self.name, removing, Some(map))
            } else {
                writer.remove_hidden_map(map.image_no)
            }
        })?;
        Ok(ids)
    }
}

fn incomplete() -> Error {
    Error::invalid("a new image is not complete")
}

fn refuse_long_map(len: u64) -> Result<()> {
    if len <= LEN_MAX {
        Ok(())
    } else {
        Err(Error::limit(format!(
            "the new image has too many blocks: its list of blocks would be longer than {} MiB",
            MAP_LEN_MAX >> 20
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::container::{Codec, RecordType};

    fn record(stored: &[u8]) -> RecordRef {
        RecordRef {
            record_type: RecordType::Data,
            codec: Codec::None,
            offset: 0,
            stored_len: stored.len() as u64,
            raw_len: stored.len() as u64,
            digest: Digest::of(stored),
        }
    }

    fn sent() -> (Vec<u8>, Vec<NewPart>) {
        let mut bytes = Vec::new();
        let mut writer = PartsWriter::new(|more: &[u8]| {
            bytes.extend_from_slice(more);
            Ok(())
        });
        let stored = [7; 300];
        writer.put_inline(b"superblock").expect("inline");
        writer
            .put_record(&record(&stored), &stored)
            .expect("record");
        writer.put_record(&record(b""), b"").expect("record");
        let location = weald_format::store::Location {
            segment: weald_format::SegmentNo(1),
            offset: 2,
        };
        let block = Part::Block {
            id: BlockId(9),
            location,
            record: record(b"other"),
        };
        writer.put_part(block).expect("a block");
        let digests = (Digest::of(b"image"), Digest::of(b"tree"));
        writer.finish(digests.0, digests.1).expect("the end");
        let parts = vec![
            NewPart::Inline(b"superblock".to_vec()),
            NewPart::Record(record(&stored), stored.to_vec()),
            NewPart::Record(record(b""), Vec::new()),
            NewPart::Stored(BlockId(9), record(b"other")),
            NewPart::End(digests.0, digests.1),
        ];
        (bytes, parts)
    }

    // Would catch a part that is lost or changed at the border of two frames.
    #[test]
    fn parts_come_back_whatever_the_frames_are() {
        let (bytes, wanted) = sent();
        for len in [1, 2, 3, 7, 64, 65, 100, 1000] {
            let (mut parser, mut found) = (PartsParser::default(), Vec::new());
            for frame in bytes.chunks(len) {
                parser.push(frame, &mut found).expect("parts");
            }
            assert_eq!(found, wanted, "frames of {len}");
        }
    }

    // Would catch bytes of a broken client that are taken for a part, or for which memory is taken.
    #[test]
    fn other_bytes_are_refused() {
        let mut behind = sent().0;
        behind.extend([INLINE, 0, 0, 0, 0]);
        let mut long = vec![RECORD];
        let mut far = record(b"");
        far.stored_len = BLOCK_LEN_MAX + 1;
        long.extend_from_slice(far.header().as_bytes());
        let mut flipped = vec![RECORD];
        flipped.extend_from_slice(record(b"").header().as_bytes());
        flipped[20] ^= 1;
        for bytes in [
            behind,
            long,
            flipped,
            vec![9],
            vec![INLINE, 255, 255, 255, 255],
        ] {
            let mut parser = PartsParser::default();
            let refused = parser.push(&bytes, &mut Vec::new());
            refused.expect_err("bytes that no writer sends");
        }
    }
}
