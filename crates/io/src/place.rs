//! Resolves the path of an output component by component through descriptors. It follows only
//! symlinks that no other user can have planted.
//!
//! The kernel's `fs.protected_symlinks` guards only the last component of an open(2) that follows
//! it. An output that replaces a file does not open that file, and the setting may be off. So this
//! module applies the rule to every component, whatever the setting.

use std::ffi::OsStr;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weald_format::FileKind;
use weald_sys::Stat;

/// Symlinks followed in one path: the limit of Linux (`MAXSYMLINKS`).
const LINK_COUNT_MAX: u32 = 40;

/// Destination of a path.
pub(crate) enum Target {
    /// A name in a directory (`O_PATH`).
    Name(Named),
    /// A directory whose path ends in no name: `.`, `..`, `/`.
    Dir(OwnedFd),
    /// The file behind an open descriptor of one of the caller's processes (`/dev/stdout`,
    /// `/dev/fd/3`), if it is a pipe, a device or a file without a name.
    Opened(OwnedFd),
}

/// A name in a directory, which may have an inode.
pub struct Named {
    /// The directory (`O_PATH`).
    pub dir: OwnedFd,
    /// The name in it.
    pub name: Vec<u8>,
    /// The inode with that name (`O_PATH`), never a symlink.
    pub node: Option<(OwnedFd, Stat)>,
    /// The last component of the path is a symlink to this name.
    pub is_through_link: bool,
}

/// Finds the place that `path` names, as an [`crate::OutputFile`] does: no symlink that another
/// user can have planted is followed. A call through the descriptors then acts on this place,
/// whatever the path leads to by that time.
///
/// # Errors
/// Those of the system, `NotFound` if the directory is missing; `PermissionDenied` with its own
/// message for a symlink that is not followed; `InvalidInput` if the path ends in no name.
pub fn locate(path: &Path) -> Result<Named> {
    match resolve(path, false)? {
        Target::Name(named) => Ok(named),
        Target::Dir(_) | Target::Opened(_) => {
            Err(Error::new(ErrorKind::InvalidInput, "ends in no name"))
        }
    }
}

/// Opens the directory at `path`, found as by [`locate`]. It can be read and synced.
///
/// # Errors
/// As [`locate`]; `NotADirectory`.
pub fn locate_dir(path: &Path) -> Result<OwnedFd> {
    let place = match resolve(path, false)? {
        Target::Dir(dir) => dir,
        Target::Opened(_) => return Err(ErrorKind::NotADirectory.into()),
        Target::Name(named) => named.node.ok_or(ErrorKind::NotFound)?.0,
    };
    weald_sys::open_dir_at(place, b".")
}

/// Resolves `path`. `makes_parents` makes missing directories, except the last component, with mode
/// 0777 less the umask.
///
/// # Errors
/// Those of the system; `PermissionDenied` with its own message for a symlink that is not followed.
pub(crate) fn resolve(path: &Path, makes_parents: bool) -> Result<Target> {
    let mut resolver = Resolver::from(path.as_os_str().as_bytes(), makes_parents)?;
    while let Some(name) = resolver.remaining.pop() {
        if let Some(target) = resolver.step(name)? {
            return Ok(target);
        }
    }
    Ok(Target::Dir(resolver.dir))
}

/// Opens the directory at `path` for an output, or makes it with mode 0700. Missing parents get
/// mode 0777 less the umask. Returns whether the directory is new.
///
/// # Errors
/// `NotFound`, `Io`, also for a symlink that neither root nor the caller made.
pub fn open_or_make_dir(path: &Path) -> weald_format::Result<(OwnedFd, bool)> {
    let opened = open_or_make(path);
    opened.map_err(|e| weald_format::Error::io(path.display().to_string(), e))
}

