//! Pages of the times overlay.

use crate::cursor::{Cursor, put_varint, unzigzag, zigzag};
use crate::entries::TimeColumns;
use crate::limits::{TIMES_PER_PAGE, TIMES_PER_RUN};
use crate::{Result, Timestamp};

/// A page of the times overlay: the times of consecutive names. It lists up to `TIMES_PER_PAGE` of
/// them one by one, or up to `TIMES_PER_RUN` in equal steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimesPage {
    count: usize,
    times: PageTimes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PageTimes {
    Columns(TimeColumns),
    Run(TimesRun),
}

/// Forms of a times page.
mod times_form {
    pub const COLUMNS: u8 = 1;
    pub const RUN: u8 = 2;
}

/// Times in equal steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimesRun {
    /// The first time, nanoseconds since 1970.
    first: i128,
    /// Difference between neighbours, nanoseconds.
    step: i64,
}

/// Nanoseconds per second.
const SECOND: i128 = 1_000_000_000;

/// Converts a time to nanoseconds since 1970.
fn total_nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.seconds)
        .wrapping_mul(SECOND)
        .wrapping_add(time.nanoseconds.into())
}

impl TimesRun {
    /// Makes the run that begins with these two times; `None` if they are too far apart.
    pub fn of(first: Timestamp, second: Timestamp) -> Option<Self> {
        let first = total_nanoseconds(first);
        let step = total_nanoseconds(second).wrapping_sub(first);
        Some(Self {
            first,
            step: i64::try_from(step).ok()?,
        })
    }

    /// Time `index` in nanoseconds. `index` is less than 2^62, so the sum cannot overflow.
    fn total(&self, index: u64) -> i128 {
        let offset = i128::from(self.step).wrapping_mul(index.into());
        self.first.wrapping_add(offset)
    }

    /// Whether time `index` of the run equals `time`.
    pub fn has_at(&self, index: u64, time: Timestamp) -> bool {
        self.total(index) == total_nanoseconds(time)
    }

    /// Time `index`.
    fn get(&self, index: u64) -> Timestamp {
        let total = self.total(index);
        Timestamp {
            seconds: total.div_euclid(SECOND) as i64,
            nanoseconds: total.rem_euclid(SECOND) as u32,
        }
    }
}

impl TimesPage {
    /// Encodes a page of times one by one.
    pub fn encode(mtimes: &[Timestamp]) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, mtimes.len() as u64);
        out.push(times_form::COLUMNS);
        TimeColumns::encode(&mut out, mtimes);
        out
    }

    /// Encodes a page of the first `count` times of a run.
    pub fn encode_run(run: &TimesRun, count: u64) -> Vec<u8> {
        let first = run.get(0);
        let mut out = Vec::new();
        put_varint(&mut out, count);
        out.push(times_form::RUN);
        put_varint(&mut out, zigzag(first.seconds));
        put_varint(&mut out, first.nanoseconds.into());
        put_varint(&mut out, zigzag(run.step));
        out
    }

    /// Parses a page.
    ///
    /// # Errors
    /// `Corrupt`.
    /// # Cost
    /// A run takes no memory, however long it is.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "times page");
        let count = cursor.bounded(TIMES_PER_RUN as u64, "time count")?;
        let times = match cursor.byte()? {
            times_form::COLUMNS if count <= TIMES_PER_PAGE as u64 => {
                PageTimes::Columns(TimeColumns::decode(&mut cursor, count as usize)?)
            }
            times_form::RUN => PageTimes::Run(parse_run(&mut cursor, count)?),
            form => {
                return Err(cursor.error(
                    "F-15.1",
                    format!(
                        "form: expected 2, or 1 with at most {TIMES_PER_PAGE} times, \
                         found {form} with {count}"
                    ),
                ));
            }
        };
        cursor.finish()?;
        Ok(Self {
            count: count as usize,
            times,
        })
    }

    /// Times in the page.
    pub fn count(&self) -> usize {
        self.count
    }

    /// mtime `index` of the page.
    pub fn mtime(&self, index: usize) -> Timestamp {
        match &self.times {
            PageTimes::Columns(columns) => columns.get(index),
            PageTimes::Run(run) => run.get(index as u64),
        }
    }

    /// Bytes of heap memory of the page.
    pub fn memory_len(&self) -> usize {
        match &self.times {
            PageTimes::Columns(columns) => columns.memory_len(),
            PageTimes::Run(_) => 0,
        }
    }
}

fn parse_run(cursor: &mut Cursor<'_>, count: u64) -> Result<TimesRun> {
    let seconds = unzigzag(cursor.varint()?);
    let nanoseconds = cursor.bounded(999_999_999, "nanoseconds")? as u32;
    let first = Timestamp {
        seconds,
        nanoseconds,
    };
    let run = TimesRun {
        first: total_nanoseconds(first),
        step: unzigzag(cursor.varint()?),
    };
    // If the first and the last time are in range, all others are.
    let last = run.total(count.saturating_sub(1));
    match i64::try_from(last.div_euclid(SECOND)) {
        Ok(_) if count > 0 => Ok(run),
        _ => Err(cursor.error(
            "F-15.4",
            format!("run of {count} times: expected at least one, all in the range of seconds"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::damage::check_damaged;

    #[test]
    fn times_round_trip() {
        let times: Vec<Timestamp> = (0..99)
            .map(|i| Timestamp {
                seconds: i * i - 400,
                nanoseconds: i as u32,
            })
            .collect();
        let bytes = TimesPage::encode(&times);
        let page = TimesPage::parse(&bytes).unwrap();
        assert_eq!((0..99).map(|i| page.mtime(i)).collect::<Vec<_>>(), times);
        check_damaged(&bytes, TimesPage::parse);
    }

    /// Catches: a lost step across a second, a wrong time before 1970, a run that allocates.
    #[test]
    fn runs_of_times_come_back() {
        let time = |seconds, nanoseconds| Timestamp {
            seconds,
            nanoseconds,
        };
        for (first, second, far, count) in [
            (time(5, 0), time(5, 0), time(5, 0), 65536),
            (time(5, 7), time(5, 8), time(5, 65_542), 65536),
            (time(-1, 999_999_999), time(1, 500_000_000), time(13, 3), 11),
            (time(i64::MIN, 1), time(i64::MIN, 0), time(i64::MIN, 0), 2),
        ] {
            let run = TimesRun::of(first, second).unwrap();
            let bytes = TimesPage::encode_run(&run, count);
            let page = TimesPage::parse(&bytes).unwrap();
            assert_eq!((page.count() as u64, page.memory_len()), (count, 0));
            assert_eq!((page.mtime(0), page.mtime(1)), (first, second));
            assert!(run.has_at(1, second) && !run.has_at(1, time(77, 77)));
            if count != 11 {
                assert_eq!(page.mtime(page.count() - 1), far);
            }
            check_damaged(&bytes, TimesPage::parse);
        }
        assert!(TimesRun::of(time(i64::MIN, 0), time(i64::MAX, 0)).is_none());
    }
}
