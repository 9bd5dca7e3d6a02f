//! Results of one thread: entries, directories and texts in a few large vectors, with numbers that
//! are valid in this shard only.

use super::intern::Interner;
use crate::Problem;
use std::collections::{HashMap, HashSet};
use weald_format::{Attributes, FileKind, Timestamp, XattrSet};

/// Maximum number of shards, and so of threads: [`NameRef`] has 12 bits for the shard.
pub const SHARD_COUNT_MAX: usize = (1 << 12) - 1;

/// "No number", in fields that hold a number.
pub const NONE: u32 = u32::MAX;

/// `link` of a directory that is kept but not entered (on another file system).
pub const NOT_ENTERED: u32 = u32::MAX - 1;

/// Location of a name: shard (12 bits), offset in its names (44 bits), length (8 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NameRef(u64);

impl NameRef {
    pub fn shard(self) -> usize {
        (self.0 >> 52) as usize
    }

    pub fn slice(self, names: &[u8]) -> &[u8] {
        let start = (self.0 >> 8 & ((1 << 44) - 1)) as usize;
        &names[start..start + (self.0 & 0xFF) as usize]
    }
}

/// One entry. It has only 48 bytes, because there are millions.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub name: NameRef,
    pub size: u64,
    pub mtime_seconds: i64,
    pub ino: u64,
    /// Nanoseconds in the low 30 bits; [`Entry::LINKED`] and [`Entry::OTHER_DEV`] above them.
    mtime_nanoseconds: u32,
    /// Index of kind and attributes.
    pub attributes: u32,
    /// Directory: its number. Symlink: index of its target. Regular file of an image: its content,
    /// or [`NONE`] if it is empty. Others: [`NONE`].
    pub link: u32,
    /// Index of the xattr set, or [`NONE`].
    pub xattrs: u32,
}

impl Entry {
    /// Flag: the inode has several names.
    pub const LINKED: u32 = 1 << 31;
    /// Flag: the inode is on another device than its directory; see [`Shard::other_devs`].
    pub const OTHER_DEV: u32 = 1 << 30;
    const NANOSECONDS: u32 = Self::OTHER_DEV - 1;

    pub fn has(&self, flag: u32) -> bool {
        self.mtime_nanoseconds & flag != 0
    }

    pub fn set(&mut self, flag: u32, is_set: bool) {
        self.mtime_nanoseconds = self.mtime_nanoseconds & !flag | if is_set { flag } else { 0 };
    }

    pub fn mtime(&self) -> Timestamp {
        Timestamp {
            seconds: self.mtime_seconds,
            nanoseconds: self.mtime_nanoseconds & Self::NANOSECONDS,
        }
    }

    pub fn set_mtime(&mut self, mtime: Timestamp) {
        self.mtime_seconds = mtime.seconds;
        let flags = self.mtime_nanoseconds & !Self::NANOSECONDS;
        self.mtime_nanoseconds = flags | (mtime.nanoseconds & Self::NANOSECONDS);
    }
}

/// Times that are kept only on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MoreTimes {
    pub atime: Option<Timestamp>,
    pub ctime: Option<Timestamp>,
    pub btime: Option<Timestamp>,
}

/// A directory that was listed completely.
#[derive(Debug, Clone, Copy)]
pub struct RawDir {
    /// Number of the directory; `link` of its entry in the parent.
    pub number: u32,
    /// Its entries in the shard: index of the first, and count. Their texts and attributes are in
    /// the shard of their names, which is a different one only in a merged directory.
    pub first: usize,
    pub count: usize,
    /// Device of the directory.
    pub dev: u64,
}

/// All results of one thread.
#[derive(Default)]
pub struct Shard {
    index: u64,
    pub entries: Vec<Entry>,
    /// Parallel to `entries`, or empty if not wanted.
    pub more_times: Vec<MoreTimes>,
    pub dirs: Vec<RawDir>,
    pub names: Vec<u8>,
    pub targets: Vec<u8>,
    /// Offset of each target in `targets`; its length is the entry's size.
    pub target_starts: Vec<u64>,
    pub attributes: Vec<(FileKind, Attributes)>,
    attribute_index: HashMap<(FileKind, Attributes), u32>,
    pub xattr_sets: Interner<XattrSet>,
    /// Names of the files whose contents are not compressed.
    pub plain: HashSet<NameRef>,
    /// Devices of the entries that have [`Entry::OTHER_DEV`].
    pub other_devs: HashMap<NameRef, u64>,
    pub problems: Vec<Problem>,
}

