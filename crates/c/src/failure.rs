//! Errors for C: an errno, and a text that stays until the next error of the thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use weald_format::{Error, ErrorKind};

/// The numbers of Linux.
const EIO: i32 = 5;
const EFAULT: i32 = 14;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const ERANGE: i32 = 34;
const ELOOP: i32 = 40;
const ENODATA: i32 = 61;

/// Why a call failed.
#[derive(Debug)]
pub struct Failure {
    errno: i32,
    text: String,
}

impl Failure {
    fn new(errno: i32, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { errno, text }
    }

    /// An error of reading.
    pub fn of(error: &Error) -> Self {
        let usual = weald_vfs::errno::errno(error.kind()).raw_os_error();
        let source = error.io_source().and_then(std::io::Error::raw_os_error);
        Self::new(source.unwrap_or(usual), error.with_causes())
    }

    /// An error of looking up a path: a name on it that must be a directory is the only value that
    /// can be invalid, and too many links the only limit.
    pub fn of_path(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Invalid => Self::new(ENOTDIR, error.with_causes()),
            ErrorKind::Limit => Self::new(ELOOP, error.with_causes()),
            _ => Self::of(error),
        }
    }

    /// A pointer is NULL.
    pub fn null() -> Self {
        Self::new(EFAULT, "an argument is NULL")
    }

    /// An argument is wrong.
    pub fn invalid(what: &str) -> Self {
        Self::new(EINVAL, what)
    }

    /// The buffer is shorter than the answer.
    pub fn too_small(len: usize) -> Self {
        Self::new(ERANGE, format!("the buffer is too small for {len} bytes"))
    }

    /// The path leads to something else than a directory.
    pub fn not_a_directory(path: &[u8]) -> Self {
        let path = weald_vfs::shown_path(path);
        Self::new(ENOTDIR, format!("{path}: is not a directory"))
    }

    /// The path leads to a directory.
    pub fn is_a_directory(path: &[u8]) -> Self {
        let path = weald_vfs::shown_path(path);
        Self::new(EISDIR, format!("{path}: is a directory"))
    }

    /// There is no such attribute.
    pub fn no_xattr(name: &[u8]) -> Self {
        let name = weald_vfs::shown_path(name);
        Self::new(ENODATA, format!("{name}: no such extended attribute"))
    }

    /// A bug of the library.
    pub fn panicked() -> Self {
        Self::new(
            EIO,
            "a bug of the library, which has told it on standard error",
        )
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the text for [`last_error`], and returns the errno for C.
pub fn keep(failure: Failure) -> i64 {
    let text = failure.text.replace('\0', "?");
    let text = CString::new(text).unwrap_or_default();
    // A thread that ends may have no place for it any more.
    let _ = LAST.try_with(|last| last.replace(text));
    -i64::from(failure.errno)
}

/// The text of the last failure of this thread.
pub fn last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}
