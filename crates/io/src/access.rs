//! Access rights of a file that replaces another. The new file allows what the old one allowed, and
//! never more.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use weald_sys::Stat;

const ACL_ACCESS: &[u8] = b"system.posix_acl_access";

/// Permissions of a file that is not complete: only its owner has access.
pub(crate) const UNFINISHED_MODE: u16 = 0o600;

/// Whether new files of this process are for their owner alone. Belongs to the process as its umask
/// does, which says the same to files that this crate does not make.
static ARE_PRIVATE: AtomicBool = AtomicBool::new(false);

/// Makes new files of this process for their owner alone, whatever a default ACL of their directory
/// gives to others: such an ACL overrides a umask. A file that replaces another keeps the rights of
/// that one.
pub fn keep_new_files_private() {
    const GROUP_AND_OTHERS: u32 = 0o077;
    let mask = rustix::fs::Mode::from_raw_mode(GROUP_AND_OTHERS);
    let old = rustix::process::umask(mask);
    rustix::process::umask(old | mask);
    ARE_PRIVATE.store(true, Ordering::Relaxed);
}

/// Whether [`keep_new_files_private`] was called.
pub fn are_new_files_private() -> bool {
    ARE_PRIVATE.load(Ordering::Relaxed)
}

/// Returns the final mode of a new file that was made with `mode`, which a default ACL of the
/// directory may have given. Takes the ACL away from a private file.
///
/// # Errors
/// Those of the system.
pub(crate) fn mode_of_new(file: &File, mode: u16) -> io::Result<u16> {
    if !are_new_files_private() {
        return Ok(mode);
    }
    remove_acl(file)?;
    Ok(mode & 0o700)
}

