//! When the next scrub of a policy is due, in words.

use crate::progress::bytes;
use std::time::{SystemTime, UNIX_EPOCH};
use weald_format::Timestamp;
use weald_store::Store;
use weald_store::scrub::{ScrubPolicy, ScrubReport};
use weald_vfs::utc_seconds;

/// Seconds since 1970.
pub fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// When the next scrub begins, in words.
pub fn next_of(policy: &ScrubPolicy, report: Option<&ScrubReport>) -> String {
    let next = utc_seconds(Timestamp {
        seconds: policy.next_s(report).max(now_s()) as i64,
        nanoseconds: 0,
    });
    match policy.hours.word().as_str() {
        "any" => next,
        hours => format!("{next}, or a later hour of {hours}"),
    }
}

/// The policy of a store in a line; nothing without one.
pub fn line_of(store: &Store, report: Option<&ScrubReport>) -> anyhow::Result<String> {
    let Some(policy) = store.scrub_policy()? else {
        return Ok(String::new());
    };
    let rate = match policy.rate {
        0 => String::new(),
        rate => format!(", {} a second at most", bytes(rate)),
    };
    let (every, next) = (period(policy.every_s), next_of(&policy, report));
    Ok(format!("policy:   every {every}{rate}; next {next}\n"))
}

/// A period in its largest unit.
fn period(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h")].into_iter();
    let mut whole = units.filter(|(unit, _)| seconds.is_multiple_of(*unit));
    match whole.next() {
        Some((unit, word)) => format!("{}{word}", seconds / unit),
        None => format!("{seconds} s"),
    }
}
