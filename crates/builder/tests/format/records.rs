//! The records of an image, decoded.

use std::sync::Arc;
use weald_codec::{Decoder, DictionaryBytes};
use weald_format::Digest;
use weald_format::container::{
    FOOTER_LEN, Footer, HEADER_LEN, RecordRef, RecordType, SUPERBLOCK_LEN,
};

/// Header and raw bytes of all records, front to back.
///
/// # Panics
/// If a record is damaged, or the image does not end with its footer.
pub fn records(image: &[u8]) -> Vec<(RecordRef, Vec<u8>)> {
    let mut out = Vec::new();
    let mut at = SUPERBLOCK_LEN;
    let mut dictionary = None;
    while at < image.len() - FOOTER_LEN {
        let record = RecordRef::parse_header(&image[at..at + HEADER_LEN], at as u64).unwrap();
        let stored = &image[at + HEADER_LEN..record.end() as usize];
        assert_eq!(record.digest, Digest::of(stored));
        let raw = Decoder::default()
            .decode(
                record.codec,
                stored,
                record.raw_len as usize,
                dictionary.as_ref(),
            )
            .unwrap();
        if record.record_type == RecordType::Dictionary {
            dictionary = Some(Arc::new(DictionaryBytes::new(&raw).unwrap()));
        }
        at = record.end() as usize;
        out.push((record, raw));
    }
    assert_eq!(
        at,
        image.len() - FOOTER_LEN,
        "the records do not end at the footer"
    );
    Footer::parse(&image[at..], at as u64).unwrap();
    out
}
