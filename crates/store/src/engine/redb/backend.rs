//! The storage that redb reads and writes: a file of the store.

use crate::disk::LocalFile;
use ::redb::StorageBackend;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weald_format::{Error, ErrorKind, Result};

/// Storage of redb. It wraps the error of the disk in an `io::Error`, the only error that redb
/// passes on.
#[derive(Debug)]
pub(super) struct Backend {
    file: Arc<dyn LocalFile>,
    history: Arc<History>,
}

/// What happened to the storage of an open database.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Whether a write or a sync failed: nobody knows what the disk has.
    has_failed: AtomicBool,
    /// Whether a read failed. redb refuses all calls after that.
    has_failed_read: AtomicBool,
    /// Whether redb panicked: it must not be called again.
    has_panicked: AtomicBool,
    /// Whether the file belongs to another database now. This one neither reads nor writes.
    is_over: AtomicBool,
}

impl History {
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    pub fn has_panicked(&self) -> bool {
        self.has_panicked.load(Ordering::Relaxed)
    }

    pub fn note_panic(&self) {
        self.has_panicked.store(true, Ordering::Relaxed);
    }

    /// Whether redb takes calls.
    pub fn is_usable(&self) -> bool {
        !self.has_panicked() && !self.has_failed_read.load(Ordering::Relaxed)
    }

    /// Ends all reads and writes.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

impl Backend {
    pub fn new(file: Arc<dyn LocalFile>) -> Self {
        Self {
            file,
            history: Arc::default(),
        }
    }

    /// What happens to the storage from now on.
    pub fn history(&self) -> Arc<History> {
        self.history.clone()
    }

    fn file(&self) -> io::Result<&dyn LocalFile> {
        if self.history.is_over.load(Ordering::SeqCst) {
            return Err(io::Error::other("the tables were opened again"));
        }
        Ok(&*self.file)
    }

    fn noted<T>(&self, outcome: Result<T>) -> io::Result<T> {
        outcome.map_err(|error| {
            self.history.has_failed_read.store(true, Ordering::Relaxed);
            as_io(error)
        })
    }

    fn changed(&self, outcome: Result<()>) -> io::Result<()> {
        outcome.map_err(|error| {
            self.history.has_failed.store(true, Ordering::Relaxed);
            as_io(error)
        })
    }
}

fn as_io(error: Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::Full => io::ErrorKind::StorageFull,
        _ => match error.io_source().map(io::Error::kind) {
            Some(io::ErrorKind::UnexpectedEof) => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::Other,
        },
    };
    io::Error::new(kind, error)
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.noted(self.file()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.noted(self.file()?.read_at(out, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.changed(self.file()?.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.changed(self.file()?.sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.changed(self.file()?.write_at(data, offset))
    }
}
