//! Snapshots of the volume of a run: each must stay as the model was when it was taken.

use super::{Verdict, VolumeRun};
use crate::simulation::perform::{Difference, compare};
use crate::simulation::steps::OnSnapshots;
use crate::{OpenOptions, Volume};
use std::collections::BTreeSet;
use weald_format::ErrorKind;
use weald_model::ModelFs;
use weald_store::faults::Faults;
use weald_store::simulated_disk::Fault;
use weald_store::{Steps, Store, WriteOptions};

impl VolumeRun {
    pub(super) fn on_snapshots(&mut self, step: OnSnapshots) -> Verdict {
        match step {
            OnSnapshots::Take { number } => self.take_snapshot(&format!("s{number}")),
            OnSnapshots::Remove { which } => self.remove_snapshot(which),
            OnSnapshots::Sweep => {
                let swept = self.volume().snapshot_step();
                self.expect(swept.map(drop), "sweep")
            }
            OnSnapshots::RollBack { which, cut_after } => self.roll_back(which, cut_after),
            OnSnapshots::Clone { which, op } => self.clone_snapshot(which, op),
        }
    }

    /// Takes the answer of the volume: an error must have a reason.
    fn expect(&self, done: weald_format::Result<()>, what: &str) -> Verdict {
        let is_limited = self.world().lock().is_limited;
        match done {
            Err(error) if is_limited && error.kind() == ErrorKind::Full => Ok(()),
            Err(error) if !self.has_failed() => Err(format!("{what}: {error}")),
            _ => Ok(()),
        }
    }

