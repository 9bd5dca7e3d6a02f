//! A store and its replica on two machines, with a network between them. Either machine loses
//! power at any moment; the network loses, delays and doubles what is put, and loses answers.

use super::bucket::SimBucket;
use super::network::NetworkState;
use super::{Model, Operation, Outcome, Random, StoreRun, seeds};
use crate::faults::{Bug, Faults};
use crate::replica::{
    AsOf, BucketPlace, DirPlace, Place, ReplicaSettings, RestoredStore, SendOptions, Sent,
    Verified, restore_store,
};
use crate::simulated_disk::{Fault, SimDisk};
use crate::{Store, StoreWriter};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::{CommitNo, Error, Result};

pub(super) const NAME: &str = "copy";

/// Seeds from this one on have the replica in a bucket.
pub(super) const IN_BUCKET: u64 = 1 << 32;

/// A place behind a network.
#[derive(Debug)]
pub(super) struct Network {
    pub place: Box<dyn Place>,
    pub state: Arc<Mutex<NetworkState>>,
    /// Whether the place has the troubles of a network itself.
    is_bucket: bool,
}

fn cut() -> Error {
    Error::io("network", std::io::ErrorKind::ConnectionReset.into())
}

impl Network {
    /// What happens to a call: `None` if nothing does.
    fn trouble(&self) -> Option<u64> {
        if self.is_bucket {
            return None;
        }
        let mut state = self.state.lock();
        let arrived = match state.late.len() {
            0 => None,
            len if state.random.is_one_in(3) => {
                let index = state.random.below(len as u64) as usize;
                Some(state.late.remove(index))
            }
            _ => None,
        };
        let one_in = state.fails_one_in;
        let trouble = (one_in > 0 && state.random.is_one_in(one_in)).then(|| state.random.below(4));
        drop(state);
        if let Some((name, bytes)) = arrived {
            // Nobody hears what became of it.
            let _ = self.place.put(&name, &bytes);
        }
        trouble
    }
}

impl Place for Network {
    fn shown(&self) -> String {
        "network".to_owned()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        match self.trouble() {
            Some(0) => Err(cut()),
            Some(1) => self.place.put(name, bytes).and(Err(cut())),
            Some(2) => {
                let mut state = self.state.lock();
                state.late.push((name.to_owned(), bytes.to_owned()));
                Err(cut())
            }
            Some(_) => {
                let mut state = self.state.lock();
                state.late.push((name.to_owned(), bytes.to_owned()));
                drop(state);
                self.place.put(name, bytes)
            }
            None => self.place.put(name, bytes),
        }
    }

    fn read(&self, name: &str, len_max: u64) -> Result<Vec<u8>> {
        match self.trouble() {
            Some(0 | 1) => Err(cut()),
            _ => self.place.read(name, len_max),
        }
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        match self.trouble() {
            Some(0 | 1) => Err(cut()),
            _ => self.place.list(dir),
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        match self.trouble() {
            Some(0) => Err(cut()),
            _ => self.place.remove(name),
        }
    }

    fn is_there(&self, name: &str) -> Result<bool> {
        self.place.is_there(name)
    }
}

/// Runs something else in the middle of what is done to a place.
pub(super) struct Interrupted<'a> {
    pub network: &'a Network,
    /// Calls until then.
    pub left: Mutex<u64>,
    pub then: Mutex<Option<Box<dyn FnOnce() + Send + 'a>>>,
}

impl std::fmt::Debug for Interrupted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.network.fmt(f)
    }
}

impl Interrupted<'_> {
    fn call(&self) -> &Network {
        let mut left = self.left.lock();
        *left = left.saturating_sub(1);
        if *left == 0 {
            let then = self.then.lock().take();
            if let Some(then) = then {
                then();
            }
        }
        self.network
    }
}

impl Place for Interrupted<'_> {
    fn shown(&self) -> String {
        self.network.shown()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.call().put(name, bytes)
    }

    fn read(&self, name: &str, len_max: u64) -> Result<Vec<u8>> {
        self.call().read(name, len_max)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.call().list(dir)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.call().remove(name)
    }

    fn is_there(&self, name: &str) -> Result<bool> {
        self.call().is_there(name)
    }
}

