//! The order of names with versions in them: `tools-9` before `tools-10`, as by `sort -V`.

use std::cmp::Ordering;

/// Compares two names; runs of digits count as numbers. Names that differ are never equal.
pub fn version_order(left: &str, right: &str) -> Ordering {
    let (mut a, mut b) = (left, right);
    loop {
        let (text_a, text_b) = (before_digits(a), before_digits(b));
        if text_a != text_b {
            return a.cmp(b);
        }
        (a, b) = (&a[text_a.len()..], &b[text_b.len()..]);
        let (digits_a, digits_b) = (digits(a), digits(b));
        let number = |digits: &str| digits.trim_start_matches('0').to_owned();
        let (number_a, number_b) = (number(digits_a), number(digits_b));
        let by_number = number_a.len().cmp(&number_b.len());
        let by_number = by_number.then_with(|| number_a.cmp(&number_b));
        if by_number != Ordering::Equal || digits_a.is_empty() {
            // 007 and 7 are one number.
            return by_number.then_with(|| left.cmp(right));
        }
        (a, b) = (&a[digits_a.len()..], &b[digits_b.len()..]);
    }
}

fn before_digits(text: &str) -> &str {
    let end = text.find(|c: char| c.is_ascii_digit());
    &text[..end.unwrap_or(text.len())]
}

fn digits(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_digit());
    &text[..end.unwrap_or(text.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: numbers compared by digits, an order that is none, names that count as equal.
    #[test]
    fn numbers_count_as_numbers() {
        let sorted = [
            "",
            "5.2.1",
            "5.2.9",
            "5.2.10",
            "5.10",
            "a",
            "a1",
            "a01b",
            "a1b",
            "a9",
            "a10",
            "a10-rc",
            "b",
            "b99999999999999999999999",
            "b100000000000000000000000",
            "ü2",
            "ü10",
        ];
        for (at, left) in sorted.iter().enumerate() {
            for (other, right) in sorted.iter().enumerate() {
                assert_eq!(version_order(left, right), at.cmp(&other), "{left} {right}");
            }
        }
    }
}
