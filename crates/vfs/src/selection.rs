//! Selections of paths: by patterns, by a list, or both. A walk hands them one name after the
//! other, so that it enters no directory in which nothing can be selected.

use crate::PathGlob;
use weald_filter::{ListNode, PathList};

/// A selection of paths: those that a pattern matches or that are listed, and everything below
/// them. Without patterns and without a list, everything is selected.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    patterns: Vec<PathGlob>,
    list: Option<PathList>,
}

/// What selected a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The pattern with this index.
    Pattern(usize),
    /// The path of the list with this number.
    Listed(usize),
}

/// The decision of a [`Selection`] about a path, and the state that it needs for the names below.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    is_wanted: bool,
    /// Possible positions of the path in the patterns: (pattern, position), grouped by pattern.
    alive: Vec<(usize, usize)>,
    /// The node of the list, if paths of the list lie below it.
    listed: Option<ListNode>,
}

impl Scope {
    /// Whether the path is selected, and with it everything below.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Whether anything below the path may be selected.
    pub fn may_hold_wanted(&self) -> bool {
        self.is_wanted || !self.alive.is_empty() || self.listed.is_some()
    }
}

impl Selection {
    /// Selects everything that at least one of `patterns` selects.
    pub fn new(patterns: Vec<PathGlob>) -> Self {
        Self {
            patterns,
            list: None,
        }
    }

    /// Selects what is listed, too.
    pub fn with_list(mut self, list: PathList) -> Self {
        self.list = Some(list);
        self
    }

    /// Whether there are neither patterns nor a list.
    pub fn is_everything(&self) -> bool {
        self.patterns.is_empty() && self.list.is_none()
    }

    /// Number of patterns.
    pub fn pattern_count(&self) -> usize {
        self.patterns.len()
    }

    /// The numbers of the listed paths; of equal paths, that of the first.
    pub(crate) fn list_nos(&self) -> impl Iterator<Item = usize> {
        self.list.iter().flat_map(PathList::path_nos)
    }

    /// The scope of the root; passes what selects it to `hit`.
    pub fn root(&self, hit: &mut dyn FnMut(Reason)) -> Scope {
        let starts = self.patterns.iter().enumerate().map(|(index, pattern)| {
            let mut positions = vec![0];
            pattern.close(&mut positions);
            (index, positions)
        });
        let listed = self.list.is_some().then_some(ListNode::ROOT);
        self.judge(self.is_everything(), starts.collect(), listed, hit)
    }

    /// The scope of the entry `name` in a directory with the scope `parent`; passes what selects
    /// the entry to `hit`.
    pub fn child(&self, parent: &Scope, name: &[u8], hit: &mut dyn FnMut(Reason)) -> Scope {
        let mut steps = Vec::new();
        for group in parent.alive.chunk_by(|a, b| a.0 == b.0) {
            let Some(&(index, _)) = group.first() else {
                continue;
            };
            let Some(pattern) = self.patterns.get(index) else {
                continue;
            };
            let positions: Vec<usize> = group.iter().map(|&(_, position)| position).collect();
            steps.push((index, pattern.step(&positions, name)));
        }
        let listed = self.list.as_ref().zip(parent.listed);
        let listed = listed.and_then(|(list, at)| list.child(at, name));
        self.judge(parent.is_wanted, steps, listed, hit)
    }

    fn judge(
        &self,
        is_wanted: bool,
        steps: Vec<(usize, Vec<usize>)>,
        listed: Option<ListNode>,
        hit: &mut dyn FnMut(Reason),
    ) -> Scope {
        let mut scope = Scope {
            is_wanted,
            alive: Vec::new(),
            listed: None,
        };
        for (index, positions) in steps {
            let end = self.patterns.get(index).map_or(0, PathGlob::end);
            if positions.contains(&end) {
                scope.is_wanted = true;
                hit(Reason::Pattern(index));
            }
            let open = positions.into_iter().filter(|&position| position < end);
            scope.alive.extend(open.map(|position| (index, position)));
        }
        if let Some((list, at)) = self.list.as_ref().zip(listed) {
            if let Some(path_no) = list.path_no(at) {
                scope.is_wanted = true;
                hit(Reason::Listed(path_no));
            }
            scope.listed = list.has_children(at).then_some(at);
        }
        scope
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope_of(selection: &Selection, path: &str) -> (Scope, Vec<Reason>) {
        let mut hits = Vec::new();
        let mut scope = selection.root(&mut |reason| hits.push(reason));
        for name in path.split('/') {
            scope = selection.child(&scope, name.as_bytes(), &mut |reason| hits.push(reason));
        }
        (scope, hits)
    }

    #[test]
    fn a_selection_prunes_and_takes_whole_subtrees() {
        let patterns = ["etc/ssh", "usr/**/bin/x*", "etc/ssh/key"]
            .map(|p| PathGlob::parse(p.as_bytes()).unwrap());
        let selection = Selection::new(patterns.to_vec());
        for (path, is_wanted, may_hold_wanted) in [
            ("var", false, false),
            ("etc", false, true),
            ("etc/passwd", false, false),
            ("etc/ssh", true, true),
            ("etc/ssh/key/a", true, true),
            ("usr/lib/y", false, true),
            ("usr/lib/bin/xz", true, true),
        ] {
            let (scope, _) = scope_of(&selection, path);
            assert_eq!(
                (scope.is_wanted(), scope.may_hold_wanted()),
                (is_wanted, may_hold_wanted),
                "{path}"
            );
        }
        assert_eq!(
            scope_of(&selection, "usr/lib/bin/xz").1,
            [Reason::Pattern(1)]
        );
        assert_eq!(
            scope_of(&selection, "etc/ssh/key").1,
            [0, 2].map(Reason::Pattern)
        );
    }

    #[test]
    fn no_pattern_and_the_root_pattern_want_all() {
        assert!(Selection::default().root(&mut |_| {}).is_wanted());
        let all = Selection::new(vec![PathGlob::parse(b"/").unwrap()]);
        assert_eq!(scope_of(&all, "x").1, [Reason::Pattern(0)]);
        assert!(scope_of(&all, "x").0.is_wanted());
    }

    #[test]
    fn listed_paths_are_taken_literally() {
        let list = PathList::parse(b"a/*\n./b/c/\n\n/d\nb/c\n", b'\n').unwrap();
        let selection = Selection::default().with_list(list);
        for (path, is_wanted, may_hold_wanted) in [
            ("a", false, true),
            ("a/x", false, false),
            ("a/*", true, true),
            ("b", false, true),
            ("b/c", true, true),
            ("b/c/below", true, true),
            ("d", true, true),
            ("e", false, false),
        ] {
            let (scope, _) = scope_of(&selection, path);
            assert_eq!(
                (scope.is_wanted(), scope.may_hold_wanted()),
                (is_wanted, may_hold_wanted),
                "{path}"
            );
        }
        assert_eq!(scope_of(&selection, "b/c").1, [Reason::Listed(1)]);
        assert!(PathList::parse(b"a/../b", 0).is_err());
        // An empty list selects nothing.
        let none = Selection::default().with_list(PathList::parse(b"", 0).unwrap());
        assert!(!none.root(&mut |_| {}).may_hold_wanted());
    }
}
