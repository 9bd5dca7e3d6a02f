//! A store, its replica and a standby on three machines, with a network between them. The standby
//! is promoted at any moment, also in the middle of a sending, and the old store comes back as its
//! standby. Each machine loses power at any moment.

use super::replica::{IN_BUCKET, Interrupted, NAME, Pair, told};
use super::{Model, Outcome, StoreRun, seeds};
use crate::Store;
use crate::disk::Disk;
use crate::engine::{Engine, sum_of_rows};
use crate::faults::{Bug, Faults};
use crate::image::StoredImage;
use crate::replica::{
    FollowOptions, Place, PromoteOptions, Promoted, ReplicaSettings, SendOptions, StandbyOptions,
};
use crate::role::Role;
use crate::simulated_disk::{Fault, SimDisk};
use crate::store::open_engine;
use parking_lot::Mutex;
use std::sync::Arc;
use weald_format::{CommitNo, ErrorKind, Result};
use weald_io::ReadAt;

type Done<T> = std::result::Result<T, String>;

/// A store that another one has replaced, and what it has.
struct Old {
    disk: SimDisk,
    model: Model,
    /// Whether it has changes that nobody else has.
    has_own: bool,
}

struct Trio {
    pair: Pair,
    standby: Option<SimDisk>,
    old: Option<Old>,
    bug: Option<Bug>,
    epoch_count: u8,
    promotions: usize,
}

fn store_on(disk: &SimDisk) -> Result<Store> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    Store::open(disk)
}

impl Trio {
    fn begin(seed: u64, bug: Option<Bug>) -> Done<Self> {
        Ok(Self {
            pair: Pair::begin(seed, bug)?,
            standby: None,
            old: None,
            bug,
            epoch_count: 0,
            promotions: 0,
        })
    }

    fn follow_options(&self) -> FollowOptions {
        FollowOptions {
            writer_name: "the standby".to_owned(),
            accepts_damage: false,
            faults: Faults::of(self.bug),
        }
    }

    fn set_trouble(&mut self, disk: &SimDisk) {
        let random = &mut self.pair.random;
        self.pair.network.state.lock().fails_one_in = [0, 0, 8, 20][random.below(4) as usize];
        let fault = [Fault::PowerCut, Fault::Io, Fault::NoSpace][random.below(3) as usize];
        if random.is_one_in(2) {
            disk.fail_after(random.below(120), fault);
        }
    }

    fn end_trouble(&self, disk: &SimDisk) -> bool {
        let mut state = self.pair.network.state.lock();
        let had_trouble = state.fails_one_in > 0 || disk.fault_count() > 0 || disk.is_off();
        state.fails_one_in = 0;
        drop(state);
        disk.cancel_fault();
        had_trouble
    }

    /// Makes the standby, if there is none and something was sent.
    fn make_standby(&mut self) -> Outcome {
        if self.standby.is_some() || self.old.is_some() || self.pair.acked.is_empty() {
            return Ok(());
        }
        let disk = SimDisk::new(self.pair.random.next());
        let of = ("the place", ReplicaSettings::default());
        let place = &self.pair.network;
        told(
            "standby",
            Store::create_standby(place, Arc::new(disk.clone()), of),
        )?;
        self.standby = Some(disk.reboot());
        Ok(())
    }

    /// Follows, with trouble, and then without.
    fn follow(&mut self) -> Outcome {
        let Some(disk) = self.standby.clone() else {
            return Ok(());
        };
        let reader = self.reader(&disk);
        self.set_trouble(&disk);
        let done = store_on(&disk)
            .and_then(|store| store.follow(&self.pair.network, &self.follow_options()));
        let had_trouble = self.end_trouble(&disk);
        if let Some((image, name, bytes)) = reader.filter(|_| !had_trouble && done.is_ok()) {
            let mut found = vec![0; image.len() as usize];
            told(
                &format!("reader of {name}"),
                image.read_exact_at(&mut found, 0),
            )?;
            if found != bytes {
                return Err(format!("reader of {name}: other bytes"));
            }
        }
        // What the reader needed goes when it has ended.
        if done.is_ok() && !disk.is_off() {
            let again = store_on(&disk)
                .and_then(|store| store.follow(&self.pair.network, &self.follow_options()));
            told("follow without a reader", again)?;
        }
        let disk = if disk.is_off() || self.pair.random.is_one_in(3) {
            disk.reboot()
        } else {
            disk.restart()
        };
        self.standby = Some(disk.clone());
        match done {
            Err(_) if had_trouble => {
                if self.pair.random.is_one_in(2) {
                    return Ok(());
                }
                let again = store_on(&disk)
                    .and_then(|store| store.follow(&self.pair.network, &self.follow_options()));
                told("follow again", again)?;
            }
            Err(error) => return Err(format!("follow: {}", error.with_causes())),
            Ok(_) => {}
        }
        self.compare_standby()
    }

