//! The entries of a tree, level by level: written in the order of a walk, depth first, and read in
//! breadth-first order, which is that of the inodes of a composefs image.
//!
//! Within one level both orders agree. So each level is a list that is appended to and read in
//! order. Lists are in memory up to a limit, and in one temporary file beyond it.
//!
//! A record has only what differs from the records before it in its level: neighbours share most
//! of their names, and entries of one kind share attributes and times.

use std::path::PathBuf;
use weald_format::cursor::{Cursor as Fields, put_varint};
use weald_format::{Attributes, Error, FileKind, Result, Timestamp};
use weald_io::{ReadAt, Spool};

/// Bytes of the temporary file that a reader holds.
const LEVEL_READ_LEN: u64 = 128 << 10;

/// Attributes of an entry without its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// A further name of the inode with this number in the table of links.
    Link(u64),
    /// An inode.
    Inode(Node),
}

/// An inode as the writer needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub attributes: Attributes,
    pub mtime: Timestamp,
    pub nlink: u64,
    /// Number of its xattr set plus one; 0 without xattrs.
    pub xattr_set: u64,
    /// Its number in the table of links plus one; 0 with one name.
    pub link: u64,
    pub data: Data,
}

/// The data of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data {
    /// A directory with so many entries.
    Directory(u64),
    /// A regular file with these bytes.
    Inline(Vec<u8>),
    /// A regular file whose content is an object.
    External {
        size: u64,
        content: u64,
    },
    Symlink(Vec<u8>),
    /// Nothing but attributes: FIFO, socket, device.
    None,
    /// A character device that overlayfs takes for a deleted name in the layer of objects.
    Stub,
}

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub name: Vec<u8>,
    pub kind: FileKind,
    pub item: Item,
}

impl Entry {
    /// Whether it is an inode that stands for a deleted name: character device 0, 0.
    pub fn is_whiteout(&self) -> bool {
        match &self.item {
            Item::Inode(node) => {
                self.kind == FileKind::CharDevice
                    && node.attributes.rdev == 0
                    && node.data != Data::Stub
            }
            Item::Link(_) => false,
        }
    }
}

const TAG_LINK: u8 = 0;
const TAG_DIRECTORY: u8 = 1;
const TAG_INLINE: u8 = 2;
const TAG_EXTERNAL: u8 = 3;
const TAG_SYMLINK: u8 = 4;
const TAG_NONE: u8 = 5;
const TAG_STUB: u8 = 6;

/// Number of tags.
const TAG_COUNT: usize = 7;

/// Bits of the first byte that are the tag.
const TAG_MASK: u8 = 0x07;

/// Bit of the first byte: the attributes are those of the last entry of the level with this tag.
const SAME_ATTRIBUTES: u8 = 0x08;

/// Bit of the first byte: the time is that of the last inode of the level.
const SAME_TIME: u8 = 0x10;

/// Bit of the first byte: the inode has several names.
const HAS_LINK: u8 = 0x20;

fn tag_of(item: &Item) -> u8 {
    match item {
        Item::Link(_) => TAG_LINK,
        Item::Inode(node) => match node.data {
            Data::Directory(_) => TAG_DIRECTORY,
            Data::Inline(_) => TAG_INLINE,
            Data::External { .. } => TAG_EXTERNAL,
            Data::Symlink(_) => TAG_SYMLINK,
            Data::None => TAG_NONE,
            Data::Stub => TAG_STUB,
        },
    }
}

/// Attributes that neighbours share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Common {
    kind: FileKind,
    attributes: Attributes,
    nlink: u64,
    xattr_set: u64,
}

impl Common {
    fn of(entry: &Entry) -> Self {
        match &entry.item {
            Item::Link(_) => Self {
                kind: entry.kind,
                attributes: Attributes::default(),
                nlink: 0,
                xattr_set: 0,
            },
            Item::Inode(node) => Self {
                kind: entry.kind,
                attributes: node.attributes,
                nlink: node.nlink,
                xattr_set: node.xattr_set,
            },
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.kind.mode_bits()));
        put_varint(out, u64::from(self.attributes.permissions));
        put_varint(out, u64::from(self.attributes.uid));
        put_varint(out, u64::from(self.attributes.gid));
        put_varint(out, self.attributes.rdev);
        put_varint(out, self.nlink);
        put_varint(out, self.xattr_set);
    }

    fn take(fields: &mut Fields<'_>) -> Result<Self> {
        let kind = FileKind::from_mode(fields.varint()? as u32);
        Ok(Self {
            kind: kind.ok_or_else(changed)?,
            attributes: Attributes {
                permissions: fields.varint()? as u16,
                uid: fields.varint()? as u32,
                gid: fields.varint()? as u32,
                rdev: fields.varint()?,
            },
            nlink: fields.varint()?,
            xattr_set: fields.varint()?,
        })
    }
}

