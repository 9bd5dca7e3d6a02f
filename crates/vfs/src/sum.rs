//! Digests of the contents of regular files, computed by several threads and told in the order of the walk.

use crate::path::Located;
use crate::walk::{Step, Walker};
use crate::{parallel, shown_path};
use sha2::Digest as _;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Mutex;
use weald_format::{ContentId, FileKind, Result};
use weald_image::{Image, Inode};

/// Bytes read at once.
const PIECE_LEN: usize = 1 << 20;

/// Contents whose digest is remembered for their other names; about 100 bytes each.
const KNOWN_COUNT_MAX: usize = 1 << 18;

/// A digest algorithm, both of 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// BLAKE3, as b3sum.
    Blake3,
    /// SHA-256, as sha256sum.
    Sha256,
}

/// The digest of one regular file.
#[derive(Debug)]
pub struct Sum {
    /// Path from the root of the image.
    pub path: Vec<u8>,
    /// The digest, or why there is none.
    pub digest: Result<[u8; 32]>,
}

/// Computes the digest of every regular file at or below `start`, and tells `emit` of each in the order of the walk, until
/// it breaks. An unreadable directory is told as a `Sum` with an error.
///
/// # Cost
/// Reads every distinct content once, while at most 2^18 of them were seen before (then some again).
pub fn sums(
    image: &Image,
    start: Located,
    algorithm: Algorithm,
    thread_count: usize,
    emit: &mut dyn FnMut(Sum) -> ControlFlow<()>,
) {
    let known = Known::default();
    let mut walker = Walker::new(image, start);
    let produce = || next_file(&mut walker);
    let work = |(path, found): (Vec<u8>, Result<Inode>)| {
        let digest = found.and_then(|inode| {
            let digest = known.digest(image, &inode, algorithm);
            digest.map_err(|error| error.context(shown_path(&path)))
        });
        Sum { path, digest }
    };
    parallel::ordered(thread_count, produce, work, emit);
}

fn next_file(walker: &mut Walker<'_>) -> Option<(Vec<u8>, Result<Inode>)> {
    loop {
        match walker.step() {
            Ok(Some(Step::Enter(visit))) if visit.inode.kind == FileKind::Regular => {
                return Some((walker.path().to_vec(), Ok(visit.inode)));
            }
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(error) => return Some((walker.path().to_vec(), Err(error))),
        }
    }
}

/// Digests of contents already read.
#[derive(Default)]
struct Known(Mutex<HashMap<ContentId, [u8; 32]>>);

impl Known {
    fn digest(&self, image: &Image, inode: &Inode, algorithm: Algorithm) -> Result<[u8; 32]> {
        let known = inode
            .content
            .and_then(|content| self.lock().get(&content).copied());
        if let Some(digest) = known {
            return Ok(digest);
        }
        let digest = file_digest(image, inode, algorithm)?;
        if let Some(content) = inode.content {
            let mut table = self.lock();
            if table.len() >= KNOWN_COUNT_MAX {
                table.clear();
            }
            table.insert(content, digest);
        }
        Ok(digest)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ContentId, [u8; 32]>> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The digest of the content of one regular file.
///
/// # Errors
/// What the reader reports.
///
/// # Cost
/// Reads the whole file, 1 MiB at once.
pub fn file_digest(image: &Image, inode: &Inode, algorithm: Algorithm) -> Result<[u8; 32]> {
    match algorithm {
        Algorithm::Blake3 => {
            let mut hasher = blake3::Hasher::new();
            for_each_piece(image, inode, &mut |piece| {
                hasher.update(piece);
            })?;
            Ok(*hasher.finalize().as_bytes())
        }
        Algorithm::Sha256 => {
            let mut hasher = sha2::Sha256::new();
            for_each_piece(image, inode, &mut |piece| hasher.update(piece))?;
            Ok(hasher.finalize().into())
        }
    }
}

fn for_each_piece(image: &Image, inode: &Inode, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
    let mut offset = 0;
    while offset < inode.size.0 {
        let piece = image.read(inode, offset, PIECE_LEN)?;
        if piece.is_empty() {
            break;
        }
        visit(&piece);
        offset += piece.len() as u64;
    }
    Ok(())
}
