//! Interface of the readers of streams: members in order, with their data.

use crate::member::Member;
use std::ops::Range;
use weald_format::Result;

/// Receives the path of a member that is left out, and the reason in words.
pub type Tell<'a> = dyn FnMut(&[u8], String) + 'a;

/// Length and data runs of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the file.
    pub len: u64,
    /// Data runs, in order, with holes between them; `None` for a file without holes.
    pub runs: Option<Vec<Range<u64>>>,
}

impl Layout {
    /// Bytes of data.
    pub fn data_len(&self) -> u64 {
        match &self.runs {
            Some(runs) => runs.iter().map(|run| run.end - run.start).sum(),
            None => self.len,
        }
    }
}

/// A stream of members.
pub trait Members {
    /// Reads the next member into `member`; false at the end.
    ///
    /// # Errors
    /// `Io`; `Invalid`, `Limit`, `Unsupported` for a stream that breaks its format.
    fn next(&mut self, member: &mut Member, tell: &mut Tell<'_>) -> Result<bool>;

    /// Whether members can have contents.
    fn has_contents(&self) -> bool;

    /// Layout of the member, if it is a regular file.
    fn layout(&self) -> Option<&Layout>;

    /// Fills `out` with the next bytes of data. [`Members::next`] skips unread data.
    ///
    /// # Errors
    /// As [`Members::next`].
    fn read_data(&mut self, out: &mut [u8]) -> Result<()>;
}
