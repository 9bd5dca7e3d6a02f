//! One disk out of the store's own directory and its tiers.
//!
//! Segments are looked for in the home first, then in the tiers by rank; everything else lies in
//! the home alone. A tier that is not here, is not this store's, or belongs to somebody else than
//! the store is passed over: what lies only there is missing until it is back.

use super::bucket::BucketTier;
use super::record::{Tier, TierMark, TiersRecord, home_of, owner_of};
use crate::disk::{Access, Disk, DiskSpace, LocalFile, LocalFiles, Object};
use crate::far_objects::{FarPlace, is_far};
use crate::layout;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weald_format::store::Uuid;
use weald_format::{Error, ErrorKind, Result};

/// Time for which it counts what was found about the tiers.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// Bytes of the home that stay free, beside a segment, when new segments land there: for the
/// tables, the journal and sync logs.
const HOME_FREE: u64 = 64 << 20;

/// A disk of several.
#[derive(Debug)]
pub struct TieredDisk(Arc<Disks>);

/// The home and the tiers.
struct Disks {
    home: Arc<dyn Disk>,
    /// Time between two looks at tiers that are not here.
    look_time: Duration,
    known: Mutex<Known>,
    /// Held by the thread that looks at the tiers. A disk that answers nobody, such as one behind a
    /// network, keeps this thread, and those that need a tier, but no reader of the home.
    looking: Mutex<()>,
    /// Reads of each segment since they were taken.
    reads: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    /// Tiers with changed names, and whether a new segment is among them.
    unsynced: Mutex<BTreeMap<Uuid, bool>>,
}

impl fmt::Debug for Disks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Disks").field(&self.home).finish()
    }
}

/// What is known of the tiers.
#[derive(Default)]
struct Known {
    looked: Option<Instant>,
    segment_len: u64,
    is_home_off: bool,
    tiers: Arc<Vec<KnownTier>>,
    /// Why nothing is known.
    failure: Option<String>,
}

/// A tier, and its disk if it is here.
pub(super) struct KnownTier {
    pub tier: Tier,
    pub disk: std::result::Result<Arc<dyn Disk>, String>,
}

/// A segment whose reads are counted.
#[derive(Debug)]
struct Counted {
    disks: Arc<Disks>,
    name: String,
    file: RwLock<Arc<dyn LocalFile>>,
    reads: Arc<AtomicU64>,
    /// Whether it was opened in a tier. Freeing ranges may fail there: the space comes back with
    /// the segment. And an open file of a disk that has failed fails for ever, although the disk is
    /// back.
    is_of_tier: bool,
}