/// A store and its replica.
pub(super) struct Pair {
    pub run: StoreRun,
    pub random: Random,
    pub place_disk: SimDisk,
    /// In which the place is, if not on `place_disk`.
    bucket: Option<SimBucket>,
    bug: Option<Bug>,
    pub network: Network,
    /// What the store had after commits, in order.
    pub history: Vec<(CommitNo, Model)>,
    /// Commits whose sending was acknowledged.
    pub acked: Vec<CommitNo>,
    /// The first state that was not to be removed.
    kept: CommitNo,
}

/// The place in a bucket, or else on a disk.
fn place_in(bucket: Option<SimBucket>, disk: &SimDisk, bug: Option<Bug>) -> Box<dyn Place> {
    match bucket {
        Some(bucket) => Box::new(BucketPlace::new(Box::new(bucket), Faults::of(bug))),
        None => Box::new(DirPlace::new(Arc::new(disk.clone()))),
    }
}

pub(super) fn told<T>(what: &str, done: Result<T>) -> std::result::Result<T, String> {
    done.map_err(|error| format!("{what}: {}", error.with_causes()))
}

impl Pair {
    pub fn begin(seed: u64, bug: Option<Bug>) -> std::result::Result<Self, String> {
        let run = StoreRun::begin(seed, bug);
        let place_disk = SimDisk::new(seed ^ 0x7265_706c);
        let mut random = Random::new(seed ^ 0x6e65_7477);
        let state = Arc::new(Mutex::new(NetworkState {
            random: Random::new(seed ^ 0x6f72),
            fails_one_in: 0,
            late: Vec::new(),
        }));
        let bucket = (seed >= IN_BUCKET).then(|| SimBucket::new(seed, state.clone()));
        let network = Network {
            place: place_in(bucket.clone(), &place_disk, bug),
            state,
            is_bucket: bucket.is_some(),
        };
        let pair = Self {
            run,
            place_disk,
            bucket,
            bug,
            network,
            history: vec![(CommitNo(0), Model::new())],
            acked: Vec::new(),
            kept: CommitNo(0),
            random: Random::new(random.next()),
        };
        let store = told("store", pair.store())?;
        let lineage = [seed as u8; 16];
        let settings = ReplicaSettings::default();
        let added = store.add_replica(NAME, &pair.network, ("the place", lineage), settings);
        told("add", added)?;
        Ok(pair)
    }

    pub fn store(&self) -> Result<Store> {
        Store::open(Arc::new(self.run.disk.clone()))
    }

    pub fn note(&mut self, writer: &StoreWriter) {
        self.history
            .push((writer.commit_no(), self.run.model.clone()));
    }

    pub fn reboot_place(&mut self) {
        self.place_disk = self.place_disk.reboot();
        if let Some(bucket) = &self.bucket {
            bucket.arrive_all();
        }
        // A new process knows nothing of the place.
        self.network.place = place_in(self.bucket.clone(), &self.place_disk, self.bug);
    }

    /// All files of the place.
    fn place_contents(&self) -> BTreeMap<String, Vec<u8>> {
        match &self.bucket {
            Some(bucket) => bucket.contents(),
            None => self.place_disk.contents(),
        }
    }

    /// The place without a network before it.
    fn quiet_place(&self) -> Box<dyn Place> {
        let bucket = self.bucket.as_ref().map(SimBucket::quiet);
        place_in(bucket, &self.place_disk, self.bug)
    }

    /// Changes the store, with power cuts.
    pub fn change(&mut self, writer: &mut Option<StoreWriter>) -> std::result::Result<(), String> {
        // The clock jumps by a day, or to 1970.
        const DAY: i64 = 86_400_000_000_000;
        let shifts = [0, DAY, -DAY, -crate::journal::now()];
        let shift = shifts[self.random.below(shifts.len() as u64) as usize];
        crate::journal::CLOCK_SHIFT.set(shift);
        let operation = self.run.choose();
        if self.random.is_one_in(4) {
            let fault = [Fault::PowerCut, Fault::Io][self.random.below(2) as usize];
            self.run.disk.fail_after(self.random.below(80), fault);
        }
        let done = self.run.perform(writer, &operation);
        self.run.disk.cancel_fault();
        if done.is_ok() && !self.run.disk.is_off() {
            StoreRun::apply(&mut self.run.model, &operation);
            if let Some(writer) = writer {
                self.note(writer);
            }
            return Ok(());
        }
        if !self.run.disk.is_off() && self.random.is_one_in(2) {
            // Its last commit may be in the journal alone.
            let _ = self.send_beside(&operation);
        }
        *writer = None;
        if self.run.disk.is_off() {
            self.run.disk = self.run.disk.reboot();
        }
        let operation = if done.is_ok() {
            StoreRun::apply(&mut self.run.model, &operation);
            Operation::Reopen
        } else {
            operation
        };
        let reopened = self.run.reopen_and_compare(&operation)?;
        self.note(&reopened);
        if self.random.is_one_in(2) {
            *writer = Some(reopened);
        }
        Ok(())
    }