    /// A reader of an image of the standby.
    fn reader(&self, disk: &SimDisk) -> Option<(StoredImage, String, Vec<u8>)> {
        let store = store_on(disk).ok()?;
        store.standby_status().ok()??.commit?;
        let name = store.names().ok()?.into_iter().next()?;
        let image = StoredImage::open(store, &name).ok()?;
        let mut bytes = vec![0; image.len() as usize];
        image.read_exact_at(&mut bytes, 0).ok()?;
        Some((image, name, bytes))
    }

    /// The standby must be what the store was at one of its commits, and nothing may be lost.
    fn compare_standby(&self) -> Outcome {
        let Some(disk) = &self.standby else {
            return Ok(());
        };
        let store = told("standby", store_on(disk))?;
        let status = told("status", store.standby_status())?;
        let Some((commit, _)) = status.and_then(|status| status.commit) else {
            return Err("the standby is between two states".to_owned());
        };
        let last = self.pair.acked.iter().max().copied().unwrap_or_default();
        if commit < last && self.old.is_none() {
            return Err(format!(
                "the standby has commit {commit}, {last} was acknowledged"
            ));
        }
        self.compare(&store, commit)?;
        // As a mount sees it: with what a writer would complete in memory.
        let reading = store.for_reading();
        let writer = told("read", reading.write(self.pair.run.options()))?;
        StoreRun::check(&writer)?;
        drop(writer);
        // What it read holds the lock, which would refuse a writer, too.
        drop(reading);
        match store.write(self.pair.run.options()) {
            Ok(_) => return Err("a standby was opened for writing".to_owned()),
            Err(error) if error.kind() == ErrorKind::Busy => {
                return Err(format!("a standby is locked: {error}"));
            }
            Err(_) => {}
        }
        self.compare_sums(&store)
    }

    fn compare(&self, store: &Store, commit: CommitNo) -> Outcome {
        let found = self.pair.run.verify(store);
        let found = found.map_err(|what| format!("commit {commit}: {what}"))?;
        if self.pair.wanted(commit).contains(&&found) {
            return Ok(());
        }
        let names: Vec<&String> = found.keys().collect();
        Err(format!("commit {commit}: other images: {names:?}"))
    }

    /// The sum that the tables keep must be that of their rows.
    fn compare_sums(&self, store: &Store) -> Outcome {
        let engine = told("tables", open_engine(&*store.disk, store.uuid(), false))?;
        let (kept, found) = (engine.row_sum(), sum_of_rows(&engine));
        if told("sum", kept)? == told("rows", found)? {
            Ok(())
        } else {
            Err("the standby has other rows than its sum says".to_owned())
        }
    }

    fn promote_options(&mut self) -> PromoteOptions {
        self.epoch_count += 1;
        PromoteOptions {
            follow: FollowOptions {
                accepts_damage: true,
                ..self.follow_options()
            },
            name: NAME.to_owned(),
            id: [self.epoch_count; 16],
            text: format!("store {}", self.epoch_count),
        }
    }

