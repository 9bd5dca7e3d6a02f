//! Where everything lies in a parity file, which follows from the length of the file and the number
//! of recovery sectors of a column.

use weald_format::{Error, ErrorKind, Result};

/// Bytes of a sector of the file and of a block of the parity file.
pub const SECTOR: usize = 4096;

/// Bytes of a block of the table before its digest and its number.
pub const PAYLOAD_LEN: usize = SECTOR - 64;

/// Bytes of a digest in the table: a wrong sector passes once in 2^128 times.
pub const ENTRY_LEN: usize = 16;

/// Digests in a block.
pub const ENTRIES_PER_BLOCK: usize = PAYLOAD_LEN / ENTRY_LEN;

/// Most rows of a code. Many make chance even: of 4096 sectors of which 3% are damaged at random,
/// more than 5% are damaged once in 10^13 times. Few keep memory small.
const MAX_ROWS: u64 = 4096;

const MAGIC: [u8; 8] = *b"\x89WPARITY";
const VERSION: u32 = 1;

/// Bytes of a header before its digest.
const HEADER_LEN: usize = SECTOR - 32;

/// A part of a file, in ten-thousandths: at least one, at most all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    /// `None` for a number that is no such part.
    pub fn new(ten_thousandths: u32) -> Option<Self> {
        (1..=10_000)
            .contains(&ten_thousandths)
            .then_some(Self(ten_thousandths))
    }
}

impl std::str::FromStr for Share {
    type Err = String;

    /// A percentage, with or without the sign: `5%`, `2.5`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = text.strip_suffix('%').unwrap_or(text);
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |text: &str| {
            !text.is_empty() && text.len() <= 3 && text.bytes().all(|b| b.is_ascii_digit())
        };
        let parsed = if is_number(whole) && is_number(part) && part.len() <= 2 {
            let part = format!("{part:0<2}");
            let digits = format!("{whole}{part}");
            digits.parse().ok().and_then(Self::new)
        } else {
            None
        };
        parsed.ok_or_else(|| "expected a percentage from 0.01% to 100%, such as 5%".to_owned())
    }
}

/// A Reed-Solomon code over blocks that are numbered from 0: block `row * columns + column` lies in
/// that row and column, and blocks behind the last one are zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// Blocks of a column.
    pub rows: usize,
    /// Recovery blocks of a column.
    pub recovery_rows: usize,
    pub columns: u64,
}

impl Code {
    /// Rows and columns for `block_count` blocks.
    fn shape(block_count: u64) -> (u64, u64) {
        let columns = block_count.div_ceil(MAX_ROWS).max(1);
        (block_count.div_ceil(columns).max(1), columns)
    }

    fn new(block_count: u64, recovery_rows: usize) -> Self {
        let (rows, columns) = Self::shape(block_count);
        Self {
            rows: rows as usize,
            recovery_rows,
            columns,
        }
    }

    /// Number of the block in `row` and `column`; behind the last block, one that is zeros. The
    /// same for recovery blocks, which have numbers of their own.
    pub fn block(&self, row: usize, column: u64) -> u64 {
        row as u64 * self.columns + column
    }

    pub fn recovery_count(&self) -> u64 {
        self.recovery_rows as u64 * self.columns
    }
}

/// The parts of a parity file: header, recovery sectors, header, table of digests, header, recovery
/// blocks of the table, header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the file.
    pub file_len: u64,
    /// The code over the sectors of the file.
    pub code: Code,
    /// Blocks of the table for each column.
    pub blocks_per_column: u64,
    /// The code over the blocks of the table.
    pub table_code: Code,
}

impl Layout {
    /// The layout for a file of `file_len` bytes, `recovery_rows` recovery sectors to a column.
    ///
    /// # Errors
    /// `Invalid` for an empty file, more recovery sectors than sectors, none, or a length that no
    /// file has.
    pub fn new(file_len: u64, recovery_rows: usize) -> Result<Self> {
        if file_len == 0 {
            return Err(Error::invalid("is empty: there is nothing to protect"));
        }
        // Within this bound no number below overflows.
        if file_len > 1 << 60 {
            return Err(Error::invalid("is longer than 2^60 bytes"));
        }
        let code = Code::new(file_len.div_ceil(SECTOR as u64), recovery_rows);
        if recovery_rows == 0 || recovery_rows > code.rows {
            return Err(Error::invalid(format!(
                "{recovery_rows} recovery sectors for {} sectors",
                code.rows
            )));
        }
        let entries = (code.rows + recovery_rows) as u64;
        let blocks_per_column = entries.div_ceil(ENTRIES_PER_BLOCK as u64);
        let table_len = blocks_per_column * code.columns;
        let (table_rows, _) = Code::shape(table_len);
        Ok(Self {
            file_len,
            code,
            blocks_per_column,
            table_code: Code::new(table_len, table_rows as usize / 4 + 1),
        })
    }

    /// The layout that repairs any damage in one piece of `share` of the file.
    ///
    /// # Errors
    /// As [`Layout::new`].
    pub fn for_share(file_len: u64, share: Share) -> Result<Self> {
        let damage = (u128::from(file_len) * u128::from(share.0)).div_ceil(10_000) as u64;
        // A piece that begins inside a sector ends inside another.
        let sectors = damage.div_ceil(SECTOR as u64) + 1;
        let (rows, columns) = Code::shape(file_len.div_ceil(SECTOR as u64));
        let recovery_rows = sectors.div_ceil(columns).min(rows);
        Self::new(file_len, recovery_rows as usize)
    }

