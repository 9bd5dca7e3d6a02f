//! Quotas of directories: limits of the bytes and inodes below a directory, and their accounts.
//!
//! Each inode names the innermost directory with a quota above it, and each quota the next one
//! around it. A charge goes to all of them. The accounts change in the layer of the operation, so
//! that a commit has both or none. Removed files that are still open stay on the account. Bytes are
//! those of contents without holes, of extended attributes and of targets of symlinks.

use crate::core::Core;
use crate::properties::{
    QUOTA, QUOTA_COUNT, QUOTA_COUNT_SHOWN, QUOTA_SHOWN, USED, USED_COUNT, parse_quota,
};
use crate::state::State;
use hashbrown::{HashMap, HashSet};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use weald_format::volume::{InodeRow, QuotaRow, counted_xattr_len};
use weald_format::{Cookie, Error, FileKind, Ino, Result};
use weald_vfs::{Failure, FsCapacity, Outcome};

/// Whether a charge respects the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limits {
    /// A charge beyond a limit is refused.
    Hold,
    /// The charge frees, or moves data.
    Ignore,
}

/// Everything below a directory, up to other quotas.
#[derive(Debug, Default)]
struct Members {
    inodes: Vec<Ino>,
    /// Directories among them that have a quota of their own.
    nested: Vec<Ino>,
    len: u64,
    count: u64,
}

/// The error of storage behind a failure.
pub fn error_of(failure: Failure) -> Error {
    let errno = failure.errno;
    failure
        .cause
        .unwrap_or_else(|| Error::invalid(format!("the tables disagree: {errno}")))
}

/// The quota of the directory `quota` and those around it, from the innermost on.
fn chain(state: &State, quota: Ino) -> Result<Vec<(Ino, QuotaRow)>> {
    let mut rows = Vec::new();
    let mut at = quota;
    while let Some(row) = state.quotas.get(&at) {
        if rows.len() >= state.quotas.len() {
            let what = format!("the quotas around directory {quota} form a circle");
            return Err(Error::corrupt("quota row", 0, "V-4.6", what));
        }
        rows.push((at, *row));
        at = row.parent;
    }
    Ok(rows)
}

/// `new - old`. Rows of a damaged volume may have any numbers: the result stays in its range.
pub fn difference(new: u64, old: u64) -> i64 {
    let difference = i128::from(new) - i128::from(old);
    let bound = if difference < 0 { i64::MIN } else { i64::MAX };
    i64::try_from(difference).unwrap_or(bound)
}

fn exceeds(used: u64, new: i64, max: u64) -> bool {
    max != 0 && new > 0 && used.saturating_add_signed(new) > max
}

/// What counts for a quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes.
    pub len: u64,
    /// Inodes.
    pub count: u64,
}

impl Account {
    /// Adds bytes and inodes.
    pub fn add(&mut self, more: Self) {
        self.len = self.len.saturating_add(more.len);
        self.count = self.count.saturating_add(more.count);
    }
}

/// Accounts by directory with a quota.
pub type Accounts = BTreeMap<Ino, Account>;

/// What an operation adds to an account, or takes from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Bytes.
    pub len: i64,
    /// Inodes.
    pub count: i64,
}

impl Charge {
    /// Bytes of an inode that counts already.
    pub fn of_len(len: i64) -> Self {
        Self { len, count: 0 }
    }
}

