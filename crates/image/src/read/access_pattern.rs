//! Detects sequential readers from the offsets of their requests, per content and per stream, in a
//! small table.
//!
//! Invariant: a wrong guess costs time, never a wrong byte; the answer depends only on the requests
//! noted before.

use crate::cache::hash::mix_bits;
use parking_lot::Mutex;
use std::ops::Range;

/// Groups of the table; all readers of an address space are in the same group.
const GROUP_COUNT: usize = 16;
/// Readers in a group.
const READERS_PER_GROUP: usize = 4;

/// Bytes by which a request may miss the end of the run, at least: the kernel reads ahead with
/// several requests, which arrive in any order.
const SLACK_MIN: u64 = 256 << 10;
/// The same in lengths of the request.
const SLACK_COUNT: u64 = 4;
/// Bytes and requests of a run from which on a reader of a file counts as sequential.
const FILE_RUN: (u64, u32) = (64 << 10, 2);
/// The same for a stream, which holds consecutive files.
const STREAM_RUN: (u64, u32) = (256 << 10, 3);
/// Distance left to the kernel's own readahead; the prefetch goes beyond it. In bytes.
const KERNEL_READAHEAD_LEN: u64 = 512 << 10;
/// Requests to a group after which an inactive reader may be replaced by another.
const INACTIVE_AFTER: u64 = 64;

/// A range of addresses in which reads are tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressSpace {
    /// The offsets in a content, by its number.
    Content(u64),
    /// The addresses of a stream, which holds the data of consecutive contents.
    Stream(u8),
}

impl AddressSpace {
    fn hash(self) -> u64 {
        match self {
            Self::Content(no) => mix_bits(no),
            Self::Stream(no) => mix_bits(!u64::from(no)),
        }
    }

    /// Bytes and requests from which on a run counts as sequential.
    const fn sequential_run(self) -> (u64, u32) {
        match self {
            Self::Content(_) => FILE_RUN,
            Self::Stream(_) => STREAM_RUN,
        }
    }
}

/// Distances of the prefetch for a sequential reader, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadaheadWindow {
    /// Distance from the end of the last request to the end of the prefetch.
    pub len: u64,
    /// Shortest range that is worth another prefetch.
    pub step_len: u64,
    /// The same for a reader whose run is shorter than four times this.
    pub first_step_len: u64,
}

/// State of a reader after a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Detected {
    /// The reader is sequential.
    pub is_sequential: bool,
    /// The range to prefetch now; usually empty.
    pub prefetch: Range<u64>,
}

/// A reader of an address space.
#[derive(Debug, Clone)]
struct Reader {
    space: AddressSpace,
    /// Addresses of the run, from its first request to the end of its last.
    run: Range<u64>,
    /// Bytes of all requests in the run. A run of which less than half was read is not sequential.
    read_len: u64,
    /// Requests that extended the run.
    count: u32,
    /// End of the range that was prefetched.
    prefetch_end: u64,
    /// Value of the group's counter at the reader's last request.
    last_request: u64,
}

impl Reader {
    fn new(space: AddressSpace, read: Range<u64>, now: u64) -> Self {
        Self {
            space,
            read_len: read.end.saturating_sub(read.start),
            prefetch_end: read.end,
            run: read,
            count: 1,
            last_request: now,
        }
    }

    fn continues_at(&self, space: AddressSpace, read: &Range<u64>) -> bool {
        let len = read.end.saturating_sub(read.start);
        let slack = len.saturating_mul(SLACK_COUNT).max(SLACK_MIN);
        self.space == space && read.start.abs_diff(self.run.end) <= slack
    }

    fn is_sequential(&self) -> bool {
        let (len_min, count_min) = self.space.sequential_run();
        let len = self.run.end.saturating_sub(self.run.start);
        len >= len_min && self.count >= count_min && self.is_dense()
    }

    fn is_dense(&self) -> bool {
        let len = self.run.end.saturating_sub(self.run.start);
        self.read_len >= len / 2
    }