    /// Promotes the standby, beside a sending of the store that it replaces, with trouble.
    fn promote(&mut self) -> Outcome {
        let Some(mut disk) = self.standby.take() else {
            return Ok(());
        };
        let options = self.promote_options();
        let sends = self.pair.options(false);
        let primary = self.pair.run.disk.clone();
        self.set_trouble(&disk);
        let left = self.pair.random.below(12);
        let (promoted, sent) = if self.pair.random.is_one_in(2) {
            self.promote_within_sending((&disk, &primary), (&options, &sends), left)
        } else {
            self.send_within_promotion((&disk, &primary), (&options, &sends), left)
        };
        let had_trouble = self.end_trouble(&disk);
        if let Some(Ok(sent)) = sent {
            self.pair.acked.push(sent.commit);
        }
        // The rows of a commit that was not acknowledged may be there.
        if let Ok(writer) = self.pair.run.open() {
            self.pair.note(&writer);
        }
        disk = if disk.is_off() {
            disk.reboot()
        } else {
            disk.restart()
        };
        let promoted = match promoted {
            Some(Ok(promoted)) => promoted,
            Some(Err(error)) if !had_trouble => {
                return Err(format!("promote: {}", error.with_causes()));
            }
            _ => {
                let store = told("standby", store_on(&disk))?;
                if told("role", store.role())? == Role::Primary {
                    // Only the answer was lost.
                    let status = told("status", store.replica_status(NAME))?;
                    let (commit, time) = status.sent.unwrap_or_default();
                    let followed = crate::replica::Followed {
                        commit,
                        time,
                        ..Default::default()
                    };
                    Promoted {
                        followed,
                        epoch: None,
                    }
                } else {
                    let options = self.promote_options();
                    told("promote again", store.promote(&self.pair.network, &options))?
                }
            }
        };
        if !promoted.followed.damage.is_empty() {
            return Err(format!("promoted: {promoted:?}"));
        }
        self.take_over(disk, promoted.followed.commit)
    }

    fn promote_within_sending(
        &self,
        (disk, primary): (&SimDisk, &SimDisk),
        (options, sends): (&PromoteOptions, &SendOptions),
        left: u64,
    ) -> (
        Option<Result<Promoted>>,
        Option<Result<crate::replica::Sent>>,
    ) {
        let network = &self.pair.network;
        let mut promoted = None;
        let then = || {
            let done = store_on(disk);
            promoted = Some(done.and_then(|store| store.promote(network, options)));
        };
        let place = Interrupted {
            network,
            left: Mutex::new(left),
            then: Mutex::new(Some(Box::new(then))),
        };
        let sent = store_on(primary).and_then(|store| store.send_replica(NAME, &place, sends));
        drop(place);
        let promoted = promoted
            .unwrap_or_else(|| store_on(disk).and_then(|store| store.promote(network, options)));
        (Some(promoted), Some(sent))
    }

    fn send_within_promotion(
        &self,
        (disk, primary): (&SimDisk, &SimDisk),
        (options, sends): (&PromoteOptions, &SendOptions),
        left: u64,
    ) -> (
        Option<Result<Promoted>>,
        Option<Result<crate::replica::Sent>>,
    ) {
        let network = &self.pair.network;
        let mut sent = None;
        let then = || {
            let done = store_on(primary);
            sent = Some(done.and_then(|s| s.send_replica(NAME, network, sends)));
        };
        let place = Interrupted {
            network,
            left: Mutex::new(left),
            then: Mutex::new(Some(Box::new(then))),
        };
        let promoted = store_on(disk).and_then(|store| store.promote(&place, options));
        drop(place);
        (Some(promoted), sent)
    }

    /// The standby on `disk` is the store from now on.
    fn take_over(&mut self, disk: SimDisk, commit: CommitNo) -> Outcome {
        let last = self.pair.acked.iter().max().copied().unwrap_or_default();
        if commit < last {
            return Err(format!(
                "promoted with commit {commit}, {last} was acknowledged"
            ));
        }
        let store = told("promoted", store_on(&disk))?;
        self.compare(&store, commit)?;
        self.promotions += 1;
        self.old = Some(Old {
            disk: std::mem::replace(&mut self.pair.run.disk, disk),
            model: std::mem::take(&mut self.pair.run.model),
            has_own: false,
        });
        let writer = told("promoted", self.pair.run.open())?;
        let found = self.pair.run.verify(writer.store())?;
        if !self.pair.wanted(commit).contains(&&found) {
            return Err("a promoted store has other images".to_owned());
        }
        StoreRun::check(&writer)?;
        // What the old store did after that is another history.
        self.pair.history.retain(|(of, _)| *of <= commit);
        self.pair.run.model = found;
        self.pair.note(&writer);
        drop(writer);
        self.old_goes_on()
    }

