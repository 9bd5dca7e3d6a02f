//! Notes what is touched of an image: files with their ranges, blocks, what recipes make, metadata
//! records; each in the order in which it was touched first.
//!
//! What was noted before costs an atomic operation; where nobody records, a look at a pointer.

use crate::Image;
use crate::hot::{
    HotFile, HotImage, Hotness, LINE_COUNT_MAX, PATH_LEN_MAX, Place, RANGE_COUNT_MAX, add_range,
};
use crate::records::Records;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::container::RecordType;
use weald_format::limits::DEPTH_MAX;
use weald_format::{Digest, InodeNo, Result};

/// Ranges are noted in units of these bytes: what the kernel asks for at least.
const UNIT_LEN: u64 = 4096;

/// Notes of one image.
pub struct Recorder {
    /// Of each block of each stream: bytes of its front that were wanted.
    blocks: Vec<Box<[AtomicU64]>>,
    /// Of each type, by its code: a bit for each record.
    pages: Vec<Box<[AtomicU64]>>,
    made: Mutex<HashSet<(u8, u64)>>,
    /// Lengths are those of the first touch.
    order: Mutex<Vec<Place>>,
    files: Mutex<Files>,
}

#[derive(Default)]
struct Files {
    places: HashMap<u64, usize>,
    /// Number of the name, and what was read of it.
    read: Vec<(u64, Vec<Range<u64>>)>,
}

fn zeros(count: u64) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Recorder {
    /// Empty notes for an image with these records and streams.
    pub fn new(records: &Records, stream_count: usize) -> Self {
        let streams = (0..stream_count).map(|no| u8::try_from(no).unwrap_or(u8::MAX));
        let blocks = streams.map(|no| zeros(records.record_count(RecordType::Data, no)));
        let code_max = RecordType::ALL.iter().map(|(_, code, _)| *code).max();
        let pages = (0..=code_max.unwrap_or(0)).map(|code| {
            let record_type = RecordType::from_code(code);
            let is_page = record_type.filter(|t| !matches!(t, RecordType::Data));
            let count = is_page.map_or(0, |t| records.record_count(t, 0));
            zeros(count.div_ceil(64))
        });
        Self {
            blocks: blocks.collect(),
            pages: pages.collect(),
            made: Mutex::default(),
            order: Mutex::default(),
            files: Mutex::default(),
        }
    }

    fn push(&self, place: Place) {
        let mut order = self.order.lock();
        if order.len() < LINE_COUNT_MAX {
            order.push(place);
        }
    }

    /// Notes that the first `len` bytes of a block are wanted.
    pub fn block(&self, stream: u8, no: u64, len: u64) {
        let stream_blocks = self.blocks.get(usize::from(stream));
        let Some(wanted) = stream_blocks.and_then(|b| b.get(usize::try_from(no).ok()?)) else {
            return;
        };
        if wanted.load(Ordering::Relaxed) < len && wanted.fetch_max(len, Ordering::Relaxed) == 0 {
            self.push(Place::Block { stream, no, len });
        }
    }

    /// Notes that a metadata record is used.
    pub fn page(&self, record_type: RecordType, no: u64) {
        let bits = self.pages.get(usize::from(record_type as u8));
        let word = bits.and_then(|b| b.get(usize::try_from(no / 64).ok()?));
        let Some(word) = word else { return };
        let bit = 1u64 << (no % 64);
        if word.load(Ordering::Relaxed) & bit == 0
            && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            self.push(Place::Page(record_type, no));
        }
    }

    /// Notes that what a recipe makes is used, from `address` of the stream on.
    pub fn made(&self, stream: u8, address: u64) {
        let mut made = self.made.lock();
        if made.len() < LINE_COUNT_MAX && made.insert((stream, address)) {
            drop(made);
            self.push(Place::Made { stream, address });
        }
    }

    /// Notes that bytes `read` of the file of name `no` are read.
    pub fn file(&self, no: u64, read: Range<u64>) {
        if read.is_empty() {
            return;
        }
        let start = read.start.saturating_sub(read.start % UNIT_LEN);
        let end = read.end.checked_next_multiple_of(UNIT_LEN);
        let read = start..end.unwrap_or(u64::MAX);
        let Files {
            places,
            read: files,
        } = &mut *self.files.lock();
        let count = files.len();
        if count >= LINE_COUNT_MAX && !places.contains_key(&no) {
            return;
        }
        let place = *places.entry(no).or_insert(count);
        if place == count {
            files.push((no, Vec::new()));
        }
        if let Some((_, ranges)) = files.get_mut(place) {
            add_range(ranges, read);
        }
    }

    fn places(&self) -> Vec<Place> {
        let noted = self.order.lock().clone();
        let full = |place| match place {
            Place::Block { stream, no, len } => {
                let stream_blocks = self.blocks.get(usize::from(stream));
                let wanted = stream_blocks.and_then(|b| b.get(usize::try_from(no).ok()?));
                let len = wanted.map_or(len, |w| w.load(Ordering::Relaxed));
                Place::Block { stream, no, len }
            }
            other => other,
        };
        noted.into_iter().map(full).collect()
    }
}

