//! Selections of paths: by patterns, by a list, or both. A walk hands them one name after the
//! other, so that it enters no directory in which nothing can be selected.

use crate::PathGlob;
use std::collections::HashMap;
use weald_format::{Error, Result};

/// A selection of paths: those that a pattern matches or that are listed, and everything below
/// them. Without patterns and without a list, everything is selected.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    patterns: Vec<PathGlob>,
    list: Option<PathList>,
}

/// Paths from the root of a tree, as a tree of names.
#[derive(Debug, Clone)]
pub struct PathList {
    nodes: Vec<Node>,
    children: HashMap<(usize, Box<[u8]>), usize>,
}

/// A path of the list, or a directory on the way to one.
#[derive(Debug, Clone, Copy, Default)]
struct Node {
    /// Number of the path that ends here, from 0.
    path_no: Option<usize>,
    has_children: bool,
}

impl PathList {
    /// The paths in `text`, each ended by `separator`. `./a`, `/a/` and `a` are equal; empty ones
    /// are dropped.
    ///
    /// # Errors
    /// `Invalid` for a path with `..`.
    /// # Cost
    /// About 100 bytes of memory for each name that leads to a path.
    pub fn parse(text: &[u8], separator: u8) -> Result<Self> {
        let mut list = Self {
            nodes: vec![Node::default()],
            children: HashMap::new(),
        };
        let paths = text.split(|&byte| byte == separator);
        for (path_no, path) in paths.filter(|path| !path.is_empty()).enumerate() {
            let mut at = 0;
            for name in path.split(|&byte| byte == b'/') {
                match name {
                    b"" | b"." => continue,
                    b".." => {
                        let path = crate::shown(path);
                        return Err(Error::invalid(format!("'{path}': '..' is not allowed")));
                    }
                    name => at = list.enter(at, name),
                }
            }
            if let Some(node) = list.nodes.get_mut(at) {
                node.path_no.get_or_insert(path_no);
            }
        }
        Ok(list)
    }

    /// The child of node `at`, made if it is missing.
    fn enter(&mut self, at: usize, name: &[u8]) -> usize {
        let next = self.nodes.len();
        let child = *self.children.entry((at, name.into())).or_insert(next);
        if child == next {
            self.nodes.push(Node::default());
            if let Some(node) = self.nodes.get_mut(at) {
                node.has_children = true;
            }
        }
        child
    }

    fn node(&self, at: usize) -> Node {
        self.nodes.get(at).copied().unwrap_or_default()
    }

    fn child(&self, at: usize, name: &[u8]) -> Option<usize> {
        if !self.node(at).has_children {
            return None;
        }
        self.children.get(&(at, name.into())).copied()
    }
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
    /// The node of the list.
    listed: Option<usize>,
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
        let nodes = self.list.iter().flat_map(|list| &list.nodes);
        nodes.filter_map(|node| node.path_no)
    }

    /// The scope of the root; passes what selects it to `hit`.
    pub fn root(&self, hit: &mut dyn FnMut(Reason)) -> Scope {
        let starts = self.patterns.iter().enumerate().map(|(index, pattern)| {
            let mut positions = vec![0];
            pattern.close(&mut positions);
            (index, positions)
        });
        let listed = self.list.is_some().then_some(0);
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
        listed: Option<usize>,
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
            let node = list.node(at);
            if let Some(path_no) = node.path_no {
                scope.is_wanted = true;
                hit(Reason::Listed(path_no));
            }
            scope.listed = node.has_children.then_some(at);
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
