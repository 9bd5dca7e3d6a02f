//! What is wrong with a record, a row or a change of a log, in words.

use crate::disk::Object;
use crate::engine::{Table, number_of};
use crate::layout;
use crate::segment::read_record;
use std::io::ErrorKind::PermissionDenied;
use weald_format::container::{HEADER_LEN, RecordRef};
use weald_format::store::BlockRow;
use weald_format::sync_log::{DeltaItem, parse_body};
use weald_format::volume::VolumeRow;
use weald_format::{BlockId, Error, ErrorKind, Result, VolumeNo};

/// Why the record of `block` cannot be read in the first `end` bytes of a segment; `None` if it
/// can. Without `reads_data`, only its header is read.
pub fn why_damaged(
    file: &dyn Object,
    end: u64,
    block: &BlockRow,
    reads_data: bool,
) -> Option<String> {
    let at = block.location.offset;
    if at.saturating_add(block.len()) > end {
        return Some("lies behind the end of the segment".to_owned());
    }
    if reads_data {
        return match read_record(file, block.location, &block.record) {
            Err(error) => Some(why_unread(&error)),
            Ok(_) => None,
        };
    }
    let mut header = [0; HEADER_LEN];
    if let Err(error) = file.read_at(&mut header, at) {
        return Some(why_unread(&error));
    }
    match RecordRef::parse_header(&header, 0) {
        Err(_) => Some("no record begins here".to_owned()),
        Ok(header) if header != block.record => {
            Some("another record lies here than the table says".to_owned())
        }
        Ok(_) => None,
    }
}

/// Why a segment cannot be opened: it is missing, or the disk fails.
///
/// # Errors
/// The error itself, if the caller may not open the file: that is no damage.
pub fn why_unopened(error: Error) -> Result<String> {
    let source = error.io_source();
    let is_refused = source.is_some_and(|source| source.kind() == PermissionDenied);
    match error.kind() {
        // The reason why it is missing follows, without the path of the file.
        ErrorKind::Lost => Ok(match error.what().find("the segment is missing") {
            Some(at) => error.what().get(at..).unwrap_or_default().to_owned(),
            None => error.what().to_owned(),
        }),
        ErrorKind::Corrupt => Ok("something else than a file is here".to_owned()),
        _ if is_refused || !error.is_unreadable() => Err(error),
        _ => Ok(why_unread(&error)),
    }
}

/// Why bytes cannot be read, without the path of the file.
fn why_unread(error: &Error) -> String {
    match error.io_source() {
        Some(source) => format!("cannot be read: {source}"),
        None => error.what().to_owned(),
    }
}

pub fn unreadable_table(table: Table, error: &Error) -> String {
    format!("{}: table {}: {error}", layout::META, table.name())
}

/// What is wrong with a row of the table of images or of that of volumes.
pub fn unreadable_row(table: Table, error: &Error) -> String {
    let (meta, table) = (layout::META, table.name());
    format!(
        "{meta}: its row in table {table} cannot be read: {}",
        error.what()
    )
}

/// Says which rows of a table cannot be read: those from `key` on, to the next group.
pub fn damaged_rows(
    table: Table,
    key: &[u8],
    error: &Error,
    volumes: &[(String, VolumeRow)],
) -> String {
    let place = match (table, number_of(key)) {
        (Table::Blocks, Some(id)) => format!("from block {id} on"),
        (Table::Segments, Some(number)) => format!("of segment {number}"),
        (Table::Counters, _) => format!("{:?}", String::from_utf8_lossy(key)),
        _ => match key.split_first_chunk() {
            Some((number, rest)) => {
                let number = VolumeNo(u32::from_be_bytes(*number));
                let named = volumes.iter().find(|(_, row)| row.volume_no == number);
                let name = named.map_or_else(|| number.to_string(), |(name, _)| name.clone());
                let ino = rest.first_chunk().map_or(0, |ino| u64::from_be_bytes(*ino));
                format!("of volume {name} from inode {ino} on")
            }
            None => "at its beginning".to_owned(),
        },
    };
    format!(
        "{}: table {}: rows {place} cannot be read: {}",
        layout::META,
        table.name(),
        error.what()
    )
}

/// Finds the decoded length of a block; `None` if there is no such block.
pub type RawLen<'a> = dyn Fn(BlockId) -> Result<Option<u64>> + 'a;

/// Checks the changes of a record of the sync log: rows, ranges, and the blocks that it names.
pub fn check_body(body: &[u8], volume_no: VolumeNo, raw_len: &RawLen<'_>) -> Result<()> {
    let bad = |what: String| Error::corrupt("sync log", 0, "V-6.6", what);
    parse_body(body, &mut |item| match item {
        DeltaItem::Row(table, key, value) => table.check_row(volume_no, key, value),
        DeltaItem::Block {
            ino,
            len,
            block,
            offset,
            ..
        } => match raw_len(block)? {
            None => Err(bad(format!("inode {ino}: block {block} has no row"))),
            Some(raw_len) if raw_len < len.saturating_add(offset.into()) => Err(bad(format!(
                "inode {ino}: a range ends behind block {block}"
            ))),
            Some(_) => Ok(()),
        },
        DeltaItem::Bytes { .. } | DeltaItem::Hole { .. } | DeltaItem::Drop(_) => Ok(()),
    })
    .map(drop)
}
