//! Which snapshots stay, and when the next one is due: rules by count and by period of time, with
//! the words of restic.

use std::time::{Duration, Instant};
use weald_format::Timestamp;
use weald_vfs::utc_seconds;

/// Nanoseconds of a second.
const SECOND: i128 = 1_000_000_000;
/// The shortest and the longest time between two snapshots of a policy, seconds.
const EVERY: (u64, u64) = (1, 366 * 86_400);
/// Time between two looks at a policy.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// The most that a rule keeps.
const COUNT_MAX: u64 = 1_000_000;
/// Beginning of the names of snapshots that a policy takes.
pub const NAME_PREFIX: &str = "auto-";

/// A time, nanoseconds since 1970.
pub type Time = i128;

/// What one rule counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Period {
    /// Snapshots.
    Last,
    /// Hours of UTC.
    Hour,
    /// Days of UTC.
    Day,
    /// Weeks, which begin on Monday.
    Week,
    /// Months.
    Month,
    /// Years.
    Year,
}

/// A snapshot, as rules see it.
#[derive(Debug, Clone, Copy)]
pub struct Dated<'a> {
    /// Its name.
    pub name: &'a str,
    /// When it was taken.
    pub created: Time,
    /// Whether it stays whatever the rules say: it is held or mounted.
    pub stays: bool,
}

/// Rules. A snapshot stays if one of them keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retention(Vec<(Period, u64)>);

impl Period {
    const WORDS: [(&'static str, Self); 6] = [
        ("last", Self::Last),
        ("hourly", Self::Hour),
        ("daily", Self::Day),
        ("weekly", Self::Week),
        ("monthly", Self::Month),
        ("yearly", Self::Year),
    ];

    /// The period that contains `time`; two times have the same one if this is equal.
    fn of(self, name: &str, time: Time) -> String {
        let seconds = time.div_euclid(SECOND);
        let text = |len: usize| text_of(time).chars().take(len).collect::<String>();
        match self {
            // Names differ, so that each is a period of its own.
            Self::Last => name.to_owned(),
            Self::Hour => text(13),
            Self::Day => text(10),
            // 1970-01-01 was a Thursday.
            Self::Week => (seconds.div_euclid(86_400) + 3).div_euclid(7).to_string(),
            Self::Month => text(7),
            Self::Year => text(4),
        }
    }
}

/// `2024-02-29T12:00:00Z`, or with a space for the T.
fn text_of(time: Time) -> String {
    utc_seconds(Timestamp {
        seconds: i64::try_from(time.div_euclid(SECOND)).unwrap_or(i64::MAX),
        nanoseconds: 0,
    })
}

impl Retention {
    /// Rules that keep the newest snapshot of as many periods each, counting those that have one.
    pub fn new(rules: impl IntoIterator<Item = (Period, u64)>) -> Self {
        Self(rules.into_iter().collect())
    }

    /// Whether the rules keep nothing at all.
    pub fn keeps_nothing(&self) -> bool {
        self.0.iter().all(|(_, count)| *count == 0)
    }

    /// The names of those of `all` that no rule keeps, oldest first; `all` has the oldest first.
    pub fn unkept<'a>(&self, all: &[Dated<'a>]) -> Vec<&'a str> {
        let mut rules: Vec<_> = self.0.iter().map(|rule| (*rule, None)).collect();
        let mut unkept = Vec::new();
        for snapshot in all.iter().rev() {
            let mut is_kept = snapshot.stays;
            for ((period, left), last) in &mut rules {
                let period = Some(period.of(snapshot.name, snapshot.created));
                if *left > 0 && period != *last {
                    *left -= 1;
                    *last = period;
                    is_kept = true;
                }
            }
            if !is_kept {
                unkept.push(snapshot.name);
            }
        }
        unkept.reverse();
        unkept
    }
}

/// Snapshots that the server of a volume takes and removes by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPolicy {
    rhythm: Rhythm,
    retention: Retention,
}

/// When snapshots are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rhythm {
    /// At the first look in each multiple of this time since 1970.
    Every(Duration),
    /// At the first look in each period.
    Each(Period),
}

impl SnapshotPolicy {
    /// Parses a policy: words such as `hourly=24 daily=7`, which say how many to keep. One is taken
    /// in each of the shortest period that is named, or after each time that `every=` gives, such
    /// as `every=20m last=72`.
    pub fn parse(text: &str) -> Option<Self> {
        let (mut every, mut rules) = (None, Vec::<(Period, u64)>::new());
        for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=')?;
            if key == "every" {
                let is_first = every.replace(parse_time(value)?).is_none();
                is_first.then_some(())?;
                continue;
            }
            let (_, period) = Period::WORDS.iter().find(|(word, _)| *word == key)?;
            let is_new = rules.iter().all(|(other, _)| other != period);
            let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
            let count: u64 = value.parse().ok().filter(|_| is_new && is_number)?;
            rules.push((*period, Some(count).filter(|count| *count <= COUNT_MAX)?));
        }
        rules.sort_unstable();
        let shortest = rules.iter().map(|(period, _)| *period);
        let rhythm = match (every, shortest.clone().find(|p| *p != Period::Last)) {
            (Some(every), _) => Rhythm::Every(every),
            (None, shortest) => Rhythm::Each(shortest?),
        };
        let retention = Retention::new(rules);
        (!retention.keeps_nothing()).then_some(Self { rhythm, retention })
    }

    /// Which snapshots stay.
    pub fn retention(&self) -> &Retention {
        &self.retention
    }

    /// Whether the next one is due at `now`, the last one having been taken at `last`. Periods in
    /// which nothing was taken are not caught up.
    pub fn is_due(&self, last: Option<Time>, now: Time) -> bool {
        let period = |time: Time| match self.rhythm {
            Rhythm::Every(every) => time.div_euclid(every.as_nanos() as Time).to_string(),
            Rhythm::Each(period) => period.of("", time),
        };
        // A clock that was set back does not end the policy.
        last.is_none_or(|last| period(last) != period(now))
    }
}

