//! A run: steps on a volume over a simulated disk, beside the model.

mod collecting;
mod images;
mod renames;
mod scrubbing;
mod snapshots;
mod world;

use super::perform::{Difference, compare, compare_with_unnamed};
use super::rename_steps::with_renames;
use super::scrub_steps::with_scrubs;
use super::sealed::Sealing;
use super::snapshot_steps::with_snapshots;
use super::steps::{Beside, Step, choose, divide};
use crate::hook::Stage;
use crate::options::PlantedBug;
use crate::{CheckOptions, Chunking, OpenOptions, OpenStore, Volume, VolumeOptions, check, create};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use weald_codec::CodecSpec;
use weald_format::{FileKind, InodeFlags};
use weald_model::ModelFs;
use weald_store::engine::trial;
use weald_store::faults::Faults;
use weald_store::simulated_disk::{Random, SimDisk};
use weald_store::{CollectOptions, Store, WriteOptions};
use weald_vfs::{Ino, NewStat, Outcome, WritableFs};
use world::World;

/// One run in so many has two volumes.
const TWO_RARITY: u64 = 4;

/// One of so many runs has scrubs.
const SCRUBS_RARITY: u64 = 4;
/// One run in so many has images that get other names.
const RENAMES_RARITY: u64 = 4;
/// One run in so many has snapshots.
const SNAPSHOTS_RARITY: u64 = 2;

/// `Err` describes the first difference that a run found.
pub type Verdict = Result<(), String>;

/// A seed and the steps that follow from it.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub steps: Vec<Step>,
    pub bug: Option<PlantedBug>,
    /// Whether the store has two volumes that are open at the same time.
    has_two: bool,
    /// Whether blocks are sorted in place of each collection.
    sorts: bool,
}

impl Plan {
    pub fn of_seed(seed: u64, bug: Option<PlantedBug>) -> Self {
        let mut steps = choose(&mut Random::new(seed));
        let mut random = Random::new(seed ^ 0x0002_0005);
        let has_two = random.is_one_in(TWO_RARITY);
        if has_two {
            steps = divide(steps, &mut random);
        }
        let mut random = Random::new(seed ^ 0x0003_0005);
        if random.is_one_in(SNAPSHOTS_RARITY) {
            steps = with_snapshots(steps, &mut random);
        }
        let mut random = Random::new(seed ^ 0x0004_0005);
        if random.is_one_in(SCRUBS_RARITY) {
            steps = with_scrubs(steps, &mut random);
        }
        let mut random = Random::new(seed ^ 0x0005_0005);
        if random.is_one_in(RENAMES_RARITY) {
            steps = with_renames(steps, &mut random);
        }
        Self {
            seed,
            steps,
            bug,
            has_two,
            sorts: false,
        }
    }

    /// The same steps, with sorts in place of collections.
    pub fn with_sorts(self, sorts: bool) -> Self {
        Self { sorts, ..self }
    }

    /// Runs it and returns the verdict and the history.
    pub fn run(&self) -> (Verdict, Vec<String>) {
        let trace = Arc::new(Mutex::new(Vec::new()));
        let run = AssertUnwindSafe(|| VolumeRun::begin(self, trace.clone()).steps(&self.steps));
        let verdict = catch_unwind(run).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        });
        let trace = std::mem::take(&mut *trace.lock());
        (verdict, trace)
    }

    /// Takes steps out as long as the run still fails.
    pub fn minimise(mut self) -> Self {
        let mut len = self.steps.len() / 2;
        while len > 0 {
            let mut at = 0;
            while at < self.steps.len() {
                let mut fewer = self.clone();
                fewer.steps.drain(at..(at + len).min(self.steps.len()));
                match fewer.run().0 {
                    Err(_) => self = fewer,
                    Ok(()) => at += len,
                }
            }
            len /= 2;
        }
        self
    }
}

/// A volume, and the model beside it.
struct Side {
    name: &'static str,
    /// `None` while it is closed.
    volume: Option<Arc<Volume>>,
    world: Arc<Mutex<World>>,
}

