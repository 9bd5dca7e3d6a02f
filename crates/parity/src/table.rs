//! The table of digests: for each column, the digests of its sectors and of its recovery sectors.
//! Its blocks have digests themselves, and a code of their own, so that damage to the table does
//! not cost the file.

use crate::batches::stopped;
use crate::code::ColumnDecoder;
use crate::layout::{Code, ENTRIES_PER_BLOCK, ENTRY_LEN, Layout, PAYLOAD_LEN};
use crate::{SECTOR, Watch, sectors};
use std::collections::BTreeMap;
use std::fs::File;
use weald_format::Result;

/// Blocks that one read takes.
const READ_BLOCKS: u64 = 256;

/// The digest of a sector.
pub type Entry = [u8; ENTRY_LEN];

/// The digest of `sector`: the first bytes of its BLAKE3-256 digest.
pub fn entry(sector: &[u8]) -> Entry {
    let mut entry = [0; ENTRY_LEN];
    entry.copy_from_slice(&blake3::hash(sector).as_bytes()[..ENTRY_LEN]);
    entry
}

/// The blocks of the column `column` with the digests `entries`, ready to be written.
pub fn blocks_of(layout: &Layout, column: u64, entries: &[Entry]) -> Vec<u8> {
    let mut blocks = Vec::with_capacity(layout.blocks_per_column as usize * SECTOR);
    let header = layout.header_digest();
    let first = column * layout.blocks_per_column;
    for (number, chunk) in (first..).zip(entries.chunks(ENTRIES_PER_BLOCK)) {
        let mut payload = [0; PAYLOAD_LEN];
        payload[..chunk.len() * ENTRY_LEN].copy_from_slice(chunk.as_flattened());
        blocks.extend_from_slice(&seal(&payload, number, &header));
    }
    blocks
}

/// A block of the table, or a recovery block of it, with its number and digest.
pub fn seal(payload: &[u8], number: u64, header: &[u8; 32]) -> [u8; SECTOR] {
    let mut block = [0; SECTOR];
    block[..PAYLOAD_LEN].copy_from_slice(payload);
    block[PAYLOAD_LEN..PAYLOAD_LEN + 8].copy_from_slice(&number.to_le_bytes());
    let digest = digest_of(&block, header);
    block[SECTOR - 32..].copy_from_slice(digest.as_bytes());
    block
}

fn is_whole(block: &[u8], number: u64, header: &[u8; 32]) -> bool {
    block[PAYLOAD_LEN..PAYLOAD_LEN + 8] == number.to_le_bytes()
        && digest_of(block, header).as_bytes()[..] == block[SECTOR - 32..]
}

/// The digest of a block: of its bytes before it, then those of the digest of the header.
fn digest_of(block: &[u8], header: &[u8; 32]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&block[..SECTOR - 32]).update(header);
    hasher.finalize()
}

/// The table of a parity file that may be damaged.
pub struct Table<'a> {
    parity: &'a File,
    layout: &'a Layout,
    header: [u8; 32],
    /// Payloads of the damaged blocks that the code of the table gave back.
    restored: BTreeMap<u64, Vec<u8>>,
    /// Damaged blocks of the table, recovery blocks included.
    pub damaged_count: u64,
}

