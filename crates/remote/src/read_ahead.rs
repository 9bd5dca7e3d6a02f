//! What to fetch before it is requested: how far ahead of a reader that goes forward.
//!
//! A reader is no object here: several threads decode ahead of one reader and overtake each other.
//! What counts is which chunks were read. Behind a run of chunks that were read, as many more are
//! fetched, so that a reader who stops or jumps wastes no more than it used. Below that, the window
//! doubles each time that somebody has to wait: it reaches the product of bandwidth and delay of
//! the link by itself.

use std::ops::Range;

/// First window, chunks.
const WINDOW_MIN: u64 = 4;
/// Largest window, chunks: 16 MiB, which is 50 MB/s over 300 ms.
const WINDOW_MAX: u64 = 64;
/// Chunks that are asked for ahead at once: those of one request.
pub const STEP: u64 = 4;

/// How far ahead is fetched.
#[derive(Debug)]
pub struct Window(u64);

impl Default for Window {
    fn default() -> Self {
        Self(WINDOW_MIN)
    }
}

impl Window {
    /// A reader has to wait for the server.
    pub fn widen(&mut self) {
        self.0 = self.0.saturating_mul(2).min(WINDOW_MAX);
    }

    /// The chunks to fetch behind a read of the chunks `numbers`, which may pass the end of the
    /// object; `was_read` tells of the chunks before.
    pub fn ahead(&self, numbers: &Range<u64>, was_read: impl Fn(u64) -> bool) -> Range<u64> {
        let before = (0..numbers.start).rev().take(self.0 as usize);
        let before = before.take_while(|no| was_read(*no)).count() as u64;
        let run = before.saturating_add(numbers.end.saturating_sub(numbers.start));
        let nothing = numbers.end..numbers.end;
        // One chunk alone is no run.
        if before == 0 {
            return nothing;
        }
        let to = numbers.end.saturating_add(run.min(self.0)) / STEP * STEP;
        if to > numbers.end {
            numbers.end..to
        } else {
            nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Chunks that were read, and that were fetched.
    #[derive(Default)]
    struct Reads {
        window: Window,
        read: BTreeSet<u64>,
        fetched: BTreeSet<u64>,
        wait_count: usize,
    }

    impl Reads {
        fn read(&mut self, no: u64) {
            if self.fetched.insert(no) {
                self.wait_count += 1;
                self.window.widen();
            }
            self.read.insert(no);
            let ahead = self
                .window
                .ahead(&(no..no + 1), |no| self.read.contains(&no));
            assert!(ahead.end - ahead.start <= WINDOW_MAX);
            self.fetched.extend(ahead);
        }
    }

    /// Would catch: a reader in order that waits for each request.
    #[test]
    fn a_reader_in_order_rarely_waits() {
        let mut reads = Reads::default();
        (0..1000).for_each(|no| reads.read(no));
        assert!(reads.wait_count < 10, "{} waits", reads.wait_count);
        let last = *reads.fetched.last().expect("chunks");
        assert!((1000..1000 + WINDOW_MAX).contains(&last), "{last}");
    }

    /// Would catch: threads ahead of one reader that count as readers at random.
    #[test]
    fn threads_that_overtake_each_other_are_in_order() {
        let mut reads = Reads::default();
        for block in 0..60 {
            for step in 0..8 {
                for thread in 0..4 {
                    reads.read((block * 4 + thread) * 8 + step);
                }
            }
        }
        assert!(
            reads.wait_count < 60,
            "{} waits for 1,920 chunks",
            reads.wait_count
        );
    }

    /// Would catch: a random reader for whom more is fetched than it reads.
    #[test]
    fn a_random_reader_wastes_little() {
        for chunk_count in [10_000, 300] {
            let mut reads = Reads::default();
            for step in 0..200_u64 {
                reads.read((step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % chunk_count);
            }
            let wasted = reads.fetched.len() - reads.read.len();
            assert!(
                wasted <= reads.read.len(),
                "{wasted} of {}",
                reads.read.len()
            );
        }
    }
}