/// The entries of one level that the next record of the level refers to.
#[derive(Default)]
struct Before {
    name: Vec<u8>,
    common: [Option<Common>; TAG_COUNT],
    mtime: Option<Timestamp>,
}

impl Before {
    /// Notes the name and the attributes of the record that was written or read.
    fn note(&mut self, tag: u8, name: &[u8], common: Common) {
        self.name.clear();
        self.name.extend_from_slice(name);
        if let Some(slot) = self.common.get_mut(usize::from(tag)) {
            *slot = Some(common);
        }
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn encode(entry: &Entry, before: &mut Before, out: &mut Vec<u8>) {
    let tag = tag_of(&entry.item);
    let common = Common::of(entry);
    let node = match &entry.item {
        Item::Link(_) => None,
        Item::Inode(node) => Some(node),
    };
    let is_same = before.common.get(usize::from(tag)) == Some(&Some(common));
    let is_same_time = node.is_some_and(|node| before.mtime == Some(node.mtime));
    let link = node.map_or(0, |node| node.link);
    let mut first = tag;
    for (is_on, bit) in [
        (is_same, SAME_ATTRIBUTES),
        (is_same_time, SAME_TIME),
        (link != 0, HAS_LINK),
    ] {
        first |= if is_on { bit } else { 0 };
    }
    out.push(first);
    if !is_same {
        common.put(out);
    }
    let shared = shared_len(&before.name, &entry.name);
    put_varint(out, shared as u64);
    put_bytes(out, entry.name.get(shared..).unwrap_or_default());
    before.note(tag, &entry.name, common);
    let node = match &entry.item {
        Item::Link(link) => return put_varint(out, *link),
        Item::Inode(node) => node,
    };
    if !is_same_time {
        out.extend_from_slice(&node.mtime.seconds.to_le_bytes());
        put_varint(out, u64::from(node.mtime.nanoseconds));
        before.mtime = Some(node.mtime);
    }
    if link != 0 {
        put_varint(out, link);
    }
    match &node.data {
        Data::Directory(count) => put_varint(out, *count),
        Data::Inline(bytes) | Data::Symlink(bytes) => put_bytes(out, bytes),
        Data::External { size, content } => {
            put_varint(out, *size);
            put_varint(out, *content);
        }
        Data::None | Data::Stub => {}
    }
}

fn decode(bytes: &[u8], before: &mut Before) -> Result<Entry> {
    let mut fields = Fields::new(bytes, "temporary file");
    let first = fields.byte()?;
    let tag = first & TAG_MASK;
    let common = if first & SAME_ATTRIBUTES != 0 {
        before.common.get(usize::from(tag)).copied().flatten()
    } else {
        Some(Common::take(&mut fields)?)
    };
    let common = common.ok_or_else(changed)?;
    let shared = fields.varint()? as usize;
    let rest_len = fields.varint()? as usize;
    let rest = fields.bytes(rest_len)?;
    let name = [before.name.get(..shared).ok_or_else(changed)?, rest].concat();
    before.note(tag, &name, common);
    let kind = common.kind;
    if tag == TAG_LINK {
        let item = Item::Link(fields.varint()?);
        return Ok(Entry { name, kind, item });
    }
    if first & SAME_TIME == 0 {
        let seconds = fields.bytes(8)?.try_into().map(i64::from_le_bytes);
        before.mtime = Some(Timestamp {
            seconds: seconds.unwrap_or_default(),
            nanoseconds: fields.varint()? as u32,
        });
    }
    let link = if first & HAS_LINK != 0 {
        fields.varint()?
    } else {
        0
    };
    let data = match tag {
        TAG_DIRECTORY => Data::Directory(fields.varint()?),
        TAG_INLINE => Data::Inline(take_bytes(&mut fields)?),
        TAG_SYMLINK => Data::Symlink(take_bytes(&mut fields)?),
        TAG_EXTERNAL => Data::External {
            size: fields.varint()?,
            content: fields.varint()?,
        },
        TAG_STUB => Data::Stub,
        _ => Data::None,
    };
    let item = Item::Inode(Node {
        attributes: common.attributes,
        mtime: before.mtime.ok_or_else(changed)?,
        nlink: common.nlink,
        xattr_set: common.xattr_set,
        link,
        data,
    });
    Ok(Entry { name, kind, item })
}

fn changed() -> Error {
    Error::invalid("a temporary file has changed")
}

/// Bytes at the beginning of both names that are equal.
fn shared_len(one: &[u8], other: &[u8]) -> usize {
    let pairs = one.iter().zip(other);
    pairs.take_while(|(one, other)| one == other).count()
}

fn take_bytes(fields: &mut Fields<'_>) -> Result<Vec<u8>> {
    let len = fields.varint()? as usize;
    Ok(fields.bytes(len)?.to_vec())
}

/// One level: pieces of the temporary file, and the bytes behind them.
#[derive(Default)]
struct Level {
    /// Offset and length of each piece.
    pieces: Vec<(u64, u64)>,
    memory: Vec<u8>,
    before: Before,
}

/// The entries of a tree.
pub(super) struct Levels {
    levels: Vec<Level>,
    memory_len: usize,
    memory_len_max: usize,
    spool: Option<Spool>,
    temp_dir: PathBuf,
    record: Vec<u8>,
}

impl Levels {
    /// No entries. `memory_len_max` bytes stay in memory; the others go to a file in `temp_dir`.
    pub fn new(memory_len_max: usize, temp_dir: PathBuf) -> Self {
        Self {
            levels: Vec::new(),
            memory_len: 0,
            memory_len_max,
            spool: None,
            temp_dir,
            record: Vec::new(),
        }
    }

    /// Adds an entry at the end of level `depth`.
    ///
    /// # Errors
    /// `Io`, `Full`: the temporary file.
    pub fn push(&mut self, depth: usize, entry: &Entry) -> Result<()> {
        if self.levels.len() <= depth {
            self.levels.resize_with(depth + 1, Level::default);
        }
        let Some(level) = self.levels.get_mut(depth) else {
            return Ok(());
        };
        self.record.clear();
        encode(entry, &mut level.before, &mut self.record);
        let before = level.memory.len();
        put_bytes(&mut level.memory, &self.record);
        self.memory_len += level.memory.len() - before;
        if self.memory_len > self.memory_len_max {
            self.spill()
        } else {
            Ok(())
        }
    }

    /// Writes the longest lists to the file until half of the memory is free.
    fn spill(&mut self) -> Result<()> {
        let mut order: Vec<usize> = (0..self.levels.len()).collect();
        let len_of = |at: &usize| self.levels.get(*at).map_or(0, |level| level.memory.len());
        order.sort_by_key(|at| std::cmp::Reverse(len_of(at)));
        let spool = match &mut self.spool {
            Some(spool) => spool,
            empty => empty.insert(Spool::create(&self.temp_dir)?),
        };
        for at in order {
            let Some(level) = self.levels.get_mut(at) else {
                continue;
            };
            if self.memory_len <= self.memory_len_max / 2 {
                break;
            }
            let bytes = std::mem::take(&mut level.memory);
            let offset = spool.append(&bytes)?;
            self.memory_len -= bytes.len();
            level.pieces.push((offset, bytes.len() as u64));
        }
        Ok(())
    }

    /// Reads all entries, level by level.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor {
            levels: self,
            level: 0,
            piece: 0,
            in_piece: 0,
            buffer: Vec::new(),
            at: 0,
            before: Before::default(),
        }
    }
}

