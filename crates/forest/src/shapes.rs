//! How long files are, and when they were changed.

use crate::draw::{Key, logarithm, power_of_two};
use weald_format::Timestamp;

/// How long files are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SizeRule {
    /// All are empty.
    Empty,
    /// All have this many bytes.
    Constant(u64),
    /// Half are shorter than `median` bytes; the logarithm to base e has standard deviation
    /// `sigma`.
    LogNormal {
        /// Bytes.
        median: u64,
        /// Standard deviation of the logarithm, 0 … 8.
        sigma: f64,
    },
    /// The longest has `max` bytes, the r-th longest `max` / r^`exponent`.
    Zipf {
        /// Bytes.
        max: u64,
        /// 0 … 8.
        exponent: f64,
    },
}

/// Longest file that is made, bytes.
pub const FILE_LEN_MAX: u64 = 1 << 40;
/// Ranks of files that follow Zipf's law: from there on all are short.
const RANK_COUNT: u64 = 1 << 20;

impl SizeRule {
    /// The length that is drawn for `key`, bytes.
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
        (len as u64).min(FILE_LEN_MAX)
    }
}

/// When files and directories were changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeRule {
    /// Whenever they are made.
    Now,
    /// All at one time; seconds since 1970.
    Constant(i64),
    /// The n-th file `step` nanoseconds after the one before it.
    Affine {
        /// Seconds since 1970.
        start: i64,
        /// Nanoseconds.
        step: u64,
    },
    /// At any time from `start` on, for `span` seconds, to the nanosecond.
    Random {
        /// Seconds since 1970.
        start: i64,
        /// Seconds, above 0.
        span: u64,
    },
}

/// Nanoseconds of a second.
const SECOND: u128 = 1_000_000_000;

impl TimeRule {
    /// The time of file `number`, drawn for `key`, whose time was changed in version `epoch`;
    /// `None` where it is not set.
    pub fn draw(self, key: Key, number: u64, epoch: u64) -> Option<Timestamp> {
        let at = |start: i64, nanoseconds: u128| Timestamp {
            seconds: start.saturating_add((nanoseconds / SECOND) as i64),
            nanoseconds: (nanoseconds % SECOND) as u32,
        };
        // A version a day.
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

    /// Would catch: distributions that are not what they are called.
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
        // One standard deviation above the median is e times as much.
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