    /// Bytes of the longest damage in one piece, wherever it begins, that is repaired for certain
    /// if nothing else is damaged.
    pub fn repairable_len(&self) -> u64 {
        if self.code.recovery_rows == self.code.rows {
            return self.file_len;
        }
        let sectors = self.code.recovery_count();
        ((sectors - 1) * SECTOR as u64 + 1).min(self.file_len)
    }

    /// Number of blocks of the table of digests.
    pub fn table_len(&self) -> u64 {
        self.blocks_per_column * self.code.columns
    }

    /// Block of the parity file with recovery sector `index`.
    pub fn recovery_block(&self, index: u64) -> u64 {
        1 + index
    }

    /// Block of the parity file with block `index` of the table; recovery blocks of the table are
    /// counted on from its last block.
    pub fn table_block(&self, index: u64) -> u64 {
        let gap = if index < self.table_len() { 0 } else { 1 };
        2 + self.code.recovery_count() + index + gap
    }

    /// Blocks of the parity file that are headers.
    pub fn headers(&self) -> [u64; 4] {
        let before_table = 1 + self.code.recovery_count();
        let behind_table = before_table + 1 + self.table_len();
        [0, before_table, behind_table, self.block_count() - 1]
    }

    /// Blocks of the parity file.
    pub fn block_count(&self) -> u64 {
        let table = self.table_len() + self.table_code.recovery_count();
        4 + self.code.recovery_count() + table
    }

    /// Bytes of the parity file.
    pub fn parity_len(&self) -> u64 {
        self.block_count() * SECTOR as u64
    }

    /// The header, which is the same at each of its places.
    pub fn header(&self) -> Box<[u8; SECTOR]> {
        let mut block = Box::new([0; SECTOR]);
        block[..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12..16].copy_from_slice(&(SECTOR as u32).to_le_bytes());
        block[16..24].copy_from_slice(&self.file_len.to_le_bytes());
        block[24..28].copy_from_slice(&(self.code.recovery_rows as u32).to_le_bytes());
        let digest = blake3::hash(&block[..HEADER_LEN]);
        block[HEADER_LEN..].copy_from_slice(digest.as_bytes());
        block
    }

    /// The digest in the header, which the blocks of the table are bound to.
    pub fn header_digest(&self) -> [u8; 32] {
        let mut digest = [0; 32];
        digest.copy_from_slice(&self.header()[HEADER_LEN..]);
        digest
    }

    /// Reads a header; `None` if `block` is none, or a damaged one.
    ///
    /// # Errors
    /// `Unsupported` for the header of a newer version; `Corrupt` if it names an impossible layout.
    pub fn parse(block: &[u8; SECTOR]) -> Result<Option<Self>> {
        if block[..8] != MAGIC
            || blake3::hash(&block[..HEADER_LEN]).as_bytes()[..] != block[HEADER_LEN..]
        {
            return Ok(None);
        }
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&block[at..at + 4]);
            u32::from_le_bytes(bytes)
        };
        if word(8) != VERSION {
            return Err(Error::newer_version("the parity file", word(8), VERSION));
        }
        let file_len = u64::from(word(16)) | u64::from(word(20)) << 32;
        let layout = Self::new(file_len, word(24) as usize);
        let layout = layout.ok().filter(|layout| *layout.header() == *block);
        match layout {
            Some(layout) => Ok(Some(layout)),
            None => Err(Error::new(
                ErrorKind::Corrupt,
                "the header of the parity file names an impossible layout",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Would catch: parts that overlap, and a promise that the code does not keep.
        #[test]
        fn parts_follow_each_other(file_len in 1_u64..1 << 40, share in 1_u32..=10_000) {
            let layout = Layout::for_share(file_len, Share(share)).unwrap();
            let code = layout.code;
            prop_assert!(code.rows as u64 <= MAX_ROWS);
            prop_assert!(code.rows as u64 * code.columns * SECTOR as u64 >= file_len);
            let wanted = (u128::from(file_len) * u128::from(share)).div_ceil(10_000) as u64;
            prop_assert!(layout.repairable_len() >= wanted);
            let [first, second, third, last] = layout.headers();
            prop_assert_eq!((first, layout.recovery_block(0)), (0, 1));
            let end = layout.recovery_block(code.recovery_count() - 1);
            prop_assert_eq!(second, end + 1);
            prop_assert_eq!(layout.table_block(0), second + 1);
            prop_assert_eq!(layout.table_block(layout.table_len() - 1), third - 1);
            prop_assert_eq!(layout.table_block(layout.table_len()), third + 1);
            let end = layout.table_len() + layout.table_code.recovery_count() - 1;
            prop_assert_eq!(layout.table_block(end) + 1, last);
            prop_assert_eq!(Layout::parse(&layout.header()).unwrap(), Some(layout));
        }
    }

    #[test]
    fn impossible_layouts_are_refused() {
        assert!(Layout::for_share(0, Share(500)).is_err());
        assert!(Layout::new(u64::MAX, 1).is_err());
        assert!(Layout::new(4096, 2).is_err());
    }

    #[test]
    fn percentages_are_parsed() {
        for (text, share) in [
            ("5%", 500),
            ("5", 500),
            ("2.5%", 250),
            ("0.01", 1),
            ("100%", 10_000),
        ] {
            assert_eq!(text.parse(), Ok(Share(share)), "{text}");
        }
        for text in [
            "", "%", "0", "0.001", "101", "100.01", "-5", "5.", ".5", "1e1", "5%%",
        ] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}
