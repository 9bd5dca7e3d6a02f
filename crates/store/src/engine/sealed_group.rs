//! Groups of rows as values of redb: compressed, with a checksum.
//!
//! A stored group names its codec and its length before compression. It ends with a CRC-32C of the
//! table, the key of the group and all bytes before.

use super::Table;
use parking_lot::Mutex;
use std::ops::Range;
use weald_codec::{CodecSpec, Decoder, Encoder};
use weald_format::container::Codec;
use weald_format::cursor::{Cursor, put_varint};
use weald_format::row_group::{GROUP_LEN_MAX, RAW_LEN_MAX, Rows};
use weald_format::{Error, Result};

/// Bytes of the checksum of a row or a group.
pub(super) const CHECKSUM_LEN: usize = 4;
/// Level of Zstandard. Level 3 makes groups of names 4% smaller and the others no smaller.
const ZSTD_LEVEL: i32 = 1;

/// Encodes and decodes groups. Threads decode at the same time.
pub(crate) struct Sealer {
    encoder: Mutex<Encoder>,
    decoders: Mutex<Vec<Decoder>>,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer")
    }
}

fn bad(rule: &'static str, what: &'static str) -> Error {
    Error::corrupt("row group", 0, rule, what)
}

impl Sealer {
    /// A sealer that has one encoder, and decoders as threads need them.
    ///
    /// # Errors
    /// `Invalid`: the encoder does not take its level.
    pub fn new() -> Result<Self> {
        Ok(Self {
            encoder: Mutex::new(Encoder::new(
                CodecSpec::Zstd(ZSTD_LEVEL),
                GROUP_LEN_MAX as u64,
            )?),
            decoders: Mutex::default(),
        })
    }

    /// The value for the rows in `range`, whose group has the key `key`.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn seal(
        &self,
        table: Table,
        key: &[u8],
        rows: &Rows,
        range: Range<usize>,
    ) -> Result<Vec<u8>> {
        let raw = rows.encode(range, table.shape());
        let encoded = self.encoder.lock().encode(&raw)?;
        let mut out = Vec::with_capacity(encoded.stored.len() + 16);
        out.push(encoded.codec as u8);
        put_varint(&mut out, raw.len() as u64);
        out.extend_from_slice(&encoded.stored);
        let sum = checksum(table, key, &out);
        out.extend_from_slice(&sum);
        Ok(out)
    }

    /// The rows of the group `stored`.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn open(&self, table: Table, key: &[u8], stored: &[u8]) -> Result<Rows> {
        let body = match stored.split_last_chunk::<CHECKSUM_LEN>() {
            Some((body, sum)) if *sum == checksum(table, key, body) => body,
            _ => return Err(bad("S-6.4", "a group of rows differs from its checksum")),
        };
        let mut cursor = Cursor::new(body, "row group");
        let codec = Codec::from_code(cursor.byte()?);
        let codec = codec.filter(|codec| matches!(codec, Codec::None | Codec::Zstd));
        let codec = codec.ok_or_else(|| bad("S-6.1", "the codec of a group is unknown"))?;
        let raw_len = cursor.count(RAW_LEN_MAX, "length of a group")?;
        let stored = cursor.bytes(cursor.remaining())?;
        let mut decoder = self.decoders.lock().pop().unwrap_or_default();
        let raw = decoder.decode(codec, stored, raw_len, None);
        self.decoders.lock().push(decoder);
        let rows = Rows::parse(&raw?)?;
        match rows.get(0) {
            Some((first, _)) if first >= key => Ok(rows),
            _ => Err(bad("S-6.3", "a group has a key below its own")),
        }
    }
}

/// CRC-32C of a value, with its place in it.
pub(super) fn checksum(table: Table, key: &[u8], value: &[u8]) -> [u8; CHECKSUM_LEN] {
    let sum = crc32c::crc32c(table.name().as_bytes());
    let sum = crc32c::crc32c_append(sum, key);
    crc32c::crc32c_append(sum, value).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::ErrorKind;

    /// No bit of a group changes unnoticed, and no damage behind a right checksum panics.
    #[test]
    fn flipped_bits_are_noticed_with_and_without_the_checksum() {
        let mut rows = Rows::default();
        for n in 0..60u64 {
            rows.push(&n.to_be_bytes(), format!("value {}", n % 7).as_bytes())
                .expect("a row");
        }
        let sealer = Sealer::new().expect("a sealer");
        let (table, key) = (Table::Names, [0]);
        let good = sealer.seal(table, &key, &rows, 0..60).expect("a group");
        assert_eq!(sealer.open(table, &key, &good).expect("the group"), rows);
        assert!(sealer.open(Table::Inodes, &key, &good).is_err());
        assert!(sealer.open(table, &[1], &good).is_err());
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = sealer.open(table, &key, &bytes).expect_err("damage");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit}");
            let body_len = bytes.len() - CHECKSUM_LEN;
            let sum = checksum(table, &key, &bytes[..body_len]);
            bytes[body_len..].copy_from_slice(&sum);
            if let Ok(rows) = sealer.open(table, &key, &bytes) {
                assert!(rows.count() <= 60 && rows.byte_len() < 2000);
            }
        }
    }
}
