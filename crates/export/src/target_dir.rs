//! Directories of the target while they are filled. They are reached by descriptors only. A
//! directory gets its attributes and times when its last entry is complete.
//!
//! Invariants:
//! - References to a directory are held by the walk while it is inside, by every job for one of its
//!   entries, and by its subdirectories. The thread that drops the last reference finishes the
//!   directory and drops its reference to the parent. So the times of a directory are set after all
//!   its entries exist, without a list of directories.
//! - Few descriptors are open: the walk closes those far above it, and most of those of directories
//!   that it leaves unfinished. A directory whose descriptor is closed is opened again through `..`
//!   of a child and recognised by device and inode number. Another directory there is an error and
//!   is never written to.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use weald_format::{ACL_DEFAULT, Error, Result};
use weald_image::Inode;
use weald_vfs::shown;

/// A directory of the target.
pub(crate) struct TargetDir {
    parent: Option<Arc<TargetDir>>,
    name: Box<[u8]>,
    handle: Mutex<Handle>,
    /// Attributes to set at the end; `None` for a directory that keeps its own.
    pub(crate) attributes: Option<Inode>,
    /// Properties that new entries inherit from the directory.
    pub(crate) heritage: Heritage,
    /// The walk has left the directory; its descriptor stays open until it is finished.
    pub(crate) is_kept: AtomicBool,
}

/// Properties that new entries inherit from a directory that existed before the extraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heritage {
    /// An ACL, which the extraction removes from them.
    pub(crate) has_acl: bool,
    /// Another group than that of the process.
    pub(crate) has_group: bool,
}

impl Heritage {
    /// Of a directory that the extraction has made: it removed what that directory inherited.
    pub(crate) const NONE: Self = Self {
        has_acl: false,
        has_group: false,
    };

    /// Of the existing directory `fd`. A directory that cannot be examined hands down both.
    pub(crate) fn of_existing(fd: &OwnedFd) -> Self {
        let has_acl = match weald_sys::get_xattr_at(fd, b"", ACL_DEFAULT) {
            Ok(_) => true,
            Err(error) => !weald_sys::is_without_xattr(&error),
        };
        let own = weald_sys::effective_ids().1;
        Self {
            has_acl,
            has_group: weald_sys::stat_fd(fd).map_or(true, |stat| stat.gid != own),
        }
    }
}

#[derive(Clone)]
enum Handle {
    Open(Arc<OwnedFd>),
    Closed { dev: u64, ino: u64 },
}

impl TargetDir {
    /// The root of the target.
    pub(crate) fn root(fd: OwnedFd, attributes: Option<Inode>, heritage: Heritage) -> Arc<Self> {
        let handle = Mutex::new(Handle::Open(Arc::new(fd)));
        Arc::new(Self {
            parent: None,
            name: Box::default(),
            handle,
            attributes,
            heritage,
            is_kept: AtomicBool::new(false),
        })
    }

    /// A directory that was made or found in `parent`.
    pub(crate) fn child(
        parent: &Arc<Self>,
        name: &[u8],
        fd: OwnedFd,
        attributes: Option<Inode>,
        heritage: Heritage,
    ) -> Arc<Self> {
        let handle = Mutex::new(Handle::Open(Arc::new(fd)));
        let parent = Some(Arc::clone(parent));
        Arc::new(Self {
            parent,
            name: name.into(),
            handle,
            attributes,
            heritage,
            is_kept: AtomicBool::new(false),
        })
    }

    /// The path of the entry `name`, from the root of the target.
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

    /// The descriptor, if it is open.
    pub(crate) fn fd(&self) -> Option<Arc<OwnedFd>> {
        match &*self.lock() {
            Handle::Open(fd) => Some(Arc::clone(fd)),
            Handle::Closed { .. } => None,
        }
    }

    /// Drops the descriptor. It closes when no other thread uses it.
    pub(crate) fn close(&self) -> Result<()> {
        let mut handle = self.lock();
        if let Handle::Open(fd) = &*handle {
            let stat = weald_sys::stat_fd(fd).map_err(|e| self.error("stat", e))?;
            *handle = Handle::Closed {
                dev: stat.dev,
                ino: stat.ino,
            };
        }
        Ok(())
    }

    /// The descriptor. If it is closed, it is opened again through that of a child.
    pub(crate) fn fd_from_child(&self, child: &OwnedFd) -> Result<Arc<OwnedFd>> {
        let handle = self.lock().clone();
        let (dev, ino) = match handle {
            Handle::Open(fd) => return Ok(fd),
            Handle::Closed { dev, ino } => (dev, ino),
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

    /// Stores `fd`, which [`Self::fd_from_child`] returned.
    pub(crate) fn set_fd(&self, fd: &Arc<OwnedFd>) {
        *self.lock() = Handle::Open(Arc::clone(fd));
    }

    /// The parent; `None` for the root.
    pub(crate) fn parent(&self) -> Option<&Arc<Self>> {
        self.parent.as_ref()
    }

    /// Returns the parent, so that a long chain of parents is not dropped by recursion.
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
