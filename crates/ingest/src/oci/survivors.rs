//! Decides which members of all layers are in the tree of the image.
//!
//! The records of all layers are sorted depth first. A pass over them keeps, for each directory on
//! the current path, the member before which everything in it is hidden. Symlinks of lower layers
//! are never followed: a member below a path makes that path a directory, as in a mount of the
//! layers by overlayfs. (Those of the same layer are no longer in the paths: `through.rs`.)
//!
//! Invariant: the *place* of a member is its number in all layers, from 1; a *cut* of n hides
//! members with places below n. So a whiteout cuts at the first member of its layer, and a member
//! that is no directory cuts, below its path, at itself.

use crate::path::{self, SEPARATOR};
use crate::sort::Sorted;
use weald_filter::Filter;
use weald_format::cursor::{Cursor, put_varint};
use weald_format::{Error, Result};

/// Bytes of memory for a hard link in [`Finder`] and [`Survivors`].
const LAYER_LINK_LEN: u64 = 40;

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A directory that a member of the layer lies below.
    Weak = 0,
    /// A directory.
    Directory = 1,
    /// Any other member.
    Other = 2,
    /// The layer hides the path in lower layers.
    Whiteout = 3,
    /// The layer hides the entries of the directory in lower layers.
    Opaque = 4,
    /// The hard link of this number names this path.
    Request = 5,
}

/// Encodes a record of `layer` with the member number `seq`. For [`Kind::Weak`] it is the number of
/// the member below, for [`Kind::Whiteout`] and [`Kind::Opaque`] that of the layer's first member.
pub fn put_record(kind: Kind, layer: u64, seq: u64, out: &mut Vec<u8>) {
    out.clear();
    out.push(kind as u8);
    put_varint(out, layer);
    put_varint(out, seq);
}

/// Members that are in the tree.
#[derive(Debug, Default)]
pub struct Survivors {
    kept: Vec<u64>,
    /// Number of each kept hard link, by the number of its file.
    names: Vec<(u64, u64)>,
    /// Directories without an own member and without kept entries, as paths.
    pub empty_dirs: Vec<Vec<u8>>,
}

impl Survivors {
    /// Whether member `seq` is in the tree.
    pub fn keeps(&self, seq: u64) -> bool {
        let word = self.kept.get((seq / 64) as usize);
        word.is_some_and(|word| word >> (seq % 64) & 1 == 1)
    }

    /// Count of the members that are in the tree.
    pub fn kept_count(&self) -> u64 {
        self.kept
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum()
    }

    /// Numbers of the kept hard links to member `seq`.
    pub fn links_to(&self, seq: u64) -> impl Iterator<Item = u64> {
        let start = self.names.partition_point(|&(file, _)| file < seq);
        let names = self.names.get(start..).unwrap_or_default();
        let names = names.iter().take_while(move |&&(file, _)| file == seq);
        names.map(|&(_, link)| link)
    }
}

/// Limits of [`find`].
pub struct FindOptions<'a> {
    /// Members of all layers.
    pub member_count: u64,
    /// Bytes of tables.
    pub memory_len: u64,
    /// Rules about paths to keep.
    pub filter: &'a Filter,
}

/// A member, and the number of its layer.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    layer: u64,
    place: u64,
    is_dir: bool,
}

/// All records of one path.
#[derive(Default)]
struct Group {
    key: Vec<u8>,
    last: Option<Last>,
    /// The last member below.
    weak: Last,
    /// Highest places with each kind of record; 0 if there is none.
    whiteout: u64,
    opaque: u64,
    other: u64,
}

/// A path whose entries may follow.
struct Above {
    end: usize,
    cut: u64,
    is_implied: bool,
    has_entries: bool,
}

struct Finder<'a> {
    options: &'a FindOptions<'a>,
    survivors: Survivors,
    above: Vec<Above>,
    /// Number of each hard link, and of its file or of the earlier link that it names.
    bindings: Vec<(u64, Option<u64>)>,
    empty_len: u64,
    /// The last path, as a key of a walk.
    path: Vec<u8>,
}

/// Finds the members that are in the tree. The error of a hard link without a file has the index of
/// the link.
///
/// # Errors
/// `Io`; `Invalid`; `Limit` for too little memory.
pub fn find(
    mut sorted: Sorted,
    options: &FindOptions<'_>,
) -> Result<std::result::Result<Survivors, u64>> {
    let word_count = options.member_count / 64 + 1;
    if word_count * 8 > options.memory_len {
        return Err(no_memory("members"));
    }
    let mut finder = Finder {
        options,
        survivors: Survivors {
            kept: vec![0; word_count as usize],
            ..Survivors::default()
        },
        above: Vec::new(),
        bindings: Vec::new(),
        empty_len: 0,
        path: Vec::new(),
    };
    let mut group = Group::default();
    let mut is_begun = false;
    while let Some(next) = sorted.next()? {
        if !is_begun || next.key != group.key {
            if is_begun {
                finder.end_group(&group)?;
            }
            finder.leave_until(next.key)?;
            is_begun = true;
            group = Group {
                key: next.key.to_vec(),
                ..Group::default()
            };
        }
        finder.add(&mut group, next.value)?;
    }
    if is_begun {
        finder.end_group(&group)?;
    }
    while finder.leave()? {}
    Ok(finder.bind())
}

