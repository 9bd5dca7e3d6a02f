//! Makes files of a replica again from its store.

use super::gather::read_range;
use super::place::{Place, data_path};
use super::verify::Verified;
use crate::layout::{self, ObjectKind, ObjectName};
use crate::segment;
use crate::store::Store;
use weald_format::replica::{DataFile, DataKind, pack_segment};
use weald_format::store::MAP_LEN_MAX;
use weald_format::{Digest, Result};

impl Store {
    /// Removes the files of data that `verified` found damaged in the replica at `place`, and puts
    /// those again, and missing ones, that this store still has the bytes of. Returns whether that
    /// is all that is wrong: otherwise everything has to be sent anew.
    ///
    /// # Errors
    /// Those of the place.
    pub fn repair_replica(&self, place: &dyn Place, verified: &Verified) -> Result<bool> {
        for path in &verified.damaged_files {
            // Where nothing can be removed, a damaged file is replaced when it is put again.
            if let Err(error) = place.remove(path) {
                log::info!("{}/{path}: {error}", place.shown());
            }
        }
        let mut made_count = 0;
        for file in &verified.bad_files {
            if let Some(bytes) = self.make_again(file) {
                place.put(&data_path(&file.digest), &bytes)?;
                made_count += 1;
            }
        }
        let is_all = made_count == verified.bad_files.len();
        Ok(is_all && verified.findings.len() == verified.bad_files.len())
    }

    /// The bytes of a file of data, if the store still has them.
    fn make_again(&self, file: &DataFile) -> Option<Vec<u8>> {
        match file.kind {
            DataKind::Rows => None,
            DataKind::Segment {
                number,
                offset,
                len,
            } => {
                let object = segment::open(&*self.disk, number).ok()?;
                let end = offset.checked_add(len)?;
                if object.len().ok()? < end {
                    return None;
                }
                let bytes = pack_segment(&read_range(&*object, offset, end).ok()?);
                (Digest::of(&bytes) == file.digest).then_some(bytes)
            }
            DataKind::Map(image_no) => {
                let names = self.disk.list_objects(ObjectKind::Map).ok()?;
                let shown = names.iter().map(|n| ObjectName::new(ObjectKind::Map, n));
                let mut objects = std::iter::once(layout::hidden_map(image_no)).chain(shown);
                objects.find_map(|object| {
                    let bytes = self.read_object(&object, MAP_LEN_MAX).ok()?;
                    (Digest::of(&bytes) == file.digest).then_some(bytes)
                })
            }
        }
    }
}