    pub fn options(&self, is_anew: bool) -> SendOptions {
        SendOptions {
            writer: Some(self.run.options()),
            is_anew,
            has_all_rows: false,
            faults: self.run.options().faults,
        }
    }

    /// Sends, with trouble of all kinds.
    pub fn send(&mut self, writer: &mut Option<StoreWriter>) -> Outcome {
        self.network.state.lock().fails_one_in = [0, 6, 15][self.random.below(3) as usize];
        match self.random.below(6) {
            0 => self
                .run
                .disk
                .fail_after(self.random.below(60), Fault::PowerCut),
            1 => self
                .place_disk
                .fail_after(self.random.below(40), Fault::PowerCut),
            2 => self
                .place_disk
                .fail_after(self.random.below(40), Fault::NoSpace),
            _ => {}
        }
        let (sent, has_failed) = self.send_interrupted(writer)?;
        let faults = self.run.disk.fault_count() + self.place_disk.fault_count();
        let is_lossy = self.network.state.lock().fails_one_in > 0;
        let had_trouble = is_lossy || has_failed || faults > 0;
        self.network.state.lock().fails_one_in = 0;
        self.run.disk.cancel_fault();
        self.place_disk.cancel_fault();
        match sent {
            Ok(sent) if !sent.damage.is_empty() => {
                return Err(format!(
                    "sent: {sent:?}, writer {:?} {:?}",
                    writer.as_ref().map(|w| w.commit_no()),
                    self.run.disk.contents().keys()
                ));
            }
            Ok(sent) => self.acked.push(sent.commit),
            Err(_) if had_trouble => {}
            // A writer whose disk failed goes on without a journal for a while.
            Err(_) if writer.as_ref().is_some_and(|w| !w.journal().is_whole()) => {}
            Err(error) => return Err(format!("send: {}", error.with_causes())),
        }
        if self.run.disk.is_off() || self.random.is_one_in(8) {
            *writer = None;
            self.run.disk = self.run.disk.reboot();
            let reopened = self.run.reopen_and_compare(&Operation::Reopen)?;
            self.note(&reopened);
        }
        if self.place_disk.is_off() || self.random.is_one_in(8) {
            self.reboot_place();
        }
        Ok(())
    }

    /// Sends, while a writer that is open changes the store.
    fn send_interrupted(
        &mut self,
        writer: &mut Option<StoreWriter>,
    ) -> std::result::Result<(Result<Sent>, bool), String> {
        let is_anew = self.random.is_one_in(8);
        let options = self.options(is_anew);
        let store = match self.store() {
            Ok(store) => store,
            Err(error) => return Ok((Err(error), false)),
        };
        let (run, history) = (&mut self.run, &mut self.history);
        let mut failed = None;
        let left = self.random.below(12);
        let then = || {
            if writer.is_none() || run.disk.is_off() {
                return;
            }
            for _ in 0..2 {
                let operation = run.choose();
                match run.perform(writer, &operation) {
                    Ok(()) => StoreRun::apply(&mut run.model, &operation),
                    Err(error) => failed = Some((operation, error)),
                }
                if let Some(writer) = writer.as_ref().filter(|_| failed.is_none()) {
                    history.push((writer.commit_no(), run.model.clone()));
                }
                if failed.is_some() {
                    return;
                }
            }
        };
        let place = Interrupted {
            network: &self.network,
            left: Mutex::new(left),
            then: Mutex::new(Some(Box::new(then))),
        };
        let sent = store.send_replica(NAME, &place, &options);
        drop(place);
        let has_failed = failed.is_some();
        if let Some((operation, error)) = failed {
            if self.run.disk.fault_count() == 0 {
                return Err(format!("{operation:.60?}: {error}"));
            }
            *writer = None;
            self.run.disk = self.run.disk.reboot();
            let reopened = self.run.reopen_and_compare(&operation)?;
            self.note(&reopened);
        }
        Ok((sent, has_failed))
    }

