//! Decodes records that need other records: a dictionary or a history.

use super::block_key::Wanted;
use super::blocks::Decoded;
use super::records::CachedRecords;
use crate::cache::key::RecordBits;
use crate::records::read::{decode_record, read_whole_record};
use crate::records::section::FoundRecord;
use std::sync::{Arc, OnceLock};
use weald_codec::{Decoder, DictionaryBytes};
use weald_format::container::{Codec, HEADER_LEN, RecordRef, RecordType};
use weald_format::history::{self, History};
use weald_format::limits::HISTORY_LEN_MAX;
use weald_format::{Digest, Error, Result};
use zerocopy::IntoBytes;

/// The records of a history.
struct HistoryRecords {
    /// The records of the base image that has them, if it is a base image.
    base: Option<Arc<CachedRecords>>,
    /// Stream of their section.
    stream: u8,
    found: Vec<FoundRecord>,
}

/// Number of the dictionary of metadata records; the one of stream s has number s + 1.
const METADATA: u8 = 0;

fn raw_len_of(found: &[FoundRecord]) -> u64 {
    found
        .iter()
        .fold(0, |sum, found| sum.saturating_add(found.record.raw_len))
}

/// The number of the dictionary that a record of codec `zstd-dictionary` needs.
fn dictionary_no(stream: u8, record: &RecordRef) -> u8 {
    match record.record_type {
        RecordType::Data => stream.saturating_add(1),
        _ => METADATA,
    }
}

impl CachedRecords {
    /// Identity of the decoded bytes of a record (data: of `stream`) among all records, for an
    /// image of a store; `None` if the bytes depend on a history.
    pub(super) fn shared_bits(&self, stream: u8, record: &RecordRef) -> Option<RecordBits> {
        self.shared_tag.as_ref()?;
        let digest = match record.codec {
            Codec::ZstdHistory => return None,
            Codec::ZstdDictionary => {
                let dictionary = self.dictionary_record(dictionary_no(stream, record))?;
                let mut hasher = blake3::Hasher::new();
                hasher.update(&record.digest.0);
                hasher.update(dictionary.header().as_bytes());
                Digest(*hasher.finalize().as_bytes())
            }
            _ => record.digest,
        };
        Some(RecordBits::new(&digest, record.raw_len))
    }

    /// The record of dictionary `no`, if there is one.
    fn dictionary_record(&self, no: u8) -> Option<RecordRef> {
        let place = self.dictionary_records.get(usize::from(no))?;
        let find = || {
            let found = self.record(RecordType::Dictionary, no, 0).ok()?;
            Some(found.record)
        };
        *place.get_or_init(find)
    }

    /// Reads, verifies and decodes a metadata record.
    ///
    /// # Errors
    /// `Io`; `Corrupt`, also if the record does not decode.
    pub fn read_raw(&self, record: &RecordRef) -> Result<Vec<u8>> {
        let mut raw = Vec::new();
        self.read_raw_into(0, record, &mut raw)?;
        Ok(raw)
    }

    /// Reads, verifies and decodes a record (data: of `stream`); does not undo a filter.
    ///
    /// # Errors
    /// As [`CachedRecords::read_raw`].
    pub fn read_raw_into(&self, stream: u8, record: &RecordRef, raw: &mut Vec<u8>) -> Result<()> {
        self.read_front_into(stream, record, usize::MAX, raw)
    }

    /// The same for the first `wanted` bytes or more. The digest covers all stored bytes, so that
    /// all are read, however few are decoded.
    pub(super) fn read_front_into(
        &self,
        stream: u8,
        record: &RecordRef,
        wanted: usize,
        raw: &mut Vec<u8>,
    ) -> Result<()> {
        let dictionary = match record.codec {
            Codec::ZstdDictionary => Some(self.dictionary(dictionary_no(stream, record))?),
            Codec::ZstdHistory => return self.read_after_history(stream, record, raw),
            _ => None,
        };
        decode_record(&*self.source, record, wanted, dictionary.as_ref(), raw)
    }

    /// Reads a record of codec `zstd-history`: first decodes the records of its history, which are
    /// in the same section of this image or of a base image. They have no history, so that the
    /// recursion ends.
    fn read_after_history(&self, stream: u8, record: &RecordRef, raw: &mut Vec<u8>) -> Result<()> {
        let whole = self.read_stored(record)?;
        let stored = whole.get(HEADER_LEN..).unwrap_or(&[]);
        let at_record = |e: Error| e.at_offset(record.offset);
        let (history, frame) = History::parse(stored).map_err(at_record)?;
        let before = self
            .history_refs(stream, record.record_type, &history)
            .map_err(at_record)?;
        let holder = before.base.as_ref().map_or(self, |base| &**base);
        let mut all = Vec::with_capacity(raw_len_of(&before.found) as usize);
        for found in &before.found {
            holder.append_history(before.stream, found, &mut all)?;
        }
        Decoder::decode_with_history(frame, &all, record.raw_len as usize, raw).map_err(at_record)
    }

