//! What to fetch before it is requested: readers that go forward, and how far ahead of each.
//!
//! A reader gets at most as much ahead as it has read in order before, so that a reader who stops
//! or jumps wastes no more than it used. Below that, its window doubles each time that it has to
//! wait: it reaches the product of bandwidth and delay of the link by itself, and stays small on a
//! fast one.

use std::ops::Range;

/// First window, bytes.
const WINDOW_MIN: u64 = 1 << 20;
/// Largest window, bytes: 50 MB/s over 300 ms.
const WINDOW_MAX: u64 = 16 << 20;
/// Readers that are told apart.
const READERS_MAX: usize = 16;
/// How far before or behind the end of the last read one of the same reader may begin, bytes:
/// threads that decode ahead of one reader overtake each other.
const NEAR: u64 = 1 << 20;
/// Largest gap between two reads in order, bytes.
const GAP_MAX: u64 = 128 << 10;
/// Fewest bytes that are asked for ahead at once, so that requests are large.
const STEP: u64 = 1 << 20;

/// One reader.
#[derive(Debug, Clone)]
struct Reader {
    /// End of the furthest read.
    next: u64,
    /// End of what was asked for ahead.
    asked_to: u64,
    /// Bytes that were read in order; a jump halves them.
    run: u64,
    window: u64,
    used: u64,
}

/// The readers of one object.
#[derive(Debug, Default)]
pub struct ReadAhead {
    readers: Vec<Reader>,
    tick: u64,
}

impl ReadAhead {
    /// Notes a read of `range`, which `waited` for the server or not. Returns the range to fetch
    /// ahead now, which may pass the end of the object.
    pub fn note(&mut self, range: &Range<u64>, waited: bool) -> Option<Range<u64>> {
        self.tick = self.tick.saturating_add(1);
        let tick = self.tick;
        let is_next = |reader: &&mut Reader| {
            let near = reader.next.saturating_sub(NEAR)..=reader.next.saturating_add(NEAR);
            near.contains(&range.start)
        };
        let Some(reader) = self.readers.iter_mut().find(is_next) else {
            self.add(range);
            return None;
        };
        reader.used = tick;
        if range.start.saturating_sub(reader.next) > GAP_MAX {
            reader.run /= 2;
        }
        if range.end > reader.next {
            let new = range.end.saturating_sub(range.start.max(reader.next));
            reader.run = reader.run.saturating_add(new);
            reader.next = range.end;
        }
        if waited {
            reader.window = reader.window.saturating_mul(2).min(WINDOW_MAX);
        }
        let from = reader.asked_to.max(reader.next);
        let ahead = reader.window.min(reader.run);
        let to = reader.next.saturating_add(ahead);
        if to.saturating_sub(from) < STEP {
            return None;
        }
        reader.asked_to = to;
        Some(from..to)
    }

    /// Adds a reader at the end of `range`, in place of the one that was seen longest ago.
    fn add(&mut self, range: &Range<u64>) {
        let reader = Reader {
            next: range.end,
            asked_to: range.end,
            run: 0,
            window: WINDOW_MIN,
            used: self.tick,
        };
        if self.readers.len() < READERS_MAX {
            self.readers.push(reader);
        } else if let Some(oldest) = self.readers.iter_mut().min_by_key(|reader| reader.used) {
            *oldest = reader;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a reader in order without requests ahead, one whose window does not grow while
    /// it waits, and a window without limit.
    #[test]
    fn a_waiting_reader_gets_a_larger_window() {
        let mut ahead = ReadAhead::default();
        let mut asked = 0;
        let mut furthest = 0;
        for step in 0..400_u64 {
            let range = step << 17..(step + 1) << 17;
            if let Some(more) = ahead.note(&range, true) {
                assert!(more.start >= range.end && more.end - range.end <= WINDOW_MAX);
                assert!(more.start >= furthest, "bytes are asked for twice");
                furthest = more.end;
                asked += 1;
            }
        }
        assert!(
            furthest >= (400 << 17) + WINDOW_MAX - (2 << 20),
            "{furthest}"
        );
        assert!(asked < 100, "{asked} small requests");
    }

    /// Would catch: a random reader that fetches more than it reads.
    #[test]
    fn a_random_reader_fetches_nothing_ahead() {
        let mut ahead = ReadAhead::default();
        for step in 1..100_u64 {
            let at = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            assert_eq!(ahead.note(&(at..at + 4096), true), None);
        }
    }

    /// Would catch: a reader who jumps about in one region and fetches all of it again and again.
    #[test]
    fn a_reader_that_jumps_wastes_little() {
        let mut ahead = ReadAhead::default();
        let (mut read, mut fetched) = (0, 0);
        let mut at: u64 = 1 << 30;
        for step in 0..10_000_u64 {
            let jump = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44;
            at = (1 << 30) + (at + jump) % (32 << 20);
            let more = ahead.note(&(at..at + (32 << 10)), true);
            read += 32 << 10;
            fetched += more.map_or(0, |more| more.end - more.start);
        }
        assert!(fetched < read, "{fetched} bytes for {read}");
    }

    /// Would catch: two readers that hide each other.
    #[test]
    fn two_readers_are_told_apart() {
        let mut ahead = ReadAhead::default();
        let mut asked = [0, 0];
        for step in 0..40_u64 {
            for (who, base) in [0, 1 << 40].into_iter().enumerate() {
                let range = base + (step << 17)..base + ((step + 1) << 17);
                asked[who] += u32::from(ahead.note(&range, false).is_some());
            }
        }
        assert!(asked.iter().all(|count| *count > 1), "{asked:?}");
    }
}
