//! Members that the filter excludes and that a later hard link may still name.
//!
//! A stream does not say in advance which of its files get further names. So the contents of
//! excluded files wait in a temporary file. If the filter keeps a hard link to one of them, the
//! link gets the contents.
//!
//! Invariant: the table and the temporary file stay within the limits given to [`Excluded::new`].
//! Members beyond the limits are forgotten, and [`Excluded::is_complete`] says so.

use crate::member::{self, Member};
use crate::members::{Layout, Members};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use weald_format::{ErrorKind, FileKind, Result};
use weald_io::{ReadAt, Spool};

/// Bytes of contents read at once.
const SPOOL_PIECE_LEN: u64 = 1 << 20;

/// An excluded member.
pub enum ExcludedMember {
    /// A file of any kind but a directory.
    File(ExcludedFile),
    /// A hard link to the file whose path has this key.
    Link(Box<[u8]>),
}

/// An excluded file.
pub struct ExcludedFile {
    /// Record of the file, without its contents.
    pub record: Box<[u8]>,
    /// Layout of its contents; `None` for an empty file and for one without contents.
    pub layout: Option<Layout>,
    /// Offset of its data in the temporary file.
    pub offset: u64,
    /// The sorter has the record already, with the contents.
    pub is_kept: bool,
}

/// Table of the excluded members by key.
pub struct Excluded {
    dir: PathBuf,
    members: HashMap<Box<[u8]>, ExcludedMember>,
    /// Bytes that the table takes.
    memory_len: u64,
    memory_len_max: u64,
    spool: Option<Spool>,
    spool_len_max: u64,
    is_complete: bool,
}

impl Excluded {
    /// An empty table of at most `memory_len_max` bytes. A temporary file in `dir` takes at most
    /// `spool_len_max` bytes of contents.
    pub fn new(dir: &Path, memory_len_max: u64, spool_len_max: u64) -> Self {
        Self {
            dir: dir.to_owned(),
            members: HashMap::new(),
            memory_len: 0,
            memory_len_max,
            spool: None,
            spool_len_max,
            is_complete: true,
        }
    }

    /// Whether every excluded member is in the table.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The temporary file, once a member has contents.
    pub fn spool(&self) -> Option<&Spool> {
        self.spool.as_ref()
    }

    /// Adds the file `member` of `kind`, whose path has `key`, and reads its contents.
    ///
    /// # Errors
    /// As [`Members::read_data`]; `Io` for the temporary file, but not `Full`.
    pub fn add_file(
        &mut self,
        key: &[u8],
        member: &Member,
        kind: FileKind,
        members: &mut dyn Members,
    ) -> Result<()> {
        let mut record = Vec::new();
        member::put_entry(member, kind, None, &mut record);
        let layout = members.layout().filter(|layout| layout.len > 0).cloned();
        let runs = layout.as_ref().and_then(|layout| layout.runs.as_ref());
        let runs_len = runs.map_or(0, |runs| std::mem::size_of_val(runs.as_slice()));
        self.remove(key);
        if !self.has_room(key, record.len() + runs_len) {
            return Ok(());
        }
        let data_len = layout.as_ref().map_or(0, Layout::data_len);
        let Some(offset) = self.append(data_len, members)? else {
            self.is_complete = false;
            return Ok(());
        };
        let file = ExcludedFile {
            record: record.into(),
            layout,
            offset,
            is_kept: false,
        };
        self.insert(key, ExcludedMember::File(file));
        Ok(())
    }

    /// Adds a hard link at `key` to the path of key `target`.
    pub fn add_link(&mut self, key: &[u8], target: &[u8]) {
        let target: Box<[u8]> = match self.members.get(target) {
            Some(ExcludedMember::Link(first)) => first.clone(),
            _ => target.into(),
        };
        self.remove(key);
        if self.has_room(key, target.len()) {
            self.insert(key, ExcludedMember::Link(target));
        }
    }

    /// The member at `key`.
    pub fn get(&self, key: &[u8]) -> Option<&ExcludedMember> {
        self.members.get(key)
    }

    /// Marks the file at `key` as known to the sorter.
    pub fn set_kept(&mut self, key: &[u8]) {
        if let Some(ExcludedMember::File(file)) = self.members.get_mut(key) {
            file.is_kept = true;
        }
    }

    /// Forgets the member at `key`: a later member replaces it.
    pub fn remove(&mut self, key: &[u8]) {
        if let Some(member) = self.members.remove(key) {
            self.memory_len -= entry_len(key, member.extra_len());
        }
    }

    /// Whether the table has room for one more member; if not, the table is incomplete from now on.
    fn has_room(&mut self, key: &[u8], extra_len: usize) -> bool {
        let has_room = self.memory_len + entry_len(key, extra_len) <= self.memory_len_max;
        self.is_complete &= has_room;
        has_room
    }

    fn insert(&mut self, key: &[u8], member: ExcludedMember) {
        self.memory_len += entry_len(key, member.extra_len());
        self.members.insert(key.into(), member);
    }

