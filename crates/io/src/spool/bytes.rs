//! The bytes of a spool: those in its files, and behind them those that wait for the threads that
//! write them.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use weald_format::{Error, Result};

/// Bytes of a spool that lie together in one of several files. A block has some of them, so that
/// each thread writes a part of it.
const STRIPE_LEN: u64 = 1 << 20;

/// The files of a spool, and its queue. Stripes go to the files in turn, each behind the one before
/// in its file: no file has holes, which some file systems would fill with zeros.
///
/// Invariant: the files hold every byte before the first piece of the queue.
pub struct Bytes {
    files: Vec<File>,
    /// Directory of the files, for the message about a full file system.
    dir: PathBuf,
    queue: Mutex<Queue>,
    /// Signals the threads: there is a piece, or nobody appends any more.
    added: Condvar,
    /// Signals who appends: a piece was written, or a write failed.
    removed: Condvar,
}

struct Queue {
    /// Pieces without gaps between them, the first one first; none is empty. A piece stays until
    /// all files have their parts of it.
    pieces: VecDeque<Piece>,
    /// Bytes of all pieces.
    len: u64,
    /// Offset in the spool up to which each file has its stripes.
    written_to: Vec<u64>,
    /// The error of the first failed write; the spool is dead.
    failure: Option<Error>,
    /// Whether the threads are to end.
    is_closed: bool,
}

#[derive(Clone)]
struct Piece {
    offset: u64,
    bytes: Arc<Vec<u8>>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// A range of a spool that lies in one file.
struct FileRange {
    /// Index of the file.
    file: usize,
    /// Offset in the file.
    at: u64,
    /// Where the range begins in that of which it is a part, and how long it is.
    start: usize,
    len: usize,
}

impl Queue {
    /// Each caller gets the error. The first one gets the error of the system with it.
    fn check_alive(&mut self) -> Result<()> {
        let Some(failure) = self.failure.take() else {
            return Ok(());
        };
        self.failure = Some(failure.duplicate());
        Err(failure)
    }

    /// The pieces with bytes of `range`.
    fn pieces_of(&self, range: &Range<u64>) -> Vec<Piece> {
        let first = self.pieces.partition_point(|p| p.end() <= range.start);
        let behind = self.pieces.partition_point(|p| p.offset < range.end);
        let pieces = self.pieces.range(first..behind.max(first));
        pieces.cloned().collect()
    }

    /// Removes the pieces that all files have. Returns whether there are some.
    fn remove_written(&mut self) -> bool {
        let written_to = self.written_to.iter().copied().min().unwrap_or(0);
        let count = self.pieces.partition_point(|p| p.end() <= written_to);
        for piece in self.pieces.drain(..count) {
            self.len -= piece.bytes.len() as u64;
        }
        count > 0
    }
}

impl Bytes {
    /// Empty `files` in `dir`, at least one.
    pub fn new(files: Vec<File>, dir: PathBuf) -> Self {
        let queue = Queue {
            pieces: VecDeque::new(),
            len: 0,
            written_to: vec![0; files.len()],
            failure: None,
            is_closed: false,
        };
        Self {
            files,
            dir,
            queue: Mutex::new(queue),
            added: Condvar::new(),
            removed: Condvar::new(),
        }
    }

    /// The parts of `len` bytes from `offset`, in order.
    fn parts(&self, offset: u64, len: usize) -> impl Iterator<Item = FileRange> + use<> {
        let file_count = self.files.len() as u64;
        let mut start = 0;
        std::iter::from_fn(move || {
            // Nobody has an offset near the end of the numbers, but a caller may ask for it.
            let at = offset.saturating_add(start as u64);
            let (stripe, within) = (at / STRIPE_LEN, at % STRIPE_LEN);
            let part = match file_count {
                1 => FileRange {
                    file: 0,
                    at,
                    start,
                    len: len - start,
                },
                _ => FileRange {
                    file: (stripe % file_count) as usize,
                    at: stripe / file_count * STRIPE_LEN + within,
                    start,
                    len: (len - start).min((STRIPE_LEN - within) as usize),
                },
            };
            start += part.len;
            (part.len > 0).then_some(part)
        })
    }

