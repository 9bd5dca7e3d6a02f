//! Digests of the contents of regular files, computed by several threads and reported in the order
//! of a walk.

use crate::content::{ContentPart, each_part, each_zeros};
use crate::path::Located;
use crate::{Choice, Event, SelectedWalk, parallel, shown_path};
use sha2::Digest as _;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use twox_hash::XxHash3_128;
use weald_codec::FsVerity;
use weald_format::{ContentId, Error, FileKind, Result};
use weald_image::{Image, Inode};

/// Most contents whose digest is remembered for their other names; about 100 bytes each.
const KNOWN_DIGEST_COUNT_MAX: usize = 1 << 18;

/// A digest algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// BLAKE3, as b3sum computes it.
    Blake3,
    /// SHA-256, as sha256sum computes it.
    Sha256,
    /// SHA-512, as sha512sum computes it.
    Sha512,
    /// MD5, as md5sum computes it. It does not tell forged data from the original.
    Md5,
    /// XXH3 with 128 bits, as xxhsum -H128 computes it. It does not tell forged data either.
    Xxh3,
    /// fs-verity with SHA-256, as `fsverity digest` computes it. Digests that the image keeps are
    /// not computed.
    FsVerity,
}

/// The digest of one regular file.
#[derive(Debug)]
pub struct Sum {
    /// Path from the root of the image.
    pub path: Vec<u8>,
    /// The digest, or the error that prevented it.
    pub digest: Result<Box<[u8]>>,
}

/// Options of [`sums`].
#[derive(Clone, Copy)]
pub struct SumOptions<'a> {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Which files.
    pub choice: &'a Choice,
    /// Threads that read and compute; at least 1 is used.
    pub thread_count: usize,
    /// Whether to stop; all threads call it for every piece of a file. Unfinished files get the
    /// error "interrupted" instead of a digest.
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// Computes the digest of every chosen regular file at or below `start`. Passes each to `emit` in
/// the order of a walk, until it breaks. An unreadable directory is passed as a `Sum` with an
/// error.
///
/// # Cost
/// Reads every distinct content once, up to 2^18 contents; of more, some are read again. Holes are
/// not read, but their zeros are digested.
pub fn sums(
    image: &Image,
    start: Located,
    options: &SumOptions<'_>,
    emit: &mut dyn FnMut(Sum) -> ControlFlow<()>,
) {
    let is_stopped = AtomicBool::new(false);
    let is_cancelled = || is_stopped.load(Ordering::Relaxed) || (options.is_cancelled)();
    let job = Digester::new(image, options.algorithm, &is_cancelled);
    let mut walk = SelectedWalk::new(image, start, options.choice);
    let produce = || next_file(&mut walk);
    let work = |(path, found): (Vec<u8>, Result<Inode>)| {
        let digest = found.and_then(|inode| {
            let digest = job.digest(&inode);
            digest.map_err(|error| error.context(shown_path(&path)))
        });
        Sum { path, digest }
    };
    parallel::ordered(options.thread_count, produce, work, |sum| {
        let flow = emit(sum);
        // Nobody needs the digests that are still being computed.
        is_stopped.store(flow.is_break(), Ordering::Relaxed);
        flow
    });
}

fn next_file(walk: &mut SelectedWalk<'_>) -> Option<(Vec<u8>, Result<Inode>)> {
    loop {
        match walk.step() {
            Ok(Some(Event::Enter(visit))) if visit.inode.kind == FileKind::Regular => {
                return Some((walk.path().to_vec(), Ok(visit.inode)));
            }
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(error) => return Some((walk.path().to_vec(), Err(error))),
        }
    }
}

/// Digests of contents that were read.
#[derive(Default)]
struct Known(Mutex<HashMap<ContentId, Box<[u8]>>>);

impl Known {
    fn get(&self, content: ContentId) -> Option<Box<[u8]>> {
        self.lock().get(&content).cloned()
    }

