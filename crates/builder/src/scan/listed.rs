//! The paths of a list that a walk takes, and which of them it has seen.

use crate::Problem;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use weald_filter::{ListNode, PathList};

/// A list of paths, and those of them that are there.
pub struct Listed<'a> {
    pub list: &'a PathList,
    /// By number of the node.
    seen: Vec<AtomicBool>,
}

impl<'a> Listed<'a> {
    pub fn new(list: &'a PathList) -> Self {
        let seen = (0..list.node_count()).map(|_| AtomicBool::new(false));
        let seen: Vec<_> = seen.collect();
        if let Some(root) = seen.first() {
            root.store(true, Relaxed);
        }
        Self { list, seen }
    }

    /// Whether `name` in the directory `dir` is listed or leads to a listed path; it is there.
    pub fn takes(&self, dir: Option<ListNode>, name: &[u8]) -> bool {
        let Some(node) = dir.and_then(|dir| self.list.child(dir, name)) else {
            return false;
        };
        if let Some(seen) = self.seen.get(node.number()) {
            seen.store(true, Relaxed);
        }
        true
    }

    /// The problems of the listed paths that are not there.
    pub fn missing(&self) -> Vec<Problem> {
        let is_missing = |node: ListNode| {
            let seen = self.seen.get(node.number());
            seen.is_some_and(|seen| !seen.load(Relaxed))
        };
        let paths = self.list.paths(&is_missing).into_iter();
        let problem = |path| Problem {
            path,
            what: "listed, and not there".to_owned(),
        };
        paths.map(problem).collect()
    }
}
