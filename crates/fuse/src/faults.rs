//! Says each failure once: a damaged block that a thousand readers hit makes one line in the log,
//! not a thousand.

use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashSet;
use weald_format::{Error, ErrorKind, InodeNo};
use weald_vfs::errno::errno;

/// Places remembered at most; 8192 of them take about 300 KiB. Failures beyond that are answered
/// but not logged.
const PLACE_COUNT_MAX: usize = 8192;

/// Where a failure happened: kind, offset of the damaged record (or 0), inode (0 where the record
/// is known).
type PlaceKey = (ErrorKind, u64, u64);

/// The failures logged so far.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    seen: Mutex<HashSet<PlaceKey>>,
}

impl Faults {
    /// The errno for `error`, which came up while doing `doing` to `ino`; logs it when the place is
    /// new.
    pub(crate) fn answer(&self, doing: &str, ino: InodeNo, error: &Error) -> Errno {
        if is_failure(error.kind()) && self.is_new(key_of(ino, error)) {
            log::error!("{doing} of inode {ino}: {error:?}");
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
            log::error!("{PLACE_COUNT_MAX} failures logged; further ones are not");
        }
        is_new
    }
}

/// Asking for what is not there, or for what makes no sense, is the caller's affair and not worth a
/// line.
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
    fn one_place_is_new_once_whoever_asks() {
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
