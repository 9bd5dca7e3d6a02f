//! What every reader of a stream is: it goes from member to member, and gives the data of those
//! that have some.

use crate::member::Member;
use std::ops::Range;
use weald_format::Result;

/// Is told what is wrong with a member that is left out: its path, and what in words.
pub type Tell<'a> = dyn FnMut(&[u8], String) + 'a;

/// Where the data of a file lies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the file.
    pub len: u64,
    /// Data, in order and not touching each other; `None` where there are no holes.
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
    /// Goes to the next member, which it puts into `member`; false at the end.
    ///
    /// # Errors
    /// `Io`; `Invalid`, `Limit`, `Unsupported` for a stream that is not what it should be.
    fn next(&mut self, member: &mut Member, tell: &mut Tell<'_>) -> Result<bool>;

    /// Whether members can have contents.
    fn has_contents(&self) -> bool;

    /// Where the data of the member lies, if it is a regular file.
    fn layout(&self) -> Option<&Layout>;

    /// Fills `out` with the next bytes of data; what nobody asks for is passed over.
    ///
    /// # Errors
    /// As [`Members::next`].
    fn read_data(&mut self, out: &mut [u8]) -> Result<()>;
}
