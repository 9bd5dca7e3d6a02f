//! Objects of which the digest of each chunk is known: nothing else reaches a reader.

use crate::bucket::Bucket;
pub use crate::chunks::CHUNK_LEN;
use crate::chunks::{Chunks, Member};
use crate::client::runtime;
use crate::disk_cache::ImageCache;
use crate::object::Object;
use crate::settings::settings;
use parking_lot::Mutex;
use std::sync::Arc;
use weald_format::{Digest, Error, Result};

/// Objects whose chunks stay in memory: those that were read last.
const OPEN_MAX: usize = 8;
/// Bytes of chunks of one object in memory.
const MEMORY_MAX: usize = 4 << 20;
/// Chunks that are fetched ahead of a reader.
const AHEAD: u64 = 4;

/// An object that somebody has put, and what was in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedObject {
    /// Its key below the prefix.
    pub key: String,
    /// Its bytes.
    pub len: u64,
    /// Digest of each [`CHUNK_LEN`] bytes.
    pub digests: Arc<[Digest]>,
}

impl VerifiedObject {
    /// Names its copies in a cache: objects with equal bytes share them.
    fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.len.to_le_bytes());
        for digest in &*self.digests {
            hasher.update(&digest.0);
        }
        Digest(hasher.finalize().into())
    }
}

/// Reads objects of a bucket by chunks, with the cache of the process.
#[derive(Debug)]
pub struct VerifiedReader {
    bucket: Bucket,
    /// Those that were read last, the newest at the end.
    open: Mutex<Vec<Open>>,
}

/// The chunks of one object.
struct Open {
    key: String,
    chunks: Arc<Chunks>,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.key)
    }
}

impl VerifiedReader {
    /// A reader of the objects of `bucket`. No request is made.
    pub fn new(bucket: Bucket) -> Self {
        Self {
            bucket,
            open: Mutex::default(),
        }
    }

    fn chunks(&self, object: &VerifiedObject) -> Result<Arc<Chunks>> {
        let mut open = self.open.lock();
        if let Some(at) = open.iter().position(|open| open.key == object.key) {
            let found = open.remove(at);
            let chunks = found.chunks.clone();
            open.push(found);
            return Ok(chunks);
        }
        let location = self.bucket.location(&object.key);
        let connection = self.bucket.connection(&object.key)?;
        let of_object = Object::of_digest(location, connection, object.len);
        let cache = settings().cache;
        let disk = cache.map(|cache| ImageCache::open(&cache, object.digest()));
        let member = Member::verified(of_object, disk.transpose()?, object.digests.clone());
        let handle = runtime()?.handle().clone();
        let chunks = Chunks::within(vec![member], handle, MEMORY_MAX);
        if open.len() >= OPEN_MAX {
            open.remove(0);
        }
        open.push(Open {
            key: object.key.clone(),
            chunks: chunks.clone(),
        });
        Ok(chunks)
    }

    /// Fills `buf` with the bytes of `object` from `offset` on.
    ///
    /// # Errors
    /// `Lost` if the object is missing, cut, or has other bytes; `Io` if the server does not answer
    /// in time, or `buf` passes the end.
    /// # Cost
    /// A request for each MiB at most; none for what is in memory or in the cache.
    pub fn read_at(&self, object: &VerifiedObject, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        let Some(end) = end.filter(|end| *end <= object.len) else {
            let eof = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            let what = format!("{}: a read passes the end", object.key);
            return Err(Error::io(what, eof));
        };
        let range = offset..end;
        if range.is_empty() {
            return Ok(());
        }
        let chunks = self.chunks(object)?;
        let numbers = Chunks::of(&range);
        let requested = chunks.request(numbers.clone());
        let waits = requested.iter().any(|chunk| chunk.is_pending());
        let last = chunks.end_of_object(numbers.start);
        let ahead = numbers.end.saturating_add(AHEAD).min(last);
        chunks.ask_ahead(&numbers, waits, ahead);
        chunks.copy(&requested, &range, buf)
    }
}

impl Drop for VerifiedReader {
    fn drop(&mut self) {
        for open in self.open.lock().iter() {
            open.chunks.finish_copies();
        }
    }
}