    /// Extends the run by a request near its end.
    fn extend(&mut self, read: &Range<u64>, now: u64) {
        self.last_request = now;
        self.run.start = self.run.start.min(read.start);
        self.read_len = self
            .read_len
            .saturating_add(read.end.saturating_sub(read.start));
        if read.end > self.run.end {
            self.run.end = read.end;
            self.count = self.count.saturating_add(1);
        }
        if !self.is_dense() {
            *self = Self::new(self.space, read.clone(), now);
        }
    }

    /// The range to prefetch now; empty if it is not worth a prefetch yet.
    fn next_prefetch(&mut self, window: ReadaheadWindow) -> Range<u64> {
        let from = self.prefetch_end.max(self.run.end);
        let run_len = self.run.end.saturating_sub(self.run.start);
        // A program's page faults are scattered, but some are adjacent and look like a run; most
        // such runs end soon.
        let len = window.len.min(run_len.saturating_sub(KERNEL_READAHEAD_LEN));
        let to = self.run.end.saturating_add(len);
        let step_len = window.step_len.min(window.first_step_len.max(run_len / 4));
        if to.saturating_sub(from) >= step_len.max(1) {
            self.prefetch_end = to;
            from..to
        } else {
            from..from
        }
    }
}

#[derive(Debug, Default)]
struct Group {
    readers: [Option<Reader>; READERS_PER_GROUP],
    /// Requests so far.
    count: u64,
}

impl Group {
    fn note(&mut self, space: AddressSpace, read: Range<u64>, window: ReadaheadWindow) -> Detected {
        self.count = self.count.saturating_add(1);
        let now = self.count;
        let mut readers = self.readers.iter_mut().flatten();
        if let Some(reader) = readers.find(|r| r.continues_at(space, &read)) {
            reader.extend(&read, now);
            let is_sequential = reader.is_sequential();
            let prefetch = if is_sequential {
                reader.next_prefetch(window)
            } else {
                0..0
            };
            return Detected {
                is_sequential,
                prefetch,
            };
        }
        // A random reader does not replace an active sequential one.
        let worth = |slot: &&mut Option<Reader>| match slot.as_ref() {
            None => (0, 0),
            Some(reader) => {
                let is_active = now.saturating_sub(reader.last_request) < INACTIVE_AFTER;
                let is_kept = is_active && reader.is_sequential();
                (1u8.saturating_add(u8::from(is_kept)), reader.last_request)
            }
        };
        if let Some(slot) = self.readers.iter_mut().min_by_key(worth) {
            *slot = Some(Reader::new(space, read, now));
        }
        Detected {
            is_sequential: false,
            prefetch: 0..0,
        }
    }
}

/// The active readers of one image: a small table of fixed size.
#[derive(Debug, Default)]
pub struct ReaderTable {
    groups: [Mutex<Group>; GROUP_COUNT],
}

impl ReaderTable {
    /// Notes a request for addresses `read`; returns whether its reader is sequential, and what to
    /// prefetch for it.
    pub fn note(&self, space: AddressSpace, read: Range<u64>, window: ReadaheadWindow) -> Detected {
        self.group(space).lock().note(space, read, window)
    }

    /// Whether a sequential reader has read all addresses in `range`.
    pub fn have_passed(&self, space: AddressSpace, range: &Range<u64>) -> bool {
        let group = self.group(space).lock();
        group.readers.iter().flatten().any(|reader| {
            reader.space == space
                && reader.is_sequential()
                && reader.run.start <= range.start
                && reader.run.end >= range.end
        })
    }

    fn group(&self, space: AddressSpace) -> &Mutex<Group> {
        let [first, ..] = &self.groups;
        let index = (space.hash() >> 32) as usize % GROUP_COUNT;
        self.groups.get(index).unwrap_or(first)
    }