/// Opens the directory of a tier of the store in `home`, or says why it is none.
pub(super) fn attach(
    home: &Arc<dyn Disk>,
    tier: &Tier,
) -> std::result::Result<Arc<dyn Disk>, String> {
    if is_far(&tier.place) {
        let attached = BucketTier::attach(home, tier);
        return match attached {
            Ok(disk) => Ok(Arc::new(disk)),
            Err(error) => Err(error.to_string()),
        };
    }
    let place = home.open_place(&tier.place).map_err(|e| e.to_string())?;
    let shown = place.shown();
    let mark = match TierMark::read(&*place) {
        Ok(Some(mark)) => mark,
        Ok(None) => {
            return Err(format!(
                "{shown}: is no tier: its disk may not be mounted there"
            ));
        }
        Err(error) => return Err(error.to_string()),
    };
    if mark.uuid != tier.uuid {
        return Err(format!("{shown}: is another tier than the store knows"));
    }
    let (inode, path) = home_of(&**home);
    if mark.home.0 != inode && mark.home.1 != path {
        return Err(format!(
            "{shown}: belongs to the store {}, of which {path} may be a copy: 'weald tier add \
             --again' takes it over",
            mark.home.1
        ));
    }
    // A store of another user leads nowhere that this user does not own.
    let owners = (
        owner_of(&**home, [layout::TIERS, layout::TIERS_COPY]),
        owner_of(&*place, [layout::TIER_MARK, layout::TIER_MARK_COPY]),
    );
    match owners {
        (Ok(of_store), Ok(of_tier)) if of_store == of_tier => Ok(place),
        (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
        _ => Err(format!(
            "{shown}: belongs to another user than {path}/{}",
            layout::TIERS
        )),
    }
}

/// The name of a segment without its directory.
fn segment_name(name: &str) -> Option<&str> {
    name.strip_prefix(layout::SEGMENTS)?.strip_prefix('/')
}

impl TieredDisk {
    /// The store in `home` with the tiers that it knows.
    pub fn new(home: Arc<dyn Disk>) -> Self {
        Self::looking(home, LOOK_TIME)
    }

    fn looking(home: Arc<dyn Disk>, look_time: Duration) -> Self {
        Self(Arc::new(Disks {
            home,
            look_time,
            known: Mutex::default(),
            looking: Mutex::default(),
            reads: Mutex::default(),
            unsynced: Mutex::default(),
        }))
    }

    /// As [`TieredDisk::new`]; each miss looks at the tiers again.
    #[cfg(test)]
    pub fn impatient(home: Arc<dyn Disk>) -> Self {
        Self::looking(home, Duration::ZERO)
    }
}

impl Disks {
    /// The tiers as of the last look, or of now.
    fn tiers(&self, is_anew: bool) -> Arc<Vec<KnownTier>> {
        self.fresh(is_anew).unwrap_or_else(|| {
            let _looking = self.looking.lock();
            // Another thread may have looked meanwhile.
            self.fresh(is_anew).unwrap_or_else(|| self.look())
        })
    }

    /// The tiers as of the last look, or of now if nobody else is looking.
    fn tiers_soon(&self) -> Arc<Vec<KnownTier>> {
        self.fresh(true)
            .unwrap_or_else(|| match self.looking.try_lock() {
                Some(_looking) => self.look(),
                None => self.known.lock().tiers.clone(),
            })
    }

    /// What the last look has found, if it counts.
    fn fresh(&self, is_anew: bool) -> Option<Arc<Vec<KnownTier>>> {
        let known = self.known.lock();
        let looked = known.looked?;
        let is_fresh = !is_anew || looked.elapsed() < self.look_time;
        is_fresh.then(|| known.tiers.clone())
    }

    /// Looks at the tiers.
    fn look(&self) -> Arc<Vec<KnownTier>> {
        let record = match TiersRecord::read(&*self.home) {
            Ok(record) => record,
            Err(error) => {
                let mut known = self.known.lock();
                if known.failure.is_none() {
                    log::warn!("{error}");
                }
                known.failure = Some(error.to_string());
                known.looked = Some(Instant::now());
                return known.tiers.clone();
            }
        };
        let before = self.known.lock().tiers.clone();
        let was_here = |tier: &Tier| {
            let found = before.iter().find(|known| known.tier.uuid == tier.uuid);
            found.is_none_or(|known| known.disk.is_ok())
        };
        let attached = record.tiers.into_iter().map(|tier| {
            let disk = attach(&self.home, &tier);
            match &disk {
                Err(why) if was_here(&tier) => log::warn!("tier {}: {why}", tier.name),
                Ok(_) if !was_here(&tier) => log::info!("tier {}: is here again", tier.name),
                _ => {}
            }
            KnownTier { tier, disk }
        });
        let attached: Arc<Vec<KnownTier>> = Arc::new(attached.collect());
        *self.known.lock() = Known {
            looked: Some(Instant::now()),
            segment_len: record.segment_len,
            is_home_off: record.home.is_off || record.home.is_draining,
            tiers: attached.clone(),
            failure: None,
        };
        attached
    }

    /// Calls `open` with the home, then with each tier that is here, until one has the segment.
    fn find<T>(&self, open: &dyn Fn(&dyn Disk) -> Result<T>) -> Result<(T, bool)> {
        let missing = match open(&*self.home) {
            Err(error) if error.kind() == ErrorKind::NotFound => error,
            other => return other.map(|found| (found, false)),
        };
        for is_anew in [false, true] {
            let tiers = self.tiers(is_anew);
            let mut failed = None;
            for known in &*tiers {
                let Ok(disk) = &known.disk else { continue };
                match open(&**disk) {
                    Ok(found) => return Ok((found, true)),
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    // Its disk may have gone, and be back under the same path.
                    Err(error) => failed = Some((known.tier.name.clone(), error)),
                }
            }
            if is_anew && let Some((name, error)) = failed {
                return Err(Error::lost(format!("tier {name}: {error}")));
            }
            // Between the two looks it may have moved.
            match open(&*self.home) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => return other.map(|found| (found, false)),
            }
        }
        Err(missing)
    }

    fn counter(&self, segment: &str) -> Arc<AtomicU64> {
        let mut reads = self.reads.lock();
        match reads.get(segment) {
            Some(counter) => counter.clone(),
            None => reads.entry(segment.to_owned()).or_default().clone(),
        }
    }

    /// Where a new segment lands: in the home, or in the first tier with room if the home is full.
    fn landing(&self) -> Option<(Uuid, Arc<dyn Disk>)> {
        if self.tiers_soon().is_empty() {
            return None;
        }
        let (segment_len, is_home_off) = {
            let known = self.known.lock();
            (known.segment_len, known.is_home_off)
        };
        let has_room = |disk: &dyn Disk, beside: u64| {
            let space = disk.space();
            space.is_ok_and(|space| {
                let beside = beside.min(space.total / 8);
                space.free >= segment_len.saturating_add(beside)
            })
        };
        if !is_home_off && has_room(&*self.home, HOME_FREE) {
            return None;
        }
        let tiers = self.tiers(true);
        let mut here = tiers.iter().filter_map(|known| {
            let is_cold = is_far(&known.tier.place);
            let takes = !is_cold && !known.tier.policy.is_off && !known.tier.policy.is_draining;
            let disk = known.disk.as_ref().ok()?;
            let has_room = takes && has_room(&**disk, known.tier.policy.reserve);
            has_room.then(|| (known.tier.uuid, disk.clone()))
        });
        here.next()
    }
}