    /// Writes `bytes` at `offset` on the calling thread.
    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.queue.lock().check_alive()?;
        let mut parts = self.parts(offset, bytes.len());
        parts
            .try_for_each(|part| self.write_part(bytes, &part))
            .inspect_err(|error| self.queue.lock().failure = Some(error.duplicate()))
    }

    fn write_part(&self, bytes: &[u8], part: &FileRange) -> Result<()> {
        let bytes = &bytes[part.start..part.start + part.len];
        let written = self.files[part.file].write_all_at(bytes, part.at);
        written.map_err(|error| {
            let (len, dir) = (bytes.len(), self.dir.display());
            let what = format!("write of {len} bytes to a temporary file in {dir}");
            Error::io(what, error)
        })
    }

    /// Queues `bytes`, which lie at `offset`, for the threads. Waits until the queue with them has
    /// at most `len_max` bytes, or no others.
    pub fn push(&self, bytes: Arc<Vec<u8>>, offset: u64, len_max: u64) -> Result<()> {
        let len = bytes.len() as u64;
        let mut queue = self.queue.lock();
        queue.check_alive()?;
        if len == 0 {
            return Ok(());
        }
        while queue.len > 0 && queue.len + len > len_max {
            self.removed.wait(&mut queue);
            queue.check_alive()?;
        }
        queue.len += len;
        queue.pieces.push_back(Piece { offset, bytes });
        self.added.notify_all();
        Ok(())
    }

    /// Writes the stripes of one file that are queued, until [`Bytes::close`] or a failed write.
    pub fn write_queued(&self, file: usize) {
        while let Some(piece) = self.next_piece(file) {
            let parts = self.parts(piece.offset, piece.bytes.len());
            let written = parts
                .filter(|part| part.file == file)
                .try_for_each(|part| self.write_part(&piece.bytes, &part));
            let mut queue = self.queue.lock();
            queue.written_to[file] = piece.end();
            if let Err(error) = written {
                queue.failure.get_or_insert(error);
                (queue.pieces, queue.len) = (VecDeque::new(), 0);
                self.added.notify_all();
                self.removed.notify_one();
            } else if queue.remove_written() {
                self.removed.notify_one();
            }
        }
    }

