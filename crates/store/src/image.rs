//! Reads an image of a store as if it were the original image file.

use crate::disk::{Access, LocalFile, Object};
use crate::layout;
use crate::replace::ImageLock;
use crate::segment;
use crate::store::Store;
use parking_lot::{Mutex, RwLock};
use std::collections::VecDeque;
use std::sync::Arc;
use weald_format::store::{ImageMap, Location, MAP_LEN_MAX, Part};
use weald_format::{BlockId, Digest, Error, ErrorKind, ImageNo, Result, SegmentNo};
use weald_io::ReadAt;

/// How often an image is opened again whose name moves to another one meanwhile.
const OPEN_COUNT_MAX: usize = 100;
/// How often the map of an image is looked for while its name changes.
const LOOK_COUNT_MAX: usize = 3;
/// Number of segments that an open image keeps open.
const IMAGE_SEGMENTS_MAX: usize = 32;

/// Where a range of the image's bytes is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
enum StoredAt {
    Inline(Arc<[u8]>),
    Record(Location),
}

/// The parts of an image, sorted by their offset in it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts {
    starts: Vec<u64>,
    sources: Vec<StoredAt>,
}

impl Parts {
    fn of(map: &ImageMap) -> Self {
        let mut parts = Self::default();
        let mut start = 0u64;
        for part in &map.parts {
            parts.starts.push(start);
            start = start.saturating_add(part.len());
            parts.sources.push(match part {
                Part::Inline(bytes) => StoredAt::Inline(bytes.as_slice().into()),
                Part::Block { location, .. } => StoredAt::Record(*location),
            });
        }
        parts
    }

    /// Returns the part that contains byte `offset`: its start in the image, its end (`None` for
    /// the last part), and its source.
    fn at(&self, offset: u64) -> Option<(u64, Option<u64>, StoredAt)> {
        let index = self
            .starts
            .partition_point(|&start| start <= offset)
            .checked_sub(1)?;
        let start = *self.starts.get(index)?;
        let end = self.starts.get(index.saturating_add(1)).copied();
        Some((start, end, self.sources.get(index)?.clone()))
    }
}

/// Finds where blocks lie now, in the order of their numbers.
pub type FindBlocks = dyn Fn(&[BlockId]) -> Result<Vec<Location>> + Send + Sync;

/// The blocks of an image without a name whose blocks may move.
struct Moving {
    /// The part, and its block.
    blocks: Vec<(usize, BlockId)>,
    find: Box<FindBlocks>,
}

impl std::fmt::Debug for Moving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} blocks that may move", self.blocks.len())
    }
}

/// Open segments; the most recently used one is last.
type OpenSegments = VecDeque<(SegmentNo, Arc<dyn Object>)>;

/// An image of a store, open for reading by many threads.
///
/// This reader verifies nothing; the image reader verifies the image's own digests. If the writer
/// has moved a record since the map was read, the map is read again.
#[derive(Debug)]
pub struct StoredImage {
    store: Store,
    name: String,
    image_no: ImageNo,
    len: u64,
    parts: RwLock<Arc<Parts>>,
    segments: Mutex<OpenSegments>,
    moving: Option<Moving>,
    /// Lock that prevents removal of the image; `None` if the image is not listed.
    _lock: Option<Box<dyn LocalFile>>,
}

impl StoredImage {
    /// Opens the image `name` for reading like a file. While it is open,
    /// [`crate::StoreWriter::remove`] refuses to remove it. If another image gets its name, this
    /// one keeps its blocks until its last reader is gone.
    ///
    /// # Errors
    /// As [`Store::map`]; `Busy` if it is being removed.
    pub fn open(store: Store, name: &str) -> Result<Self> {
        let mut map = store.map(name)?;
        for _ in 0..OPEN_COUNT_MAX {
            let lock = store.lock_file(Access::Read)?;
            let is_free = lock.try_lock(layout::image_lock(map.image_no), false)?;
            // The image may have been removed or replaced after its map was read and before it was
            // locked.
            let again = store.map(name)?;
            let is_it = again.image_no == map.image_no;
            map = again;
            if is_it && is_free {
                return Ok(Self {
                    name: name.to_owned(),
                    image_no: map.image_no,
                    len: map.image_len(),
                    parts: RwLock::new(Arc::new(Parts::of(&map))),
                    segments: Mutex::default(),
                    store,
                    moving: None,
                    _lock: Some(lock),
                });
            }
            if is_it {
                break;
            }
        }
        let what = format!("{}:{name}: is being removed", store.disk.shown());
        Err(Error::new(ErrorKind::Busy, what))
    }

