//! A directory among those that lie over each other, and what its entries mean.

use super::upper::UpperXattrs;
use crate::options::AddAt;
use std::os::fd::BorrowedFd;
use std::path::Path;
use weald_filter::PathList;
use weald_format::Digest;

/// A directory that lies over what is scanned before it.
#[derive(Debug, Clone)]
pub struct Layer<'a> {
    /// The directory.
    pub dir: &'a Path,
    /// The same, if it is open already.
    pub root: Option<BorrowedFd<'a>>,
    /// Where in the tree its root is.
    pub at: AddAt,
    /// What its entries mean.
    pub kind: LayerKind,
    /// The only paths that are taken, with the directories above them; `None` for all. Each stands
    /// for itself, not for what lies below it. Those that are not there are problems.
    pub list: Option<&'a PathList>,
}

impl<'a> Layer<'a> {
    /// All of the directory `dir`, at the root of the tree.
    pub const fn plain(dir: &'a Path) -> Self {
        Self {
            dir,
            root: None,
            at: AddAt::root(),
            kind: LayerKind::Plain,
            list: None,
        }
    }
}

/// What the entries of a layer mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// Each replaces what has its name. Two directories become one, with the attributes of the
    /// upper one.
    Plain,
    /// What overlayfs means by them: whiteouts remove names, a directory may be opaque or renamed,
    /// and a file may have its data in the image below. Only an image lies below it.
    Upper {
        /// Where its notes are.
        xattrs: UpperXattrs,
        /// Digest that the tree of the image must have.
        over: Digest,
    },
}