fn open_or_make(path: &Path) -> Result<(OwnedFd, bool)> {
    // With a slash at the end the last component would be made as a parent.
    let bytes = path.as_os_str().as_bytes();
    let end = bytes
        .iter()
        .rposition(|&b| b != b'/')
        .map_or(1, |at| at + 1);
    let path = Path::new(OsStr::from_bytes(bytes.get(..end).unwrap_or_default()));
    let named = match resolve(path, true)? {
        Target::Opened(_) => return Err(ErrorKind::NotADirectory.into()),
        Target::Dir(dir) => return Ok((weald_sys::open_dir_at(dir, b".")?, false)),
        Target::Name(named) => named,
    };
    if let Some((node, _)) = named.node {
        return Ok((weald_sys::open_dir_at(node, b".")?, false));
    }
    weald_sys::make_dir_at(&named.dir, &named.name, 0o700)?;
    let made = weald_sys::open_dir_at(&named.dir, &named.name)?;
    let stat = weald_sys::stat_fd(&made)?;
    if stat.uid == weald_sys::effective_ids().0 {
        Ok((made, true))
    } else {
        Err(Error::other("was replaced by somebody else's directory"))
    }
}

struct Resolver {
    dir: OwnedFd,
    /// Components not yet resolved, the next one last.
    remaining: Vec<Vec<u8>>,
    makes_parents: bool,
    link_count: u32,
    is_through_link: bool,
}

impl Resolver {
    fn from(path: &[u8], makes_parents: bool) -> Result<Self> {
        let mut resolver = Self {
            dir: weald_sys::open_place_at(weald_sys::WORKING_DIR, b".")?,
            remaining: Vec::new(),
            makes_parents,
            link_count: 0,
            is_through_link: false,
        };
        resolver.push(path)?;
        Ok(resolver)
    }

    /// Puts the components of `path` before the remaining ones.
    fn push(&mut self, path: &[u8]) -> Result<()> {
        if path.is_empty() {
            return Err(ErrorKind::NotFound.into());
        }
        if path.starts_with(b"/") {
            self.dir = weald_sys::open_place_at(weald_sys::WORKING_DIR, b"/")?;
        }
        let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
        let names = names.map(<[u8]>::to_vec);
        // A path with a slash at its end names a directory.
        let end = path.ends_with(b"/").then(|| b".".to_vec());
        let names: Vec<_> = names.chain(end).collect();
        self.remaining.extend(names.into_iter().rev());
        Ok(())
    }

    fn step(&mut self, name: Vec<u8>) -> Result<Option<Target>> {
        if name == b"." {
            return Ok(None);
        }
        let is_last = self.remaining.is_empty();
        if !is_last || name == b".." {
            match self.enter(&name) {
                Err(error) if error.kind() == ErrorKind::NotADirectory => {}
                entered => return entered.map(|()| None),
            }
        }
        let node = match weald_sys::open_node_at(&self.dir, &name) {
            Err(error) if is_last && error.kind() == ErrorKind::NotFound => None,
            node => {
                let node = node?;
                let stat = weald_sys::stat_fd(&node)?;
                Some((node, stat))
            }
        };
        match node {
            Some((link, stat)) if stat.kind == FileKind::Symlink => {
                self.is_through_link |= is_last;
                self.follow(&name, &link, &stat)
            }
            _ if !is_last => Err(ErrorKind::NotADirectory.into()),
            node => Ok(Some(Target::Name(Named {
                dir: self.dir.try_clone()?,
                name,
                node,
                is_through_link: self.is_through_link,
            }))),
        }
    }

    fn enter(&mut self, name: &[u8]) -> Result<()> {
        self.dir = match weald_sys::open_place_at(&self.dir, name) {
            Err(error) if self.makes_parents && error.kind() == ErrorKind::NotFound => {
                match weald_sys::make_dir_at(&self.dir, name, 0o777) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                    _ => weald_sys::open_place_at(&self.dir, name)?,
                }
            }
            opened => opened?,
        };
        Ok(())
    }

    /// Follows the symlink `link`, which has `name` in the current directory.
    fn follow(&mut self, name: &[u8], link: &OwnedFd, stat: &Stat) -> Result<Option<Target>> {
        let dir = weald_sys::stat_fd(&self.dir)?;
        if !may_follow(stat, &dir, weald_sys::effective_ids().0) {
            let (name, uid) = (String::from_utf8_lossy(name), stat.uid);
            let what = format!(
                "'{name}' on the way is a symlink that user {uid} may have planted: only \
                 symlinks of root and your own are followed to an output; name the place itself"
            );
            return Err(Error::new(ErrorKind::PermissionDenied, what));
        }
        self.link_count += 1;
        if self.link_count > LINK_COUNT_MAX {
            return Err(Error::other("too many symlinks on the way"));
        }
        if weald_sys::is_in_proc(link) {
            let opened = weald_sys::open_followed_at(&self.dir, name)?;
            let found = weald_sys::stat_fd(&opened)?;
            let has_path = match found.kind {
                FileKind::Directory => true,
                FileKind::Regular => found.nlink > 0,
                _ => false,
            };
            if !has_path {
                return Ok(Some(Target::Opened(opened)));
            }
        }
        let mut target = Vec::new();
        weald_sys::read_link_at(link, b"", &mut target)?;
        self.push(&target)?;
        Ok(None)
    }
}

