//! Changes that wait in memory: rows above the tables, and for each file a map from ranges to what
//! they contain now.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use weald_format::volume::{InodeRow, NamePlace, NameRow, QuotaRow};
use weald_format::{BlockId, Ino};

/// Memory that a changed row takes, roughly, bytes.
const ROW_COST: u64 = 300;

/// Content of a range.
#[derive(Debug, Clone)]
pub enum RangeContent {
    /// Bytes in memory, from this offset on.
    Bytes(Arc<[u8]>, usize),
    /// Zeros that take no space.
    Hole,
    /// Bytes of a decoded block, from this offset on.
    Block(BlockId, u32),
}

impl RangeContent {
    /// The source `count` bytes further on.
    pub fn after(&self, count: u64) -> Self {
        match self {
            Self::Bytes(bytes, offset) => Self::Bytes(bytes.clone(), offset + count as usize),
            Self::Hole => Self::Hole,
            Self::Block(id, offset) => Self::Block(*id, offset + count as u32),
        }
    }

    /// Whether it is a hole.
    pub fn is_hole(&self) -> bool {
        matches!(self, Self::Hole)
    }
}

/// A range of a file and its content.
#[derive(Debug, Clone)]
pub struct ContentRange {
    /// The range.
    pub range: Range<u64>,
    /// Its content.
    pub source: RangeContent,
}

impl ContentRange {
    /// The part of it in `range`, which overlaps it.
    pub fn within(&self, range: &Range<u64>) -> Self {
        let start = self.range.start.max(range.start);
        Self {
            range: start..self.range.end.min(range.end),
            source: self.source.after(start - self.range.start),
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Changed ranges of a file; the key is the start.
#[derive(Debug, Clone, Default)]
pub struct RangeMap(BTreeMap<u64, (u64, RangeContent)>);

impl RangeMap {
    /// Sets the content of a range.
    pub fn put(&mut self, segment: ContentRange) {
        if segment.range.is_empty() {
            return;
        }
        self.cut(&segment.range);
        let Range { start, end } = segment.range;
        self.0.insert(start, (end, segment.source));
    }

    /// Removes what lies in `range`, which has no content of its own then.
    fn cut(&mut self, range: &Range<u64>) {
        let before = self.0.range(..range.start).next_back();
        if let Some((&start, (end, source))) = before
            && *end > range.start
        {
            let (end, source) = (*end, source.clone());
            if end > range.end {
                self.0
                    .insert(range.end, (end, source.after(range.end - start)));
            }
            self.0.insert(start, (range.start, source));
        }
        while let Some((&start, (end, _))) = self.0.range(range.clone()).next() {
            let end = *end;
            let removed = self.0.remove(&start);
            if let Some((_, source)) = removed
                && end > range.end
            {
                self.0
                    .insert(range.end, (end, source.after(range.end - start)));
            }
        }
    }

    /// Segments that overlap `range`, clipped to it, in order.
    pub fn within<'a>(&'a self, range: &'a Range<u64>) -> impl Iterator<Item = ContentRange> + 'a {
        let before = self.0.range(..range.start).next_back();
        let before = before.filter(|(_, (end, _))| *end > range.start);
        before
            .into_iter()
            .chain(self.0.range(range.start..range.end.max(range.start)))
            .map(|(&start, (end, source))| {
                let segment = ContentRange {
                    range: start..*end,
                    source: source.clone(),
                };
                segment.within(range)
            })
    }

    /// All segments, in order.
    pub fn all(&self) -> impl Iterator<Item = ContentRange> + '_ {
        self.0.iter().map(|(&start, (end, source))| ContentRange {
            range: start..*end,
            source: source.clone(),
        })
    }
}

/// Attributes by inode and name; `None` is a removed one.
pub type Xattrs = BTreeMap<XattrKey, XattrChange>;
/// Inode and name.
pub type XattrKey = (Ino, Vec<u8>);
/// The new value.
pub type XattrChange = Option<Arc<[u8]>>;

/// Bytes that the tables take for a changed row until the next commit: a leaf and a part of the
/// pages above it are written anew.
pub const ROW_SPACE: u64 = 8 << 10;
/// Bytes of the disk that a commit of few rows may take.
pub const COMMIT_SPACE: u64 = 256 << 10;

/// All operations between two commits.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    /// Changed inodes; `None` is a dropped one.
    pub inodes: BTreeMap<Ino, Option<Arc<InodeRow>>>,
    /// Changed names by their place; `None` is a removed one.
    pub names: BTreeMap<NamePlace, Option<Arc<NameRow>>>,
    /// Changed attributes; `None` is a removed one.
    pub xattrs: Xattrs,
    /// Changed ranges of files.
    pub files: BTreeMap<Ino, RangeMap>,
    /// Inodes that became orphans, or (false) got a name again.
    pub orphans: BTreeMap<Ino, bool>,
    /// Changed quotas; `None` is a removed one.
    pub quotas: BTreeMap<Ino, Option<QuotaRow>>,
    /// Orphans without a reference.
    pub drops: BTreeSet<Ino>,
    /// Bytes of memory that it takes, roughly.
    pub cost: u64,
    /// Written bytes in it.
    pub written: u64,
    /// The number that the next new inode gets.
    pub next_ino: Ino,
    /// Time of the last operation.
    pub now: i128,
    /// Whether an operation changed it.
    pub is_changed: bool,
}

impl Layer {
    /// Bytes of the disk that its commit takes at most, roughly, if each change sets as many rows.
    pub fn space(&self, rows_of_change: u64) -> u64 {
        let rows = self.cost.saturating_sub(self.written) / ROW_COST;
        let rows = rows.saturating_mul(rows_of_change);
        self.written.saturating_add(rows.saturating_mul(ROW_SPACE))
    }

