//! Extended attributes.

use crate::core::Core;
use crate::quotas::{Charge, Limits, difference};
use crate::state::State;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use weald_format::Ino;
use weald_format::limits::{XATTR_NAME_LEN_MAX, XATTR_SET_LEN_MAX, XATTR_VALUE_LEN_MAX};
use weald_format::pages::{XATTR_SET_LEN_MIN, xattr_len};
use weald_format::volume::counted_xattr_len;
use weald_vfs::{Nanoseconds, Outcome, XattrMode};

/// Attributes of an inode up to which their set cannot be too long, so that it is not counted.
const SHORT_SET_COUNT: u32 =
    (XATTR_SET_LEN_MAX / xattr_len(XATTR_NAME_LEN_MAX, XATTR_VALUE_LEN_MAX)) as u32 - 1;

/// Inodes whose sets are remembered at once.
const SET_LENS_MAX: usize = 4096;

/// Bytes that an attribute adds to a set, as the format counts them.
fn in_set(name: &[u8], value: &[u8]) -> u64 {
    xattr_len(name.len(), value.len()) as u64
}

impl Core {
    /// Value of an attribute, if it is set.
    ///
    /// # Errors
    /// ENOENT.
    pub fn find_xattr(&self, state: &State, ino: Ino, name: &[u8]) -> Outcome<Option<Vec<u8>>> {
        if self.inode(state, ino)?.xattr_count == 0 {
            return Ok(None);
        }
        let key = (ino, name.to_vec());
        for layer in self.layers(state) {
            if let Some(value) = layer.xattrs.get(&key) {
                return Ok(value.as_ref().map(|value| value.to_vec()));
            }
        }
        let value = self.tables.xattr(ino, name)?;
        Ok(value.map(|value| value.to_vec()))
    }

    /// Value of an attribute.
    ///
    /// # Errors
    /// ENODATA.
    pub fn xattr(&self, state: &State, ino: Ino, name: &[u8]) -> Outcome<Vec<u8>> {
        if let Some(used) = self.quota_use(state, ino, name) {
            return Ok(used);
        }
        self.find_xattr(state, ino, name)?
            .ok_or_else(|| Errno::NODATA.into())
    }

    /// Names of all attributes, sorted.
    ///
    /// # Errors
    /// ENOENT.
    pub fn xattr_names(&self, state: &State, ino: Ino) -> Outcome<Vec<Vec<u8>>> {
        if self.inode(state, ino)?.xattr_count == 0 {
            return Ok(Vec::new());
        }
        let known = self.tables.xattr_names(ino)?;
        let mut names: BTreeSet<Vec<u8>> = known.iter().cloned().collect();
        let layers: Vec<_> = self.layers(state).collect();
        for layer in layers.into_iter().rev() {
            for ((_, name), value) in layer.xattrs_of(ino) {
                match value {
                    Some(_) => names.insert(name.clone()),
                    None => names.remove(name),
                };
            }
        }
        Ok(names.into_iter().collect())
    }

    /// Bytes of all attributes, as quotas count them.
    ///
    /// # Errors
    /// ENOENT.
    pub fn xattrs_len(&self, state: &State, ino: Ino) -> Outcome<u64> {
        self.sum_xattrs(state, ino, &counted_xattr_len)
    }

