//! A place that gets no more than so many bytes a second.

use super::place::Place;
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use weald_format::Result;

/// A place that gets files one after the other, each when the bytes before have had their time.
#[derive(Debug)]
pub(super) struct Throttled<'a> {
    place: &'a dyn Place,
    /// Bytes a second.
    rate: u64,
    /// When the next file may be put.
    free_from: Mutex<Instant>,
}

impl<'a> Throttled<'a> {
    /// `rate` is in bytes a second, at least 1.
    pub fn new(place: &'a dyn Place, rate: u64) -> Self {
        Self {
            place,
            rate: rate.max(1),
            free_from: Mutex::new(Instant::now()),
        }
    }

    /// The time that so many bytes have.
    fn time_of(&self, len: usize) -> Duration {
        let nanoseconds = len as u128 * 1_000_000_000 / u128::from(self.rate);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

impl Place for Throttled<'_> {
    fn shown(&self) -> String {
        self.place.shown()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut free_from = self.free_from.lock();
        let now = Instant::now();
        std::thread::sleep(free_from.saturating_duration_since(now));
        let begun = Instant::now().max(*free_from);
        *free_from = begun + self.time_of(bytes.len()).min(Duration::from_secs(86_400));
        self.place.put(name, bytes)
    }

    fn read(&self, name: &str, len_max: u64) -> Result<Vec<u8>> {
        self.place.read(name, len_max)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.place.list(dir)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.place.remove(name)
    }

    fn is_there(&self, name: &str) -> Result<bool> {
        self.place.is_there(name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::DirPlace;
    use super::*;
    use crate::simulated_disk::SimDisk;
    use std::sync::Arc;

    // Would catch a limit that does not hold, and one for each file alone.
    #[test]
    fn files_wait_for_the_bytes_before_them() {
        let place = DirPlace::new(Arc::new(SimDisk::new(1)));
        let throttled = Throttled::new(&place, 1_000_000);
        let begun = Instant::now();
        for name in ["data/a", "data/b", "data/c"] {
            throttled.put(name, &[1; 100_000]).expect("put");
        }
        assert!(begun.elapsed() >= Duration::from_millis(200));
        assert_eq!(
            throttled.read("data/c", 1 << 20).expect("read").len(),
            100_000
        );
    }
}
