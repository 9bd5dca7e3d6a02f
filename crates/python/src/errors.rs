//! Errors as exceptions of Python. The class says what to do, the text is that of the library.

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use rustix::io::Errno;
use weald_format::{Error, ErrorKind};

/// Rule of `docs/format.md` that a file of another format breaks: its first bytes are not the magic
/// number of a superblock.
const RULE_OF_MAGIC: &str = "F-3.8";
/// Rule that a file breaks which is too short for an image.
const RULE_OF_LENGTH: &str = "F-3.7";

/// The exception for an error of reading: [`PyOSError`] chooses its subclass by the errno.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.with_causes();
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Lost => damaged(py, error, text),
        // A record refers to bytes behind the end of the file.
        ErrorKind::Io if is_end_of_file(error) => damaged(py, error, text),
        ErrorKind::Invalid => PyValueError::new_err(text),
        kind => {
            let usual = weald_vfs::errno::errno(kind).raw_os_error();
            let source = error.io_source().and_then(errno_of_source);
            of_errno(source.unwrap_or(usual), text)
        }
    }
}

/// The exception for an error of looking up a path. A name on it that must be a directory and is
/// none is the only value there that can be invalid, and too many links the only limit.
pub fn exception_of_path(py: Python<'_>, error: &Error) -> PyErr {
    match error.kind() {
        ErrorKind::Invalid => of_errno(Errno::NOTDIR.raw_os_error(), error.with_causes()),
        ErrorKind::Limit => of_errno(Errno::LOOP.raw_os_error(), error.with_causes()),
        _ => exception(py, error),
    }
}

/// The exception for a call that the type of the entry at `path` does not allow.
pub fn wrong_kind(errno: Errno, path: &[u8], what: &str) -> PyErr {
    let path = weald_vfs::shown_path(path);
    of_errno(errno.raw_os_error(), format!("{path}: {what}"))
}

/// The exception with this errno.
pub fn of_errno(errno: i32, text: String) -> PyErr {
    PyOSError::new_err((errno, text))
}

/// The errno of the system, or of what the library found before it asked the system.
fn errno_of_source(source: &std::io::Error) -> Option<i32> {
    let found = match source.kind() {
        std::io::ErrorKind::IsADirectory => Errno::ISDIR,
        std::io::ErrorKind::PermissionDenied => Errno::ACCESS,
        _ => return source.raw_os_error(),
    };
    source.raw_os_error().or(Some(found.raw_os_error()))
}

fn is_end_of_file(error: &Error) -> bool {
    let source = error.io_source();
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::UnexpectedEof)
}

fn damaged(py: Python<'_>, error: &Error, text: String) -> PyErr {
    let rule = error.place().map_or("", |place| place.rule);
    let class = match rule {
        RULE_OF_MAGIC | RULE_OF_LENGTH => "NotAnImageError",
        _ => "DamagedError",
    };
    match class_of(py, class) {
        Ok(class) => PyErr::from_type(class, (Errno::IO.raw_os_error(), text)),
        Err(error) => error,
    }
}

/// A class of `weald._errors`, which has those that Python lacks.
fn class_of<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || py.import("weald._errors").map(Bound::unbind))?;
    Ok(module.bind(py).getattr(name)?.cast_into::<PyType>()?)
}
