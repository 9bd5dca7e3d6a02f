//! Records read, verified and decoded: the digest first, then the codec, with a dictionary or a
//! history where it needs one.

use super::Records;
use crate::Image;
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use weald_codec::{Decoder, DictionaryBytes};
use weald_format::container::{Codec, HEADER_LEN, RecordRef, RecordType};
use weald_format::history::{self, History};
use weald_format::limits::HISTORY_LEN_MAX;
use weald_format::{Digest, Error, Result};
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

/// What is stored as it is is read so many bytes at a time.
const PLAIN_STEP_LEN: usize = 256 << 10;

/// The records of a history.
struct Before {
    /// The base image that they are in.
    base: Option<Arc<Image>>,
    /// Stream of their section.
    stream: u8,
    refs: Vec<RecordRef>,
}

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

    /// Reads, verifies and decodes a record of a section (data: of `stream`), before any filter is
    /// undone.
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
            _ if wanted as u64 >= record.raw_len && is_plain(record) => {
                return read_plain_into(&*self.source, record, raw);
            }
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

    /// A record of codec `zstd-history`: other records of its section, or of that of a base image,
    /// are decoded before it. They have no history of their own, so that this ends.
    fn read_after_history(&self, stream: u8, record: &RecordRef, raw: &mut Vec<u8>) -> Result<()> {
        let whole = self.read_stored(record)?;
        let stored = whole.get(HEADER_LEN..).unwrap_or(&[]);
        let at_record = |e: Error| e.at_offset(record.offset);
        let (history, frame) = History::parse(stored).map_err(at_record)?;
        let before = self
            .history_refs(stream, record.record_type, &history)
            .map_err(at_record)?;
        let (mut all, mut one) = (Vec::new(), Vec::new());
        for reference in &before.refs {
            let holder = before.base.as_ref().map_or(self, |base| &*base.records);
            holder.read_raw_into(before.stream, reference, &mut one)?;
            all.extend_from_slice(&one);
        }
        Decoder::decode_with_history(frame, &all, record.raw_len as usize, raw).map_err(at_record)
    }

    /// Raw bytes that are decoded before this record of a section (data: of `stream`), each time
    /// that it is.
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
        let lens = before.map_err(at_record)?.refs;
        Ok(lens.iter().fold(0, |sum, r| sum.saturating_add(r.raw_len)))
    }

    /// The records of `history`, if they can be one together.
    fn history_refs(
        &self,
        stream: u8,
        record_type: RecordType,
        history: &History,
    ) -> Result<Before> {
        let (base, stream) = match history.base_stream {
            None => (None, stream),
            Some(no) => {
                let found = self.base_streams.get(usize::from(no));
                let (image, stream) = found.and_then(Option::as_ref).ok_or_else(|| {
                    let what = format!("history: stream {no} is not one of a base image");
                    Error::corrupt("stored bytes", 0, "F-25.2", what)
                })?;
                let deeper = image.base_of(*stream);
                let (image, stream) = deeper.unwrap_or_else(|| (image.clone(), *stream));
                (Some(image), stream)
            }
        };
        let stream = match record_type {
            RecordType::Data => stream,
            _ => 0,
        };
        let holder = base.as_ref().map_or(self, |base| &*base.records);
        let (mut refs, mut len) = (Vec::with_capacity(history.numbers.len()), 0u64);
        for &no in &history.numbers {
            if no >= holder.record_count(record_type, stream) {
                return Err(history::bad(format!("history: there is no record {no}")));
            }
            let record = holder.record(record_type, stream, no)?.record;
            len = len.saturating_add(record.raw_len);
            if record.codec == Codec::ZstdHistory || len > HISTORY_LEN_MAX {
                let what = format!(
                    "history: expected {HISTORY_LEN_MAX} bytes at most, of records that need no history"
                );
                return Err(history::bad(what));
            }
            refs.push(record);
        }
        Ok(Before { base, stream, refs })
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
pub(super) fn read_record_into(
    source: &dyn ReadAt,
    record: &RecordRef,
    bytes: &mut Vec<u8>,
) -> Result<()> {
    check_end(source, record)?;
    bytes.resize((record.stored_len as usize).saturating_add(HEADER_LEN), 0);
    source.read_exact_at(bytes, record.offset)?;
    let (header, stored) = bytes.split_at_checked(HEADER_LEN).unwrap_or((&[], &[]));
    check_header(record, header)?;
    check_digest(record, Digest::of(stored))
}

/// Whether the stored bytes of a record are its raw ones. Where the lengths differ they are
/// damaged, as the decoder says.
fn is_plain(record: &RecordRef) -> bool {
    record.codec == Codec::None && record.stored_len == record.raw_len
}

/// The bytes of a record for which [`is_plain`] holds, verified and not copied again, into a buffer
/// whose old bytes go.
fn read_plain_into(source: &dyn ReadAt, record: &RecordRef, raw: &mut Vec<u8>) -> Result<()> {
    check_end(source, record)?;
    let mut header = [0; HEADER_LEN];
    source.read_exact_at(&mut header, record.offset)?;
    check_header(record, &header)?;
    raw.resize(record.stored_len as usize, 0);
    let mut at = record.offset.saturating_add(HEADER_LEN as u64);
    let mut hasher = blake3::Hasher::new();
    // A step at a time, hashed while it is in the processor's cache.
    for step in raw.chunks_mut(PLAIN_STEP_LEN) {
        source.read_exact_at(step, at)?;
        hasher.update(step);
        at = at.saturating_add(step.len() as u64);
    }
    check_digest(record, Digest(hasher.finalize().into()))
}

fn check_end(source: &dyn ReadAt, record: &RecordRef) -> Result<()> {
    let name = record.record_type.name();
    if record.end() > source.len() {
        let what = format!(
            "record ends at {}, the image at {}: truncated?",
            record.end(),
            source.len()
        );
        return Err(Error::corrupt(name, record.offset, "F-3.13", what));
    }
    Ok(())
}

fn check_header(record: &RecordRef, header: &[u8]) -> Result<()> {
    match header == record.header().as_bytes() {
        true => Ok(()),
        false => Err(Error::corrupt(
            record.record_type.name(),
            record.offset,
            "F-3.14",
            "record header differs from its reference",
        )),
    }
}

fn check_digest(record: &RecordRef, digest: Digest) -> Result<()> {
    if digest == record.digest {
        return Ok(());
    }
    let what = format!("digest: expected {}, found {digest}", record.digest);
    let name = record.record_type.name();
    Err(Error::corrupt(name, record.offset, "F-3.15", what))
}