    /// The old store may change until it learns what happened, and sends nothing.
    fn old_goes_on(&mut self) -> Outcome {
        let Some(mut old) = self.old.take() else {
            return Ok(());
        };
        if self.pair.random.is_one_in(2) {
            old.disk = old.disk.reboot();
        }
        let new_disk = std::mem::replace(&mut self.pair.run.disk, old.disk.clone());
        let new_model = std::mem::replace(&mut self.pair.run.model, old.model.clone());
        for _ in 0..self.pair.random.below(3) {
            let operation = self.pair.run.choose();
            let Ok(opened) = self.pair.run.open() else {
                break;
            };
            let before = opened.commit_no();
            let mut writer = Some(opened);
            if self.pair.run.perform(&mut writer, &operation).is_err() {
                break;
            }
            StoreRun::apply(&mut self.pair.run.model, &operation);
            old.has_own |= writer.is_some_and(|writer| writer.commit_no() > before);
        }
        old.disk = std::mem::replace(&mut self.pair.run.disk, new_disk);
        old.model = std::mem::replace(&mut self.pair.run.model, new_model);
        let place = &self.pair.network;
        for _ in 0..2 {
            let one_in = [0, 5][self.pair.random.below(2) as usize];
            place.state.lock().fails_one_in = one_in;
            let store = told("old store", store_on(&old.disk))?;
            let sent = store.send_replica(NAME, place, &self.pair.options(false));
            place.state.lock().fails_one_in = 0;
            match sent {
                // It had sent that before.
                Ok(sent) => return Err(format!("a store that was replaced has sent {sent:?}")),
                Err(_) if one_in > 0 => continue,
                Err(_) => {}
            }
            if !matches!(told("role", store.role())?, Role::Replaced(_)) {
                return Err("a store that was replaced does not know it".to_owned());
            }
            if store.write(self.pair.run.options()).is_ok() {
                return Err("a store that was replaced was opened for writing".to_owned());
            }
        }
        self.old = Some(old);
        Ok(())
    }

    /// The old store comes back as a standby.
    fn fail_back(&mut self) -> Outcome {
        let Some(old) = self.old.take() else {
            return Ok(());
        };
        let mut disk = old.disk;
        let mut options = StandbyOptions {
            writer_name: "the old store".to_owned(),
            settings: ReplicaSettings::default(),
            discards: false,
            is_clone: false,
            faults: Faults::of(self.bug),
        };
        let place: &dyn Place = &self.pair.network;
        let store = told("old store", store_on(&disk))?;
        match store.become_standby(place, "the place", &options) {
            Ok(unsent) if unsent.is_empty() && old.has_own => {
                return Err("changes of the old store are not told".to_owned());
            }
            Ok(unsent) if unsent.is_empty() => {}
            Ok(_) if told("role", store.role())? == Role::Standby => {
                return Err("the old store was made a standby".to_owned());
            }
            Ok(_) => {}
            // What it has sent cannot be compared with any more.
            Err(error) if error.kind() == weald_format::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("unsent: {}", error.with_causes())),
        }
        options.discards = true;
        self.set_trouble(&disk);
        let done = store_on(&disk)
            .and_then(|store| store.become_standby(&self.pair.network, "the place", &options));
        let had_trouble = self.end_trouble(&disk);
        disk = if disk.is_off() {
            disk.reboot()
        } else {
            disk.restart()
        };
        match done {
            Ok(_) => {}
            Err(_) if had_trouble => {
                let store = told("old store", store_on(&disk))?;
                let again = store.become_standby(&self.pair.network, "the place", &options);
                told("fail back again", again)?;
            }
            Err(error) => return Err(format!("fail back: {}", error.with_causes())),
        }
        self.standby = Some(disk);
        self.follow()
    }

    /// Everything is sent and followed, and both are equal.
    fn end(&mut self) -> Outcome {
        self.make_standby()?;
        if self.old.is_some() {
            self.fail_back()?;
        }
        let late = std::mem::take(&mut self.pair.network.state.lock().late);
        for (name, bytes) in late {
            told("late", self.pair.network.place.put(&name, &bytes))?;
        }
        let Some(disk) = self.standby.clone() else {
            return Ok(());
        };
        let store = told("store", self.pair.store())?;
        let options = self.pair.options(false);
        let sent = store.send_replica(NAME, &self.pair.network, &options);
        let sent = told("last sending", sent)?;
        self.pair.acked.push(sent.commit);
        let standby = told("standby", store_on(&disk))?;
        let followed = standby.follow(&self.pair.network, &self.follow_options());
        let followed = told("last following", followed)?;
        if followed.commit != sent.commit || !followed.damage.is_empty() {
            return Err(format!("sent {sent:?}, followed {followed:?}"));
        }
        self.compare_standby()?;
        let of = |store: &Store| -> Result<_> {
            open_engine(&*store.disk, store.uuid(), false)?.row_sum()
        };
        let sums = (told("sum", of(&store))?, told("sum", of(&standby))?);
        if sums.0 != sums.1 {
            return Err("the standby has other rows than the store".to_owned());
        }
        let verified = self.pair.verified()?;
        if verified.findings.is_empty() {
            Ok(())
        } else {
            Err(format!("verified: {verified:?}"))
        }
    }
}

