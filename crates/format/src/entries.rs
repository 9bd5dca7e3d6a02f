//! Entry blocks: up to `ENTRIES_PER_BLOCK` directory entries of one or more templates, column by
//! column.

use crate::column::{self, Column};
use crate::cursor::{Cursor, put_varint, unzigzag, zigzag};
use crate::limits::{ENTRIES_PER_BLOCK, TARGET_LEN_MAX};
use crate::names::{self, Names};
use crate::{FileKind, Result, Timestamp};

/// Stored kind of an entry: the POSIX file types, and a kind of its own for empty regular files,
/// because they have no content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// Regular file of length 0.
    Empty = 0,
    /// Directory.
    Directory = 1,
    /// Regular file with a content.
    File = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Character device.
    CharDevice = 4,
    /// Block device.
    BlockDevice = 5,
    /// Named pipe.
    Fifo = 6,
    /// Unix socket.
    Socket = 7,
}

impl EntryKind {
    /// Returns the kind with this `code`.
    pub const fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            0 => Self::Empty,
            1 => Self::Directory,
            2 => Self::File,
            3 => Self::Symlink,
            4 => Self::CharDevice,
            5 => Self::BlockDevice,
            6 => Self::Fifo,
            7 => Self::Socket,
            _ => return None,
        })
    }

    /// File type of the inode.
    pub const fn file_kind(self) -> FileKind {
        match self {
            Self::Empty | Self::File => FileKind::Regular,
            Self::Directory => FileKind::Directory,
            Self::Symlink => FileKind::Symlink,
            Self::CharDevice => FileKind::CharDevice,
            Self::BlockDevice => FileKind::BlockDevice,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
        }
    }
}

/// Bits of the mask byte: the times that the entries of a block carry.
pub mod time_mask {
    /// mtime; absent if the image has a times overlay.
    pub const MTIME: u8 = 1;
    /// atime.
    pub const ATIME: u8 = 2;
    /// ctime.
    pub const CTIME: u8 = 4;
    /// btime.
    pub const BTIME: u8 = 8;
    /// All bits.
    pub const ALL: u8 = 15;
}

/// Maps seconds to an unsigned number that sorts the same way.
pub const fn bias_seconds(seconds: i64) -> u64 {
    seconds as u64 ^ (1 << 63)
}

/// The inverse of [`bias_seconds`].
pub const fn unbias_seconds(biased: u64) -> i64 {
    (biased ^ (1 << 63)) as i64
}

/// Columns of this many bytes are worth a table of their own for their symbols.
const LONG_COLUMN_LEN: usize = 1 << 10;

/// The two columns of a list of times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeColumns {
    seconds: Column,
    nanoseconds: Column,
}

impl TimeColumns {
    /// Decodes `count` times.
    ///
    /// # Errors
    /// `Corrupt`, also if nanoseconds are 10^9 or more.
    pub fn decode(cursor: &mut Cursor<'_>, count: usize) -> Result<Self> {
        let seconds = Column::decode(cursor, count)?;
        let nanoseconds = Column::decode(cursor, count)?;
        if nanoseconds.iter(count).any(|ns| ns >= 1_000_000_000) {
            return Err(cursor.error("F-8.6", "nanoseconds: expected less than 10^9"));
        }
        Ok(Self {
            seconds,
            nanoseconds,
        })
    }

    /// Time `index`.
    pub fn get(&self, index: usize) -> Timestamp {
        Timestamp {
            seconds: unbias_seconds(self.seconds.get(index)),
            nanoseconds: self.nanoseconds.get(index) as u32,
        }
    }

    /// Bytes of heap memory of the columns.
    pub fn memory_len(&self) -> usize {
        self.seconds
            .memory_len()
            .saturating_add(self.nanoseconds.memory_len())
    }

