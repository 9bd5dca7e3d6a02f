//! Logs each failure once: a damaged block that a thousand readers hit makes one line in the log,
//! not a thousand.

use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashSet;
use weald_format::{Error, ErrorKind, InodeNo};
use weald_vfs::errno::errno;

/// Most places in the set; 8192 of them take about 300 KiB. Later failures are answered but not
/// logged.
const PLACE_COUNT_MAX: usize = 8192;

/// Key of a failure: kind, offset of the damaged record (or 0), inode (0 if the record is known).
type PlaceKey = (ErrorKind, u64, u64);

/// The failures logged so far.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    seen: Mutex<HashSet<PlaceKey>>,
}

impl Faults {
    /// Errno for `error`, which occurred while reading the part `part` of `ino`. Logs the first
    /// error of each place.
    pub(crate) fn answer(&self, part: &str, ino: InodeNo, error: &Error) -> Errno {
        if is_failure(error.kind()) && self.is_new(key_of(ino, error)) {
            log::error!("{part} of inode {ino}: {error:?}");
        }
        errno(error.kind())
    }

    fn is_new(&self, key: PlaceKey) -> bool {
        let mut seen = self.seen.lock();
        if seen.len() >= PLACE_COUNT_MAX {
            return false;
        }
        let is_new = seen.insert(key);
        if seen.len() == PLACE_COUNT_MAX {
            log::error!("{PLACE_COUNT_MAX} failures logged; later ones are not logged");
        }
        is_new
    }
}

/// Whether the log needs a line. A missing name or an invalid argument is the caller's mistake, not
/// a failure of the mount.
fn is_failure(kind: ErrorKind) -> bool {
    !matches!(kind, ErrorKind::NotFound | ErrorKind::Invalid)
}

fn key_of(ino: InodeNo, error: &Error) -> PlaceKey {
    match error.place() {
        Some(place) if place.offset != 0 => (error.kind(), place.offset, 0),
        _ => (error.kind(), 0, ino.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_new_once_for_all_inodes() {
        let faults = Faults::default();
        let damage = Error::corrupt("block", 4096, "F-1", "digest differs");
        assert!(faults.is_new(key_of(InodeNo(1), &damage)));
        assert!(!faults.is_new(key_of(InodeNo(2), &damage)));
        let other = Error::corrupt("block", 8192, "F-1", "digest differs");
        assert!(faults.is_new(key_of(InodeNo(1), &other)));
    }

    #[test]
    fn memory_of_places_is_bounded() {
        let faults = Faults::default();
        for offset in 0..2 * PLACE_COUNT_MAX as u64 {
            faults.is_new((ErrorKind::Corrupt, offset, 0));
        }
        assert_eq!(faults.seen.lock().len(), PLACE_COUNT_MAX);
    }

    #[test]
    fn damage_is_eio_and_absence_is_enoent() {
        let faults = Faults::default();
        let damage = Error::corrupt("block", 4096, "F-1", "digest differs");
        assert_eq!(faults.answer("read", InodeNo(1), &damage), Errno::IO);
        let absence = Error::not_found("x");
        assert_eq!(faults.answer("look up", InodeNo(1), &absence), Errno::NOENT);
        assert_eq!(faults.seen.lock().len(), 1);
    }
}
