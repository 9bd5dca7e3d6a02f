//! Reads a long file in pieces. Threads read and mark them ahead, and one more hashes them, while
//! the segmenter cuts earlier ones.

use crate::scan::source::{Layout, SourceFile};
use crate::segment::samples::{MarkList, SampleRule};
use crate::threads::Pool;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use weald_format::tree_digest::ContentHasher;
use weald_format::{Digest, Error, Result};

/// Bytes of a piece.
pub const PIECE_LEN: usize = 1 << 20;
/// Maximum number of threads that read pieces: together they read faster than one thread cuts.
const THREADS_MAX: u64 = 8;

/// A part of a file.
pub enum Piece {
    /// A hole of this length, bytes.
    Hole(u64),
    /// Data, and its marks for the segmenter, if they were looked for.
    Data(Arc<Vec<u8>>, Option<MarkList>),
    /// The file cannot be read here.
    Failed(Error),
}

impl Piece {
    /// Length in the file, bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Hole(len) => *len,
            Self::Data(bytes, _) => bytes.len() as u64,
            Self::Failed(_) => 0,
        }
    }
}

struct ReadJob {
    file: Arc<SourceFile>,
    start: u64,
    len: usize,
    rule: Option<SampleRule>,
}

enum HashJob {
    Begin(Box<ContentHasher>),
    Data(Arc<Vec<u8>>),
    End,
}

/// Threads that read and hash long files, one file at a time.
pub struct PieceReader {
    readers: Pool<ReadJob, Piece>,
    reader_count: u64,
    hasher: Pool<HashJob, Option<Digest>>,
}

const fn thread_count(threads: u64) -> u64 {
    match threads / 2 {
        0 => 1,
        THREADS_MAX.. => THREADS_MAX,
        count => count,
    }
}

/// Bytes that pieces take beside `threads` compressors, marks included: each thread has one, the
/// segmenter has one, and one is hashed.
pub const fn memory_len(threads: u64) -> u64 {
    (thread_count(threads) + 1) * (PIECE_LEN as u64 * 3 / 2) + PIECE_LEN as u64
}

impl PieceReader {
    /// Starts the threads beside `threads` compressors.
    ///
    /// # Errors
    /// `Io` if the system allows none.
    pub fn start(threads: usize) -> Result<Self> {
        let read = || |job: ReadJob| Ok(job.read());
        let hash = || {
            let mut hasher = ContentHasher::dense();
            move |job: HashJob| {
                match job {
                    HashJob::Begin(new) => hasher = *new,
                    HashJob::Data(bytes) => hasher.update(&bytes),
                    HashJob::End => return Ok(Some(hasher.finish())),
                }
                Ok(None)
            }
        };
        let reader_count = thread_count(threads as u64);
        Ok(Self {
            readers: Pool::start(reader_count as usize, "long-read", &read)?,
            reader_count,
            hasher: Pool::start(1, "long-hash", &hash)?,
        })
    }

    /// Visits a file piece by piece, marked by `rule`, and returns the digest of what was visited.
    /// The first inner result is the file's, the outer one comes from `visit`.
    ///
    /// # Errors
    /// Those of `visit`, after which the reader is of no more use.
    pub fn each_piece(
        &mut self,
        file: &Arc<SourceFile>,
        layout: &Layout,
        rule: Option<SampleRule>,
        visit: &mut dyn FnMut(Piece) -> Result<()>,
    ) -> Result<(Result<()>, Digest)> {
        let (mut ended, has_failed) = (Ok(()), Cell::new(false));
        let (hasher, reader_count) = (&mut self.hasher, self.reader_count);
        let mut digest = None;
        let mut keep = |found: Option<Digest>| {
            digest = found.or(digest);
            Ok(())
        };
        hasher.submit(HashJob::Begin(Box::new(layout.hasher())), &mut keep)?;
        let mut take = |piece: Piece| {
            match piece {
                // What comes behind a part that cannot be read is not visited.
                _ if has_failed.get() => return Ok(()),
                Piece::Failed(error) => {
                    ended = Err(error);
                    has_failed.set(true);
                    return Ok(());
                }
                Piece::Data(ref bytes, _) => {
                    hasher.drain(&mut keep)?;
                    hasher.submit(HashJob::Data(bytes.clone()), &mut keep)?;
                }
                Piece::Hole(_) => {}
            }
            visit(piece)
        };
        let mut at = 0;
        for run in runs(layout) {
            if run.start > at {
                self.readers.pass(Piece::Hole(run.start - at), &mut take)?;
            }
            at = run.start;
            while at < run.end && !has_failed.get() {
                let len = (run.end - at).min(PIECE_LEN as u64);
                let job = ReadJob {
                    file: file.clone(),
                    start: at,
                    len: len as usize,
                    rule,
                };
                self.readers.wait_below(reader_count, &mut take)?;
                self.readers.submit(job, &mut take)?;
                at += len;
            }
        }
        if layout.len > at {
            self.readers.pass(Piece::Hole(layout.len - at), &mut take)?;
        }
        self.readers.drain(&mut take)?;
        self.hasher.submit(HashJob::End, &mut keep)?;
        self.hasher.drain(&mut keep)?;
        let digest = digest.ok_or_else(|| Error::invalid("no digest of a long file"))?;
        Ok((ended, digest))
    }
}

impl ReadJob {
    fn read(&self) -> Piece {
        let mut bytes = vec![0; self.len];
        match self.file.read_run(&mut bytes, self.start) {
            Ok(()) => {
                let marks = self.rule.and_then(|rule| rule.marks(&bytes));
                Piece::Data(Arc::new(bytes), marks)
            }
            Err(error) => Piece::Failed(error),
        }
    }
}

/// Data runs of a file.
fn runs(layout: &Layout) -> Vec<Range<u64>> {
    let whole = 0..layout.len;
    let runs = layout.runs.as_deref();
    runs.unwrap_or(std::slice::from_ref(&whole)).to_vec()
}

/// Digest of a file, which is read once. `is_over` tells when to give up.
///
/// # Errors
/// `Io`, `Corrupt` from the file.
pub fn digest_of(file: &SourceFile, layout: &Layout, is_over: &dyn Fn() -> bool) -> Result<Digest> {
    let mut hasher = layout.hasher();
    let mut buffer = vec![0; PIECE_LEN];
    for run in runs(layout) {
        let mut at = run.start;
        while at < run.end {
            if is_over() {
                return Err(Error::invalid("reading was stopped"));
            }
            let len = (run.end - at).min(PIECE_LEN as u64) as usize;
            file.read_run(&mut buffer[..len], at)?;
            hasher.update(&buffer[..len]);
            at += len as u64;
        }
    }
    Ok(hasher.finish())
}