    /// Appends `times` as two columns; returns where the second one begins.
    pub fn encode(out: &mut Vec<u8>, times: &[Timestamp]) -> usize {
        column::encode(
            out,
            &times
                .iter()
                .map(|t| bias_seconds(t.seconds))
                .collect::<Vec<_>>(),
        );
        let seconds_end = out.len();
        column::encode(
            out,
            &times
                .iter()
                .map(|t| u64::from(t.nanoseconds))
                .collect::<Vec<_>>(),
        );
        seconds_end
    }
}

/// A decoded entry block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryBlock {
    count: usize,
    kinds: Column,
    attributes: Column,
    xattrs: Column,
    nlinks: Column,
    link_backs: Column,
    times: [Option<TimeColumns>; 4],
    bodies: Vec<u64>,
    targets: Names,
    names: Names,
}

impl EntryBlock {
    /// Parses a block.
    ///
    /// # Errors
    /// `Corrupt`; see section 8 of `docs/format.md` for the rules.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "entry block");
        let count = cursor.count(ENTRIES_PER_BLOCK, "entry count")?;
        let mask = cursor.byte()?;
        if count == 0 || mask & !time_mask::ALL != 0 {
            return Err(cursor.error(
                "F-8.1",
                format!("count {count} or time mask {mask:#x} out of range"),
            ));
        }
        let kinds = Column::decode(&mut cursor, count)?;
        if kinds.iter(count).any(|k| EntryKind::from_code(k).is_none()) {
            return Err(cursor.error("F-8.2", "kind: expected 0 to 7"));
        }
        let attributes = Column::decode(&mut cursor, count)?;
        let xattrs = Column::decode(&mut cursor, count)?;
        let nlinks = Column::decode(&mut cursor, count)?;
        let link_backs = Column::decode(&mut cursor, count)?;
        let mut times = [None, None, None, None];
        for (bit, slot) in times.iter_mut().enumerate() {
            if mask & 1u8.wrapping_shl(bit as u32) != 0 {
                *slot = Some(TimeColumns::decode(&mut cursor, count)?);
            }
        }
        let (bodies, targets) = parse_bodies(&mut cursor, count, &kinds)?;
        let names = Names::decode(&mut cursor, count)?;
        cursor.finish()?;
        Ok(Self {
            count,
            kinds,
            attributes,
            xattrs,
            nlinks,
            link_backs,
            times,
            bodies,
            targets,
            names,
        })
    }

    /// Entries in the block.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Name of entry `index`.
    pub fn name(&self, index: usize) -> &[u8] {
        self.names.get(index)
    }

    /// Kind of entry `index`.
    pub fn kind(&self, index: usize) -> EntryKind {
        EntryKind::from_code(self.kinds.get(index)).unwrap_or(EntryKind::Empty)
    }

    /// Attribute id of entry `index`.
    pub fn attributes(&self, index: usize) -> u64 {
        self.attributes.get(index)
    }

    /// Xattr set of entry `index`: 0 for none, else its id + 1.
    pub fn xattrs(&self, index: usize) -> u64 {
        self.xattrs.get(index)
    }

    /// Link count of entry `index`: 1 for an inode with one name; 0 if the link table has the
    /// count; else the number of names of the inode, all in this directory.
    pub fn nlink(&self, index: usize) -> u64 {
        self.nlinks.get(index)
    }

    /// Number of entries back to the first name of the same inode; 0 for the first name itself.
    pub fn link_back(&self, index: usize) -> u64 {
        self.link_backs.get(index)
    }

    /// Content id of a file, template id of a directory, 0 for other kinds.
    pub fn body(&self, index: usize) -> u64 {
        self.bodies.get(index).copied().unwrap_or(0)
    }

    /// Target of a symlink; empty for other kinds.
    pub fn target(&self, index: usize) -> &[u8] {
        match self.kind(index) {
            EntryKind::Symlink => self.targets.get(self.body(index) as usize),
            _ => &[],
        }
    }

    /// A time of entry `index`; `which` is 0 for mtime, 1 atime, 2 ctime, 3 btime.
    pub fn time(&self, which: usize, index: usize) -> Option<Timestamp> {
        self.times.get(which)?.as_ref().map(|t| t.get(index))
    }

    /// Bytes of memory of the block.
    pub fn memory_len(&self) -> usize {
        let columns = [
            &self.kinds,
            &self.attributes,
            &self.xattrs,
            &self.nlinks,
            &self.link_backs,
        ];
        let columns: usize = columns.iter().map(|c| c.memory_len()).sum();
        let times: usize = self
            .times
            .iter()
            .flatten()
            .map(TimeColumns::memory_len)
            .sum();
        columns
            .saturating_add(times)
            .saturating_add(self.bodies.len().saturating_mul(8))
            .saturating_add(self.targets.memory_len())
            .saturating_add(self.names.memory_len())
            .saturating_add(size_of::<Self>())
    }
}

