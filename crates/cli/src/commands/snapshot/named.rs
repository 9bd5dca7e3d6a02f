//! The snapshot that a command line names, by `STORE:VOLUME@NAME`, and who does the work: the
//! server that has the store open, or this process.

use crate::commands::store::store_lock::open_lock;
use crate::named_volume::Named;
use crate::open_store::show_path;
use crate::runtime_dir::runtime_dir_path;
use crate::writer_name::writer_name;
use anyhow::{Context, bail};
use std::os::fd::AsFd;
use std::path::Path;
use weald_daemon::{RuntimeDir, SnapshotReport, SnapshotWork};
use weald_format::ErrorKind;

/// A snapshot that a command names.
pub struct NamedSnapshot {
    pub volume: Named,
    pub name: String,
}

impl NamedSnapshot {
    /// Opens the store of `STORE:VOLUME@NAME`.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let mut volume = Named::open(path)?;
        let Some((of, name)) = weald_store::split_state(&volume.name) else {
            bail!(
                "{}: expected the name of a snapshot behind an '@', as in {}@NAME",
                show_path(path),
                show_path(path)
            );
        };
        let (of, name) = (of.to_owned(), name.to_owned());
        volume.name = of;
        volume.find()?;
        Ok(Self { volume, name })
    }

    /// `STORE:VOLUME@NAME` in messages.
    pub fn shown(&self) -> String {
        format!("{}@{}", self.volume.shown(), self.name)
    }
}

/// Does `work` with the snapshots of a volume.
pub fn do_work(volume: &Named, work: &SnapshotWork) -> anyhow::Result<Vec<SnapshotReport>> {
    let (store, name) = (&volume.store, volume.name.as_str());
    let reading;
    let store = if work.is_reading() {
        reading = store.for_reading();
        &reading
    } else {
        store
    };
    let done = match weald_daemon::work_alone(store, name, work, writer_name("snapshot")) {
        Err(busy) if busy.kind() == ErrorKind::Busy => {
            let lock = open_lock(Path::new(&volume.store.shown()))?;
            let done = match RuntimeDir::find(&runtime_dir_path())? {
                Some(dir) => weald_daemon::work_on_snapshots(&dir, lock.as_fd(), name, work),
                None => Ok(None),
            };
            done.and_then(|done| done.ok_or(busy))
        }
        done => done,
    };
    done.with_context(|| volume.shown())
}
