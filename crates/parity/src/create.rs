//! Makes a parity file.

use crate::batches::Batches;
use crate::code::ColumnEncoder;
use crate::layout::{Layout, PAYLOAD_LEN};
use crate::table;
use crate::{SECTOR, Watch, sectors};
use parking_lot::Mutex;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use weald_format::{Error, ErrorKind, Result};
use weald_io::OutputFile;

/// Writes the parity of `file` to `output`, which must be new and able to be read back. The same
/// bytes with the same `layout` always give the same parity.
///
/// # Errors
/// `Busy` if the file changes meanwhile; `Io`, also for a sector of the file that cannot be read;
/// `Full`; `Invalid` if the file has not the length of `layout`, and ("interrupted") if `watch`
/// ends the work.
/// # Cost
/// Reads the file once, in pieces that lie apart. Up to 512 MiB of memory.
pub fn create(
    file: &File,
    layout: &Layout,
    output: &mut OutputFile,
    thread_count: usize,
    watch: &Watch<'_>,
) -> Result<()> {
    let before = metadata(file)?;
    if before.len() != layout.file_len {
        return Err(changed());
    }
    output.extend(layout.parity_len())?;
    let header = layout.header();
    for block in layout.headers() {
        output.rewrite_at(&header[..], block * SECTOR as u64)?;
    }
    encode_sectors(file, layout, output, thread_count, watch)?;
    encode_table(layout, output)?;
    let after = metadata(file)?;
    let times = |of: &Metadata| (of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
    if after.len() != before.len() || times(&after) != times(&before) {
        return Err(changed());
    }
    Ok(())
}

fn metadata(file: &File) -> Result<Metadata> {
    file.metadata().map_err(|e| Error::io("the file", e))
}

fn changed() -> Error {
    Error::new(ErrorKind::Busy, "the file changed while it was read")
}

/// What a thread keeps from batch to batch.
struct Work {
    encoder: ColumnEncoder,
    /// Sectors of the batch, row by row.
    sectors: Vec<u8>,
    /// Recovery sectors of the batch, row by row.
    recovery: Vec<u8>,
}

/// Writes the recovery sectors and the table.
fn encode_sectors(
    file: &File,
    layout: &Layout,
    output: &mut OutputFile,
    thread_count: usize,
    watch: &Watch<'_>,
) -> Result<()> {
    let code = layout.code;
    let batches = Batches::new(&code, thread_count);
    let row_len = batches.width() * SECTOR;
    let output = Mutex::new(output);
    let start = || {
        Ok(Work {
            encoder: ColumnEncoder::new(&code, SECTOR)?,
            sectors: vec![0; code.rows * row_len],
            recovery: vec![0; code.recovery_rows * row_len],
        })
    };
    batches.run(watch, start, |work, columns| {
        let width = (columns.end - columns.start) as usize;
        let row_len = width * SECTOR;
        let mut is_bad = vec![false; width];
        let rows = work.sectors.chunks_mut(row_len).take(code.rows);
        for (row, piece) in rows.enumerate() {
            let offset = code.block(row, columns.start) * SECTOR as u64;
            sectors::read(file, offset, layout.file_len, piece, &mut is_bad)?;
            if let Some(index) = is_bad.iter().position(|is_bad| *is_bad) {
                let offset = offset + (index * SECTOR) as u64;
                let what = format!("the {SECTOR} bytes at {offset} cannot be read");
                return Err(Error::new(ErrorKind::Io, what));
            }
        }
        let mut blocks = Vec::new();
        for (index, column) in columns.clone().enumerate() {
            let at = index * SECTOR..(index + 1) * SECTOR;
            let rows = work.sectors.chunks(row_len).take(code.rows);
            let rows = rows.map(|row| &row[at.clone()]);
            let mut entries: Vec<_> = rows.clone().map(table::entry).collect();
            work.encoder.encode(rows, |row, block| {
                entries.push(table::entry(block));
                work.recovery[row * row_len..][at.clone()].copy_from_slice(block);
            })?;
            blocks.extend(table::blocks_of(layout, column, &entries));
        }
        let mut output = output.lock();
        let rows = work.recovery.chunks(row_len).take(code.recovery_rows);
        for (row, piece) in rows.enumerate() {
            let block = layout.recovery_block(code.block(row, columns.start));
            output.rewrite_at(piece, block * SECTOR as u64)?;
        }
        let first = layout.table_block(columns.start * layout.blocks_per_column);
        output.rewrite_at(&blocks, first * SECTOR as u64)?;
        Ok((code.rows * row_len) as u64)
    })
}

/// Writes the recovery blocks of the table.
fn encode_table(layout: &Layout, output: &mut OutputFile) -> Result<()> {
    let code = layout.table_code;
    let header = layout.header_digest();
    let mut encoder = ColumnEncoder::new(&code, PAYLOAD_LEN)?;
    let mut payloads = vec![0; code.rows * PAYLOAD_LEN];
    for column in 0..code.columns {
        for (row, payload) in payloads.chunks_mut(PAYLOAD_LEN).enumerate() {
            let number = code.block(row, column);
            if number < layout.table_len() {
                output.read_exact_at(payload, layout.table_block(number) * SECTOR as u64)?;
            } else {
                payload.fill(0);
            }
        }
        let mut blocks = Vec::with_capacity(code.recovery_rows);
        encoder.encode(payloads.chunks(PAYLOAD_LEN), |row, payload| {
            let number = layout.table_len() + code.block(row, column);
            blocks.push((number, table::seal(payload, number, &header)));
        })?;
        for (number, block) in blocks {
            output.rewrite_at(&block, layout.table_block(number) * SECTOR as u64)?;
        }
    }
    Ok(())
}