struct VolumeRun {
    bug: Option<PlantedBug>,
    sorts: bool,
    cache_len: u64,
    index_len: u64,
    log_len: u64,
    syncs_without_log: u64,
    disk: SimDisk,
    sides: Vec<Side>,
    /// The side that the present step concerns.
    at: usize,
    sealing: Option<Sealing>,
    random: Random,
}

impl VolumeRun {
    fn begin(plan: &Plan, trace: Arc<Mutex<Vec<String>>>) -> Self {
        trial::set(plan.seed, plan.bug == Some(PlantedBug::DividedRowsLost));
        let mut random = Random::new(plan.seed ^ 0x5eed);
        let disk = SimDisk::new(plan.seed);
        let segment_len = [20_000, 60_000, 1 << 20][random.below(3) as usize];
        let store = Store::create(Arc::new(disk.clone()), [plan.seed as u8; 16], segment_len);
        let store = store.expect("create a store");
        let options = VolumeOptions {
            chunk_len: 4096,
            codec: match random.below(3) {
                0 => CodecSpec::None,
                _ => CodecSpec::Lz4,
            },
            chunking: match random.below(4) {
                0 => Chunking::Fixed,
                1 => Chunking::Auto,
                _ => Chunking::Content,
            },
            ..VolumeOptions::default()
        };
        let names = if plan.has_two {
            &["v", "w"][..]
        } else {
            &["v"]
        };
        let sides = names.iter().map(|name| {
            create(&store, name, &options, [plan.seed as u8; 16], 0).expect("create a volume");
            Side {
                name,
                volume: None,
                world: Arc::new(Mutex::new(World::new(&options, trace.clone()))),
            }
        });
        let sides = sides.collect();
        let mut run = Self {
            bug: plan.bug,
            sorts: plan.sorts,
            cache_len: [0, 256 << 10, 64 << 20][random.below(3) as usize],
            index_len: [0, 400, 1 << 20][random.below(3) as usize],
            log_len: [0, 32 << 10, 128 << 10, 512 << 10][random.below(4) as usize],
            syncs_without_log: random.below(3),
            disk,
            sides,
            at: 0,
            sealing: None,
            random,
        };
        drop(store);
        if run.random.is_one_in(6) {
            for side in &run.sides {
                side.world.lock().is_limited = true;
            }
            let len = (1 << 20) + run.random.below(1 << 20);
            run.disk.limit(run.disk.used() + len);
        }
        for at in 0..run.sides.len() {
            let volume = run.open(at).expect("open a new volume");
            run.sides[at].volume = Some(volume);
        }
        run
    }

    fn options(&self, is_read_only: bool) -> OpenOptions {
        OpenOptions {
            is_read_only,
            background: false,
            cache_len: self.cache_len,
            index_len: self.index_len,
            log_len: self.log_len,
            syncs_without_log: self.syncs_without_log,
            faults: Faults::of(self.bug),
            writer_name: "the simulation".to_owned(),
            ..OpenOptions::default()
        }
    }

    /// Opens the volume of a side, beside the other one if that is open.
    fn open(&self, at: usize) -> weald_format::Result<Arc<Volume>> {
        let options = self.options(false);
        let mut others = self.sides.iter().filter_map(|side| side.volume.as_ref());
        let shared = match others.next() {
            Some(volume) => volume.core.shared.clone(),
            None => OpenStore::open(&Store::open(Arc::new(self.disk.clone()))?, &options)?,
        };
        Volume::open_in(&shared, self.sides[at].name, options)
    }

    fn side(&self) -> &Side {
        &self.sides[self.at]
    }

    fn world(&self) -> Arc<Mutex<World>> {
        self.side().world.clone()
    }

    /// The world that knows the images of the store.
    fn first_world(&self) -> Arc<Mutex<World>> {
        self.sides[0].world.clone()
    }

    fn volume(&self) -> Arc<Volume> {
        self.side().volume.clone().expect("an open volume")
    }

