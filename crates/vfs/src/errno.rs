//! The mapping from errors to errno values, which is the only one.

use rustix::io::Errno;
use weald_format::ErrorKind;

/// The errno of a file system call that fails with an error of `kind`.
///
/// `Limit` is EIO like `Corrupt`: in both cases neither a retry nor freed memory helps, and read(2)
/// has no better value. An unknown kind is EIO, too.
pub fn errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::Unsupported => Errno::OPNOTSUPP,
        ErrorKind::Invalid => Errno::INVAL,
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::Full => Errno::NOSPC,
        ErrorKind::Busy => Errno::BUSY,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_errno() {
        let table = [
            (ErrorKind::Io, Errno::IO),
            (ErrorKind::Corrupt, Errno::IO),
            (ErrorKind::Limit, Errno::IO),
            (ErrorKind::Lost, Errno::IO),
            (ErrorKind::Moved, Errno::IO),
            (ErrorKind::Unsupported, Errno::OPNOTSUPP),
            (ErrorKind::Invalid, Errno::INVAL),
            (ErrorKind::NotFound, Errno::NOENT),
            (ErrorKind::Full, Errno::NOSPC),
            (ErrorKind::Busy, Errno::BUSY),
        ];
        for (kind, expected) in table {
            assert_eq!(errno(kind), expected, "{kind:?}");
        }
    }
}
