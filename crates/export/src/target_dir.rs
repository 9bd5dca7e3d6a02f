//! Directories being filled: reached by descriptors only, finished (attributes, times) when their
//! last entry is.
//!
//! Invariants:
//! - A directory is kept alive by the walk that is in it, by every job for one of its entries and
//!   by its sub-directories; whoever lets go last finishes it and goes on with its parent. So a
//!   directory's times are set after everything in it exists, by any thread, with no list of
//!   directories.
//! - Descriptors are few: the walk forgets those far above it, and those that it leaves unfinished
//!   but for some. A forgotten directory is reached again through `..` of its child and recognised
//!   by device and inode number; a stranger there is an error, never written to.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use weald_format::{Error, Result};
use weald_image::Inode;
use weald_vfs::shown;

/// A directory of the target.
pub(crate) struct TargetDir {
    parent: Option<Arc<TargetDir>>,
    name: Box<[u8]>,
    handle: Mutex<Handle>,
    /// Attributes to set at the end; none for a directory that keeps its own.
    pub(crate) attributes: Option<Inode>,
    /// New entries inherit an ACL from it, which has to be taken off them.
    pub(crate) hands_down_acl: bool,
    /// The walk has left it, and its descriptor stays open until it is finished.
    pub(crate) is_kept: AtomicBool,
}

#[derive(Clone)]
enum Handle {
    Open(Arc<OwnedFd>),
    Forgotten { dev: u64, ino: u64 },
}

impl TargetDir {
    /// The root of the target.
    pub(crate) fn root(fd: OwnedFd, attributes: Option<Inode>, hands_down_acl: bool) -> Arc<Self> {
        let handle = Mutex::new(Handle::Open(Arc::new(fd)));
        Arc::new(Self {
            parent: None,
            name: Box::default(),
            handle,
            attributes,
            hands_down_acl,
            is_kept: AtomicBool::new(false),
        })
    }

    /// A directory just made or found in `parent`.
    pub(crate) fn child(
        parent: &Arc<Self>,
        name: &[u8],
        fd: OwnedFd,
        attributes: Option<Inode>,
    ) -> Arc<Self> {
        let handle = Mutex::new(Handle::Open(Arc::new(fd)));
        let parent = Some(Arc::clone(parent));
        Arc::new(Self {
            parent,
            name: name.into(),
            handle,
            attributes,
            hands_down_acl: false,
            is_kept: AtomicBool::new(false),
        })
    }

    /// The path from the root of the target of the entry `name`.
    pub(crate) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut names = vec![name];
        let mut dir = self;
        while let Some(parent) = &dir.parent {
            names.push(&dir.name);
            dir = parent;
        }
        names.retain(|name| !name.is_empty());
        names.reverse();
        names.join(&b'/')
    }

    /// Its descriptor, if it was not forgotten.
    pub(crate) fn fd(&self) -> Option<Arc<OwnedFd>> {
        match &*self.lock() {
            Handle::Open(fd) => Some(Arc::clone(fd)),
            Handle::Forgotten { .. } => None,
        }
    }

    /// Forgets the descriptor, which closes when its last user is done.
    pub(crate) fn forget(&self) -> Result<()> {
        let mut handle = self.lock();
        if let Handle::Open(fd) = &*handle {
            let stat = weald_sys::stat_fd(fd).map_err(|e| self.error("stat", e))?;
            *handle = Handle::Forgotten {
                dev: stat.dev,
                ino: stat.ino,
            };
        }
        Ok(())
    }

    /// Its descriptor, opened again through a child's if it was forgotten.
    pub(crate) fn fd_from_child(&self, child: &OwnedFd) -> Result<Arc<OwnedFd>> {
        let handle = self.lock().clone();
        let (dev, ino) = match handle {
            Handle::Open(fd) => return Ok(fd),
            Handle::Forgotten { dev, ino } => (dev, ino),
        };
        let fd = weald_sys::open_dir_at(child, b"..").map_err(|e| self.error("open again", e))?;
        let stat = weald_sys::stat_fd(&fd).map_err(|e| self.error("stat", e))?;
        if (stat.dev, stat.ino) != (dev, ino) {
            let path = shown(&self.path_of(b""));
            return Err(Error::invalid(format!(
                "{path}: was moved away during the extraction"
            )));
        }
        Ok(Arc::new(fd))
    }

    /// Remembers `fd`, which [`Self::fd_from_child`] gave.
    pub(crate) fn remember(&self, fd: &Arc<OwnedFd>) {
        *self.lock() = Handle::Open(Arc::clone(fd));
    }

    /// Its parent; none for the root.
    pub(crate) fn parent(&self) -> Option<&Arc<Self>> {
        self.parent.as_ref()
    }

    /// Takes it apart into its parent: so that a long chain of parents is not dropped by recursion.
    pub(crate) fn into_parent(mut self) -> Option<Arc<Self>> {
        self.parent.take()
    }

    fn error(&self, what: &str, source: std::io::Error) -> Error {
        Error::io(format!("{}: {what}", shown(&self.path_of(b""))), source)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Handle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