impl<'a> Table<'a> {
    /// Reads the whole table and restores what is damaged and can be restored, in memory.
    ///
    /// # Errors
    /// `Io`; `Invalid` ("interrupted").
    pub fn open(parity: &'a File, layout: &'a Layout, watch: &Watch<'_>) -> Result<Self> {
        let mut table = Self {
            parity,
            layout,
            header: layout.header_digest(),
            restored: BTreeMap::new(),
            damaged_count: 0,
        };
        let code = layout.table_code;
        let mut damaged = BTreeMap::new();
        let mut number = 0;
        let end = layout.table_len() + code.recovery_count();
        while number < end {
            let border = if number < layout.table_len() {
                layout.table_len()
            } else {
                end
            };
            let count = READ_BLOCKS.min(border - number);
            table.each_block(number, count, |number, block| {
                if block.is_none() {
                    let column = if number < layout.table_len() {
                        number % code.columns
                    } else {
                        (number - layout.table_len()) % code.columns
                    };
                    damaged.entry(column).or_insert_with(Vec::new).push(number);
                }
            })?;
            if watch(count * SECTOR as u64).is_break() {
                return Err(stopped());
            }
            number += count;
        }
        for (column, numbers) in damaged {
            table.damaged_count += numbers.len() as u64;
            if numbers[0] < layout.table_len() && numbers.len() <= code.recovery_rows {
                table.restore(&code, column)?;
            }
        }
        Ok(table)
    }

    /// Gives the payloads of `count` blocks from `number` on to `take`, `None` for damaged ones.
    /// All of them are of the table, or all recovery blocks.
    fn each_block(
        &self,
        number: u64,
        count: u64,
        mut take: impl FnMut(u64, Option<&[u8]>),
    ) -> Result<()> {
        let mut bytes = vec![0; count as usize * SECTOR];
        let mut is_bad = vec![false; count as usize];
        let offset = self.layout.table_block(number) * SECTOR as u64;
        sectors::read(self.parity, offset, u64::MAX, &mut bytes, &mut is_bad)?;
        let blocks = bytes.chunks(SECTOR).zip(is_bad);
        for (number, (block, is_bad)) in (number..).zip(blocks) {
            let is_whole = !is_bad && is_whole(block, number, &self.header);
            take(number, is_whole.then_some(&block[..PAYLOAD_LEN]));
        }
        Ok(())
    }

    /// The payload of a block that is whole; a block behind the last one has zeros.
    fn whole_block(&self, number: u64, is_recovery: bool) -> Result<Option<Vec<u8>>> {
        if !is_recovery && number >= self.layout.table_len() {
            return Ok(Some(vec![0; PAYLOAD_LEN]));
        }
        let mut found = None;
        self.each_block(number, 1, |_, block| found = block.map(<[u8]>::to_vec))?;
        Ok(found)
    }

    /// Restores the damaged blocks of a column of the table, which are few enough.
    fn restore(&mut self, code: &Code, column: u64) -> Result<()> {
        let mut blocks = Vec::new();
        for row in 0..code.rows {
            let block = self.whole_block(code.block(row, column), false)?;
            blocks.extend(block.map(|block| (row, block)));
        }
        let mut recovery = Vec::new();
        for row in 0..code.recovery_rows {
            let number = self.layout.table_len() + code.block(row, column);
            let block = self.whole_block(number, true)?;
            recovery.extend(block.map(|block| (row, block)));
        }
        let mut decoder = ColumnDecoder::new(code, PAYLOAD_LEN)?;
        decoder.decode(
            blocks.iter().map(|(row, block)| (*row, block.as_slice())),
            recovery.iter().map(|(row, block)| (*row, block.as_slice())),
            |row, block| {
                let number = code.block(row, column);
                self.restored.insert(number, block.to_vec());
                Ok(())
            },
        )
    }

    /// The digests of the sectors of `column`, then of its recovery sectors; `None` where the table
    /// is lost.
    ///
    /// # Errors
    /// `Io`.
    pub fn entries(&self, column: u64) -> Result<Vec<Option<Entry>>> {
        let count = self.layout.code.rows + self.layout.code.recovery_rows;
        let per_column = self.layout.blocks_per_column;
        let mut entries = Vec::with_capacity(count);
        self.each_block(column * per_column, per_column, |number, block| {
            let restored = || self.restored.get(&number).map(Vec::as_slice);
            match block.or_else(restored) {
                Some(payload) => entries.extend(payload.as_chunks().0.iter().copied().map(Some)),
                None => entries.extend([None; ENTRIES_PER_BLOCK]),
            }
        })?;
        entries.truncate(count);
        Ok(entries)
    }
}
