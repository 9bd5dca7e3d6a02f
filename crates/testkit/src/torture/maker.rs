//! Makes inodes in one directory, with errors that name the path.

use crate::Rng;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use weald_format::{Error, FileKind, Result, Timestamp};
use weald_sys::{DirBuffer, NewTimes, NodeKind};

/// An open directory in which inodes are made.
pub struct Maker {
    pub fd: OwnedFd,
    pub path: PathBuf,
}

impl Maker {
    /// Opens the existing directory `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let fd =
            weald_sys::open_dir(path).map_err(|e| Error::io(format!("{}", path.display()), e))?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// Adds the operation and the path of `name` to an error.
    pub fn named<T>(&self, name: &[u8], what: &str, result: std::io::Result<T>) -> Result<T> {
        let place = format!("{}/{}", self.path.display(), name.escape_ascii());
        result.map_err(|e| Error::io(format!("{what} {place}"), e))
    }

    /// Makes and opens a directory.
    pub fn dir(&self, name: impl AsRef<[u8]>) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let name = name.as_ref();
        self.named(
            name,
            "make directory",
            weald_sys::make_dir_at(&self.fd, name, 0o755),
        )?;
        self.chmod(name, 0o755)?;
        let fd = self.named(name, "open", weald_sys::open_dir_at(&self.fd, name))?;
        Ok(Self {
            fd,
            path: self.path.join(std::ffi::OsStr::from_bytes(name)),
        })
    }

    /// Makes a regular file.
    pub fn file(&self, name: impl AsRef<[u8]>, content: &[u8]) -> Result<()> {
        self.pieces(name, content.len() as u64, &[(0, content)])
    }

    /// Makes a regular file of `len` bytes: a hole with pieces of data (offset, bytes).
    pub fn pieces(&self, name: impl AsRef<[u8]>, len: u64, pieces: &[(u64, &[u8])]) -> Result<()> {
        let name = name.as_ref();
        let file = self.named(
            name,
            "create",
            weald_sys::create_file_at(&self.fd, name, 0o644),
        )?;
        self.named(name, "lengthen", file.set_len(len))?;
        for (offset, bytes) in pieces {
            self.named(name, "write", file.write_all_at(bytes, *offset))?;
        }
        self.named(name, "chmod", weald_sys::chmod_fd(&file, 0o644))
    }

    /// Makes a special or empty file.
    pub fn node(&self, name: impl AsRef<[u8]>, kind: NodeKind) -> Result<()> {
        let name = name.as_ref();
        self.named(
            name,
            "make node",
            weald_sys::make_node_at(&self.fd, name, kind, 0o644),
        )?;
        self.chmod(name, 0o644)
    }

    /// Makes a symlink.
    pub fn symlink(&self, name: impl AsRef<[u8]>, target: &[u8]) -> Result<()> {
        let name = name.as_ref();
        self.named(
            name,
            "make symlink",
            weald_sys::make_symlink_at(target, &self.fd, name),
        )
    }

    /// Makes a hard link to `old` in `old_dir`.
    pub fn link(
        &self,
        name: impl AsRef<[u8]>,
        old_dir: &Maker,
        old: impl AsRef<[u8]>,
    ) -> Result<()> {
        let name = name.as_ref();
        self.named(
            name,
            "link",
            weald_sys::link_at(&old_dir.fd, old.as_ref(), &self.fd, name),
        )
    }

    /// Sets permissions.
    pub fn chmod(&self, name: impl AsRef<[u8]>, permissions: u16) -> Result<()> {
        let name = name.as_ref();
        self.named(
            name,
            "chmod",
            weald_sys::chmod_at(&self.fd, name, permissions),
        )
    }

    /// Sets the owner.
    pub fn chown(&self, name: impl AsRef<[u8]>, uid: u32, gid: u32) -> Result<()> {
        let name = name.as_ref();
        self.named(name, "chown", weald_sys::chown_at(&self.fd, name, uid, gid))
    }

    /// Sets an xattr.
    pub fn xattr(
        &self,
        name: impl AsRef<[u8]>,
        xattr: impl AsRef<[u8]>,
        value: &[u8],
    ) -> Result<()> {
        let (name, xattr) = (name.as_ref(), xattr.as_ref());
        let what = format!("set xattr {} of", xattr.escape_ascii());
        self.named(
            name,
            &what,
            weald_sys::set_xattr_at(&self.fd, name, xattr, value),
        )
    }

    /// Sets the mtime of `name`, or of the directory itself if `name` is empty. Checks that the
    /// file system stored it exactly.
    pub fn set_mtime(&self, name: impl AsRef<[u8]>, mtime: Timestamp) -> Result<()> {
        let name = name.as_ref();
        let times = NewTimes {
            mtime: Some(mtime),
            atime: None,
        };
        self.named(
            name,
            "set times of",
            weald_sys::set_times_at(&self.fd, name, times),
        )?;
        let kept = self
            .named(name, "stat", weald_sys::stat_at(&self.fd, name))?
            .mtime;
        if kept == mtime {
            Ok(())
        } else {
            Err(Error::invalid(format!(
                "{}: keeps {kept:?} instead of {mtime:?}",
                self.path.display()
            )))
        }
    }

    /// Gives everything below a time between 2001 and 2033 with nanoseconds, children before their
    /// directories. Skips the directories in `except`.
    pub fn set_all_times(&self, rng: &mut Rng, except: &[&str]) -> Result<()> {
        let mut names = Vec::new();
        let listed = weald_sys::read_dir(&self.fd, &mut DirBuffer::default(), |entry| {
            names.push((entry.name.to_vec(), entry.kind));
            Ok(())
        });
        self.named(b"", "list", listed)?;
        names.sort();
        for (name, kind) in names
            .iter()
            .filter(|(name, _)| !except.iter().any(|b| b.as_bytes() == name))
        {
            let kind = match kind {
                Some(kind) => *kind,
                None => {
                    self.named(name, "stat", weald_sys::stat_at(&self.fd, name))?
                        .kind
                }
            };
            if kind == FileKind::Directory {
                use std::os::unix::ffi::OsStrExt;
                let fd = self.named(name, "open", weald_sys::open_dir_at(&self.fd, name))?;
                Self {
                    fd,
                    path: self.path.join(std::ffi::OsStr::from_bytes(name)),
                }
                .set_all_times(rng, &[])?;
            }
            let seconds = 1_000_000_000 + rng.below(1_000_000_000) as i64;
            self.set_mtime(
                name,
                Timestamp {
                    seconds,
                    nanoseconds: rng.below(1_000_000_000) as u32,
                },
            )?;
        }
        Ok(())
    }
}
