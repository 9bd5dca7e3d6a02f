//! Changes wait for memory and for space of the disk.

use super::Volume;
use crate::core::{Core, State, refused};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;
use weald_vfs::{Ino, Nanoseconds, Outcome};

/// Least memory of a layer, bytes.
const LAYER_MIN: u64 = 64 << 10;

impl Volume {
    /// Bytes that a layer may take.
    pub(crate) fn layer_max(&self) -> u64 {
        (self.core.options.cache_len / 4).max(LAYER_MIN)
    }

    /// Memory and disk space of the changes that wait, bytes; EROFS if no change is allowed.
    fn waiting(&self) -> Outcome<(u64, u64)> {
        let state = self.core.state.read();
        match state.failure.is_some() || self.core.options.is_read_only {
            true => Err(Errno::ROFS.into()),
            false => Ok((state.cost(), state.space())),
        }
    }

    /// Waits until there is memory and space for `len` more bytes.
    pub(super) fn admit(&self, len: u64) -> Outcome<()> {
        let mut is_fresh = false;
        loop {
            let (cost, dirty) = self.waiting()?;
            if cost > self.layer_max() {
                self.make_room()?;
                continue;
            }
            if self.core.free.load(Ordering::Relaxed) > dirty.saturating_add(len) {
                return Ok(());
            }
            if is_fresh {
                return Err(Errno::NOSPC.into());
            }
            self.commit().map_err(|e| refused(Errno::IO, e))?;
            self.end_all_holds().map_err(|e| refused(Errno::IO, e))?;
            self.return_space().map_err(|e| refused(Errno::IO, e))?;
            self.compact().map_err(|e| refused(Errno::IO, e))?;
            is_fresh = true;
        }
    }

    /// Waits until there is memory for a change that needs no space on the disk: a removal must
    /// work on a full one.
    pub(super) fn admit_memory(&self) -> Outcome<()> {
        loop {
            let (cost, dirty) = self.waiting()?;
            // The commit of a layer must fit into the reserve. A layer of one change always does.
            let free = self.core.free.load(Ordering::Relaxed);
            let reserve = self.core.reserve.load(Ordering::Relaxed);
            if cost <= self.layer_max() && (dirty == 0 || dirty <= free + reserve / 2) {
                return Ok(());
            }
            self.make_room()?;
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
        for part in self.core.trim_parts(ino.0, &range)? {
            self.admit_memory()?;
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
