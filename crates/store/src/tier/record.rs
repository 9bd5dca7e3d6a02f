//! What a store knows of its tiers: the files `tiers` and `tiers.copy`. What a tier says of its
//! store: the files `tier` and `tier.copy` in its directory. All are text that ends with its
//! digest.

use crate::disk::LocalFiles;
use crate::hex::{hex, unhex};
use crate::layout;
use crate::sealed_text::{replace, sealed, unsealed};
use crate::store::is_bad_or_missing;
use weald_format::store::Uuid;
use weald_format::{Error, ErrorKind, Result};

/// Most bytes of such a file.
pub(super) const LEN_MAX: u64 = 256 << 10;
/// Most tiers of a store.
pub const TIERS_MAX: usize = 64;
/// Longest name of a tier, in bytes.
const NAME_LEN_MAX: usize = 64;
/// The name of the store's own directory among the tiers.
pub const HOME: &str = "home";
/// First line of `tiers`.
const TIERS_LINE: &str = "weald tiers 1";
/// First line of `tier`.
const TIER_LINE: &str = "weald tier 1";

/// What moves to a tier, and away from it, by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierPolicy {
    /// Seconds without a read and a write after which data moves on to the next rank; 0: never.
    pub max_age_s: u64,
    /// Bytes that are kept free on the tier: what was used least moves on to the next rank.
    pub reserve: u64,
    /// Reads, each of a block, within about an hour after which a segment moves to the rank before;
    /// 0: never.
    pub hits: u64,
    /// Bytes a second that moves to the tier write at most; 0: as many as it takes.
    pub rate: u64,
    /// Whether nothing moves to the tier or away from it by itself, and no new data lands there.
    pub is_off: bool,
    /// Whether everything on the tier moves away, because it is to be removed.
    pub is_draining: bool,
    /// Hours of the day at which data moves to the tier and away from it by itself.
    pub hours: Hours,
}

/// Hours of the day, in the time zone of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hours {
    /// A bit for each hour; none for all of them.
    bits: u32,
}

impl Hours {
    /// Parses `any`, or `START-END`: from one full hour up to the other, such as 22-6.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "any" {
            return Some(Self::default());
        }
        let (start, end) = text.split_once('-')?;
        let hour = |text: &str| text.parse::<u32>().ok().filter(|hour| *hour <= 24);
        let (start, end) = (hour(start)? % 24, hour(end)? % 24);
        let mut bits = 0;
        let mut at = start;
        loop {
            bits |= 1 << at;
            at = (at + 1) % 24;
            if at == end {
                return Some(Self { bits });
            }
        }
    }

    /// Whether this hour, 0 to 23, is one of them.
    pub fn has(self, hour: u32) -> bool {
        self.bits == 0 || self.bits & 1 << (hour % 24) != 0
    }

    /// As [`Hours::parse`] takes them.
    pub fn word(self) -> String {
        let begins = |hour: &u32| self.has(*hour) && !self.has(hour + 23);
        let ends = |hour: &u32| !self.has(*hour) && self.has(hour + 23);
        match ((0..24).find(begins), (0..24).find(ends)) {
            (Some(start), Some(end)) => format!("{start}-{end}"),
            _ => "any".into(),
        }
    }
}

/// A tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// Random: the same as in the file `tier` of its directory.
    pub uuid: Uuid,
    /// The order of tiers: those with a lower rank are faster, and the home is faster than all.
    pub rank: u32,
    /// Its directory, absolute, or the URL of a prefix in a bucket.
    pub place: String,
    /// What moves by itself.
    pub policy: TierPolicy,
}

/// What a store knows of its tiers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TiersRecord {
    /// The length at which a segment of the store is closed.
    pub segment_len: u64,
    /// The policy of the home.
    pub home: TierPolicy,
    /// The tiers by rank, then by name.
    pub tiers: Vec<Tier>,
}

/// Whether a tier may have this name.
///
/// # Errors
/// `Invalid`.
pub fn check_tier_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let what = if name == HOME {
        "is the name of the store's own directory"
    } else if name.is_empty() || name.len() > NAME_LEN_MAX {
        "a name of a tier has 1 to 64 characters"
    } else if !name.chars().all(is_plain) || name.starts_with(['.', '-']) {
        "a name of a tier has letters, digits, '.', '_' and '-', and begins with a letter or digit"
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!("{}: {what}", name.escape_debug())))
}