impl LocalFiles for TieredDisk {
    fn open(&self, name: &str, access: Access) -> Result<Box<dyn LocalFile>> {
        let Some(segment) = segment_name(name) else {
            return self.0.home.open(name, access);
        };
        if matches!(access, Access::Create | Access::CreatePrivate) {
            return match self.0.landing() {
                Some((uuid, tier)) => {
                    self.0.unsynced.lock().insert(uuid, true);
                    tier.open(name, access)
                }
                None => self.0.home.open(name, access),
            };
        }
        let (file, is_of_tier) = self.0.find(&|disk| disk.open(name, access))?;
        if self.0.tiers(false).is_empty() {
            return Ok(file);
        }
        let reads = self.0.counter(segment);
        Ok(Box::new(Counted {
            disks: self.0.clone(),
            name: name.to_owned(),
            file: RwLock::new(Arc::from(file)),
            reads,
            is_of_tier,
        }))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let names = self.0.home.list(dir)?;
        if dir != layout::SEGMENTS {
            return Ok(names);
        }
        let tiers = self.0.tiers(true);
        if tiers.is_empty() {
            return Ok(names);
        }
        let mut all: BTreeSet<String> = names.into_iter().collect();
        for known in &*tiers {
            let Ok(disk) = &known.disk else { continue };
            match disk.list(dir) {
                Ok(names) => all.extend(names),
                Err(error) => log::warn!("tier {}: {error}", known.tier.name),
            }
        }
        Ok(all.into_iter().collect())
    }

