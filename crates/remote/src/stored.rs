//! An image of a store in a bucket: its name, its map, and its parts in packs.

use crate::bucket::Bucket;
use crate::chunks::{CHUNK_LEN, Chunks, Member};
use crate::client::runtime;
use crate::disk_cache::ImageCache;
use crate::failure::lost;
use crate::location::{InStore, Location};
use crate::object::Object;
use crate::settings::settings;
use std::ops::Range;
use std::sync::Arc;
use weald_format::bucket::{
    BUCKET_MAP_LEN_MAX, BucketMap, BucketName, NAME_LEN_MAX, map_key, name_key, pack_key,
};
use weald_format::store::Part;
use weald_format::{Digest, Error, ErrorKind, Result};

/// Bytes that are read at once from a map.
const MAP_STEP: usize = 8 << 20;
/// Chunks of the end of an image that are fetched when it is opened: those of one request.
const TAIL_CHUNKS: u64 = 4;

/// Where a run of bytes of an image lies.
enum At {
    /// In the map.
    Inline(Arc<[u8]>),
    /// Among the bytes of all packs, from this one on.
    Packs(u64),
}

/// The bytes of an image, as runs in the order of the image.
pub struct Runs {
    /// Offset of each run in the image.
    starts: Vec<u64>,
    runs: Vec<At>,
    len: u64,
}

/// A piece of a range of an image.
pub enum Piece<'a> {
    /// Its bytes.
    Inline(&'a [u8]),
    /// Where they lie among the bytes of all packs.
    Packs(Range<u64>),
}

impl Runs {
    /// The runs of `map`; `begin_of` says where a pack begins.
    fn of(map: &BucketMap, begin_of: impl Fn(u64) -> u64) -> Self {
        let mut found = Self {
            starts: Vec::new(),
            runs: Vec::new(),
            len: 0,
        };
        let mut next = None;
        for part in &map.map.parts {
            let at = match part {
                Part::Inline(bytes) => At::Inline(bytes.as_slice().into()),
                Part::Block { location, .. } => {
                    let begin = begin_of(location.segment.0).saturating_add(location.offset);
                    At::Packs(begin)
                }
            };
            let end = match &at {
                At::Inline(_) => None,
                At::Packs(begin) => Some(begin.saturating_add(part.len())),
            };
            let goes_on = matches!(&at, At::Packs(begin) if next == Some(*begin));
            if !goes_on {
                found.starts.push(found.len);
                found.runs.push(at);
            }
            next = end;
            found.len = found.len.saturating_add(part.len());
        }
        found
    }

    /// Bytes of the image.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The pieces of `range`, which lies inside the image, in order.
    pub fn pieces(&self, range: &Range<u64>) -> Vec<Piece<'_>> {
        let first = self.starts.partition_point(|start| *start <= range.start);
        let mut pieces = Vec::new();
        let mut at = range.start;
        for index in first.saturating_sub(1)..self.runs.len() {
            let (Some(start), Some(run)) = (self.starts.get(index), self.runs.get(index)) else {
                break;
            };
            if *start >= range.end {
                break;
            }
            let end = self.starts.get(index.saturating_add(1));
            let end = end.copied().unwrap_or(self.len).min(range.end);
            let (from, to) = (at.saturating_sub(*start), end.saturating_sub(*start));
            pieces.push(match run {
                At::Inline(bytes) => {
                    let piece = bytes.get(from as usize..to as usize);
                    Piece::Inline(piece.unwrap_or_default())
                }
                At::Packs(begin) => {
                    Piece::Packs(begin.saturating_add(from)..begin.saturating_add(to))
                }
            });
            at = end;
        }
        pieces
    }

    /// The last bytes that lie in packs.
    fn last_in_packs(&self) -> Option<Range<u64>> {
        let from = self.len.saturating_sub(TAIL_CHUNKS * CHUNK_LEN);
        let pieces = self.pieces(&(from..self.len));
        pieces.into_iter().rev().find_map(|piece| match piece {
            Piece::Inline(_) => None,
            Piece::Packs(range) => Some(range),
        })
    }
}

/// The bytes of an image of a store.
pub struct Stored {
    /// The chunks of its packs.
    pub chunks: Arc<Chunks>,
    /// Where its bytes lie in them.
    pub runs: Runs,
}