fn parse_bodies(
    cursor: &mut Cursor<'_>,
    count: usize,
    kinds: &Column,
) -> Result<(Vec<u64>, Names)> {
    let indexes_of = |kind: EntryKind| (0..count).filter(move |&i| kinds.get(i) == kind as u64);
    let mut bodies = vec![0u64; count];
    for kind in [EntryKind::File, EntryKind::Directory] {
        let kind_count = indexes_of(kind).count();
        if kind_count == 0 {
            continue;
        }
        let base = cursor.varint()?;
        let steps = Column::decode(cursor, kind_count)?;
        let mut id = base;
        for (nth, i) in indexes_of(kind).enumerate() {
            id = id
                .wrapping_add(unzigzag(steps.get(nth)) as u64)
                .wrapping_add(1);
            if let Some(body) = bodies.get_mut(i) {
                *body = id;
            }
        }
    }
    let link_count = indexes_of(EntryKind::Symlink).count();
    let targets = parse_targets(cursor, link_count)?;
    for (nth, i) in indexes_of(EntryKind::Symlink).enumerate() {
        if let Some(body) = bodies.get_mut(i) {
            *body = nth as u64;
        }
    }
    Ok((bodies, targets))
}

fn parse_targets(cursor: &mut Cursor<'_>, count: usize) -> Result<Names> {
    if count == 0 {
        return Ok(Names::default());
    }
    let lens = Column::decode(cursor, count)?;
    if lens
        .iter(count)
        .any(|len| len == 0 || len > TARGET_LEN_MAX as u64)
    {
        return Err(cursor.error("F-8.5", "target: expected 1 to 4095 bytes"));
    }
    let lens: Vec<usize> = lens.iter(count).map(|l| l as usize).collect();
    let total = lens.iter().sum();
    let bytes = cursor.bytes(total)?;
    if bytes.contains(&0) {
        Err(cursor.error("F-8.5", "target: expected no NUL byte"))
    } else {
        Ok(Names::from_lens(bytes, &lens))
    }
}

/// The fields of an entry that a builder adds to a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryFields {
    /// Kind.
    pub kind: EntryKind,
    /// Attribute id.
    pub attributes: u64,
    /// 0 for no xattrs, else xattr set id + 1.
    pub xattrs: u64,
    /// See [`EntryBlock::nlink`].
    pub nlink: u64,
    /// See [`EntryBlock::link_back`].
    pub link_back: u64,
    /// mtime, atime, ctime, btime. The block stores those that its mask names.
    pub times: [Timestamp; 4],
    /// Content or template id.
    pub body: u64,
}

/// Collects entries column by column and encodes them as a block.
#[derive(Debug, Default)]
pub struct EntryBlockBuilder {
    kinds: Vec<u64>,
    attributes: Vec<u64>,
    xattrs: Vec<u64>,
    nlinks: Vec<u64>,
    link_backs: Vec<u64>,
    times: Vec<[Timestamp; 4]>,
    /// Content ids of files, then template ids of directories.
    bodies: [Vec<u64>; 2],
    text: Vec<u8>,
    name_ends: Vec<usize>,
    targets: Vec<u8>,
    target_lens: Vec<u64>,
}

