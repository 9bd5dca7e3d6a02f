//! What the home knows of a segment in a bucket: its key, its length, and the digest of each part.
//!
//! The text stands in the file twice, so that damage in one place costs nothing.

use crate::hex::{hex, unhex};
use crate::sealed_text::{sealed, unsealed};
use std::sync::Arc;
use weald_format::{Digest, SegmentNo};
use weald_remote::{CHUNK_LEN, VerifiedObject};

/// Most bytes of a receipt: that of a segment of 8 GiB.
pub const RECEIPT_LEN_MAX: u64 = 8 << 20;
/// First line.
const FIRST_LINE: &str = "weald receipt 1";
/// Directory of segments in the bucket.
const SEGMENTS: &str = "segments/";

/// A key that no other object gets: the number of the segment and 128 random bits.
pub fn key_of(number: SegmentNo, nonce: [u8; 16]) -> String {
    format!("{SEGMENTS}{number:016x}-{}", hex(&nonce))
}

/// The last part of a key, which names it in the directory of receipts.
pub fn key_name(key: &str) -> &str {
    key.strip_prefix(SEGMENTS).unwrap_or(key)
}

/// The key with this last part, and its segment.
pub fn parse_key_name(name: &str) -> Option<(String, SegmentNo)> {
    let (number, nonce) = name.split_once('-')?;
    let number = SegmentNo(u64::from_be_bytes(unhex(number)?));
    let key = key_of(number, unhex(nonce)?);
    (key_name(&key) == name).then_some((key, number))
}

/// The receipt of `object`.
pub fn encode(object: &VerifiedObject) -> String {
    let (key, len) = (key_name(&object.key), object.len);
    let mut text = format!("{FIRST_LINE}\nkey {key}\nlen {len}\nchunk {CHUNK_LEN}\n");
    for digest in &*object.digests {
        text.push_str(&hex(&digest.0));
        text.push('\n');
    }
    sealed(text).repeat(2)
}

/// The object that a receipt of segment `number` names; nothing if both texts are damaged.
pub fn parse(bytes: &[u8], number: SegmentNo) -> Option<VerifiedObject> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let found = [first, second].into_iter().find_map(parse_one);
    found.filter(|object| {
        let of = parse_key_name(key_name(&object.key));
        of.is_some_and(|(_, of)| of == number)
    })
}

fn parse_one(bytes: &[u8]) -> Option<VerifiedObject> {
    let mut lines = unsealed(bytes)?.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let (key, _) = parse_key_name(lines.next()?.strip_prefix("key ")?)?;
    let len: u64 = lines.next()?.strip_prefix("len ")?.parse().ok()?;
    let chunk: u64 = lines.next()?.strip_prefix("chunk ")?.parse().ok()?;
    let digests: Option<Vec<Digest>> = lines.map(|line| Some(Digest(unhex(line)?))).collect();
    let digests: Arc<[Digest]> = digests?.into();
    let is_whole = chunk == CHUNK_LEN && digests.len() as u64 == len.div_ceil(CHUNK_LEN);
    is_whole.then_some(VerifiedObject { key, len, digests })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch: a receipt that one damaged place makes useless, that is taken for another
    // segment's, or whose key leads elsewhere.
    #[test]
    fn a_receipt_survives_damage_and_names_its_own_segment() {
        let object = VerifiedObject {
            key: key_of(SegmentNo(7), [9; 16]),
            len: CHUNK_LEN + 1,
            digests: [Digest([1; 32]), Digest([2; 32])].into(),
        };
        let text = encode(&object).into_bytes();
        assert_eq!(parse(&text, SegmentNo(7)).as_ref(), Some(&object));
        assert_eq!(parse(&text, SegmentNo(8)), None);
        for at in 0..text.len() {
            let mut bytes = text.clone();
            let end = bytes.len().min(at + 16);
            bytes[at..end].iter_mut().for_each(|byte| *byte ^= 0x15);
            // Damage over both texts is noticed.
            let found = parse(&bytes, SegmentNo(7));
            assert!(found.is_none_or(|found| found == object), "byte {at}");
            bytes = text.clone();
            bytes[at] ^= 1;
            assert_eq!(parse(&bytes, SegmentNo(7)).as_ref(), Some(&object));
            assert_eq!(parse(&text[..at], SegmentNo(7)), None);
        }
        for name in ["", "-", "../x-00", "0000000000000007-xx", "7-00"] {
            assert_eq!(parse_key_name(name), None, "{name}");
        }
    }
}