/// The name `stored.name`, as it is now, and its ETag.
///
/// # Errors
/// `NotFound` if there is none; `Corrupt`, `Io`.
pub async fn read_name(bucket: &Bucket, name: &str) -> Result<(BucketName, Option<String>)> {
    let key = name_key(name);
    let found = match bucket.get_async(&key, NAME_LEN_MAX).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let what = format!(
                "{}:{name}: there is no such image: {}",
                bucket.shown(),
                error.what()
            );
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        other => other?,
    };
    let parsed = BucketName::parse(&found.bytes);
    let parsed = parsed.map_err(|error| error.context(bucket.location(&key).shown()))?;
    Ok((parsed, found.tag))
}

/// The map that `name` names.
///
/// # Errors
/// `Corrupt`, `Lost`, `Io`.
pub fn read_map(bucket: &Bucket, name: &BucketName) -> Result<BucketMap> {
    let key = map_key(&name.map_digest);
    let location = bucket.location(&key);
    if name.map_len > BUCKET_MAP_LEN_MAX {
        let what = format!("{}: a map of {} bytes", location.shown(), name.map_len);
        return Err(Error::limit(what));
    }
    let object = Object::of_digest(location.clone(), bucket.connection(&key)?, name.map_len);
    let members = vec![member(object, name.map_digest)?];
    let chunks = Chunks::new(members, runtime()?.handle().clone());
    let mut bytes = vec![0; name.map_len as usize];
    read_whole(&chunks, &mut bytes)?;
    if Digest::of(&bytes) != name.map_digest {
        // A copy on disk may be wrong, and the object right.
        chunks.forget(Chunks::of(&(0..name.map_len)));
        read_whole(&chunks, &mut bytes)?;
    }
    chunks.finish_copies();
    if Digest::of(&bytes) != name.map_digest {
        return Err(lost(&location, "the map differs from its digest"));
    }
    let parsed = BucketMap::parse(&bytes).map_err(|error| error.context(location.shown()))?;
    let is_right =
        parsed.map.image_digest == name.image_digest && parsed.map.image_len() == name.image_len;
    if is_right {
        Ok(parsed)
    } else {
        Err(lost(&location, "the map is that of another image"))
    }
}

fn read_whole(chunks: &Arc<Chunks>, bytes: &mut [u8]) -> Result<()> {
    let mut at = 0u64;
    for step in bytes.chunks_mut(MAP_STEP) {
        let range = at..at.saturating_add(step.len() as u64);
        let requested = chunks.request(Chunks::of(&range));
        chunks.copy(&requested, &range, step)?;
        at = range.end;
    }
    Ok(())
}

fn member(object: Object, digest: Digest) -> Result<Member> {
    let cache = settings().cache;
    let disk = cache.map(|cache| ImageCache::open(&cache, digest));
    Ok(Member::new(object, disk.transpose()?))
}

/// Opens the image `stored` of the store at `location`.
///
/// # Errors
/// `NotFound`, `Corrupt`, `Lost`, `Io`.
/// # Cost
/// A request for the name, one for each MiB of the map, and one for the end of the image.
pub fn open(location: &Location, stored: &InStore) -> Result<Stored> {
    let bucket = Bucket::open(location)?;
    let (name, _) = runtime()?.block_on(read_name(&bucket, &stored.name))?;
    let map = read_map(&bucket, &name)?;
    let mut members = Vec::with_capacity(map.packs.len());
    for pack in &map.packs {
        let key = pack_key(&pack.digest);
        let connection = bucket.connection(&key)?;
        let object = Object::of_digest(bucket.location(&key), connection, pack.len);
        members.push(member(object, pack.digest)?);
    }
    let chunks = Chunks::new(members, runtime()?.handle().clone());
    let begin_of = |pack: u64| {
        let object = usize::try_from(pack).ok().and_then(|no| chunks.object(no));
        object.map_or(u64::MAX, |(_, begin)| begin)
    };
    let runs = Runs::of(&map, begin_of);
    if let Some(range) = runs.last_in_packs() {
        let numbers = Chunks::of(&range);
        let first = numbers.end.saturating_sub(TAIL_CHUNKS).max(numbers.start);
        drop(chunks.request(first..numbers.end));
    }
    Ok(Stored { chunks, runs })
}