impl EntryBlockBuilder {
    /// Entries so far.
    pub fn count(&self) -> usize {
        self.kinds.len()
    }

    /// Bytes of names and targets so far.
    pub fn text_len(&self) -> usize {
        self.text.len().saturating_add(self.targets.len())
    }

    /// Adds an entry. `target` is empty unless the entry is a symlink.
    pub fn push(&mut self, name: &[u8], target: &[u8], fields: &EntryFields) {
        self.text.extend_from_slice(name);
        self.name_ends.push(self.text.len());
        let [contents, templates] = &mut self.bodies;
        match fields.kind {
            EntryKind::Symlink => {
                self.targets.extend_from_slice(target);
                self.target_lens.push(target.len() as u64);
            }
            EntryKind::File => contents.push(fields.body),
            EntryKind::Directory => templates.push(fields.body),
            _ => {}
        }
        self.kinds.push(fields.kind as u64);
        self.attributes.push(fields.attributes);
        self.xattrs.push(fields.xattrs);
        self.nlinks.push(fields.nlink);
        self.link_backs.push(fields.link_back);
        self.times.push(fields.times);
    }

    /// Returns the raw bytes of the block and empties the builder.
    pub fn encode(&mut self, mask: u8) -> Vec<u8> {
        self.encode_with_borders(mask).0
    }

    /// The same, and where long columns of times begin and end: their bytes have other frequencies
    /// than the rest of the block.
    // trusted input: values of this program
    #[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
    pub fn encode_with_borders(&mut self, mask: u8) -> (Vec<u8>, Vec<usize>) {
        let mut borders = Vec::new();
        let mut out = Vec::with_capacity(self.text_len() + self.count() * 8);
        put_varint(&mut out, self.count() as u64);
        out.push(mask);
        for values in [
            &self.kinds,
            &self.attributes,
            &self.xattrs,
            &self.nlinks,
            &self.link_backs,
        ] {
            column::encode(&mut out, values);
        }
        for which in (0..4).filter(|bit| mask & (1 << bit) != 0) {
            let times: Vec<_> = self.times.iter().map(|times| times[which]).collect();
            let begin = out.len();
            let seconds_end = TimeColumns::encode(&mut out, &times);
            for (begin, end) in [(begin, seconds_end), (seconds_end, out.len())] {
                if end - begin >= LONG_COLUMN_LEN {
                    borders.extend([begin, end]);
                }
            }
        }
        borders.dedup();
        for ids in &self.bodies {
            encode_bodies(&mut out, ids);
        }
        if !self.target_lens.is_empty() {
            column::encode(&mut out, &self.target_lens);
            out.extend_from_slice(&self.targets);
        }
        let starts = std::iter::once(&0).chain(&self.name_ends);
        let all: Vec<&[u8]> = starts
            .zip(&self.name_ends)
            .map(|(&a, &b)| &self.text[a..b])
            .collect();
        names::encode(&mut out, &all);
        *self = Self::default();
        (out, borders)
    }
}

fn encode_bodies(out: &mut Vec<u8>, ids: &[u64]) {
    let Some(first) = ids.first() else { return };
    let base = first.wrapping_sub(1);
    let mut last = base;
    let steps = ids.iter().map(|&id| {
        let step = zigzag(id.wrapping_sub(last).wrapping_sub(1) as i64);
        last = id;
        step
    });
    let steps: Vec<u64> = steps.collect();
    put_varint(out, base);
    column::encode(out, &steps);
}

#[cfg(test)]
mod tests {
    use super::*;

    type Named = (Vec<u8>, Vec<u8>, EntryFields);

