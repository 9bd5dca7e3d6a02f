//! Which segments were used, and when: reads that decay, kept in the file `tiers.heat`. Without the
//! file, segments count as used when they were written, and nothing else is lost.

use super::manage::TierState;
use super::plan::Use;
use crate::disk::LocalFiles;
use crate::layout;
use crate::sealed_text::{replace, sealed, unsealed};
use std::collections::{BTreeMap, BTreeSet};
use weald_format::{Digest, Result, SegmentNo};

/// Seconds after which a read counts half.
const HALF_LIFE_S: f64 = 1800.0;
/// First line of the file.
const FIRST_LINE: &str = "weald heat 1";
/// Most bytes of the file: a million segments.
const LEN_MAX: u64 = 64 << 20;

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// Reads, decayed to `last_s`.
    hits: f64,
    /// When it was read or written last, in seconds since 1970.
    last_s: u64,
}

/// Use of all segments.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heat {
    entries: BTreeMap<SegmentNo, Entry>,
    is_changed: bool,
    /// Digest of the file as this one has read or written it.
    known: Option<Digest>,
}

impl Entry {
    fn hits_at(&self, now_s: u64) -> f64 {
        let age = now_s.saturating_sub(self.last_s) as f64;
        self.hits * (-age / HALF_LIFE_S).exp2()
    }
}

impl Heat {
    /// Whether these are the bytes of a whole file.
    pub fn is_whole(bytes: &[u8]) -> bool {
        parse_file(bytes).is_some()
    }

    /// Reads the file; nothing is known if it is missing or damaged.
    pub fn read(home: &dyn LocalFiles) -> Self {
        let bytes = home.read_file(layout::TIERS_HEAT, LEN_MAX).ok();
        let known = bytes.as_deref().map(Digest::of);
        let entries = bytes.as_deref().and_then(parse_file);
        Self {
            entries: entries.unwrap_or_default(),
            is_changed: false,
            known,
        }
    }

    /// Takes over the file if somebody else has written it, as a user does who sets counters to
    /// zero. Reads since the last [`Heat::write`] are lost then.
    pub fn follow(&mut self, home: &dyn LocalFiles) {
        let bytes = home.read_file(layout::TIERS_HEAT, LEN_MAX).ok();
        let found = bytes.as_deref().map(Digest::of);
        if found.is_some() && found != self.known {
            *self = Self::read(home);
        }
    }

    /// Sets the counters of reads of these segments to zero, or of all.
    pub fn reset(&mut self, numbers: Option<&BTreeSet<SegmentNo>>) {
        for (number, entry) in &mut self.entries {
            if numbers.is_none_or(|numbers| numbers.contains(number)) {
                entry.hits = 0.0;
                self.is_changed = true;
            }
        }
    }

    /// Writes the file if something has changed.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn write(&mut self, home: &dyn LocalFiles) -> Result<()> {
        if !std::mem::take(&mut self.is_changed) {
            return Ok(());
        }
        let mut text = format!("{FIRST_LINE}\n");
        for (number, entry) in &self.entries {
            let line = format!("{} {:.2} {}\n", number.0, entry.hits, entry.last_s);
            text.push_str(&line);
        }
        let text = sealed(text);
        replace(home, &[layout::TIERS_HEAT], &text)?;
        self.known = Some(Digest::of(text.as_bytes()));
        Ok(())
    }

    /// Adds reads, by the names of segments.
    pub fn add(&mut self, reads: &BTreeMap<String, u64>, now_s: u64) {
        for (name, count) in reads {
            let Some(number) = layout::segment_number(name) else {
                continue;
            };
            let entry = self.entries.entry(number).or_default();
            entry.hits = entry.hits_at(now_s) + *count as f64;
            // A clock that was set back must not keep a segment new for years.
            entry.last_s = now_s;
            self.is_changed = true;
        }
    }

    /// Use of all segments of `tiers`. `changed_at` says when a segment was written; it is asked
    /// once for each.
    pub fn uses(
        &mut self,
        tiers: &[TierState],
        now_s: u64,
        changed_at: &dyn Fn(SegmentNo) -> Option<u64>,
    ) -> BTreeMap<SegmentNo, Use> {
        let all = tiers.iter().flat_map(|tier| &tier.segments);
        let numbers: BTreeSet<SegmentNo> = all.map(|(number, _)| *number).collect();
        let is_away = tiers.iter().any(|tier| tier.why_away.is_some());
        if !is_away {
            self.entries.retain(|number, _| numbers.contains(number));
        }
        let mut uses = BTreeMap::new();
        for number in numbers {
            let entry = self.entries.entry(number).or_insert_with(|| Entry {
                hits: 0.0,
                last_s: changed_at(number).unwrap_or(now_s),
            });
            entry.last_s = entry.last_s.min(now_s);
            let used = Use {
                idle_s: now_s - entry.last_s,
                hits: entry.hits_at(now_s),
            };
            uses.insert(number, used);
        }
        uses
    }
}

/// The entries of a file; nothing if it is damaged.
fn parse_file(bytes: &[u8]) -> Option<BTreeMap<SegmentNo, Entry>> {
    let mut lines = unsealed(bytes)?.lines();
    let is_ours = lines.next() == Some(FIRST_LINE);
    is_ours.then(|| lines.map(parse).collect())?
}

fn parse(line: &str) -> Option<(SegmentNo, Entry)> {
    let mut words = line.split(' ');
    let number = SegmentNo(words.next()?.parse().ok()?);
    let hits: f64 = words.next()?.parse().ok()?;
    let last_s = words.next()?.parse().ok()?;
    let is_sane = hits.is_finite() && hits >= 0.0;
    is_sane.then_some((number, Entry { hits, last_s }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated_disk::SimDisk;

    #[test]
    fn reads_decay_and_survive() {
        let disk = SimDisk::new(1);
        let mut heat = Heat::read(&disk);
        let name = "0000000000000003".to_owned();
        heat.add(&BTreeMap::from([(name, 8)]), 10_000);
        heat.write(&disk).unwrap();
        let entry = Heat::read(&disk).entries[&SegmentNo(3)];
        assert_eq!(entry.hits_at(10_000), 8.0);
        assert_eq!(entry.hits_at(11_800), 4.0);
        // The clock was set back.
        assert_eq!(entry.hits_at(5), 8.0);
        // A user sets them to zero, and whoever counts follows.
        let mut users = Heat::read(&disk);
        users.reset(Some(&BTreeSet::from([SegmentNo(4)])));
        users.write(&disk).unwrap();
        heat.follow(&disk);
        assert_eq!(heat.entries[&SegmentNo(3)].hits, 8.0);
        users.reset(None);
        users.write(&disk).unwrap();
        heat.follow(&disk);
        let entry = heat.entries[&SegmentNo(3)];
        assert_eq!((entry.hits, entry.last_s), (0.0, 10_000));
        let len = disk.contents()[layout::TIERS_HEAT].len();
        for at in 0..len {
            disk.flip(layout::TIERS_HEAT, at, 6);
            let _ = Heat::read(&disk);
        }
    }
}
