//! Files that cannot be read while an image is appended to: their names keep what the generation
//! before has under them.

use super::build::Build;
use crate::read::readers::Job;
use crate::write::emit::{FileState, Previous};
use weald_format::{Error, ErrorKind, FileKind, Result};
use weald_image::{Image, Inode};

impl Build<'_> {
    /// Keeps the entries of the generation before for all names of a file that cannot be read.
    /// `false` if there is no such generation, or no regular file of one of these names in it. A
    /// file that is gone or is no regular file any more keeps nothing.
    pub(super) fn keep_previous(&mut self, job: &Job, error: &Error) -> Result<bool> {
        let Some(old) = self.old.filter(|_| error.kind() == ErrorKind::Io) else {
            return Ok(false);
        };
        let names = self.names_of(job.entry);
        let mut found = None;
        for name in &names {
            let inode = find(old, &self.tree.tree_path_of(*name))?;
            found = inode.filter(|inode| inode.kind == FileKind::Regular);
            if found.is_some() {
                break;
            }
        }
        let Some(inode) = found else { return Ok(false) };
        let previous = Previous::of(&inode, old)?;
        for name in names {
            // The contents of an image that is appended to keep their ids.
            let state = inode.content.map_or(FileState::EMPTY, FileState::content);
            self.states[name.0 as usize] = state;
            self.previous.insert(name.0, previous.clone());
        }
        Ok(true)
    }
}

/// The inode at `path` from the root of `image`.
fn find(image: &Image, path: &[u8]) -> Result<Option<Inode>> {
    let mut inode = image.root()?;
    for name in path.split(|&byte| byte == b'/') {
        if inode.kind != FileKind::Directory {
            return Ok(None);
        }
        match image.lookup(inode.ino, name)? {
            Some(below) => inode = below,
            None => return Ok(None),
        }
    }
    Ok(Some(inode))
}
