//! Makes one inode of the target: content, holes, attributes, in an order that loses none of them.
//!
//! The owner comes first (chown clears set-uid bits and capabilities), then xattrs while the mode
//! still permits it, then the mode, then the times. A failure before the content is complete
//! removes the file. After a later failure the file stays, and the observer gets a problem.

use crate::target_dir::{Heritage, TargetDir};
use std::fs::File;
use std::io;
use std::io::ErrorKind as IoKind;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use weald_filter::AttributeChoice;
use weald_format::{Attributes, Error, FileKind, Ids, Result, Xattr, permissions_without_acl};
use weald_image::{Image, Inode, Run};
use weald_sys::{NewTimes, NodeKind, Stat};

/// Bytes of content read from the image at once.
pub(crate) const READ_LEN: u64 = 1 << 20;

/// Bytes that are read at once where something is damaged.
const SHORT_READ_LEN: u64 = 64 << 10;

/// Damaged ranges of a file that a message names.
const SHOWN_RANGES_MAX: usize = 8;

/// Permissions while a file or directory is being filled.
pub(crate) const FILLING_FILE: u16 = 0o600;
pub(crate) const FILLING_DIR: u16 = 0o700;

pub(crate) use weald_format::{ACL_ACCESS, ACL_DEFAULT};

/// Which extended attributes are restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrPolicy {
    /// No attributes.
    Nothing,
    /// `user.*` and POSIX ACLs, which an ordinary user may set.
    Ordinary,
    /// All attributes.
    Everything,
}

/// Attributes to restore, and the treatment of existing entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy<'a> {
    pub(crate) overwrite: bool,
    pub(crate) keeps_owner: bool,
    /// Owner and group of new files; `None` if new files inherit a group or an ACL from the target.
    pub(crate) own_ids: Option<(u32, u32)>,
    pub(crate) xattrs: XattrPolicy,
    pub(crate) keeps_damaged: bool,
    pub(crate) attributes: &'a AttributeChoice,
}

/// Directory and name of a new inode.
pub(crate) struct NewName<'a> {
    pub(crate) dir: &'a TargetDir,
    pub(crate) fd: &'a OwnedFd,
    pub(crate) name: &'a [u8],
}

/// Makes inodes of `image`.
pub(crate) struct Restorer<'a> {
    pub(crate) image: &'a Image,
    pub(crate) policy: Policy<'a>,
    /// Receives each attribute that could not be restored, with the path of the inode.
    pub(crate) problem: &'a (dyn Fn(&[u8], Error) + Sync),
    /// Receives the length of every piece of content. An error ends the file.
    pub(crate) advance: &'a (dyn Fn(u64) -> Result<()> + Sync),
}

/// What of a file could not be read.
#[derive(Default)]
struct Damage {
    /// Ascending, bytes.
    ranges: Vec<Range<u64>>,
    /// The first error.
    error: Option<Error>,
}

impl Damage {
    fn push(&mut self, range: Range<u64>, error: Error) {
        self.error.get_or_insert(error);
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }

    /// An error that names the ranges, if there are any.
    fn into_result(self) -> Result<()> {
        let Some(error) = self.error else {
            return Ok(());
        };
        let lost_len: u64 = self.ranges.iter().map(|r| r.end - r.start).sum();
        let shown = self.ranges.iter().take(SHOWN_RANGES_MAX);
        let shown: Vec<String> = shown
            .map(|r| format!("{}-{}", r.start, r.end - 1))
            .collect();
        let more = match self.ranges.len().saturating_sub(SHOWN_RANGES_MAX) {
            0 => String::new(),
            more => format!(" and {more} more ranges"),
        };
        let what = format!(
            "kept with zeros in place of {lost_len} bytes, {}{more}",
            shown.join(", ")
        );
        Err(error.context(what))
    }
}

/// Inode whose attributes are set: an open descriptor, or a name in a directory.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Open(BorrowedFd<'a>),
    Named(BorrowedFd<'a>, &'a [u8]),
}

