//! Parses the bytes of the kernel's requests into checked values.
//!
//! The kernel is trusted, but a newer one may send unknown requests. A request that does not parse
//! gets EIO, an unknown one gets ENOSYS; neither ends the session.

use crate::caller::Caller;
use crate::wire::{
    BatchForgetIn, CopyFileRangeIn, CreateIn, FallocateIn, ForgetIn, ForgetOne, GetxattrIn,
    InHeader, IoctlIn, LinkIn, LseekIn, MkdirIn, MknodIn, NodeId, Opcode, OpenIn, ReadIn,
    ReleaseIn, Rename2In, RenameIn, SetattrIn, SetxattrCompatIn, SetxattrIn, WriteIn,
};
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
    /// Group id of the calling process.
    pub(crate) gid: u32,
    /// Thread that calls.
    pub(crate) caller: Caller,
    pub(crate) operation: Operation<'a>,
}

/// Arguments of a request. Requests without arguments are [`Operation::Other`]; their opcode tells
/// them apart.
#[derive(Debug)]
pub(crate) enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Open {
        fixed: OpenIn,
    },
    Read {
        offset: u64,
        size: u32,
    },
    Readdir {
        /// What the answer to OPENDIR said.
        handle: u64,
        offset: u64,
        size: u32,
    },
    Readdirplus {
        handle: u64,
        offset: u64,
        size: u32,
    },
    Releasedir {
        handle: u64,
    },
    Getxattr {
        name: &'a [u8],
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Lseek {
        offset: u64,
        whence: u32,
    },
    Ioctl {
        command: u32,
        out_len: u32,
        /// What the caller gives.
        input: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget {
        nodes: Vec<ForgetOne>,
    },
    Setattr {
        fixed: SetattrIn,
    },
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        fixed: MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        fixed: MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename(Renaming<'a>),
    Link {
        from: NodeId,
        name: &'a [u8],
    },
    Write {
        offset: u64,
        flags: u32,
        bytes: &'a [u8],
    },
    Create {
        fixed: CreateIn,
        name: &'a [u8],
    },
    Tmpfile {
        fixed: CreateIn,
    },
    /// The negotiated features decide the form of the body; [`xattr_to_set`] parses it.
    Setxattr {
        body: &'a [u8],
    },
    Removexattr {
        name: &'a [u8],
    },
    Fallocate {
        fixed: FallocateIn,
    },
    CopyFileRange {
        fixed: CopyFileRangeIn,
    },
    Other,
}

/// Arguments of RENAME and RENAME2.
#[derive(Debug)]
pub(crate) struct Renaming<'a> {
    /// Name in the directory of the request.
    pub(crate) old: &'a [u8],
    /// Directory of the new name.
    pub(crate) new_dir: NodeId,
    pub(crate) new: &'a [u8],
    /// Flags of renameat2(2).
    pub(crate) flags: u32,
}

/// Arguments of SETXATTR.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct XattrToSet<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    /// Flags of setxattr(2).
    pub(crate) flags: u32,
    /// `SETXATTR_…` flags of the protocol.
    pub(crate) more_flags: u32,
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
            fixed: record::<OpenIn>(body)?.0,
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
            let (fixed, rest) = record::<IoctlIn>(body)?;
            Operation::Ioctl {
                command: fixed.cmd,
                out_len: fixed.out_size,
                input: rest.get(..fixed.in_size as usize).unwrap_or_default(),
            }
        }
        Opcode::Forget => Operation::Forget {
            count: record::<ForgetIn>(body)?.0.nlookup,
        },
        Opcode::BatchForget => forgetting(body)?,
        Opcode::Releasedir => Operation::Releasedir {
            handle: record::<ReleaseIn>(body)?.0.fh,
        },
        Opcode::Write => writing(body)?,
        _ => changing(opcode, body)?,
    };
    Ok(Request {
        unique: header.unique,
        node: NodeId(header.nodeid),
        uid: header.uid,
        gid: header.gid,
        caller: Caller { pid: header.pid },
        operation,
    })
}