    /// Sends what a writer that has failed has committed.
    fn send_beside(&mut self, operation: &Operation) -> Outcome {
        let store = told("store", self.store())?;
        let sent = told(
            "send",
            store.send_replica(NAME, &self.network, &self.options(false)),
        )?;
        // The operation may be done.
        let mut after = self.run.model.clone();
        StoreRun::apply(&mut after, operation);
        self.history.push((sent.commit, self.run.model.clone()));
        self.history.push((sent.commit, after));
        self.acked.push(sent.commit);
        Ok(())
    }

    /// Removes old states, with trouble on the way; and makes an item with all rows.
    pub fn prune(&mut self) -> Outcome {
        let keep = 1 + self.random.below(3);
        let fails_one_in = [0, 8][self.random.below(2) as usize];
        let store = told("store", self.store())?;
        let options = SendOptions {
            has_all_rows: self.random.is_one_in(2),
            ..self.options(false)
        };
        // So that no item is on its way, and it is known which states there are.
        let Ok(sent) = store.send_replica(NAME, &self.network, &options) else {
            return Ok(());
        };
        self.acked.push(sent.commit);
        let place = self.quiet_place();
        let states = told("states", crate::replica::replica_states(&*place))?;
        let first = states.len().saturating_sub(keep as usize);
        self.network.state.lock().fails_one_in = fails_one_in;
        let pruned = store.prune_replica(NAME, &self.network, keep);
        self.network.state.lock().fails_one_in = 0;
        if let Some(state) = states.get(first) {
            self.kept = self.kept.max(state.commit);
        }
        match pruned {
            Err(error) if fails_one_in == 0 => Err(format!("prune: {}", error.with_causes())),
            _ => Ok(()),
        }
    }

    fn restore(&self, as_of: AsOf) -> Result<(RestoredStore, SimDisk)> {
        let disk = SimDisk::new(self.acked.len() as u64);
        let place = self.quiet_place();
        let options = self.run.options();
        let restored = restore_store(&*place, Arc::new(disk.clone()), as_of, options)?;
        Ok((restored, disk.reboot()))
    }

    /// What the store may have had after `commit`: in the middle of an operation, what it had
    /// before or after it.
    pub fn wanted(&self, commit: CommitNo) -> Vec<&Model> {
        let before = self.history.iter().rfind(|(of, _)| *of < commit);
        let after = self.history.iter().find(|(of, _)| *of > commit);
        let at = self.history.iter().filter(|(of, _)| *of == commit);
        let all = before.into_iter().chain(at).chain(after);
        all.map(|(_, model)| model).collect()
    }

    /// Restores a state, and compares it with the model.
    fn restore_and_compare(&self, as_of: AsOf, at_least: CommitNo) -> Outcome {
        let what = format!("restore of {as_of:?}, {:?}", self.acked);
        let (restored, disk) = told(&what, self.restore(as_of))?;
        if !restored.damage.is_empty() {
            return Err(format!("restored: {restored:?}"));
        }
        if restored.commit < at_least {
            return Err(format!("{:?} for {at_least:?}", restored.commit));
        }
        let store = told("restored store", Store::open(Arc::new(disk)))?;
        let writer = told("restored store", store.write(self.run.options()))?;
        let found = self.run.verify(&store)?;
        if !self.wanted(restored.commit).contains(&&found) {
            let names: Vec<&String> = found.keys().collect();
            return Err(format!("{as_of:?}: other images: {names:?}"));
        }
        StoreRun::check(&writer)
    }

    pub fn verified(&self) -> std::result::Result<Verified, String> {
        let place = self.quiet_place();
        let store = told("verify", self.store())?;
        told("verify", store.verify_replica(NAME, &*place))
    }
}

/// One run: changes and sendings in turns, then restores of all states that were acknowledged.
fn replicate(seed: u64, bug: Option<Bug>) -> std::result::Result<usize, String> {
    let mut pair = Pair::begin(seed, bug)?;
    let mut writer = None;
    for _ in 0..4 + pair.random.below(10) {
        pair.change(&mut writer)?;
        if pair.random.is_one_in(3) {
            writer = None;
        }
        if pair.random.is_one_in(2) {
            pair.send(&mut writer)?;
        }
        if pair.random.is_one_in(6) {
            pair.prune()?;
        }
    }
    drop(writer);
    pair.reboot_place();
    // What is still on its way arrives, too.
    let late = std::mem::take(&mut pair.network.state.lock().late);
    for (name, bytes) in late {
        told("late", pair.network.place.put(&name, &bytes))?;
    }
    let verified = pair.verified()?;
    if !verified.findings.is_empty() || verified.states.iter().any(|state| !state.is_whole) {
        return Err(format!("verified: {verified:?}"));
    }
    if let Some(last) = pair.acked.iter().max() {
        pair.restore_and_compare(AsOf::Last, *last)?;
        let some = pair.acked[pair.random.below(pair.acked.len() as u64) as usize];
        if some >= pair.kept {
            pair.restore_and_compare(AsOf::Commit(some), some)?;
        }
    }
    Ok(pair.acked.len())
}

