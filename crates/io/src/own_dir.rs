//! Directories that no other user can enter or replace: the runtime directory of a user.
//!
//! A directory is opened once, without following a symlink, and checked through its descriptor.

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use weald_format::{Error, Result};

/// Permission bits that the runtime directory must not have: all bits of group and others.
const MODE_OF_OTHERS: u32 = 0o077;

/// Runtime directory of the user with `uid`: `WEALD_RUNTIME_DIR`, else `/run/weald` for root, else
/// `$XDG_RUNTIME_DIR/weald` if the user owns that directory, else `/tmp/weald-UID`.
pub fn runtime_dir_path(variable: impl Fn(&str) -> Option<OsString>, uid: u32) -> PathBuf {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(dir) = set("WEALD_RUNTIME_DIR") {
        return dir.into();
    }
    if uid == 0 {
        return "/run/weald".into();
    }
    let is_own = |dir: &PathBuf| std::fs::metadata(dir).is_ok_and(|stat| stat.uid() == uid);
    match set("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_own) {
        Some(dir) => dir.join("weald"),
        None => format!("/tmp/weald-{uid}").into(),
    }
}

/// A directory of this user that no other user can enter, opened and checked.
#[derive(Debug)]
pub struct OwnDir {
    dir: OwnedFd,
    path: PathBuf,
}

impl OwnDir {
    /// Opens the directory at `path`. Creates it and its parents if they are missing.
    ///
    /// # Errors
    /// `Invalid` if other users own or can enter the directory; `Io`.
    pub fn make(path: &Path) -> Result<Self> {
        match Self::find(path)? {
            Some(own_dir) => Ok(own_dir),
            None => {
                let path = plain(path)?;
                Self::checked(make_dirs(&path)?, path)
            }
        }
    }

    /// Opens the directory at `path`; `None` if it does not exist.
    ///
    /// # Errors
    /// As [`OwnDir::make`].
    pub fn find(path: &Path) -> Result<Option<Self>> {
        let path = plain(path)?;
        // Without `DIRECTORY`, open(2) opens a symlink, and the message can name it.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(dir) => Self::checked(dir, path).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(error_at(&path, errno)),
        }
    }

    fn checked(dir: OwnedFd, path: PathBuf) -> Result<Self> {
        let stat = rustix::fs::fstat(&dir).map_err(|errno| error_at(&path, errno))?;
        check_dir(&stat, &path)?;
        Ok(Self { dir, path })
    }

    /// The absolute path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor, opened with `O_PATH`, and the absolute path.
    pub fn into_parts(self) -> (OwnedFd, PathBuf) {
        (self.dir, self.path)
    }
}

/// Absolute path without a trailing `/` or `/.`, which would make the kernel follow a symlink.
fn plain(path: &Path) -> Result<PathBuf> {
    let path =
        std::path::absolute(path).map_err(|error| Error::io(path.display().to_string(), error))?;
    Ok(path.components().collect())
}

/// Creates the directory `path` and its missing parents, without following a symlink among them.
fn make_dirs(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut above = path.ancestors().skip(1);
    let (mut at, mut dir) = loop {
        let Some(ancestor) = above.next() else {
            return Err(error_at(path, Errno::NOENT));
        };
        match rustix::fs::open(ancestor, flags, Mode::empty()) {
            Ok(dir) => break (ancestor.to_owned(), dir),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(error_at(ancestor, errno)),
        }
    };
    let missing = path.strip_prefix(&at).unwrap_or(path).to_owned();
    for component in missing.components() {
        let Component::Normal(name) = component else {
            let text = format!("{}: '..' below a missing directory", path.display());
            return Err(Error::invalid(text));
        };
        at.push(name);
        let mode = if at == path { 0o700 } else { 0o755 };
        // The umask only clears bits.
        match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(error_at(&at, errno)),
        }
        dir = rustix::fs::openat(&dir, name, flags | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|errno| error_at(&at, errno))?;
        let stat = rustix::fs::fstat(&dir).map_err(|errno| error_at(&at, errno))?;
        check_owner(&stat, &at)?;
    }
    Ok(dir)
}

fn check_owner(stat: &Stat, path: &Path) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid == own {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{}: expected a directory of user {own}, found one of user {} with mode {:04o}; set \
         WEALD_RUNTIME_DIR to a directory of your own",
        path.display(),
        stat.st_uid,
        stat.st_mode & 0o7777
    )))
}

/// Refuses a directory that other users own or can enter, and other files.
fn check_dir(stat: &Stat, path: &Path) -> Result<()> {
    let shown = path.display();
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {}
        FileType::Symlink => {
            return Err(Error::invalid(format!(
                "{shown}: expected a directory for sockets, found a symbolic link of user {}; \
                 remove it, or set WEALD_RUNTIME_DIR to the directory itself",
                stat.st_uid
            )));
        }
        _ => return Err(Error::invalid(format!("{shown}: not a directory"))),
    }
    check_owner(stat, path)?;
    if stat.st_mode & MODE_OF_OTHERS == 0 {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{shown}: mode {:04o} gives other users access to the sockets, expected mode 0700; run \
         'chmod 700 {shown}', or set WEALD_RUNTIME_DIR to another directory",
        stat.st_mode & 0o7777
    )))
}

fn error_at(path: &Path, errno: Errno) -> Error {
    Error::io(path.display().to_string(), errno.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables<'a>(set: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| {
            set.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.into())
        }
    }

    #[test]
    fn the_directory_is_found_by_user_and_environment() {
        let named = [("WEALD_RUNTIME_DIR", "/x"), ("XDG_RUNTIME_DIR", "/y")];
        assert_eq!(runtime_dir_path(variables(&named), 7), Path::new("/x"));
        assert_eq!(
            runtime_dir_path(variables(&named[1..]), 0),
            Path::new("/run/weald")
        );
        assert_eq!(
            runtime_dir_path(variables(&[]), 7),
            Path::new("/tmp/weald-7")
        );
        let others = [("XDG_RUNTIME_DIR", "/proc/self")];
        assert_eq!(
            runtime_dir_path(variables(&others), 4_000_000),
            Path::new("/tmp/weald-4000000")
        );
        let base = tempfile::tempdir().expect("directory");
        let uid = rustix::process::geteuid().as_raw();
        let own = [("XDG_RUNTIME_DIR", base.path().to_str().expect("UTF-8"))];
        if uid != 0 {
            assert_eq!(
                runtime_dir_path(variables(&own), uid),
                base.path().join("weald")
            );
        }
    }
}