/// Parses a request that changes names or attributes.
fn changing(opcode: Opcode, body: &[u8]) -> Result<Operation<'_>, Errno> {
    Ok(match opcode {
        Opcode::Setattr => Operation::Setattr {
            fixed: record(body)?.0,
        },
        Opcode::Symlink => {
            let (name, rest) = name_and_rest(body)?;
            let target = self::name(rest)?;
            Operation::Symlink { name, target }
        }
        Opcode::Mknod => {
            let (fixed, rest) = record(body)?;
            let name = name(rest)?;
            Operation::Mknod { fixed, name }
        }
        Opcode::Mkdir => {
            let (fixed, rest) = record(body)?;
            let name = name(rest)?;
            Operation::Mkdir { fixed, name }
        }
        Opcode::Unlink => Operation::Unlink { name: name(body)? },
        Opcode::Rmdir => Operation::Rmdir { name: name(body)? },
        Opcode::Rename => {
            let (fixed, rest) = record::<RenameIn>(body)?;
            renaming(fixed.newdir, 0, rest)?
        }
        Opcode::Rename2 => {
            let (fixed, rest) = record::<Rename2In>(body)?;
            renaming(fixed.newdir, fixed.flags, rest)?
        }
        Opcode::Link => {
            let (fixed, rest) = record::<LinkIn>(body)?;
            Operation::Link {
                from: NodeId(fixed.oldnodeid),
                name: name(rest)?,
            }
        }
        Opcode::Create => {
            let (fixed, rest) = record(body)?;
            let name = name(rest)?;
            Operation::Create { fixed, name }
        }
        Opcode::Tmpfile => Operation::Tmpfile {
            fixed: record(body)?.0,
        },
        Opcode::Setxattr => Operation::Setxattr { body },
        Opcode::Removexattr => Operation::Removexattr { name: name(body)? },
        Opcode::Fallocate => Operation::Fallocate {
            fixed: record(body)?.0,
        },
        Opcode::CopyFileRange => Operation::CopyFileRange {
            fixed: record(body)?.0,
        },
        _ => Operation::Other,
    })
}

fn renaming(new_dir: u64, flags: u32, names: &[u8]) -> Result<Operation<'_>, Errno> {
    let (old, rest) = name_and_rest(names)?;
    Ok(Operation::Rename(Renaming {
        old,
        new_dir: NodeId(new_dir),
        new: name(rest)?,
        flags,
    }))
}

fn forgetting(body: &[u8]) -> Result<Operation<'_>, Errno> {
    let (fixed, mut rest) = record::<BatchForgetIn>(body)?;
    let mut nodes = Vec::new();
    for _ in 0..fixed.count {
        let (one, after) = record::<ForgetOne>(rest)?;
        nodes.push(one);
        rest = after;
    }
    Ok(Operation::BatchForget { nodes })
}

fn writing(body: &[u8]) -> Result<Operation<'_>, Errno> {
    let (fixed, rest) = record::<WriteIn>(body)?;
    Ok(Operation::Write {
        offset: fixed.offset,
        flags: fixed.write_flags,
        bytes: rest.get(..fixed.size as usize).ok_or(Errno::IO)?,
    })
}

/// Parses the body of SETXATTR; `has_flags` says whether `SETXATTR_EXT` was negotiated.
///
/// # Errors
/// EIO if the body is too short.
pub(crate) fn xattr_to_set(body: &[u8], has_flags: bool) -> Result<XattrToSet<'_>, Errno> {
    let (fixed, rest) = if has_flags {
        record::<SetxattrIn>(body)?
    } else {
        let (short, rest) = record::<SetxattrCompatIn>(body)?;
        let fixed = SetxattrIn {
            size: short.size,
            flags: short.flags,
            ..SetxattrIn::default()
        };
        (fixed, rest)
    };
    let (name, rest) = name_and_rest(rest)?;
    Ok(XattrToSet {
        name,
        value: rest.get(..fixed.size as usize).ok_or(Errno::IO)?,
        flags: fixed.flags,
        more_flags: fixed.setxattr_flags,
    })
}

fn reading(opcode: Opcode, body: &[u8]) -> Result<Operation<'_>, Errno> {
    let fixed = record::<ReadIn>(body)?.0;
    let (handle, offset, size) = (fixed.fh, fixed.offset, fixed.size);
    Ok(match opcode {
        Opcode::Read => Operation::Read { offset, size },
        Opcode::Readdir => Operation::Readdir {
            handle,
            offset,
            size,
        },
        _ => Operation::Readdirplus {
            handle,
            offset,
            size,
        },
    })
}

fn record<R: FromBytes>(body: &[u8]) -> Result<(R, &[u8]), Errno> {
    R::read_from_prefix(body).map_err(|_| Errno::IO)
}

/// The bytes before the first zero byte.
fn name(body: &[u8]) -> Result<&[u8], Errno> {
    name_and_rest(body).map(|(name, _)| name)
}

