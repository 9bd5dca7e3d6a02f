//! A disk whose syncs do nothing: for stores whose data can be made again.
//!
//! The order of writes to the disk below is then that of the kernel. A power cut can damage the
//! store; the death of the process cannot, because the kernel has all writes.

use super::{Access, Disk, DiskSpace, LocalFile, LocalFiles, Object};
use crate::far_objects::FarPlace;
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::Result;

/// A disk without syncs, except [`LocalFiles::sync_all`].
#[derive(Debug)]
pub struct UnsyncedDisk(pub Arc<dyn LocalFiles>);

#[derive(Debug)]
struct UnsyncedFile(Box<dyn LocalFile>);

impl LocalFiles for UnsyncedDisk {
    fn open(&self, name: &str, access: Access) -> Result<Box<dyn LocalFile>> {
        let file = self.0.open(name, access)?;
        Ok(Box::new(UnsyncedFile(file)))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.0.list(dir)
    }

    fn make_dir(&self, dir: &str) -> Result<()> {
        self.0.make_dir(dir)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(name)
    }

    fn sync_dir(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        self.0.sync_all()
    }

    fn has_syncs(&self) -> bool {
        false
    }

    fn shown(&self) -> String {
        self.0.shown()
    }

    fn identity(&self) -> Option<[u64; 2]> {
        self.0.identity()
    }

    fn is_in_memory(&self) -> bool {
        self.0.is_in_memory()
    }

    fn owner(&self, name: &str) -> Result<Option<u32>> {
        self.0.owner(name)
    }

    fn holders_of_lock(&self, name: &str, offset: u64) -> Vec<u32> {
        self.0.holders_of_lock(name, offset)
    }

    fn allocated_len(&self, name: &str) -> Result<Option<u64>> {
        self.0.allocated_len(name)
    }

    fn space(&self) -> Result<DiskSpace> {
        self.0.space()
    }

    fn capacity(&self) -> Result<DiskSpace> {
        self.0.capacity()
    }

    fn changed_at(&self, name: &str) -> Option<u64> {
        self.0.changed_at(name)
    }

    fn open_place(&self, place: &str) -> Result<Arc<dyn Disk>> {
        self.0.open_place(place)
    }

    fn open_far(&self, place: &str) -> Result<Arc<FarPlace>> {
        self.0.open_far(place)
    }

    fn is_far(&self, name: &str) -> bool {
        self.0.is_far(name)
    }

    fn home(&self) -> Option<Arc<dyn Disk>> {
        self.0.home()
    }

    fn is_at_home(&self, name: &str) -> bool {
        self.0.is_at_home(name)
    }

    fn why_missing(&self, name: &str) -> Option<String> {
        self.0.why_missing(name)
    }

    fn open_unnoted(&self, name: &str) -> Result<Box<dyn LocalFile>> {
        self.0.open_unnoted(name)
    }

    fn sweep(&self, is_all: bool) -> Result<()> {
        self.0.sweep(is_all)
    }

    fn take_reads(&self) -> BTreeMap<String, u64> {
        self.0.take_reads()
    }
}

impl Object for UnsyncedFile {
    fn len(&self) -> Result<u64> {
        self.0.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_at(buf, offset)
    }
}

impl LocalFile for UnsyncedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.0.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn read_anew(&self) -> Result<()> {
        self.0.read_anew()
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.0.punch(offset, len)
    }

    fn try_lock(&self, offset: u64, is_exclusive: bool) -> Result<bool> {
        self.0.try_lock(offset, is_exclusive)
    }
}
