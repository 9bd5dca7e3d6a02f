//! A spool: a temporary file for bytes that are read again. It is gone when the process ends, also
//! after SIGKILL.

mod bytes;

use crate::ReadAt;
use bytes::Bytes;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use weald_format::{Error, Result};

/// Temporary files without names, which are read as one. One writer appends; many readers read at
/// any offset.
///
/// Invariant: after a failed write the spool is dead; every further call returns that error.
pub struct Spool {
    bytes: Arc<Bytes>,
    len: u64,
    /// The threads that write what is appended; without any, the writer does.
    threads: Vec<JoinHandle<()>>,
    queue_len_max: u64,
}

/// Threads that write what is appended to a spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteBehind {
    /// Number of threads, and of files: several threads cannot write one file at once.
    pub thread_count: usize,
    /// Bytes that wait for the threads at most; a longer piece waits alone.
    pub queue_len_max: u64,
}

impl WriteBehind {
    /// No threads: who appends writes.
    pub const NONE: Self = Self {
        thread_count: 0,
        queue_len_max: 0,
    };
}

impl Spool {
    /// An empty spool in directory `dir`.
    ///
    /// # Errors
    /// `NotFound`, `Io`, `Full`.
    pub fn create(dir: &Path) -> Result<Self> {
        Ok(Self {
            bytes: Arc::new(new_bytes(dir, 1)?),
            len: 0,
            threads: Vec::new(),
            queue_len_max: 0,
        })
    }

    /// As [`Spool::create`], with the threads of `behind`, or without any if the system allows
    /// fewer.
    ///
    /// # Errors
    /// As [`Spool::create`].
    pub fn create_with(dir: &Path, behind: WriteBehind) -> Result<Self> {
        if behind.thread_count == 0 {
            return Self::create(dir);
        }
        let mut spool = Self {
            bytes: Arc::new(new_bytes(dir, behind.thread_count)?),
            len: 0,
            threads: Vec::new(),
            queue_len_max: behind.queue_len_max,
        };
        for file in 0..behind.thread_count {
            let bytes = spool.bytes.clone();
            let thread = Builder::new().name("spool".to_owned());
            match thread.spawn(move || bytes.write_queued(file)) {
                Ok(thread) => spool.threads.push(thread),
                Err(_) => return Self::create(dir),
            }
        }
        Ok(spool)
    }

    /// Appends `bytes` and returns their offset.
    ///
    /// # Errors
    /// `Full` if the file system is full; `Io`. The spool is dead then. With threads, the error may
    /// be that of an earlier append.
    /// # Cost
    /// One system call, or a copy for the threads. Callers collect small pieces first.
    pub fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        if self.threads.is_empty() {
            self.bytes.write(bytes, self.len)?;
        } else {
            let copy = Arc::new(bytes.to_vec());
            self.bytes.push(copy, self.len, self.queue_len_max)?;
        }
        Ok(self.advance(bytes))
    }

    /// As [`Spool::append`], without a copy: the threads hold `bytes` until they are written.
    ///
    /// # Errors
    /// As [`Spool::append`].
    pub fn append_shared(&mut self, bytes: &Arc<Vec<u8>>) -> Result<u64> {
        if self.threads.is_empty() {
            self.bytes.write(bytes, self.len)?;
        } else {
            let shared = bytes.clone();
            self.bytes.push(shared, self.len, self.queue_len_max)?;
        }
        Ok(self.advance(bytes))
    }

    /// Counts the bytes of `appended`, and returns their offset.
    fn advance(&mut self, appended: &[u8]) -> u64 {
        let offset = self.len;
        self.len += appended.len() as u64;
        offset
    }

    /// A reader of the bytes that are there and of those appended later.
    pub fn reader(&self) -> SpoolReader {
        SpoolReader(self.bytes.clone())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.bytes.close();
        for thread in self.threads.drain(..) {
            // A thread has no result, and a panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl ReadAt for Spool {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.bytes.read_exact_at(buf, offset)
    }
}

/// A reader of a spool.
pub struct SpoolReader(Arc<Bytes>);

impl ReadAt for SpoolReader {
    /// No fixed length: a read past the end of the spool fails.
    fn len(&self) -> u64 {
        u64::MAX
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read_exact_at(buf, offset)
    }
}

fn new_bytes(dir: &Path, file_count: usize) -> Result<Bytes> {
    let files: std::io::Result<_> = (0..file_count).map(|_| unnamed_file(dir)).collect();
    let files = files.map_err(|e| Error::io(format!("temporary file in {}", dir.display()), e))?;
    Ok(Bytes::new(files, dir.to_owned()))
}

