//! Quotas of a tree that a salvage makes: which are lost, and what counts for each.

use super::Tree;
use crate::engine::Table;
use std::collections::{BTreeMap, BTreeSet};
use weald_format::Ino;
use weald_format::volume::{NamePlace, counted_xattr_len, split_key};

/// What counts for a quota.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    /// Bytes.
    len: u64,
    /// Inodes.
    count: u64,
}

impl Tree<'_> {
    /// Notes the quotas whose rows are lost.
    pub(super) fn tell_quotas(&mut self) {
        let wanted: BTreeSet<Ino> = self.inodes.values().map(|row| row.quota).collect();
        for dir in wanted
            .iter()
            .filter(|dir| !dir.is_none() && !self.quotas.contains_key(dir))
        {
            if self.inodes.contains_key(dir) {
                self.of_inodes.push((*dir, "the quota".to_owned()));
            }
        }
    }

    /// Makes the accounts of quotas anew: each inode counts for the innermost quota above it.
    pub(super) fn count_quotas(&mut self) {
        let mut children: BTreeMap<Ino, Vec<Ino>> = BTreeMap::new();
        for (NamePlace { dir, .. }, row) in &self.names {
            children.entry(*dir).or_default().push(row.ino);
        }
        self.quotas.retain(|dir, _| self.inodes.contains_key(dir));
        let mut order = Vec::new();
        let mut waiting = vec![(self.root(), Ino::NONE)];
        let mut seen = BTreeSet::new();
        while let Some((ino, quota)) = waiting.pop() {
            if !seen.insert(ino) {
                continue;
            }
            if let Some(row) = self.inodes.get_mut(&ino) {
                row.quota = quota;
            }
            let below = match self.quotas.get_mut(&ino) {
                Some(row) => {
                    row.parent = quota;
                    order.push(ino);
                    ino
                }
                None => quota,
            };
            let inner = children.get(&ino).into_iter().flatten();
            waiting.extend(inner.map(|child| (*child, below)));
        }
        // Removed files count until they are gone, for a quota that is there.
        for (_, row) in self
            .inodes
            .iter_mut()
            .filter(|(ino, _)| !seen.contains(ino))
        {
            if !seen.contains(&row.quota) || !self.quotas.contains_key(&row.quota) {
                row.quota = Ino::NONE;
            }
        }
        self.quotas.retain(|dir, _| seen.contains(dir));
        let mut counted = self.accounts();
        // Inner quotas were found behind those around them.
        for dir in order.into_iter().rev() {
            let Account { len, count } = counted.get(&dir).copied().unwrap_or_default();
            if let Some(row) = self.quotas.get_mut(&dir) {
                (row.len, row.count) = (len, count);
                let around = counted.entry(row.parent).or_default();
                around.len += len;
                around.count += count;
            }
        }
    }

    /// Bytes and inodes that count for each quota itself.
    fn accounts(&self) -> BTreeMap<Ino, Account> {
        let mut counted: BTreeMap<Ino, Account> = BTreeMap::new();
        for row in self.inodes.values() {
            let target_len = if self.volume.row.counts_attributes {
                row.target.len() as u64
            } else {
                0
            };
            let of = counted.entry(row.quota).or_default();
            of.len += row.allocated + target_len;
            of.count += 1;
        }
        if self.volume.row.counts_attributes {
            for (key, value) in self.volume.rows(Table::Xattrs) {
                let key = split_key(key).map(|(_, ino, name)| (ino, name));
                let (ino, name) = key.unwrap_or((Ino::NONE, &[]));
                if let Some(row) = self.inodes.get(&ino) {
                    let of = counted.entry(row.quota).or_default();
                    of.len += counted_xattr_len(name, value);
                }
            }
        }
        counted
    }
}