/// The bytes before the first zero byte, and those behind it.
fn name_and_rest(body: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let len = body.iter().position(|byte| *byte == 0).ok_or(Errno::IO)?;
    let (name, rest) = body.split_at_checked(len).ok_or(Errno::IO)?;
    Ok((name, rest.get(1..).unwrap_or_default()))
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
                    let has_no_arguments = matches!(
                        request.operation,
                        Operation::Other | Operation::Setxattr { .. }
                    );
                    assert!(len >= 8 || has_no_arguments);
                }
            }
        }
        let header = header(Opcode::Getattr, b"");
        assert!(split(header.as_bytes()).is_some());
        assert!(split(&header.as_bytes()[..39]).is_none());
        let longer = [header.as_bytes(), b"x"].concat();
        assert!(split(&longer).is_none());
    }

    /// A whole request of each kind that changes something.
    fn whole_requests() -> Vec<(Opcode, Vec<u8>)> {
        let two = b"old\0new\0";
        let with = |fixed: &[u8], rest: &[u8]| [fixed, rest].concat();
        let write = WriteIn {
            size: 3,
            ..WriteIn::default()
        };
        let xattr = SetxattrIn {
            size: 3,
            ..SetxattrIn::default()
        };
        let forgotten = BatchForgetIn { count: 2, dummy: 0 };
        vec![
            (Opcode::Setattr, with(SetattrIn::default().as_bytes(), b"")),
            (Opcode::Symlink, two.to_vec()),
            (Opcode::Mknod, with(MknodIn::default().as_bytes(), b"a\0")),
            (Opcode::Mkdir, with(MkdirIn::default().as_bytes(), b"a\0")),
            (Opcode::Unlink, b"a\0".to_vec()),
            (Opcode::Rmdir, b"a\0".to_vec()),
            (Opcode::Rename, with(RenameIn::default().as_bytes(), two)),
            (Opcode::Rename2, with(Rename2In::default().as_bytes(), two)),
            (Opcode::Link, with(LinkIn::default().as_bytes(), b"a\0")),
            (Opcode::Write, with(write.as_bytes(), b"abc")),
            (Opcode::Create, with(CreateIn::default().as_bytes(), b"a\0")),
            (Opcode::Tmpfile, with(CreateIn::default().as_bytes(), b"")),
            (Opcode::Setxattr, with(xattr.as_bytes(), b"n\0abc")),
            (Opcode::Removexattr, b"user.a\0".to_vec()),
            (
                Opcode::Fallocate,
                with(FallocateIn::default().as_bytes(), b""),
            ),
            (
                Opcode::CopyFileRange,
                with(CopyFileRangeIn::default().as_bytes(), b""),
            ),
            (Opcode::Forget, with(ForgetIn::default().as_bytes(), b"")),
            (Opcode::BatchForget, with(forgotten.as_bytes(), &[0; 32])),
        ]
    }

    /// Would catch: fewer bytes written than the request says, or a name cut short.
    #[test]
    fn every_truncated_change_is_an_error() {
        for (opcode, body) in whole_requests() {
            let is_whole = |body: &[u8]| match opcode {
                Opcode::Setxattr => xattr_to_set(body, true).is_ok(),
                _ => parse(&header(opcode, body), opcode, body).is_ok(),
            };
            assert!(is_whole(&body), "{}", opcode.word());
            for len in 0..body.len() {
                assert!(!is_whole(&body[..len]), "{} of {len}", opcode.word());
            }
        }
    }

    #[test]
    fn arguments_of_changes_are_found() {
        let rename = Rename2In {
            newdir: 5,
            flags: 2,
            padding: 0,
        };
        let body = [rename.as_bytes(), b"old\0new\0"].concat();
        let parsed = parse(&header(Opcode::Rename2, &body), Opcode::Rename2, &body);
        match parsed.expect("whole").operation {
            Operation::Rename(renaming) => {
                assert_eq!((renaming.old, renaming.new), (&b"old"[..], &b"new"[..]));
                assert_eq!((renaming.new_dir, renaming.flags), (NodeId(5), 2));
            }
            other => panic!("{other:?}"),
        }
        let short = SetxattrCompatIn { size: 2, flags: 1 };
        let body = [short.as_bytes(), b"user.a\0xyz"].concat();
        let expected = XattrToSet {
            name: b"user.a",
            value: b"xy",
            flags: 1,
            more_flags: 0,
        };
        assert_eq!(xattr_to_set(&body, false), Ok(expected));
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
