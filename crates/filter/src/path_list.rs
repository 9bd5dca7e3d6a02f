//! A list of paths as a tree of names, for walks that enter only the directories that lead to one.

use std::collections::HashMap;
use weald_format::{Error, Result};

/// Paths from the root of a tree, as a tree of names.
#[derive(Debug, Clone)]
pub struct PathList {
    nodes: Vec<Node>,
    children: HashMap<(ListNode, Box<[u8]>), ListNode>,
}

/// A path of a list, or a directory on the way to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListNode(usize);

impl ListNode {
    /// The root of the tree.
    pub const ROOT: Self = Self(0);

    /// Its number: the root is 0, and others have those below [`PathList::node_count`].
    pub const fn number(self) -> usize {
        self.0
    }
}

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
        Self::new(text.split(|&byte| byte == separator))
    }

    /// The list of `paths`, as [`PathList::parse`] makes it.
    ///
    /// # Errors
    /// As [`PathList::parse`].
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a [u8]>) -> Result<Self> {
        let mut list = Self {
            nodes: vec![Node::default()],
            children: HashMap::new(),
        };
        let paths = paths.into_iter().filter(|path| !path.is_empty());
        for (path_no, path) in paths.enumerate() {
            let mut at = ListNode::ROOT;
            for name in path.split(|&byte| byte == b'/') {
                match name {
                    b"" | b"." => continue,
                    b".." => {
                        let path = String::from_utf8_lossy(path);
                        return Err(Error::invalid(format!("'{path}': '..' is not allowed")));
                    }
                    name => at = list.enter(at, name),
                }
            }
            if let Some(node) = list.nodes.get_mut(at.0) {
                node.path_no.get_or_insert(path_no);
            }
        }
        Ok(list)
    }

    /// The child of node `at`, made if it is missing.
    fn enter(&mut self, at: ListNode, name: &[u8]) -> ListNode {
        let next = ListNode(self.nodes.len());
        let child = *self.children.entry((at, name.into())).or_insert(next);
        if child == next {
            self.nodes.push(Node::default());
            if let Some(node) = self.nodes.get_mut(at.0) {
                node.has_children = true;
            }
        }
        child
    }

    /// The number of the path that ends at `node`; of equal paths, that of the first.
    pub fn path_no(&self, node: ListNode) -> Option<usize> {
        self.nodes.get(node.0)?.path_no
    }

    /// Whether paths of the list lie below `node`.
    pub fn has_children(&self, node: ListNode) -> bool {
        self.nodes.get(node.0).is_some_and(|node| node.has_children)
    }

    /// The node of `name` in the directory of `node`.
    pub fn child(&self, node: ListNode, name: &[u8]) -> Option<ListNode> {
        if !self.has_children(node) {
            return None;
        }
        self.children.get(&(node, name.into())).copied()
    }

    /// The numbers of the listed paths; of equal paths, that of the first.
    pub fn path_nos(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().filter_map(|node| node.path_no)
    }

    /// Number of nodes, the root included.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The listed paths whose nodes `is_wanted` selects, in the order of the list.
    ///
    /// # Cost
    /// 16 bytes of memory for each node of the list.
    pub fn paths(&self, is_wanted: &dyn Fn(ListNode) -> bool) -> Vec<Vec<u8>> {
        let mut names: Vec<Option<(ListNode, &[u8])>> = vec![None; self.nodes.len()];
        for ((parent, name), child) in &self.children {
            if let Some(place) = names.get_mut(child.0) {
                *place = Some((*parent, name));
            }
        }
        let nodes = self.nodes.iter().enumerate();
        let listed = nodes.filter_map(|(at, node)| Some((node.path_no?, ListNode(at))));
        let mut listed: Vec<_> = listed.filter(|&(_, at)| is_wanted(at)).collect();
        listed.sort_unstable_by_key(|&(path_no, _)| path_no);
        let path = |(_, mut at): (usize, ListNode)| {
            let mut path = Vec::new();
            while let Some((parent, name)) = names.get(at.0).copied().flatten() {
                path.push(name);
                at = parent;
            }
            path.reverse();
            path.join(&b'/')
        };
        listed.into_iter().map(path).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a path that is lost, or two spellings of one that are two.
    #[test]
    fn a_list_gives_its_paths_back() {
        let list = PathList::parse(b"b/c\n./a\n\n/b\nb//c/\n", b'\n').unwrap();
        let all = list.paths(&|_| true);
        assert_eq!(all, [&b"b/c"[..], b"a", b"b"]);
        let b = list.child(ListNode::ROOT, b"b").unwrap();
        let c = list.child(b, b"c").unwrap();
        assert_eq!(list.paths(&|node| node == c), [b"b/c"]);
        assert!(list.has_children(b) && !list.has_children(c));
        assert_eq!((list.path_no(b), list.path_no(c)), (Some(2), Some(0)));
        assert!(list.child(c, b"d").is_none());
        assert!(PathList::parse(b"a/../b", b'\n').is_err());
    }
}
