//! Images of the store that get another name.

use super::world::{Renaming, World};
use super::{Verdict, VolumeRun};
use crate::simulation::sealed::compare_image;
use crate::simulation::steps::RenameImage;
use weald_format::{Error, ErrorKind, Result};
use weald_store::{IfTaken, Store};

impl VolumeRun {
    /// Gives an image of the store another name, if there is one.
    pub(super) fn rename_image(&mut self, step: &RenameImage) -> Verdict {
        let first = self.first_world();
        let names: Vec<String> = first.lock().images.keys().cloned().collect();
        let Some(old) = names.get(step.which as usize % names.len().max(1)).cloned() else {
            return Ok(());
        };
        let new = format!("image-{}", step.number);
        if old == new || first.lock().is_in_doubt() {
            return Ok(());
        }
        let if_taken = if step.replaces {
            IfTaken::Replace
        } else {
            IfTaken::Fail
        };
        let renamed = self.volume().rename_image(&old, &new, if_taken);
        let mut world = first.lock();
        world.note(format!("rename {old} to {new}, {if_taken:?}: {renamed:?}"));
        let is_taken = world.images.contains_key(&new);
        match renamed {
            Ok(()) if is_taken && !step.replaces => {
                return Err(format!("{old} got the name {new} of another image"));
            }
            Ok(()) => {
                let records = world.images.remove(&old).unwrap_or_default();
                world.images.insert(new, records);
            }
            Err(error) if error.kind() == ErrorKind::Busy && is_taken && !step.replaces => {}
            Err(_) if self.has_failed() || world.is_limited => {
                let records = world.images.remove(&old).unwrap_or_default();
                let replaced = world.images.remove(&new);
                world.renaming = Some(Renaming {
                    old,
                    new,
                    records,
                    replaced,
                });
            }
            Err(error) => return Err(format!("rename {old} to {new}: {error}")),
        }
        drop(world);
        self.compare_images()
    }
}

impl World {
    /// Whether it is not known which images the store has.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubtful.is_some() || self.renaming.is_some()
    }

    /// Finds out which name an image has of which the rename failed: one of the two, and what it
    /// would have replaced is there unless it has the new one.
    pub(super) fn settle_renaming(&mut self, store: &Store, names: &[String]) -> Result<()> {
        let Some(renaming) = self.renaming.take() else {
            return Ok(());
        };
        let Renaming {
            old,
            new,
            records,
            replaced,
        } = renaming;
        let has_old = names.contains(&old);
        let (name, other) = if has_old {
            (old, Some(new))
        } else {
            (new, None)
        };
        compare_image(store, &name, &records)?;
        self.images.insert(name, records);
        match (other, replaced) {
            (Some(other), Some(replaced)) => {
                compare_image(store, &other, &replaced)?;
                self.images.insert(other, replaced);
            }
            (Some(other), None) if names.contains(&other) => {
                return Err(Error::invalid(format!("{other} is there under two names")));
            }
            _ => {}
        }
        Ok(())
    }
}
