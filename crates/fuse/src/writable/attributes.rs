//! Requests that change attributes and contents of an inode: attributes, ACLs, access times, and
//! the privileges that a write takes away.
//!
//! # Source
//! Linux, `fs/attr.c` and `fs/posix_acl.c`; `FUSE_HANDLE_KILLPRIV_V2` in
//! `include/uapi/linux/fuse.h`.

use super::{Answered, WritableDriver, ino, now, written};
use crate::acl::Acl;
use crate::answer::Answer;
use crate::caller::Caller;
use crate::request::xattr_to_set;
use crate::wire::{
    NodeId, SETXATTR_ACL_KILL_SGID, SetattrIn, WRITE_CACHE, WRITE_KILL_SUIDGID, init, setattr,
};
use crate::writable_options::AccessTime;
use rustix::io::Errno;
use weald_format::{ACL_ACCESS, ACL_DEFAULT, FileKind, Ids, InodeFlags, permissions_without};
use weald_vfs::{Nanoseconds, NewStat, Stat, XattrMode};

const CAPABILITY: &[u8] = b"security.capability";

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXECUTES: u16 = 0o010;

// Flags of setxattr(2).
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

const SECOND: Nanoseconds = 1_000_000_000;
const DAY: Nanoseconds = 24 * 3600 * SECOND;

/// All changes that SETATTR can ask for.
const ANY_CHANGE: u32 = setattr::MODE
    | setattr::UID
    | setattr::GID
    | setattr::SIZE
    | setattr::ATIME
    | setattr::MTIME
    | setattr::CTIME;

/// Time of a request. The kernel sends signed seconds.
fn time(seconds: u64, nanoseconds: u32) -> Nanoseconds {
    Nanoseconds::from(seconds as i64) * SECOND + Nanoseconds::from(nanoseconds)
}

/// `permissions` without the bits that give a program another identity. A set-gid bit without the
/// execute bit of the group means something else: it stays for a caller of that group, as
/// `setattr_should_drop_sgid` in the kernel's `fs/attr.c` says.
fn without_set_ids(permissions: u16, is_in_group: impl FnOnce() -> bool) -> u16 {
    let stays = permissions & SET_GID != 0 && permissions & GROUP_EXECUTES == 0 && is_in_group();
    if stays {
        permissions & !SET_UID
    } else {
        permissions & !(SET_UID | SET_GID)
    }
}

/// The errno for an attribute that no file can have, as `fs/ext4` and `fs/xattr.c` of the kernel
/// give it; FUSE passes every name on.
pub(super) fn refused_name(name: &[u8]) -> Option<Errno> {
    const SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    match SPACES.iter().find_map(|space| name.strip_prefix(*space)) {
        Some(b"") => Some(Errno::INVAL),
        Some(_) => None,
        None if name == ACL_ACCESS || name == ACL_DEFAULT => None,
        None => Some(Errno::OPNOTSUPP),
    }
}

impl WritableDriver {
    pub(super) fn setattr(
        &self,
        (node, caller): (NodeId, Caller),
        fixed: &SetattrIn,
        out: &mut Vec<u8>,
    ) -> Answered {
        let (now, stat) = (now(), self.stat(node)?);
        self.nodes.change(node);
        let has = |bit| fixed.valid & bit != 0;
        let mut new = NewStat {
            permissions: has(setattr::MODE).then_some((fixed.mode & 0o7777) as u16),
            uid: has(setattr::UID).then_some(fixed.uid),
            gid: has(setattr::GID).then_some(fixed.gid),
            size: has(setattr::SIZE).then_some(fixed.size),
            mtime: has(setattr::SIZE).then_some(now),
            ..NewStat::default()
        };
        if has(setattr::ATIME) {
            let set = time(fixed.atime, fixed.atimensec);
            new.atime = Some(if has(setattr::ATIME_NOW) { now } else { set });
        }
        if has(setattr::MTIME) {
            let set = time(fixed.mtime, fixed.mtimensec);
            new.mtime = Some(if has(setattr::MTIME_NOW) { now } else { set });
        }
        if has(setattr::CTIME) {
            new.ctime = Some(time(fixed.ctime, fixed.ctimensec));
        }
        if let Some(permissions) = new.permissions {
            self.set_acl_permissions(node, permissions, now)?;
        }
        self.take_privileges((&stat, caller), fixed.valid, &mut new, now)?;
        let changed = self.fs.set_stat(ino(node), &new, now);
        let stat = self.check("change of attributes", node, changed)?;
        Ok(self.attributes(&stat, out))
    }