    /// Number of the image in its store, never used twice.
    pub fn image_no(&self) -> ImageNo {
        self.image_no
    }

    /// Store of the image.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Name of the image in messages: `STORE:NAME`.
    pub fn shown(&self) -> String {
        format!("{}:{}", self.store.shown(), self.name)
    }

    /// Opens the image of `map`, which the caller has locked.
    pub fn open_locked(store: Store, map: &ImageMap, _lock: &ImageLock) -> Self {
        Self::unlisted(store, map)
    }

    /// An image with these parts, which the store does not list. Its blocks stay where they are as
    /// long as the caller sees to it.
    pub fn of_parts(store: Store, parts: Vec<Part>) -> Self {
        let map = ImageMap {
            image_no: ImageNo(u64::MAX),
            image_digest: Digest::default(),
            tree_digest: Digest::default(),
            added: 0,
            parts,
        };
        Self::unlisted(store, &map)
    }

    /// As [`StoredImage::of_parts`], of blocks that can move: `find` says where they are then.
    pub fn of_moving_parts(store: Store, parts: Vec<Part>, find: Box<FindBlocks>) -> Self {
        let blocks = parts.iter().enumerate();
        let blocks = blocks.filter_map(|(at, part)| match part {
            Part::Block { id, .. } => Some((at, *id)),
            Part::Inline(_) => None,
        });
        let blocks = blocks.collect();
        Self {
            moving: Some(Moving { blocks, find }),
            ..Self::of_parts(store, parts)
        }
    }

    /// Opens the image of `map`, which is not listed yet. Its writer holds the writer's lock, so
    /// that no record moves.
    pub(crate) fn unlisted(store: Store, map: &ImageMap) -> Self {
        Self {
            name: String::new(),
            image_no: map.image_no,
            len: map.image_len(),
            parts: RwLock::new(Arc::new(Parts::of(map))),
            segments: Mutex::default(),
            store,
            moving: None,
            _lock: None,
        }
    }

    fn segment(&self, number: SegmentNo) -> Result<Arc<dyn Object>> {
        {
            let mut open = self.segments.lock();
            if let Some(at) = open.iter().position(|(no, _)| *no == number)
                && let Some(found) = open.remove(at)
            {
                let file = found.1.clone();
                open.push_back(found);
                return Ok(file);
            }
        }
        let file = segment::open(&*self.store.disk, number)?;
        let file: Arc<dyn Object> = Arc::from(file);
        let mut open = self.segments.lock();
        open.push_back((number, file.clone()));
        if open.len() > IMAGE_SEGMENTS_MAX {
            open.pop_front();
        }
        Ok(file)
    }

