//! The one place where a Weald error becomes an errno.

use rustix::io::Errno;
use weald_format::ErrorKind;

/// The errno with which a file system call fails for an error of `kind`.
///
/// `Limit` is EIO, as `Corrupt` is: to a reader both say that the image asks for something that no
/// retry and no freed memory will make right, and read(2) has no better word for it. So is every
/// kind that this function does not know.
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
