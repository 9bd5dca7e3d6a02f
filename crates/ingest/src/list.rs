//! Names what the tree of a stream would have in an image, and writes no image.

use crate::members::Members;
use crate::source::IngestSource;
use std::path::Path;
use weald_builder::stream::{ContentStore, StreamBody, StreamEntry, TreeSink, TreeSource};
use weald_builder::{BuildOptions, Observer, TakePath};
use weald_format::{ContentId, FileKind, Result};

/// Calls `take` for each entry of the tree of `members`, as [`weald_builder::list_layers`] does.
/// Temporary files go to the directory of `target`. Returns the number of problems.
///
/// # Errors
/// As [`crate::build_from_stream`], and those of `take`.
pub fn list_members(
    members: Box<dyn Members>,
    target: &Path,
    options: &BuildOptions,
    observer: &dyn Observer,
    take: &mut TakePath<'_>,
) -> Result<u64> {
    options.validate()?;
    let mut source = IngestSource::new(members, target, options, observer);
    source.contents(&mut Nowhere)?;
    take(b"", FileKind::Directory)?;
    source.tree(&mut Paths {
        take,
        path: Vec::new(),
        open: Vec::new(),
    })?;
    Ok(source.problem_count())
}

/// Takes contents that nobody reads.
struct Nowhere;

impl ContentStore for Nowhere {
    fn store(&mut self, _: &dyn StreamBody) -> Result<ContentId> {
        Ok(ContentId(0))
    }
}

/// A directory whose entries are not all told.
struct Open {
    /// Length of its path.
    len: usize,
    /// The entries to come, the next one last.
    rest: Vec<(Vec<u8>, FileKind)>,
}

/// Takes directories, each before those in it, and tells their entries in the order of the paths.
struct Paths<'a, 't> {
    take: &'a mut TakePath<'t>,
    path: Vec<u8>,
    open: Vec<Open>,
}

impl TreeSink for Paths<'_, '_> {
    fn directory(&mut self, entries: &[StreamEntry<'_>]) -> Result<bool> {
        let rest = entries.iter().rev();
        self.open.push(Open {
            len: self.path.len(),
            rest: rest.map(|e| (e.name.to_vec(), e.kind)).collect(),
        });
        while let Some(Open { len, rest }) = self.open.last_mut() {
            self.path.truncate(*len);
            let Some((name, kind)) = rest.pop() else {
                self.open.pop();
                continue;
            };
            if *len > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            (self.take)(&self.path, kind)?;
            if kind == FileKind::Directory {
                return Ok(true);
            }
        }
        Ok(true)
    }
}