    /// Whether the disk has failed since it was made.
    fn has_failed(&self) -> bool {
        self.disk.fault_count() > 0
    }

    fn steps(mut self, steps: &[Step]) -> Verdict {
        for step in steps {
            self.step(step)?;
            // A server notices at once that a seal is over.
            self.sealing = self.sealing.take().filter(|sealing| !sealing.is_over());
            self.after_step()?;
        }
        self.end()
    }

    fn step(&mut self, step: &Step) -> Verdict {
        if let Step::Other(step) = step {
            if self.sides.len() == 1 {
                return Ok(());
            }
            self.at = 1;
            self.world().lock().note("other:");
            self.step(step)?;
            self.at = 0;
            return Ok(());
        }
        if !matches!(step, Step::Do(_)) {
            self.world().lock().note(format!("{step:?}"));
        }
        self.ensure_open()?;
        if self.side().volume.is_none() {
            return Ok(());
        }
        match step {
            Step::Other(_) => Ok(()),
            Step::OnSnapshots(step) => self.on_snapshots(*step),
            Step::Scrub(scrub) => self.scrub(scrub),
            Step::Do(op) => {
                let disk = self.disk.clone();
                let volume = self.volume();
                let world = self.world();
                world
                    .lock()
                    .perform(&volume, *op, || disk.fault_count() > 0)
            }
            Step::Sync(beside) => self.with_beside(beside, &|volume| {
                volume.sync().map_err(|failure| format!("{failure:?}"))
            }),
            Step::Commit(beside) => self.with_beside(beside, &|volume| {
                volume.commit().map_err(|error| error.to_string())
            }),
            Step::ReturnSpace => {
                let volume = self.volume();
                let settled = volume.settle(&mut || ControlFlow::Continue(()));
                match settled.and_then(|_| volume.return_space()) {
                    Err(error) if !self.has_failed() => Err(format!("return space: {error}")),
                    _ => Ok(()),
                }
            }
            Step::Hold { is_late } => self.begin_seal(*is_late),
            Step::Seal(image) => self.end_seal(image.as_ref()),
            Step::RemoveImage(removal) => self.remove_image(removal),
            Step::RenameImage(rename) => self.rename_image(rename),
            Step::Collect(collect) => self.collect(collect),
            Step::Fail(fault, count) => {
                self.disk.fail_after(*count, *fault);
                Ok(())
            }
            Step::Compare => self.compare_live(),
            Step::Reopen => {
                self.close()?;
                // The other volume keeps the store open. This one is opened by its next step.
                if self.sides.iter().any(|side| side.volume.is_some()) {
                    return Ok(());
                }
                self.disk = self.disk.restart();
                self.recover()
            }
            Step::Kill => {
                self.disk = self.disk.restart();
                self.recover()
            }
            Step::PowerCut => {
                self.disk = self.disk.reboot();
                self.recover()
            }
        }
    }

    fn with_beside(
        &mut self,
        beside: &[(Stage, Beside)],
        sync: &dyn Fn(&Volume) -> Result<(), String>,
    ) -> Verdict {
        let states = self.world().lock().count();
        let volume = self.volume();
        let (weak, world) = (Arc::downgrade(&volume), self.world());
        let (disk, beside) = (self.disk.clone(), beside.to_vec());
        let other = self.sides.iter().find(|side| side.name != self.side().name);
        let other = other.and_then(|other| {
            let volume = other.volume.as_ref()?;
            Some((Arc::downgrade(volume), other.world.clone()))
        });
        volume.core.hook.set(move |stage| {
            if let Some(volume) = weak.upgrade() {
                world.lock().reach(&volume, stage, &beside, &disk);
            }
            if let Some((weak, world)) = &other
                && let Some(volume) = weak.upgrade()
            {
                world
                    .lock()
                    .reach_from_other(&volume, stage, &beside, &disk);
            }
        });
        let done = sync(&volume);
        volume.core.hook.clear();
        for side in &self.sides {
            std::mem::replace(&mut side.world.lock().beside, Ok(()))?;
        }
        self.acknowledge(done, states)?;
        let ahead = self.world().lock().end_record(&volume);
        match ahead {
            Some((done, states)) => self.acknowledge(done, states),
            None => Ok(()),
        }
    }