impl TierPolicy {
    fn words(&self) -> String {
        format!(
            "policy {} {} {} {} {} {} {}",
            self.max_age_s,
            self.reserve,
            self.hits,
            self.rate,
            self.is_off,
            self.is_draining,
            self.hours.word()
        )
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("policy ")?.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (max_age_s, reserve, hits, rate) = (number()?, number()?, number()?, number()?);
        Some(Self {
            max_age_s,
            reserve,
            hits,
            rate,
            is_off: words.next()?.parse().ok()?,
            is_draining: words.next()?.parse().ok()?,
            // Earlier versions wrote none.
            hours: words.next().map_or(Some(Hours::default()), Hours::parse)?,
        })
    }
}

impl TiersRecord {
    fn encode(&self) -> String {
        let (len, home) = (self.segment_len, self.home.words());
        let mut text = format!("{TIERS_LINE}\nsegment-len {len}\n{home}\n");
        for tier in &self.tiers {
            text.push_str(&format!(
                "tier {} {}\nuuid {}\nplace {}\n{}\n",
                tier.rank,
                tier.name,
                hex(&tier.uuid),
                tier.place,
                tier.policy.words()
            ));
        }
        sealed(text)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = unsealed(bytes)?.lines();
        if lines.next()? != TIERS_LINE {
            return None;
        }
        let mut record = Self {
            segment_len: lines.next()?.strip_prefix("segment-len ")?.parse().ok()?,
            home: TierPolicy::parse(lines.next()?)?,
            tiers: Vec::new(),
        };
        while let Some(line) = lines.next() {
            let (rank, name) = line.strip_prefix("tier ")?.split_once(' ')?;
            check_tier_name(name).ok()?;
            record.tiers.push(Tier {
                name: name.to_owned(),
                rank: rank.parse().ok()?,
                uuid: unhex(lines.next()?.strip_prefix("uuid ")?)?,
                place: lines.next()?.strip_prefix("place ")?.to_owned(),
                policy: TierPolicy::parse(lines.next()?)?,
            });
        }
        (record.tiers.len() <= TIERS_MAX).then_some(record)
    }

    /// Reads what the store in `home` knows of its tiers: nothing if it has none.
    ///
    /// # Errors
    /// `Corrupt` if both files are damaged; `Io`.
    pub fn read(home: &dyn LocalFiles) -> Result<Self> {
        let mut why = None;
        for name in [layout::TIERS, layout::TIERS_COPY] {
            match home.read_file(name, LEN_MAX) {
                Ok(bytes) => match Self::parse(&bytes) {
                    Some(record) => return Ok(record),
                    None => why = Some(name),
                },
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if is_bad_or_missing(&error) => why = Some(name),
                Err(error) => return Err(error),
            }
        }
        let Some(name) = why else {
            return Ok(Self::default());
        };
        let shown = home.shown();
        let what = format!(
            "{shown}/{name}: what the store knows of its tiers is damaged, and so is the copy: \
             'weald tier add --again' makes the list again, with each of the tiers"
        );
        Err(Error::corrupt("tiers", 0, "S-10.2", what))
    }

    /// Writes it, durably.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn write(&self, home: &dyn LocalFiles) -> Result<()> {
        replace(home, &[layout::TIERS, layout::TIERS_COPY], &self.encode())
    }

    /// The policy of the tier `name`, or of the home.
    pub fn policy_of(&mut self, name: &str) -> Option<&mut TierPolicy> {
        if name == HOME {
            return Some(&mut self.home);
        }
        let found = self.tiers.iter_mut().find(|tier| tier.name == name);
        found.map(|tier| &mut tier.policy)
    }
}

/// What a directory says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TierMark {
    pub store: Uuid,
    pub uuid: Uuid,
    /// Inode and path of the store's directory. One of the two stays when a store is moved, or is
    /// put back from a backup; a copy of a store has neither.
    pub home: (u64, String),
}

/// Inode and path of the store in `home`.
pub(super) fn home_of(home: &dyn LocalFiles) -> (u64, String) {
    let shown = home.shown();
    let path = std::fs::canonicalize(&shown);
    let path = path.map_or(shown, |path| path.display().to_string());
    (home.identity().map_or(0, |[_, inode]| inode), path)
}

impl TierMark {
    /// Reads the mark in `place`; nothing if there is none.
    ///
    /// # Errors
    /// `Corrupt` if both files are damaged; `Io`.
    pub fn read(place: &dyn LocalFiles) -> Result<Option<Self>> {
        let mut damaged = None;
        for name in [layout::TIER_MARK, layout::TIER_MARK_COPY] {
            match place.read_file(name, LEN_MAX) {
                Ok(bytes) => match Self::parse(&bytes) {
                    Some(mark) => return Ok(Some(mark)),
                    None => {
                        let shown = place.shown();
                        let what = format!("{shown}/{name}: is damaged, and so is its copy");
                        damaged = Some(Error::corrupt("tier", 0, "S-10.4", what));
                    }
                },
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if is_bad_or_missing(&error) => damaged = Some(error),
                Err(error) => return Err(error),
            }
        }
        damaged.map_or(Ok(None), Err)
    }

