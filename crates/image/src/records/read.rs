//! Reads, verifies and decodes one record.

use std::cell::RefCell;
use weald_codec::{Decoder, DictionaryBytes};
use weald_format::container::{Codec, HEADER_LEN, RecordRef};
use weald_format::{Digest, Error, Result};
use weald_io::ReadAt;
use zerocopy::IntoBytes;

/// Buffers and decoder of a thread.
#[derive(Default)]
struct Workbench {
    decoder: Decoder,
    /// Stored bytes of a record, header included.
    stored: Vec<u8>,
}

impl Workbench {
    /// Frees the buffer for stored bytes if it is long.
    fn forget_long(&mut self) {
        if self.stored.capacity() > STORED_KEPT_MAX {
            self.stored = Vec::new();
        }
    }
}

thread_local! {
    static WORKBENCH: RefCell<Workbench> = RefCell::default();
}

/// Bytes of the longest buffer for stored bytes that a thread keeps.
const STORED_KEPT_MAX: usize = 8 << 20;

/// Bytes of an uncompressed record that are read at a time.
const PLAIN_STEP_LEN: usize = 256 << 10;

/// Bytes that are read at once where the storage fails: a page of the kernel, and a sector.
const RETRY_LEN: usize = 4096;

/// Reads, verifies and decodes a record whose codec needs no history, into a buffer whose old bytes
/// are overwritten: its first `wanted` bytes or more. The digest covers all stored bytes, so that
/// all are read, however few are decoded.
///
/// # Errors
/// `Io`; `Corrupt` if the record does not match its reference or does not decode.
pub fn decode_record(
    source: &dyn ReadAt,
    record: &RecordRef,
    wanted: usize,
    dictionary: Option<&std::sync::Arc<DictionaryBytes>>,
    raw: &mut Vec<u8>,
) -> Result<()> {
    if wanted as u64 >= record.raw_len && is_plain(record) {
        return read_plain_record(source, record, raw);
    }
    WORKBENCH.with_borrow_mut(|bench| {
        read_record_into(source, record, &mut bench.stored)?;
        let stored = bench.stored.get(HEADER_LEN..).unwrap_or(&[]);
        let raw_len = record.raw_len as usize;
        let decoded =
            bench
                .decoder
                .decode_front_into(record.codec, stored, raw_len, wanted, dictionary, raw);
        bench.forget_long();
        decoded.map_err(|e| e.at_offset(record.offset))
    })
}

/// Reads header and stored bytes of a record and verifies both.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn read_whole_record(source: &dyn ReadAt, record: &RecordRef) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_record_into(source, record, &mut bytes)?;
    Ok(bytes)
}

/// Reads and verifies a record, and keeps nothing of it.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn verify_record(source: &dyn ReadAt, record: &RecordRef) -> Result<()> {
    WORKBENCH.with_borrow_mut(|bench| {
        let verified = read_record_into(source, record, &mut bench.stored);
        bench.forget_long();
        verified
    })
}

/// The same into a buffer whose old bytes are overwritten.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn read_record_into(
    source: &dyn ReadAt,
    record: &RecordRef,
    bytes: &mut Vec<u8>,
) -> Result<()> {
    check_end(source, record)?;
    bytes.resize((record.stored_len as usize).saturating_add(HEADER_LEN), 0);
    source.read_exact_at(bytes, record.offset)?;
    let checked = check_record(record, bytes);
    // A copy of the storage may be damaged, and the original not.
    if checked.is_err() && source.read_again_at(bytes, record.offset)? {
        return check_record(record, bytes);
    }
    checked
}

fn check_record(record: &RecordRef, bytes: &[u8]) -> Result<()> {
    let (header, stored) = bytes.split_at_checked(HEADER_LEN).unwrap_or((&[], &[]));
    check_header(record, header)?;
    check_digest(record, Digest::of(stored))
}

/// Whether the stored bytes of a record are its raw bytes. If the lengths differ, the record is
/// damaged, and the decoder reports it.
fn is_plain(record: &RecordRef) -> bool {
    record.codec == Codec::None && record.stored_len == record.raw_len
}

/// Reads and verifies a record for which [`is_plain`] holds, directly into the caller's buffer.
fn read_plain_record(source: &dyn ReadAt, record: &RecordRef, raw: &mut Vec<u8>) -> Result<()> {
    check_end(source, record)?;
    let mut header = [0; HEADER_LEN];
    source.read_exact_at(&mut header, record.offset)?;
    let mut checked = check_header(record, &header);
    if checked.is_err() && source.read_again_at(&mut header, record.offset)? {
        checked = check_header(record, &header);
    }
    checked?;
    raw.resize(record.stored_len as usize, 0);
    let mut at = record.offset.saturating_add(HEADER_LEN as u64);
    let mut hasher = blake3::Hasher::new();
    // Each step is hashed while it is in the processor's cache.
    for step in raw.chunks_mut(PLAIN_STEP_LEN) {
        source.read_exact_at(step, at)?;
        hasher.update(step);
        at = at.saturating_add(step.len() as u64);
    }
    let checked = check_digest(record, Digest(hasher.finalize().into()));
    let start = record.offset.saturating_add(HEADER_LEN as u64);
    if checked.is_err() && source.read_again_at(raw, start)? {
        return check_digest(record, Digest::of(raw));
    }
    checked
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
    if header == record.header().as_bytes() {
        Ok(())
    } else {
        Err(Error::corrupt(
            record.record_type.name(),
            record.offset,
            "F-3.14",
            "record header differs from its reference",
        ))
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

/// Fills `buf` from `offset` on; bytes that the storage cannot read become zeros. Returns whether
/// all could be read.
pub fn read_or_zeros(source: &dyn ReadAt, buf: &mut [u8], offset: u64) -> bool {
    if source.read_exact_at(buf, offset).is_ok() {
        return true;
    }
    let mut at = offset;
    let mut is_whole = true;
    for piece in buf.chunks_mut(RETRY_LEN) {
        if source.read_exact_at(piece, at).is_err() {
            piece.fill(0);
            is_whole = false;
        }
        at = at.saturating_add(piece.len() as u64);
    }
    is_whole
}
