//! Names: lookup, listing, creation, removal, renaming.

use crate::climb::{Climb, no_parent};
use crate::core::{Core, stat_of};
use crate::options::PlantedBug;
use crate::quotas::{Charge, Limits, difference, error_of};
use crate::state::State;
use crate::tables::NamesPage;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::volume::{
    InodeRow, NAME_LEN_MAX, NamePlace, NameRow, TARGET_LEN_MAX, counted_xattr_len, first_cookie,
    fold_case,
};
use weald_format::{Cookie, FileKind, InodeFlags, Result};
use weald_vfs::{Ino, Nanoseconds, NewInode, Outcome, RenameMode, Stat};

/// Most names of an inode.
const LINK_MAX: u32 = u32::MAX - 1;
/// Entries that one look at a directory gathers.
const LIST_BATCH: usize = 128;
/// Times that a look at a directory begins again because a commit ended. Then it holds the lock.
const LIST_ATTEMPTS: usize = 4;

/// A name that was found: its cookie and row.
pub type FoundName = (Cookie, Arc<NameRow>);

impl Core {
    fn fold_case<'a>(&self, name: &'a [u8]) -> std::borrow::Cow<'a, [u8]> {
        fold_case(name, self.is_case_insensitive)
    }

    /// The first cookie of names with the hash of `name`.
    pub fn base_cookie(&self, name: &[u8]) -> Cookie {
        first_cookie(&self.secret, name, self.is_case_insensitive)
    }

    fn slots(
        &self,
        state: &State,
        dir: Ino,
        base: Cookie,
    ) -> Result<BTreeMap<Cookie, Arc<NameRow>>> {
        let mut slots: BTreeMap<_, _> = self.tables.slots(dir, base)?.iter().cloned().collect();
        let layers: Vec<_> = self.layers(state).collect();
        let at = |cookie| NamePlace { dir, cookie };
        for layer in layers.into_iter().rev() {
            for (place, row) in layer.names.range(at(base)..=at(base.last_slot())) {
                match row {
                    Some(row) => drop(slots.insert(place.cookie, row.clone())),
                    None => drop(slots.remove(&place.cookie)),
                }
            }
        }
        Ok(slots)
    }

    /// Finds `name` in the directory `dir`.
    ///
    /// # Errors
    /// ENAMETOOLONG, and errors of storage.
    pub fn find(&self, state: &State, dir: Ino, name: &[u8]) -> Outcome<Option<FoundName>> {
        if name.len() > NAME_LEN_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let wanted = self.fold_case(name);
        let slots = self.slots(state, dir, self.base_cookie(name))?;
        let mut found = slots.into_iter();
        Ok(found.find(|(_, row)| self.fold_case(&row.name) == wanted))
    }

    fn existing(&self, state: &State, dir: Ino, name: &[u8]) -> Outcome<FoundName> {
        self.directory(state, dir)?;
        self.find(state, dir, name)?
            .ok_or_else(|| Errno::NOENT.into())
    }

    /// A cookie for the new name `name`.
    fn free_cookie(&self, state: &State, dir: Ino, name: &[u8]) -> Outcome<Cookie> {
        let base = self.base_cookie(name);
        let slots = self.slots(state, dir, base)?;
        base.slots()
            .find(|cookie| !slots.contains_key(cookie))
            .ok_or_else(|| Errno::NOSPC.into())
    }

    /// Finds `name` in `dir`.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    pub fn lookup(&self, state: &State, dir: Ino, name: &[u8]) -> Outcome<Stat> {
        let (_, row) = self.existing(state, dir, name)?;
        Ok(stat_of(row.ino, &*self.inode(state, row.ino)?))
    }

    /// The next entries of `dir` after the cookie `after`, in order, at most [`LIST_BATCH`]. Takes
    /// the lock itself, and reads rows without it.
    ///
    /// # Errors
    /// ENOTDIR.
    pub fn entries(&self, dir: Ino, after: Cookie) -> Outcome<Vec<(FoundName, Stat)>> {
        let mut after = after;
        loop {
            let (entries, page) = self.entries_of_page(dir, after)?;
            // All names of a page may have been removed since the last commit.
            match page.names.last() {
                Some((last, _)) if entries.is_empty() && !page.is_last => after = *last,
                _ => return Ok(entries),
            }
        }
    }

    /// The entries of the next page of the tables, and that page.
    fn entries_of_page(
        &self,
        dir: Ino,
        after: Cookie,
    ) -> Outcome<(Vec<(FoundName, Stat)>, NamesPage)> {
        self.prefetch_inode(dir);
        // A commit that ends meanwhile moves names between the layers and the tables.
        for _ in 0..LIST_ATTEMPTS {
            let version = self.tables.version();
            let first = after.next();
            let page = self.tables.names_page(dir, first, LIST_BATCH)?;
            // Inodes of names that the layers have are there, too.
            for (_, row) in &page.names {
                self.prefetch_inode(row.ino);
            }
            let state = self.state.read();
            if self.tables.version() == version {
                return Ok((self.entries_in(&state, dir, after, Some(&page))?, page));
            }
        }
        let last_page = NamesPage {
            is_last: true,
            ..NamesPage::default()
        };
        let state = self.state.read();
        Ok((self.entries_in(&state, dir, after, None)?, last_page))
    }

    fn entries_in(
        &self,
        state: &State,
        dir: Ino,
        after: Cookie,
        page: Option<&NamesPage>,
    ) -> Outcome<Vec<(FoundName, Stat)>> {
        self.directory(state, dir)?;
        let mut entries = Vec::new();
        for (cookie, row) in self.names_after(state, dir, after, LIST_BATCH, page)? {
            let stat = stat_of(row.ino, &*self.inode(state, row.ino)?);
            entries.push(((cookie, row), stat));
        }
        Ok(entries)
    }

    /// Up to `count` names of `dir` after the cookie `after`. The names of the tables are read, or
    /// come from `page`; then the result ends where the page does.
    ///
    /// # Errors
    /// Errors of storage.
    pub fn names_after(
        &self,
        state: &State,
        dir: Ino,
        after: Cookie,
        count: usize,
        page: Option<&NamesPage>,
    ) -> Result<Vec<FoundName>> {
        if after == Cookie::MAX {
            return Ok(Vec::new());
        }
        let first = after.next();
        let at = |cookie| NamePlace { dir, cookie };
        let range = at(first)..=at(Cookie::MAX);
        // Names that the layers change, the newest change of each, in order.
        let mut layers: Vec<_> = self
            .layers(state)
            .map(|layer| layer.names.range(range.clone()).peekable())
            .collect();
        let mut changed = std::iter::from_fn(|| {
            let next = |layer: &mut std::iter::Peekable<_>| layer.peek().map(|&(&place, _)| place);
            let NamePlace { cookie, .. } = layers.iter_mut().filter_map(next).min()?;
            let mut newest = None;
            for layer in &mut layers {
                if let Some((_, row)) = layer.next_if(|(place, _)| place.cookie == cookie) {
                    newest.get_or_insert_with(|| row.clone());
                }
            }
            newest.map(|row| (cookie, row))
        })
        .peekable();
        let mut names: Vec<FoundName> = Vec::new();
        let mut visit = |cookie, row: Arc<NameRow>| {
            // A row that checks and seals name: every directory lists these two already.
            if matches!(row.name.as_slice(), b"." | b"..") {
                return ControlFlow::Continue(());
            }
            while let Some((at, change)) = changed.next_if(|(at, _)| *at <= cookie) {
                match change {
                    Some(row) => names.push((at, row)),
                    None if at == cookie => return stop_at_count(&names, count),
                    None => {}
                }
                if at == cookie {
                    return stop_at_count(&names, count);
                }
                if names.len() >= count {
                    return ControlFlow::Break(());
                }
            }
            names.push((cookie, row));
            stop_at_count(&names, count)
        };
        match page {
            Some(page) => {
                let mut rows = page.names.iter();
                let _ = rows.try_for_each(|(cookie, row)| visit(*cookie, row.clone()));
            }
            None => self.tables.each_name(dir, first, &mut visit)?,
        }
        while page.is_none_or(|page| page.is_last)
            && names.len() < count
            && let Some((at, change)) = changed.next()
        {
            names.extend(change.map(|row| (at, row)));
        }
        Ok(names)
    }

    fn is_empty(&self, state: &State, dir: Ino) -> Result<bool> {
        let page = self.tables.first_names(dir)?;
        if !self
            .names_after(state, dir, Cookie::START, 1, Some(&page))?
            .is_empty()
        {
            return Ok(false);
        }
        // The names of the page were removed since the last commit, and others follow.
        Ok(page.is_last
            || self
                .names_after(state, dir, Cookie::START, 1, None)?
                .is_empty())
    }

    fn touch_dir(&self, state: &mut State, dir: Ino, links: i32, now: Nanoseconds) -> Outcome<()> {
        let row = self.inode_mut(state, dir)?;
        row.mtime = now;
        row.ctime = now;
        row.nlink = row.nlink.saturating_add_signed(links);
        Ok(())
    }

    fn new_inode(
        &self,
        state: &mut State,
        parent: Ino,
        nlink: u32,
        new: &NewInode<'_>,
        now: Nanoseconds,
    ) -> Outcome<Stat> {
        if new.target.len() > TARGET_LEN_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if (new.kind == FileKind::Symlink) == new.target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let quota = self.quota_in(state, parent)?;
        let inherited = match new.kind {
            FileKind::Directory | FileKind::Regular => self.inherited(state, parent, new.xattrs)?,
            _ => Vec::new(),
        };
        let own = new
            .xattrs
            .iter()
            .map(|(name, value)| counted_xattr_len(name, value));
        let taken = inherited
            .iter()
            .map(|(name, value)| counted_xattr_len(name, value));
        let len = own.chain(taken).sum::<u64>() + new.target.len() as u64;
        let charge = Charge {
            len: difference(len, 0),
            count: 1,
        };
        self.charge(state, quota, charge, Limits::Hold)?;
        let ino = state.active.next_ino;
        state.active.next_ino = ino.next();
        let row = InodeRow {
            kind: new.kind,
            permissions: new.permissions & 0o7777,
            flags: InodeFlags::NONE,
            uid: new.uid,
            gid: new.gid,
            nlink,
            rdev: if new.kind.is_device() { new.rdev } else { 0 },
            size: new.target.len() as u64,
            allocated: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            parent: if new.kind == FileKind::Directory {
                parent
            } else {
                Ino::NONE
            },
            quota,
            xattr_count: (new.xattrs.len() + inherited.len()) as u32,
            target: new.target.to_vec(),
        };
        for (name, value) in new.xattrs {
            state.active.put_xattr(ino, name, Some((*value).into()));
        }
        for (name, value) in inherited {
            state.active.put_xattr(ino, name, Some(value.into()));
        }
        let stat = stat_of(ino, &row);
        state.active.put_inode(ino, Some(Arc::new(row)));
        state.change_totals(1, 0);
        Ok(stat)
    }

    /// Checks that `name` can be created in `dir`.
    fn check_new(&self, state: &State, dir: Ino, name: &[u8]) -> Outcome<()> {
        if self.directory(state, dir)?.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        match self.find(state, dir, name)? {
            Some(_) => Err(Errno::EXIST.into()),
            None => self.check_addition(state, dir),
        }
    }

    fn put_name(
        &self,
        state: &mut State,
        place: NamePlace,
        name: &[u8],
        (ino, kind): (Ino, FileKind),
    ) {
        let row = NameRow {
            name: name.to_vec(),
            ino,
            kind,
        };
        state.active.put_name(place, Some(Arc::new(row)));
    }

    /// Creates `name` in `dir`.
    ///
    /// # Errors
    /// EEXIST, ENOTDIR, ENOENT, ENAMETOOLONG.
    pub fn create(
        &self,
        state: &mut State,
        dir: Ino,
        name: &[u8],
        new: &NewInode<'_>,
        now: Nanoseconds,
    ) -> Outcome<Stat> {
        self.check_new(state, dir, name)?;
        let cookie = self.free_cookie(state, dir, name)?;
        let is_dir = new.kind == FileKind::Directory;
        let stat = self.new_inode(state, dir, if is_dir { 2 } else { 1 }, new, now)?;
        self.put_name(state, NamePlace { dir, cookie }, name, (stat.ino, new.kind));
        self.touch_dir(state, dir, is_dir.into(), now)?;
        Ok(stat)
    }

    /// Creates a regular file without a name.
    ///
    /// # Errors
    /// ENOTDIR, ENOENT.
    pub fn create_unnamed(
        &self,
        state: &mut State,
        dir: Ino,
        new: &NewInode<'_>,
        now: Nanoseconds,
    ) -> Outcome<Stat> {
        if self.directory(state, dir)?.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        self.check_addition(state, dir)?;
        let stat = self.new_inode(state, dir, 0, new, now)?;
        state.active.orphans.insert(stat.ino, true);
        Ok(stat)
    }

    /// Gives `ino` another name.
    ///
    /// # Errors
    /// EEXIST, EPERM, EMLINK.
    pub fn link(
        &self,
        state: &mut State,
        ino: Ino,
        (dir, name): (Ino, &[u8]),
        now: Nanoseconds,
    ) -> Outcome<Stat> {
        let row = self.inode(state, ino)?;
        if row.kind == FileKind::Directory {
            return Err(Errno::PERM.into());
        }
        self.check_new(state, dir, name)?;
        if row.flags.has_any(InodeFlags::LOCKS) {
            return Err(Errno::PERM.into());
        }
        if row.nlink >= LINK_MAX {
            return Err(Errno::MLINK.into());
        }
        self.check_quota(state, ino, dir)?;
        let cookie = self.free_cookie(state, dir, name)?;
        self.put_name(state, NamePlace { dir, cookie }, name, (ino, row.kind));
        if row.nlink == 0 {
            state.active.orphans.insert(ino, false);
        }
        let row = self.inode_mut(state, ino)?;
        row.nlink = row.nlink.saturating_add(1);
        row.ctime = now;
        let stat = stat_of(ino, row);
        self.touch_dir(state, dir, 0, now)?;
        Ok(stat)
    }

    /// Takes a name from `ino`, which becomes an orphan with its last one.
    fn drop_link(&self, state: &mut State, ino: Ino, now: Nanoseconds) -> Outcome<Stat> {
        let row = self.inode_mut(state, ino)?;
        row.ctime = now;
        row.nlink = match row.kind {
            FileKind::Directory => 0,
            _ => row.nlink.saturating_sub(1),
        };
        let stat = stat_of(ino, row);
        if self.has_bug(PlantedBug::OrphanNotRecorded) {
            return Ok(stat);
        }
        if stat.nlink == 0 {
            state.active.orphans.insert(ino, true);
        }
        Ok(stat)
    }

    /// Removes the name of a file or (`is_dir`) of an empty directory.
    ///
    /// # Errors
    /// ENOENT, EISDIR, ENOTDIR, ENOTEMPTY.
    pub fn remove(
        &self,
        state: &mut State,
        dir: Ino,
        name: &[u8],
        is_dir: bool,
        now: Nanoseconds,
    ) -> Outcome<Stat> {
        let (cookie, row) = self.existing(state, dir, name)?;
        self.check_removal(state, dir, row.ino)?;
        match (row.kind == FileKind::Directory, is_dir) {
            (true, false) => return Err(Errno::ISDIR.into()),
            (false, true) => return Err(Errno::NOTDIR.into()),
            (true, true) if !self.is_empty(state, row.ino)? => {
                return Err(Errno::NOTEMPTY.into());
            }
            _ => {}
        }
        let stat = self.drop_link(state, row.ino, now)?;
        state.active.put_name(NamePlace { dir, cookie }, None);
        self.touch_dir(state, dir, -i32::from(is_dir), now)?;
        Ok(stat)
    }

    /// Whether `dir` is `ancestor` or lies below it.
    ///
    /// # Errors
    /// EIO if the parents of `dir` do not lead to a root.
    fn is_below(&self, state: &State, dir: Ino, ancestor: Ino) -> Outcome<bool> {
        let mut climb = Climb::new(dir);
        loop {
            let at = climb.at();
            if at == ancestor {
                return Ok(true);
            }
            let row = self
                .inode(state, at)
                .map_err(|failure| match failure.errno {
                    Errno::NOENT => no_parent(dir, at).into(),
                    _ => failure,
                })?;
            if row.parent == at || row.parent.is_none() {
                return Ok(false);
            }
            climb.step(row.parent)?;
        }
    }

    /// Renames as renameat2(2) does. Returns the inode that has no name now.
    ///
    /// # Errors
    /// As [`weald_vfs::WritableFs::rename`].
    pub fn rename(
        &self,
        state: &mut State,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Nanoseconds,
    ) -> Outcome<Option<Stat>> {
        let ((from_dir, from_name), (to_dir, to_name)) = (from, to);
        let source = self.existing(state, from_dir, from_name)?;
        if self.directory(state, to_dir)?.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        let target = self.find(state, to_dir, to_name)?;
        let is_dir = source.1.kind == FileKind::Directory;
        let is_source = |cookie: Cookie| (from_dir, source.0) == (to_dir, cookie);
        match (&target, mode) {
            (None, RenameMode::Exchange) => return Err(Errno::NOENT.into()),
            (Some((cookie, row)), RenameMode::KeepExisting)
                if !is_source(*cookie) || row.name == to_name =>
            {
                return Err(Errno::EXIST.into());
            }
            _ => {}
        }
        // Within one directory nothing gets another parent.
        let moves = from_dir != to_dir;
        if is_dir && moves && self.is_below(state, to_dir, source.1.ino)? {
            return Err(Errno::INVAL.into());
        }
        if let Some((cookie, row)) = &target
            && row.ino == source.1.ino
        {
            // Both names lead to one inode: nothing changes, except the case of a name.
            if is_source(*cookie) && row.name != to_name {
                self.check_removal(state, from_dir, row.ino)?;
                let cookie = *cookie;
                let place = NamePlace {
                    dir: to_dir,
                    cookie,
                };
                self.put_name(state, place, to_name, (row.ino, row.kind));
                self.touch_dir(state, to_dir, 0, now)?;
            }
            return Ok(None);
        }
        self.check_removal(state, from_dir, source.1.ino)?;
        match &target {
            Some((_, row)) => self.check_removal(state, to_dir, row.ino)?,
            None => self.check_addition(state, to_dir)?,
        }
        self.check_quota(state, source.1.ino, to_dir)?;
        if let (RenameMode::Exchange, Some(target)) = (mode, &target) {
            self.check_quota(state, target.1.ino, from_dir)?;
            self.exchange(state, (from_dir, &source), (to_dir, target), now)?;
            return Ok(None);
        }
        if mode == RenameMode::LeaveWhiteout {
            // Nothing has changed yet if there is no room for it.
            let quota = self.quota_in(state, from_dir)?;
            self.check_room(state, quota, Charge { len: 0, count: 1 })?;
        }
        let replaced = match &target {
            Some((_, row)) => self.replace(state, row, is_dir, now)?,
            None => None,
        };
        let was_dir = target
            .as_ref()
            .is_some_and(|(_, row)| row.kind == FileKind::Directory);
        self.leave(state, (from_dir, &source), mode, now)?;
        let cookie = match &target {
            Some((cookie, _)) => *cookie,
            None => self.free_cookie(state, to_dir, to_name)?,
        };
        let (ino, kind) = (source.1.ino, source.1.kind);
        let place = NamePlace {
            dir: to_dir,
            cookie,
        };
        self.put_name(state, place, to_name, (ino, kind));
        self.touch_dir(state, from_dir, -i32::from(is_dir), now)?;
        let links = i32::from(is_dir) - i32::from(was_dir);
        self.touch_dir(state, to_dir, links, now)?;
        self.moved(state, ino, to_dir, now)?;
        Ok(replaced)
    }

    /// Takes the name from the target of a rename.
    fn replace(
        &self,
        state: &mut State,
        target: &NameRow,
        is_dir: bool,
        now: Nanoseconds,
    ) -> Outcome<Option<Stat>> {
        match (is_dir, target.kind == FileKind::Directory) {
            (true, false) => return Err(Errno::NOTDIR.into()),
            (false, true) => return Err(Errno::ISDIR.into()),
            (true, true) if !self.is_empty(state, target.ino)? => {
                return Err(Errno::NOTEMPTY.into());
            }
            _ => {}
        }
        let stat = self.drop_link(state, target.ino, now)?;
        Ok((stat.nlink == 0).then_some(stat))
    }

    /// Removes the old name of a rename, or puts a whiteout there.
    fn leave(
        &self,
        state: &mut State,
        (dir, (cookie, row)): (Ino, &FoundName),
        mode: RenameMode,
        now: Nanoseconds,
    ) -> Outcome<()> {
        if self.has_bug(PlantedBug::RenameWithoutUnlink) {
            return Ok(());
        }
        let cookie = *cookie;
        let place = NamePlace { dir, cookie };
        if mode != RenameMode::LeaveWhiteout {
            state.active.put_name(place, None);
            return Ok(());
        }
        let owner = self.inode(state, row.ino)?;
        let whiteout = NewInode {
            kind: FileKind::CharDevice,
            permissions: 0,
            uid: owner.uid,
            gid: owner.gid,
            rdev: 0,
            target: &[],
            xattrs: &[],
        };
        let stat = self.new_inode(state, dir, 1, &whiteout, now)?;
        let inode = (stat.ino, FileKind::CharDevice);
        self.put_name(state, place, &row.name, inode);
        Ok(())
    }

    /// Notes that `ino` has a name in `dir` now.
    fn moved(&self, state: &mut State, ino: Ino, dir: Ino, now: Nanoseconds) -> Outcome<()> {
        let row = self.inode_mut(state, ino)?;
        row.ctime = now;
        if row.kind == FileKind::Directory {
            row.parent = dir;
        }
        Ok(())
    }

    fn exchange(
        &self,
        state: &mut State,
        (from_dir, source): (Ino, &FoundName),
        (to_dir, target): (Ino, &FoundName),
        now: Nanoseconds,
    ) -> Outcome<()> {
        let is_dir = |found: &FoundName| found.1.kind == FileKind::Directory;
        let moves = from_dir != to_dir;
        if is_dir(target) && moves && self.is_below(state, from_dir, target.1.ino)? {
            return Err(Errno::INVAL.into());
        }
        for (dir, place, with) in [(from_dir, source, target), (to_dir, target, source)] {
            let inode = (with.1.ino, with.1.kind);
            let cookie = place.0;
            self.put_name(state, NamePlace { dir, cookie }, &place.1.name, inode);
            let links = i32::from(is_dir(with)) - i32::from(is_dir(place));
            self.touch_dir(state, dir, links, now)?;
            self.moved(state, with.1.ino, dir, now)?;
        }
        Ok(())
    }

    /// Drops `ino` if it has no name.
    ///
    /// # Errors
    /// Errors of storage.
    pub fn forget(&self, state: &mut State, ino: Ino) -> Outcome<()> {
        let row = self.inode(state, ino)?;
        let len = match row.quota {
            Ino::NONE => 0,
            _ => self.counted_len(state, ino, &row)?,
        };
        state.active.put_inode(ino, None);
        state.active.files.remove(&ino);
        state.active.drops.insert(ino);
        state.change_totals(-1, difference(0, row.allocated));
        let freed = Charge {
            len: difference(0, len),
            count: -1,
        };
        self.charge(state, row.quota, freed, Limits::Ignore)?;
        self.forget_quota(state, ino)
    }

    /// Drops the orphans that a crash left.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn drop_orphans(&self) -> Result<()> {
        let orphans = self.tables.orphans()?;
        let mut state = self.state.write();
        for ino in orphans {
            state.active.is_changed = true;
            match self.tables.inode(ino)? {
                Some(_) => self.forget(&mut state, ino).map_err(error_of)?,
                None => drop(state.active.drops.insert(ino)),
            }
        }
        Ok(())
    }
}

fn stop_at_count(names: &[FoundName], count: usize) -> ControlFlow<()> {
    if names.len() >= count {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}
