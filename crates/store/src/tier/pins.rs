//! Which blocks belong on which tier, because users said so, and in which segments these blocks
//! lie: the file `tiers.pins`. Without it, they are found again.

use crate::disk::LocalFiles;
use crate::engine::{Engine, Table};
use crate::layout;
use crate::sealed_text::{replace, sealed, unsealed};
use std::collections::BTreeMap;
use weald_format::store::{BlockRow, SegmentRow};
use weald_format::{BlockId, CommitNo, Result, SegmentNo};

/// First line of the file.
const FIRST_LINE: &str = "weald pins 1";
/// Most bytes of the file: half a million segments.
const LEN_MAX: u64 = 32 << 20;
/// Share of a segment's live bytes, per cent, from which on all of it goes where that share
/// belongs. What is less is copied into segments of its own first.
const WHOLE_PERCENT: u64 = 75;
/// Most tiers that blocks belong on: the classes of a sort.
const TIERS_MAX: usize = 255;

/// Blocks that belong on tiers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    /// Names of tiers, the fastest first, then those that the store does not have.
    tiers: Vec<String>,
    /// Each with the number of its tier among these.
    blocks: BTreeMap<BlockId, u8>,
}

/// Pinned blocks of a segment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PinnedSegment {
    /// Bytes of all its live blocks.
    pub live_len: u64,
    /// Bytes that belong on each tier, by name.
    pub lens: BTreeMap<String, u64>,
}

/// Where pinned blocks lie.
pub(super) type PinnedSegments = BTreeMap<SegmentNo, PinnedSegment>;

impl Pins {
    /// No block; `tiers` has the names of the tiers of the store, the fastest first.
    pub fn new(tiers: Vec<String>) -> Self {
        Self {
            tiers,
            blocks: BTreeMap::new(),
        }
    }

    /// Notes that block `id` belongs on the tier `name`. Where users differ, the fastest tier
    /// counts. A name that the store does not have is kept: it may get such a tier.
    pub fn pin(&mut self, id: BlockId, name: &str) {
        let at = self.tiers.iter().position(|tier| tier == name);
        let at = at.unwrap_or_else(|| {
            self.tiers.push(name.to_owned());
            self.tiers.len() - 1
        });
        // More names than classes: the data stays where it is.
        let Some(at) = u8::try_from(at).ok().filter(|_| at < TIERS_MAX) else {
            return;
        };
        let tier = self.blocks.entry(id).or_insert(at);
        *tier = at.min(*tier);
    }

    /// Whether nothing is pinned.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The blocks, with the numbers of their tiers.
    pub(super) fn blocks(&self) -> &BTreeMap<BlockId, u8> {
        &self.blocks
    }

    /// As [`Pins::blocks`].
    pub(super) fn into_blocks(self) -> BTreeMap<BlockId, u8> {
        self.blocks
    }

    /// Where the blocks lie.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads the row of each block.
    pub(super) fn segments(&self, engine: &dyn Engine) -> Result<PinnedSegments> {
        let mut segments = PinnedSegments::new();
        for (id, tier) in &self.blocks {
            let Some(value) = engine.get(Table::Blocks, &id.key())? else {
                continue;
            };
            let row = BlockRow::parse(&value)?;
            let Some(name) = self.tiers.get(usize::from(*tier)) else {
                continue;
            };
            let segment = segments.entry(row.location.segment).or_default();
            match segment.lens.get_mut(name) {
                Some(len) => *len += row.len(),
                None => drop(segment.lens.insert(name.clone(), row.len())),
            }
        }
        for (number, segment) in &mut segments {
            let key = crate::engine::key_of(number.0);
            if let Some(value) = engine.get(Table::Segments, &key)? {
                segment.live_len = SegmentRow::parse(&value)?.live_len;
            }
        }
        Ok(segments)
    }
}