impl Image {
    /// From now on, notes what is touched of this image and of those below it.
    pub fn record_hotness(&self) {
        self.each_image(&mut |image| {
            let stream_count = image.directory.streams.len();
            image.records.start_recording(stream_count);
        });
    }

    /// What was touched since [`Image::record_hotness`]; `None` where nobody asked for it.
    ///
    /// # Cost
    /// A descent from the root for each directory on the way to each file.
    pub fn hotness(&self) -> Option<Hotness> {
        let recorder = self.records.recorder()?;
        let mut images: Vec<HotImage> = Vec::new();
        let mut left = LINE_COUNT_MAX;
        self.each_image(&mut |image| {
            let Some(recorder) = image.records.recorder() else {
                return;
            };
            let mut places = recorder.places();
            places.truncate(left);
            left = left.saturating_sub(places.len());
            let digest = image.summary.image_digest;
            images.push(HotImage { digest, places });
        });
        let read = recorder.files.lock().read.clone();
        debug_assert!(read.iter().all(|(_, r)| r.len() <= RANGE_COUNT_MAX));
        let files = read.into_iter().filter_map(|(no, ranges)| {
            // A path that cannot be told is that of a file which nobody could have opened either.
            let path = self.path_of(no).ok().flatten()?;
            Some(HotFile { path, ranges })
        });
        Some(Hotness {
            images,
            files: files.collect(),
        })
    }

    /// The path of a name from the root; `None` for the root, and where it is longer than a hotness
    /// tells.
    fn path_of(&self, no: u64) -> Result<Option<Vec<u8>>> {
        let (mut no, mut names, mut len) = (no, Vec::new(), 0usize);
        for _ in 0..DEPTH_MAX {
            if no == weald_format::ROOT_INODE.0 {
                break;
            }
            let name = self.tree.name_of(no)?;
            len = len.saturating_add(name.len()).saturating_add(1);
            if len > PATH_LEN_MAX {
                return Ok(None);
            }
            names.push(name);
            no = self.parent(InodeNo(no))?.0;
        }
        names.reverse();
        Ok((!names.is_empty()).then(|| names.join(&b'/')))
    }

    /// Visits this image and each one below it, once.
    pub(crate) fn each_image(&self, visit: &mut dyn FnMut(&Self)) {
        let mut seen: HashSet<Digest> = HashSet::new();
        seen.insert(self.summary.image_digest);
        visit(self);
        let mut waiting = self.records.bases();
        while let Some(image) = waiting.pop() {
            if seen.insert(image.summary.image_digest) {
                visit(&image);
                waiting.append(&mut image.records.bases());
            }
        }
    }
}

/// A place for notes in the records of an image.
pub type Recording = std::sync::OnceLock<Arc<Recorder>>;
