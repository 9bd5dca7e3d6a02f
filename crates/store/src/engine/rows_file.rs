//! Rows of some tables in one file, which another process reads as the tables of a store.
//!
//! The server of a mounted volume makes it for a seal: only one process can open the engine's own
//! file. Both processes have one version of Weald, so the layout is no format. The rows lie in
//! order of table and key, each as [`HEAD_LEN`] bytes, key and value. An end mark and the number of
//! rows follow, so that a cut is noticed.

use super::{
    Batch, BeforeCommit, Engine, ReadView, SameRows, Table, VisitDamage, VisitRow, first_if,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use weald_format::journal::RowSum;
use weald_format::{Error, Result};
use weald_io::ReadAt;

/// Length of the head of a row: number of the table, length of the key, length of the value.
const HEAD_LEN: usize = 1 + 2 + 4;
/// Number of no table, in front of the number of rows.
const END: u8 = u8::MAX;
/// Bytes of rows between two entries of the index in memory.
const INDEX_STEP: u64 = 4 << 10;
/// Bytes that are read at once while the index is made.
const READ_LEN: u64 = 1 << 20;

fn number_of(table: Table) -> u8 {
    let at = Table::ALL.iter().position(|other| *other == table);
    at.map_or(END, |at| at as u8)
}

fn damaged(what: &str) -> Error {
    Error::invalid(format!("rows of a store: {what}"))
}

/// Callback that receives the next bytes of the file.
pub type PutBytes<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Writes rows.
pub struct RowsWriter<'a> {
    put: &'a mut PutBytes<'a>,
    row_count: u64,
}

impl<'a> RowsWriter<'a> {
    /// Begins the file.
    pub fn new(put: &'a mut PutBytes<'a>) -> Self {
        Self { put, row_count: 0 }
    }

    /// Appends a row behind all before it in the order of table and key.
    ///
    /// # Errors
    /// `Limit` for a row of 4 GiB; those of the callback.
    pub fn row(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<()> {
        let too_long = |_| Error::limit("a row that no table can have");
        let key_len = u16::try_from(key.len()).map_err(too_long)?;
        let value_len = u32::try_from(value.len()).map_err(too_long)?;
        let mut bytes = Vec::with_capacity(HEAD_LEN + key.len() + value.len());
        bytes.push(number_of(table));
        bytes.extend(key_len.to_le_bytes());
        bytes.extend(value_len.to_le_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        self.row_count += 1;
        (self.put)(&bytes)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// Those of the callback.
    pub fn finish(self) -> Result<()> {
        let mut bytes = vec![END];
        bytes.extend(self.row_count.to_le_bytes());
        (self.put)(&bytes)
    }
}

/// A row in a buffer.
struct Row<'a> {
    table: u8,
    key: &'a [u8],
    value: &'a [u8],
    len: usize,
}

/// The row at the beginning of `bytes`; `None` if they end before it does.
fn first_row(bytes: &[u8]) -> Option<Row<'_>> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_LEN>()?;
    let [table, k0, k1, v0, v1, v2, v3] = *head;
    let key_len = usize::from(u16::from_le_bytes([k0, k1]));
    let value_len = u32::from_le_bytes([v0, v1, v2, v3]) as usize;
    let (key, rest) = rest.split_at_checked(key_len)?;
    let value = rest.get(..value_len)?;
    Some(Row {
        table,
        key,
        value,
        len: HEAD_LEN + key_len + value_len,
    })
}

/// The rows of one table.
#[derive(Debug, Default)]
struct TableRows {
    /// Keys of some rows, and where these begin.
    index: Vec<(Vec<u8>, u64)>,
    end: u64,
}

/// Tables that do not change, in a file of rows.
pub struct RowsFile {
    source: Box<dyn ReadAt>,
    tables: BTreeMap<u8, TableRows>,
}

impl std::fmt::Debug for RowsFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowsFile").finish_non_exhaustive()
    }
}

impl RowsFile {
    /// Opens a complete file.
    ///
    /// # Errors
    /// `Invalid` if it is cut or its rows are out of order; `Io`.
    /// # Cost
    /// Reads the file once. The index takes about 2% of its length in memory.
    pub fn open(source: Box<dyn ReadAt>) -> Result<Self> {
        let mut rows = Self {
            source,
            tables: BTreeMap::new(),
        };
        rows.make_index()?;
        Ok(rows)
    }

    fn make_index(&mut self) -> Result<()> {
        let (mut at, mut row_count, mut buffer_len) = (0, 0u64, READ_LEN);
        let mut last: Option<(u8, Vec<u8>)> = None;
        loop {
            let bytes = self.bytes(at..self.source.len().min(at + buffer_len))?;
            let mut used = 0;
            while let Some(row) = bytes.get(used..).and_then(first_row) {
                if usize::from(row.table) >= Table::ALL.len() {
                    break;
                }
                let is_next =
                    |(table, key): &(u8, Vec<u8>)| (*table, key.as_slice()) < (row.table, row.key);
                if !last.as_ref().is_none_or(is_next) {
                    return Err(damaged("not in order"));
                }
                let start = at + used as u64;
                let table_rows = self.tables.entry(row.table).or_default();
                let is_due = |(_, indexed): &(_, u64)| start - indexed >= INDEX_STEP;
                if table_rows.index.last().is_none_or(is_due) {
                    table_rows.index.push((row.key.to_vec(), start));
                }
                used += row.len;
                table_rows.end = at + used as u64;
                row_count += 1;
                last = Some((row.table, row.key.to_vec()));
            }
            let mut end = vec![END];
            end.extend(row_count.to_le_bytes());
            let rest = bytes.get(used..).unwrap_or_default();
            if rest.starts_with(&end) && at + (used + end.len()) as u64 == self.source.len() {
                return Ok(());
            }
            if at + bytes.len() as u64 == self.source.len() {
                return Err(damaged("cut off"));
            }
            // A row that is longer than the buffer needs a longer one.
            buffer_len = if used == 0 { buffer_len * 2 } else { READ_LEN };
            at += used as u64;
        }
    }

