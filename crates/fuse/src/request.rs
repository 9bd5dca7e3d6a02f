//! Parses the bytes of the kernel's requests into checked values.
//!
//! The kernel is trusted, but a newer one may send unknown requests. A request that does not parse
//! gets EIO, an unknown one gets ENOSYS; neither ends the session.

use crate::wire::{GetxattrIn, InHeader, IoctlIn, LseekIn, NodeId, Opcode, OpenIn, ReadIn};
use rustix::io::Errno;
use zerocopy::FromBytes;

/// A parsed request. Names borrow from the input buffer.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// Request id, which the answer repeats.
    pub(crate) unique: u64,
    /// Inode that the request addresses.
    pub(crate) node: NodeId,
    /// User id of the calling process.
    pub(crate) uid: u32,
    pub(crate) operation: Operation<'a>,
}

/// Arguments of a request. Requests without arguments are [`Operation::Other`]; their opcode tells
/// them apart.
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
    Ioctl { command: u32, out_len: u32 },
    Other,
}

/// Splits a request into header and body; `None` if the length in the header is wrong.
pub(crate) fn split(bytes: &[u8]) -> Option<(InHeader, &[u8])> {
    let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
    (header.len as usize == bytes.len()).then_some((header, body))
}

/// Parses the body of a request with a known opcode.
///
/// # Errors
/// EIO if the body is too short.
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
            let (fixed, name_bytes) = record::<GetxattrIn>(body)?;
            Operation::Getxattr {
                name: name(name_bytes)?,
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
        Opcode::Ioctl => {
            let fixed = record::<IoctlIn>(body)?.0;
            Operation::Ioctl {
                command: fixed.cmd,
                out_len: fixed.out_size,
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

    /// Would catch: a panic on a truncated request, or bytes after it read as part of it.
    #[test]
    fn truncated_requests_are_errors_and_never_panic() {
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
    fn opcodes_have_distinct_numbers_and_words() {
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
