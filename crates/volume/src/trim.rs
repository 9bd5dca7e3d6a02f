//! Long ranges are removed in parts, from the end, so that no commit holds the rows of a whole
//! large file.

use crate::core::Core;
use std::ops::{ControlFlow, Range};
use weald_format::volume::WindowPlace;
use weald_format::{Ino, Result, WindowNo};

/// Committed windows that one part has at most. Their rows and counts take about 20 MB of memory
/// in a commit.
pub const TRIM_WINDOWS_MAX: usize = 1 << 16;

impl Core {
    /// Parts of `range` of the file `ino` that are removed before its first part, from the last to
    /// the second. Empty if one commit can remove all. The first part begins at `range.start`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    ///
    /// # Cost
    /// Reads the rows of all windows in `range`, if it has more than [`TRIM_WINDOWS_MAX`].
    pub fn trim_parts(&self, ino: Ino, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
        let chunk_len = self.tables.chunk_len();
        let len = range.end.saturating_sub(range.start);
        let is_short = len / u64::from(chunk_len) < TRIM_WINDOWS_MAX as u64;
        if is_short {
            return Ok(Vec::new());
        }
        let window = WindowNo::of(range.start, chunk_len);
        let last = WindowNo::of(range.end - 1, chunk_len);
        let first = WindowPlace { ino, window };
        let mut starts = Vec::new();
        let mut count = 0;
        self.tables.each_window(first, &mut |window, _| {
            if window > last {
                return ControlFlow::Break(());
            }
            if count == TRIM_WINDOWS_MAX {
                starts.push(window.start(chunk_len));
                count = 0;
            }
            count += 1;
            ControlFlow::Continue(())
        })?;
        let mut parts = Vec::with_capacity(starts.len());
        let mut end = range.end;
        for start in starts.into_iter().rev() {
            parts.push(start..end);
            end = start;
        }
        Ok(parts)
    }
}
