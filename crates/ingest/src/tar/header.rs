//! The header block: 512 bytes of text fields.

use super::number::{TAR_BLOCK_LEN, number};
use super::sparse::{self, Map};
use weald_format::Result as FormatResult;

/// Offset and length of a field.
type Field = (usize, usize);

const NAME: Field = (0, 100);
const MODE: Field = (100, 8);
const UID: Field = (108, 8);
const GID: Field = (116, 8);
const SIZE: Field = (124, 12);
const MTIME: Field = (136, 12);
const CHECKSUM: Field = (148, 8);
const TYPE: usize = 156;
const LINK: Field = (157, 100);
const MAGIC: Field = (257, 8);
const DEVICE_MAJOR: Field = (329, 8);
const DEVICE_MINOR: Field = (337, 8);
const PREFIX: Field = (345, 155);
/// GNU's fields of a sparse file: four runs, whether more follow, and the length of the file.
const SPARSE: Field = (386, 96);
const SPARSE_CONTINUES: usize = 482;
const SPARSE_LEN: Field = (483, 12);

type Result<T> = std::result::Result<T, String>;

/// A header whose checksum is right.
pub struct Header([u8; TAR_BLOCK_LEN]);

impl Header {
    /// Checks the checksum of `block`.
    pub fn parse(block: &[u8; TAR_BLOCK_LEN]) -> Result<Self> {
        let header = Self(*block);
        let (start, len) = CHECKSUM;
        let is_sum = |at: usize| (start..start + len).contains(&at);
        let bytes = || {
            (0..)
                .zip(block)
                .map(|(at, &b)| if is_sum(at) { b' ' } else { b })
        };
        let announced = header.number(CHECKSUM, "not a tar header: checksum")?;
        let sum: u64 = bytes().map(u64::from).sum();
        // Some old writers sum signed bytes.
        let signed: i64 = bytes().map(|b| i64::from(b as i8)).sum();
        if announced == sum || i64::try_from(announced) == Ok(signed) {
            Ok(header)
        } else {
            Err(format!(
                "not a tar header: its checksum is {announced}, its bytes make {sum}"
            ))
        }
    }

    fn field(&self, (start, len): Field) -> &[u8] {
        &self.0[start..start + len]
    }

    fn text(&self, field: Field) -> &[u8] {
        let bytes = self.field(field);
        let end = bytes.iter().position(|&b| b == 0);
        &bytes[..end.unwrap_or(bytes.len())]
    }

    fn number(&self, field: Field, name: &str) -> Result<u64> {
        number(self.field(field)).ok_or_else(|| {
            let found = self.field(field).escape_ascii();
            format!("{name}: expected a number, found '{found}'")
        })
    }

    /// The type letter.
    pub fn type_flag(&self) -> u8 {
        self.0[TYPE]
    }

    /// Name, with the prefix of ustar.
    pub fn path(&self) -> Vec<u8> {
        let (name, prefix) = (self.text(NAME), self.text(PREFIX));
        // GNU headers have other fields in the place of the prefix.
        if prefix.is_empty() || !self.field(MAGIC).starts_with(b"ustar\0") {
            name.to_vec()
        } else {
            [prefix, b"/", name].concat()
        }
    }

    /// Target of a link.
    pub fn link(&self) -> Vec<u8> {
        self.text(LINK).to_vec()
    }

    /// Low twelve bits of the mode; some writers put the kind above them.
    pub fn permissions(&self) -> Result<u16> {
        Ok((self.number(MODE, "mode")? & 0o7777) as u16)
    }

    /// Owner.
    pub fn uid(&self) -> Result<u64> {
        self.number(UID, "owner")
    }

    /// Group.
    pub fn gid(&self) -> Result<u64> {
        self.number(GID, "group")
    }

    /// Bytes of data.
    pub fn size(&self) -> Result<u64> {
        self.number(SIZE, "size")
    }

    /// Seconds since 1970.
    pub fn mtime(&self) -> Result<i64> {
        let bytes = self.field(MTIME);
        match bytes {
            // Negative, as two's complement.
            [0xff, rest @ ..] => {
                let low = rest.last_chunk::<8>().map(|b| i64::from_be_bytes(*b));
                let is_small = rest[..rest.len() - 8].iter().all(|&b| b == 0xff);
                low.filter(|&n| n < 0 && is_small)
                    .ok_or_else(|| "mtime: out of range".to_owned())
            }
            _ => i64::try_from(self.number(MTIME, "mtime")?)
                .map_err(|_| "mtime: out of range".to_owned()),
        }
    }

    /// Major and minor number.
    pub fn device(&self) -> Result<(u64, u64)> {
        let part = |field| self.number(field, "device number");
        Ok((part(DEVICE_MAJOR)?, part(DEVICE_MINOR)?))
    }

    /// Adds the runs of an old GNU sparse file to `map`; returns whether blocks with more follow.
    pub fn sparse(&self, map: &mut Map) -> FormatResult<bool> {
        sparse::read_runs(self.field(SPARSE), map)?;
        Ok(self.0[SPARSE_CONTINUES] != 0)
    }

    /// Length of an old GNU sparse file.
    pub fn sparse_len(&self) -> Result<u64> {
        self.number(SPARSE_LEN, "length")
    }
}
