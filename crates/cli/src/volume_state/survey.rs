//! Looks, before a volume is sealed, for the parts of it that an image cannot have: damaged rows,
//! and things beyond the limits of the format.

use super::walk::{Directory, Walk};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use weald_format::limits::{DEPTH_MAX, FILE_LEN_MAX, NAME_LEN_MAX, NUMBER_MAX};
use weald_format::volume::{InodeRow, NameRow};
use weald_format::{ACL_ACCESS, Error, ErrorKind, FileKind, Ids, Ino, Result, permissions_without};
use weald_volume::VolumeReader;

/// Levels of directories that an image holds, the root included. The template that holds the root
/// is one more.
const LEVELS_MAX: u64 = DEPTH_MAX as u64 - 1;

/// Takes the path of something that is left out, and why. An error ends the seal.
pub type Tell<'a> = dyn Fn(&[u8], &Error) -> Result<()> + 'a;

/// Parts of a volume that its image leaves out.
#[derive(Debug, Default)]
pub struct LeftOut {
    /// By directory, names with all that is below them.
    names: HashMap<Ino, HashSet<Vec<u8>>>,
    /// Inodes with all their names.
    inodes: HashSet<Ino>,
    /// Inodes without their extended attributes, and the permissions that let nobody in whom a lost
    /// ACL may deny.
    without_xattrs: HashMap<Ino, u16>,
}

impl LeftOut {
    /// Leaves out the inode `ino`.
    pub fn add_inode(&mut self, ino: Ino) {
        self.inodes.insert(ino);
    }

    fn add_name(&mut self, dir: Ino, name: &[u8]) {
        self.names.entry(dir).or_default().insert(name.to_vec());
    }

    /// Whether the name `name` of `dir` stays.
    pub fn keeps(&self, dir: Ino, name: &NameRow) -> bool {
        let is_out = |names: &HashSet<Vec<u8>>| names.contains(&name.name);
        !self.inodes.contains(&name.ino) && !self.names.get(&dir).is_some_and(is_out)
    }

    /// The permissions of an inode whose extended attributes are left out.
    pub fn permissions_without_xattrs(&self, ino: Ino) -> Option<u16> {
        self.without_xattrs.get(&ino).copied()
    }
}

/// Looks at every row.
pub struct Survey<'a> {
    reader: &'a VolumeReader,
    tell: &'a Tell<'a>,
    left_out: LeftOut,
    dirs: HashSet<Ino>,
    /// Regular files with several names.
    linked: HashSet<Ino>,
    file_len: u64,
}