    fn sample() -> (Vec<u8>, Vec<Named>) {
        let kinds = [
            EntryKind::File,
            EntryKind::Directory,
            EntryKind::Symlink,
            EntryKind::Empty,
            EntryKind::Fifo,
        ];
        let entries: Vec<_> = (0..700u64)
            .map(|i| {
                let kind = kinds[(i * i % 5) as usize];
                let time = Timestamp {
                    seconds: i as i64 * 977 - 5000,
                    nanoseconds: (i * 7 % 1000) as u32,
                };
                let is_link = kind == EntryKind::Symlink;
                let has_body = matches!(kind, EntryKind::File | EntryKind::Directory);
                let fields = EntryFields {
                    kind,
                    attributes: i % 3,
                    xattrs: u64::from(i == 9),
                    nlink: 1,
                    link_back: 0,
                    times: [time; 4],
                    body: if has_body { 1000 + (i * 31) % 400 } else { 0 },
                };
                let target = if is_link {
                    format!("../{i}").into_bytes()
                } else {
                    vec![]
                };
                (format!("name-{:x}", i * 7919).into_bytes(), target, fields)
            })
            .collect();
        let mut builder = EntryBlockBuilder::default();
        entries.iter().for_each(|(n, t, f)| builder.push(n, t, f));
        (builder.encode(time_mask::MTIME | time_mask::BTIME), entries)
    }

    #[test]
    fn blocks_round_trip() {
        let (bytes, entries) = sample();
        let block = EntryBlock::parse(&bytes).unwrap();
        assert_eq!(block.count(), entries.len());
        for (i, (name, target, fields)) in entries.iter().enumerate() {
            assert_eq!(
                (block.name(i), block.target(i)),
                (name.as_slice(), target.as_slice())
            );
            assert_eq!(
                (block.kind(i), block.attributes(i), block.xattrs(i)),
                (fields.kind, fields.attributes, fields.xattrs)
            );
            assert_eq!(
                (block.time(0, i), block.time(1, i)),
                (Some(fields.times[0]), None)
            );
            assert_eq!(block.time(3, i), Some(fields.times[3]));
            if fields.kind != EntryKind::Symlink {
                assert_eq!(block.body(i), fields.body);
            }
        }
    }

    #[test]
    fn every_prefix_is_refused_and_no_flip_panics() {
        let (bytes, _) = sample();
        for len in 0..bytes.len() {
            assert!(EntryBlock::parse(&bytes[..len]).is_err(), "prefix of {len}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let _ = EntryBlock::parse(&bad);
        }
    }

    /// Would catch: borders beside the columns, and borders around short ones.
    #[test]
    fn long_columns_of_times_lie_between_borders() {
        let (bytes, entries) = sample();
        let mut builder = EntryBlockBuilder::default();
        let (mut seconds, mut nanoseconds) = (Vec::new(), Vec::new());
        for (at, (name, target, fields)) in entries.iter().enumerate() {
            let mut fields = fields.clone();
            for time in &mut fields.times {
                time.nanoseconds = (at as u32).wrapping_mul(2_654_435_761) % 1_000_000_000;
            }
            seconds.push(bias_seconds(fields.times[0].seconds));
            nanoseconds.push(u64::from(fields.times[0].nanoseconds));
            builder.push(name, target, &fields);
        }
        let (raw, borders) = builder.encode_with_borders(time_mask::MTIME);
        let mut column = Vec::new();
        column::encode(&mut column, &nanoseconds);
        assert!(column.len() >= LONG_COLUMN_LEN);
        let mut short = Vec::new();
        column::encode(&mut short, &seconds);
        assert!(short.len() < LONG_COLUMN_LEN);
        let [begin, end] = borders[..] else {
            panic!("{borders:?}");
        };
        assert_eq!(raw[begin..end], column);
        let mut builder = EntryBlockBuilder::default();
        for (name, target, fields) in &entries {
            builder.push(name, target, fields);
        }
        let (raw, borders) = builder.encode_with_borders(time_mask::MTIME | time_mask::BTIME);
        assert!(raw == bytes && borders.is_empty());
    }
}
