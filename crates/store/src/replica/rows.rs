//! Rows in files of data.

use super::place::{Place, data_path, read_data};
use crate::engine::{Change, Sealer, Table};
use crate::journal::{Packer, unpack};
use weald_format::cursor::{Cursor, put_varint};
use weald_format::journal::FRAME_BODY_LEN_MAX;
use weald_format::replica::{DataFile, DataKind, Item};
use weald_format::{Digest, Result};

/// Bytes at which a file of rows ends.
const ROWS_LEN: usize = 16 << 20;

/// Puts a file of data.
pub(super) fn put_data(place: &dyn Place, kind: DataKind, bytes: &[u8]) -> Result<DataFile> {
    let file = DataFile {
        kind,
        digest: Digest::of(bytes),
        file_len: bytes.len() as u64,
    };
    place.put(&data_path(&file.digest), bytes)?;
    Ok(file)
}

/// Puts rows, which come in order of table and key.
pub(super) struct RowsSender<'a> {
    place: &'a dyn Place,
    packer: Packer<'a>,
    bytes: Vec<u8>,
    files: Vec<DataFile>,
}

impl<'a> RowsSender<'a> {
    pub fn new(place: &'a dyn Place, sealer: &'a Sealer) -> Self {
        Self {
            place,
            packer: Packer::new(sealer),
            bytes: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Adds a row that changed, or all of which `value` is.
    pub fn push(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.packer.push(table, key, value)?;
        let full = self.packer.take_full();
        self.add(full)
    }

    fn add(&mut self, bodies: Vec<Vec<u8>>) -> Result<()> {
        for body in bodies {
            put_varint(&mut self.bytes, body.len() as u64);
            self.bytes.extend(body);
            if self.bytes.len() >= ROWS_LEN {
                self.put()?;
            }
        }
        Ok(())
    }

    fn put(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.bytes);
        self.files
            .push(put_data(self.place, DataKind::Rows, &bytes)?);
        Ok(())
    }

    /// Puts the rest. Returns all files.
    pub fn finish(mut self) -> Result<Vec<DataFile>> {
        let sealer = self.packer.sealer();
        let packer = std::mem::replace(&mut self.packer, Packer::new(sealer));
        let bodies = packer.finish()?;
        self.add(bodies)?;
        if !self.bytes.is_empty() {
            self.put()?;
        }
        Ok(self.files)
    }
}

/// Visits the changes of an item in order.
///
/// # Errors
/// `Corrupt`, `NotFound`, `Io`, those of `visit`.
pub(super) fn each_change(
    place: &dyn Place,
    sealer: &Sealer,
    item: &Item,
    visit: &mut dyn FnMut(Vec<Change>) -> Result<()>,
) -> Result<()> {
    for file in item.list.files.iter().filter(|f| f.kind == DataKind::Rows) {
        let bytes = read_data(place, file)?;
        let mut cursor = Cursor::new(&bytes, "replica");
        while cursor.remaining() > 0 {
            let len = cursor.count(FRAME_BODY_LEN_MAX as usize, "length of rows")?;
            visit(unpack(sealer, cursor.bytes(len)?)?)?;
        }
    }
    Ok(())
}
