//! Seals of the volume, and images that are added to its store.

use super::{Verdict, VolumeRun};
use crate::simulation::perform::Difference;
use crate::simulation::sealed::{Addition, Sealing, compare_image};
use crate::simulation::steps::{AddImage, Op, RemoveImage, Step};
use std::sync::Arc;
use weald_format::container::RecordRef;
use weald_format::{Error, ErrorKind};
use weald_store::Store;

impl VolumeRun {
    pub(super) fn begin_seal(&mut self, is_late: bool) -> Verdict {
        if self.sealing.is_some() {
            return Ok(());
        }
        let states = self.world().lock().count();
        let model = self.world().lock().model.clone();
        let of = (&self.volume(), self.side().name);
        let begun = Sealing::begin(of, &model, is_late);
        self.acknowledge(begun.as_ref().map(drop).map_err(|e| e.to_string()), states)?;
        self.sealing = begun.ok();
        Ok(())
    }

    pub(super) fn end_seal(&mut self, image: Option<&AddImage>) -> Verdict {
        let Some(mut sealing) = self.sealing.take().filter(|sealing| !sealing.is_over()) else {
            return Ok(());
        };
        let store = Store::open(Arc::new(self.disk.clone()));
        let compared = match store {
            Ok(store) => sealing.compare(&store),
            Err(error) => Err(Difference::Unreadable(error.to_string())),
        };
        match (compared, image) {
            (Ok(()), Some(image)) => self.add_sealed(&mut sealing, image),
            (Ok(()), None) => Ok(()),
            (Err(Difference::Unreadable(_)), _) if self.has_failed() => Ok(()),
            (Err(difference), _) => Err(format!("{difference:?}")),
        }
    }

    /// Adds the image of a seal to the store.
    fn add_sealed(&mut self, sealing: &mut Sealing, image: &AddImage) -> Verdict {
        let name = format!("image-{}", image.number);
        let records = sealing.records(&name);
        let (mut ops, mut moment, mut verdict) = (image.beside.iter(), 0, Ok(()));
        let added = sealing.add(&name, &mut || {
            moment += 1;
            if let Some(op) = ops.next() {
                let performed = self.perform_and_commit(*op);
                verdict = std::mem::replace(&mut verdict, Ok(())).and(performed);
            }
            image.given_up_after.is_some_and(|after| moment > after)
        });
        verdict?;
        let is_done = matches!(added, Ok(Addition::Done));
        self.note_image(name, records, added)?;
        if is_done && image.is_cut {
            self.step(&Step::PowerCut)
        } else {
            self.compare_images()
        }
    }

    pub(super) fn perform_and_commit(&self, op: Op) -> Verdict {
        let (volume, world) = (self.volume(), self.world());
        let mut world = world.lock();
        world.perform(&volume, op, || self.has_failed())?;
        let states = world.count();
        if volume.commit().is_ok() {
            world.synced(states);
        }
        Ok(())
    }

    /// Removes an image from the store, if there is one.
    pub(super) fn remove_image(&mut self, step: &RemoveImage) -> Verdict {
        let first = self.first_world();
        let names: Vec<String> = first.lock().images.keys().cloned().collect();
        let Some(name) = names.get(step.which as usize % names.len().max(1)) else {
            return Ok(());
        };
        let (mut ops, mut moment, mut verdict) = (step.beside.iter(), 0, Ok(()));
        let removed = self.remove_in_parts(name, &mut || {
            moment += 1;
            if let Some(op) = ops.next() {
                let performed = self.perform_and_commit(*op);
                verdict = std::mem::replace(&mut verdict, Ok(())).and(performed);
            }
            step.cut_after.is_some_and(|after| moment > after)
        });
        verdict?;
        self.note_removal(name, removed)?;
        match step.cut_after {
            Some(_) => self.step(&Step::PowerCut),
            None => self.compare_images(),
        }
    }

    /// Removes the image `name`. `is_cut` happens in between, and says whether to stop. Returns
    /// whether readers have lost the image.
    fn remove_in_parts(
        &self,
        name: &str,
        is_cut: &mut dyn FnMut() -> bool,
    ) -> weald_format::Result<bool> {
        let mut removing = self.volume().begin_removal(name, false)?;
        if is_cut() {
            return Ok(false);
        }
        let mut has_more = removing.hide()?;
        while !is_cut() && has_more {
            has_more = removing.drop_some()?;
        }
        if !has_more {
            removing.forget()?;
        }
        Ok(true)
    }

    /// Takes the answer to a removal.
    fn note_removal(&self, name: &str, removed: weald_format::Result<bool>) -> Verdict {
        let first = self.first_world();
        let mut world = first.lock();
        world.note(format!("remove {name}: {removed:?}"));
        match removed {
            Ok(false) => {}
            Ok(true) => {
                world.images.remove(name);
            }
            // The image may have lost its name before that.
            Err(_) if self.has_failed() || world.is_limited => {
                let records = world.images.remove(name);
                world.doubtful = records.map(|records| (name.to_owned(), records));
            }
            Err(error) => return Err(format!("remove {name}: {error}")),
        }
        Ok(())
    }

    /// Takes the answer to an image.
    fn note_image(
        &self,
        name: String,
        records: Vec<RecordRef>,
        added: weald_format::Result<Addition>,
    ) -> Verdict {
        let first = self.first_world();
        let mut world = first.lock();
        world.note(format!("{name}: {added:?}"));
        let is_there = world.images.contains_key(&name);
        match added {
            Ok(Addition::Done) if is_there => return Err(format!("{name}: was added twice")),
            Ok(Addition::Done) => {
                world.images.insert(name, records);
            }
            Err(_) if is_there => {}
            _ if self.has_failed() => world.doubtful = Some((name, records)),
            Ok(Addition::GivenUp) => {}
            Err(_) if world.is_limited => {}
            Err(error) => return Err(format!("{name}: {error}")),
        }
        Ok(())
    }

    /// Images that were added are there and whole, and no others are; one may be doubtful.
    pub(super) fn compare_images(&self) -> Verdict {
        let store = Store::open(Arc::new(self.disk.clone()));
        let compared = store.and_then(|store| {
            let names: Vec<String> = store.names()?;
            let first = self.first_world();
            let mut world = first.lock();
            if let Some((name, records)) = world.doubtful.clone()
                && names.contains(&name)
            {
                compare_image(&store, &name, &records)?;
                if !self.has_failed() {
                    world.images.insert(name, records);
                    world.doubtful = None;
                }
            }
            if !self.has_failed() {
                world.settle_renaming(&store, &names)?;
            }
            let is_known = |name: &&String| world.images.contains_key(*name) || self.has_failed();
            if let Some(other) = names.iter().find(|name| !is_known(name)) {
                return Err(Error::not_found(format!("{other} was not added")));
            }
            for (name, records) in &world.images {
                compare_image(&store, name, records)?;
            }
            Ok(())
        });
        match compared {
            Err(error) if self.has_failed() && error.kind() == ErrorKind::Io => Ok(()),
            other => other.map_err(|error| format!("images: {error}")),
        }
    }
}