/// A file without a name in `dir`. If the file system has no `O_TMPFILE`, the file gets a name that
/// is removed at once.
fn unnamed_file(dir: &Path) -> std::io::Result<File> {
    let dir = weald_sys::open_dir(dir)?;
    if let Ok(file) = weald_sys::create_unnamed_at(&dir, 0o600) {
        return Ok(file);
    }
    let (file, name) = crate::hidden_name::create_hidden(&dir, b"spool", 0o600)?;
    weald_sys::remove_file_at(&dir, &name)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_mount::SmallFs;
    use weald_format::ErrorKind;

    fn behind(thread_count: usize, queue_len_max: u64) -> WriteBehind {
        WriteBehind {
            thread_count,
            queue_len_max,
        }
    }

    #[test]
    fn what_was_appended_is_read_back_and_leaves_no_file() {
        let temp = tempfile::tempdir().unwrap();
        for behind in [WriteBehind::NONE, behind(1, 1), behind(2, 100)] {
            let mut spool = Spool::create_with(temp.path(), behind).unwrap();
            assert_eq!(spool.append(b"abc").unwrap(), 0);
            assert_eq!(spool.append(b"defg").unwrap(), 3);
            let mut buf = [0; 4];
            spool.read_exact_at(&mut buf, 2).unwrap();
            assert_eq!((&buf, spool.len()), (b"cdef", 7));
            let reader = spool.reader();
            let shared = Arc::new(b"hijk".to_vec());
            assert_eq!(spool.append_shared(&shared).unwrap(), 7);
            reader.read_exact_at(&mut buf, 6).unwrap();
            assert_eq!((&buf, spool.len()), (b"ghij", 11));
            assert_eq!(
                spool.read_exact_at(&mut buf, 8).unwrap_err().kind(),
                ErrorKind::Io
            );
            assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
        }
    }

    /// Would catch: pieces written out of order or at a wrong offset, a queue above its limit, a
    /// writer that waits for ever for a piece longer than the queue.
    #[test]
    fn a_thread_writes_what_comes_faster_than_it_writes() {
        let temp = tempfile::tempdir().unwrap();
        let all: Vec<u8> = (0..3_000_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        for thread_count in [1, 3] {
            check_queue(
                &all,
                Spool::create_with(temp.path(), behind(thread_count, 50_000)).unwrap(),
            );
        }
    }

    fn check_queue(all: &[u8], mut spool: Spool) {
        let reader = spool.reader();
        let (mut rest, mut len) = (all, 1);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(len.min(rest.len()));
            let offset = spool.append(piece).unwrap() as usize;
            assert_eq!(offset, all.len() - rest.len());
            assert!(spool.bytes.queued_len() <= 50_000.max(piece.len() as u64));
            // A range that ends with this piece, and begins before the queue or in it.
            let start = offset.saturating_sub(len * 5);
            let mut buf = vec![0; offset + piece.len() - start];
            reader.read_exact_at(&mut buf, start as u64).unwrap();
            assert!(buf == all[start..start + buf.len()], "at {start}");
            (rest, len) = (after, len * 7 % 65_537);
        }
        let mut found = vec![0; all.len()];
        spool.read_exact_at(&mut found, 0).unwrap();
        assert!(found == all);
    }

    #[test]
    fn a_full_file_system_is_said_and_the_spool_dead() {
        let fs = SmallFs::new(1 << 20);
        let mut spool = Spool::create(fs.path()).unwrap();
        spool.append(&[1; 4096]).unwrap();
        let full = spool.append(&vec![1; 2 << 20]).unwrap_err();
        assert!(full.io_source().is_some());
        check_dead(spool, full);
    }

    /// Would catch: an append that never hears of the failed write, or waits for a thread that has
    /// ended.
    #[test]
    fn a_full_file_system_is_said_behind_a_queue_too() {
        let fs = SmallFs::new(1 << 20);
        let mut spool = Spool::create_with(fs.path(), behind(2, 256 << 10)).unwrap();
        let piece = Arc::new(vec![1; 64 << 10]);
        let failed = (0..1000).find_map(|_| spool.append_shared(&piece).err());
        check_dead(spool, failed.unwrap());
    }

    fn check_dead(mut spool: Spool, first: Error) {
        assert_eq!(first.kind(), ErrorKind::Full);
        let text = first.to_string();
        assert!(text.contains("bytes to a temporary file in /"), "{text}");
        let reader = spool.reader();
        let later = [
            spool.append(b"x").unwrap_err(),
            spool.append_shared(&Arc::default()).unwrap_err(),
            spool.read_exact_at(&mut [0], 0).unwrap_err(),
            reader.read_exact_at(&mut [0], 0).unwrap_err(),
        ];
        for error in later {
            assert_eq!(error.kind(), ErrorKind::Full);
            assert!(error.to_string().starts_with(&text), "{error}");
        }
    }

    /// Would catch: a spool that waits for its whole queue when it is dropped, or leaves its thread
    /// behind; a reader that loses what was queued.
    #[test]
    fn a_dropped_spool_ends_its_thread_and_readers_keep_the_queue() {
        let temp = tempfile::tempdir().unwrap();
        let mut spool = Spool::create_with(temp.path(), behind(2, u64::MAX)).unwrap();
        let piece = Arc::new(vec![7; 1 << 20]);
        for _ in 0..100 {
            spool.append_shared(&piece).unwrap();
        }
        let reader = spool.reader();
        drop(spool);
        assert_eq!(Arc::strong_count(&reader.0), 1);
        let mut found = vec![0; 100 << 20];
        reader.read_exact_at(&mut found, 0).unwrap();
        assert!(found.iter().all(|&byte| byte == 7));
        drop(reader);
        assert_eq!(Arc::strong_count(&piece), 1);
    }

    #[test]
    fn a_missing_directory_is_not_found() {
        let error = Spool::create(Path::new("/nonexistent/dir")).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
