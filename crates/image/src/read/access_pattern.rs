//! Who reads in order: told by offsets, per file and per stream, in a small table.
//!
//! Invariant: to be wrong costs time, never a wrong byte; what is told depends only on what was
//! noted before.

use crate::cache::spread;
use parking_lot::Mutex;
use std::ops::Range;

/// Groups of places; a trail belongs to one of them.
const GROUP_COUNT: usize = 16;
/// Readers that a group remembers.
const GROUP_LEN: usize = 4;

/// How far a request may lie beside the end of what was read, at least: the kernel reads ahead in
/// several requests, which arrive in any order.
const SLACK_MIN: u64 = 256 << 10;
/// The same in requests of its length.
const SLACK_COUNT: u64 = 4;
/// Bytes and requests from which on a file is read in order.
const FILE_RUN: (u64, u32) = (64 << 10, 2);
/// The same for a stream: files that lie behind each other.
const STREAM_RUN: (u64, u32) = (256 << 10, 3);
/// Of who reads in order so much is left to the kernel, whose own requests reach as far ahead.
const NEAR_LEN: u64 = 512 << 10;
/// Notes in a group after which a reader counts as gone, so that its place is free for others.
const GONE_AFTER: u64 = 64;

/// What somebody reads along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trail {
    /// A content, by its number.
    File(u64),
    /// A stream: the contents that lie in it behind each other.
    Stream(u8),
}

impl Trail {
    fn spread(self) -> u64 {
        match self {
            Self::File(no) => spread(no),
            Self::Stream(no) => spread(!u64::from(no)),
        }
    }

    const fn run(self) -> (u64, u32) {
        match self {
            Self::File(_) => FILE_RUN,
            Self::Stream(_) => STREAM_RUN,
        }
    }
}

/// How far to look ahead of who reads in order.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sight {
    /// Bytes behind the last that was read.
    pub len: u64,
    /// Least bytes that it is worth looking again for.
    pub step_len: u64,
    /// The same for who has not yet read four times as many.
    pub first_len: u64,
}

/// What is known of a reader after a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pace {
    /// It reads in order.
    pub is_in_order: bool,
    /// What nobody looked for yet of what it will read; empty mostly.
    pub ahead: Range<u64>,
}

/// One that reads along a trail.
#[derive(Debug, Clone)]
struct Reader {
    trail: Trail,
    /// First byte of the run, and the one behind its last.
    run: Range<u64>,
    /// Bytes of all requests in the run: less than half of the run is no reading in order.
    read_len: u64,
    /// Requests that went on.
    count: u32,
    /// Up to here somebody has looked ahead.
    ahead_end: u64,
    /// Note of the group that it was met at last.
    met: u64,
}

impl Reader {
    fn new(trail: Trail, read: Range<u64>, met: u64) -> Self {
        Self {
            trail,
            read_len: read.end.saturating_sub(read.start),
            ahead_end: read.end,
            run: read,
            count: 1,
            met,
        }
    }

    fn is_at(&self, trail: Trail, read: &Range<u64>) -> bool {
        let len = read.end.saturating_sub(read.start);
        let slack = len.saturating_mul(SLACK_COUNT).max(SLACK_MIN);
        self.trail == trail && read.start.abs_diff(self.run.end) <= slack
    }

    fn is_in_order(&self) -> bool {
        let (len_min, count_min) = self.trail.run();
        let len = self.run.end.saturating_sub(self.run.start);
        len >= len_min && self.count >= count_min && self.is_dense()
    }

    fn is_dense(&self) -> bool {
        let len = self.run.end.saturating_sub(self.run.start);
        self.read_len >= len / 2
    }

    /// Notes a request near the end of the run.
    fn go_on(&mut self, read: &Range<u64>, met: u64) {
        self.met = met;
        self.run.start = self.run.start.min(read.start);
        self.read_len = self
            .read_len
            .saturating_add(read.end.saturating_sub(read.start));
        if read.end > self.run.end {
            self.run.end = read.end;
            self.count = self.count.saturating_add(1);
        }
        if !self.is_dense() {
            *self = Self::new(self.trail, read.clone(), met);
        }
    }