fn no_memory(what: &str) -> Error {
    Error::limit(format!(
        "memory: too many {what} for the tables; --memory takes more of them"
    ))
}

impl Finder<'_> {
    fn add(&mut self, group: &mut Group, value: &[u8]) -> Result<()> {
        let mut cursor = Cursor::new(value, "temporary record");
        let read =
            |cursor: &mut Cursor<'_>| Ok((cursor.byte()?, cursor.varint()?, cursor.varint()?));
        let (kind, layer, seq) = read(&mut cursor).map_err(crate::member::damaged)?;
        let place = seq.saturating_add(1);
        let highest = |places: &mut u64| *places = (*places).max(place);
        let last = |is_dir| {
            Some(Last {
                layer,
                place,
                is_dir,
            })
        };
        match kind {
            0 => group.weak = last(false).unwrap_or_default(),
            1 => group.last = last(true),
            2 => {
                group.last = last(false);
                highest(&mut group.other);
            }
            3 => highest(&mut group.whiteout),
            4 => highest(&mut group.opaque),
            _ => {
                let file = group
                    .last
                    .filter(|last| !last.is_dir)
                    .map(|last| last.place - 1);
                self.bindings.push((seq, file));
                if self.bindings.len() as u64 * LAYER_LINK_LEN > self.options.memory_len {
                    return Err(no_memory("hard links"));
                }
            }
        }
        Ok(())
    }

    fn end_group(&mut self, group: &Group) -> Result<()> {
        let cut_above = self.above.last().map_or(0, |above| above.cut);
        let cut = cut_above.max(group.whiteout);
        let last = group.last.filter(|last| last.place >= cut);
        let weak = group.weak;
        let is_implied = weak.place > 0 && weak.place >= cut;
        let mut above = Above {
            end: group.key.len(),
            cut: cut.max(group.opaque).max(group.other),
            is_implied: false,
            has_entries: false,
        };
        match last {
            Some(last) if last.is_dir => self.keep(group, last.place - 1, true),
            Some(last) if weak.place < last.place => self.keep(group, last.place - 1, false),
            Some(last) if is_implied && weak.layer == last.layer => {
                return Err(Error::invalid(format!(
                    "{}: layer {} has members below this path, and before them one at it that is \
                     no directory and leads to none: the image must be made again",
                    weald_vfs::shown_path(&path::path_of_walk(&group.key)),
                    last.layer
                )));
            }
            _ => above.is_implied = is_implied,
        }
        self.above.push(above);
        Ok(())
    }

    fn keep(&mut self, group: &Group, seq: u64, is_dir: bool) {
        let filter = self.options.filter;
        if !filter.is_empty() && !group.key.is_empty() {
            let path = path::path_of_walk(&group.key);
            if path::is_excluded(filter, &path, is_dir) {
                return;
            }
        }
        if let Some(word) = self.survivors.kept.get_mut((seq / 64) as usize) {
            *word |= 1 << (seq % 64);
        }
        if let Some(above) = self.above.last_mut() {
            above.has_entries = true;
        }
    }

    /// Leaves the paths that `key` does not lie below.
    fn leave_until(&mut self, key: &[u8]) -> Result<()> {
        while let Some(above) = self.above.last() {
            let end = above.end;
            let is_below = end == 0 || key.get(end) == Some(&SEPARATOR);
            if is_below && self.path.get(..end) == key.get(..end) {
                break;
            }
            self.leave()?;
        }
        self.path.clear();
        self.path.extend_from_slice(key);
        Ok(())
    }

    /// Leaves the last path; false if there is none.
    fn leave(&mut self) -> Result<bool> {
        let Some(closed) = self.above.pop() else {
            return Ok(false);
        };
        if let Some(above) = self.above.last_mut() {
            above.has_entries |= closed.has_entries || closed.is_implied;
        }
        if closed.is_implied && !closed.has_entries && closed.end > 0 {
            let path = path::path_of_walk(self.path.get(..closed.end).unwrap_or_default());
            if path::is_excluded(self.options.filter, &path, true) {
                return Ok(true);
            }
            self.empty_len += path.len() as u64 + 64;
            if self.empty_len > self.options.memory_len {
                return Err(no_memory("empty directories"));
            }
            self.survivors.empty_dirs.push(path);
        }
        Ok(true)
    }

    /// Binds the kept hard links to their files.
    fn bind(mut self) -> std::result::Result<Survivors, u64> {
        self.bindings.sort_unstable_by_key(|&(link, _)| link);
        for at in 0..self.bindings.len() {
            let (earlier, rest) = self.bindings.split_at_mut(at);
            if let Some((_, Some(file))) = rest.first_mut()
                && let Ok(found) = earlier.binary_search_by_key(file, |&(link, _)| link)
            {
                match earlier[found].1 {
                    Some(first) => *file = first,
                    None => rest[0].1 = None,
                }
            }
        }
        for (no, &(link, file)) in (0..).zip(&self.bindings) {
            match file {
                _ if !self.survivors.keeps(link) => {}
                Some(file) => self.survivors.names.push((file, link)),
                None => return Err(no),
            }
        }
        self.survivors.names.sort_unstable();
        Ok(self.survivors)
    }
}