    /// Waits for the next piece for a file; `None` if its thread is to end.
    fn next_piece(&self, file: usize) -> Option<Piece> {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_closed || queue.failure.is_some() {
                return None;
            }
            let written_to = queue.written_to[file];
            let next = queue.pieces.partition_point(|p| p.offset < written_to);
            if let Some(piece) = queue.pieces.get(next) {
                return Some(piece.clone());
            }
            self.added.wait(&mut queue);
        }
    }

    /// Ends each thread after the piece that it is writing. Readers still find the others.
    pub fn close(&self) {
        self.queue.lock().is_closed = true;
        self.added.notify_all();
    }

    /// Fills `buf` from `offset`, with bytes of the files and of the queue.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        let pieces = {
            let mut queue = self.queue.lock();
            queue.check_alive()?;
            queue.pieces_of(&range)
        };
        let queued_from = pieces.first().map_or(range.end, |p| p.offset.max(offset));
        let mut filled = (queued_from - offset) as usize;
        self.read_files(&mut buf[..filled], offset)?;
        for piece in &pieces {
            let within = (offset + filled as u64 - piece.offset) as usize;
            let len = (piece.bytes.len() - within).min(buf.len() - filled);
            buf[filled..filled + len].copy_from_slice(&piece.bytes[within..within + len]);
            filled += len;
        }
        // Nothing lies behind the queue, so this fails, unless the buffer is full.
        self.read_files(&mut buf[filled..], offset.saturating_add(filled as u64))
    }

    fn read_files(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let whole_len = buf.len();
        self.parts(offset, whole_len).try_for_each(|part| {
            let buf = &mut buf[part.start..part.start + part.len];
            let read = self.files[part.file].read_exact_at(buf, part.at);
            read.map_err(|error| {
                let what = format!("read of {whole_len} bytes at {offset} of a temporary file");
                Error::io(what, error)
            })
        })
    }

    /// Bytes that wait for the threads.
    #[cfg(test)]
    pub fn queued_len(&self) -> u64 {
        self.queue.lock().len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_mount::SmallFs;
    use std::path::Path;
    use weald_format::ErrorKind;

    /// Bytes without threads: what is queued stays queued.
    fn bytes_in(dir: &Path, file_count: usize) -> Bytes {
        let files = (0..file_count).map(|_| crate::spool::unnamed_file(dir).unwrap());
        Bytes::new(files.collect(), dir.to_owned())
    }

    fn push_all(bytes: &Bytes, pieces: &[&[u8]]) {
        let mut offset = 0;
        for piece in pieces {
            let shared = Arc::new(piece.to_vec());
            bytes.push(shared, offset, u64::MAX).unwrap();
            offset += piece.len() as u64;
        }
    }

    /// Reads ranges of `all` between `cuts`, and ranges that pass the end.
    fn check_ranges(bytes: &Bytes, all: &[u8], cuts: &[usize]) {
        for (&start, i) in cuts.iter().zip(0..) {
            for &end in &cuts[i..] {
                let mut buf = vec![0; end - start];
                bytes.read_exact_at(&mut buf, start as u64).unwrap();
                assert!(buf == all[start..end], "{start} to {end}");
            }
            let mut buf = vec![0; all.len() + 1 - start];
            let error = bytes.read_exact_at(&mut buf, start as u64).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
        }
        let error = bytes.read_exact_at(&mut [0; 9], u64::MAX - 4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
    }

    /// Would catch: reads that find zeros, or nothing, in place of what is not written yet; bytes
    /// taken from the wrong piece; a piece removed before all files have it.
    #[test]
    fn bytes_are_read_from_the_queue_the_files_and_both() {
        let dir = tempfile::tempdir().unwrap();
        let stripe = STRIPE_LEN as usize;
        for file_count in [1, 2, 3] {
            let all: Vec<u8> = (0..4 * stripe + 9).map(|i| (i * 7 / 8) as u8).collect();
            let cuts = [0, 3, 4, stripe - 1, stripe, 2 * stripe + 1, all.len()];
            let bytes = bytes_in(dir.path(), file_count);
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &all[cut[0]..cut[1]]).collect();
            push_all(&bytes, &pieces);
            check_ranges(&bytes, &all, &cuts);
            // The threads end before they write anything, and what they leave is still read.
            bytes.close();
            (0..file_count).for_each(|file| bytes.write_queued(file));
            assert_eq!(bytes.queued_len(), all.len() as u64);
            bytes.queue.lock().is_closed = false;
            for file in (0..file_count).rev() {
                assert_eq!(bytes.queued_len(), all.len() as u64);
                for _ in &pieces {
                    write_next(&bytes, file);
                    check_ranges(&bytes, &all, &cuts);
                }
            }
            assert_eq!(bytes.queued_len(), 0);
            assert!(bytes.queue.lock().pieces.is_empty());
        }
    }

    /// Does for one piece what the thread of `file` does.
    fn write_next(bytes: &Bytes, file: usize) {
        let piece = bytes.next_piece(file).unwrap();
        let parts = bytes.parts(piece.offset, piece.bytes.len());
        for part in parts.filter(|part| part.file == file) {
            bytes.write_part(&piece.bytes, &part).unwrap();
        }
        let mut queue = bytes.queue.lock();
        queue.written_to[file] = piece.end();
        queue.remove_written();
    }

    /// Would catch: a full file system that only a thread hears of, or that is told as something
    /// else, whoever calls next.
    #[test]
    fn a_write_that_failed_later_is_told_to_every_caller() {
        for file_count in [1, 2] {
            let fs = SmallFs::new(1 << 20);
            let bytes = bytes_in(fs.path(), file_count);
            push_all(&bytes, &[&[1; 4096], &vec![2; 4 << 20], &[3; 4096]]);
            (0..file_count).for_each(|file| bytes.write_queued(file));
            let read = bytes.read_exact_at(&mut [0], 0).unwrap_err();
            assert_eq!(read.kind(), ErrorKind::Full);
            let text = read.to_string();
            assert!(text.starts_with("write of "), "{text}");
            assert!(text.contains(" bytes to a temporary file in /"), "{text}");
            assert!(read.io_source().is_some());
            let pushed = bytes.push(Arc::default(), 0, u64::MAX).unwrap_err();
            let written = bytes.write(b"x", 0).unwrap_err();
            for error in [pushed, written] {
                assert_eq!(error.kind(), ErrorKind::Full);
                assert!(error.to_string().starts_with(&text));
            }
            assert!(bytes.next_piece(0).is_none());
        }
    }
}
