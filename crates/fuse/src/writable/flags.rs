//! The ioctls with which chattr(1) and lsattr(1) change and show flags, and what flags forbid when
//! a file is opened. The file system forbids the changes themselves.
//!
//! # Source
//! Linux, `include/uapi/linux/fs.h`; `fs/fuse/ioctl.c` sends these ioctls from 5.13 on, after the
//! kernel has looked at the owner and at `CAP_LINUX_IMMUTABLE`.

use super::{Answered, WritableDriver, ino, now};
use crate::answer::Answer;
use crate::caller::Caller;
use crate::wire::{IoctlOut, NodeId};
use rustix::fs::OFlags;
use rustix::io::Errno;
use weald_format::{FileKind, InodeFlags};
use weald_vfs::NewStat;
use zerocopy::IntoBytes;

// Numbers of ioctls on 64-bit machines; the kernel translates those of 32-bit programs.
const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;
const GET_XATTR: u32 = 0x801c_581f;
const SET_XATTR: u32 = 0x401c_5820;

/// Bytes of a `struct fsxattr`: the flags and six other fields.
const XATTR_LEN: usize = 28;

/// Bits of the flags in the ioctls with `FLAGS`, and in those with `XATTR`.
const BITS: [(InodeFlags, u32, u32); 4] = [
    (InodeFlags::IMMUTABLE, 0x10, 0x08),
    (InodeFlags::APPEND_ONLY, 0x20, 0x10),
    (InodeFlags::NO_DUMP, 0x40, 0x80),
    (InodeFlags::NO_ATIME, 0x80, 0x40),
];

/// The bits of `flags`, of which `bit` chooses a column of the table.
fn to_bits(flags: InodeFlags, bit: impl Fn(u32, u32) -> u32) -> u32 {
    let set = BITS.iter().filter(|(flag, ..)| flags.has_any(*flag));
    set.fold(0, |bits, (_, flag, xflag)| bits | bit(*flag, *xflag))
}

/// The flags with these bits; `None` if a bit has no meaning here.
fn from_bits(bits: u32, bit: impl Fn(u32, u32) -> u32) -> Option<InodeFlags> {
    let set = BITS
        .iter()
        .filter(|(_, flag, xflag)| bits & bit(*flag, *xflag) != 0);
    let flags = set.fold(InodeFlags::NONE, |flags, (flag, ..)| flags.with(*flag));
    (to_bits(flags, bit) == bits).then_some(flags)
}

fn flag(flag: u32, _: u32) -> u32 {
    flag
}

fn xflag(_: u32, xflag: u32) -> u32 {
    xflag
}

impl WritableDriver {
    pub(super) fn ioctl(
        &self,
        (node, caller): (NodeId, Caller),
        command: u32,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Answered {
        let stat = self.stat(node)?;
        if !matches!(stat.kind, FileKind::Regular | FileKind::Directory) {
            return Err(Errno::NOTTY);
        }
        let mut answer = |bytes: &[u8]| {
            out.extend_from_slice(IoctlOut::default().as_bytes());
            out.extend_from_slice(bytes);
            Ok(Answer::Buffered)
        };
        let first = input.first_chunk().copied().map(u32::from_ne_bytes);
        let wanted = match command {
            GET_FLAGS => return answer(&to_bits(stat.flags, flag).to_ne_bytes()),
            GET_XATTR => {
                let mut found = [0; XATTR_LEN];
                found[..4].copy_from_slice(&to_bits(stat.flags, xflag).to_ne_bytes());
                return answer(&found);
            }
            SET_FLAGS => from_bits(first.ok_or(Errno::INVAL)?, flag),
            SET_XATTR => {
                // Hints about extents, and projects, are for other file systems.
                let others = input.get(4..XATTR_LEN).ok_or(Errno::INVAL)?;
                let is_plain = others.iter().all(|byte| *byte == 0);
                from_bits(first.ok_or(Errno::INVAL)?, xflag).filter(|_| is_plain)
            }
            _ => return Err(Errno::NOTTY),
        };
        self.set_flags((node, caller), stat.flags, wanted.ok_or(Errno::OPNOTSUPP)?)?;
        answer(&[])
    }

    fn set_flags(
        &self,
        (node, caller): (NodeId, Caller),
        old: InodeFlags,
        new: InodeFlags,
    ) -> Result<(), Errno> {
        let locks = |flags: InodeFlags| flags.bits() & InodeFlags::LOCKS.bits();
        if locks(old) != locks(new) && !caller.may_lock() {
            return Err(Errno::PERM);
        }
        self.nodes.change(node);
        let new = NewStat {
            flags: Some(new),
            ..NewStat::default()
        };
        let changed = self.fs.set_stat(ino(node), &new, now());
        self.check("change of flags", node, changed)?;
        // A fact that another request noted in the meantime may be older than the change.
        self.nodes.change(node);
        Ok(())
    }

    /// Whether flags permit that a file is opened so.
    pub(super) fn check_open(&self, node: NodeId, flags: u32) -> Result<(), Errno> {
        let flags = OFlags::from_bits_retain(flags);
        if flags & OFlags::RWMODE == OFlags::RDONLY {
            return Ok(());
        }
        let set = self.stat(node)?.flags;
        let appends = flags.contains(OFlags::APPEND) && !flags.contains(OFlags::TRUNC);
        let is_refused = set.has_any(InodeFlags::IMMUTABLE)
            || (set.has_any(InodeFlags::APPEND_ONLY) && !appends);
        if is_refused { Err(Errno::PERM) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a flag that comes back as another one, and one that is dropped in silence.
    #[test]
    fn flags_have_their_bits() {
        for bits in 0..=InodeFlags::ALL.bits() {
            let flags = InodeFlags::from_bits(bits);
            assert_eq!(from_bits(to_bits(flags, flag), flag), Some(flags));
            assert_eq!(from_bits(to_bits(flags, xflag), xflag), Some(flags));
        }
        assert_eq!(to_bits(InodeFlags::ALL, flag), 0xf0);
        assert_eq!(to_bits(InodeFlags::ALL, xflag), 0xd8);
        // `+C`, `+c`, and the flag for projects.
        for bits in [0x0080_0000, 0x4, 0x2000_0000] {
            assert_eq!(from_bits(bits | 0x10, flag), None, "{bits:x}");
        }
    }
}
