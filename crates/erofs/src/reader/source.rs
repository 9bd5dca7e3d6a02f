//! The bytes of an image, and windows of them for metadata.

use super::damaged;
use parking_lot::Mutex;
use weald_format::Result;

/// Bytes of a window. Metadata that lie together are read at once.
const READ_WINDOW_LEN: u64 = 16 << 10;
/// Number of windows: 1 MiB, so that inodes, directories and shared xattrs do not displace each
/// other.
const WINDOW_COUNT: u64 = 64;

/// Storage of an image, read at any offset.
pub trait ImageStorage: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` from `offset`.
    ///
    /// # Errors
    /// `Io` if the bytes cannot be read.
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> Result<()>;
}

impl ImageStorage for Vec<u8> {
    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(out.len());
        let bytes = self
            .get(start..end)
            .ok_or_else(|| damaged("a read behind its end"))?;
        out.copy_from_slice(bytes);
        Ok(())
    }
}

struct Window {
    start: u64,
    bytes: Vec<u8>,
}

/// A source with windows of what was read last.
pub struct Windows {
    source: Box<dyn ImageStorage>,
    len: u64,
    windows: Mutex<Vec<Option<Window>>>,
}

impl Windows {
    pub fn new(source: Box<dyn ImageStorage>) -> Self {
        let len = source.len();
        let windows = (0..WINDOW_COUNT).map(|_| None).collect();
        Self {
            source,
            len,
            windows: Mutex::new(windows),
        }
    }

    /// Length of the image in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Checks that the image has the `len` bytes from `start` on. `what` names them.
    ///
    /// # Errors
    /// `Invalid` if it has not.
    pub fn check_range(&self, start: u64, len: u64, what: &str) -> Result<()> {
        match start.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(damaged(format_args!(
                "{what}: {len} bytes at {start} pass its end at {}",
                self.len
            ))),
        }
    }

    /// Fills `out` with data from `start` on.
    ///
    /// # Errors
    /// `Io`; `Invalid` behind the end.
    pub fn read_data(&self, start: u64, out: &mut [u8], what: &str) -> Result<()> {
        self.check_range(start, out.len() as u64, what)?;
        self.source.read_exact_at(out, start)
    }

    /// Fills `out` with metadata from `start` on.
    ///
    /// # Errors
    /// As [`Windows::read_data`].
    pub fn read(&self, start: u64, out: &mut [u8], what: &str) -> Result<()> {
        self.check_range(start, out.len() as u64, what)?;
        let mut windows = self.windows.lock();
        let (mut at, mut rest) = (start, out);
        while !rest.is_empty() {
            let window_no = at / READ_WINDOW_LEN;
            let window_start = window_no.saturating_mul(READ_WINDOW_LEN);
            let slot = windows.get_mut((window_no % WINDOW_COUNT) as usize);
            let slot = slot.ok_or_else(|| damaged("no window"))?;
            if slot.as_ref().is_none_or(|w| w.start != window_start) {
                *slot = None;
                let len = READ_WINDOW_LEN.min(self.len.saturating_sub(window_start));
                let mut bytes = vec![0; len as usize];
                self.source.read_exact_at(&mut bytes, window_start)?;
                *slot = Some(Window {
                    start: window_start,
                    bytes,
                });
            }
            let bytes = slot.as_ref().map_or(&[][..], |w| &w.bytes);
            let bytes = bytes.get(at.saturating_sub(window_start) as usize..);
            let bytes = bytes.unwrap_or_default();
            let len = bytes.len().min(rest.len());
            if len == 0 {
                return Err(damaged(format_args!("{what}: a read behind its end")));
            }
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(len);
            head.copy_from_slice(bytes.get(..len).unwrap_or_default());
            rest = tail;
            at = at.saturating_add(len as u64);
        }
        Ok(())
    }
}
