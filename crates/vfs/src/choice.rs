//! Which entries of a tree a command takes: what is selected and no rule leaves out, down to a
//! depth.

use crate::{Scope, Selection};
use weald_filter::{DirRules, Filter};

/// Which entries a command takes; the default takes everything.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// What is selected.
    pub selection: Selection,
    /// Rules that leave out entries of it. Rules in files of the tree are not read.
    pub filter: Filter,
    /// Greatest depth below the start of the walk; `None` for no limit.
    pub depth_max: Option<usize>,
    /// Leading names of each path that are dropped. What has no more names is left out; entries
    /// below it stay.
    pub dropped_names: usize,
}

impl Choice {
    /// Whether every entry is taken, with its whole path.
    pub fn is_everything(&self) -> bool {
        let takes_each = self.filter.is_empty() && self.depth_max.is_none();
        self.selection.is_everything() && takes_each && self.dropped_names == 0
    }

    /// Whether the rules and the depth leave the entry at `path` in, if its directory is in. The
    /// path has no leading slash; that of the root is empty.
    pub fn keeps(&self, path: &[u8], depth: usize, is_dir: bool) -> bool {
        let is_within = self.depth_max.is_none_or(|max| depth <= max);
        is_within && (path.is_empty() || !self.filter.excludes(&DirRules::default(), path, is_dir))
    }

    /// The scope of the entry at `path`, the last name of which is `name`, in a directory with the
    /// scope `parent`; `None` if nothing at and below it is taken.
    pub(crate) fn child(
        &self,
        parent: &Scope,
        (path, name): (&[u8], &[u8]),
        depth: usize,
        is_dir: bool,
    ) -> Option<Scope> {
        if !self.keeps(path, depth, is_dir) {
            return None;
        }
        let scope = self.selection.child(parent, name, &mut |_| {});
        scope.may_hold_wanted().then_some(scope)
    }
}