/// When a thread looked at a policy, and what it said.
#[derive(Debug)]
pub(crate) struct PolicyLooks {
    last: Instant,
    said: String,
}

impl Default for PolicyLooks {
    fn default() -> Self {
        Self {
            last: Instant::now(),
            said: String::new(),
        }
    }
}

impl PolicyLooks {
    /// Whether it is time for the next look, which then counts as done.
    pub fn is_time(&mut self) -> bool {
        let is_time = self.last.elapsed() >= LOOK_TIME;
        if is_time {
            self.last = Instant::now();
        }
        is_time
    }

    /// Whether this is not what was said last.
    pub fn is_new(&mut self, text: String) -> bool {
        let is_new = text != self.said;
        self.said = text;
        is_new
    }
}

/// Name of the snapshot that a policy takes at `now`.
pub fn name_at(now: Time) -> String {
    let digits = text_of(now).replace(' ', "T").replace(':', ".");
    format!("{NAME_PREFIX}{}Z", digits.trim_end_matches('Z'))
}

/// Seconds, or a number of minutes, hours or days: `90`, `20m`, `6h`, `1d`.
fn parse_time(text: &str) -> Option<Duration> {
    let (number, unit) = match text.as_bytes().last()? {
        b's' => (text.strip_suffix('s')?, 1),
        b'm' => (text.strip_suffix('m')?, 60),
        b'h' => (text.strip_suffix('h')?, 3600),
        b'd' => (text.strip_suffix('d')?, 86_400),
        _ => (text, 1),
    };
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| is_number)?;
    let seconds = number.checked_mul(unit)?;
    let is_possible = (EVERY.0..=EVERY.1).contains(&seconds);
    is_possible.then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Time = 3600 * SECOND;

    fn dated(hours: &[(&'static str, Time)]) -> Vec<Dated<'static>> {
        let all = hours.iter().map(|(name, hour)| Dated {
            name,
            created: hour * HOUR,
            stays: false,
        });
        all.collect()
    }

    fn keep(period: Period, count: u64) -> Retention {
        Retention::new([(period, count)])
    }

    // Would catch: a period that keeps its oldest snapshot, or that counts periods without one.
    #[test]
    fn the_newest_of_each_period_stays() {
        // Days 0, 0, 1 and 9; a week begins with day 4.
        let mut all = dated(&[("a", 1), ("b", 5), ("c", 30), ("d", 220), ("e", 220)]);
        assert_eq!(keep(Period::Day, 2).unkept(&all), ["a", "b", "d"]);
        assert_eq!(keep(Period::Day, 9).unkept(&all), ["a", "d"]);
        assert_eq!(keep(Period::Week, 9).unkept(&all), ["a", "b", "d"]);
        assert_eq!(keep(Period::Last, 2).unkept(&all), ["a", "b", "c"]);
        let both = Retention::new([(Period::Last, 1), (Period::Day, 3)]);
        assert_eq!(both.unkept(&all), ["a", "d"]);
        all[0].stays = true;
        assert_eq!(keep(Period::Last, 1).unkept(&all), ["b", "c", "d"]);
    }

    // Would catch: a policy that is misread, keeps nothing, or never takes one.
    #[test]
    fn words_make_a_policy() {
        for text in [
            "hourly=24 daily=7",
            "daily=7,hourly=24",
            "every=20m last=72",
            "yearly=1",
        ] {
            assert!(SnapshotPolicy::parse(text).is_some(), "{text}");
        }
        for text in [
            "",
            "hourly",
            "hourly=",
            "hourly=0",
            "hourly=-1",
            "hourly=+1",
            "last=3",
            "every=0 last=1",
            "every=20m",
            "daily=1 daily=2",
            "every=1h every=2h last=1",
            "secondly=3",
            "hourly=1e3",
            "every=9999d last=3",
            "hourly=99999999",
        ] {
            assert!(SnapshotPolicy::parse(text).is_none(), "{text}");
        }
    }

    // Would catch: hours that are caught up in a burst, two snapshots in one hour, and a clock that
    // is set back and ends the policy.
    #[test]
    fn one_is_due_in_each_period() {
        let policy = SnapshotPolicy::parse("daily=7 hourly=24").expect("a policy");
        let at = |hours: Time| hours * HOUR;
        assert!(policy.is_due(None, at(5)));
        assert!(!policy.is_due(Some(at(5)), at(5) + HOUR - 1));
        assert!(policy.is_due(Some(at(5) + HOUR - 1), at(6)));
        assert!(policy.is_due(Some(at(5)), at(50)) && !policy.is_due(Some(at(50)), at(50) + 1));
        assert!(policy.is_due(Some(at(50)), at(5)) && !policy.is_due(Some(at(5)), at(5) + 1));
        let policy = SnapshotPolicy::parse("every=20m last=3").expect("a policy");
        assert!(!policy.is_due(Some(at(1)), at(1) + HOUR / 3 - 1));
        assert!(policy.is_due(Some(at(1)), at(1) + HOUR / 3));
        assert_eq!(name_at(0), "auto-1970-01-01T00.00.00Z");
    }
}
