//! JSON for programs: one object a line. A name or path that is not UTF-8 comes twice: `"path"`
//! with U+FFFD for what is not, and `"path_hex"` with all its bytes in hexadecimal. Times are
//! seconds since 1970 in `"mtime"` and nanoseconds after them in `"mtime_ns"`.

use serde_json::{Map, Value};
use std::fmt::Write;
use weald_format::Timestamp;

/// An object being filled.
pub type Object = Map<String, Value>;

/// Puts a name of any bytes.
pub fn put_name(object: &mut Object, key: &str, name: &[u8]) {
    object.insert(key.to_owned(), String::from_utf8_lossy(name).into());
    if std::str::from_utf8(name).is_err() {
        object.insert(format!("{key}_hex"), hex(name).into());
    }
}

/// Puts a time.
pub fn put_time(object: &mut Object, key: &str, time: Timestamp) {
    object.insert(key.to_owned(), time.seconds.into());
    object.insert(format!("{key}_ns"), time.nanoseconds.into());
}

/// Two hexadecimal digits a byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_bytes_survive() {
        let mut object = Object::new();
        put_name(&mut object, "path", b"caf\xe9");
        assert_eq!(
            Value::from(object).to_string(),
            r#"{"path":"caf�","path_hex":"636166e9"}"#
        );
    }
}
