//! Numbers in the fields of headers, and the length of a block.

use weald_format::{Error, Result};

/// Bytes of a header block; data is padded to a multiple.
pub const TAR_BLOCK_LEN: usize = 512;

/// A number in octal, or in binary if the first bit is set; an empty field is 0.
pub fn number(field: &[u8]) -> Option<u64> {
    if field.first()? & 0x80 != 0 {
        let mut number = u64::from(field.first()? & 0x7f);
        for &byte in field.get(1..)? {
            number = number.checked_mul(256)? | u64::from(byte);
        }
        return Some(number);
    }
    let is_space = |b: &u8| matches!(b, b' ' | 0);
    let start = field
        .iter()
        .position(|b| !is_space(b))
        .unwrap_or(field.len());
    let digits = field.get(start..)?;
    let end = digits.iter().position(is_space).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    if !rest.iter().all(is_space) {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, &b| {
        let digit = b.checked_sub(b'0').filter(|&d| d < 8)?;
        Some(number.checked_mul(8)? + u64::from(digit))
    })
}

/// The number of a field that must have one.
///
/// # Errors
/// `Invalid`.
pub fn field_number(field: &[u8]) -> Result<u64> {
    number(field).ok_or_else(|| {
        Error::invalid(format!(
            "expected a number, found '{}'",
            field.escape_ascii()
        ))
    })
}
