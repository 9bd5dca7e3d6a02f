//! The extended attributes that the options change, each distinct set once.

use crate::options::attributes::AttributeRules;
use crate::scan::ScannedTree;
use weald_format::{FileKind, XattrSet};

/// What the sets of a tree become.
pub struct ChangedXattrs {
    sets: Vec<XattrSet>,
    /// Index in `sets` by number of the set in the tree, with that of no set at the end: for files
    /// and directories, and for other kinds.
    of_files: Vec<Option<usize>>,
    of_others: Vec<Option<usize>>,
}

impl ChangedXattrs {
    /// What `rules` make of the sets of `tree`; nothing is kept if they change none.
    pub fn new(tree: &ScannedTree, rules: &AttributeRules) -> Self {
        let mut changed = Self {
            sets: Vec::new(),
            of_files: Vec::new(),
            of_others: Vec::new(),
        };
        if rules.keeps_xattrs() {
            return changed;
        }
        let sets = || tree.xattr_sets().iter().map(Some).chain([None]);
        let mut put = |set, kind| {
            let made = rules.xattrs_of(set, kind)?.into_owned();
            changed.sets.push(made);
            Some(changed.sets.len() - 1)
        };
        let of_files = sets().map(|set| put(set, FileKind::Regular)).collect();
        let of_others = sets().map(|set| put(set, FileKind::Symlink)).collect();
        (changed.of_files, changed.of_others) = (of_files, of_others);
        changed
    }

    /// What the set `number` of the tree, or none, becomes for an inode of `kind`.
    pub fn of(&self, number: Option<u32>, kind: FileKind) -> Option<&XattrSet> {
        let list = match kind {
            FileKind::Regular | FileKind::Directory => &self.of_files,
            _ => &self.of_others,
        };
        let number = number.map_or(list.len().checked_sub(1)?, |number| number as usize);
        self.sets.get((*list.get(number)?)?)
    }
}
