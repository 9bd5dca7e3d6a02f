//! The hour of the day where the machine stands.

/// The hour, 0 to 23, of a time in seconds since 1970, in the time zone of the machine (`TZ`, or
/// `/etc/localtime`); in UTC if the C library cannot tell.
pub fn local_hour(seconds: i64) -> u32 {
    let in_utc = seconds.rem_euclid(86_400) / 3600;
    // SAFETY: `tm` has integers and one pointer, for which zeros are valid values.
    let mut broken_down: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values that live until the call returns, and nothing else uses
    // `broken_down` meanwhile.
    let found = unsafe { libc::localtime_r(&seconds, &mut broken_down) };
    let hour = if found.is_null() {
        in_utc
    } else {
        broken_down.tm_hour.into()
    };
    u32::try_from(hour).unwrap_or(0).min(23)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch: an hour that stands still, or that no clock shows.
    #[test]
    fn an_hour_later_is_the_next_hour() {
        // No time zone changes its clock in this night.
        let start = 1_700_000_000;
        for hours in 0..48 {
            let (now, next) = (
                local_hour(start + hours * 3600),
                local_hour(start + (hours + 1) * 3600),
            );
            assert!(now < 24 && next == (now + 1) % 24, "{now} {next}");
        }
    }
}
