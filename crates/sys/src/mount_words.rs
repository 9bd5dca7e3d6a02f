//! Words of the kernel's tables of mounts, `/proc/PID/mounts` and `/proc/PID/mountinfo`. They hold
//! names as bytes, those of other users, too: nothing says that a table is UTF-8.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// A name of a table of mounts: the kernel writes white space and backslashes as a backslash and
/// three octal digits.
///
/// # Source
/// proc_pid_mountinfo(5).
pub fn unescaped(word: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let octal = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_the_kernel_writes_them() {
        assert_eq!(unescaped(br"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescaped(br"/a\04"), r"/a\04");
        assert_eq!(unescaped(b"\\x\xff"), OsString::from_vec(b"\\x\xff".into()));
    }
}
