//! The rows of a volume as a snapshot has them.

use super::rows::{ino_of, kept_from, split_state_key, state_key};
use crate::engine::{Batch, BeforeCommit, Engine, ReadView, Table, VisitDamage, VisitRow};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::journal::RowSum;
use weald_format::snapshot::{KeptKey, parse_kept};
use weald_format::{Error, Ino, Result, SnapshotNo, VolumeNo};

/// Rows of the first page of a scan, and of the longest one.
const PAGE_ROWS: (usize, usize) = (16, 1024);
/// Kept rows that one page reads.
const KEPT_ROWS: usize = 4096;

/// The tables as a snapshot of a volume has them, without changes; rows of other volumes are not in
/// the tables of states. The other tables are those of the store.
///
/// Commits may go on. Each look reads the row of the volume first, and then whether one was kept: a
/// row that changes in between is kept by then.
#[derive(Debug)]
pub struct SnapshotView {
    engine: Arc<dyn Engine>,
    volume_no: VolumeNo,
    no: SnapshotNo,
    next_ino: Ino,
}

/// Rows of a table in order, without the number of the volume.
type Page = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

impl SnapshotView {
    /// The rows of the snapshot `no`, whose inodes are below `next_ino`.
    pub fn new(
        engine: Arc<dyn Engine>,
        (volume_no, no): (VolumeNo, SnapshotNo),
        next_ino: Ino,
    ) -> Self {
        Self {
            engine,
            volume_no,
            no,
            next_ino,
        }
    }

    /// The rows of the volume from `start` on, `count` at most, and whether these are the last.
    fn page(
        &self,
        table: Table,
        start: &[u8],
        count: usize,
        damaged: &mut VisitDamage<'_>,
    ) -> Result<(Page, bool)> {
        let (mut page, mut is_last) = (Page::new(), true);
        let first = state_key(self.volume_no, start);
        self.engine.scan_readable(
            table,
            &first,
            &mut |key, value| {
                let (of, ino, rest) = split_state_key(key)?;
                if of != self.volume_no || ino >= self.next_ino {
                    return Ok(ControlFlow::Break(()));
                }
                if page.len() >= count {
                    is_last = false;
                    return Ok(ControlFlow::Break(()));
                }
                page.insert(rest.to_vec(), Some(value.to_vec()));
                Ok(ControlFlow::Continue(()))
            },
            damaged,
        )?;
        Ok((page, is_last))
    }

    /// Puts kept rows into a page from `start` on. Returns the first key that it is not known to
    /// have, if there are more.
    fn put_kept(
        &self,
        table: Table,
        start: &[u8],
        (page, is_last): (&mut Page, bool),
        damaged: &mut VisitDamage<'_>,
    ) -> Result<Option<Vec<u8>>> {
        let end = match page.last_key_value() {
            Some((last, _)) if !is_last => Some(last.clone()),
            _ => None,
        };
        let first = KeptKey::prefix(self.volume_no, table.code(), start);
        let (mut seen, mut last, mut count, mut cut) = (None, None, 0, None);
        self.engine.scan_readable(
            Table::Kept,
            &first,
            &mut |key, value| {
                let key = KeptKey::parse(key)?;
                let is_of = (key.volume_no, key.table) == (self.volume_no, table.code());
                let is_behind = end.as_ref().is_some_and(|end| key.rest > *end);
                if !is_of || is_behind || ino_of(&key.rest)? >= self.next_ino {
                    return Ok(ControlFlow::Break(()));
                }
                if count >= KEPT_ROWS && last.as_ref() != Some(&key.rest) {
                    cut = Some(key.rest);
                    return Ok(ControlFlow::Break(()));
                }
                count += 1;
                // The first kept row for this snapshot or a newer one is what it has.
                if key.no >= self.no && seen.as_ref() != Some(&key.rest) {
                    let row = parse_kept(value)?.map(<[u8]>::to_vec);
                    page.insert(key.rest.clone(), row);
                    seen = Some(key.rest.clone());
                }
                last = Some(key.rest);
                Ok(ControlFlow::Continue(()))
            },
            damaged,
        )?;
        if let Some(cut) = &cut {
            page.split_off(cut);
        }
        Ok(match (cut, end) {
            (Some(cut), _) => Some(cut),
            // Behind the last row of the page, and behind what was kept of it: numbers of snapshots
            // begin with 0, and no name of an attribute has that byte.
            (None, Some(mut end)) => {
                end.push(1);
                Some(end)
            }
            (None, None) => None,
        })
    }
}

impl Engine for SnapshotView {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if !Table::OF_STATES.contains(&table) {
            return self.engine.get(table, key);
        }
        let (of, ino, rest) = split_state_key(key)?;
        if of != self.volume_no || ino >= self.next_ino {
            return Ok(None);
        }
        let newest = self.engine.get(table, key)?;
        let kept = kept_from(&*self.engine, (of, table, rest), self.no)?;
        Ok(kept.map_or(newest, |(_, row)| row))
    }

    fn scan_readable(
        &self,
        table: Table,
        start: &[u8],
        visit: &mut VisitRow<'_>,
        damaged: &mut VisitDamage<'_>,
    ) -> Result<()> {
        if !Table::OF_STATES.contains(&table) {
            return self.engine.scan_readable(table, start, visit, damaged);
        }
        let volume = self.volume_no.to_be_bytes();
        let mut at = match start.strip_prefix(&volume[..]) {
            Some(rest) => rest.to_vec(),
            None if start < &volume[..] => Vec::new(),
            None => return Ok(()),
        };
        let (mut count, longest) = PAGE_ROWS;
        loop {
            let (mut page, is_last) = self.page(table, &at, count, damaged)?;
            let next = self.put_kept(table, &at, (&mut page, is_last), damaged)?;
            for (rest, row) in page {
                if let Some(row) = row
                    && visit(&state_key(self.volume_no, &rest), &row)?.is_break()
                {
                    return Ok(());
                }
            }
            match next {
                Some(next) => at = next,
                None => return Ok(()),
            }
            count = (count * 4).min(longest);
        }
    }

    fn commit_after(&self, _: &Batch, _: &mut BeforeCommit<'_>) -> Result<()> {
        Err(Error::invalid("a snapshot does not change"))
    }

    fn row_sum(&self) -> Result<RowSum> {
        self.engine.row_sum()
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>> {
        Ok(Box::new(Self {
            engine: self.engine.clone(),
            ..*self
        }))
    }
}

/// A snapshot stays as it is, so that it needs no transaction of its own. It must exist as long.
impl ReadView for SnapshotView {
    fn scan(&self, table: Table, start: &[u8], visit: &mut VisitRow<'_>) -> Result<()> {
        Engine::scan(self, table, start, visit)
    }
}
