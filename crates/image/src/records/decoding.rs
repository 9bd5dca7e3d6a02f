//! Records read, verified and decoded: the digest first, then the codec, with a dictionary or a history where it needs one.

use super::Records;
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use weald_codec::{Decoder, DictionaryBytes};
use weald_format::container::{Codec, HEADER_LEN, RecordRef, RecordType};
use weald_format::limits::HISTORY_LEN_MAX;
use weald_format::{Digest, Error, Result, history};
use weald_io::ReadAt;
use zerocopy::IntoBytes;

/// What a thread decodes with.
#[derive(Default)]
struct Workbench {
    decoder: Decoder,
    /// Stored bytes of a record, header included.
    stored: Vec<u8>,
}

thread_local! {
    static WORKBENCH: RefCell<Workbench> = RefCell::default();
}

/// A thread keeps a buffer for stored bytes up to this length.
const STORED_KEPT_MAX: usize = 8 << 20;

/// Number of the dictionary of metadata records; that of stream s is s + 1.
const METADATA: u8 = 0;

/// The number of the dictionary that a record of codec `zstd-dictionary` needs.
fn dictionary_no(stream: u8, record: &RecordRef) -> u8 {
    match record.record_type {
        RecordType::Data => stream.saturating_add(1),
        _ => METADATA,
    }
}

impl Records {
    /// Reads, verifies and decodes a record.
    ///
    /// # Errors
    /// As [`Records::read_stored`], and `Corrupt` where it does not decode.
    pub fn read_raw(&self, record: &RecordRef) -> Result<Vec<u8>> {
        let mut raw = Vec::new();
        self.read_raw_into(0, record, &mut raw)?;
        Ok(raw)
    }

    /// Reads, verifies and decodes a record of a section (data: of `stream`), before any filter is undone.
    ///
    /// # Errors
    /// As [`Records::read_raw`].
    pub fn read_raw_into(&self, stream: u8, record: &RecordRef, raw: &mut Vec<u8>) -> Result<()> {
        self.read_front_into(stream, record, usize::MAX, raw)
    }

    /// The digest is that of all stored bytes, however few are decoded.
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
        WORKBENCH.with_borrow_mut(|bench| {
            read_record_into(&*self.source, record, &mut bench.stored)?;
            let stored = bench.stored.get(HEADER_LEN..).unwrap_or(&[]);
            let raw_len = record.raw_len as usize;
            let decoded = bench.decoder.decode_front_into(
                record.codec,
                stored,
                raw_len,
                wanted,
                dictionary.as_ref(),
                raw,
            );
            if bench.stored.capacity() > STORED_KEPT_MAX {
                bench.stored = Vec::new();
            }
            decoded.map_err(|e| e.at_offset(record.offset))
        })
    }

    /// A record of codec `zstd-history`: other records of its section are decoded before it. They have no history of their own,
    /// so that this ends.
    fn read_after_history(&self, stream: u8, record: &RecordRef, raw: &mut Vec<u8>) -> Result<()> {
        let whole = self.read_stored(record)?;
        let stored = whole.get(HEADER_LEN..).unwrap_or(&[]);
        let at_record = |e: Error| e.at_offset(record.offset);
        let (numbers, frame) = history::parse(stored).map_err(at_record)?;
        let before = self
            .history_refs(stream, record.record_type, &numbers)
            .map_err(at_record)?;
        let (mut all, mut one) = (Vec::new(), Vec::new());
        for reference in &before {
            self.read_raw_into(stream, reference, &mut one)?;
            all.extend_from_slice(&one);
        }
        Decoder::decode_after(frame, &all, record.raw_len as usize, raw).map_err(at_record)
    }

    /// Raw bytes that are decoded before this record of a section (data: of `stream`), each time that it is.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn history_len(&self, stream: u8, record: &RecordRef) -> Result<u64> {
        if record.codec != Codec::ZstdHistory {
            return Ok(0);
        }
        let whole = self.read_stored(record)?;
        let at_record = |e: Error| e.at_offset(record.offset);
        let (numbers, _) =
            history::parse(whole.get(HEADER_LEN..).unwrap_or(&[])).map_err(at_record)?;
        let before = self.history_refs(stream, record.record_type, &numbers);
        let lens = before.map_err(at_record)?.into_iter().map(|r| r.raw_len);
        Ok(lens.fold(0, u64::saturating_add))
    }

    /// The records with these numbers, if they can be a history together.
    fn history_refs(
        &self,
        stream: u8,
        record_type: RecordType,
        numbers: &[u64],
    ) -> Result<Vec<RecordRef>> {
        let (mut refs, mut len) = (Vec::with_capacity(numbers.len()), 0u64);
        for &no in numbers {
            if no >= self.record_count(record_type, stream) {
                return Err(history::bad(format!("history: there is no record {no}")));
            }
            let record = self.record(record_type, stream, no)?.record;
            len = len.saturating_add(record.raw_len);
            if record.codec == Codec::ZstdHistory || len > HISTORY_LEN_MAX {
                let what = format!(
                    "history: expected {HISTORY_LEN_MAX} bytes at most, of records that need no history"
                );
                return Err(history::bad(what));
            }
            refs.push(record);
        }
        Ok(refs)
    }

    /// Reads and verifies a record: its header and stored bytes.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn read_stored(&self, record: &RecordRef) -> Result<Vec<u8>> {
        read_whole_record(&*self.source, record)
    }

    /// The dictionary `no`: that of metadata records, or the one of a stream.
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

/// Header and stored bytes of a record, both verified.
pub fn read_whole_record(source: &dyn ReadAt, record: &RecordRef) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_record_into(source, record, &mut bytes)?;
    Ok(bytes)
}

/// The same into a buffer, whose old bytes go.
fn read_record_into(source: &dyn ReadAt, record: &RecordRef, bytes: &mut Vec<u8>) -> Result<()> {
    let name = record.record_type.name();
    if record.end() > source.len() {
        let what = format!(
            "record ends at {}, the image at {}: truncated?",
            record.end(),
            source.len()
        );
        return Err(Error::corrupt(name, record.offset, "F-3.13", what));
    }
    bytes.resize((record.stored_len as usize).saturating_add(HEADER_LEN), 0);
    source.read_exact_at(bytes, record.offset)?;
    let (header, stored) = bytes.split_at_checked(HEADER_LEN).unwrap_or((&[], &[]));
    if header != record.header().as_bytes() {
        return Err(Error::corrupt(
            name,
            record.offset,
            "F-3.14",
            "record header differs from its reference",
        ));
    }
    let digest = Digest::of(stored);
    if digest != record.digest {
        let what = format!("digest: expected {}, found {digest}", record.digest);
        return Err(Error::corrupt(name, record.offset, "F-3.15", what));
    }
    Ok(())
}
