//! An object as the storage of an image.

use crate::chunks::{CHUNK_LEN, Chunk, Chunks, Member};
use crate::client::runtime;
use crate::disk_cache::ImageCache;
use crate::location::Location;
use crate::object::{Object, Tail};
use crate::settings::settings;
use crate::stored::{self, Piece, Runs};
use std::ops::Range;
use std::sync::Arc;
use weald_format::container::{FOOTER_LEN, Footer};
use weald_format::{Digest, Error, Result};
use weald_io::ReadAt;

/// An object of a web server or a bucket, from an offset on; or an image of a store in a bucket.
pub struct RemoteSource {
    location: Location,
    chunks: Arc<Chunks>,
    layout: Layout,
    start: u64,
}

/// Where the bytes lie in the objects.
enum Layout {
    /// They are those of one object, whose last ones are here.
    Whole(Tail),
    /// In packs.
    Packs(Runs),
}

/// Chunks that were requested, and the bytes among those of all objects that they are read for.
type Requested = (Vec<Arc<Chunk>>, Range<u64>);

impl RemoteSource {
    /// Opens the object at `location`.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Unsupported` if the server does not send parts of objects; `Invalid` for
    /// a cache directory that others can write to.
    /// # Cost
    /// One request; three for an image of a store whose map has at most a MiB.
    pub fn open(location: &Location) -> Result<Self> {
        if let Some(in_store) = location.in_store() {
            let stored = stored::open(location, &in_store?)?;
            return Ok(Self {
                location: location.clone(),
                chunks: stored.chunks,
                layout: Layout::Packs(stored.runs),
                start: 0,
            });
        }
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
        let members = vec![Member::new(object, disk.transpose()?)];
        Ok(Self {
            location: location.clone(),
            chunks: Chunks::new(members, runtime.handle().clone()),
            layout: Layout::Whole(tail),
            start: 0,
        })
    }

    /// All bytes, before `start` too.
    fn whole_len(&self) -> u64 {
        match &self.layout {
            Layout::Whole(_) => self.chunks.object(0).map_or(0, |(object, _)| object.len()),
            Layout::Packs(runs) => runs.len(),
        }
    }

    /// The part of the object from `start` on.
    ///
    /// # Errors
    /// `Invalid` if `start` lies behind the end.
    pub fn from_offset(mut self, start: u64) -> Result<Self> {
        let end = self.whole_len();
        if start > end {
            let what = format!("offset {start} lies behind the end, {end}");
            return Err(Error::invalid(what));
        }
        self.start = start;
        Ok(self)
    }

    /// Where the object lies.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Requests that were sent so far.
    pub fn request_count(&self) -> u64 {
        let object = self.chunks.object(0);
        object.map_or(0, |(object, _)| object.request_count())
    }

    /// The bytes of the object that `len` bytes at `offset` are.
    fn range(&self, offset: u64, len: usize) -> Result<Range<u64>> {
        let start = self.start.checked_add(offset);
        let range = start.and_then(|start| Some(start..start.checked_add(len as u64)?));
        let range = range.filter(|range| range.end <= self.whole_len());
        range.ok_or_else(|| {
            let eof = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            let what = format!("read of {len} bytes at {offset} passes the end");
            Error::io(what, eof)
        })
    }

    /// Asks for the bytes of the objects that `range` needs, and for what a reader in order will
    /// want after them; `tail_start` is where bytes begin that are there already.
    fn request(&self, range: Range<u64>, tail_start: u64) -> Requested {
        let numbers = Chunks::of(&range);
        let chunks = self.chunks.request(numbers.clone());
        let waits = chunks.iter().any(|chunk| chunk.is_pending());
        let end = self.chunks.end_of_object(numbers.start);
        let end = end.min(tail_start.div_ceil(CHUNK_LEN));
        self.chunks.ask_ahead(&numbers, waits, end);
        (chunks, range)
    }

    /// Fills `buf` from the bytes in `range` of an image in packs.
    fn read_runs(&self, runs: &Runs, buf: &mut [u8], range: &Range<u64>) -> Result<()> {
        let pieces = runs.pieces(range);
        // All of them are on their way before the first one is waited for.
        let mut requested = pieces.iter().filter_map(|piece| match piece {
            Piece::Inline(_) => None,
            Piece::Packs(range) => Some(self.request(range.clone(), u64::MAX)),
        });
        let requested: Vec<Requested> = requested.by_ref().collect();
        let mut requested = requested.iter();
        let mut rest = buf;
        for piece in &pieces {
            let len = match piece {
                Piece::Inline(bytes) => bytes.len(),
                Piece::Packs(range) => range.end.saturating_sub(range.start) as usize,
            };
            let (head, tail) = rest.split_at_mut(len.min(rest.len()));
            rest = tail;
            match piece {
                Piece::Inline(bytes) => {
                    head.copy_from_slice(bytes.get(..head.len()).unwrap_or_default());
                }
                Piece::Packs(_) => {
                    let (chunks, range) = requested.next().ok_or_else(past_end)?;
                    self.chunks.copy(chunks, range, head)?;
                }
            }
        }
        if rest.is_empty() {
            Ok(())
        } else {
            Err(past_end())
        }
    }

    /// The ranges of the objects that have the bytes in `range`.
    fn ranges(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        match &self.layout {
            Layout::Whole(_) => vec![range.clone()],
            Layout::Packs(runs) => {
                let pieces = runs.pieces(range).into_iter();
                let ranges = pieces.filter_map(|piece| match piece {
                    Piece::Inline(_) => None,
                    Piece::Packs(range) => Some(range),
                });
                ranges.collect()
            }
        }
    }
}

impl Drop for RemoteSource {
    fn drop(&mut self) {
        self.chunks.finish_copies();
    }
}

impl ReadAt for RemoteSource {
    fn len(&self) -> u64 {
        self.whole_len().saturating_sub(self.start)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let range = self.range(offset, buf.len())?;
        if range.is_empty() {
            return Ok(());
        }
        match &self.layout {
            Layout::Whole(tail) if tail.read(buf, &range) => Ok(()),
            Layout::Whole(tail) => {
                let (chunks, range) = self.request(range, tail.start);
                self.chunks.copy(&chunks, &range, buf)
            }
            Layout::Packs(runs) => self.read_runs(runs, buf, &range),
        }
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
        for range in self.ranges(&range) {
            self.chunks.forget(Chunks::of(&range));
        }
        match &self.layout {
            Layout::Whole(_) => {
                let (chunks, range) = self.request(range, u64::MAX);
                self.chunks.copy(&chunks, &range, buf)?;
            }
            Layout::Packs(runs) => self.read_runs(runs, buf, &range)?,
        }
        Ok(true)
    }
}

impl Tail {
    /// Fills `buf` if it has all the bytes in `range`.
    fn read(&self, buf: &mut [u8], range: &Range<u64>) -> bool {
        let Some(from) = range.start.checked_sub(self.start) else {
            return false;
        };
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let to = from.saturating_add(buf.len());
        match self.bytes.get(from..to) {
            Some(bytes) => {
                buf.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }
}

fn past_end() -> Error {
    let eof = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    Error::io("a read passes the end of a pack", eof)
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