/// Reads all entries in breadth-first order.
pub(super) struct Cursor<'a> {
    levels: &'a Levels,
    level: usize,
    /// Index of the piece to read next; behind the pieces comes the memory of the level.
    piece: usize,
    /// Bytes of the piece that were read.
    in_piece: u64,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were used.
    at: usize,
    before: Before,
}

impl Cursor<'_> {
    /// The next entry, `None` behind the last one.
    ///
    /// # Errors
    /// `Io`: the temporary file.
    pub fn next(&mut self) -> Result<Option<Entry>> {
        loop {
            let rest = self.buffer.get(self.at..).unwrap_or_default();
            if let Some((record, len)) = first_record(rest) {
                let entry = decode(record, &mut self.before)?;
                self.at += len;
                return Ok(Some(entry));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Reads more bytes; returns whether there were any.
    fn fill(&mut self) -> Result<bool> {
        self.buffer.drain(..self.at);
        self.at = 0;
        while let Some(level) = self.levels.levels.get(self.level) {
            if let Some((offset, len)) = level.pieces.get(self.piece) {
                if self.in_piece == *len {
                    self.piece += 1;
                    self.in_piece = 0;
                    continue;
                }
                let wanted = LEVEL_READ_LEN.min(len - self.in_piece);
                let old_len = self.buffer.len();
                self.buffer.resize(old_len + wanted as usize, 0);
                let target = self.buffer.get_mut(old_len..).unwrap_or_default();
                let spool = self.levels.spool.as_ref();
                let spool = spool.ok_or_else(|| Error::invalid("no temporary file"))?;
                spool.read_exact_at(target, offset + self.in_piece)?;
                self.in_piece += wanted;
                return Ok(true);
            }
            let memory = level.memory.get(self.in_piece as usize..);
            let memory = memory.unwrap_or_default();
            if memory.is_empty() {
                self.level += 1;
                self.piece = 0;
                self.in_piece = 0;
                continue;
            }
            let wanted = memory.len().min(LEVEL_READ_LEN as usize);
            self.buffer
                .extend_from_slice(memory.get(..wanted).unwrap_or_default());
            self.in_piece += wanted as u64;
            return Ok(true);
        }
        Ok(false)
    }
}

/// The first record in `bytes`, and its length with the length before it, if it is complete.
fn first_record(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let mut fields = Fields::new(bytes, "temporary file");
    let len = fields.varint().ok()? as usize;
    let record = fields.bytes(len).ok()?;
    Some((record, bytes.len() - fields.remaining()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attributes repeat and change, each with another period.
    fn entry(number: u64, data: Data) -> Entry {
        Entry {
            name: format!("entry {number}").into_bytes(),
            kind: FileKind::Regular,
            item: Item::Inode(Node {
                attributes: Attributes {
                    permissions: 0o644 + (number / 30 % 2) as u16,
                    uid: 70_000,
                    gid: 3 + (number / 50 % 3) as u32,
                    rdev: u64::MAX,
                },
                mtime: Timestamp {
                    seconds: -5 - (number / 20 % 3) as i64,
                    nanoseconds: 999_999_999 - (number / 70 % 2) as u32,
                },
                nlink: (1 << 33) + number / 90 % 2,
                xattr_set: number / 110 % 4,
                link: number / 40 % 3,
                data,
            }),
        }
    }

    /// Would catch: entries of a level that are read in another order than they were written, or
    /// that are lost when the memory is full, at each limit of the memory.
    #[test]
    fn levels_are_read_one_after_the_other() {
        let temp = tempfile::tempdir().unwrap();
        for memory_len in [0, 1, 1000, 100_000, 10_000_000] {
            let mut levels = Levels::new(memory_len, temp.path().to_owned());
            let mut expected: Vec<Vec<Entry>> = vec![Vec::new(); 7];
            for number in 0..20_000_u64 {
                let depth = (number * number % 7) as usize;
                let data = match number % 4 {
                    0 => Data::Directory(number),
                    1 => Data::Symlink(vec![b'x'; (number % 4096) as usize]),
                    2 => Data::Inline(vec![1; 64]),
                    _ => Data::External {
                        size: number << 40,
                        content: number,
                    },
                };
                let mut entry = entry(number, data);
                if number % 5 == 0 {
                    entry.item = Item::Link(number);
                }
                levels.push(depth, &entry).unwrap();
                expected[depth].push(entry);
            }
            let mut cursor = levels.cursor();
            for entry in expected.into_iter().flatten() {
                assert_eq!(cursor.next().unwrap(), Some(entry), "{memory_len}");
            }
            assert_eq!(cursor.next().unwrap(), None);
        }
    }
}
