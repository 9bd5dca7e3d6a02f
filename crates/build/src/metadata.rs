//! Metadata records on their way to the image: gathered to train the dictionary, then compressed and written.

use crate::earlier::{Pages, Place};
use crate::image_writer::{Outgoing, RecordSink};
use std::sync::Arc;
use weald_codec::{CodecSpec, Encoded, Encoder, train_dictionary};
use weald_format::Result;
use weald_format::container::{Codec, RecordType};
use weald_format::limits::PAGE_LEN_MAX;
use weald_image::Image;

/// Raw metadata held back to learn from before anything is written, bytes.
const HELD_LEN_MAX: usize = 12 << 20;
/// Largest dictionary: what zstd's own tool uses, and what fits a level 1 cache three times over.
const DICTIONARY_LEN: usize = 112 << 10;

struct Raw {
    record_type: RecordType,
    bytes: Vec<u8>,
    item_count: u64,
}

/// Compresses and writes metadata records.
pub struct MetadataWriter {
    level: i32,
    held: Vec<Raw>,
    held_len: usize,
    encoder: Option<Encoder>,
    /// What other images have of every type.
    earlier: Option<Pages>,
}

impl MetadataWriter {
    /// A writer at zstd `level`.
    pub fn new(level: i32) -> Self {
        Self {
            level,
            held: Vec::new(),
            held_len: 0,
            encoder: None,
            earlier: None,
        }
    }

    /// A writer at zstd `level` that goes on behind `image`, with its dictionary, or without one as it does.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the image; `Invalid` where zstd does not take the dictionary.
    pub fn behind(level: i32, image: &Arc<Image>) -> Result<Self> {
        let encoder = match image.dictionary()? {
            Some(dictionary) => Encoder::with_dictionary(level, &dictionary)?,
            None => Encoder::new(CodecSpec::Zstd(level), PAGE_LEN_MAX)?,
        };
        Ok(Self {
            encoder: Some(encoder),
            earlier: Some(Pages::new(vec![Place {
                image: image.clone(),
                stream: 0,
                base_stream: None,
            }])),
            ..Self::new(level)
        })
    }

    /// A writer at zstd `level` of an image that lies on others, each of which `places` names once.
    pub fn over(level: i32, places: Vec<Place>) -> Self {
        Self {
            earlier: (!places.is_empty()).then(|| Pages::new(places)),
            ..Self::new(level)
        }
    }

    /// Takes a record of raw bytes with `item_count` items.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`.
    pub fn push(
        &mut self,
        sink: &mut dyn RecordSink,
        record_type: RecordType,
        bytes: Vec<u8>,
        item_count: u64,
    ) -> Result<()> {
        assert!(
            bytes.len() as u64 <= PAGE_LEN_MAX,
            "{record_type:?} record of {} bytes",
            bytes.len()
        );
        let raw = Raw {
            record_type,
            bytes,
            item_count,
        };
        if self.encoder.is_some() {
            return self.write(sink, &raw);
        }
        self.held_len += raw.bytes.len();
        self.held.push(raw);
        if self.held_len >= HELD_LEN_MAX {
            self.release(sink)?;
        }
        Ok(())
    }

    /// Writes everything that is still held back.
    ///
    /// # Errors
    /// As [`MetadataWriter::push`].
    pub fn finish(&mut self, sink: &mut dyn RecordSink) -> Result<()> {
        if self.encoder.is_none() {
            self.release(sink)?;
        }
        Ok(())
    }

    /// Chooses the dictionary, or none, by what the records held back come to with it; then writes them.
    fn release(&mut self, sink: &mut dyn RecordSink) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        let samples: Vec<Vec<u8>> = held
            .iter()
            .filter(|r| r.record_type == RecordType::Entries)
            .map(|r| r.bytes.clone())
            .collect();
        let mut plain = Encoder::new(CodecSpec::Zstd(self.level), PAGE_LEN_MAX)?;
        let mut best = encode_all(&mut plain, &held)?;
        if let Some(earlier) = &mut self.earlier {
            let level = self.level;
            let after = held.iter().zip(best);
            let after = after
                .map(|(raw, encoded)| earlier.smaller(raw.record_type, &raw.bytes, level, encoded));
            best = after.collect::<Result<_>>()?;
        }
        let mut encoder = plain;
        // A dictionary that takes more than a sixteenth of what it teaches does not pay.
        let len_max = (self.held_len / 16).clamp(1 << 10, DICTIONARY_LEN);
        if let Some(dictionary) = train_dictionary(&samples, len_max) {
            let mut with = Encoder::with_dictionary(self.level, &dictionary)?;
            let encoded = encode_all(&mut with, &held)?;
            let stored =
                Encoder::new(CodecSpec::Zstd(self.level), PAGE_LEN_MAX)?.encode(&dictionary)?;
            if total_len(&encoded) + stored.stored.len() < total_len(&best) {
                let raw_len = dictionary.len() as u64;
                sink.put_record(Outgoing::new(RecordType::Dictionary, 0, stored, raw_len, 1))?;
                (best, encoder) = (encoded, with);
            }
        }
        self.encoder = Some(encoder);
        for (raw, encoded) in held.into_iter().zip(best) {
            let raw_len = raw.bytes.len() as u64;
            sink.put_record(Outgoing::new(
                raw.record_type,
                0,
                encoded,
                raw_len,
                raw.item_count,
            ))?;
        }
        Ok(())
    }

    fn write(&mut self, sink: &mut dyn RecordSink, raw: &Raw) -> Result<()> {
        let mut encoded = match &mut self.encoder {
            Some(encoder) => encoder.encode(&raw.bytes)?,
            None => Encoded {
                codec: Codec::None,
                stored: raw.bytes.clone(),
            },
        };
        if let Some(earlier) = &mut self.earlier {
            encoded = earlier.smaller(raw.record_type, &raw.bytes, self.level, encoded)?;
        }
        let raw_len = raw.bytes.len() as u64;
        sink.put_record(Outgoing::new(
            raw.record_type,
            0,
            encoded,
            raw_len,
            raw.item_count,
        ))
    }
}

fn encode_all(encoder: &mut Encoder, held: &[Raw]) -> Result<Vec<Encoded>> {
    held.iter().map(|r| encoder.encode(&r.bytes)).collect()
}

fn total_len(encoded: &[Encoded]) -> usize {
    encoded.iter().map(|e| e.stored.len()).sum()
}
