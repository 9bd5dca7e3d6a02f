//! Removes the oldest states of a replica.
//!
//! What stays begins with an item that has all rows, and so needs nothing before it. First a file
//! is put that says where the items begin, so that none counts as lost; then items go, the oldest
//! first; then the files of data that no item names any more.

use super::items::{Items, find_identity, first_item};
use super::place::{DATA, Place, data_path, first_path, item_path};
use super::restore::Path;
use crate::store::Store;
use std::collections::BTreeSet;
use weald_format::replica::{Item, ItemNo};
use weald_format::{Digest, Error, Result};

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// States that are left.
    pub state_count: u64,
    /// Items and files of data that were removed.
    pub removed_count: u64,
    /// Whether states older than the ones to keep are left, because the last item with all rows is
    /// before them.
    pub needs_all_rows: bool,
}

impl Store {
    /// Removes states of the replica `name` at `place`, all but the last `keep`, and those that
    /// these need.
    ///
    /// # Errors
    /// `NotFound` if the store has no such replica; `Busy` if another process sends to it;
    /// `Corrupt` if an item that is to stay is damaged; those of the place. An interrupted call is
    /// completed by the next one.
    pub fn prune_replica(&self, name: &str, place: &dyn Place, keep: u64) -> Result<Pruned> {
        let record = self.replica_record(name)?;
        let _lock = self.lock_replica(name)?;
        let shown = place.shown();
        let identity = find_identity(place)?.filter(|found| *found == record.identity);
        let identity =
            identity.ok_or_else(|| Error::invalid(format!("{shown}: is another replica")))?;
        // Its data is there, and no item names it yet.
        self.complete_pending(name, place, record)?;
        // States are counted: one that cannot be read just now is one.
        let items = Items::read_all(place, &identity)?;
        let all = items.all();
        let kept = all
            .len()
            .saturating_sub(usize::try_from(keep.max(1)).unwrap_or(usize::MAX));
        let Some(oldest) = all.get(kept) else {
            return Ok(Pruned::default());
        };
        let path = Path::to(&items, oldest).ok_or_else(|| {
            let what = format!(
                "{shown}: an item before item {} is missing or damaged: 'weald replica verify \
                 --repair' first",
                oldest.header.number.0
            );
            Error::corrupt("replica", 0, "S-9.6", what)
        })?;
        let first = path.0.front().map_or(ItemNo(1), |item| item.header.number);
        if let Some(bad) = items.bad.iter().find(|bad| bad.number >= first) {
            return Err(Error::corrupt("replica", 0, "S-9.6", bad.why.clone()));
        }
        let mut pruned = Pruned {
            needs_all_rows: first < oldest.header.number,
            ..Pruned::default()
        };
        let (old, left): (Vec<&Item>, Vec<&Item>) =
            all.iter().partition(|item| item.header.number < first);
        pruned.state_count = left.len() as u64;
        if first > first_item(place)? {
            place.put(&first_path(first), &[])?;
        }
        for item in old {
            let digest = item.header.digest();
            place.remove(&item_path(item.header.number, &digest))?;
            pruned.removed_count += 1;
        }
        for (number, digest) in &items.ended {
            place.remove(&item_path(*number, digest))?;
            pruned.removed_count += 1;
        }
        let files = left.iter().flat_map(|item| item.list.files.iter());
        let named: BTreeSet<[u8; 32]> = files.map(|file| file.digest.0).collect();
        for name in place.list(DATA)? {
            let Some(digest) = Digest::from_hex(&name) else {
                continue;
            };
            if !named.contains(&digest.0) {
                place.remove(&data_path(&digest))?;
                pruned.removed_count += 1;
            }
        }
        Ok(pruned)
    }
}
