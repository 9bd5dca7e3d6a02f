//! An object as the storage of an image.

use crate::chunks::{CHUNK_LEN, Chunk, Chunks};
use crate::client::runtime;
use crate::disk_cache::ImageCache;
use crate::location::Location;
use crate::object::{Object, Tail};
use crate::settings::settings;
use std::ops::Range;
use std::sync::Arc;
use weald_format::container::{FOOTER_LEN, Footer};
use weald_format::{Digest, Error, Result};
use weald_io::ReadAt;

/// An object of a web server or a bucket, from an offset on.
pub struct RemoteSource {
    chunks: Arc<Chunks>,
    tail: Tail,
    start: u64,
}

impl RemoteSource {
    /// Opens the object at `location`.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Unsupported` if the server does not send parts of objects; `Invalid` for
    /// a cache directory that others can write to.
    /// # Cost
    /// One request.
    pub fn open(location: &Location) -> Result<Self> {
        let runtime = runtime()?;
        let settings = settings();
        let location_owned = location.clone();
        let opened = runtime.spawn(async move { Object::open(&location_owned).await });
        let opened = runtime.block_on(opened);
        let (object, tail) = opened.map_err(|error| {
            let what = format!("{}: {error}", location.shown());
            Error::invalid(what)
        })??;
        let digest = image_digest(&object, &tail);
        let disk = settings.cache.as_ref().zip(digest);
        let disk = disk.map(|(cache, digest)| ImageCache::open(cache, digest));
        let chunks = Chunks::new(object, disk.transpose()?, runtime.handle().clone());
        Ok(Self {
            chunks,
            tail,
            start: 0,
        })
    }

    /// The part of the object from `start` on.
    ///
    /// # Errors
    /// `Invalid` if `start` lies behind the end.
    pub fn from_offset(mut self, start: u64) -> Result<Self> {
        let end = self.chunks.object().len();
        if start > end {
            let what = format!("offset {start} lies behind the end, {end}");
            return Err(Error::invalid(what));
        }
        self.start = start;
        Ok(self)
    }

    /// Where the object lies.
    pub fn location(&self) -> &Location {
        self.chunks.object().location()
    }

    /// Requests that were sent so far.
    pub fn request_count(&self) -> u64 {
        self.chunks.object().request_count()
    }

    /// The bytes of the object that `len` bytes at `offset` are.
    fn range(&self, offset: u64, len: usize) -> Result<Range<u64>> {
        let start = self.start.checked_add(offset);
        let range = start.and_then(|start| Some(start..start.checked_add(len as u64)?));
        let range = range.filter(|range| range.end <= self.chunks.object().len());
        range.ok_or_else(|| {
            let eof = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            let what = format!("read of {len} bytes at {offset} passes the end");
            Error::io(what, eof)
        })
    }

    /// Fills `buf` from the tail if it has all the bytes.
    fn read_tail(&self, buf: &mut [u8], range: &Range<u64>) -> bool {
        let Some(from) = range.start.checked_sub(self.tail.start) else {
            return false;
        };
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let to = from.saturating_add(buf.len());
        match self.tail.bytes.get(from..to) {
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    fn copy(&self, chunks: &[Arc<Chunk>], range: &Range<u64>, buf: &mut [u8]) -> Result<()> {
        let mut at = range.start;
        let mut rest = buf;
        for chunk in chunks {
            let bytes = self.chunks.wait(chunk)?;
            let from = (at % CHUNK_LEN) as usize;
            let part = bytes.get(from..).unwrap_or_default();
            let len = part.len().min(rest.len());
            let (head, tail) = rest.split_at_mut(len);
            head.copy_from_slice(part.get(..len).unwrap_or_default());
            at = at.saturating_add(len as u64);
            rest = tail;
        }
        Ok(())
    }
}

impl Drop for RemoteSource {
    fn drop(&mut self) {
        self.chunks.finish_copies();
    }
}

impl ReadAt for RemoteSource {
    fn len(&self) -> u64 {
        self.chunks.object().len().saturating_sub(self.start)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = self.range(offset, buf.len())?;
        if range.is_empty() || self.read_tail(buf, &range) {
            return Ok(());
        }
        let numbers = Chunks::of(&range);
        let chunks = self.chunks.request(numbers.clone());
        let waits = chunks.iter().any(|chunk| chunk.is_pending());
        let end = self.tail.start.div_ceil(CHUNK_LEN);
        self.chunks.ask_ahead(&numbers, waits, end);
        self.copy(&chunks, &range, buf)
    }

    fn stop_waiting(&self) {
        self.chunks.stop();
    }

    fn read_again_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        let range = self.range(offset, buf.len())?;
        log::info!(
            "{}: bytes {} to {} are fetched again: they do not match their digest",
            self.location().shown(),
            range.start,
            range.end
        );
        let numbers = Chunks::of(&range);
        self.chunks.forget(numbers.clone());
        let chunks = self.chunks.request(numbers);
        self.copy(&chunks, &range, buf)?;
        Ok(true)
    }
}

/// The image digest in the footer that ends `object`, which names its copies on disk. It counts for
/// nothing else: a reader compares every record with a digest below the image digest.
fn image_digest(object: &Object, tail: &Tail) -> Option<Digest> {
    let offset = object.len().checked_sub(FOOTER_LEN as u64)?;
    let bytes = tail
        .bytes
        .get(tail.bytes.len().checked_sub(FOOTER_LEN)?..)?;
    let footer = Footer::parse(bytes, offset).ok()?;
    Some(footer.image_digest)
}