/// Whether the user `uid` may follow `link` in `dir` to an output: links of root and of `uid`
/// itself. In a sticky directory in which every user may make entries (`/tmp`), links of root count
/// only if root owns the directory, as with `fs.protected_symlinks`.
///
/// # Source
/// `may_follow_link` in Linux, `fs/namei.c`.
fn may_follow(link: &Stat, dir: &Stat, uid: u32) -> bool {
    let is_shared = dir.permissions & 0o1002 == 0o1002;
    link.uid == uid || (link.uid == 0 && (!is_shared || dir.uid == 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn stat(uid: u32, permissions: u16) -> Stat {
        let file = std::fs::File::open("/dev/null").unwrap();
        Stat {
            uid,
            permissions,
            ..weald_sys::stat_fd(&file).unwrap()
        }
    }

    #[test]
    fn only_links_of_root_and_of_the_caller_are_followed() {
        // Owner of the link; owner and mode of the directory; caller; whether it is followed.
        let cases = [
            (0, 0, 0o755, 0, true),
            (0, 0, 0o755, 7, true),
            (7, 7, 0o755, 7, true),
            (8, 7, 0o777, 7, false),
            (8, 8, 0o755, 0, false),
            (0, 0, 0o1777, 7, true),
            (7, 0, 0o1777, 7, true),
            (8, 0, 0o1777, 7, false),
            (8, 8, 0o1777, 7, false),
            (0, 8, 0o1777, 7, false),
            (0, 8, 0o1777, 0, true),
        ];
        for (link, dir, mode, caller, expected) in cases {
            let found = may_follow(&stat(link, 0o777), &stat(dir, mode), caller);
            assert_eq!(found, expected, "{link} {dir} {mode:o} {caller}");
        }
    }

    #[test]
    fn paths_lead_where_the_kernel_goes() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/file"), b"").unwrap();
        symlink("a/b", at("to-b")).unwrap();
        symlink("../file", at("a/b/to-file")).unwrap();
        symlink("nowhere", at("a/b/dangling")).unwrap();
        symlink(at("a"), at("a/absolute")).unwrap();
        symlink("loop", at("loop")).unwrap();
        for path in [
            "a/file",
            "to-b/to-file",
            "to-b/../file",
            "a//absolute/./b/to-file",
        ] {
            let Target::Name(found) = resolve(&at(path), false).unwrap() else {
                panic!("{path} is no name");
            };
            let kernel = weald_sys::stat_fd(std::fs::File::open(at(path)).unwrap()).unwrap();
            assert_eq!(found.node.unwrap().1.ino, kernel.ino, "{path}");
            assert_eq!(found.name, b"file");
        }
        for path in ["to-b/dangling", "a/b/nowhere"] {
            match resolve(&at(path), false).unwrap() {
                Target::Name(found) => assert!(found.node.is_none() && found.name == b"nowhere"),
                _ => panic!("{path} is no name"),
            }
        }
        for path in ["a/..", "to-b/", "/", "a/b/."] {
            assert!(
                matches!(resolve(&at(path), false).unwrap(), Target::Dir(_)),
                "{path}"
            );
        }
        for path in ["loop", "missing/x", "a/file/x", "a/file/", ""] {
            let path = if path.is_empty() {
                path.into()
            } else {
                at(path)
            };
            assert!(resolve(&path, false).is_err(), "{path:?}");
        }
        assert!(matches!(
            resolve(&at("new/x/y"), true).unwrap(),
            Target::Name(_)
        ));
        assert!(at("new/x").is_dir() && !at("new/x/y").exists());
    }
}