    fn put(&self, content: ContentId, digest: Box<[u8]>) {
        let mut table = self.lock();
        if table.len() >= KNOWN_DIGEST_COUNT_MAX {
            table.clear();
        }
        table.insert(content, digest);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ContentId, Box<[u8]>>> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Computes digests of files; threads may share it.
pub struct Digester<'a> {
    image: &'a Image,
    algorithm: Algorithm,
    known: Known,
    is_cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl<'a> Digester<'a> {
    /// Computes digests of files of `image` until `is_cancelled` says to stop.
    pub fn new(
        image: &'a Image,
        algorithm: Algorithm,
        is_cancelled: &'a (dyn Fn() -> bool + Sync),
    ) -> Self {
        Self {
            image,
            algorithm,
            known: Known::default(),
            is_cancelled,
        }
    }

    /// The digest of a regular file.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `Invalid` ("interrupted").
    /// # Cost
    /// Reads the file, unless its content was among the last 2^18 ones.
    pub fn digest(&self, inode: &Inode) -> Result<Box<[u8]>> {
        let Some(content) = inode.content else {
            return self.file_digest(inode);
        };
        if let Some(digest) = self.known.get(content) {
            return Ok(digest);
        }
        let digest = self.file_digest(inode)?;
        self.known.put(content, digest.clone());
        Ok(digest)
    }

    /// The digest of a regular file by an algorithm whose digests have 32 bytes.
    ///
    /// # Errors
    /// As [`Digester::digest`].
    /// # Panics
    /// With another algorithm.
    pub fn digest_of_32(&self, inode: &Inode) -> Result<[u8; 32]> {
        let digest = self.digest(inode)?;
        Ok(digest.as_ref().try_into().expect("32 bytes"))
    }

    fn file_digest(&self, inode: &Inode) -> Result<Box<[u8]>> {
        match self.algorithm {
            Algorithm::Blake3 => {
                let mut hasher = blake3::Hasher::new();
                self.for_each_piece(inode, &mut |piece| {
                    hasher.update(piece);
                })?;
                Ok(Box::new(*hasher.finalize().as_bytes()))
            }
            Algorithm::Sha256 => self.digest_by(sha2::Sha256::new(), inode),
            Algorithm::Sha512 => self.digest_by(sha2::Sha512::new(), inode),
            Algorithm::Md5 => self.digest_by(md5::Md5::new(), inode),
            Algorithm::Xxh3 => {
                let mut hasher = XxHash3_128::new();
                self.for_each_piece(inode, &mut |piece| hasher.write(piece))?;
                Ok(Box::new(hasher.finish_128().to_be_bytes()))
            }
            Algorithm::FsVerity => Ok(Box::new(self.fsverity_digest(inode)?)),
        }
    }

    fn digest_by(&self, mut hasher: impl sha2::Digest, inode: &Inode) -> Result<Box<[u8]>> {
        self.for_each_piece(inode, &mut |piece| hasher.update(piece))?;
        Ok(hasher.finalize().as_slice().into())
    }

    fn fsverity_digest(&self, inode: &Inode) -> Result<[u8; 32]> {
        let mut state = FsVerity::new();
        let mut is_whole = true;
        each_part(self.image, inode, &mut |part| {
            is_whole = !(self.is_cancelled)();
            match part {
                _ if !is_whole => return ControlFlow::Break(()),
                ContentPart::Data(bytes) => state.update(bytes),
                ContentPart::Hole(len) => state.update_zeros(len),
            }
            ControlFlow::Continue(())
        })?;
        if is_whole {
            Ok(state.finish())
        } else {
            Err(Error::invalid("interrupted"))
        }
    }

    fn for_each_piece(&self, inode: &Inode, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut is_whole = true;
        let mut piece = |bytes: &[u8]| {
            is_whole = !(self.is_cancelled)();
            if !is_whole {
                return ControlFlow::Break(());
            }
            visit(bytes);
            ControlFlow::Continue(())
        };
        each_part(self.image, inode, &mut |part| match part {
            ContentPart::Data(bytes) => piece(bytes),
            ContentPart::Hole(len) => each_zeros(len, &mut piece),
        })?;
        if is_whole {
            Ok(())
        } else {
            Err(Error::invalid("interrupted"))
        }
    }
}