    /// Moves `data_len` bytes of data to the temporary file and returns their offset; `None` if the
    /// limit or the file system leaves no room.
    fn append(&mut self, data_len: u64, members: &mut dyn Members) -> Result<Option<u64>> {
        if data_len == 0 {
            return Ok(Some(0));
        }
        let start = self.spool.as_ref().map_or(0, ReadAt::len);
        if start.saturating_add(data_len) > self.spool_len_max {
            return Ok(None);
        }
        let spool = match &mut self.spool {
            Some(spool) => spool,
            None => self.spool.insert(Spool::create(&self.dir)?),
        };
        let mut piece = vec![0; data_len.min(SPOOL_PIECE_LEN) as usize];
        let mut remaining_len = data_len;
        while remaining_len > 0 {
            let piece = &mut piece[..remaining_len.min(SPOOL_PIECE_LEN) as usize];
            members.read_data(piece)?;
            match spool.append(piece) {
                Err(error) if error.kind() == ErrorKind::Full => {
                    self.give_up();
                    return Ok(None);
                }
                appended => appended?,
            };
            remaining_len -= piece.len() as u64;
        }
        Ok(Some(start))
    }

    /// Forgets all members and takes no more: the image needs the space of the file system.
    fn give_up(&mut self) {
        (self.spool, self.spool_len_max) = (None, 0);
        self.members.clear();
        self.memory_len = 0;
    }
}

impl ExcludedMember {
    /// Bytes that it holds beside itself.
    fn extra_len(&self) -> usize {
        match self {
            Self::Link(target) => target.len(),
            Self::File(file) => {
                let runs = file.layout.as_ref().and_then(|layout| layout.runs.as_ref());
                let runs_len = runs.map_or(0, |runs| std::mem::size_of_val(runs.as_slice()));
                file.record.len() + runs_len
            }
        }
    }
}

/// Bytes that a member takes in the table. The table grows by doubling, so a slot counts twice; a
/// growing table exists twice for a moment.
fn entry_len(key: &[u8], extra_len: usize) -> u64 {
    const HEAP_LEN: usize = 32;
    let slot_len = size_of::<(Box<[u8]>, ExcludedMember)>() + 1;
    (key.len() + extra_len + 3 * slot_len + HEAP_LEN) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Input;
    use crate::tar::TarReader;
    use std::process::{Command, Stdio};

    /// The members of a tar stream with ten files of 1000 bytes, all excluded.
    fn excluded(memory_len_max: u64, spool_len_max: u64) -> (Excluded, u64) {
        let temp = tempfile::tempdir().unwrap();
        let script = "mkdir tree; cd tree; for no in 0 1 2 3 4 5 6 7 8 9; do \
                      head -c 1000 /dev/zero > $no; done; tar -cf ../tar *";
        let mut command = Command::new("sh");
        let made = command.args(["-c", script]).current_dir(temp.path());
        assert!(made.stdin(Stdio::null()).status().unwrap().success());
        let file = std::fs::File::open(temp.path().join("tar")).unwrap();
        let mut reader = TarReader::new(Input::new(Box::new(file), 1 << 20).unwrap());
        let mut excluded = Excluded::new(temp.path(), memory_len_max, spool_len_max);
        let (mut member, mut key) = (Member::default(), Vec::new());
        while reader.next(&mut member, &mut |_, _| {}).unwrap() {
            crate::path::put_key(&member.path, &mut key).unwrap();
            let added = excluded.add_file(&key, &member, FileKind::Regular, &mut reader);
            added.unwrap();
        }
        let spool_len = excluded.spool().map_or(0, ReadAt::len);
        (excluded, spool_len)
    }

    /// Would catch: memory or temporary space that grows with the stream, and an incomplete table
    /// that claims to be complete.
    #[test]
    fn table_and_temporary_file_stay_within_their_limits() {
        let (all, spool_len) = excluded(1 << 20, 1 << 20);
        assert_eq!(
            (all.members.len(), spool_len, all.is_complete()),
            (10, 10_000, true)
        );
        let (four, spool_len) = excluded(1 << 20, 4_999);
        assert_eq!(
            (four.members.len(), spool_len, four.is_complete()),
            (4, 4_000, false)
        );
        let memory_len_max = all.memory_len / 2;
        let (half, spool_len) = excluded(memory_len_max, 1 << 20);
        assert!(half.memory_len <= memory_len_max);
        assert_eq!(
            (half.members.len(), spool_len, half.is_complete()),
            (5, 5_000, false)
        );
    }

    /// Would catch: members that leave their length behind in the account of the table.
    #[test]
    fn removed_members_give_their_memory_back() {
        let (mut all, _) = excluded(1 << 20, 1 << 20);
        let keys: Vec<_> = all.members.keys().cloned().collect();
        all.add_link(b"\0a", &keys[0]);
        all.add_link(b"\0b", b"\0a");
        let first = all.get(b"\0b");
        assert!(matches!(first, Some(ExcludedMember::Link(key)) if *key == keys[0]));
        for key in keys.iter().map(|key| &key[..]).chain([&b"\0a"[..], b"\0b"]) {
            all.remove(key);
        }
        assert_eq!((all.memory_len, all.members.len()), (0, 0));
    }
}