impl Core {
    /// Opens the accounts of a volume whose tables count no attributes: counts everything again.
    /// Nothing waits for a commit. Returns whether an account changed.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn recount(&self) -> Result<bool> {
        let mut state = self.state.write();
        let mut own = Accounts::new();
        let mut quota_of: HashMap<Ino, Ino> = HashMap::new();
        self.tables.each_inode(&mut |ino, row| {
            if !row.quota.is_none() {
                let len = row.allocated.saturating_add(row.target.len() as u64);
                let account = own.entry(row.quota).or_default();
                account.add(Account { len, count: 1 });
                if row.xattr_count > 0 {
                    quota_of.insert(ino, row.quota);
                }
            }
        })?;
        self.tables.each_xattr_of_all(&mut |ino, name, value| {
            if let Some(quota) = quota_of.get(&ino) {
                let len = counted_xattr_len(name, value);
                let account = own.entry(*quota).or_default();
                account.add(Account { len, count: 0 });
            }
        })?;
        let mut counted = Accounts::new();
        for (dir, account) in own {
            for (dir, _) in chain(&state, dir)? {
                counted.entry(dir).or_default().add(account);
            }
        }
        let mut has_changed = false;
        for (dir, row) in state.quotas.clone() {
            let Account { len, count } = counted.get(&dir).copied().unwrap_or_default();
            if (row.len, row.count) != (len, count) {
                has_changed = true;
                let row = QuotaRow { len, count, ..row };
                state.quotas.insert(dir, row);
                state.active.put_quota(dir, Some(row));
            }
        }
        state.active.is_changed |= has_changed;
        Ok(has_changed)
    }

    /// The directory whose quota an inode in `dir` counts for, or [`Ino::NONE`].
    ///
    /// # Errors
    /// ENOENT.
    pub fn quota_in(&self, state: &State, dir: Ino) -> Outcome<Ino> {
        if state.quotas.is_empty() {
            return Ok(Ino::NONE);
        }
        if state.quotas.contains_key(&dir) {
            Ok(dir)
        } else {
            Ok(self.inode(state, dir)?.quota)
        }
    }

    /// Checks that `ino` may get a name in `dir`: both count for one quota.
    ///
    /// # Errors
    /// EXDEV.
    pub fn check_quota(&self, state: &State, ino: Ino, dir: Ino) -> Outcome<()> {
        if state.quotas.is_empty() {
            return Ok(());
        }
        if self.inode(state, ino)?.quota == self.quota_in(state, dir)? {
            Ok(())
        } else {
            Err(Errno::XDEV.into())
        }
    }

    /// Checks that `quota` and those around it have room for more bytes and inodes.
    ///
    /// # Errors
    /// EDQUOT; EIO on a circle of quotas.
    pub fn check_room(&self, state: &State, quota: Ino, charge: Charge) -> Outcome<()> {
        for (_, row) in chain(state, quota)? {
            if exceeds(row.len, charge.len, row.len_max)
                || exceeds(row.count, charge.count, row.count_max)
            {
                return Err(Errno::DQUOT.into());
            }
        }
        Ok(())
    }

    /// Bytes that the inode `ino` counts for its quota.
    ///
    /// # Errors
    /// ENOENT.
    pub fn counted_len(&self, state: &State, ino: Ino, row: &InodeRow) -> Outcome<u64> {
        let own = row.allocated.saturating_add(row.target.len() as u64);
        Ok(own.saturating_add(self.xattrs_len(state, ino)?))
    }

    /// Adds bytes and inodes to the account of `quota` and to those around it.
    ///
    /// # Errors
    /// EDQUOT; EIO on a circle of quotas; nothing has changed then.
    pub fn charge(
        &self,
        state: &mut State,
        quota: Ino,
        charge: Charge,
        limits: Limits,
    ) -> Outcome<()> {
        if quota.is_none() || charge == Charge::default() {
            return Ok(());
        }
        if limits == Limits::Hold {
            self.check_room(state, quota, charge)?;
        }
        for (dir, mut row) in chain(state, quota)? {
            row.len = row.len.saturating_add_signed(charge.len);
            row.count = row.count.saturating_add_signed(charge.count);
            state.quotas.insert(dir, row);
            state.active.put_quota(dir, Some(row));
            self.forget_quota(state, dir)?;
        }
        Ok(())
    }

    /// Removes the quota of `dir` if the directory and everything that was below it are gone.
    ///
    /// # Errors
    /// Errors of storage.
    pub fn forget_quota(&self, state: &mut State, dir: Ino) -> Outcome<()> {
        if state.quotas.get(&dir).is_none_or(|row| row.count > 0) {
            return Ok(());
        }
        match self.inode(state, dir) {
            Ok(_) => Ok(()),
            Err(failure) if failure.errno == Errno::NOENT => {
                state.quotas.remove(&dir);
                state.active.put_quota(dir, None);
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// A quota or its use, if `name` asks for it.
    pub fn quota_use(&self, state: &State, dir: Ino, name: &[u8]) -> Option<Vec<u8>> {
        let pick: fn(&QuotaRow) -> u64 = match name {
            USED => |row| row.len,
            USED_COUNT => |row| row.count,
            QUOTA_SHOWN => |row| row.len_max,
            QUOTA_COUNT_SHOWN => |row| row.count_max,
            _ => return None,
        };
        let is_limit = name == QUOTA_SHOWN || name == QUOTA_COUNT_SHOWN;
        let number = pick(state.quotas.get(&dir)?);
        (number > 0 || !is_limit).then(|| number.to_string().into_bytes())
    }

    /// Sets or removes a limit of `dir`, if `name` is one. The first limit opens an account, which
    /// counts everything below the directory.
    ///
    /// # Errors
    /// EINVAL for another inode than a directory; EDQUOT if more is used already; EXDEV if a file
    /// below the directory has a name elsewhere.
    pub fn set_quota(
        &self,
        state: &mut State,
        dir: Ino,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Outcome<()> {
        if name != QUOTA && name != QUOTA_COUNT {
            return Ok(());
        }
        let inode = self.inode(state, dir)?;
        if inode.kind != FileKind::Directory {
            return Err(Errno::INVAL.into());
        }
        let limit = match value {
            Some(value) => parse_quota(value).ok_or(Errno::INVAL)?,
            None => 0,
        };
        let old = state.quotas.get(&dir).copied();
        let members = match old {
            Some(_) => None,
            None => Some(self.members(state, dir)?),
        };
        let mut new = old.unwrap_or_else(|| QuotaRow {
            parent: inode.quota,
            len: members.as_ref().map_or(0, |members| members.len),
            count: members.as_ref().map_or(0, |members| members.count),
            ..QuotaRow::default()
        });
        if name == QUOTA {
            new.len_max = limit
        } else {
            new.count_max = limit
        }
        let is_over = |used, max| max != 0 && used > max;
        if value.is_some() && (is_over(new.len, new.len_max) || is_over(new.count, new.count_max)) {
            return Err(Errno::DQUOT.into());
        }
        if (new.len_max, new.count_max) == (0, 0) {
            let members = self.members(state, dir)?;
            let orphans = self.orphans_of(state, dir)?;
            self.assign(state, members.inodes.into_iter().chain(orphans), new.parent)?;
            self.set_parents(state, &members.nested, new.parent);
            state.quotas.remove(&dir);
            state.active.put_quota(dir, None);
            return Ok(());
        }
        if let Some(members) = members {
            self.assign(state, members.inodes, dir)?;
            self.set_parents(state, &members.nested, dir);
        }
        state.quotas.insert(dir, new);
        state.active.put_quota(dir, Some(new));
        Ok(())
    }

    /// Everything below `dir`, up to directories with a quota of their own.
    fn members(&self, state: &State, dir: Ino) -> Outcome<Members> {
        let mut members = Members::default();
        // Names found of files that have several.
        let mut names: HashMap<Ino, (u32, u32)> = HashMap::new();
        let mut pending = vec![dir];
        let mut visited: HashSet<Ino> = HashSet::new();
        while let Some(dir) = pending.pop() {
            if !visited.insert(dir) {
                let what = format!("two names lead to the directory {dir}");
                return Err(Error::corrupt("name row", 0, "V-3.4", what).into());
            }
            for (_, name) in self.names_after(state, dir, Cookie::START, usize::MAX, None)? {
                let row = self.inode(state, name.ino)?;
                let is_dir = row.kind == FileKind::Directory;
                if !is_dir && row.nlink > 1 {
                    let found = names.entry(name.ino).or_insert((row.nlink, 0));
                    found.1 += 1;
                    if found.1 > 1 {
                        continue;
                    }
                }
                members.inodes.push(name.ino);
                let len = self.counted_len(state, name.ino, &row)?;
                members.len = members.len.saturating_add(len);
                members.count = members.count.saturating_add(1);
                match state.quotas.get(&name.ino) {
                    Some(quota) => {
                        members.nested.push(name.ino);
                        members.len = members.len.saturating_add(quota.len);
                        members.count = members.count.saturating_add(quota.count);
                    }
                    None if is_dir => pending.push(name.ino),
                    None => {}
                }
            }
        }
        if names.values().all(|(links, found)| links == found) {
            Ok(members)
        } else {
            Err(Errno::XDEV.into())
        }
    }

    /// Removed inodes that still count for the quota of `dir`.
    fn orphans_of(&self, state: &State, dir: Ino) -> Outcome<Vec<Ino>> {
        let mut orphans: BTreeSet<Ino> = self.tables.orphans()?.into_iter().collect();
        for layer in self.layers(state) {
            orphans.extend(layer.orphans.keys());
        }
        let mut found = Vec::new();
        for ino in orphans {
            match self.inode(state, ino) {
                Ok(row) if row.quota == dir && row.nlink == 0 => found.push(ino),
                Err(failure) if failure.errno != Errno::NOENT => return Err(failure),
                _ => {}
            }
        }
        Ok(found)
    }

    fn assign(
        &self,
        state: &mut State,
        inodes: impl IntoIterator<Item = Ino>,
        quota: Ino,
    ) -> Outcome<()> {
        for ino in inodes {
            self.inode_mut(state, ino)?.quota = quota;
        }
        Ok(())
    }

    fn set_parents(&self, state: &mut State, nested: &[Ino], parent: Ino) {
        for dir in nested {
            if let Some(row) = state.quotas.get_mut(dir) {
                row.parent = parent;
                let row = *row;
                state.active.put_quota(*dir, Some(row));
            }
        }
    }

    /// `capacity` as far as the quotas around `ino` leave it.
    ///
    /// # Errors
    /// ENOENT.
    pub fn capacity_in(
        &self,
        state: &State,
        ino: Ino,
        mut capacity: FsCapacity,
    ) -> Outcome<FsCapacity> {
        let quota = if state.quotas.is_empty() {
            Ino::NONE
        } else {
            self.quota_in(state, ino)?
        };
        let (mut has_len, mut has_count) = (false, false);
        for (_, row) in chain(state, quota)? {
            if row.len_max != 0 {
                capacity.free = capacity.free.min(row.len_max.saturating_sub(row.len));
                // The innermost limit says what is used.
                if !has_len {
                    capacity.total = row.len;
                }
                has_len = true;
            }
            if row.count_max != 0 {
                let free = row.count_max.saturating_sub(row.count);
                capacity.inodes_free = capacity.inodes_free.min(free);
                if !has_count {
                    capacity.inodes = row.count;
                }
                has_count = true;
            }
        }
        if has_len {
            capacity.total = capacity.total.saturating_add(capacity.free);
        }
        Ok(capacity)
    }
}
