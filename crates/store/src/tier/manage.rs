//! Adds, shows, changes and removes tiers.

use super::bucket::leave;
use super::disk::attach;
use super::record::{
    HOME, TIERS_MAX, Tier, TierMark, TierPolicy, TiersRecord, check_tier_name, home_of,
};
use crate::disk::{Access, Disk, DiskSpace, LocalFiles};
use crate::far_objects::is_far;
use crate::layout;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weald_format::store::{STORE_TIERS, Uuid};
use weald_format::{Error, ErrorKind, Result, SegmentNo};

/// File that those lock who change what a store knows of its tiers.
const TIERS_LOCK: &str = "tiers.lock";

/// A tier to add.
#[derive(Debug, Clone)]
pub struct NewTier {
    /// Its name.
    pub name: String,
    /// Its directory, absolute; it is missing or empty.
    pub place: String,
    /// Its rank among the tiers.
    pub rank: u32,
    /// What moves by itself.
    pub policy: TierPolicy,
    /// Random.
    pub uuid: Uuid,
    /// Whether it may lie on the same file system as the home or another tier.
    pub may_share_disk: bool,
    /// Whether a directory that is a tier of this store already is taken over.
    pub is_again: bool,
}

/// A tier, or the home, and what lies there.
#[derive(Debug, Clone)]
pub struct TierState {
    /// The name.
    pub name: String,
    /// The rank; 0 for the home.
    pub rank: u32,
    /// The directory.
    pub place: String,
    /// What moves by itself.
    pub policy: TierPolicy,
    /// Why it is not here.
    pub why_away: Option<String>,
    /// Space of its disk.
    pub space: DiskSpace,
    /// Segments there, with their lengths in bytes.
    pub segments: Vec<(SegmentNo, u64)>,
}

impl TierState {
    /// Bytes of the segments there.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(|(_, len)| len).sum()
    }

    /// Whether no segment lies there.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}

/// Lengths of segments that get no more records, and so need not be asked for again.
pub type KnownLens = BTreeMap<SegmentNo, u64>;

