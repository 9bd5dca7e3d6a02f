//! From the bytes that the kernel sends to a request: parsed once, trusted from then on.
//!
//! The kernel is no adversary, but a version of it that we do not know may send what we do not
//! know: what does not parse is answered with EIO or ENOSYS and ends nothing.

use crate::wire::{GetxattrIn, InHeader, LseekIn, NodeId, Opcode, OpenIn, ReadIn};
use rustix::io::Errno;
use zerocopy::FromBytes;

/// A request, and what it borrows of the buffer that it was read into.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// The number by which the kernel knows it.
    pub(crate) unique: u64,
    /// Which inode it is about.
    pub(crate) node: NodeId,
    /// Who asks.
    pub(crate) uid: u32,
    pub(crate) operation: Operation<'a>,
}

/// What is wanted, with what is needed to answer. What needs no more than its name is
/// [`Operation::Other`].
#[derive(Debug)]
pub(crate) enum Operation<'a> {
    Lookup { name: &'a [u8] },
    Open { flags: u32 },
    Read { offset: u64, size: u32 },
    Readdir { offset: u64, size: u32 },
    Readdirplus { offset: u64, size: u32 },
    Getxattr { name: &'a [u8], size: u32 },
    Listxattr { size: u32 },
    Lseek { offset: u64, whence: u32 },
    Other,
}

/// The header of a request and what follows it; `None` where there is not even a header.
pub(crate) fn split(bytes: &[u8]) -> Option<(InHeader, &[u8])> {
    let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
    (header.len as usize == bytes.len()).then_some((header, body))
}

/// Parses what follows the header of a request of a known kind.
///
/// # Errors
/// EIO where it is shorter than it must be.
pub(crate) fn parse<'a>(
    header: &InHeader,
    opcode: Opcode,
    body: &'a [u8],
) -> Result<Request<'a>, Errno> {
    let operation = match opcode {
        Opcode::Lookup => Operation::Lookup { name: name(body)? },
        Opcode::Open => Operation::Open {
            flags: record::<OpenIn>(body)?.0.flags,
        },
        Opcode::Read | Opcode::Readdir | Opcode::Readdirplus => reading(opcode, body)?,
        Opcode::Getxattr => {
            let (fixed, rest) = record::<GetxattrIn>(body)?;
            Operation::Getxattr {
                name: name(rest)?,
                size: fixed.size,
            }
        }
        Opcode::Listxattr => Operation::Listxattr {
            size: record::<GetxattrIn>(body)?.0.size,
        },
        Opcode::Lseek => {
            let fixed = record::<LseekIn>(body)?.0;
            Operation::Lseek {
                offset: fixed.offset,
                whence: fixed.whence,
            }
        }
        _ => Operation::Other,
    };
    Ok(Request {
        unique: header.unique,
        node: NodeId(header.nodeid),
        uid: header.uid,
        operation,
    })
}

fn reading(opcode: Opcode, body: &[u8]) -> Result<Operation<'_>, Errno> {
    let ReadIn { offset, size, .. } = record::<ReadIn>(body)?.0;
    Ok(match opcode {
        Opcode::Read => Operation::Read { offset, size },
        Opcode::Readdir => Operation::Readdir { offset, size },
        _ => Operation::Readdirplus { offset, size },
    })
}

fn record<R: FromBytes>(body: &[u8]) -> Result<(R, &[u8]), Errno> {
    R::read_from_prefix(body).map_err(|_| Errno::IO)
}

/// The bytes before the first zero byte.
fn name(body: &[u8]) -> Result<&[u8], Errno> {
    let len = body.iter().position(|byte| *byte == 0).ok_or(Errno::IO)?;
    body.get(..len).ok_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn header(opcode: Opcode, body: &[u8]) -> InHeader {
        InHeader {
            len: (size_of::<InHeader>() + body.len()) as u32,
            opcode: opcode as u32,
            unique: 7,
            nodeid: 9,
            ..InHeader::default()
        }
    }

    #[test]
    fn names_end_at_their_zero_byte() {
        let header = header(Opcode::Lookup, b"abc\0");
        let request = parse(&header, Opcode::Lookup, b"abc\0").expect("whole");
        assert!(matches!(
            request.operation,
            Operation::Lookup { name: b"abc" }
        ));
        assert_eq!((request.unique, request.node), (7, NodeId(9)));
        assert_eq!(
            parse(&header, Opcode::Lookup, b"abc").err(),
            Some(Errno::IO)
        );
    }

    /// Would catch: a panic, or bytes behind the request taken for a part of it, on what a kernel
    /// cuts short.
    #[test]
    fn whatever_is_cut_short_is_an_error_and_no_panic() {
        for opcode in Opcode::ALL {
            for len in 0..64 {
                let body = vec![1u8; len];
                let parsed = parse(&header(*opcode, &body), *opcode, &body);
                if let Ok(request) = parsed {
                    assert!(len >= 8 || matches!(request.operation, Operation::Other));
                }
            }
        }
        let header = header(Opcode::Getattr, b"");
        assert!(split(header.as_bytes()).is_some());
        assert!(split(&header.as_bytes()[..39]).is_none());
        let longer = [header.as_bytes(), b"x"].concat();
        assert!(split(&longer).is_none());
    }

    #[test]
    fn numbers_and_words_of_operations_are_their_own() {
        for (index, opcode) in Opcode::ALL.iter().enumerate() {
            assert_eq!(Opcode::of(*opcode as u32), Some(*opcode));
            assert!(
                Opcode::ALL[..index]
                    .iter()
                    .all(|o| o.word() != opcode.word())
            );
        }
        assert_eq!(Opcode::of(0), None);
        assert_eq!(Opcode::of(99), None);
    }
}
