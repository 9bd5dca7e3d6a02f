//! Distributions of file lengths and times.

use crate::draw::{Key, logarithm, power_of_two};
use weald_format::Timestamp;

/// Distribution of file lengths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SizeRule {
    /// All files are empty.
    Empty,
    /// All files have this length, bytes.
    Constant(u64),
    /// Half of the files are shorter than `median` bytes. The natural logarithm of the length has
    /// standard deviation `sigma`.
    LogNormal {
        /// Median, bytes.
        median: u64,
        /// Standard deviation of the logarithm, 0 … 8.
        sigma: f64,
    },
    /// The longest file has `max` bytes, the r-th longest `max` / r^`exponent`.
    Zipf {
        /// Length of the longest file, bytes.
        max: u64,
        /// Exponent, 0 … 8.
        exponent: f64,
    },
}

/// Maximum length of a file, bytes.
pub const DRAWN_FILE_LEN_MAX: u64 = 1 << 40;
/// Number of ranks in Zipf's law. All files beyond are short.
const RANK_COUNT: u64 = 1 << 20;

impl SizeRule {
    /// Draws a length for `key`, bytes.
    pub fn draw(self, key: Key) -> u64 {
        let len = match self {
            Self::Empty => 0.0,
            Self::Constant(len) => return len,
            Self::LogNormal { median, sigma } => {
                median as f64 * power_of_two(sigma * key.normal() / std::f64::consts::LN_2)
            }
            Self::Zipf { max, exponent } => {
                let rank = 1 + key.below(RANK_COUNT);
                max as f64 / power_of_two(exponent * logarithm(rank as f64))
            }
        };
        (len as u64).min(DRAWN_FILE_LEN_MAX)
    }
}

/// Distribution of the mtimes of files and directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeRule {
    /// The time at which the file is made.
    Now,
    /// The same time for all files; seconds since 1970.
    Constant(i64),
    /// Each file `step` nanoseconds after the one before.
    Affine {
        /// Time of the first file, seconds since 1970.
        start: i64,
        /// Difference between neighbours, nanoseconds.
        step: u64,
    },
    /// A random time in the `span` seconds after `start`, with nanoseconds.
    Random {
        /// Earliest time, seconds since 1970.
        start: i64,
        /// Length of the range, seconds, above 0.
        span: u64,
    },
}

/// Nanoseconds per second.
const SECOND: u128 = 1_000_000_000;

impl TimeRule {
    /// Draws the time of file `number` from `key`. Version `epoch` was the last to change its time.
    /// `None` if the time is not set.
    pub fn draw(self, key: Key, number: u64, epoch: u64) -> Option<Timestamp> {
        let at = |start: i64, nanoseconds: u128| Timestamp {
            seconds: start.saturating_add((nanoseconds / SECOND) as i64),
            nanoseconds: (nanoseconds % SECOND) as u32,
        };
        // One version per day.
        let later = i64::try_from(epoch).unwrap_or(0).saturating_mul(86_400);
        Some(match self {
            Self::Now => return None,
            Self::Constant(seconds) => at(seconds.saturating_add(later), 0),
            Self::Affine { start, step } => at(
                start.saturating_add(later),
                u128::from(number) * u128::from(step),
            ),
            Self::Random { start, span } => {
                let key = key.part(epoch);
                let second = u128::from(key.below(span));
                at(
                    start,
                    second * SECOND + u128::from(key.part(1).below(SECOND as u64)),
                )
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches: distributions that differ from their names.
    #[test]
    fn sizes_follow_their_rule() {
        let key = Key::new(9);
        let draw = |rule: SizeRule| {
            let mut sizes: Vec<u64> = (0..10_001).map(|i| rule.draw(key.part(i))).collect();
            sizes.sort_unstable();
            sizes
        };
        assert_eq!(draw(SizeRule::Constant(7))[5000], 7);
        let sizes = draw(SizeRule::LogNormal {
            median: 4096,
            sigma: 1.0,
        });
        assert!((3800..4400).contains(&sizes[5000]), "{}", sizes[5000]);
        // One standard deviation above the median, the length is e times as much.
        let ratio = sizes[8413] as f64 / sizes[5000] as f64;
        assert!((2.5..2.95).contains(&ratio), "{ratio}");
        let sizes = draw(SizeRule::Zipf {
            max: 1 << 30,
            exponent: 1.0,
        });
        assert!((1900..2200).contains(&sizes[5000]), "{}", sizes[5000]);
    }

    #[test]
    fn times_follow_their_rule() {
        let key = Key::new(1);
        let affine = TimeRule::Affine {
            start: 10,
            step: 1_500_000_000,
        };
        let time = affine.draw(key, 3, 0).unwrap();
        assert_eq!((time.seconds, time.nanoseconds), (14, 500_000_000));
        let random = TimeRule::Random {
            start: 100,
            span: 50,
        };
        let times: Vec<Timestamp> = (0..1000)
            .filter_map(|i| random.draw(key.part(i), i, 0))
            .collect();
        assert!(times.iter().all(|t| (100..150).contains(&t.seconds)));
        assert!(
            times
                .windows(2)
                .any(|t| t[0].nanoseconds != t[1].nanoseconds)
        );
    }
}
