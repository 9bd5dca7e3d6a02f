//! Makes a store of what a replica has.

use super::gather::needs_map;
use super::items::{Items, find_identity};
use super::objects::{ObjectWriter, each_read};
use super::place::Place;
use super::rows::each_change;
use crate::disk::Disk;
use crate::engine::{Engine, Sealer, Table, number_of};
use crate::journal::SummedRows;
use crate::layout;
use crate::segment;
use crate::store::Store;
use crate::writer::WriteOptions;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weald_format::replica::{DataFile, DataKind, Item, ItemKind, Lacking};
use weald_format::store::{BlockRow, ImageRow, SegmentRow};
use weald_format::{BlockId, CommitNo, Error, Result, SegmentNo};

/// Which state of a replica is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AsOf {
    /// The last one.
    #[default]
    Last,
    /// The last one that is not after this commit.
    Commit(CommitNo),
    /// The last one that was sent at this time or before, in nanoseconds since 1970.
    Time(i64),
}

/// A store that was made of a replica.
#[derive(Debug)]
pub struct RestoredStore {
    /// The store.
    pub store: Store,
    /// Its last commit.
    pub commit: CommitNo,
    /// When this state was sent, in nanoseconds since 1970.
    pub time: i64,
    /// Bytes of segments and maps that were written.
    pub written_len: u64,
    /// What is not there, because the store had lost it when it was sent, or the replica has lost
    /// it.
    pub damage: Vec<String>,
}

/// Items that lead to a state, the one with all rows first.
#[derive(Debug)]
pub(super) struct Path<'a>(pub VecDeque<&'a Item>);

impl<'a> Path<'a> {
    /// The items that lead to `to`; `None` if one is missing.
    pub fn to(items: &'a Items, to: &'a Item) -> Option<Self> {
        let mut path = VecDeque::from([to]);
        loop {
            let first = *path.front()?;
            if first.header.kind == ItemKind::AllRows {
                return Some(Self(path));
            }
            path.push_front(items.before(first)?);
        }
    }

    /// The rows to which the items lead.
    ///
    /// # Errors
    /// `Corrupt` if they have another sum than the items say, or are damaged; `NotFound`, `Io`.
    pub fn rows(&self, place: &dyn Place, sealer: &Sealer) -> Result<SummedRows> {
        let mut rows = SummedRows::default();
        for item in &self.0 {
            if item.header.kind == ItemKind::AllRows {
                rows = SummedRows::default();
            }
            each_change(place, sealer, item, &mut |changes| {
                rows.apply(changes);
                Ok(())
            })?;
            if rows.sum() != item.header.after {
                let what = format!(
                    "{}: item {} leads to other rows than it says",
                    place.shown(),
                    item.header.number.0
                );
                return Err(Error::corrupt("replica", 0, "S-9.7", what));
            }
        }
        Ok(rows)
    }

    /// All files and ranges that the items name.
    pub fn files(&self) -> impl Iterator<Item = &'a DataFile> {
        self.0.iter().flat_map(|item| item.list.files.iter())
    }

    /// What the store could not read.
    pub fn lacking(&self) -> impl Iterator<Item = &'a Lacking> {
        self.0.iter().flat_map(|item| item.list.lacking.iter())
    }
}

/// Chooses a state.
pub(super) fn choose(items: &Items, as_of: AsOf) -> Option<&Item> {
    let is_meant = |item: &&Item| match as_of {
        AsOf::Last => true,
        AsOf::Commit(commit) => item.header.commit <= commit,
        AsOf::Time(time) => item.header.time <= time,
    };
    // By their order: clocks may have been wrong.
    items.all().into_iter().rfind(is_meant)
}