/// Removes the access ACL of a file, if it has one.
///
/// # Errors
/// Those of the system.
pub fn remove_acl(file: &File) -> io::Result<()> {
    match weald_sys::remove_xattr_fd(file, ACL_ACCESS) {
        Err(error) if !is_none(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Gives `new` the owner, group, mode and POSIX ACL of `old`. If the owner or the group cannot be
/// kept, `new` gets no ACL and a mode that allows no user more than `old` allowed. Set-uid and
/// set-gid bits are cleared, as the kernel does when a file is written. Returns a message about
/// what could not be kept.
///
/// # Errors
/// Those of the system. An owner or an ACL that cannot be kept is no error.
pub(crate) fn keep(old: impl AsFd, new: &File) -> io::Result<Option<String>> {
    let was = weald_sys::stat_fd(&old)?;
    let now = weald_sys::stat_fd(new)?;
    let acl = acl_of(&old)?;
    let mut kept = Kept {
        owner: now.uid == was.uid,
        group: now.gid == was.gid,
    };
    if !(kept.owner && kept.group) {
        if weald_sys::chown_fd(new, Some(was.uid), Some(was.gid)).is_ok() {
            (kept.owner, kept.group) = (true, true);
        } else if !kept.group {
            kept.group = weald_sys::chown_fd(new, None, Some(was.gid)).is_ok();
        }
    }
    // The new file may have an ACL from the default ACL of its directory.
    remove_acl(new)?;
    if let Some(acl) = &acl
        && kept.owner
        && kept.group
        && weald_sys::set_xattr_fd(new, ACL_ACCESS, acl).is_ok()
    {
        set_mode(new, was.permissions & 0o1777)?;
        return Ok(None);
    }
    let granted = match &acl {
        None => was.permissions & 0o1777,
        Some(acl) => without_acl(was.permissions & 0o1777, acl),
    };
    set_mode(new, reduced(granted, kept))?;
    let is_same = kept.owner && kept.group && acl.is_none();
    if is_same {
        Ok(None)
    } else {
        Ok(Some(difference(
            &was,
            &weald_sys::stat_fd(new)?,
            acl.is_some(),
        )))
    }
}

/// One line about a new file whose owner, group or ACL is not that of the file it replaced.
fn difference(was: &Stat, now: &Stat, had_acl: bool) -> String {
    let acl = if had_acl { ", with an ACL" } else { "" };
    format!(
        "owner {}:{} and mode {:04o}{acl} of the replaced file cannot be kept: the new file has \
         owner {}:{} and mode {:04o}",
        was.uid, was.gid, was.permissions, now.uid, now.gid, now.permissions
    )
}

/// Sets the mode of `file` if it differs. A file system without modes refuses every chmod(2).
///
/// # Errors
/// Those of the system.
pub(crate) fn set_mode(file: &File, permissions: u16) -> io::Result<()> {
    if weald_sys::stat_fd(file)?.permissions == permissions {
        Ok(())
    } else {
        weald_sys::chmod_fd(file, permissions)
    }
}

/// Whether the new file has the owner and the group of the old one.
#[derive(Clone, Copy)]
struct Kept {
    owner: bool,
    group: bool,
}

/// The mode of a new file whose owner or group differs from that of the old file with `mode`.
///
/// The old owner now has the rights of the group or of others, so neither gets more than the owner
/// had. A member of the old group now has the rights of others. A member of the new group had the
/// rights of others or of the old group.
fn reduced(mode: u16, kept: Kept) -> u16 {
    let (user, mut group, mut other) = (mode >> 6 & 7, mode >> 3 & 7, mode & 7);
    if !kept.group {
        other &= group;
        group = other;
    }
    if !kept.owner {
        group &= user;
        other &= user;
    }
    mode & !0o77 | group << 3 | other
}

/// The mode that allows no more than `mode` and `acl` together. The group bits of `mode` are the
/// mask of the ACL. Group and others are denied what any entry denies. An ACL that cannot be parsed
/// allows only the owner.
fn without_acl(mode: u16, acl: &[u8]) -> u16 {
    const USER_OBJ: u16 = 1;
    const OTHER: u16 = 32;
    const MASK: u16 = 16;
    let Some((version, entries)) = acl.split_first_chunk::<4>() else {
        return mode & !0o77;
    };
    let (entries, rest) = entries.as_chunks::<8>();
    if u32::from_le_bytes(*version) != 2 || !rest.is_empty() {
        return mode & !0o77;
    }
    let mask = mode >> 3 & 7;
    let named = entries.iter().filter_map(|entry| {
        let [tag, tag_high, allowed, ..] = *entry;
        let tag = u16::from_le_bytes([tag, tag_high]);
        (!matches!(tag, USER_OBJ | MASK | OTHER)).then_some(u16::from(allowed) & mask)
    });
    let group = named.fold(mask, |all, allowed| all & allowed);
    mode & !0o77 | group << 3 | (mode & 7 & group)
}

fn acl_of(file: impl AsFd) -> io::Result<Option<Vec<u8>>> {
    match weald_sys::get_xattr_fd(file, ACL_ACCESS) {
        Ok(acl) => Ok(Some(acl)),
        Err(error) if is_none(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the file has no such xattr, or the file system has no xattrs.
fn is_none(error: &io::Error) -> bool {
    let errno = error
        .raw_os_error()
        .map(rustix::io::Errno::from_raw_os_error);
    matches!(
        errno,
        Some(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a user who gets more rights, in any combination of classes before and after.
    #[test]
    fn nobody_gains_by_another_owner() {
        for mode in 0..0o1000 {
            let class = |mode: u16, shift: u16| mode >> shift & 7;
            for kept in [(true, false), (false, true), (false, false)] {
                let new = reduced(
                    mode,
                    Kept {
                        owner: kept.0,
                        group: kept.1,
                    },
                );
                // Bits: owner of the old file, member of the old group, member of the new group.
                for person in 0..8 {
                    let [owner, old_group, new_group] = [1, 2, 4].map(|bit| person & bit != 0);
                    let new_group = if kept.1 { old_group } else { new_group };
                    let pick = |mode, owner, group| match (owner, group) {
                        (true, _) => class(mode, 6),
                        (_, true) => class(mode, 3),
                        _ => class(mode, 0),
                    };
                    let before = pick(mode, owner, old_group);
                    let after = pick(new, owner && kept.0, new_group);
                    assert_eq!(
                        after & !before,
                        0,
                        "{mode:o} became {new:o}: {person} {kept:?}"
                    );
                }
            }
        }
        assert_eq!(
            reduced(
                0o644,
                Kept {
                    owner: false,
                    group: true
                }
            ),
            0o644
        );
    }

    #[test]
    fn a_mode_instead_of_an_acl_allows_what_every_entry_allows() {
        let acl = |entries: &[(u16, u16)]| {
            let entry = |&(tag, allowed): &(u16, u16)| {
                [&tag.to_le_bytes()[..], &allowed.to_le_bytes(), &[0; 4]].concat()
            };
            [2_u32.to_le_bytes().to_vec()]
                .into_iter()
                .chain(entries.iter().map(entry))
                .collect::<Vec<_>>()
                .concat()
        };
        let denied = acl(&[(1, 6), (2, 0), (4, 4), (16, 4), (32, 4)]);
        assert_eq!(without_acl(0o644, &denied), 0o600);
        let given = acl(&[(1, 6), (2, 6), (4, 0), (16, 6), (32, 4)]);
        assert_eq!(without_acl(0o664, &given), 0o600);
        let same = acl(&[(1, 6), (2, 4), (4, 6), (16, 6), (32, 4)]);
        assert_eq!(without_acl(0o664, &same), 0o644);
        assert_eq!(without_acl(0o664, b"?"), 0o600);
    }
}