    /// Closes the volume of this step.
    fn close(&mut self) -> Verdict {
        let states = self.world().lock().count();
        let closed = self.volume().close().map_err(|e| e.to_string());
        self.acknowledge(closed, states)?;
        let at = self.at;
        self.sides[at].volume = None;
        Ok(())
    }

    /// Opens the volume of this step if it is closed. A disk that fails leaves it closed.
    fn ensure_open(&mut self) -> Verdict {
        if self.side().volume.is_some() {
            return Ok(());
        }
        match self.open(self.at) {
            Ok(volume) => match self.adopt(volume) {
                // The disk failed while the volume was compared.
                Err(_) if self.has_failed() => Ok(()),
                adopted => adopted.and_then(|_| self.resolve_snapshots()),
            },
            Err(_) if self.has_failed() => Ok(()),
            Err(error) => Err(format!("open beside the other volume: {error}")),
        }
    }

    /// Takes the answer to a sync: an error must have a reason, and a success makes the last of
    /// the first `count` states durable.
    fn acknowledge(&self, synced: Result<(), String>, count: usize) -> Verdict {
        match synced {
            Ok(()) => {
                self.world().lock().synced(count);
                Ok(())
            }
            Err(_) if self.has_failed() => Ok(()),
            Err(error) => Err(format!("sync: {error}")),
        }
    }

    /// The open volume must be as the model, also after a failure of the disk.
    fn compare_live(&self) -> Verdict {
        let (volume, world) = (self.volume(), self.world());
        let world = world.lock();
        match compare_with_unnamed(&*volume, &world.model) {
            Ok(()) => Ok(()),
            Err(Difference::Unreadable(what)) if self.has_failed() => {
                world.note(format!("unreadable: {what}"));
                Ok(())
            }
            Err(difference) => Err(format!("live: {difference:?}")),
        }
    }

    /// Ends what a failure of the disk began.
    fn after_step(&mut self) -> Verdict {
        if self.disk.is_off() {
            self.disk = self.disk.reboot();
            self.world().lock().note("reboot");
            return self.recover();
        }
        if !self.has_failed() {
            return Ok(());
        }
        for at in 0..self.sides.len() {
            self.at = at;
            if self.side().volume.is_some() {
                self.compare_failed()?;
            }
        }
        self.at = 0;
        self.world().lock().note("mounted again");
        self.disk = match self.random.below(3) {
            0 => self.disk.reboot(),
            _ => self.disk.restart(),
        };
        self.recover()
    }

    /// After a failure of the disk a volume is as the model. All volumes of the store are read-only
    /// after a failed write, and this one alone after a failed read.
    fn compare_failed(&mut self) -> Verdict {
        self.compare_live()?;
        let volume = self.volume();
        let is_failed = volume.core.state.read().failure.is_some();
        if volume.core.shared.has_failed() && !is_failed {
            return Err("a volume goes on after the writer failed".to_owned());
        }
        if is_failed {
            if volume.sync().is_ok() && self.bug != Some(PlantedBug::SyncReturnsEarly) {
                return Err("a sync succeeds after a failure".to_owned());
            }
            let changed = volume.set_stat(Ino::ROOT, &NewStat::default(), 0);
            if !changed.is_err_and(|failure| failure.errno == Errno::ROFS) {
                return Err("a change succeeds after a failure".to_owned());
            }
        }
        Ok(())
    }

