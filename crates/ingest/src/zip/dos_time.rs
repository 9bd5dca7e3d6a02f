//! Times of MS-DOS.

use weald_format::Timestamp;

/// A time of MS-DOS, whose zone nobody knows: taken as UTC, so that the same archive gives the same
/// image everywhere.
pub fn dos_time(date: u16, time: u16) -> Timestamp {
    let (date, time) = (i64::from(date), i64::from(time));
    let (year, month, day) = (1980 + (date >> 9), date >> 5 & 15, date & 31);
    // Months outside of a year and days outside of a month stand in damaged archives only.
    let (month, day) = (month.clamp(1, 12), day.max(1));
    // Days from 1970 by the calendar that begins in March.
    let from_march = (month + 9) % 12;
    let year = if month <= 2 { year - 1 } else { year };
    let era_days = year * 365 + year / 4 - year / 100 + year / 400;
    let days = era_days + (153 * from_march + 2) / 5 + day - 1 - 719_468;
    let seconds = (time >> 11) * 3600 + (time >> 5 & 63) * 60 + (time & 31) * 2;
    Timestamp {
        seconds: days * 86_400 + seconds,
        nanoseconds: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a calendar that is off by a day, or by the leap day of 2000 or 2100.
    #[test]
    fn times_of_dos_are_those_of_the_calendar() {
        let date = |year: u16, month: u16, day: u16| (year - 1980) << 9 | month << 5 | day;
        // As `date -u +%s -d` says.
        for (date, time, expected) in [
            (date(1980, 1, 1), 0, 315_532_800),
            (date(2000, 2, 29), 12 << 11 | 34 << 5 | 28, 951_827_696),
            (date(2001, 2, 3), 4 << 11 | 5 << 5 | 3, 981_173_106),
            (date(2100, 3, 1), 0, 4_107_542_400),
            (0, 0, 315_532_800),
        ] {
            assert_eq!(dos_time(date, time).seconds, expected);
        }
    }
}