// Would catch an acknowledged state that a replica does not have, or has in part; an item that is
// applied twice, and one that leads elsewhere.
#[test]
fn a_replica_has_every_state_that_was_acknowledged() {
    let mut acked = 0;
    for seed in seeds(0..600) {
        acked += replicate(seed, None).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    println!("{acked} states were acknowledged");
    assert!(acked > 600, "{acked}");
}

// Would catch the same in a bucket that repeats, delays and loses requests and answers, refuses own
// writes, and lists late.
#[test]
fn a_replica_in_a_bucket_has_every_state_that_was_acknowledged() {
    let mut acked = 0;
    for seed in seeds(0..1500) {
        let done = replicate(IN_BUCKET + seed, None);
        acked += done.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    println!("{acked} states were acknowledged");
    assert!(acked > 1000, "{acked}");
}

// Would catch a simulation of buckets that finds no bug.
#[test]
fn planted_bugs_of_places_in_buckets_are_found() {
    // Each with the first seed that finds it, from which on is searched.
    for (bug, first) in [
        (Bug::ListTrusted, 0),
        (Bug::DataUnacknowledged, 37),
        (Bug::ItemNotNoted, 119),
    ] {
        let mut seeds = first..first + 5000;
        let found = seeds.find(|&seed| replicate(IN_BUCKET + seed, Some(bug)).is_err());
        let seed = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: found by seed {seed}");
    }
}

// Would catch a simulation that finds no bug.
#[test]
fn planted_bugs_of_replicas_are_found() {
    for bug in [
        Bug::DataUnacknowledged,
        Bug::ItemNotNoted,
        Bug::MovedDataIgnored,
        Bug::ReplicaLacksMap,
        Bug::UnsureCommitSent,
    ] {
        let found = (0..5000).find(|&seed| replicate(seed, Some(bug)).is_err());
        let seed = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: found by seed {seed}");
    }
    let found = (0..100).find(|&seed| put_back(seed, Some(Bug::OlderStoreSends)).is_err());
    println!("OlderStoreSends: found by seed {}", found.expect("a seed"));
}

/// Puts an older copy of the store back, with or without what it remembers of its replica. Nothing
/// may be sent then, and the replica stays as it was.
fn put_back(seed: u64, bug: Option<Bug>) -> Outcome {
    let mut pair = Pair::begin(seed, bug)?;
    let send = |pair: &mut Pair, is_anew| {
        let store = pair.store()?;
        store.send_replica(NAME, &pair.network, &pair.options(is_anew))
    };
    let change = |pair: &mut Pair| {
        let image = super::random_image(&mut pair.run.random, &mut pair.run.pool);
        let name = format!("image{}", pair.run.model.len());
        told(
            "import",
            pair.run
                .open()
                .and_then(|mut writer| writer.import(&name, &image)),
        )?;
        pair.run.model.insert(name, image);
        Outcome::Ok(())
    };
    change(&mut pair)?;
    told("send", send(&mut pair, false))?;
    let (older, older_model) = (pair.run.disk.contents(), pair.run.model.clone());
    change(&mut pair)?;
    told("send", send(&mut pair, false))?;
    pair.run.disk = pair.run.disk.reboot();
    let keeps_record = seed.is_multiple_of(2);
    let is_kept = |name: &String| keeps_record && name.starts_with("replicas/");
    for name in pair.run.disk.contents().into_keys().filter(|n| !is_kept(n)) {
        pair.run.disk.lose(&name);
    }
    for (name, bytes) in older.iter().filter(|(name, _)| !is_kept(name)) {
        pair.run.disk.bring_back(name, bytes);
    }
    pair.run.disk = pair.run.disk.reboot();
    pair.run.model = older_model;
    // It may go its own way before it sends.
    for _ in 0..seed % 4 {
        change(&mut pair)?;
    }
    let before = pair.place_contents();
    // What is sent anew as a whole mixes nothing.
    for is_anew in [false, true]
        .into_iter()
        .take(2 - usize::from(keeps_record))
    {
        let sent = send(&mut pair, is_anew);
        match sent {
            // The journal does not go back to what was sent.
            Ok(sent) if keeps_record && sent.has_all_rows => {
                let last = (sent.commit, pair.run.model.clone());
                pair.history.push(last);
                let (restored, _) = told("restore", pair.restore(AsOf::Last))?;
                if restored.damage.is_empty() {
                    pair.restore_and_compare(AsOf::Last, sent.commit)?;
                }
                return Ok(());
            }
            Ok(sent) => return Err(format!("{is_anew} {sent:?}")),
            Err(_) => {}
        }
    }
    if pair.place_contents() == before {
        Ok(())
    } else {
        Err("the replica has changed".to_owned())
    }
}

// Would catch a store that was put back from an older copy, and whose replica then gets a state
// that mixes two histories.
#[test]
fn an_older_copy_of_a_store_sends_nothing() {
    for seed in seeds(0..60) {
        put_back(seed, None).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        put_back(IN_BUCKET + seed, None).unwrap_or_else(|what| panic!("bucket {seed}: {what}"));
    }
}

/// Damages a file of a replica.
fn damage(seed: u64, bug: Option<Bug>) -> Outcome {
    let mut pair = Pair::begin(seed, bug)?;
    let mut writer = None;
    let send = |pair: &mut Pair, is_anew| {
        let store = pair.store()?;
        store.send_replica(NAME, &pair.network, &pair.options(is_anew))
    };
    for _ in 0..3 + pair.random.below(6) {
        pair.change(&mut writer)?;
        writer = None;
        let sent = told("send", send(&mut pair, false))?;
        pair.acked.push(sent.commit);
    }
    let last = pair.acked.last().copied().unwrap_or_default();
    let mut files = pair.place_disk.contents();
    files.retain(|_, bytes| !bytes.is_empty());
    let index = pair.random.below(files.len() as u64) as usize;
    let (name, mut bytes) = files.into_iter().nth(index).ok_or("no file")?;
    match pair.random.below(4) {
        0 => drop(pair.place_disk.lose(&name)),
        kind => {
            let at = pair.random.below(bytes.len() as u64) as usize;
            match kind {
                1 => bytes.truncate(at),
                _ => bytes
                    .iter_mut()
                    .skip(at)
                    .take(16)
                    .for_each(|byte| *byte ^= 0x55),
            }
            pair.place_disk.put_back(&name, &bytes);
        }
    }
    let verified = pair.verified()?;
    if verified.findings.is_empty() {
        return Err(format!("{name}: nothing is found"));
    }
    // What is restored is right, or it is told that it is not.
    for as_of in [AsOf::Last, AsOf::Commit(last)] {
        match pair.restore(as_of) {
            Ok((restored, _)) if !restored.damage.is_empty() => {}
            Ok((restored, _)) => pair
                .restore_and_compare(as_of, restored.commit)
                .map_err(|what| format!("{name}: {what}"))?,
            Err(_) => {}
        }
    }
    if let Some(whole) = verified.last_whole() {
        pair.restore_and_compare(AsOf::Commit(whole.commit), CommitNo(0))
            .map_err(|what| format!("{name}, the last whole state: {what}"))?;
    }
    // Sending everything again makes the last state whole.
    let store = told("store", pair.store())?;
    let is_all = told("repair", store.repair_replica(&pair.network, &verified))?;
    if is_all {
        let verified = pair.verified()?;
        if !verified.findings.is_empty() {
            return Err(format!("{name}, after repair: {verified:?}"));
        }
    }
    let sent = told(&name, send(&mut pair, true))?;
    pair.restore_and_compare(AsOf::Last, sent.commit)
        .map_err(|what| format!("{name}, after repair: {what}"))?;
    let verified = pair.verified()?;
    let is_whole = verified.states.last().is_some_and(|state| state.is_whole);
    if is_whole && sent.commit >= last {
        Ok(())
    } else {
        Err(format!("{name}: {verified:?}"))
    }
}

// Would catch: damage of a replica that a verification does not find, a restored store that is not
// what it is said to be, and a replica that cannot be repaired from its store.
#[test]
fn damage_of_a_replica_is_found_and_repaired() {
    for seed in seeds(0..300) {
        damage(seed, None).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}
