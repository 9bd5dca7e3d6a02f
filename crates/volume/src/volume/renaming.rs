//! Another name for an image of the store of an open volume.
//!
//! The server is the writer of the store. The name moves between two commits. The references of an
//! image that was replaced are dropped in steps, as those of one that is removed.

use super::Volume;
use crate::options::PlantedBug;
use weald_format::Result;
use weald_image::Member;
use weald_store::IfTaken;
use weald_store::faults::Bug;

impl Volume {
    /// Gives the image `old` of the store the name `new`, as [`weald_store::StoreWriter::rename`].
    ///
    /// # Errors
    /// Those of [`weald_store::StoreWriter::rename`]; `Busy` if the volume is being closed or
    /// cannot change, or if the image that would be replaced is the base image of another one;
    /// `Full` if the disk has no room for the rows. A replaced image that cannot be removed stays,
    /// and is told to the log.
    pub fn rename_image(&self, old: &str, new: &str, if_taken: IfTaken) -> Result<()> {
        let shared = &self.core.shared;
        shared.release_replaced()?;
        let needed = match if_taken {
            IfTaken::Replace if shared.store.names()?.iter().any(|name| name == new) => {
                Member::read(&shared.store, new)?
            }
            IfTaken::Replace | IfTaken::Fail => None,
        };
        {
            let mut writing = shared.lock_writer()?;
            shared.removable_rows()?;
            // Under the lock: an image that came since counts.
            if let Some(member) = needed {
                member.refuse_if_needed(&shared.store)?;
            }
            let bug = PlantedBug::RenamedMapNotHidden;
            bug.plant(shared.faults, &mut writing.writer, Bug::RenamedMapNotHidden);
            let renamed = writing.writer.rename_only(old, new, if_taken);
            shared.noted(&writing, renamed)?;
        }
        if if_taken == IfTaken::Replace
            && let Err(error) = shared.release_replaced()
        {
            log::warn!("{new}: the image that had this name stays: {error}");
        }
        Ok(())
    }
}