impl<'a> Survey<'a> {
    /// Finds what an image of `reader` leaves out, and tells it.
    ///
    /// # Errors
    /// Those of `tell`; `Io`, `Corrupt` if the root directory cannot be read.
    pub fn run(reader: &'a VolumeReader, tell: &'a Tell<'a>) -> Result<LeftOut> {
        let mut survey = Self {
            reader,
            tell,
            left_out: LeftOut::default(),
            dirs: HashSet::from([reader.root()]),
            linked: HashSet::new(),
            file_len: 0,
        };
        let root = reader.inode(reader.root())?;
        survey.xattrs(reader.root(), &root, &mut Vec::new)?;
        let mut walk = Walk::new(reader.root());
        while let Some(dir) = walk.next() {
            let names = match reader.names(dir.ino) {
                Ok(names) => names,
                Err(error) if error.is_unreadable() && dir.ino != reader.root() => {
                    survey.left_out.add_inode(dir.ino);
                    let what = "left out with everything below it";
                    tell(&walk.path_of(b""), &error.context(what))?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let names = survey.names(&Directory::new(&dir, &names, 0, walk.above()))?;
            walk.enter(&dir, &names);
        }
        if survey.file_len > NUMBER_MAX {
            survey.leave_out_longest()?;
        }
        Ok(survey.left_out)
    }

    /// The names that stay.
    fn names(&mut self, dir: &Directory<'_>) -> Result<Vec<Arc<NameRow>>> {
        let mut kept: Vec<Arc<NameRow>> = Vec::with_capacity(dir.names.len());
        for (no, name) in dir.names.iter().enumerate() {
            let twin = no.checked_sub(1).and_then(|no| dir.names.get(no));
            let is_twin = twin.is_some_and(|twin| twin.name == name.name);
            match self.name(dir, name, is_twin) {
                Ok(()) => kept.push(name.clone()),
                Err(error) if error.is_unreadable() || error.kind() == ErrorKind::Limit => {
                    self.left_out.add_name(dir.ino, &name.name);
                    kept.retain(|kept| kept.name != name.name);
                    (self.tell)(&dir.path_of(&name.name), &error.context("left out"))?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(kept)
    }

    fn name(&mut self, dir: &Directory<'_>, name: &NameRow, is_twin: bool) -> Result<()> {
        let damaged = |what: &'static str| Err(Error::corrupt("name row", 0, "V-3.2", what));
        let text = name.name.as_slice();
        let is_odd = matches!(text, b"" | b"." | b"..") || text.len() > NAME_LEN_MAX;
        if is_odd || text.iter().any(|byte| matches!(byte, 0 | b'/')) {
            return damaged("a name that no directory can have");
        }
        if is_twin {
            return damaged("a name that the directory has twice");
        }
        let row = self.reader.inode(name.ino)?;
        if row.kind != name.kind {
            return damaged("the inode is of another kind than the name");
        }
        match row.kind {
            FileKind::Directory if !self.dirs.insert(name.ino) => {
                return damaged("a directory that has another name too");
            }
            FileKind::Directory if dir.depth >= LEVELS_MAX => {
                let what = format!("directories nested deeper than {LEVELS_MAX} levels");
                return Err(Error::limit(what));
            }
            FileKind::Regular if row.size > FILE_LEN_MAX => {
                let size = row.size;
                let what = format!(
                    "{size} bytes long, holes included, and a file of an image has \
                                    at most {FILE_LEN_MAX} (2^60)"
                );
                return Err(Error::limit(what));
            }
            FileKind::Regular if row.nlink <= 1 || self.linked.insert(name.ino) => {
                self.file_len = self.file_len.saturating_add(row.size);
            }
            _ => {}
        }
        self.xattrs(name.ino, &row, &mut || dir.path_of(text))
    }

    fn xattrs(
        &mut self,
        ino: Ino,
        row: &InodeRow,
        path: &mut dyn FnMut() -> Vec<u8>,
    ) -> Result<()> {
        if row.xattr_count == 0 {
            return Ok(());
        }
        let error = match self.reader.xattrs(ino) {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        if !error.is_unreadable() && !matches!(error.kind(), ErrorKind::Limit | ErrorKind::Invalid)
        {
            return Err(error);
        }
        let permissions = match self.reader.xattr(ino, ACL_ACCESS) {
            Ok(Some(acl)) => permissions_without(row.permissions, &acl, Ids::Kept),
            Ok(None) if !error.is_unreadable() => row.permissions,
            // An ACL that is lost may have denied any user.
            _ => row.permissions & 0o7700,
        };
        self.left_out.without_xattrs.insert(ino, permissions);
        (self.tell)(&path(), &error.context("extended attributes left out"))
    }

    /// Leaves the longest files out, as many as needed: together, the others fit into an image.
    fn leave_out_longest(&mut self) -> Result<()> {
        let mut files: HashMap<Ino, u64> = HashMap::new();
        self.each_name(&mut |survey, _, name| {
            if name.kind == FileKind::Regular {
                files.insert(name.ino, survey.reader.inode(name.ino)?.size);
            }
            Ok(())
        })?;
        let mut by_len: Vec<(u64, Ino)> = files.into_iter().map(|(ino, len)| (len, ino)).collect();
        by_len.sort_unstable();
        let (mut sum, mut longest) = (0u64, HashMap::new());
        for (len, ino) in by_len {
            sum = sum.saturating_add(len);
            if sum > NUMBER_MAX {
                longest.insert(ino, len);
            }
        }
        self.each_name(&mut |survey, dir, name| match longest.get(&name.ino) {
            Some(len) => {
                let what = format!(
                    "left out: {len} bytes long, holes included, and the files have more than 2^62 \
                     together, of which the longest are left out"
                );
                (survey.tell)(&dir.path_of(&name.name), &Error::limit(what))
            }
            None => Ok(()),
        })?;
        longest.keys().for_each(|ino| self.left_out.add_inode(*ino));
        Ok(())
    }

    fn each_name(
        &self,
        visit: &mut dyn FnMut(&Self, &Directory<'_>, &NameRow) -> Result<()>,
    ) -> Result<()> {
        let mut walk = Walk::new(self.reader.root());
        while let Some(dir) = walk.next() {
            let mut names = self.reader.names(dir.ino)?;
            names.retain(|name| self.left_out.keeps(dir.ino, name));
            let shown = Directory::new(&dir, &names, 0, walk.above());
            for name in &names {
                visit(self, &shown, name)?;
            }
            walk.enter(&dir, &names);
        }
        Ok(())
    }
}
