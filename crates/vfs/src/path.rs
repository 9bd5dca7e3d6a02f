//! Path resolution inside an image, as the kernel does it: symlinks, `.` and `..`.
//!
//! Resolution cannot leave the image, whatever a link contains: an absolute target starts at the
//! root of the image, and `..` of the root is the root.

use crate::shown_path;
use weald_format::{Error, ErrorKind, FileKind, Result};
use weald_image::{Image, Inode};

/// Most symlinks that one resolution follows; with more, the path counts as a loop. As in Linux
/// (`MAXSYMLINKS`).
pub const SYMLINK_COUNT_MAX: usize = 40;

/// Whether to follow a symlink that is the last name of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Follow it, as stat(2).
    Yes,
    /// Return the link itself, as lstat(2). Links before the last name are followed anyway.
    No,
}

/// An inode and its resolved path.
#[derive(Debug, Clone)]
pub struct Located {
    /// Path from the root of the image without links, `.`, `..` or a leading `/`; empty for the
    /// root.
    pub path: Vec<u8>,
    /// The inode at the path.
    pub inode: Inode,
}

/// Resolves `path` in `image`. A leading `/` changes nothing, and an empty path is the root. A path
/// that ends in `/` must be a directory.
///
/// # Errors
/// `NotFound` if a name is missing, `Invalid` if a name that must be a directory is not one,
/// `Limit` for more than [`SYMLINK_COUNT_MAX`] links, and the errors of the reader.
///
/// # Cost
/// One lookup for each name; memory proportional to the depth and the length of the path.
pub fn resolve(image: &Image, path: &[u8], follow: Follow) -> Result<Located> {
    let mut resolver = Resolver {
        image,
        current: Vec::new(),
        pending: Vec::new(),
        link_count: 0,
    };
    resolver.push_pending(path);
    let must_be_directory = path.ends_with(b"/");
    let follow = if must_be_directory {
        Follow::Yes
    } else {
        follow
    };
    let resolved = resolver.run(follow).and_then(|located| {
        let is_fine = !must_be_directory || located.inode.kind == FileKind::Directory;
        if is_fine {
            Ok(located)
        } else {
            Err(Error::invalid("not a directory"))
        }
    });
    resolved.map_err(|error| error.context(shown_path(path)))
}

struct Resolver<'a> {
    image: &'a Image,
    /// The names from the root to the current directory, with their inodes.
    current: Vec<(Vec<u8>, Inode)>,
    /// Names that are not resolved yet, the next one last.
    pending: Vec<Vec<u8>>,
    link_count: usize,
}

impl Resolver<'_> {
    fn push_pending(&mut self, path: &[u8]) {
        let names = path
            .split(|&b| b == b'/')
            .rev()
            .filter(|name| !name.is_empty() && *name != b".");
        self.pending.extend(names.map(<[u8]>::to_vec));
    }

    fn run(&mut self, follow: Follow) -> Result<Located> {
        let root = self.image.root()?;
        while let Some(name) = self.pending.pop() {
            if name == b".." {
                self.current.pop();
                continue;
            }
            let dir = self.current.last().map_or(&root, |(_, inode)| inode);
            let inode = self.look_up(dir, &name)?;
            let is_last = self.pending.is_empty();
            if inode.kind == FileKind::Symlink && !(is_last && follow == Follow::No) {
                self.follow_link(&inode)?;
            } else {
                self.current.push((name, inode));
            }
        }
        let names: Vec<&[u8]> = self
            .current
            .iter()
            .map(|(name, _)| name.as_slice())
            .collect();
        let path = names.join(&b'/');
        Ok(Located {
            path,
            inode: self.current.pop().map_or(root, |(_, inode)| inode),
        })
    }

    fn look_up(&self, dir: &Inode, name: &[u8]) -> Result<Inode> {
        if dir.kind != FileKind::Directory {
            return Err(Error::invalid("not a directory"));
        }
        let found = self.image.lookup(dir.ino, name)?;
        found.ok_or_else(|| Error::not_found("no such file or directory in the image"))
    }

    fn follow_link(&mut self, link: &Inode) -> Result<()> {
        self.link_count += 1;
        if self.link_count > SYMLINK_COUNT_MAX {
            return Err(Error::new(
                ErrorKind::Limit,
                "too many levels of symbolic links",
            ));
        }
        let target = self.image.read_link(link)?;
        if target.first() == Some(&b'/') {
            self.current.clear();
        }
        self.push_pending(&target);
        Ok(())
    }
}