impl Shard {
    pub fn new(index: usize) -> Self {
        assert!(index < SHARD_COUNT_MAX);
        Self {
            index: index as u64,
            ..Self::default()
        }
    }

    /// Appends an entry with its name and inode number; the other fields are filled later.
    pub fn push(&mut self, name: &[u8], ino: u64) {
        let len = u8::try_from(name.len()).expect("Linux names have at most 255 bytes");
        assert!(self.names.len() < 1 << 44);
        let name_ref = NameRef(self.index << 52 | (self.names.len() as u64) << 8 | u64::from(len));
        self.names.extend_from_slice(name);
        self.entries.push(Entry {
            name: name_ref,
            size: 0,
            mtime_seconds: 0,
            ino,
            mtime_nanoseconds: 0,
            attributes: NONE,
            link: NONE,
            xattrs: NONE,
        });
    }

    /// Notes that the contents of the file at `index` are not compressed, if that `is_plain`.
    pub fn set_plain(&mut self, index: usize, is_plain: bool) {
        if let Some(entry) = self.entries.get(index).filter(|_| is_plain) {
            self.plain.insert(entry.name);
        }
    }

    /// Returns the index of a pair of kind and attributes.
    pub fn intern_attributes(&mut self, kind: FileKind, attributes: Attributes) -> u32 {
        let next = self.attributes.len() as u32;
        let index = *self
            .attribute_index
            .entry((kind, attributes))
            .or_insert(next);
        if index == next {
            self.attributes.push((kind, attributes));
        }
        index
    }

    /// Returns the index of an xattr set.
    pub fn intern_xattrs(&mut self, mut set: XattrSet) -> u32 {
        // Every file may have its own set, and sets are read into larger buffers.
        set.iter_mut().for_each(|xattr| {
            xattr.name.shrink_to_fit();
            xattr.value.shrink_to_fit();
        });
        set.shrink_to_fit();
        self.xattr_sets.intern(set)
    }

    /// Sorts the entries from `first` on by name. It drops entries that never got attributes, and
    /// repeated names: a directory that changes while it is read may list a name twice.
    pub fn sort_and_dedup(&mut self, first: usize) {
        if self.more_times.is_empty() {
            self.sort_and_dedup_entries(first);
        } else {
            self.sort_and_dedup_with_times(first);
        }
    }

    fn sort_and_dedup_entries(&mut self, first: usize) {
        let names = &self.names;
        self.entries[first..].sort_unstable_by(|a, b| a.name.slice(names).cmp(b.name.slice(names)));
        let mut end = first;
        for index in first..self.entries.len() {
            let entry = self.entries[index];
            let is_repeated =
                end > first && self.entries[end - 1].name.slice(names) == entry.name.slice(names);
            if entry.attributes != NONE && !is_repeated {
                self.entries[end] = entry;
                end += 1;
            }
        }
        self.entries.truncate(end);
    }

    fn sort_and_dedup_with_times(&mut self, first: usize) {
        let names = &self.names;
        let entries = self
            .entries
            .drain(first..)
            .zip(self.more_times.drain(first..));
        let mut sorted: Vec<_> = entries
            .filter(|(entry, _)| entry.attributes != NONE)
            .collect();
        sorted.sort_unstable_by(|(a, _), (b, _)| a.name.slice(names).cmp(b.name.slice(names)));
        sorted.dedup_by(|(a, _), (b, _)| a.name.slice(names) == b.name.slice(names));
        self.entries.extend(sorted.iter().map(|&(entry, _)| entry));
        self.more_times
            .extend(sorted.iter().map(|&(_, times)| times));
    }

    /// Drops all entries from `first` on: their directory could not be listed completely.
    pub fn forget(&mut self, first: usize) {
        self.entries.truncate(first);
        self.more_times.truncate(first);
    }
}