/// Makes a store on `disk` of what `place` has. Its directory must be missing or empty. What cannot
/// be read is left out, and told. Its first writer completes what was unfinished.
///
/// # Errors
/// `NotFound` if the place is no replica, or has no such state; `Corrupt` if its items or rows are
/// damaged: an earlier state may be whole; `Busy` if the directory is not empty; `Io`, `Full`.
/// After an error, files may remain that are no store.
///
/// # Cost
/// Memory for all rows: about 100 bytes for each, and its length.
pub fn restore_store(
    place: &dyn Place,
    disk: Arc<dyn Disk>,
    as_of: AsOf,
    options: WriteOptions,
) -> Result<RestoredStore> {
    let shown = place.shown();
    let none = |what: &str| Error::not_found(format!("{shown}: {what}"));
    let identity = find_identity(place)?.ok_or_else(|| none("there is no replica here"))?;
    let items = Items::read(place, &identity)?;
    for bad in &items.bad {
        log::warn!("{}", bad.why);
    }
    let to = choose(&items, as_of).ok_or_else(|| {
        none(if items.all().is_empty() {
            "nothing was sent to this replica yet"
        } else {
            "the replica has no such state: 'weald replica states' lists those that it has"
        })
    })?;
    // A damaged item may be the one that was asked for.
    let later = items.bad.iter().find(|bad| bad.number > to.header.number);
    let mut damage: Vec<String> = Vec::new();
    if let (AsOf::Last, Some(bad)) = (as_of, later) {
        damage.push(format!("a later state is lost: {}", bad.why));
    }
    let path = Path::to(&items, to).ok_or_else(|| {
        let what = format!(
            "{shown}: an item between the last one with all rows and item {} is missing or \
             damaged: 'weald replica verify' lists the states that are whole, and --at takes one",
            to.header.number.0
        );
        Error::corrupt("replica", 0, "S-9.6", what)
    })?;
    let rows = path.rows(place, &Sealer::new()?)?;
    damage.extend(missing_data(&path, &rows));
    let volumes = rows.rows().iter();
    let volumes = volumes.filter(|((table, _), _)| *table == Table::Volumes);
    let volumes = volumes.map(|((_, key), row)| (String::from_utf8_lossy(key).into(), row.clone()));
    let is_shown = |(name, _): &(String, Vec<u8>)| !layout::is_replaced_key(name);
    let volumes: Vec<_> = volumes.filter(is_shown).collect();
    let header = to.header;
    let (mut written_len, mut lost) = (0, Vec::new());
    let fill = |disk: &dyn Disk, engine: &dyn Engine| -> Result<()> {
        (written_len, lost) = write_objects(place, disk, &path, &rows, &mut damage)?;
        rows.write(engine)
    };
    let superblock = weald_format::store::StoreSuperblock {
        uuid: identity.uuid,
        incompat: header.incompat,
        segment_len: header.segment_len,
    };
    let store = Store::create_filled(disk, superblock, fill)?;
    for (name, row) in &volumes {
        store.show_volume(name, row)?;
    }
    // It shows the maps, and makes the journal.
    let mut writer = store.write(options)?;
    writer.begin_journal()?;
    // New contents must not become one of these.
    for ((id, _), error) in &lost {
        writer.note_damaged(*id, error);
    }
    writer.keep_damaged();
    drop(writer);
    Ok(RestoredStore {
        store,
        commit: header.commit,
        time: header.time,
        written_len,
        damage,
    })
}

/// Writes segments, and maps under their hidden names. Returns their bytes, and blocks that cannot
/// be read.
fn write_objects(
    place: &dyn Place,
    disk: &dyn Disk,
    path: &Path<'_>,
    rows: &SummedRows,
    damage: &mut Vec<String>,
) -> Result<(u64, Vec<(Block, Error)>)> {
    let (mut lens, mut maps) = (BTreeMap::new(), BTreeMap::new());
    for ((table, key), value) in rows.rows() {
        match table {
            Table::Segments => {
                let row = SegmentRow::parse(value)?;
                if let Some(number) = number_of(key)
                    && !row.is_emptied
                {
                    lens.insert(SegmentNo(number), row.len);
                }
            }
            Table::Images => {
                let row = ImageRow::parse(value)?;
                if !needs_map(&row) {
                    continue;
                }
                maps.insert(row.map_digest.0, row.image_no);
            }
            _ => {}
        }
    }
    let is_wanted = |file: &&DataFile| match file.kind {
        DataKind::Rows => false,
        DataKind::Segment {
            number,
            offset,
            len,
        } => {
            let end = offset.saturating_add(len);
            lens.get(&number)
                .is_some_and(|of_segment| end <= *of_segment)
        }
        DataKind::Map(image_no) => maps.get(&file.digest.0) == Some(&image_no),
    };
    let wanted: Vec<&DataFile> = path.files().filter(is_wanted).collect();
    let mut writer = ObjectWriter::new(disk, &lens);
    let mut write = |file: &DataFile, bytes: &[u8]| writer.write(file, bytes);
    each_read(
        place,
        &wanted,
        &mut |file, read| match read.and_then(|bytes| write(file, &bytes)) {
            Err(error) if error.is_failed_write() => Err(error),
            Err(error) => {
                damage.push(error.to_string());
                Ok(())
            }
            Ok(()) => Ok(()),
        },
    )?;
    let written_len = writer.finish()?;
    let lost = damaged_blocks(disk, rows)?;
    let mut in_use = lost.iter().filter(|((_, row), _)| row.references > 0);
    if let Some((_, error)) = in_use.next() {
        let count = 1 + in_use.count();
        damage.push(format!("{count} blocks cannot be read: {error}"));
    }
    Ok((written_len, lost))
}

/// A block: its number and its row.
pub(super) type Block = (BlockId, BlockRow);

/// Blocks that are not what their rows say, also those that nothing refers to. Parts of two
/// histories would each be whole, and not be one store.
fn damaged_blocks(disk: &dyn Disk, rows: &SummedRows) -> Result<Vec<(Block, Error)>> {
    let mut blocks = Vec::new();
    for ((table, key), value) in rows.rows() {
        if *table == Table::Blocks {
            let id = BlockId(number_of(key).unwrap_or_default());
            blocks.push((id, BlockRow::parse(value)?));
        }
    }
    Ok(unreadable(disk, blocks))
}

