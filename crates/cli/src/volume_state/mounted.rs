//! A state of a mounted volume, read beside its server.

use crate::named_volume::Named;
use crate::reported_mounts::Mounted;
use crate::runtime_dir::runtime_dir_path;
use anyhow::{Context, bail};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use weald_daemon::{HeldVolume, RuntimeDir};
use weald_io::Spool;
use weald_store::LOCK_FILE;
use weald_store::engine::{Engine, RowsFile};
use weald_volume::VolumeReader;

/// A state that the server of a volume keeps.
pub struct MountedState {
    held: HeldVolume,
    rows: Arc<RowsFile>,
    reader: VolumeReader,
    shown: String,
}

impl MountedState {
    /// Lets the server of `mount` write all changes to disk and keep the state after them. A copy
    /// of the tables goes to a temporary file.
    pub fn open((named, state): (&Named, &str), (pid, _): &Mounted) -> anyhow::Result<Self> {
        let lock = named.dir.join(LOCK_FILE);
        let opened = File::options().read(true).write(true).open(&lock);
        let opened = opened.with_context(|| {
            let lock = lock.display();
            format!("{lock}: cannot be opened for writing, as sealing a mounted volume needs")
        })?;
        let shown = named.shown();
        let Some(found) = Self::begin(named, state, &opened)? else {
            bail!("{shown}: process {pid} has unmounted it just now: try again");
        };
        Ok(found)
    }

    /// As [`MountedState::open`], of the server that has the store of the volume open; `None` if
    /// this user has no such server, or the lock of the store cannot be opened for writing.
    pub fn find(named: &Named, state: &str) -> anyhow::Result<Option<Self>> {
        let lock = named.dir.join(LOCK_FILE);
        match File::options().read(true).write(true).open(&lock) {
            Ok(opened) => Self::begin(named, state, &opened),
            Err(_) => Ok(None),
        }
    }

    fn begin(named: &Named, state: &str, lock: &File) -> anyhow::Result<Option<Self>> {
        let mut rows = Spool::create(&std::env::temp_dir())?;
        let mut put = |bytes: &[u8]| rows.append(bytes).map(drop);
        let runtime_dir = RuntimeDir::find(&runtime_dir_path())?;
        let held = match &runtime_dir {
            Some(dir) => HeldVolume::begin(dir, lock.as_fd(), state, &mut put)?,
            None => None,
        };
        let Some(held) = held else {
            return Ok(None);
        };
        let rows = Arc::new(RowsFile::open(Box::new(rows))?);
        let reader = VolumeReader::of_rows(&named.store, rows.clone(), state)?;
        Ok(Some(Self {
            held,
            rows,
            reader,
            shown: named.shown(),
        }))
    }

    /// As [`MountedState::find`], of two states of the volume, with what differs between them.
    pub fn find_changes(
        named: &Named,
        states: [Option<&str>; 2],
    ) -> anyhow::Result<Option<(HeldVolume, [VolumeReader; 2])>> {
        let lock = named.dir.join(LOCK_FILE);
        let Ok(opened) = File::options().read(true).write(true).open(&lock) else {
            return Ok(None);
        };
        let Some(dir) = RuntimeDir::find(&runtime_dir_path())? else {
            return Ok(None);
        };
        let dir_of_rows = std::env::temp_dir();
        let mut rows = [Spool::create(&dir_of_rows)?, Spool::create(&dir_of_rows)?];
        let mut put = |no: usize, bytes: &[u8]| match rows.get_mut(no) {
            Some(rows) => rows.append(bytes).map(drop),
            None => Ok(()),
        };
        let what = (named.name.as_str(), states);
        let held = HeldVolume::begin_changes(&dir, opened.as_fd(), what, &mut put)?;
        let Some(held) = held else {
            return Ok(None);
        };
        let [left, right] = rows.map(|rows| {
            let rows = Arc::new(RowsFile::open(Box::new(rows))?);
            VolumeReader::of_rows(&named.store, rows, &named.name)
        });
        Ok(Some((held, [left?, right?])))
    }

    /// The state.
    pub fn reader(&self) -> &VolumeReader {
        &self.reader
    }

    /// The connection, which keeps the blocks of the state, and the state.
    pub fn into_parts(self) -> (HeldVolume, VolumeReader) {
        (self.held, self.reader)
    }

    /// The rows of the state.
    pub fn rows(&self) -> Arc<dyn Engine> {
        self.rows.clone()
    }

    /// The connection to the server.
    pub fn held(&self) -> &HeldVolume {
        &self.held
    }

    /// The outcome of reading the state; an error names the reason if the state is gone.
    pub fn explained<T>(&self, outcome: anyhow::Result<T>) -> anyhow::Result<T> {
        match outcome {
            Err(error) if self.held.is_over() => Err(error.context(format!(
                "{}: was unmounted while it was sealed: seal it again",
                self.shown
            ))),
            outcome => outcome,
        }
    }
}
