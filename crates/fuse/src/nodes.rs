//! Inodes that the kernel knows, with the number of its references.
//!
//! The kernel counts a reference for each answer that names an inode, and gives references back
//! with FORGET. An inode without a name must stay until the kernel has given back the last one.

use crate::listing_cache::ListingCache;
use crate::wire::NodeId;
use parking_lot::Mutex;
use std::collections::HashMap;
use weald_vfs::Nanoseconds;

/// Parts of the table, so that workers rarely wait for each other.
const NODE_SHARD_COUNT: usize = 32;

/// An inode that the kernel knows, and facts about it that save requests to the file system.
#[derive(Debug, Clone, Copy, Default)]
struct Node {
    reference_count: u64,
    /// Its last name was removed, or it never had one.
    is_unnamed: bool,
    facts: Facts,
    listing_cache: ListingCache,
}

/// Facts that hold until the attributes of the inode change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// No set-uid bit, no set-gid bit and no capability, which a write would clear.
    pub(crate) has_no_privileges: bool,
    /// A directory without a default ACL.
    pub(crate) has_no_default_acl: bool,
    /// A read before this time does not change the access time.
    pub(crate) access_time_holds_until: Option<Nanoseconds>,
}

type Shard = Mutex<HashMap<NodeId, Node>>;

/// All inodes that the kernel knows.
#[derive(Debug)]
pub(crate) struct Nodes {
    shards: Box<[Shard]>,
}

impl Nodes {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..NODE_SHARD_COUNT).map(|_| Shard::default()).collect(),
        }
    }

    fn with<R>(&self, node: NodeId, work: impl FnOnce(&mut HashMap<NodeId, Node>) -> R) -> R {
        let index = node.0 % NODE_SHARD_COUNT as u64;
        match self.shards.get(index as usize) {
            Some(shard) => work(&mut shard.lock()),
            None => work(&mut HashMap::new()),
        }
    }

    /// Counts a reference: the kernel gets an answer that names `node`.
    pub(crate) fn add(&self, node: NodeId) {
        self.with(node, |nodes| {
            nodes.entry(node).or_default().reference_count += 1;
        });
    }

    /// Takes back `count` references. True if the kernel does not know the inode any more and it
    /// has no name, so that the file system must drop it.
    pub(crate) fn forget(&self, node: NodeId, count: u64) -> bool {
        self.with(node, |nodes| {
            let Some(known) = nodes.get_mut(&node) else {
                return false;
            };
            known.reference_count = known.reference_count.saturating_sub(count);
            if known.reference_count > 0 {
                return false;
            }
            nodes.remove(&node).is_some_and(|known| known.is_unnamed)
        })
    }

    /// Notes that the inode has no name. False if the kernel does not know it.
    pub(crate) fn set_unnamed(&self, node: NodeId) -> bool {
        self.with(node, |nodes| {
            let known = nodes.get_mut(&node);
            known.map(|known| known.is_unnamed = true).is_some()
        })
    }

    /// Whether the kernel knows the inode.
    #[cfg(test)]
    fn is_known(&self, node: NodeId) -> bool {
        self.with(node, |nodes| nodes.contains_key(&node))
    }

    /// Facts about an inode.
    pub(crate) fn facts(&self, node: NodeId) -> Facts {
        self.with(node, |nodes| {
            nodes.get(&node).map(|node| node.facts).unwrap_or_default()
        })
    }

    /// Notes facts about an inode.
    pub(crate) fn note(&self, node: NodeId, note: impl FnOnce(&mut Facts)) {
        self.with(node, |nodes| {
            if let Some(known) = nodes.get_mut(&node) {
                note(&mut known.facts);
            }
        });
    }

    /// Drops the facts about an inode whose attributes change.
    pub(crate) fn change(&self, node: NodeId) {
        self.note(node, |facts| *facts = Facts::default());
    }

    /// Changes what is known of the kernel's cache of a directory's listing; the answer of a
    /// directory that the kernel does not know is `false`.
    pub(crate) fn with_listing_cache(
        &self,
        dir: NodeId,
        work: impl FnOnce(&mut ListingCache) -> bool,
    ) -> bool {
        self.with(dir, |nodes| {
            let known = nodes.get_mut(&dir);
            known.is_some_and(|known| work(&mut known.listing_cache))
        })
    }

    /// Forgets everything; returns the inodes without a name.
    pub(crate) fn clear(&self) -> Vec<NodeId> {
        let mut unnamed = Vec::new();
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.lock());
            unnamed.extend(
                nodes
                    .iter()
                    .filter(|(_, n)| n.is_unnamed)
                    .map(|(id, _)| *id),
            );
        }
        unnamed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: an unlinked file that vanishes while it is open, or that stays for ever.
    #[test]
    fn an_unnamed_inode_goes_with_its_last_reference() {
        let (nodes, node) = (Nodes::new(), NodeId(40));
        nodes.add(node);
        nodes.add(node);
        assert!(nodes.set_unnamed(node));
        assert!(!nodes.forget(node, 1));
        assert!(nodes.is_known(node));
        assert!(nodes.forget(node, 1));
        assert!(!nodes.is_known(node));
        assert!(!nodes.set_unnamed(node));
        assert!(!nodes.forget(node, 1));
    }

    #[test]
    fn a_named_inode_is_forgotten_without_a_call() {
        let (nodes, node) = (Nodes::new(), NodeId(41));
        nodes.add(node);
        assert!(!nodes.forget(node, 7));
        assert!(!nodes.is_known(node));
    }

    #[test]
    fn facts_hold_until_a_change() {
        let (nodes, node) = (Nodes::new(), NodeId(42));
        nodes.note(node, |facts| facts.has_no_privileges = true);
        assert_eq!(nodes.facts(node), Facts::default());
        nodes.add(node);
        nodes.note(node, |facts| facts.has_no_privileges = true);
        assert!(nodes.facts(node).has_no_privileges);
        nodes.change(node);
        assert_eq!(nodes.facts(node), Facts::default());
    }

    #[test]
    fn the_end_returns_the_unnamed() {
        let nodes = Nodes::new();
        for id in 2..200 {
            nodes.add(NodeId(id));
        }
        nodes.set_unnamed(NodeId(77));
        assert_eq!(nodes.clear(), [NodeId(77)]);
        assert!(!nodes.is_known(NodeId(5)));
    }
}
