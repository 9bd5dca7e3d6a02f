//! A disk that notes which bytes of the tables are read.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use weald_format::Result;
use weald_store::disk::{Access, HostDisk, LocalFile, LocalFiles, Object};

/// What happened to bytes of `meta`, by offset: read before anything was written there, or written.
#[derive(Debug, Default)]
struct Bytes {
    is_read: Vec<bool>,
    is_written: Vec<bool>,
}

/// The bytes of `meta` that somebody reads.
#[derive(Debug, Clone, Default)]
pub struct Trace(Arc<Mutex<Bytes>>);

impl Trace {
    fn range<'a>(marks: &'a mut Vec<bool>, range: &Range<usize>) -> &'a mut [bool] {
        marks.resize(marks.len().max(range.end), false);
        &mut marks[range.clone()]
    }

    fn read(&self, range: Range<usize>) {
        let mut bytes = self.0.lock().expect("a lock");
        let written = Self::range(&mut bytes.is_written, &range).to_vec();
        let read = Self::range(&mut bytes.is_read, &range).iter_mut();
        read.zip(written)
            .for_each(|(read, written)| *read |= !written);
    }

    fn write(&self, range: Range<usize>) {
        Self::range(&mut self.0.lock().expect("a lock").is_written, &range).fill(true);
    }

    /// Whether one of these bytes is read.
    pub fn has(&self, range: Range<u64>) -> bool {
        let bytes = self.0.lock().expect("a lock");
        let is_read = |at: u64| bytes.is_read.get(at as usize) == Some(&true);
        range.into_iter().any(is_read)
    }

    /// Number of bytes that are read.
    pub fn len(&self) -> usize {
        self.0
            .lock()
            .expect("a lock")
            .is_read
            .iter()
            .filter(|is_read| **is_read)
            .count()
    }
}

#[derive(Debug)]
pub struct TracedDisk {
    below: HostDisk,
    trace: Trace,
}

impl TracedDisk {
    pub fn new(dir: &Path, trace: &Trace) -> Self {
        Self {
            below: HostDisk::new(dir),
            trace: trace.clone(),
        }
    }
}

#[derive(Debug)]
struct TracedFile(Box<dyn LocalFile>, Trace);

fn range(offset: u64, len: usize) -> Range<usize> {
    offset as usize..offset as usize + len
}

impl Object for TracedFile {
    fn len(&self) -> Result<u64> {
        self.0.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.1.read(range(offset, buf.len()));
        self.0.read_at(buf, offset)
    }
}

impl LocalFile for TracedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.1.write(range(offset, bytes.len()));
        self.0.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
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

impl LocalFiles for TracedDisk {
    fn open(&self, name: &str, access: Access) -> Result<Box<dyn LocalFile>> {
        let file = self.below.open(name, access)?;
        Ok(match name {
            "meta" => Box::new(TracedFile(file, self.trace.clone())),
            _ => file,
        })
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        self.below.list(dir)
    }

    fn make_dir(&self, dir: &str) -> Result<()> {
        self.below.make_dir(dir)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.below.rename(from, to)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.below.remove(name)
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        self.below.sync_dir(dir)
    }

    fn shown(&self) -> String {
        self.below.shown()
    }
}