    fn make_dir(&self, dir: &str) -> Result<()> {
        self.0.home.make_dir(dir)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.0.home.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<()> {
        if segment_name(name).is_none() {
            return self.0.home.remove(name);
        }
        let mut done = self.0.home.remove(name);
        for known in &*self.0.tiers(false) {
            let Ok(disk) = &known.disk else { continue };
            match disk.remove(name) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Ok(()) => {
                    self.0.unsynced.lock().entry(known.tier.uuid).or_default();
                    if done.as_ref().is_err_and(is_not_found) {
                        done = Ok(());
                    }
                }
                // The disk of a tier that fails costs the store nothing: the file stays there.
                Err(error) => {
                    done = Err(Error::lost(format!("tier {}: {error}", known.tier.name)));
                }
            }
        }
        match done {
            Err(error) if is_not_found(&error) => match self.why_missing(name) {
                Some(why) => Err(Error::lost(why)),
                None => Err(error),
            },
            done => done,
        }
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        self.0.home.sync_dir(dir)?;
        if dir != layout::SEGMENTS {
            return Ok(());
        }
        let unsynced = std::mem::take(&mut *self.0.unsynced.lock());
        for known in &*self.0.tiers(false) {
            let (Ok(disk), Some(has_new)) = (&known.disk, unsynced.get(&known.tier.uuid)) else {
                continue;
            };
            match disk.sync_dir(dir) {
                // A file that is there again belongs to no row, and is removed later.
                Err(error) if !has_new => log::warn!("tier {}: {error}", known.tier.name),
                done => done?,
            }
        }
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        self.0.home.sync_all()?;
        for known in &*self.0.tiers(false) {
            if let Ok(disk) = &known.disk {
                disk.sync_all()?;
            }
        }
        Ok(())
    }

    fn shown(&self) -> String {
        self.0.home.shown()
    }

    fn identity(&self) -> Option<[u64; 2]> {
        self.0.home.identity()
    }

    fn owner(&self, name: &str) -> Result<Option<u32>> {
        self.0.home.owner(name)
    }

    fn holders_of_lock(&self, name: &str, offset: u64) -> Vec<u32> {
        self.0.home.holders_of_lock(name, offset)
    }

    fn allocated_len(&self, name: &str) -> Result<Option<u64>> {
        if segment_name(name).is_none() || self.0.tiers(false).is_empty() {
            return self.0.home.allocated_len(name);
        }
        // A disk answers 0 for a file that it does not have.
        let found = self.0.find(&|disk| match disk.open(name, Access::Read) {
            Ok(_) => disk.allocated_len(name),
            Err(error) => Err(error),
        });
        match found {
            Err(error) if is_not_found(&error) => Ok(Some(0)),
            Err(error) if error.is_unreadable() => Ok(Some(0)),
            other => other.map(|(len, _)| len),
        }
    }

    fn space(&self) -> Result<DiskSpace> {
        self.0.home.space()
    }

    fn capacity(&self) -> Result<DiskSpace> {
        let mut sum = self.0.home.space()?;
        let tiers = self.0.tiers_soon();
        // A home without space for tables takes nothing, wherever data could lie.
        let is_full = sum.free < HOME_FREE.min(sum.total / 8);
        let device = |disk: &dyn Disk| disk.identity().map(|[device, _]| device);
        let mut devices = vec![device(&*self.0.home)];
        for known in &*tiers {
            let Ok(disk) = &known.disk else { continue };
            let of_tier = device(&**disk);
            let is_counted = of_tier.is_some() && devices.contains(&of_tier);
            // No new data lands in a bucket.
            if is_counted || is_far(&known.tier.place) {
                continue;
            }
            // As of now: changes are admitted by it.
            let Ok(space) = disk.space() else { continue };
            devices.push(of_tier);
            sum.total = sum.total.saturating_add(space.total);
            let takes = !known.tier.policy.is_off && !known.tier.policy.is_draining;
            if takes && !is_full {
                let free = space.free.saturating_sub(known.tier.policy.reserve);
                sum.free = sum.free.saturating_add(free);
            }
        }
        Ok(sum)
    }

    fn changed_at(&self, name: &str) -> Option<u64> {
        if segment_name(name).is_none() || self.0.tiers(false).is_empty() {
            return self.0.home.changed_at(name);
        }
        let found = self
            .0
            .find(&|disk| disk.open(name, Access::Read).map(|_| disk.changed_at(name)));
        found.ok()?.0
    }

    fn open_place(&self, place: &str) -> Result<Arc<dyn Disk>> {
        self.0.home.open_place(place)
    }