    fn look(&mut self, sight: Sight) -> Range<u64> {
        let from = self.ahead_end.max(self.run.end);
        let run_len = self.run.end.saturating_sub(self.run.start);
        // Where pages of a program are mapped here and there, some lie behind each other too; most
        // such runs end soon.
        let len = sight.len.min(run_len.saturating_sub(NEAR_LEN));
        let to = self.run.end.saturating_add(len);
        let step_len = sight.step_len.min(sight.first_len.max(run_len / 4));
        match to.saturating_sub(from) >= step_len.max(1) {
            true => {
                self.ahead_end = to;
                from..to
            }
            false => from..from,
        }
    }
}

#[derive(Debug, Default)]
struct Group {
    readers: [Option<Reader>; GROUP_LEN],
    /// Notes so far.
    count: u64,
}

impl Group {
    fn note(&mut self, trail: Trail, read: Range<u64>, sight: Sight) -> Pace {
        self.count = self.count.saturating_add(1);
        let now = self.count;
        let mut readers = self.readers.iter_mut().flatten();
        if let Some(reader) = readers.find(|r| r.is_at(trail, &read)) {
            reader.go_on(&read, now);
            let is_in_order = reader.is_in_order();
            let ahead = match is_in_order {
                true => reader.look(sight),
                false => 0..0,
            };
            return Pace { is_in_order, ahead };
        }
        // Who reads at random takes no place from who reads in order and is still there.
        let worth = |place: &&mut Option<Reader>| match place.as_ref() {
            None => (0, 0),
            Some(reader) => {
                let is_there = now.saturating_sub(reader.met) < GONE_AFTER;
                let keeps = is_there && reader.is_in_order();
                (1u8.saturating_add(u8::from(keeps)), reader.met)
            }
        };
        if let Some(place) = self.readers.iter_mut().min_by_key(worth) {
            *place = Some(Reader::new(trail, read, now));
        }
        Pace {
            is_in_order: false,
            ahead: 0..0,
        }
    }
}

/// The readers of one image.
#[derive(Debug, Default)]
pub struct Readers {
    groups: [Mutex<Group>; GROUP_COUNT],
}

impl Readers {
    /// Notes that bytes `read` of a trail are read, and says how the reader goes on.
    pub fn note(&self, trail: Trail, read: Range<u64>, sight: Sight) -> Pace {
        self.group(trail).lock().note(trail, read, sight)
    }

    /// Whether somebody who reads a trail in order has come past bytes `read` of it.
    pub fn have_passed(&self, trail: Trail, read: &Range<u64>) -> bool {
        let group = self.group(trail).lock();
        group.readers.iter().flatten().any(|reader| {
            reader.trail == trail
                && reader.is_in_order()
                && reader.run.start <= read.start
                && reader.run.end >= read.end
        })
    }

    fn group(&self, trail: Trail) -> &Mutex<Group> {
        let [first, ..] = &self.groups;
        let place = (trail.spread() >> 32) as usize % GROUP_COUNT;
        self.groups.get(place).unwrap_or(first)
    }