/// Those of `blocks` that are not where their rows say, in order of their places.
pub(super) fn unreadable(disk: &dyn Disk, mut blocks: Vec<Block>) -> Vec<(Block, Error)> {
    blocks.sort_unstable_by_key(|(_, row)| (row.location.segment, row.location.offset));
    let segments: Vec<_> = blocks
        .chunk_by(|(_, a), (_, b)| a.location.segment == b.location.segment)
        .collect();
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    let verify = || {
        while let Some(of_segment) = segments.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some((_, first)) = of_segment.first() else {
                continue;
            };
            let opened = segment::open(disk, first.location.segment);
            for (id, row) in *of_segment {
                let read = match &opened {
                    Ok(object) => segment::read_record(&**object, row.location, &row.record),
                    Err(error) => Err(error.duplicate()),
                };
                if let Err(error) = read {
                    found.lock().push(((*id, *row), error));
                }
            }
        }
    };
    let others = std::thread::available_parallelism().map_or(0, |count| count.get() - 1);
    std::thread::scope(|scope| {
        for _ in 0..others.min(segments.len()) {
            let builder = std::thread::Builder::new().name("weald-verify".into());
            // A thread that does not start leaves its work to the others.
            if let Err(error) = builder.spawn_scoped(scope, verify) {
                log::debug!("a thread: {error}");
            }
        }
        verify();
    });
    let mut found = found.into_inner();
    found.sort_unstable_by_key(|((_, row), _)| (row.location.segment, row.location.offset));
    found
}

/// A range of a segment: where it lies, and its end.
type Range = ((u64, u64), u64);

/// Ranges of segments without overlaps: ends, by segment and offset.
type Ranges = BTreeMap<(u64, u64), u64>;

fn merge(ranges: impl Iterator<Item = Range>) -> Ranges {
    let mut all: Vec<Range> = ranges.collect();
    all.sort_unstable();
    let mut merged: Vec<Range> = Vec::new();
    for ((number, from), to) in all {
        match merged.last_mut() {
            Some(((last, _), end)) if *last == number && from <= *end => *end = to.max(*end),
            _ => merged.push(((number, from), to)),
        }
    }
    merged.into_iter().collect()
}

/// The ranges of segments that files of data have.
fn ranges(path: &Path<'_>) -> Ranges {
    let of_file = |file: &DataFile| match file.kind {
        DataKind::Segment {
            number,
            offset,
            len,
        } => Some(((number.0, offset), offset.saturating_add(len))),
        _ => None,
    };
    merge(path.files().filter_map(of_file))
}

/// The ranges that the store could not read.
fn lacking_ranges(path: &Path<'_>) -> Ranges {
    let of_range = |lacking: &Lacking| {
        let end = lacking.offset.saturating_add(lacking.len);
        ((lacking.number.0, lacking.offset), end)
    };
    merge(path.lacking().map(of_range))
}

/// What the rows of a state need and its files of data do not have: blocks in use, and maps. `None`
/// if nothing is missing.
pub(super) fn missing_data(path: &Path<'_>, rows: &SummedRows) -> Option<String> {
    let ranges = ranges(path);
    let lacking = lacking_ranges(path);
    let files = path.files().filter(|f| matches!(f.kind, DataKind::Map(_)));
    let maps: BTreeSet<[u8; 32]> = files.map(|file| file.digest.0).collect();
    let (mut count, mut first) = (0u64, None);
    for ((table, key), value) in rows.rows() {
        match table {
            Table::Blocks => {
                let Ok(row) = BlockRow::parse(value) else {
                    continue;
                };
                if row.references == 0 || is_in(&ranges, &lacking, &row) {
                    continue;
                }
                count += 1;
                let id = number_of(key).unwrap_or_default();
                let (offset, shown) = (row.location.offset, layout::segment(row.location.segment));
                first.get_or_insert_with(|| format!("block {id} at {offset} of {shown}"));
            }
            Table::Images => {
                let row = ImageRow::parse(value).ok().filter(needs_map);
                if row.is_some_and(|row| !maps.contains(&row.map_digest.0)) {
                    count += 1;
                    let name = String::from_utf8_lossy(key);
                    first.get_or_insert_with(|| format!("the map of image {name}"));
                }
            }
            _ => {}
        }
    }
    let first = first?;
    Some(format!(
        "{count} blocks and maps are not in the replica, such as {first}"
    ))
}

/// Whether files of data have the record of a block, and the store could read it then.
fn is_in(ranges: &Ranges, lacking: &Ranges, row: &BlockRow) -> bool {
    let (segment, from) = (row.location.segment.0, row.location.offset);
    let to = from.saturating_add(row.len());
    let before = ranges.range(..=(segment, from)).next_back();
    let is_there = before.is_some_and(|((of, _), end)| *of == segment && *end >= to);
    let before = lacking.range(..(segment, to)).next_back();
    let is_lacking = before.is_some_and(|((of, _), end)| *of == segment && *end > from);
    is_there && !is_lacking
}
