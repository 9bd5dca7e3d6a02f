//! Files that cannot be read while an image is appended to: their names keep the entries of the
//! previous generation.

use super::state::Build;
use crate::dedup::similar::inode_at;
use crate::read::readers::Job;
use crate::write::emit::{FileState, Previous};
use weald_format::{Error, ErrorKind, FileKind, Result};

impl Build<'_> {
    /// Keeps the entries of the previous generation for all names of a file that cannot be read.
    /// Returns false if there is no such generation, or if none of these names is a regular file in
    /// it. A file that vanished or is no longer a regular file keeps no entry.
    pub(super) fn keep_previous(&mut self, job: &Job, error: &Error) -> Result<bool> {
        let Some(old) = self.old.filter(|_| error.kind() == ErrorKind::Io) else {
            return Ok(false);
        };
        let names = self.names_of(job.entry);
        let mut found = None;
        for name in &names {
            let inode = inode_at(old, &self.tree.tree_path_of(*name))?;
            found = inode.filter(|inode| inode.kind == FileKind::Regular);
            if found.is_some() {
                break;
            }
        }
        let Some(inode) = found else { return Ok(false) };
        let previous = Previous::of(&inode, old)?;
        for name in names {
            // Contents keep their ids when an image is appended to.
            let state = inode.content.map_or(FileState::EMPTY, FileState::content);
            self.states[name.0 as usize] = state;
            self.previous.insert(name.0, previous.clone());
        }
        Ok(true)
    }
}