    /// Forgets them all.
    pub fn forget(&self) {
        for group in &self.groups {
            *group.lock() = Group::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGHT: Sight = Sight {
        len: 4 << 20,
        step_len: 512 << 10,
        first_len: 512 << 10,
    };
    const K: u64 = 1 << 10;

    fn note(readers: &Readers, no: u64, start: u64, len: u64) -> Pace {
        readers.note(Trail::File(no), start..start + len, SIGHT)
    }

    /// Would catch: requests of one reader that the kernel sent out of order, taken for jumps.
    #[test]
    fn who_reads_in_order_is_known_though_requests_overtake_each_other() {
        let readers = Readers::default();
        assert!(!note(&readers, 1, 0, 128 * K).is_in_order);
        for place in [2, 1, 4, 3, 5, 7, 6] {
            let pace = note(&readers, 1, place * 128 * K, 128 * K);
            assert!(pace.is_in_order || place == 2, "{place}");
        }
    }

    /// Would catch: the same of large requests, of which as many are on their way at a time as the
    /// kernel reads ahead.
    #[test]
    fn large_requests_overtake_each_other_too() {
        let readers = Readers::default();
        for place in [0, 3, 1, 2, 7, 6, 5, 4, 8] {
            let pace = note(&readers, 1, place << 20, 1 << 20);
            assert!(pace.is_in_order || place == 0 || place == 3, "{place}");
        }
        assert!(!note(&readers, 1, 14 << 20, 1 << 20).is_in_order, "a jump");
    }

    /// Would catch: bytes asked for twice, or never, and much decoded for who has read little so
    /// far.
    #[test]
    fn what_lies_ahead_is_told_once_and_more_the_more_was_read() {
        let readers = Readers::default();
        let mut told = 0;
        for place in 0..200 {
            let pace = note(&readers, 1, place * 128 * K, 128 * K);
            if pace.ahead.is_empty() {
                continue;
            }
            assert!(told == 0 || pace.ahead.start == told);
            told = pace.ahead.end;
            let read_len = (place + 1) * 128 * K;
            assert_eq!(told, read_len + SIGHT.len.min(read_len - NEAR_LEN));
        }
        assert!(told >= 200 * 128 * K + SIGHT.len - SIGHT.step_len);
    }

    /// Would catch: small reads near each other, or again and again at one place, taken for reading
    /// in order.
    #[test]
    fn who_only_reads_nearby_does_not_read_in_order() {
        let readers = Readers::default();
        for place in 0..300 {
            assert!(!note(&readers, 1, place * 100 * K, 4 * K).is_in_order);
            assert!(!note(&readers, 2, 128 * K, 64 * K).is_in_order);
        }
    }

    /// Would catch: a reader at random who drives those in order out of the table.
    #[test]
    fn readers_at_random_do_not_make_others_forgotten() {
        let readers = Readers::default();
        note(&readers, 1, 0, 128 * K);
        for place in 1..100 {
            assert!(note(&readers, 1, place * 128 * K, 128 * K).is_in_order);
            for other in 0..8 {
                note(&readers, 1, ((place * 8 + other) << 30) + other, 4 * K);
            }
        }
        readers.forget();
        assert!(!note(&readers, 1, 100 * 128 * K, 128 * K).is_in_order);
    }

    /// Would catch: bytes decoded ahead for nobody, or not decoded for who has only read to their
    /// middle, or elsewhere.
    #[test]
    fn what_a_reader_in_order_has_passed_is_known() {
        let readers = Readers::default();
        let passed = |range| readers.have_passed(Trail::File(1), &range);
        note(&readers, 1, 1 << 30, 128 * K);
        assert!(!passed(1 << 30..(1 << 30) + 4 * K), "not yet in order");
        for place in 1..4 {
            note(&readers, 1, (1 << 30) + place * 128 * K, 128 * K);
        }
        let at = |from: u64, to: u64| (1 << 30) + from * K..(1 << 30) + to * K;
        assert!(passed(at(0, 512)) && passed(at(256, 384)));
        assert!(!passed(at(256, 513)), "its end is still to come");
        assert!(!passed(0..4 * K), "nobody was there");
        assert!(!readers.have_passed(Trail::Stream(1), &at(0, 512)));
    }

    #[test]
    fn two_readers_of_one_file_are_two() {
        let readers = Readers::default();
        for place in 0..20 {
            for from in [0, 1 << 30] {
                let pace = note(&readers, 1, from + place * 128 * K, 128 * K);
                assert_eq!(pace.is_in_order, place > 0);
            }
        }
    }
}