/// Segments on one disk, with their lengths.
fn segments_of(disk: &dyn Disk, lens: &mut KnownLens) -> Result<Vec<(SegmentNo, u64)>> {
    let mut numbers: Vec<SegmentNo> = match disk.list(layout::SEGMENTS) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        names => names?
            .iter()
            .filter_map(|name| layout::segment_number(name))
            .collect(),
    };
    numbers.sort_unstable();
    let mut segments = Vec::with_capacity(numbers.len());
    let newest = numbers.last().copied();
    for number in numbers {
        if let Some(len) = lens.get(&number) {
            segments.push((number, *len));
            continue;
        }
        match disk.open(&layout::segment_file(number), Access::Read) {
            Ok(file) => {
                let len = file.len()?;
                segments.push((number, len));
                if Some(number) != newest {
                    lens.insert(number, len);
                }
            }
            // It moved meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(segments)
}

impl Store {
    /// The home and the tiers, in the order in which readers look for a segment, with what lies
    /// there. A segment that lies in two of them, because a move was interrupted, counts in the
    /// first.
    ///
    /// # Errors
    /// `Corrupt` if what the store knows of its tiers is damaged; `Io` of the home.
    /// # Cost
    /// A request for each tier in a bucket.
    pub fn tiers(&self) -> Result<Vec<TierState>> {
        let mut states = self.tiers_with(&mut KnownLens::new())?;
        for (state, tier) in states.iter_mut().zip(self.tier_disks()?) {
            let asked = tier.disk.map(|disk| disk.check_here());
            if let (None, Ok(Err(error))) = (&state.why_away, asked) {
                state.why_away = Some(error.to_string());
            }
        }
        Ok(states)
    }

    /// As [`Store::tiers`], with lengths that are known, and get those that were asked for.
    ///
    /// # Errors
    /// As [`Store::tiers`].
    pub(super) fn tiers_with(&self, lens: &mut KnownLens) -> Result<Vec<TierState>> {
        let home = self.home()?;
        let record = TiersRecord::read(&*home)?;
        let mut seen = BTreeSet::new();
        let mut states = Vec::new();
        let mut state = |name: &str, rank, place, policy, disk: std::result::Result<_, String>| {
            let looked = disk.and_then(|disk: Arc<dyn Disk>| {
                let segments = segments_of(&*disk, lens).map_err(|e| e.to_string())?;
                let space = disk.space().map_err(|e| e.to_string())?;
                Ok((segments, space))
            });
            let (why_away, (mut segments, space)) = match looked {
                Ok(found) => (None, found),
                Err(why) => (Some(why), (Vec::new(), DiskSpace { total: 0, free: 0 })),
            };
            segments.retain(|(number, _)| seen.insert(*number));
            states.push(TierState {
                name: String::from(name),
                rank,
                place,
                policy,
                why_away,
                space,
                segments,
            });
        };
        state(HOME, 0, home.shown(), record.home, Ok(home.clone()));
        for tier in &record.tiers {
            let disk = attach(&home, tier);
            state(&tier.name, tier.rank, tier.place.clone(), tier.policy, disk);
        }
        Ok(states)
    }

    /// Names of the home and the tiers, the fastest first.
    ///
    /// # Errors
    /// As [`Store::tiers`].
    pub fn tier_names(&self) -> Result<Vec<String>> {
        let record = TiersRecord::read(&*self.home()?)?;
        let tiers = record.tiers.into_iter().map(|tier| tier.name);
        Ok([HOME.to_owned()].into_iter().chain(tiers).collect())
    }

    /// Whether the store has tiers.
    pub fn has_tiers(&self) -> bool {
        let has = |home: Arc<dyn Disk>| match TiersRecord::read(&*home) {
            Ok(record) => !record.tiers.is_empty(),
            Err(_) => true,
        };
        self.disk.home().is_some_and(has)
    }

    /// Those of its tiers that are not here, with the reasons.
    ///
    /// # Errors
    /// As [`Store::tiers`].
    pub fn tiers_away(&self) -> Result<Vec<(String, String)>> {
        let disks = match self.disk.home() {
            Some(_) => self.tier_disks()?,
            None => Vec::new(),
        };
        // The superblock says that there are tiers, and the list is gone.
        let is_list_missing = disks.len() == 1 && self.superblock.incompat & STORE_TIERS != 0;
        let missing = is_list_missing.then(|| {
            let why = format!(
                "{}/{} is missing: 'weald tier add --again' makes the list again, with each of the \
                 tiers; 'weald tier set {} home' says that there are none",
                self.shown(),
                layout::TIERS,
                self.shown()
            );
            ("of an unknown name".to_owned(), why)
        });
        let away = disks.into_iter().filter_map(|tier| {
            let why = match tier.disk {
                Ok(disk) => disk.check_here().err()?.to_string(),
                Err(why) => why,
            };
            Some((tier.name, why))
        });
        Ok(missing.into_iter().chain(away).collect())
    }

    /// What the store knows of its tiers, as bytes, to notice changes: nothing without tiers.
    pub fn tier_settings(&self) -> Vec<u8> {
        let home = self.disk.home();
        let read = |home: Arc<dyn Disk>| home.read_file(layout::TIERS, 1 << 20).ok();
        home.and_then(read).unwrap_or_default()
    }

    /// Refuses to take for lost what may lie in a tier that is not here.
    ///
    /// # Errors
    /// `Busy` if one is not here; as [`Store::tiers`].
    pub(crate) fn refuse_tiers_away(&self) -> Result<()> {
        match self.tiers_away()?.first() {
            None => Ok(()),
            Some((name, why)) => {
                let shown = self.shown();
                let what = format!(
                    "tier {name} is not here: {why}: bring it back first, because what lies there \
                     would count as lost; 'weald tier remove --lost {shown} {name}' forgets it"
                );
                Err(Error::new(ErrorKind::Busy, what))
            }
        }
    }

    /// Changes what the store knows of its tiers. Two changes at once are one after the other.
    /// `is_made_again` says that a damaged list is replaced by an empty one.
    fn change_tiers<T>(
        &self,
        is_made_again: bool,
        change: impl FnOnce(&Arc<dyn Disk>, &mut TiersRecord) -> Result<T>,
    ) -> Result<T> {
        let home = self.home()?;
        let lock = match home.open(TIERS_LOCK, Access::Write) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                home.open(TIERS_LOCK, Access::CreatePrivate)?
            }
            other => other?,
        };
        if !lock.try_lock(0, true)? {
            let what = format!("{}: its tiers are being changed: try again", home.shown());
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let mut record = match TiersRecord::read(&*home) {
            // Each tier says itself to which store it belongs.
            Err(error) if is_made_again && error.kind() == ErrorKind::Corrupt => {
                TiersRecord::default()
            }
            other => other?,
        };
        let done = change(&home, &mut record)?;
        record.segment_len = self.superblock.segment_len;
        record
            .tiers
            .sort_by(|a, b| (a.rank, &a.name).cmp(&(b.rank, &b.name)));
        // To a program that knows no tiers, what lies there would be lost.
        let has_tiers = !record.tiers.is_empty();
        if has_tiers {
            self.set_feature(STORE_TIERS, true)?;
        }
        record.write(&*home)?;
        if !has_tiers {
            self.set_feature(STORE_TIERS, false)?;
        }
        Ok(done)
    }

    /// Adds a tier.
    ///
    /// # Errors
    /// `Invalid` for a name that no tier can have; `Busy` if the name is taken, or the directory
    /// is not empty, is a tier already, or lies on a disk that has one; `Io`, `Full`. Nothing is
    /// changed then, but for the directory that was made.
    pub fn add_tier(&self, new: &NewTier) -> Result<()> {
        check_tier_name(&new.name)?;
        if new.rank == 0 {
            return Err(Error::invalid(
                "rank 0 is that of the home: tiers begin with 1",
            ));
        }
        if new.place.contains('\n') {
            return Err(Error::invalid("the path of a tier has no line breaks"));
        }
        self.change_tiers(new.is_again, |home, record| {
            let busy = |what: String| Err(Error::new(ErrorKind::Busy, what));
            if record.tiers.len() >= TIERS_MAX {
                return Err(Error::limit(format!(
                    "a store has at most {TIERS_MAX} tiers"
                )));
            }
            if record.tiers.iter().any(|tier| tier.name == new.name) && !new.is_again {
                return busy(format!("{}: there is a tier of this name", new.name));
            }
            if is_far(&new.place) {
                return self.add_bucket(home, record, new);
            }
            let place = home.open_place(&new.place)?;
            let made = match place.list("") {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    place.make_dir("")?;
                    Vec::new()
                }
                names => names?,
            };
            let shown = place.shown();
            let mark = TierMark::read(&*place)?;
            let uuid = match mark {
                Some(mark) if mark.store != self.uuid() => {
                    return busy(is_of_another_store(&shown));
                }
                Some(mark) if new.is_again => mark.uuid,
                Some(_) => {
                    return busy(is_taken(&shown));
                }
                None if new.is_again => {
                    return Err(Error::not_found(format!("{shown}: is no tier")));
                }
                None => new.uuid,
            };
            let is_ours = |name: &String| matches!(name.as_str(), "lost+found" | layout::SEGMENTS);
            let is_empty =
                made.iter().all(is_ours) && segments_of(&*place, &mut KnownLens::new())?.is_empty();
            if mark_is_new(&*place)? && !is_empty {
                return busy(format!(
                    "{shown}: the directory is not empty: a tier needs a new one"
                ));
            }
            let disks = record.tiers.iter().filter(|tier| tier.name != new.name);
            let disks = disks.filter_map(|tier| {
                let disk = attach(home, tier).ok()?;
                Some((tier.name.as_str(), disk))
            });
            let device = |disk: &dyn Disk| disk.identity().map(|[device, _]| device);
            let of_new = device(&*place);
            if !new.may_share_disk && of_new.is_some() {
                let of_home = (device(&**home) == of_new).then(|| HOME.to_owned());
                let of_tier = disks
                    .filter(|(_, disk)| device(&**disk) == of_new)
                    .map(|(name, _)| name.to_owned());
                if let Some(other) = of_home.into_iter().chain(of_tier).next() {
                    return busy(format!(
                        "{shown}: lies on the same file system as {other}: a tier is a disk of its \
                         own, and --same-disk takes it anyway"
                    ));
                }
            }
            match place.make_dir(layout::SEGMENTS) {
                Err(error) if error.kind() != ErrorKind::Busy => return Err(error),
                _ => {}
            }
            let mark = TierMark {
                store: self.uuid(),
                uuid,
                home: home_of(&**home),
            };
            mark.write(&*place)?;
            record
                .tiers
                .retain(|tier| tier.uuid != uuid && tier.name != new.name);
            record.tiers.push(Tier {
                name: new.name.clone(),
                uuid,
                rank: new.rank,
                place: new.place.clone(),
                policy: new.policy,
            });
            Ok(())
        })
    }

    /// Changes the policy of the tier `name`, or of the home, and its rank.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Io`, `Full`.
    pub fn change_tier(
        &self,
        name: &str,
        rank: Option<u32>,
        change: &dyn Fn(&mut TierPolicy),
    ) -> Result<()> {
        self.change_tiers(false, |home, record| {
            let shown = home.shown();
            let policy = record.policy_of(name);
            change(policy.ok_or_else(|| no_tier(&shown, name))?);
            match (rank, record.tiers.iter_mut().find(|tier| tier.name == name)) {
                (Some(rank), Some(tier)) if rank > 0 => tier.rank = rank,
                (Some(_), _) => {
                    let what = "rank 0 is that of the home, and no tier has it";
                    return Err(Error::invalid(what));
                }
                (None, _) => {}
            }
            Ok(())
        })
    }

    /// Removes a tier without segments. With `loses`, also one that is not here: what lies only
    /// there is lost.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Busy` if segments lie there; `Lost` if it is not here.
    pub fn remove_tier(&self, name: &str, loses: bool) -> Result<()> {
        let shown = self.shown();
        let states = self.tiers()?;
        let state = states.iter().find(|state| state.name == name);
        let state = state.filter(|_| name != HOME);
        let state = state.ok_or_else(|| no_tier(&shown, name))?;
        match &state.why_away {
            Some(why) if !loses => {
                let what = format!(
                    "tier {name} is not here: {why}: bring it back, or let --lost forget it with \
                     all data that lies only there"
                );
                return Err(Error::lost(what));
            }
            None if !state.is_empty() => {
                let what = format!(
                    "tier {name}: {} segments with {} bytes lie there: 'weald tier drain {shown} \
                     {name}' moves them away",
                    state.segments.len(),
                    state.len()
                );
                return Err(Error::new(ErrorKind::Busy, what));
            }
            _ => {}
        }
        self.change_tiers(false, |home, record| {
            let at = record.tiers.iter().position(|tier| tier.name == name);
            let tier = record
                .tiers
                .remove(at.ok_or_else(|| no_tier(&shown, name))?);
            let place = attach(home, &tier);
            if let Ok(place) = place
                && (!loses || place.check_here().is_ok())
            {
                if !segments_of(&*place, &mut KnownLens::new())?.is_empty() {
                    let what = format!("tier {name}: a segment has moved there: try again");
                    return Err(Error::new(ErrorKind::Busy, what));
                }
                if is_far(&tier.place) {
                    return leave(home, &tier, &*place);
                }
                for file in [layout::MOVING, layout::TIER_MARK, layout::TIER_MARK_COPY] {
                    place.remove_if_there(file)?;
                }
            }
            Ok(())
        })
    }
}

/// Whether a directory is no tier yet.
fn mark_is_new(place: &dyn LocalFiles) -> Result<bool> {
    Ok(TierMark::read(place)?.is_none())
}

pub(super) fn is_of_another_store(shown: &str) -> String {
    format!("{shown}: is a tier of another store: take another place")
}

pub(super) fn is_taken(shown: &str) -> String {
    format!("{shown}: is a tier of this store, or of a copy: --again takes it over")
}

pub(super) fn no_tier(shown: &str, name: &str) -> Error {
    let name = name.escape_debug();
    Error::not_found(format!(
        "{name}: no such tier: 'weald tier ls {shown}' lists them"
    ))
}
