//! Makes garbage of a volume go when nothing waits: blocks of which files use a part are written
//! again, a few windows in a commit of its own.
//!
//! A step takes the locks of a commit. It is done only while no change waits, so that it delays
//! none; and no layer then refers to blocks, of which a step may drop the last reference.

use super::Volume;
use crate::OpenOptions;
use crate::garbage::STEP_LEN;
use crate::layer::COMMIT_SPACE;
use std::ops::ControlFlow;
use weald_format::{Error, Result};
use weald_store::Store;

/// Result of [`settle_all`].
#[derive(Debug, Default)]
pub struct Settled {
    /// Number of commits that wrote blocks again.
    pub commit_count: u64,
    /// Volumes that could not be opened or written, with the reason.
    pub failures: Vec<(String, Error)>,
}

impl Volume {
    /// Does the next step. Returns whether there may be more to do now.
    ///
    /// # Errors
    /// `Io`, `Full`: the volume is read-only then.
    pub(crate) fn settle_some(&self) -> Result<bool> {
        if self.core.options.is_read_only {
            return Ok(false);
        }
        let shared = &self.core.shared;
        let mut committer = self.committer.lock();
        let mut writing = shared.writing.lock();
        let is_quiet = self.core.state.read().is_quiet();
        if !is_quiet || !committer.drops.is_empty() || writing.holds.has_readers() {
            return Ok(false);
        }
        shared.refresh_free()?;
        let others = shared.space_of_others(Some(&self.core.state));
        let wanted = others.saturating_add(2 * STEP_LEN.max(self.core.tables.chunk_len().into()));
        if shared.free_len() < wanted.saturating_add(COMMIT_SPACE) {
            return Ok(false);
        }
        let found = committer.find_garbage(&self.core);
        let (has_more, has_windows) = found.unwrap_or_else(|error| {
            // Reads and checks report the damage.
            log::warn!("blocks that are used in part stay: {error}");
            (false, false)
        });
        if has_windows {
            self.commit_locked(&mut committer, &mut writing, true)?;
        }
        Ok(has_more)
    }

    /// Writes all blocks again of which files use a part. `check` is called between steps; if it
    /// returns `Break`, the rest stays. Returns the number of commits.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn settle(&self, check: &mut dyn FnMut() -> ControlFlow<()>) -> Result<u64> {
        self.commit()?;
        let first = self.committer.lock().row.commit.0;
        self.committer.lock().settling.make_due();
        while check().is_continue() && self.settle_some()? {}
        Ok(self.committer.lock().row.commit.0 - first)
    }
}

/// Settles all volumes of a store that no process has open.
///
/// # Errors
/// `Io`: no list of volumes. Errors of one volume do not stop the others.
pub fn settle_all(
    store: &Store,
    writer_name: &str,
    check: &mut dyn FnMut() -> ControlFlow<()>,
) -> Result<Settled> {
    let mut done = Settled::default();
    for name in store.volume_names()? {
        if check().is_break() {
            break;
        }
        let options = OpenOptions {
            background: false,
            writer_name: writer_name.to_owned(),
            ..OpenOptions::default()
        };
        let settled = Volume::open(store, &name, options).and_then(|volume| {
            // Removals that an unmount has cut off.
            while check().is_continue() && volume.snapshot_step()? {}
            let count = volume.settle(check)?;
            volume.close()?;
            Ok(count)
        });
        match settled {
            Ok(count) => done.commit_count += count,
            Err(error) => done.failures.push((name, error)),
        }
    }
    Ok(done)
}