    /// The sum of `len_of` for all attributes.
    fn sum_xattrs(
        &self,
        state: &State,
        ino: Ino,
        len_of: &dyn Fn(&[u8], &[u8]) -> u64,
    ) -> Outcome<u64> {
        if self.inode(state, ino)?.xattr_count == 0 {
            return Ok(0);
        }
        let mut lens: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        self.tables.each_xattr(ino, &mut |name, value| {
            lens.insert(name.to_vec(), len_of(name, value));
        })?;
        let layers: Vec<_> = self.layers(state).collect();
        for layer in layers.into_iter().rev() {
            for ((_, name), value) in layer.xattrs_of(ino) {
                match value {
                    Some(value) => lens.insert(name.clone(), len_of(name, value)),
                    None => lens.remove(name),
                };
            }
        }
        Ok(lens.values().fold(0, |sum, len| sum.saturating_add(*len)))
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// EEXIST, ENODATA, E2BIG, ERANGE, EDQUOT; ENOSPC for a set that no image can hold.
    pub fn set_xattr(
        &self,
        state: &mut State,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
        now: Nanoseconds,
    ) -> Outcome<()> {
        if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX {
            return Err(Errno::RANGE.into());
        }
        if value.len() > XATTR_VALUE_LEN_MAX {
            return Err(Errno::TOOBIG.into());
        }
        self.check_locks(state, ino)?;
        let value = self.property_value(state, ino, name, value)?;
        let value: &[u8] = &value;
        let old = self.find_xattr(state, ino, name)?;
        let exists = old.is_some();
        match (mode, exists) {
            (XattrMode::Create, true) => return Err(Errno::EXIST.into()),
            (XattrMode::Replace, false) => return Err(Errno::NODATA.into()),
            _ => {}
        }
        let set_len = self.set_len_with(state, ino, (name, value), old.as_deref())?;
        let old_len = old.map_or(0, |old| counted_xattr_len(name, &old));
        let change = difference(counted_xattr_len(name, value), old_len);
        let change = Charge::of_len(change);
        let quota = self.inode(state, ino)?.quota;
        // Nothing has changed yet if there is no room for it.
        self.check_room(state, quota, change)?;
        self.set_quota(state, ino, name, Some(value))?;
        self.charge(state, quota, change, Limits::Ignore)?;
        let row = self.inode_mut(state, ino)?;
        row.ctime = now;
        row.xattr_count = row.xattr_count.saturating_add(u32::from(!exists));
        state.active.put_xattr(ino, name, Some(value.into()));
        if let Some(len) = set_len {
            if state.xattr_set_lens.len() >= SET_LENS_MAX {
                state.xattr_set_lens.clear();
            }
            state.xattr_set_lens.insert(ino, len);
        }
        Ok(())
    }

    /// Length of the set of `ino` with a new value in place of an old one, as the format counts it;
    /// `None` for a set of so few attributes that it cannot be too long. Refuses one that no image
    /// holds. Sets with many attributes are counted once and then remembered, so that the time of a
    /// change does not grow with their number.
    fn set_len_with(
        &self,
        state: &State,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        old: Option<&[u8]>,
    ) -> Outcome<Option<u64>> {
        let known = state.xattr_set_lens.get(&ino).copied();
        if known.is_none() && self.inode(state, ino)?.xattr_count < SHORT_SET_COUNT {
            return Ok(None);
        }
        let len = match known {
            Some(len) => len,
            None => {
                let sum = self.sum_xattrs(state, ino, &in_set)?;
                sum.saturating_add(XATTR_SET_LEN_MIN as u64)
            }
        };
        let (old_len, new_len) = (old.map_or(0, |old| in_set(name, old)), in_set(name, value));
        let len = len.saturating_sub(old_len).saturating_add(new_len);
        if len > XATTR_SET_LEN_MAX as u64 && new_len > old_len {
            Err(Errno::NOSPC.into())
        } else {
            Ok(Some(len))
        }
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// ENODATA.
    pub fn remove_xattr(
        &self,
        state: &mut State,
        ino: Ino,
        name: &[u8],
        now: Nanoseconds,
    ) -> Outcome<()> {
        let old = self.find_xattr(state, ino, name)?.ok_or(Errno::NODATA)?;
        self.check_locks(state, ino)?;
        self.set_quota(state, ino, name, None)?;
        let quota = self.inode(state, ino)?.quota;
        let change = Charge::of_len(difference(0, counted_xattr_len(name, &old)));
        self.charge(state, quota, change, Limits::Ignore)?;
        let row = self.inode_mut(state, ino)?;
        row.ctime = now;
        row.xattr_count = row.xattr_count.saturating_sub(1);
        state.active.put_xattr(ino, name, None);
        if let Some(len) = state.xattr_set_lens.get_mut(&ino) {
            *len = len.saturating_sub(in_set(name, &old));
        }
        Ok(())
    }
}
