//! Seals of the volume, and images that are added to its store.

use super::{Run, Verdict};
use crate::simulation::perform::Difference;
use crate::simulation::sealed::{Addition, Sealing, compare_image};
use crate::simulation::steps::{AddImage, Step};
use std::sync::Arc;
use weald_format::container::RecordRef;
use weald_format::{Error, ErrorKind};
use weald_store::Store;

impl Run {
    pub(super) fn begin_seal(&mut self, is_late: bool) -> Verdict {
        if self.sealing.is_some() {
            return Ok(());
        }
        let states = self.world.lock().count();
        let model = self.world.lock().model.clone();
        let begun = Sealing::begin(&self.volume(), &model, is_late);
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
        let (volume, disk, world) = (self.volume(), self.disk.clone(), self.world.clone());
        let (mut ops, mut moment, mut verdict) = (image.beside.iter(), 0, Ok(()));
        let added = sealing.add(&name, &mut || {
            moment += 1;
            if let Some(op) = ops.next() {
                let performed = world
                    .lock()
                    .perform(&volume, *op, || disk.fault_count() > 0);
                let states = world.lock().count();
                if volume.commit().is_ok() {
                    world.lock().synced(states);
                }
                verdict = std::mem::replace(&mut verdict, Ok(())).and(performed);
            }
            image.given_up_after.is_some_and(|after| moment > after)
        });
        verdict?;
        drop(volume);
        let is_done = matches!(added, Ok(Addition::Done));
        self.note_image(name, records, added)?;
        match is_done && image.is_cut {
            true => self.step(&Step::PowerCut),
            false => self.compare_images(),
        }
    }

    /// Takes the answer to an image.
    fn note_image(
        &self,
        name: String,
        records: Vec<RecordRef>,
        added: weald_format::Result<Addition>,
    ) -> Verdict {
        let mut world = self.world.lock();
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
            let mut world = self.world.lock();
            if let Some((name, records)) = world.doubtful.clone()
                && names.contains(&name)
            {
                compare_image(&store, &name, &records)?;
                if !self.has_failed() {
                    world.images.insert(name, records);
                    world.doubtful = None;
                }
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
