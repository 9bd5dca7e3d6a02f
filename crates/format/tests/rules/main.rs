//! For each rule that a parser alone can enforce: an input that breaks it, and the error that cites
//! it.

mod container;
mod directory;
mod pages;
mod sync_log;
mod values;

use weald_format::container::{Codec, RecordRef, RecordType};
use weald_format::{Digest, Result};

/// The rule that the error in `result` cites.
fn rule<T>(result: Result<T>) -> &'static str {
    match result {
        Ok(_) => "none",
        Err(error) => error.place().map_or("no place", |p| p.rule),
    }
}

fn reference() -> RecordRef {
    RecordRef {
        record_type: RecordType::Data,
        codec: Codec::Zstd,
        offset: 64,
        stored_len: 5,
        raw_len: 9,
        digest: Digest::of(b"x"),
    }
}

/// Writes the correct checksum over the last `len` bytes.
fn sum(bytes: &mut [u8], len: usize) {
    let (head, tail) = bytes.split_at_mut(bytes.len() - len);
    tail.copy_from_slice(&blake3::hash(head).as_bytes()[..len]);
}
