//! Points in time as text, always in UTC, so that output is the same on every machine.

use weald_format::{Error, Result, Timestamp};

const DAY_SECONDS: i64 = 86_400;

/// A day of the proleptic Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Date {
    year: i64,
    month: i64,
    day: i64,
}

/// Formats a time as `2024-02-29 12:00:00`, in UTC.
pub fn utc_seconds(time: Timestamp) -> String {
    let date = date_of(time.seconds.div_euclid(DAY_SECONDS));
    let second = time.seconds.rem_euclid(DAY_SECONDS);
    let Date { year, month, day } = date;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Formats a time as `2024-02-29 12:00:00.000000001`, in UTC.
pub fn utc_nanoseconds(time: Timestamp) -> String {
    format!("{}.{:09}", utc_seconds(time), time.nanoseconds)
}

/// Parses `@SECONDS[.FRACTION]` since 1970, or `YYYY-MM-DD[ HH:MM[:SS]]` in UTC. The latter may
/// have a `T` instead of the space, and a final `Z`.
///
/// # Errors
/// `Invalid` for anything else.
pub fn parse_time(text: &str) -> Result<Timestamp> {
    let time = match text.strip_prefix('@') {
        Some(epoch) => parse_epoch(epoch),
        None => parse_calendar(text.strip_suffix('Z').unwrap_or(text)),
    };
    time.ok_or_else(|| {
        Error::invalid(format!(
            "time {text:?}: expected @SECONDS or YYYY-MM-DD[ HH:MM[:SS]]"
        ))
    })
}

fn parse_epoch(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let is_decimal = fraction.len() <= 9 && fraction.bytes().all(|b| b.is_ascii_digit());
    let nanoseconds = format!("{fraction:0<9}")
        .parse()
        .ok()
        .filter(|_| is_decimal)?;
    Some(Timestamp {
        seconds,
        nanoseconds,
    })
}

fn parse_calendar(text: &str) -> Option<Timestamp> {
    let (date, clock) = text.split_once([' ', 'T']).unwrap_or((text, "00:00"));
    let [year, month, day] = parse_fields::<3>(date, '-')?;
    let clock = if clock.matches(':').count() == 1 {
        format!("{clock}:00")
    } else {
        clock.to_owned()
    };
    let [hour, minute, second] = parse_fields::<3>(&clock, ':')?;
    let date = Date { year, month, day };
    let is_valid = (1..=9999).contains(&year) && hour < 24 && minute < 60 && second < 61;
    let days = days_of(date).filter(|_| is_valid)?;
    Some(Timestamp {
        seconds: days * DAY_SECONDS + hour * 3600 + minute * 60 + second,
        nanoseconds: 0,
    })
}

fn parse_fields<const N: usize>(text: &str, separator: char) -> Option<[i64; N]> {
    let field = |f: &str| {
        f.parse()
            .ok()
            .filter(|_| f.bytes().all(|b| b.is_ascii_digit()))
    };
    let fields: Option<Vec<i64>> = text.split(separator).map(field).collect();
    fields?.try_into().ok()
}

/// The date that is `days` days after 1970-01-01.
///
/// # Source
/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn date_of(days: i64) -> Date {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    Date {
        year,
        month,
        day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
    }
}

/// Days from 1970-01-01 to `date`; `None` if there is no such date.
///
/// # Source
/// As [`date_of`], `days_from_civil`.
fn days_of(date: Date) -> Option<i64> {
    let year = date.year - i64::from(date.month <= 2);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (date.month + 9).rem_euclid(12);
    let day_of_year = (153 * month_from_march + 2) / 5 + date.day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    (date_of(days) == date).then_some(days)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp {
            seconds,
            nanoseconds: 0,
        }
    }

    #[test]
    fn known_times_are_written_right() {
        // Expected values from `date -u -d @N`.
        assert_eq!(utc_seconds(at(0)), "1970-01-01 00:00:00");
        assert_eq!(utc_seconds(at(951_782_399)), "2000-02-28 23:59:59");
        assert_eq!(utc_seconds(at(951_782_400)), "2000-02-29 00:00:00");
        assert_eq!(utc_seconds(at(-1)), "1969-12-31 23:59:59");
        assert_eq!(utc_seconds(at(4_102_444_800)), "2100-01-01 00:00:00");
        let time = Timestamp {
            seconds: 1_700_000_000,
            nanoseconds: 7,
        };
        assert_eq!(utc_nanoseconds(time), "2023-11-14 22:13:20.000000007");
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        utc_seconds(at(i64::MIN));
        utc_seconds(at(i64::MAX));
    }

    #[test]
    fn what_is_written_is_read_back() {
        for seconds in [0, 1, 951_782_400, 1_700_000_000, -86_401, 253_402_300_799] {
            assert_eq!(parse_time(&utc_seconds(at(seconds))).unwrap(), at(seconds));
        }
        assert_eq!(
            parse_time("2024-03-01").unwrap(),
            parse_time("2024-03-01T00:00Z").unwrap()
        );
        assert_eq!(
            parse_time("@12.5").unwrap(),
            Timestamp {
                seconds: 12,
                nanoseconds: 500_000_000
            }
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "@",
            "@1.x",
            "@1.0123456789",
            "2023-02-29",
            "2024-13-01",
            "2024-1",
            "12:00",
            "2024-01-01 25:00",
        ] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
