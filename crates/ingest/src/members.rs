//! Interface of the readers of streams: members in order, with their data.

use crate::member::Member;
use std::ops::Range;
use weald_format::{Error, Result};

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

/// Data that an image of another file system may hold, in bytes, or in multiples of its length if
/// that is more. Many files can name the same blocks, so that a small image could fill any disk. A
/// chunk of 4 KiB of EROFS takes 4 bytes of an index, a packed index of compressed data takes 2:
/// honest images stay far below.
pub const IMAGE_DATA_LEN_MAX: u64 = 1 << 30;
/// See [`IMAGE_DATA_LEN_MAX`].
pub const DATA_RATIO_MAX: u64 = 4096;

/// Bytes of data that the rest of an image may have.
#[derive(Debug)]
pub struct DataBudget {
    remaining_len: u64,
    len_max: u64,
}

impl DataBudget {
    /// The data that an image of `image_len` bytes may hold.
    pub fn of_image(image_len: u64) -> Self {
        let len_max = IMAGE_DATA_LEN_MAX.max(image_len.saturating_mul(DATA_RATIO_MAX));
        Self {
            remaining_len: len_max,
            len_max,
        }
    }

    /// Takes the data of a file.
    ///
    /// # Errors
    /// `Limit` for more than there may be.
    pub fn take(&mut self, data_len: u64) -> Result<()> {
        let remaining_len = self.remaining_len.checked_sub(data_len);
        self.remaining_len = remaining_len.ok_or_else(|| {
            Error::limit(format!(
                "the image has more than {} bytes of data, many times its own length: unless it \
                 is made to fill a disk, mount it and build from the mount",
                self.len_max
            ))
        })?;
        Ok(())
    }
}