/// One run. Returns the number of promotions.
fn follow_and_promote(seed: u64, bug: Option<Bug>) -> Done<usize> {
    let mut trio = Trio::begin(seed, bug)?;
    let mut writer = None;
    for _ in 0..6 + trio.pair.random.below(12) {
        trio.pair.change(&mut writer)?;
        if trio.pair.random.is_one_in(2) {
            trio.pair.send(&mut writer)?;
        }
        if trio.pair.random.is_one_in(8) {
            trio.pair.prune()?;
        }
        match trio.pair.random.below(6) {
            0 => trio.make_standby()?,
            1..=2 => trio.follow()?,
            3 => {
                writer = None;
                trio.promote()?;
            }
            4 => trio.fail_back()?,
            _ => {}
        }
    }
    drop(writer);
    trio.pair.reboot_place();
    trio.end()?;
    Ok(trio.promotions)
}

// Would catch: an acknowledged state that a promoted standby lacks, two stores that both go on, an
// item that is applied to other rows, and a returning store that keeps rows or bytes of its own.
#[test]
fn a_standby_has_what_was_acknowledged_and_one_store_goes_on() {
    let mut promotions = 0;
    for seed in seeds(0..600) {
        let done = follow_and_promote(seed, None);
        promotions += done.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    println!("{promotions} promotions");
    assert!(promotions > 150, "{promotions}");
}

// Would catch the same with a replica in a bucket, whose lists are late: a store that goes on after
// another took over.
#[test]
fn of_two_stores_with_a_replica_in_a_bucket_one_goes_on() {
    let mut promotions = 0;
    for seed in seeds(0..500) {
        let done = follow_and_promote(IN_BUCKET + seed, None);
        promotions += done.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    println!("{promotions} promotions");
    assert!(promotions > 150, "{promotions}");
    // Each with the first seed that finds it, from which on is searched.
    for (bug, first) in [
        (Bug::LogReplaced, 9451),
        (Bug::RefusedIsDone, 9451),
        (Bug::ListTrusted, 0),
        (Bug::EpochNotReadAgain, 69),
        (Bug::EpochPutLate, 77),
    ] {
        let mut seeds = first..first + 5000;
        let found = seeds.find(|seed| follow_and_promote(IN_BUCKET + seed, Some(bug)).is_err());
        let seed = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: found by seed {seed}");
    }
}

// Would catch a simulation that finds no bug.
#[test]
fn planted_bugs_of_standbys_are_found() {
    for bug in [
        Bug::EpochNotReadAgain,
        Bug::EpochPutLate,
        Bug::FollowsRowsFirst,
        Bug::OwnBlockKept,
        Bug::RowsBeforeIgnored,
    ] {
        let found = (0..5000).find(|&seed| follow_and_promote(seed, Some(bug)).is_err());
        let seed = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: found by seed {seed}");
    }
}
