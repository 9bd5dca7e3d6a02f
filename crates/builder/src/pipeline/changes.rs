//! The names that an appended tree adds, changes and removes.
//!
//! Both trees have the entries of a directory in byte order, so that a merge compares them. The
//! merge holds one pair of numbers for each directory that waits, and reads an old directory only
//! if the new tree has it too.

use crate::progress::{Changes, Observer};
use crate::scan::{DirNo, EntryNo, ScannedTree};
use crate::write::emit::Emitter;
use std::iter::Peekable;
use std::ops::ControlFlow;
use weald_format::{Error, FileKind, InodeNo, Result};
use weald_image::{Image, Inode, OpenedDirectory};

/// Compares `tree` with the tree of `old`. With the `emitter` of `tree`, files that could not be
/// read count as removed, and names whose inodes differ as changed; without, no name is changed.
///
/// # Errors
/// `Io`, `Corrupt` from `old`; `Invalid` "interrupted" when cancelled.
/// # Cost
/// Reads the entries of every directory that both trees have.
pub fn count(
    tree: &ScannedTree,
    old: &Image,
    emitter: Option<&Emitter<'_>>,
    observer: &dyn Observer,
) -> Result<Changes> {
    let mut merge = Merge {
        tree,
        old,
        emitter,
        waiting: vec![(None, old.root()?.ino, DirNo(0))],
        changes: Changes::default(),
    };
    while let Some((parent, ino, dir)) = merge.waiting.pop() {
        if observer.is_cancelled() {
            return Err(Error::invalid("interrupted"));
        }
        merge.directory(parent, ino, dir)?;
    }
    Ok(merge.changes)
}

/// Refuses an append that would remove more than half of the names of `old`: its caller may have
/// meant to add to them.
///
/// # Errors
/// `Invalid` for such an append; as [`count`].
pub fn refuse_removal(
    tree: &ScannedTree,
    old: &Image,
    (shown, is_addition): (&str, bool),
    observer: &dyn Observer,
) -> Result<()> {
    let removed_count = count(tree, old, None, observer)?.removed_count;
    let old_count = old.summary().name_count.saturating_sub(1);
    if removed_count <= old_count / 2 {
        return Ok(());
    }
    let lacks = format!("the next generation would lack {removed_count} of the {old_count} names");
    Err(Error::invalid(if is_addition {
        format!(
            "{shown}: SOURCE has other files where directories are, so {lacks} there; \
         --allow-removal permits the removal"
        )
    } else {
        format!(
            "{shown}: --append makes SOURCE the whole tree, so {lacks} there; --at PATH adds \
         SOURCE to the tree instead, --allow-removal permits the removal"
        )
    }))
}

struct Merge<'a> {
    tree: &'a ScannedTree,
    old: &'a Image,
    emitter: Option<&'a Emitter<'a>>,
    /// Directories that both trees have and that are not compared yet, with the one they lie in:
    /// from the root, each would be found in as many steps as it is deep.
    waiting: Vec<(Option<OpenedDirectory>, InodeNo, DirNo)>,
    changes: Changes,
}

impl Merge<'_> {
    fn directory(
        &mut self,
        parent: Option<OpenedDirectory>,
        ino: InodeNo,
        dir: DirNo,
    ) -> Result<()> {
        let mut entries = self.tree.entries_of(dir).peekable();
        let (old, mut failed) = (self.old, None);
        let opened = match parent {
            Some(parent) => old.open_directory_in(&parent, ino)?,
            None => old.open_directory(ino)?,
        };
        old.read_opened(&opened, 0, &mut |_, name, inode| match self.compare_name(
            &opened,
            &mut entries,
            name,
            inode,
        ) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        entries.for_each(|entry| self.add(entry));
        Ok(())
    }

    /// Counts the new `entries` before `name`, and compares the entry of that name with the old
    /// `inode`.
    fn compare_name<I: Iterator<Item = EntryNo>>(
        &mut self,
        opened: &OpenedDirectory,
        entries: &mut Peekable<I>,
        name: &[u8],
        inode: &Inode,
    ) -> Result<()> {
        let tree = self.tree;
        while let Some(entry) = entries.next_if(|&entry| tree.name(entry) < name) {
            self.add(entry);
        }
        let same = entries.next_if(|&entry| tree.name(entry) == name);
        let Some(entry) = same.filter(|&entry| !self.is_omitted(entry)) else {
            self.changes.removed_count += 1 + self.old.names_below(inode)?;
            return Ok(());
        };
        match (inode.kind == FileKind::Directory, tree.dir(entry)) {
            (true, Some(dir)) => self.waiting.push((Some(*opened), inode.ino, dir)),
            (true, None) => self.changes.removed_count += self.old.names_below(inode)?,
            (false, Some(dir)) => tree.entries_of(dir).for_each(|entry| self.add(entry)),
            (false, None) => {}
        }
        if let Some(emitter) = self.emitter {
            self.changes.changed_count += u64::from(emitter.is_changed(entry, self.old, inode)?);
        }
        Ok(())
    }

    /// Counts `entry` and everything below it as added.
    fn add(&mut self, entry: EntryNo) {
        let mut waiting = vec![entry];
        while let Some(entry) = waiting.pop() {
            if self.is_omitted(entry) {
                continue;
            }
            self.changes.added_count += 1;
            if let Some(dir) = self.tree.dir(entry) {
                waiting.extend(self.tree.entries_of(dir));
            }
        }
    }

    fn is_omitted(&self, entry: EntryNo) -> bool {
        self.emitter
            .is_some_and(|emitter| emitter.is_omitted(entry))
    }
}
