//! Where an entry of a source is, and what a symlink leads to that is followed.

use super::queue::{Node, path_of};
use crate::options::walk::FollowLinks;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use weald_format::{ACL_ACCESS, Error, FileKind, Ids, permissions_without};
use weald_sys::Stat;

/// The place of an entry: a name in a directory, or what a symlink of this name leads to.
pub struct At<'a> {
    pub dir: BorrowedFd<'a>,
    pub name: &'a [u8],
    /// What the symlink leads to, opened as `O_PATH`.
    pub followed: Option<&'a OwnedFd>,
    /// Its path from the root of the source, if a script is asked about it.
    pub path: &'a [u8],
}

impl<'a> At<'a> {
    /// The entry `name` in `dir` itself.
    pub fn name(dir: BorrowedFd<'a>, name: &'a [u8]) -> Self {
        Self {
            dir,
            name,
            followed: None,
            path: name,
        }
    }

    /// Permission bits of the entry, which has `permissions`, for an image without its ACL.
    pub fn permissions_without_acl(&self, permissions: u16) -> u16 {
        if permissions & 0o077 == 0 {
            return permissions;
        }
        let acl = match self.followed {
            Some(file) => weald_sys::get_xattr_fd(file, ACL_ACCESS),
            None => weald_sys::get_xattr_at(self.dir, self.name, ACL_ACCESS),
        };
        match acl {
            Ok(acl) => permissions_without(permissions, &acl, Ids::Kept),
            Err(error) if weald_sys::is_without_xattr(&error) => permissions,
            // The ACL may deny access to anyone, so only the owner keeps permissions.
            Err(_) => permissions & 0o7700,
        }
    }
}

/// What `name` in `dir` is, which lies in the directory `node` and is `stat` itself: that, or what
/// it leads to if it is a symlink that is followed, with its file.
///
/// # Errors
/// The problem, if it leads to nothing.
pub fn lead(
    follow: FollowLinks,
    dir: BorrowedFd<'_>,
    name: &[u8],
    stat: Stat,
    node: &Node<'_>,
) -> Result<(Stat, Option<OwnedFd>), String> {
    if follow == FollowLinks::None || stat.kind != FileKind::Symlink {
        return Ok((stat, None));
    }
    let mut target = Vec::new();
    weald_sys::read_link_at(dir, name, &mut target)
        .map_err(|e| format!("target cannot be read: {e}"))?;
    if !follow.follows(node.above().count(), &target) {
        return Ok((stat, None));
    }
    let found = weald_sys::open_followed_at(dir, name);
    let found = found.and_then(|file| Ok((weald_sys::stat_fd(&file)?, file)));
    match found {
        Ok((stat, file)) => Ok((stat, Some(file))),
        Err(error) => {
            let why = match error.kind() {
                io::ErrorKind::NotFound => "which is not there".to_owned(),
                _ => error.to_string(),
            };
            let target = String::from_utf8_lossy(&target);
            Err(format!("left out: a symlink to {target}: {why}"))
        }
    }
}

/// The error of a directory that is one of those above it.
pub fn cycle(node: &Node<'_>) -> Option<Error> {
    let above = node.above().find(|above| above.id == node.id)?;
    let shown = |node| match path_of(node, b"") {
        path if path.is_empty() => "the source itself".to_owned(),
        path => String::from_utf8_lossy(&path).into_owned(),
    };
    Some(Error::invalid(format!(
        "{}: leads back to {}, and would contain itself without end: --exclude leaves it out",
        shown(node),
        shown(above)
    )))
}