    fn take_snapshot(&mut self, name: &str) -> Verdict {
        let (volume, world) = (self.volume(), self.world());
        let states = world.lock().count();
        let is_there = world.lock().snapshots.contains_key(name);
        let taken = volume.take_snapshot(name, 0).map(drop);
        if is_there {
            // The changes are committed all the same.
            return match taken {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    world.lock().synced(states);
                    Ok(())
                }
                Ok(()) => Err("a second snapshot of one name".to_owned()),
                other => self.expect(other, "take"),
            };
        }
        let mut world = world.lock();
        if taken.is_ok() {
            let model = world.model.clone();
            world.snapshots.insert(name.to_owned(), model);
            world.synced(states);
            return Ok(());
        }
        world.doubtful_snapshot = Some((name.to_owned(), world.model.clone()));
        drop(world);
        self.expect(taken, "take")
    }

    /// One of the snapshots that are there.
    fn chosen(&self, which: u64) -> Option<(String, ModelFs)> {
        let world = self.world();
        let world = world.lock();
        let count = world.snapshots.len() as u64;
        let mut all = world.snapshots.iter();
        let (name, model) = all.nth(which.checked_rem(count)? as usize)?;
        Some((name.clone(), model.clone()))
    }

    fn remove_snapshot(&mut self, which: u64) -> Verdict {
        let Some((name, model)) = self.chosen(which) else {
            return Ok(());
        };
        let removed = self.volume().remove_snapshot(&name);
        let world = self.world();
        match &removed {
            Err(error) if error.kind() == ErrorKind::Full => {}
            _ => drop(world.lock().snapshots.remove(&name)),
        }
        if removed.is_err() && self.has_failed() {
            world.lock().doubtful_snapshot = Some((name, model));
        }
        self.expect(removed, "remove")
    }

    /// The store is closed meanwhile.
    fn roll_back(&mut self, which: u64, cut_after: Option<u64>) -> Verdict {
        let Some((name, model)) = self.chosen(which) else {
            return Ok(());
        };
        let at = self.at;
        self.sealing = None;
        self.close_all()?;
        self.at = at;
        if self.has_failed() {
            return self.opened_again();
        }
        self.disk = self.disk.restart();
        let faults = self.bug.and_then(crate::PlantedBug::of_snapshots);
        let rolled = Store::open(std::sync::Arc::new(self.disk.clone())).and_then(|store| {
            // What a mount does before anything else.
            crate::apply_sync_log(&store, self.side().name, "the simulation")?;
            let mut writer = store.write(WriteOptions {
                steps: Steps::small(),
                faults: Faults::of(faults),
                ..WriteOptions::new("the simulation")
            })?;
            if let Some(count) = cut_after {
                self.disk.fail_after(count, Fault::PowerCut);
            }
            writer.roll_back(self.side().name, &name)
        });
        self.world().lock().note(format!("rolled back: {rolled:?}"));
        {
            let world = self.world();
            let mut world = world.lock();
            model.set_next_ino(world.model.next_ino());
            // The next mount drops what has no name.
            let before = world.model.clone();
            before.drop_orphans();
            world.states = if rolled.is_ok() {
                vec![model.clone()]
            } else {
                vec![before, world.model.clone(), model.clone()]
            };
            world.first = 0;
            world.model = model;
        }
        self.expect(rolled, "roll back")?;
        self.opened_again()
    }

    fn opened_again(&mut self) -> Verdict {
        self.disk = if self.disk.is_off() {
            self.disk.reboot()
        } else {
            self.disk.restart()
        };
        self.recover()
    }

    fn clone_snapshot(&mut self, which: u64, op: crate::simulation::steps::Op) -> Verdict {
        let Some((name, model)) = self.chosen(which) else {
            return Ok(());
        };
        let volume = self.volume();
        let cloned = volume.clone_snapshot(&name, "clone", 0);
        self.world().lock().note(format!("cloned: {cloned:?}"));
        if cloned.is_err() {
            return self.expect(cloned, "clone");
        }
        let shared = volume.core.shared.clone();
        let changed = (|| -> Result<(), String> {
            let options = OpenOptions {
                background: false,
                ..self.options(false)
            };
            let clone = Volume::open_in(&shared, "clone", options).map_err(|e| e.to_string())?;
            compare(&*clone, &model).map_err(|difference| format!("{difference:?}"))?;
            let resolver = crate::simulation::perform::Resolver::new(&model);
            let _outcome = resolver.perform(&*clone, op, 1);
            clone.close().map_err(|e| e.to_string())
        })();
        let removed = changed.and_then(|()| {
            let mut writing = shared.writing.lock();
            let removed = writing.writer.remove_volume("clone");
            shared.noted(&writing, removed).map_err(|e| e.to_string())
        });
        self.world()
            .lock()
            .note(format!("clone removed: {removed:?}"));
        match removed {
            Err(_) if self.has_failed() || self.world().lock().is_limited => Ok(()),
            Err(what) => Err(format!("clone: {what}")),
            Ok(()) => self.compare_snapshots(),
        }
    }

    /// After a crash: what was in doubt is there or not.
    pub(super) fn resolve_snapshots(&mut self) -> Verdict {
        if self.has_failed() {
            return Ok(());
        }
        let (volume, world) = (self.volume(), self.world());
        let doubtful = world.lock().doubtful_snapshot.take();
        if let Some((name, model)) = doubtful {
            let listed = volume.snapshots().map_err(|e| format!("snapshots: {e}"))?;
            let mut world = world.lock();
            if listed.iter().any(|snapshot| snapshot.name == name) {
                world.snapshots.insert(name, model);
            } else {
                world.snapshots.remove(&name);
            }
        }
        self.compare_snapshots()
    }

    /// The snapshots that are there must be those of the model.
    pub(super) fn compare_snapshots(&self) -> Verdict {
        let (volume, world) = (self.volume(), self.world());
        let world = world.lock();
        let listed = match volume.snapshots() {
            Err(_) if self.has_failed() => return Ok(()),
            listed => listed.map_err(|error| format!("snapshots: {error}"))?,
        };
        let listed: BTreeSet<String> = listed.into_iter().map(|s| s.name).collect();
        if listed != world.snapshots.keys().cloned().collect() {
            return Err(format!("snapshots {listed:?}"));
        }
        for (name, model) in &world.snapshots {
            let opened = volume.open_snapshot(name);
            let difference = match opened {
                Ok(opened) => compare(&*opened, model).err(),
                Err(error) => Some(Difference::Unreadable(error.to_string())),
            };
            match difference {
                Some(Difference::Unreadable(_)) if self.has_failed() => return Ok(()),
                Some(difference) => return Err(format!("snapshot {name}: {difference:?}")),
                None => {}
            }
        }
        Ok(())
    }

    /// Removes all snapshots of the volume of this step.
    pub(super) fn remove_snapshots(&mut self) -> Verdict {
        let volume = self.volume();
        let names: Vec<String> = self.world().lock().snapshots.keys().cloned().collect();
        for name in names {
            let removed = volume.remove_snapshot(&name);
            removed.map_err(|error| format!("remove: {error}"))?;
        }
        self.world().lock().snapshots.clear();
        loop {
            match volume.snapshot_step() {
                Ok(false) => return Ok(()),
                Ok(true) => {}
                // The reserve of so small a disk is smaller than a commit may be.
                Err(error) if error.kind() == ErrorKind::Full && self.world().lock().is_limited => {
                    self.disk.limit(u64::MAX);
                }
                Err(error) => return Err(format!("sweep: {error}")),
            }
        }
    }

    /// A recount of a store with snapshots finds nothing.
    pub(super) fn recounted(&self, store: &Store) -> Verdict {
        if self
            .sides
            .iter()
            .all(|side| side.world.lock().snapshots.is_empty())
        {
            return Ok(());
        }
        let writer = store.write_for_check("the simulation".to_owned());
        let checked = writer.and_then(|writer| writer.check(false, &mut |_| {}));
        let mut findings = checked.map_err(|error| format!("check: {error}"))?.findings;
        // The next writer makes it again after a crash.
        findings.retain(|finding| !finding.what.contains("(journal at byte"));
        if findings.is_empty() {
            Ok(())
        } else {
            Err(format!("check of the store: {findings:?}"))
        }
    }
}