    /// Opens the volumes after a crash: each must be as one of its states, and consistent. The
    /// second one may be opened later, when the first has changed.
    fn recover(&mut self) -> Verdict {
        let had_at = std::mem::take(&mut self.at);
        self.sealing = None;
        let mut order: Vec<usize> = (0..self.sides.len()).collect();
        if order.len() > 1 {
            if self.random.is_one_in(2) {
                order.reverse();
            }
            if self.random.is_one_in(2) {
                order.pop();
            }
        }
        let mut frozen;
        // The disk may fail while the volumes are being opened, and again.
        'opened: loop {
            for side in &mut self.sides {
                side.volume = None;
            }
            frozen = self.disk.frozen();
            let mut opened = self.checked();
            for at in &order {
                if opened.is_ok() {
                    let volume = self.open(*at).map_err(|e| format!("open: {e:?}"));
                    opened = volume.map(|volume| self.sides[*at].volume = Some(volume));
                }
            }
            match opened {
                Ok(()) => break 'opened,
                Err(_) if self.disk.is_off() => self.disk = self.disk.reboot(),
                Err(_) if self.has_failed() => self.disk = self.disk.restart(),
                Err(what) => return Err(what),
            }
            self.world().lock().note("opened again");
        }
        self.compare_images()?;
        if !self.has_failed() {
            self.first_world().lock().doubtful = None;
        }
        for at in order {
            self.at = at;
            let found = self.adopt(self.volume())?;
            self.resolve_snapshots()?;
            if self.world().lock().now % 2 == 0 {
                self.compare_frozen(&frozen, &found)?;
            }
        }
        self.at = had_at;
        Ok(())
    }

    /// Takes the volume of this step, which was just opened: it must be as one of its states.
    fn adopt(&mut self, volume: Arc<Volume>) -> Result<ModelFs, String> {
        let world = self.world();
        let mut world = world.lock();
        let mut first = None;
        let found = world.states.iter().rev().find(|state| {
            // States that differ only in what was removed again have other numbers.
            let next = volume.core.state.read().active.next_ino;
            let differs = if state.next_ino() == next {
                compare(&*volume, state).err()
            } else {
                Some(Difference::Differs(format!("the next inode is {next}")))
            };
            let is_equal = differs.is_none();
            first = first.take().or(differs);
            is_equal
        });
        let Some(found) = found.cloned() else {
            let count = world.states.len();
            return Err(format!("none of {count} states; the last one: {first:?}"));
        };
        let as_found = found.clone();
        found.drop_orphans();
        world.states = vec![found.clone()];
        world.first = 0;
        world.model = found;
        let at = self.at;
        self.sides[at].volume = Some(volume);
        Ok(as_found)
    }

    /// On a disk that cannot be written to, the volume and its check must show the state that the
    /// next mount finds.
    fn compare_frozen(&self, disk: &SimDisk, found: &ModelFs) -> Verdict {
        self.checked_on(disk)?;
        let store = Store::open(Arc::new(disk.clone())).map_err(|e| format!("open: {e}"))?;
        let volume = Volume::open(&store, self.side().name, self.options(true));
        let volume = volume.map_err(|error| format!("open read-only: {error}"))?;
        compare(&*volume, found).map_err(|difference| format!("read-only: {difference:?}"))?;
        let changed = volume.set_stat(Ino::ROOT, &NewStat::default(), 0);
        if !changed.is_err_and(|failure| failure.errno == Errno::ROFS) {
            return Err("a change of a read-only volume succeeds".to_owned());
        }
        volume.close().map_err(|error| format!("close: {error}"))
    }

    /// Flips bits of a closed volume. Its remaining answers must be right, unless a check finds the
    /// damage.
    fn damage(&mut self) -> Verdict {
        self.close_all()?;
        self.disk = self.disk.restart();
        let names = self.disk.file_names();
        let name = &names[self.random.below(names.len() as u64) as usize];
        let len = self.disk.contents()[name].len() as u64;
        let start = self.random.below(len.max(1));
        for byte in (start..len).take(1 + self.random.below(16) as usize) {
            self.disk
                .flip(name, byte as usize, self.random.below(8) as u8);
        }
        self.world()
            .lock()
            .note(format!("damaged {name} from byte {start}"));
        let checked = self.checked();
        for at in 0..self.sides.len() {
            let Ok(volume) = self.open(at) else {
                continue;
            };
            match compare(&*volume, &self.sides[at].world.lock().model) {
                Err(Difference::Differs(what)) if checked.is_ok() => {
                    return Err(format!("unnoticed damage: {what}"));
                }
                Err(Difference::Differs(what)) if what.contains("content") => {
                    return Err(format!("wrong content: {what}"));
                }
                _ => {}
            }
            self.sides[at].volume = Some(volume);
        }
        Ok(())
    }

    fn close_all(&mut self) -> Verdict {
        for at in 0..self.sides.len() {
            self.at = at;
            if self.side().volume.is_some() {
                self.close()?;
            }
        }
        self.at = 0;
        Ok(())
    }

    /// The check finds nothing.
    fn checked(&self) -> Verdict {
        self.checked_on(&self.disk)
    }

    fn checked_on(&self, disk: &SimDisk) -> Verdict {
        let store = Store::open(Arc::new(disk.clone())).map_err(|e| format!("open: {e:?}"))?;
        for side in &self.sides {
            let options = CheckOptions { reads_data: true };
            let report = check(&store, side.name, &options).map_err(|e| format!("check: {e}"))?;
            if !report.findings.is_empty() {
                return Err(format!("check: {:?}", report.findings));
            }
        }
        self.recounted(&store)
    }

    /// Compares a last time, then removes everything; no space may be left over.
    fn end(&mut self) -> Verdict {
        self.disk.cancel_fault();
        for at in 0..self.sides.len() {
            self.at = at;
            self.ensure_open()?;
            self.compare_live()?;
            self.resolve_snapshots()?;
        }
        self.close_all()?;
        self.disk = self.disk.restart();
        self.recover()?;
        if self.random.is_one_in(3) {
            return self.damage();
        }
        for at in 0..self.sides.len() {
            self.at = at;
            self.ensure_open()?;
            let volume = self.volume();
            self.remove_snapshots()?;
            empty(&*volume, Ino::ROOT).map_err(|f| format!("remove everything: {f:?}"))?;
            volume.sync().map_err(|f| format!("sync: {f:?}"))?;
            volume
                .return_space()
                .map_err(|e| format!("return space: {e}"))?;
        }
        self.close_all()?;
        self.disk = self.disk.restart();
        self.checked()?;
        self.compare_images()?;
        let store = Store::open(Arc::new(self.disk.clone())).map_err(|e| format!("open: {e}"))?;
        let mut writer = store
            .write(WriteOptions::new("the simulation"))
            .map_err(|e| format!("open: {e}"))?;
        for name in store.names().map_err(|e| format!("names: {e}"))? {
            writer
                .remove(&name, true)
                .map_err(|e| format!("remove: {e}"))?;
        }
        writer
            .collect(&CollectOptions::default(), &mut |_| {
                ControlFlow::Continue(())
            })
            .map_err(|e| format!("collect: {e}"))?;
        match self.disk.len_below("segments/") {
            0 => Ok(()),
            len => Err(format!("{len} bytes are left of an emptied volume")),
        }
    }
}

/// Removes everything below `dir`.
fn empty(fs: &dyn WritableFs, dir: Ino) -> Outcome<()> {
    let mut names = Vec::new();
    fs.list(dir, 0, &mut |entry| {
        names.push((entry.name.to_vec(), entry.stat.ino, entry.stat.kind));
        true
    })?;
    for (name, ino, kind) in names {
        let unlocked = NewStat {
            flags: Some(InodeFlags::NONE),
            ..NewStat::default()
        };
        fs.set_stat(ino, &unlocked, 1)?;
        let removed = match kind {
            FileKind::Directory => {
                empty(fs, ino)?;
                fs.rmdir(dir, &name, 1)?
            }
            _ => fs.unlink(dir, &name, 1)?,
        };
        fs.forget(removed.ino)?;
    }
    Ok(())
}