    /// Appends the decoded bytes of a record of a history (data: of `stream`), before any filter is
    /// undone. Blocks of a category without a filter come from the cache: many blocks have the same
    /// history.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn append_history(
        &self,
        stream: u8,
        found: &FoundRecord,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let record = &found.record;
        if record.record_type == RecordType::Data && !self.is_filtered(stream) {
            match self.decoded(stream, found, Wanted::Whole)? {
                Decoded::Block(block) => bytes.extend_from_slice(&block),
                // The last step of another thread has completed it meanwhile.
                Decoded::Partial(partial) => {
                    let block = partial.whole();
                    bytes.extend_from_slice(block.as_deref().map_or(&[], |block| block));
                }
            }
            return Ok(());
        }
        let mut raw = Vec::new();
        self.read_raw_into(stream, record, &mut raw)?;
        if record.record_type == RecordType::Data {
            self.count_decoded(raw.len());
        }
        bytes.extend_from_slice(&raw);
        Ok(())
    }

    /// Raw bytes of the history that is decoded each time that this record (data: of `stream`) is
    /// decoded.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn history_len(&self, stream: u8, record: &RecordRef) -> Result<u64> {
        if record.codec != Codec::ZstdHistory {
            return Ok(0);
        }
        let whole = self.read_stored(record)?;
        let at_record = |e: Error| e.at_offset(record.offset);
        let (history, _) =
            History::parse(whole.get(HEADER_LEN..).unwrap_or(&[])).map_err(at_record)?;
        let before = self.history_refs(stream, record.record_type, &history);
        Ok(raw_len_of(&before.map_err(at_record)?.found))
    }

    /// The records of `history`, after a check of their number, length and codec.
    fn history_refs(
        &self,
        stream: u8,
        record_type: RecordType,
        history: &History,
    ) -> Result<HistoryRecords> {
        let (base, stream) = match history.base_stream {
            None => (None, stream),
            Some(no) => {
                let found = self.base_streams.get(usize::from(no));
                let (records, stream) = found.and_then(Option::as_ref).ok_or_else(|| {
                    let what = format!("history: stream {no} is not one of a base image");
                    Error::corrupt("stored bytes", 0, "F-25.2", what)
                })?;
                let (records, stream) = owner_of(records, *stream);
                (Some(records.clone()), stream)
            }
        };
        let stream = match record_type {
            RecordType::Data => stream,
            _ => 0,
        };
        let holder = base.as_ref().map_or(self, |base| &**base);
        let (mut all, mut len) = (Vec::with_capacity(history.numbers.len()), 0u64);
        for &no in &history.numbers {
            if no >= holder.record_count(record_type, stream) {
                return Err(history::bad(format!("history: there is no record {no}")));
            }
            let found = holder.record(record_type, stream, no)?;
            let record = &found.record;
            len = len.saturating_add(record.raw_len);
            if record.codec == Codec::ZstdHistory || len > HISTORY_LEN_MAX {
                let what = format!(
                    "history: expected at most {HISTORY_LEN_MAX} bytes of records without a history"
                );
                return Err(history::bad(what));
            }
            all.push(found);
        }
        Ok(HistoryRecords {
            base,
            stream,
            found: all,
        })
    }

    /// Reads and verifies a record: its header and stored bytes.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn read_stored(&self, record: &RecordRef) -> Result<Vec<u8>> {
        read_whole_record(&*self.source, record)
    }

    /// Dictionary `no`: that of metadata records, or the one of a stream.
    pub(super) fn dictionary(&self, no: u8) -> Result<Arc<DictionaryBytes>> {
        let (rule, form_rule) = match no {
            METADATA => ("F-3.12", "F-3.12"),
            _ => ("F-24.1", "F-24.2"),
        };
        let place = self.dictionaries.get(usize::from(no));
        if let Some(dictionary) = place.and_then(OnceLock::get) {
            return Ok(dictionary.clone());
        }
        let bad = |offset, what| Error::corrupt("dictionary", offset, rule, what);
        if self.record_count(RecordType::Dictionary, no) == 0 {
            return Err(bad(0, "a record needs a dictionary, and there is none"));
        }
        let record = self.record(RecordType::Dictionary, no, 0)?.record;
        let needs_itself = matches!(record.codec, Codec::ZstdDictionary | Codec::ZstdHistory);
        if needs_itself || self.record_count(RecordType::Dictionary, no) != 1 {
            let what = "expected one dictionary that needs none";
            return Err(bad(record.offset, what));
        }
        let bytes = self.read_raw(&record)?;
        let dictionary = DictionaryBytes::new(&bytes).map_err(|e| {
            let cause = e.at_offset(record.offset);
            Error::corrupt("dictionary", record.offset, form_rule, cause.to_string())
        })?;
        let dictionary = Arc::new(dictionary);
        Ok(match place {
            Some(place) => place.get_or_init(|| dictionary).clone(),
            None => dictionary,
        })
    }
}

/// The records that really have `stream`, which may be one of a base image, and its number there.
fn owner_of(records: &Arc<CachedRecords>, stream: u8) -> (&Arc<CachedRecords>, u8) {
    match records.base_of(stream) {
        Some((base, stream)) => owner_of(base, *stream),
        None => (records, stream),
    }
}