impl PinnedSegment {
    /// The tier on which all of the segment belongs, because most of it does, and nothing belongs
    /// on another one.
    pub fn owner(&self) -> Option<&str> {
        if self.lens.len() > 1 {
            return None;
        }
        let is_most = |len: u64| {
            u128::from(len) * 100 >= u128::from(self.live_len) * u128::from(WHOLE_PERCENT)
        };
        let found = self.lens.iter().find(|(_, len)| is_most(**len));
        found.map(|(name, _)| name.as_str())
    }

    /// The first tier but `here` on which a part of it belongs, and the bytes of that part.
    pub fn misplaced(&self, here: &str) -> Option<(&str, u64)> {
        let found = self.lens.iter().find(|(name, _)| *name != here);
        found.map(|(name, len)| (name.as_str(), *len))
    }
}

/// Keeps where pinned blocks lay after commit `commit`.
///
/// # Errors
/// `Io`, `Full`.
pub(super) fn write(
    home: &dyn LocalFiles,
    commit: CommitNo,
    segments: &PinnedSegments,
) -> Result<()> {
    let mut text = format!("{FIRST_LINE}\ncommit {commit}\n");
    for (number, segment) in segments {
        text.push_str(&format!("{} {}", number.0, segment.live_len));
        for (name, len) in &segment.lens {
            text.push_str(&format!(" {name} {len}"));
        }
        text.push('\n');
    }
    replace(home, &[layout::TIERS_PINS], &sealed(text))
}

/// What [`write`] has kept, and the commit; nothing if the file is missing or damaged.
pub(super) fn read(home: &dyn LocalFiles) -> Option<(CommitNo, PinnedSegments)> {
    parse_file(&home.read_file(layout::TIERS_PINS, LEN_MAX).ok()?)
}

/// Parses the file; nothing if it is damaged.
fn parse_file(bytes: &[u8]) -> Option<(CommitNo, PinnedSegments)> {
    let mut lines = unsealed(bytes)?.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let commit = lines.next()?.strip_prefix("commit ")?.parse().ok()?;
    let segments = lines.map(parse).collect::<Option<PinnedSegments>>()?;
    Some((CommitNo(commit), segments))
}

fn parse(line: &str) -> Option<(SegmentNo, PinnedSegment)> {
    let mut words = line.split(' ');
    let number = SegmentNo(words.next()?.parse().ok()?);
    let mut segment = PinnedSegment {
        live_len: words.next()?.parse().ok()?,
        ..PinnedSegment::default()
    };
    while let Some(name) = words.next() {
        let len = words.next()?.parse().ok()?;
        segment.lens.insert(name.to_owned(), len);
    }
    Some((number, segment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated_disk::SimDisk;

    #[test]
    fn the_fastest_tier_counts_and_unknown_ones_come_last() {
        let mut pins = Pins::new(vec!["home".into(), "slow".into()]);
        pins.pin(BlockId(1), "gone");
        pins.pin(BlockId(1), "slow");
        pins.pin(BlockId(2), "home");
        pins.pin(BlockId(2), "slow");
        pins.pin(BlockId(3), "gone");
        let tiers: Vec<u8> = pins.blocks().values().copied().collect();
        assert_eq!(tiers, [1, 0, 2]);
    }

    // Would catch: a file that is taken for what it is not, and damage that stops a run.
    #[test]
    fn places_survive_and_damage_costs_nothing() {
        let disk = SimDisk::new(1);
        assert_eq!(read(&disk), None);
        let mut segment = PinnedSegment {
            live_len: 100,
            lens: BTreeMap::from([("home".into(), 24), ("slow".into(), 76)]),
        };
        let segments = PinnedSegments::from([(SegmentNo(3), segment.clone())]);
        write(&disk, CommitNo(7), &segments).expect("written");
        assert_eq!(read(&disk), Some((CommitNo(7), segments)));
        assert_eq!(segment.owner(), None);
        assert_eq!(segment.misplaced("slow"), Some(("home", 24)));
        segment.lens.remove("home");
        assert_eq!(segment.owner(), Some("slow"));
        let len = disk.contents()[layout::TIERS_PINS].len();
        for at in 0..len {
            disk.flip(layout::TIERS_PINS, at, 6);
            let _ = read(&disk);
        }
    }
}
