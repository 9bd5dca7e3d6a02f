//! Sizes in options, properties and on command lines.

/// Parses a size in bytes: a number, and one of the units K, M, G and T, powers of 1024, in either
/// case and also with `B` or `iB`. `None` for anything else, and for 2^64 bytes and more.
///
/// ```
/// assert_eq!(weald_vfs::parse_size("64KiB"), Some(65_536));
/// assert_eq!(weald_vfs::parse_size("+1"), None);
/// ```
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text.get(digits.len()..)?.to_ascii_uppercase();
    let shift = match unit.strip_suffix("IB").unwrap_or(&unit) {
        "" | "B" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_plain)?;
    number.checked_mul(1 << shift)
}