    /// An empty layer above this one.
    pub fn above(&self) -> Self {
        Self {
            next_ino: self.next_ino,
            now: self.now,
            ..Self::default()
        }
    }

    /// Adds the changes of the layer above this one.
    pub fn merge(&mut self, newer: Self) {
        for (ino, row) in newer.inodes {
            if row.is_none() {
                self.files.remove(&ino);
            }
            self.put_inode(ino, row);
        }
        for (place, row) in newer.names {
            self.put_name(place, row);
        }
        for ((ino, name), value) in newer.xattrs {
            self.put_xattr(ino, &name, value);
        }
        for (ino, map) in newer.files {
            for segment in map.0 {
                let (start, (end, source)) = segment;
                let range = start..end;
                self.put_range(ino, ContentRange { range, source });
            }
        }
        self.orphans.extend(newer.orphans);
        for (dir, row) in newer.quotas {
            self.put_quota(dir, row);
        }
        self.drops.extend(newer.drops);
        self.next_ino = newer.next_ino;
        self.now = newer.now;
        self.is_changed |= newer.is_changed;
    }

    /// Sets the row of an inode.
    pub fn put_inode(&mut self, ino: Ino, row: Option<Arc<InodeRow>>) {
        if self.inodes.insert(ino, row).is_none() {
            self.cost += ROW_COST;
        }
    }

    /// Sets the row of a name.
    pub fn put_name(&mut self, place: NamePlace, row: Option<Arc<NameRow>>) {
        if self.names.insert(place, row).is_none() {
            self.cost += ROW_COST;
        }
    }

    /// Sets the quota of a directory.
    pub fn put_quota(&mut self, dir: Ino, row: Option<QuotaRow>) {
        if self.quotas.insert(dir, row).is_none() {
            self.cost += ROW_COST;
        }
    }

    /// Sets the value of an attribute.
    pub fn put_xattr(&mut self, ino: Ino, name: &[u8], value: Option<Arc<[u8]>>) {
        self.cost += ROW_COST + value.as_ref().map_or(0, |value| value.len() as u64);
        self.xattrs.insert((ino, name.to_vec()), value);
    }

    /// Changed attributes of `ino`.
    pub fn xattrs_of(&self, ino: Ino) -> impl Iterator<Item = (&XattrKey, &XattrChange)> {
        let from = self.xattrs.range((ino, Vec::new())..);
        from.take_while(move |((of, _), _)| *of == ino)
    }

    /// Sets the content of a range of a file.
    pub fn put_range(&mut self, ino: Ino, segment: ContentRange) {
        self.cost += 100;
        if let RangeContent::Bytes(..) = segment.source {
            self.cost += segment.len();
            self.written += segment.len();
        }
        self.files.entry(ino).or_default().put(segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(map: &RangeMap) -> Vec<(u64, u64, u32)> {
        map.all()
            .map(|s| match s.source {
                RangeContent::Block(_, offset) => (s.range.start, s.range.end, offset),
                _ => (s.range.start, s.range.end, u32::MAX),
            })
            .collect()
    }

    // Would catch: a new range that loses the end of an old one, or that leaves a part of it.
    #[test]
    fn a_new_range_replaces_exactly_what_it_covers() {
        let mut map = RangeMap::default();
        let put = |map: &mut RangeMap, range: Range<u64>, offset| {
            map.put(ContentRange {
                range,
                source: RangeContent::Block(BlockId(1), offset),
            });
        };
        put(&mut map, 0..100, 0);
        put(&mut map, 40..50, 1000);
        assert_eq!(shown(&map), [(0, 40, 0), (40, 50, 1000), (50, 100, 50)]);
        put(&mut map, 45..60, 2000);
        let expected = [(0, 40, 0), (40, 45, 1000), (45, 60, 2000), (60, 100, 60)];
        assert_eq!(shown(&map), expected);
        put(&mut map, 0..200, 0);
        assert_eq!(shown(&map), [(0, 200, 0)]);
        let part: Vec<_> = map.within(&(10..20)).map(|s| s.range.start).collect();
        assert_eq!(part, [10]);
    }
}