    /// Forgets all readers.
    pub fn clear(&self) {
        for group in &self.groups {
            *group.lock() = Group::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: ReadaheadWindow = ReadaheadWindow {
        len: 4 << 20,
        step_len: 512 << 10,
        first_step_len: 512 << 10,
    };
    const K: u64 = 1 << 10;

    fn note(readers: &ReaderTable, no: u64, start: u64, len: u64) -> Detected {
        readers.note(AddressSpace::Content(no), start..start + len, WINDOW)
    }

    /// Would catch: a jump seen where the kernel sent the requests of one reader out of order.
    #[test]
    fn a_sequential_reader_is_detected_though_requests_overtake_each_other() {
        let readers = ReaderTable::default();
        assert!(!note(&readers, 1, 0, 128 * K).is_sequential);
        for place in [2, 1, 4, 3, 5, 7, 6] {
            let detected = note(&readers, 1, place * 128 * K, 128 * K);
            assert!(detected.is_sequential || place == 2, "{place}");
        }
    }

    /// Would catch: the same for large requests, several of which are in flight during the kernel's
    /// readahead.
    #[test]
    fn large_requests_overtake_each_other_too() {
        let readers = ReaderTable::default();
        for place in [0, 3, 1, 2, 7, 6, 5, 4, 8] {
            let detected = note(&readers, 1, place << 20, 1 << 20);
            assert!(
                detected.is_sequential || place == 0 || place == 3,
                "{place}"
            );
        }
        assert!(
            !note(&readers, 1, 14 << 20, 1 << 20).is_sequential,
            "a jump"
        );
    }

    /// Would catch: bytes prefetched twice or never, and much prefetched for a reader that has read
    /// little so far.
    #[test]
    fn each_byte_is_prefetched_once_and_more_after_long_runs() {
        let readers = ReaderTable::default();
        let mut prefetched_end = 0;
        for place in 0..200 {
            let detected = note(&readers, 1, place * 128 * K, 128 * K);
            if detected.prefetch.is_empty() {
                continue;
            }
            assert!(prefetched_end == 0 || detected.prefetch.start == prefetched_end);
            prefetched_end = detected.prefetch.end;
            let read_len = (place + 1) * 128 * K;
            assert_eq!(
                prefetched_end,
                read_len + WINDOW.len.min(read_len - KERNEL_READAHEAD_LEN)
            );
        }
        assert!(prefetched_end >= 200 * 128 * K + WINDOW.len - WINDOW.step_len);
    }

    /// Would catch: small reads near each other, or repeated at one offset, that count as
    /// sequential.
    #[test]
    fn reads_near_each_other_are_not_sequential() {
        let readers = ReaderTable::default();
        for place in 0..300 {
            assert!(!note(&readers, 1, place * 100 * K, 4 * K).is_sequential);
            assert!(!note(&readers, 2, 128 * K, 64 * K).is_sequential);
        }
    }

    /// Would catch: a random reader that evicts sequential ones from the table.
    #[test]
    fn random_readers_do_not_replace_sequential_ones() {
        let readers = ReaderTable::default();
        note(&readers, 1, 0, 128 * K);
        for place in 1..100 {
            assert!(note(&readers, 1, place * 128 * K, 128 * K).is_sequential);
            for other in 0..8 {
                note(&readers, 1, ((place * 8 + other) << 30) + other, 4 * K);
            }
        }
        readers.clear();
        assert!(!note(&readers, 1, 100 * 128 * K, 128 * K).is_sequential);
    }

    /// Would catch: a prefetch of bytes that all readers have passed, or none for a reader that is
    /// in the middle of them or elsewhere.
    #[test]
    fn ranges_that_a_sequential_reader_has_passed_are_known() {
        let readers = ReaderTable::default();
        let passed = |range| readers.have_passed(AddressSpace::Content(1), &range);
        note(&readers, 1, 1 << 30, 128 * K);
        assert!(!passed(1 << 30..(1 << 30) + 4 * K), "not yet sequential");
        for place in 1..4 {
            note(&readers, 1, (1 << 30) + place * 128 * K, 128 * K);
        }
        let at = |from: u64, to: u64| (1 << 30) + from * K..(1 << 30) + to * K;
        assert!(passed(at(0, 512)) && passed(at(256, 384)));
        assert!(!passed(at(256, 513)), "its end is not read yet");
        assert!(!passed(0..4 * K), "no reader was there");
        assert!(!readers.have_passed(AddressSpace::Stream(1), &at(0, 512)));
    }

    #[test]
    fn two_readers_of_one_file_are_two() {
        let readers = ReaderTable::default();
        for place in 0..20 {
            for from in [0, 1 << 30] {
                let detected = note(&readers, 1, from + place * 128 * K, 128 * K);
                assert_eq!(detected.is_sequential, place > 0);
            }
        }
    }
}
