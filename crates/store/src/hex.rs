//! Hexadecimal digits in the text files of a store.

use std::fmt::Write;

/// Hexadecimal digits of `bytes`.
pub fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// The bytes that hexadecimal digits stand for; nothing if there are others or another number.
pub fn unhex<const LEN: usize>(text: &str) -> Option<[u8; LEN]> {
    let bytes = text.as_bytes();
    if bytes.len() != LEN * 2 || !text.is_ascii() {
        return None;
    }
    let mut out = [0; LEN];
    for (byte, digits) in out.iter_mut().zip(bytes.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(out)
}