    fn bytes(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.source.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes)
    }
}

impl Engine for RowsFile {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        first_if(key, |visit| self.scan(table, key, visit))
    }

    fn scan_readable(
        &self,
        table: Table,
        start: &[u8],
        visit: &mut VisitRow<'_>,
        _: &mut VisitDamage<'_>,
    ) -> Result<()> {
        let Some(table_rows) = self.tables.get(&number_of(table)) else {
            return Ok(());
        };
        let behind = table_rows
            .index
            .partition_point(|(key, _)| key.as_slice() <= start);
        let parts = table_rows.index.get(behind.saturating_sub(1)..);
        let mut parts = parts.unwrap_or_default().iter().peekable();
        while let Some((_, from)) = parts.next() {
            let end = parts.peek().map_or(table_rows.end, |(_, next)| *next);
            let bytes = self.bytes(*from..end)?;
            let mut rest = bytes.as_slice();
            while let Some(row) = first_row(rest) {
                if row.key >= start && visit(row.key, row.value)?.is_break() {
                    return Ok(());
                }
                rest = rest.get(row.len..).unwrap_or_default();
            }
        }
        Ok(())
    }

    fn commit_after(&self, _: &Batch, _: &mut BeforeCommit<'_>) -> Result<()> {
        Err(Error::invalid("a copy of tables does not change"))
    }

    fn row_sum(&self) -> Result<RowSum> {
        Err(Error::invalid(
            "a copy of some tables has no sum of all rows",
        ))
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>> {
        Ok(Box::new(SameRows(self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::ControlFlow;
    use weald_format::ErrorKind;

    type Rows = Vec<(Table, Vec<u8>, Vec<u8>)>;

    /// Rows of two tables; some are longer than the buffer and than a step of the index.
    fn rows() -> Rows {
        let row = |table, number: u32| {
            let len = match number % 500 {
                499 => 3 << 20,
                rest => rest as usize,
            };
            (
                table,
                number.to_be_bytes().to_vec(),
                vec![number as u8; len],
            )
        };
        let inodes = (0..1200).map(|number| row(Table::Inodes, number * 2));
        let names = (5..40).map(|number| row(Table::Names, number));
        inodes.chain(names).collect()
    }

    fn file_of(rows: &Rows) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut put = |more: &[u8]| {
            bytes.extend_from_slice(more);
            Ok(())
        };
        let mut writer = RowsWriter::new(&mut put);
        for (table, key, value) in rows {
            writer.row(*table, key, value).expect("a row");
        }
        writer.finish().expect("the end");
        bytes
    }

    fn scanned(file: &RowsFile, table: Table, start: &[u8]) -> Rows {
        let mut found = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| {
            found.push((table, key.to_vec(), value.to_vec()));
            Ok(ControlFlow::Continue(()))
        };
        file.scan(table, start, &mut visit).expect("scan");
        found
    }

    // Would catch a row that is lost at the border of a buffer or of a step, and a scan that begins
    // or ends at the wrong row.
    #[test]
    fn rows_are_found_by_key_and_in_order() {
        let rows = rows();
        let file = RowsFile::open(Box::new(file_of(&rows))).expect("a file");
        for (table, key, value) in &rows {
            assert_eq!(file.get(*table, key).expect("get").as_ref(), Some(value));
        }
        let odd = 7u32.to_be_bytes();
        assert_eq!(file.get(Table::Inodes, &odd).expect("get"), None);
        for (table, start) in [
            (Table::Inodes, 0u32),
            (Table::Inodes, 7),
            (Table::Inodes, 1998),
            (Table::Inodes, 9999),
            (Table::Names, 0),
            (Table::Blocks, 0),
        ] {
            let start = start.to_be_bytes();
            let start = start.as_slice();
            let of = |row: &&(Table, Vec<u8>, Vec<u8>)| row.0 == table && row.1.as_slice() >= start;
            let wanted: Rows = rows.iter().filter(of).cloned().collect();
            assert!(
                scanned(&file, table, start) == wanted,
                "{table:?} {start:?}"
            );
        }
        let empty = RowsFile::open(Box::new(file_of(&Rows::new()))).expect("a file");
        assert_eq!(empty.get(Table::Names, b"").expect("get"), None);
    }

    // Would catch a server that ended in the middle, whose rows count as the whole tree.
    #[test]
    fn a_file_that_is_cut_or_out_of_order_is_refused() {
        let row = |number: u8| (Table::Names, vec![number], vec![number; 9]);
        let whole = file_of(&vec![row(1), row(2), row(3)]);
        for len in 0..whole.len() {
            let cut = RowsFile::open(Box::new(whole[..len].to_vec())).expect_err("cut");
            assert_eq!(cut.kind(), ErrorKind::Invalid, "{len} bytes");
        }
        let long = [whole.as_slice(), b"x"].concat();
        RowsFile::open(Box::new(long)).expect_err("bytes behind the end");
        let twice = file_of(&vec![row(2), row(2)]);
        RowsFile::open(Box::new(twice)).expect_err("one key twice");
        let other = file_of(&vec![row(1), (Table::Inodes, vec![1], vec![1])]);
        RowsFile::open(Box::new(other)).expect_err("tables out of order");
    }
}