    fn open_far(&self, place: &str) -> Result<Arc<FarPlace>> {
        self.0.home.open_far(place)
    }

    fn is_far(&self, name: &str) -> bool {
        let tiers = self.0.tiers(false);
        if !tiers.iter().any(|known| is_far(&known.tier.place)) {
            return false;
        }
        let found = self
            .0
            .find(&|disk| disk.open(name, Access::Read).map(|_| disk.is_far(name)));
        found.is_ok_and(|(is_far, _)| is_far)
    }

    fn sweep(&self, is_all: bool) -> Result<()> {
        let mut done = Ok(());
        for known in &*self.0.tiers(false) {
            let Ok(disk) = &known.disk else { continue };
            if let Err(error) = disk.sweep(is_all) {
                done = Err(Error::lost(format!("tier {}: {error}", known.tier.name)));
            }
        }
        done
    }

    fn home(&self) -> Option<Arc<dyn Disk>> {
        Some(self.0.home.clone())
    }

    fn is_at_home(&self, name: &str) -> bool {
        let opened = self.0.home.open(name, Access::Read);
        // Something else than a file is at home, too.
        !opened.is_err_and(|error| is_not_found(&error))
    }

    fn why_missing(&self, name: &str) -> Option<String> {
        segment_name(name)?;
        let tiers = self.0.tiers(false);
        let failure = self.0.known.lock().failure.clone();
        let whys = tiers.iter().filter_map(|known| {
            let why = known.disk.as_ref().err()?;
            Some(format!("tier {} is not here: {why}", known.tier.name))
        });
        let whys: Vec<String> = whys.chain(failure).collect();
        (!whys.is_empty()).then(|| whys.join("; "))
    }

    fn open_unnoted(&self, name: &str) -> Result<Box<dyn LocalFile>> {
        if segment_name(name).is_none() {
            return self.0.home.open(name, Access::Read);
        }
        let (file, _) = self.0.find(&|disk| disk.open_unnoted(name))?;
        Ok(file)
    }

    fn take_reads(&self) -> BTreeMap<String, u64> {
        let mut reads = self.0.reads.lock();
        let taken = reads.iter().filter_map(|(name, count)| {
            let count = count.swap(0, Ordering::Relaxed);
            (count > 0).then(|| (name.clone(), count))
        });
        let taken = taken.collect();
        // What no reader has open any more.
        reads.retain(|_, count| Arc::strong_count(count) > 1);
        taken
    }
}

fn is_not_found(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

impl Counted {
    fn file(&self) -> Arc<dyn LocalFile> {
        self.file.read().clone()
    }

    /// Opens the segment anew, wherever it is now; nothing if it is nowhere.
    fn reopen(&self) -> Option<Arc<dyn LocalFile>> {
        let open = &|disk: &dyn Disk| disk.open(&self.name, Access::Read);
        let (file, _) = self.disks.find(open).ok()?;
        let file: Arc<dyn LocalFile> = Arc::from(file);
        *self.file.write() = file.clone();
        Some(file)
    }
}

impl Object for Counted {
    fn len(&self) -> Result<u64> {
        self.file().len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        match self.file().read_at(buf, offset) {
            Err(error) if self.is_of_tier && error.kind() == ErrorKind::Io => match self.reopen() {
                Some(file) => file.read_at(buf, offset),
                None => Err(error),
            },
            done => done,
        }
    }
}

impl LocalFile for Counted {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file().write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file().set_len(len)
    }

    fn sync(&self) -> Result<()> {
        self.file().sync()
    }

    fn read_anew(&self) -> Result<()> {
        self.file().read_anew()
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        match self.file().punch(offset, len) {
            Err(error) if self.is_of_tier => {
                log::debug!("{error}");
                Ok(())
            }
            done => done,
        }
    }

    fn try_lock(&self, offset: u64, is_exclusive: bool) -> Result<bool> {
        self.file().try_lock(offset, is_exclusive)
    }

    fn confirm(&self) -> Result<()> {
        self.file().confirm()
    }
}
