//! The store's writer of this process, for those of its parts that read volumes.

use crate::named_volume::Named;
use crate::writer_name::writer_name;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use weald_store::{READER_OF_VOLUME, Store, StoreWriter, WriteOptions};

/// The writer of the store, which nothing else changes meanwhile. Two trees of one store have the
/// same one.
///
/// # Errors
/// `Busy` if another process has it; `Io`, `Corrupt`.
pub fn writer_of(named: &Named) -> anyhow::Result<Arc<Mutex<StoreWriter>>> {
    writer_after(named, &|_| Ok(()))
}

/// As [`writer_of`], after the changes in the sync log of the volume.
///
/// # Errors
/// As [`writer_of`]; those of [`weald_volume::apply_sync_log`].
pub fn writer_of_newest(named: &Named) -> anyhow::Result<Arc<Mutex<StoreWriter>>> {
    writer_after(named, &|store| {
        weald_volume::apply_sync_log(store, &named.name, &writer_name(READER_OF_VOLUME))
    })
}

/// The writer that this process has, or a new one, after `prepare`.
fn writer_after(
    named: &Named,
    prepare: &dyn Fn(&Store) -> weald_format::Result<()>,
) -> anyhow::Result<Arc<Mutex<StoreWriter>>> {
    static WRITERS: Mutex<Vec<(PathBuf, Weak<Mutex<StoreWriter>>)>> = Mutex::new(Vec::new());
    let mut writers = WRITERS.lock().unwrap_or_else(PoisonError::into_inner);
    writers.retain(|(_, writer)| writer.strong_count() > 0);
    let mut known = writers.iter().filter(|(dir, _)| *dir == named.dir);
    if let Some(writer) = known.find_map(|(_, writer)| writer.upgrade()) {
        return Ok(writer);
    }
    let store = named.store.for_reading();
    prepare(&store)?;
    let writer = store.write(WriteOptions::new(writer_name(READER_OF_VOLUME)))?;
    let writer = Arc::new(Mutex::new(writer));
    writers.push((named.dir.clone(), Arc::downgrade(&writer)));
    Ok(writer)
}
