//! A new volume that starts as a snapshot.
//!
//! It has rows of its own from the beginning, and shares all blocks. So it needs nothing of the
//! volume that it came from: either can be removed first.

use super::keep::add_pieces;
use super::manage::Snapshot;
use super::rows::{split_state_key, state_key};
use crate::engine::{Batch, Engine, Table};
use crate::faults::Bug;
use crate::writer::StoreWriter;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use weald_format::volume::{VolumeRow, inode_key};
use weald_format::{BlockId, Digest, Ino, Result, VolumeCommitNo, VolumeNo};

impl StoreWriter {
    /// Makes the volume `name`, which starts as `snapshot`. `now` is the time in nanoseconds since
    /// 1970. After an error, and after a crash, there is no volume.
    ///
    /// # Errors
    /// `Busy` if an image or a volume has this name; `Invalid` for a name that none can have; `Io`,
    /// `Full`, `Corrupt`.
    ///
    /// # Cost
    /// Copies the rows of the snapshot, and counts a reference for each piece of a file.
    pub fn clone_snapshot(&mut self, snapshot: &Snapshot, name: &str, now: i128) -> Result<()> {
        let row = VolumeRow {
            created: now,
            commit: VolumeCommitNo::NONE,
            chain: Digest::default(),
            has_sync_log: false,
            ..snapshot.volume.clone()
        };
        let (hidden, row) = self.create_hidden_volume(name, row, &|_| Batch::default())?;
        let copied = self.copy_state(snapshot, row.volume_no);
        copied
            .and_then(|()| self.publish_volume(&hidden, name))
            .inspect_err(|_| {
                // The error above says more; the next writer completes the removal.
                let _ = self.remove_hidden_volume(&hidden, row.volume_no);
            })
    }

    fn copy_state(&mut self, snapshot: &Snapshot, to: VolumeNo) -> Result<()> {
        let row_count = self.options().steps.row_count;
        let view = snapshot.view(self.engine());
        for table in Table::OF_STATES {
            let mut from = inode_key(snapshot.volume.volume_no, Ino::NONE);
            loop {
                let (mut batch, mut next) = (Batch::default(), None);
                let mut counts: BTreeMap<BlockId, i64> = BTreeMap::new();
                let is_uncounted = self.faults.has(Bug::CloneNotCounted);
                view.scan(table, &from, &mut |key, value| {
                    if batch.0.len() >= row_count {
                        next = Some(key.to_vec());
                        return Ok(ControlFlow::Break(()));
                    }
                    if table == Table::Extents && !is_uncounted {
                        add_pieces(Some(value), 1, &mut counts)?;
                    }
                    let (_, _, rest) = split_state_key(key)?;
                    batch.put(table, &state_key(to, rest), value.to_vec());
                    Ok(ControlFlow::Continue(()))
                })?;
                self.commit_counts(&counts, batch, &mut |_| {})?;
                match next {
                    Some(next) => from = next,
                    None => break,
                }
            }
        }
        Ok(())
    }
}
