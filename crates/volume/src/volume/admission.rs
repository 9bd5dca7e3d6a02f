//! Changes wait for memory and for space of the disk.

use super::Volume;
use crate::core::{Core, refused};
use crate::state::State;
use rustix::io::Errno;
use std::ops::Range;
use std::time::Duration;
use weald_vfs::{Ino, Nanoseconds, Outcome};

/// Least memory of a layer, bytes.
const LAYER_MIN: u64 = 64 << 10;

impl Volume {
    /// Bytes that a layer may take.
    pub(crate) fn layer_max(&self) -> u64 {
        (self.core.options.cache_len / 4).max(LAYER_MIN)
    }

    /// Memory of the changes that wait, and disk space that those of all volumes of the store take,
    /// bytes; EROFS if no change is allowed.
    fn waiting(&self) -> Outcome<(u64, u64)> {
        let (cost, space) = {
            let state = self.core.state.read();
            if state.failure.is_some() || self.core.options.is_read_only {
                return Err(Errno::ROFS.into());
            } else {
                (state.cost(), state.space())
            }
        };
        let others = self.core.shared.space_of_others(Some(&self.core.state));
        Ok((cost, space.saturating_add(others)))
    }

    /// Waits until there is memory and space for `len` more bytes.
    pub(super) fn admit(&self, len: u64) -> Outcome<()> {
        let shared = &self.core.shared;
        let mut is_fresh = false;
        loop {
            let (cost, dirty) = self.waiting()?;
            if cost > self.layer_max() {
                self.make_room()?;
                continue;
            }
            if shared.free_len() > dirty.saturating_add(len) {
                return Ok(());
            }
            if is_fresh {
                return Err(Errno::NOSPC.into());
            }
            self.commit().map_err(|e| refused(Errno::IO, e))?;
            shared.commit_others(&self.core.state);
            self.end_yielding().map_err(|e| refused(Errno::IO, e))?;
            self.return_space().map_err(|e| refused(Errno::IO, e))?;
            shared.compact().map_err(|e| refused(Errno::IO, e))?;
            is_fresh = true;
        }
    }

    /// Waits until there is memory for a change that needs no space on the disk: a removal must
    /// work on a full one.
    pub(super) fn admit_memory(&self) -> Outcome<()> {
        loop {
            let (cost, dirty) = self.waiting()?;
            // The commits of all layers must fit into the reserve. A layer of one change always
            // does.
            let shared = &self.core.shared;
            let most = shared.free_len() + shared.reserve_len() / 2;
            let is_fitting = dirty == 0 || dirty <= most;
            if cost <= self.layer_max() && is_fitting {
                return Ok(());
            }
            if !is_fitting {
                self.make_others_commit();
            }
            self.make_room()?;
        }
    }

    /// Makes room that changes of other volumes take.
    fn make_others_commit(&self) {
        let shared = &self.core.shared;
        if self.core.options.background {
            shared.wake_others(&self.core.state)
        } else {
            shared.commit_others(&self.core.state)
        }
    }

    /// Removes the parts of a long range behind the first one, each in a commit of its own.
    pub(super) fn trim(
        &self,
        ino: Ino,
        range: Range<u64>,
        now: Nanoseconds,
        remove: impl Fn(&Core, &mut State, Range<u64>) -> Outcome<()>,
    ) -> Outcome<()> {
        for part in self.core.trim_parts(ino, &range)? {
            self.admit_memory()?;
            let _ahead = self.core.prefetch_content(ino, &part);
            self.change(now, |core, state| remove(core, state, part))?;
            self.commit().map_err(|e| refused(Errno::IO, e))?;
        }
        Ok(())
    }

    /// Commits a full layer, or waits for the thread that does.
    fn make_room(&self) -> Outcome<()> {
        if !self.core.options.background {
            return self.commit().map_err(|e| refused(Errno::IO, e));
        }
        let mut wake = self.signal.wake.lock();
        *wake = true;
        self.signal.waker.notify_all();
        self.signal
            .progress
            .wait_for(&mut wake, Duration::from_millis(20));
        Ok(())
    }
}