    /// Takes away the privileges that the change `valid` costs.
    fn take_privileges(
        &self,
        (stat, caller): (&Stat, Caller),
        valid: u32,
        new: &mut NewStat,
        now: Nanoseconds,
    ) -> Result<(), Errno> {
        if stat.kind == FileKind::Directory {
            return Ok(());
        }
        let has = |bits| valid & bits != 0;
        let is_chown = has(setattr::UID | setattr::GID);
        // The kernel sends a change of nothing for chown(2) with -1 and -1, and before a write,
        // fallocate(2) or copy_file_range(2) by a process that must not keep the set-id bits. It
        // sends the same before a write by root to a file that has a capability and also such
        // bits: root then loses more than on other file systems.
        let is_bare = !has(ANY_CHANGE);
        if is_chown || is_bare || has(setattr::SIZE) {
            self.drop_capability(NodeId(stat.ino.0), now)?;
        }
        if is_chown || is_bare || has(setattr::KILL_SUIDGID) {
            let permissions = new.permissions.unwrap_or(stat.permissions);
            let kept = without_set_ids(permissions, || caller.is_in_group_or_capable(stat.gid));
            if kept != permissions {
                new.permissions = Some(kept);
            }
        }
        Ok(())
    }

    /// Removes the capability of a file, if it has one.
    fn drop_capability(&self, node: NodeId, now: Nanoseconds) -> Result<(), Errno> {
        let removed = self.fs.remove_xattr(ino(node), CAPABILITY, now);
        match self.check("capability", node, removed) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Sets the length of a file that is opened with `O_TRUNC`.
    pub(super) fn truncate(
        &self,
        by: (NodeId, Caller),
        size: u64,
        kills_set_ids: bool,
    ) -> Result<(), Errno> {
        let valid = if kills_set_ids {
            setattr::SIZE | setattr::KILL_SUIDGID
        } else {
            setattr::SIZE
        };
        let fixed = SetattrIn {
            valid,
            size,
            ..SetattrIn::default()
        };
        self.setattr(by, &fixed, &mut Vec::new()).map(|_| ())
    }

    pub(super) fn write(
        &self,
        (node, caller): (NodeId, Caller),
        offset: u64,
        flags: u32,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Answered {
        let now = now();
        // Pages of a shared mapping: the kernel does not know which process wrote them.
        if flags & WRITE_CACHE == 0 && !self.nodes.facts(node).has_no_privileges {
            let kills_set_ids = flags & WRITE_KILL_SUIDGID != 0;
            self.take_privileges_of_written((node, caller), kills_set_ids, now)?;
        }
        let done = self.fs.write(ino(node), offset, bytes, now);
        self.check("write", node, done)?;
        self.nodes
            .note(node, |facts| facts.access_time_holds_until = None);
        Ok(written(bytes.len() as u64, out))
    }

    /// Takes away the privileges of a file before a write.
    fn take_privileges_of_written(
        &self,
        (node, caller): (NodeId, Caller),
        kills_set_ids: bool,
        now: Nanoseconds,
    ) -> Result<(), Errno> {
        self.drop_capability(node, now)?;
        let stat = self.stat(node)?;
        let mut permissions = stat.permissions;
        if kills_set_ids {
            let is_in_group = || caller.is_in_group_or_capable(stat.gid);
            permissions = without_set_ids(permissions, is_in_group);
        }
        if permissions != stat.permissions {
            let new = NewStat {
                permissions: Some(permissions),
                ..NewStat::default()
            };
            let changed = self.fs.set_stat(ino(node), &new, now);
            self.check("change of attributes", node, changed)?;
        }
        let has_none = permissions & (SET_UID | SET_GID) == 0;
        self.nodes
            .note(node, |facts| facts.has_no_privileges = has_none);
        Ok(())
    }

    /// Changes the access ACL, if there is one, to agree with a new mode.
    fn set_acl_permissions(
        &self,
        node: NodeId,
        permissions: u16,
        now: Nanoseconds,
    ) -> Result<(), Errno> {
        let value = self.fs.xattr(ino(node), ACL_ACCESS);
        let value = match self.check("ACL", node, value) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(()),
            value => value?,
        };
        let Some(mut acl) = Acl::parse(&value) else {
            return Ok(());
        };
        acl.set_permissions(permissions);
        let value = acl.to_value();
        let set = self
            .fs
            .set_xattr(ino(node), ACL_ACCESS, &value, XattrMode::Set, now);
        self.check("ACL", node, set)
    }

    pub(super) fn setxattr(&self, node: NodeId, body: &[u8]) -> Answered {
        let has_more_flags = self.flags & init::SETXATTR_EXT != 0;
        let wanted = xattr_to_set(body, has_more_flags)?;
        if let Some(errno) = refused_name(wanted.name) {
            return Err(errno);
        }
        let mode = match wanted.flags {
            0 => XattrMode::Set,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        if self.hides(wanted.name) {
            return Err(Errno::OPNOTSUPP);
        }
        self.nodes.change(node);
        if wanted.name == ACL_ACCESS {
            let kills_set_gid = wanted.more_flags & SETXATTR_ACL_KILL_SGID != 0;
            self.set_access_acl(node, wanted.value, kills_set_gid)?;
        } else {
            let set = self
                .fs
                .set_xattr(ino(node), wanted.name, wanted.value, mode, now());
            self.check("extended attribute", node, set)?;
        }
        // A fact that another request noted in the meantime may be older than the change.
        self.nodes.change(node);
        Ok(Answer::Buffered)
    }

    /// Sets the access ACL and the mode that belongs to it. An ACL that says no more than a mode is
    /// not kept.
    fn set_access_acl(&self, node: NodeId, value: &[u8], kills_set_gid: bool) -> Result<(), Errno> {
        let now = now();
        let acl = Acl::parse(value).ok_or(Errno::INVAL)?;
        let old = self.stat(node)?.permissions;
        let mut permissions = acl.permissions(old);
        if kills_set_gid {
            permissions &= !SET_GID;
        }
        let set = if acl.is_mode() {
            self.fs.remove_xattr(ino(node), ACL_ACCESS, now)
        } else {
            self.fs
                .set_xattr(ino(node), ACL_ACCESS, value, XattrMode::Set, now)
        };
        match self.check("ACL", node, set) {
            Ok(()) => {}
            Err(Errno::NODATA) if acl.is_mode() => {}
            Err(errno) => return Err(errno),
        }
        let new = NewStat {
            permissions: Some(permissions),
            ..NewStat::default()
        };
        let changed = self.fs.set_stat(ino(node), &new, now);
        self.check("change of attributes", node, changed)
            .map(|_| ())
    }

    pub(super) fn removexattr(&self, node: NodeId, name: &[u8]) -> Answered {
        self.nodes.change(node);
        let removed = self.fs.remove_xattr(ino(node), name, now());
        self.found_xattr(name, self.check("extended attribute", node, removed))?;
        Ok(Answer::Buffered)
    }

    /// A name that no file can have is not merely absent. An image may have brought one, which can
    /// be read and removed.
    pub(super) fn found_xattr<T>(&self, name: &[u8], found: Result<T, Errno>) -> Result<T, Errno> {
        match (found, refused_name(name)) {
            (Err(Errno::NODATA), Some(errno)) => Err(errno),
            (found, _) => found,
        }
    }

    /// The attributes of an inode as the mount shows them. Where access lists are hidden, the mode
    /// gives nobody more than they do.
    pub(super) fn shown(&self, stat: &Stat) -> Stat {
        let hides_acls = self.policy.hides_xattrs || self.policy.hides_acls;
        let permissions = if hides_acls && stat.permissions & 0o077 != 0 {
            self.permissions_of_hidden_acl(stat)
        } else {
            stat.permissions
        };
        Stat {
            permissions,
            ..*stat
        }
    }

    fn permissions_of_hidden_acl(&self, stat: &Stat) -> u16 {
        let node = NodeId(stat.ino.0);
        match self.check("ACL", node, self.fs.xattr(stat.ino, ACL_ACCESS)) {
            Ok(acl) => permissions_without(stat.permissions, &acl, Ids::Kept),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => stat.permissions,
            // The ACL may deny access to anyone, so only the owner keeps permissions.
            Err(_) => stat.permissions & 0o7700,
        }
    }

    /// Changes the access time after a read, as the mount options say. A failure is not the
    /// reader's.
    pub(super) fn note_access(&self, node: NodeId) {
        let access_time = self.policy.live.get().access_time;
        if access_time == AccessTime::Never {
            return;
        }
        let now = now();
        let facts = self.nodes.facts(node);
        let holds = facts
            .access_time_holds_until
            .is_some_and(|until| now < until);
        if access_time == AccessTime::Relative && holds {
            return;
        }
        let Ok(stat) = self.stat(node) else {
            return;
        };
        let is_old = stat.atime <= stat.mtime.max(stat.ctime) || now - stat.atime >= DAY;
        if stat.flags.has_any(InodeFlags::NO_ATIME) {
            self.nodes.note(node, |facts| {
                facts.access_time_holds_until = Some(now + DAY)
            });
            return;
        }
        let mut atime = stat.atime;
        if access_time == AccessTime::Always || is_old {
            let new = NewStat {
                atime: Some(now),
                ctime: Some(stat.ctime),
                ..NewStat::default()
            };
            if self.fs.set_stat(ino(node), &new, now).is_ok() {
                atime = now;
            }
        }
        self.nodes.note(node, |facts| {
            facts.access_time_holds_until = Some(atime + DAY)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_gid_bit_without_execution_stays_for_the_group() {
        for (before, after_member, after_other) in [
            (0o6755, 0o755, 0o755),
            (0o6745, 0o2745, 0o745),
            (0o2666, 0o2666, 0o666),
            (0o2755, 0o755, 0o755),
            (0o1777, 0o1777, 0o1777),
        ] {
            assert_eq!(without_set_ids(before, || true), after_member, "{before:o}");
            assert_eq!(without_set_ids(before, || false), after_other, "{before:o}");
        }
    }

    /// Would catch: a name that ext4 refuses.
    #[test]
    fn names_have_the_spaces_of_the_kernel() {
        for name in [
            "user.a",
            "trusted.x",
            "security.capability",
            "user.weald.chunk",
        ] {
            assert_eq!(refused_name(name.as_bytes()), None, "{name}");
        }
        assert_eq!(refused_name(ACL_ACCESS).or(refused_name(ACL_DEFAULT)), None);
        for name in ["user.", "trusted.", "security."] {
            assert_eq!(refused_name(name.as_bytes()), Some(Errno::INVAL), "{name}");
        }
        for name in [
            "",
            "foo.bar",
            "user",
            "system.x",
            "system.nfs4_acl",
            "User.a",
        ] {
            assert_eq!(
                refused_name(name.as_bytes()),
                Some(Errno::OPNOTSUPP),
                "{name}"
            );
        }
    }

    #[test]
    fn times_before_1970_are_negative() {
        assert_eq!(time(u64::MAX, 5), 5 - SECOND);
        assert_eq!(time(3, 7), 3 * SECOND + 7);
    }
}