    fn read_parts(&self, parts: &Parts, buf: &mut [u8], offset: u64) -> Result<()> {
        let (mut done, mut at) = (0usize, offset);
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let (start, end, source) = parts.at(at).ok_or_else(|| past_end(offset))?;
            let part_len = end.unwrap_or(self.len).saturating_sub(at);
            let len = rest
                .len()
                .min(usize::try_from(part_len).unwrap_or(usize::MAX));
            let piece = rest.get_mut(..len).filter(|piece| !piece.is_empty());
            let piece = piece.ok_or_else(|| past_end(offset))?;
            let inside = at.saturating_sub(start);
            match source {
                StoredAt::Inline(bytes) => {
                    let from = inside as usize;
                    let bytes = bytes.get(from..from.saturating_add(len));
                    piece.copy_from_slice(bytes.ok_or_else(|| past_end(offset))?);
                }
                StoredAt::Record(location) => {
                    let file = self.segment(location.segment)?;
                    file.read_at(piece, location.offset.saturating_add(inside))?;
                }
            }
            done = done.saturating_add(len);
            at = at.saturating_add(len as u64);
        }
        Ok(())
    }

    /// Looks for the blocks of an image without a name, after the collector moved some.
    fn find_moved(&self, moving: &Moving) -> Result<Arc<Parts>> {
        let ids: Vec<BlockId> = moving.blocks.iter().map(|(_, id)| *id).collect();
        let locations = (moving.find)(&ids)?;
        let before = self.parts.read().clone();
        let mut parts = Parts {
            starts: before.starts.clone(),
            sources: before.sources.clone(),
        };
        for ((at, _), location) in moving.blocks.iter().zip(locations) {
            if let Some(source) = parts.sources.get_mut(*at) {
                *source = StoredAt::Record(location);
            }
        }
        let parts = Arc::new(parts);
        *self.parts.write() = parts.clone();
        Ok(parts)
    }

    /// Reads the map again, after the collector moved blocks.
    ///
    /// # Errors
    /// `Moved` if the image was removed; `Corrupt`, `Io`.
    fn reload(&self) -> Result<Arc<Parts>> {
        let before = self.parts.read().clone();
        for _ in 0..LOOK_COUNT_MAX {
            if let Some(map) = self.find_map(&before)? {
                let parts = Arc::new(Parts::of(&map));
                *self.parts.write() = parts.clone();
                return Ok(parts);
            }
        }
        let shown = self.store.disk.shown();
        let what = format!("{shown}:{}: was removed while it is read", self.name);
        Err(Error::new(ErrorKind::Moved, what))
    }

    /// The map of this image: under its name, under its reserved name if another image has taken
    /// its name, without a name while it gets one, or under another name.
    fn find_map(&self, before: &Arc<Parts>) -> Result<Option<ImageMap>> {
        let is_it = |map: &ImageMap| map.image_no == self.image_no && map.image_len() == self.len;
        let of = |name: &str| match self.store.map(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(|map| Some(map).filter(is_it)),
        };
        for name in [&self.name, &layout::replaced_name(self.image_no)] {
            if let Some(map) = of(name)? {
                return Ok(Some(map));
            }
        }
        let hidden = layout::hidden_map(self.image_no);
        let hidden = match self.store.read_object(&hidden, MAP_LEN_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            other => Some(self.store.parse_map(&self.name, &other?)?).filter(is_it),
        };
        // That of a removed image leads to what is gone.
        if hidden
            .as_ref()
            .is_some_and(|map| Parts::of(map) != **before)
        {
            return Ok(hidden);
        }
        for name in self.store.names()? {
            // The map of another image that is damaged hides nothing.
            if let Ok(Some(map)) = of(&name) {
                return Ok(Some(map));
            }
        }
        Ok(None)
    }
}

fn past_end(offset: u64) -> Error {
    let eof = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    Error::io(format!("read at {offset} passes the end"), eof)
}

impl ReadAt for StoredImage {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(past_end(offset));
        }
        let mut parts = self.parts.read().clone();
        loop {
            match self.read_parts(&parts, buf, offset) {
                // The collector copied the live blocks of a segment, rewrote the maps and removed
                // the segment. If the map is as before, the segment is lost.
                Err(error) if error.kind() == ErrorKind::Lost => {
                    // An image without a name is that of its writer, and nothing moves.
                    let again = match (&self.moving, self.name.as_str()) {
                        (Some(moving), _) => self.find_moved(moving)?,
                        (None, "") => parts.clone(),
                        _ => self.reload()?,
                    };
                    if again == parts {
                        return Err(error);
                    }
                    parts = again;
                }
                other => return other,
            }
        }
    }
}
