//! Changes of rows as bodies of frames, and back.

use crate::engine::{Batch, Change, Sealer, Table};
use std::collections::BTreeMap;
use weald_format::journal::{FrameGroup, frame_groups};
use weald_format::row_group::{GROUP_ROWS_MAX, Rows};
use weald_format::{Error, Result};

/// Bytes of keys and values at which a group ends. A longer one is packed better, and decodes as a
/// whole.
const GROUP_LEN: usize = 256 << 10;
/// Bytes at which a body ends.
const BODY_LEN: usize = 1 << 20;

/// Collects rows in order of table, and packs them.
pub(crate) struct Packer<'a> {
    sealer: &'a Sealer,
    table: Option<Table>,
    puts: Rows,
    removals: Rows,
    body: Vec<u8>,
    /// Bodies that are full.
    bodies: Vec<Vec<u8>>,
}

impl<'a> Packer<'a> {
    pub fn new(sealer: &'a Sealer) -> Self {
        Self {
            sealer,
            table: None,
            puts: Rows::default(),
            removals: Rows::default(),
            body: Vec::new(),
            bodies: Vec::new(),
        }
    }

    /// What packs the rows.
    pub fn sealer(&self) -> &'a Sealer {
        self.sealer
    }

    /// Adds the change of a row, whose key is above that of the row before in the same table.
    pub fn push(&mut self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        if self.table != Some(table) {
            self.seal()?;
            self.table = Some(table);
        }
        // A long row is a group of its own, as in the tables, which have limits for a group.
        let len = key.len() + value.map_or(0, <[u8]>::len);
        if self.puts.byte_len() + len > GROUP_LEN {
            self.seal()?;
        }
        match value {
            Some(value) => self.puts.push(key, value)?,
            None => self.removals.push(key, &[])?,
        }
        let is_full = |rows: &Rows| rows.count() >= GROUP_ROWS_MAX || rows.byte_len() >= GROUP_LEN;
        if is_full(&self.puts) || is_full(&self.removals) {
            self.seal()?;
        }
        Ok(())
    }

    /// Packs the rows so far.
    fn seal(&mut self) -> Result<()> {
        let Some(table) = self.table else {
            return Ok(());
        };
        for (rows, is_removal) in [(&self.puts, false), (&self.removals, true)] {
            if rows.is_empty() {
                continue;
            }
            let stored = self.sealer.seal(table, &[], rows, 0..rows.count())?;
            FrameGroup {
                table: table.code(),
                is_removal,
                stored: &stored,
            }
            .put(&mut self.body);
        }
        (self.puts, self.removals) = Default::default();
        if self.body.len() >= BODY_LEN {
            self.bodies.push(std::mem::take(&mut self.body));
        }
        Ok(())
    }

    /// Takes the bodies that are full.
    pub fn take_full(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.bodies)
    }

    /// All bodies that were not taken: at least one, which may be empty.
    pub fn finish(mut self) -> Result<Vec<Vec<u8>>> {
        self.seal()?;
        if !self.body.is_empty() || self.bodies.is_empty() {
            self.bodies.push(self.body);
        }
        Ok(self.bodies)
    }
}

/// The bodies of a commit.
pub(super) fn pack(sealer: &Sealer, batch: &Batch) -> Result<Vec<Vec<u8>>> {
    let mut last = BTreeMap::new();
    for change in &batch.0 {
        last.insert(
            (change.table, change.key.as_slice()),
            change.value.as_deref(),
        );
    }
    let mut packer = Packer::new(sealer);
    for ((table, key), value) in last {
        packer.push(table, key, value)?;
    }
    packer.finish()
}

/// The changes in a body.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn unpack(sealer: &Sealer, body: &[u8]) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for group in frame_groups(body)? {
        let table = Table::from_code(group.table)
            .ok_or_else(|| Error::corrupt("journal", 0, "S-8.5", "a group of an unknown table"))?;
        let rows = sealer.open(table, &[], group.stored)?;
        changes.extend(rows.iter().map(|(key, value)| Change {
            table,
            key: key.to_vec(),
            value: if group.is_removal {
                None
            } else {
                Some(value.to_vec())
            },
        }));
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::row_group::RAW_LEN_MAX;

    // Would catch a limit of a group that the journal does not know: the longest row that the
    // tables can have, behind a group that is nearly full.
    #[test]
    fn the_longest_row_is_packed_behind_a_full_group() {
        let mut batch = Batch::default();
        let mut no = 0u64;
        let mut put = |len: usize| {
            batch.put(Table::Xattrs, &no.to_be_bytes(), vec![no as u8; len]);
            no += 1;
        };
        (0..GROUP_LEN / 1000 - 1).for_each(|_| put(990));
        put(RAW_LEN_MAX - 64);
        put(3);
        let sealer = Sealer::new().expect("a sealer");
        let bodies = pack(&sealer, &batch).expect("packed");
        let unpacked = bodies.iter().map(|body| unpack(&sealer, body));
        let unpacked: Vec<Change> = unpacked.flat_map(|body| body.expect("a body")).collect();
        assert!(unpacked == batch.0, "other rows");
    }
}