impl Restorer<'_> {
    /// Makes an inode that is no directory.
    ///
    /// # Errors
    /// Failures to make the inode with its whole content; nothing of it is left then. Failures of
    /// attributes go to `problem`.
    pub(crate) fn make(&self, place: &NewName<'_>, inode: &Inode) -> Result<()> {
        check_name(place.name)?;
        if inode.kind == FileKind::Regular {
            return self.make_file(place, inode);
        }
        if inode.kind == FileKind::Symlink {
            let target = self.image.read_link(inode)?;
            self.create(place, |name| {
                weald_sys::make_symlink_at(&target, place.fd, name)
            })?;
        } else {
            let kind = node_kind(inode)?;
            self.create(place, |name| {
                weald_sys::make_node_at(place.fd, name, kind, FILLING_FILE)
            })?;
        }
        self.remove_inherited_acl(place, inode.kind);
        self.restore(Subject::Named(place.fd.as_fd(), place.name), inode, &|| {
            place.dir.path_of(place.name)
        });
        Ok(())
    }

    /// Makes a directory, or opens an existing one; returns whether it is new.
    ///
    /// # Errors
    /// Failures to make or open it.
    pub(crate) fn make_dir(&self, place: &NewName<'_>) -> Result<(OwnedFd, bool)> {
        check_name(place.name)?;
        let make = || weald_sys::make_dir_at(place.fd, place.name, FILLING_DIR);
        let open = || weald_sys::open_dir_at(place.fd, place.name);
        match make() {
            Err(error) if error.kind() == IoKind::AlreadyExists => {
                if let Ok(fd) = open() {
                    return Ok((fd, false));
                }
                self.check_overwrite()?;
                weald_sys::remove_file_at(place.fd, place.name)
                    .map_err(|e| Error::io("overwrite", e))?;
                make().map_err(|e| Error::io("mkdir", e))?;
            }
            made => made.map_err(|e| Error::io("mkdir", e))?,
        }
        self.remove_inherited_acl(place, FileKind::Directory);
        Ok((open().map_err(|e| Error::io("open", e))?, true))
    }

    /// Gives a directory its attributes and times. All its entries must exist.
    pub(crate) fn finish_dir(&self, fd: &OwnedFd, inode: &Inode, path: &dyn Fn() -> Vec<u8>) {
        self.restore(Subject::Open(fd.as_fd()), inode, path);
    }

    fn make_file(&self, place: &NewName<'_>, inode: &Inode) -> Result<()> {
        let permissions = self.permissions_while_filling(place, inode);
        let file = self.create(place, |name| {
            weald_sys::create_file_at(place.fd, name, permissions)
        })?;
        let damage = match self.write_content(inode, &file) {
            Ok(damage) => damage,
            Err(error) => {
                // A failure of the removal has no remedy here.
                let _ = weald_sys::remove_file_at(place.fd, place.name);
                return Err(error);
            }
        };
        self.remove_inherited_acl(place, inode.kind);
        self.restore(Subject::Open(file.as_fd()), inode, &|| {
            place.dir.path_of(place.name)
        });
        damage.into_result()
    }

    /// The permissions with which a file is made: the final ones if they give no user more rights
    /// meanwhile than in the end.
    fn permissions_while_filling(&self, place: &NewName<'_>, inode: &Inode) -> u16 {
        let attributes = &self.attributes_of(inode);
        let wanted = (attributes.uid, attributes.gid);
        let is_ours = |own| !self.policy.keeps_owner || wanted == own;
        let stays_ours =
            self.policy.own_ids.is_some_and(is_ours) && place.dir.heritage == Heritage::NONE;
        // Setting xattrs depends on the mode, and a write may clear set-uid bits.
        let is_plain = attributes.permissions & 0o7000 == 0 && inode.xattr_set.is_none();
        if stays_ours && is_plain {
            attributes.permissions
        } else {
            FILLING_FILE
        }
    }

    /// Writes the data runs of a file at their offsets; holes stay holes, and so does what cannot
    /// be read if the policy keeps damaged files.
    fn write_content(&self, inode: &Inode, file: &File) -> Result<Damage> {
        let mut damage = Damage::default();
        let mut written_end = 0;
        let mut result = Ok(());
        self.image.runs(inode, 0, &mut |run| {
            if run.is_hole {
                result = (self.advance)(run.len);
            } else {
                written_end = run.offset + run.len;
                result = self.write_run(inode, file, run, &mut damage);
            }
            match result {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        result?;
        if written_end < inode.size.0 || !damage.ranges.is_empty() {
            file.set_len(inode.size.0)
                .map_err(|e| Error::io("set length", e))?;
        }
        Ok(damage)
    }

    fn write_run(&self, inode: &Inode, file: &File, run: Run, damage: &mut Damage) -> Result<()> {
        let end = run.offset + run.len;
        let mut offset = run.offset;
        // Behind damage, in pieces so short that they meet little of it.
        let mut short_end = offset;
        while offset < end {
            let len_max = if offset < short_end {
                SHORT_READ_LEN
            } else {
                READ_LEN
            };
            let len = (end - offset).min(len_max);
            let piece = match self.image.read(inode, offset, len as usize) {
                Ok(piece) => piece,
                Err(error) if self.policy.keeps_damaged && error.is_unreadable() => {
                    if len > SHORT_READ_LEN {
                        short_end = offset + len;
                    } else {
                        damage.push(offset..offset + len, error);
                        offset += len;
                        (self.advance)(len)?;
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            if piece.is_empty() {
                return Err(Error::invalid(format!("the content ends at byte {offset}")));
            }
            file.write_all_at(&piece, offset)
                .map_err(|e| Error::io("write", e))?;
            offset += piece.len() as u64;
            (self.advance)(piece.len() as u64)?;
        }
        Ok(())
    }

    /// Runs `make` with the name of `place`. If an entry has that name and may be overwritten,
    /// `make` gets a hidden name instead, and a rename replaces the entry: it stays if `make`
    /// fails.
    pub(crate) fn create<T>(
        &self,
        place: &NewName<'_>,
        make: impl Fn(&[u8]) -> io::Result<T>,
    ) -> Result<T> {
        match make(place.name) {
            Err(error) if error.kind() == IoKind::AlreadyExists => {
                self.check_overwrite()?;
                replace(place, make)
            }
            made => made.map_err(|e| Error::io("create", e)),
        }
    }

    fn check_overwrite(&self) -> Result<()> {
        if self.policy.overwrite {
            Ok(())
        } else {
            Err(Error::invalid("exists already"))
        }
    }

    /// Removes the ACLs that a new entry inherited from an existing directory.
    fn remove_inherited_acl(&self, place: &NewName<'_>, kind: FileKind) {
        if place.dir.heritage.has_acl && kind != FileKind::Symlink {
            for name in [ACL_ACCESS, ACL_DEFAULT] {
                // Fails for entries without such an ACL.
                let _ = weald_sys::remove_xattr_at(place.fd, place.name, name);
            }
        }
    }

    fn restore(&self, subject: Subject<'_>, inode: &Inode, path: &dyn Fn() -> Vec<u8>) {
        let check = |what: &'static str, result: io::Result<()>| {
            let is_done = result.is_ok();
            result.unwrap_or_else(|e| (self.problem)(&path(), Error::io(what, e)));
            is_done
        };
        let attributes = &self.attributes_of(inode);
        // One stat costs less than setting attributes that are right already.
        let found = subject.stat().ok();
        let has_owner = found.is_some_and(|f| (f.uid, f.gid) == (attributes.uid, attributes.gid));
        let is_owned = self.policy.keeps_owner
            && (has_owner
                || check(
                    "set owner",
                    subject.set_owner(attributes.uid, attributes.gid),
                ));
        let xattrs = self.wanted_xattrs(inode).unwrap_or_else(|error| {
            (self.problem)(&path(), error.context("xattrs"));
            Vec::new()
        });
        // An ACL changes the mode, and setting `user.*` depends on the mode. So the order is
        // `user.*`, mode, ACLs.
        let (acls, others): (Vec<_>, Vec<_>) = xattrs
            .iter()
            .partition(|xattr| xattr.name.starts_with(b"system."));
        let set_all = |xattrs: Vec<&Xattr>| {
            for xattr in xattrs {
                let set = subject.set_xattr(xattr);
                set.unwrap_or_else(|e| {
                    let what = format!("set xattr {}", weald_vfs::shown(&xattr.name));
                    (self.problem)(&path(), Error::io(what, e));
                });
            }
        };
        set_all(others);
        let wanted = self.permissions(inode, is_owned, is_owned || has_owner);
        // A chown since the stat would have cleared bits.
        let has_mode = has_owner && found.is_some_and(|f| f.permissions == wanted);
        if inode.kind != FileKind::Symlink && !has_mode {
            check("set mode", subject.set_mode(wanted));
        }
        set_all(acls);
        let times = NewTimes {
            mtime: Some(inode.times.mtime),
            atime: inode.times.atime,
        };
        check("set times", subject.set_times(times));
    }

    /// The permission bits to set before the ACL, which sets its own bits when it is restored. With
    /// another owner, set-uid and set-gid would grant the rights of the wrong user.
    fn permissions(&self, inode: &Inode, is_owned: bool, has_ids: bool) -> u16 {
        let stored = inode.attributes.permissions;
        let ids = if has_ids { Ids::Kept } else { Ids::Changed };
        let bits = match inode.xattr_set.map(|_| self.image.xattrs(inode)) {
            None => stored,
            Some(Ok(set)) => permissions_without_acl(stored, &set, ids),
            // An ACL among the unreadable xattrs may deny any user.
            Some(Err(_)) => stored & 0o7700,
        };
        if is_owned || inode.kind == FileKind::Directory {
            bits
        } else {
            bits & !0o6000
        }
    }

    fn wanted_xattrs(&self, inode: &Inode) -> Result<Vec<Xattr>> {
        let is_ordinary =
            |name: &[u8]| name.starts_with(b"user.") || name == ACL_ACCESS || name == ACL_DEFAULT;
        let is_wanted = |xattr: &&Xattr| match self.policy.xattrs {
            XattrPolicy::Nothing => false,
            XattrPolicy::Ordinary => is_ordinary(&xattr.name),
            XattrPolicy::Everything => true,
        };
        if inode.xattr_set.is_none() || self.policy.xattrs == XattrPolicy::Nothing {
            return Ok(Vec::new());
        }
        Ok(self
            .image
            .xattrs(inode)?
            .iter()
            .filter(is_wanted)
            .filter_map(|xattr| self.policy.attributes.xattr_of(xattr))
            .collect())
    }

    /// The attributes of an inode, with the ids that it gets.
    fn attributes_of(&self, inode: &Inode) -> Attributes {
        self.policy.attributes.attributes_of(inode.attributes)
    }
}

impl Subject<'_> {
    fn stat(self) -> io::Result<Stat> {
        match self {
            Self::Open(fd) => weald_sys::stat_fd(fd),
            Self::Named(dir, name) => weald_sys::stat_at(dir, name),
        }
    }

    fn set_owner(self, uid: u32, gid: u32) -> io::Result<()> {
        match self {
            Self::Open(fd) => weald_sys::chown_at(fd, b"", uid, gid),
            Self::Named(dir, name) => weald_sys::chown_at(dir, name, uid, gid),
        }
    }

    fn set_mode(self, permissions: u16) -> io::Result<()> {
        match self {
            Self::Open(fd) => weald_sys::chmod_fd(fd, permissions),
            Self::Named(dir, name) => weald_sys::chmod_at(dir, name, permissions),
        }
    }

    fn set_xattr(self, xattr: &Xattr) -> io::Result<()> {
        match self {
            Self::Open(fd) => weald_sys::set_xattr_fd(fd, &xattr.name, &xattr.value),
            Self::Named(dir, name) => weald_sys::set_xattr_at(dir, name, &xattr.name, &xattr.value),
        }
    }

    fn set_times(self, times: NewTimes) -> io::Result<()> {
        match self {
            Self::Open(fd) => weald_sys::set_times_fd(fd, times),
            Self::Named(dir, name) => weald_sys::set_times_at(dir, name, times),
        }
    }
}

/// Makes an entry under a hidden name and renames it to the name of `place`.
fn replace<T>(place: &NewName<'_>, make: impl Fn(&[u8]) -> io::Result<T>) -> Result<T> {
    let made = weald_io::with_hidden_name(place.name, make);
    let (made, hidden) = made.map_err(|e| Error::io("create", e))?;
    let renamed = weald_sys::rename_at(place.fd, &hidden, place.fd, place.name);
    // rename(2) keeps both names if they are of one inode.
    let _ = weald_sys::remove_file_at(place.fd, &hidden);
    renamed.map_err(|e| Error::io("overwrite", e))?;
    Ok(made)
}

/// Removes from an existing directory the ACLs, which may let in whom the image does not, and the
/// permissions that the image's mode does not have, before the directory is filled. Its other
/// attributes come last. A directory that refuses is reported then.
pub(crate) fn restrict_existing_dir(fd: &OwnedFd, inode: &Inode) {
    if let Ok(found) = weald_sys::stat_fd(fd) {
        // The group bits of a mode with an ACL are its mask. Without it they would be the group's.
        let has_acl = weald_sys::get_xattr_at(fd, b"", ACL_ACCESS).is_ok();
        let kept = if has_acl { 0o7707 } else { 0o7777 };
        let wanted = found.permissions & kept & (inode.attributes.permissions | FILLING_DIR);
        if wanted != found.permissions {
            let _ = weald_sys::chmod_fd(fd, wanted);
        }
        for name in [ACL_DEFAULT, ACL_ACCESS] {
            let _ = weald_sys::remove_xattr_at(fd, b"", name);
        }
    }
}

/// Refuses names that lead out of the directory. The reader refuses them too; this is the second
/// guard of the host.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    let is_bad = matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0);
    if is_bad {
        Err(Error::invalid("a name that no directory may hold"))
    } else {
        Ok(())
    }
}

fn node_kind(inode: &Inode) -> Result<NodeKind> {
    let rdev = inode.attributes.rdev;
    Ok(match inode.kind {
        FileKind::Fifo => NodeKind::Fifo,
        FileKind::Socket => NodeKind::Socket,
        FileKind::CharDevice => NodeKind::CharDevice(rdev),
        FileKind::BlockDevice => NodeKind::BlockDevice(rdev),
        FileKind::Directory | FileKind::Regular | FileKind::Symlink => {
            return Err(Error::invalid("not a special file"));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", ".", "..", "/", "a/b", "../x", "a\0b"] {
            assert!(check_name(name.as_bytes()).is_err(), "{name:?}");
        }
        for name in ["a", "...", "..a", " ", "\n"] {
            assert!(check_name(name.as_bytes()).is_ok(), "{name:?}");
        }
    }
}