    /// The mark that `bytes` are; nothing if they are damaged.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut lines = unsealed(bytes)?.lines();
        if lines.next()? != TIER_LINE {
            return None;
        }
        Some(Self {
            store: unhex(lines.next()?.strip_prefix("store ")?)?,
            uuid: unhex(lines.next()?.strip_prefix("uuid ")?)?,
            home: {
                let (inode, path) = lines.next()?.strip_prefix("home ")?.split_once(' ')?;
                (inode.parse().ok()?, path.to_owned())
            },
        })
    }

    /// Writes the mark, durably.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn write(&self, place: &dyn LocalFiles) -> Result<()> {
        let names = [layout::TIER_MARK, layout::TIER_MARK_COPY];
        replace(place, &names, &self.text())
    }

    /// As [`TierMark::parse`] takes it.
    pub fn text(&self) -> String {
        let (store, uuid) = (hex(&self.store), hex(&self.uuid));
        let (inode, path) = &self.home;
        let home = format!("{inode} {}", path.replace('\n', "?"));
        sealed(format!(
            "{TIER_LINE}\nstore {store}\nuuid {uuid}\nhome {home}\n"
        ))
    }
}

/// The user to whom a file and its copy belong, of which one may be missing.
pub(super) fn owner_of(files: &dyn LocalFiles, [name, copy]: [&str; 2]) -> Result<Option<u32>> {
    let is_missing =
        |owner: &Result<_>| matches!(owner, Err(error) if error.kind() == ErrorKind::NotFound);
    let (first, second) = (files.owner(name), files.owner(copy));
    match (is_missing(&first), is_missing(&second)) {
        (true, _) => second,
        (false, true) => first,
        (false, false) if first? == second? => files.owner(name),
        (false, false) => {
            let shown = files.shown();
            let what = format!("{shown}: {name} and {copy} belong to different users");
            Err(Error::invalid(what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_parsed_and_damage_is_noticed() {
        let record = TiersRecord {
            segment_len: 64 << 20,
            home: TierPolicy::default(),
            tiers: vec![Tier {
                name: "slow".into(),
                uuid: [7; 16],
                rank: 3,
                place: "/mnt/a b/ü".into(),
                policy: TierPolicy {
                    max_age_s: 60,
                    is_off: true,
                    hours: Hours::parse("22-6").expect("hours"),
                    ..TierPolicy::default()
                },
            }],
        };
        let text = record.encode();
        assert_eq!(TiersRecord::parse(text.as_bytes()), Some(record));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert_eq!(TiersRecord::parse(&bytes), None, "byte {at}");
            assert_eq!(TiersRecord::parse(&text.as_bytes()[..at]), None);
        }
    }

    // Would catch: hours over midnight that end there, and a record of an earlier version that is
    // taken for damaged.
    #[test]
    fn hours_go_over_midnight() {
        let hours = Hours::parse("22-6").expect("hours");
        let found: Vec<u32> = (0..24).filter(|hour| hours.has(*hour)).collect();
        assert_eq!(found, [0, 1, 2, 3, 4, 5, 22, 23]);
        for text in ["22-6", "0-1", "23-0", "9-17", "any"] {
            assert_eq!(Hours::parse(text).map(Hours::word).as_deref(), Some(text));
        }
        assert_eq!(
            Hours::parse("0-24"),
            Some(Hours::parse("7-7").expect("all"))
        );
        assert_eq!(
            Hours::parse("0-24").map(Hours::word).as_deref(),
            Some("any")
        );
        for text in ["", "6", "25-1", "a-b", "-", "1-2-3"] {
            assert_eq!(Hours::parse(text), None, "{text}");
        }
        let policy = TierPolicy::parse("policy 1 2 3 4 true false").expect("a policy");
        assert_eq!(policy.hours, Hours::default());
    }

    #[test]
    fn names_lead_nowhere() {
        for name in ["", "home", "..", ".x", "-x", "a/b", "a b", "ü", "a\n"] {
            assert!(check_tier_name(name).is_err(), "{name}");
        }
        assert!(check_tier_name(&"a".repeat(65)).is_err());
        assert!(check_tier_name("slow-2.hdd_1").is_ok());
    }
}
