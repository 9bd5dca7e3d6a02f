//! Second copies: a storage that serves bytes of superblock, footer, directory and records near the
//! root from their copies if the originals are damaged.

use crate::records::read::read_or_zeros;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use weald_format::container::{
    FOOTER_LEN, FOOTER_MAGIC, Footer, HEADER_LEN, RecordRef, SUPERBLOCK_LEN, SUPERBLOCK_MAGIC,
};
use weald_format::copies::{COPIES_TRAILER_LEN, Copies};
use weald_format::limits::BLOCK_LEN_MAX;
use weald_format::{Digest, Error, Result};
use weald_io::ReadAt;
use zerocopy::IntoBytes;

/// Bytes at the end of an image that are searched for copies at least; and the share of the image.
const SEARCHED_LEN_MIN: u64 = 2 << 20;
const SEARCHED_SHARE: u64 = 250;
/// Bytes that the search reads at once.
const PIECE_LEN: u64 = 1 << 20;

/// The storage of an image, with the second copies that the image has.
pub struct Mended {
    inner: Arc<dyn ReadAt>,
    /// Length of the image. The file may be shorter, if its end was cut off.
    len: u64,
    copies: OnceLock<Option<Copies>>,
    /// What came from copies, by offset: length.
    used: Mutex<BTreeMap<u64, u64>>,
}

impl Mended {
    /// The storage `inner`, which may end with a damaged footer.
    ///
    /// # Errors
    /// `Io` of the last bytes.
    /// # Cost
    /// Reads 128 bytes; of an image without a footer there, it searches the last 2 MiB and 1/250.
    pub fn new(inner: Arc<dyn ReadAt>) -> Result<Self> {
        let mut mended = Self {
            len: inner.len(),
            inner,
            copies: OnceLock::new(),
            used: Mutex::default(),
        };
        let has_footer = match mended.len.checked_sub(FOOTER_LEN as u64) {
            // Too short for copies.
            None => true,
            Some(at) => {
                let mut footer = [0; FOOTER_LEN];
                mended.inner.read_exact_at(&mut footer, at)?;
                Footer::parse(&footer, at).is_ok()
            }
        };
        // Other files are not searched.
        if has_footer || !is_image(&*mended.inner) {
            return Ok(mended);
        }
        let found = search(&*mended.inner).filter(|copies| belongs(copies, mended.len));
        if let Some(copies) = &found {
            mended.len = footer_end(&copies.footer);
        }
        mended.copies = found.into();
        Ok(mended)
    }

    fn copies(&self) -> Option<&Copies> {
        let find = || {
            let at = self.inner.len().checked_sub(FOOTER_LEN as u64)?;
            let mut footer = [0; FOOTER_LEN];
            self.inner.read_exact_at(&mut footer, at).ok()?;
            match Footer::parse(&footer, at) {
                Ok(footer) => copies_before(&*self.inner, footer.directory_offset),
                Err(_) => None,
            }
        };
        self.copies.get_or_init(find).as_ref()
    }

    /// Errors about everything that came from copies because the original is damaged.
    pub fn damage(&self) -> Vec<Error> {
        let used = self.used.lock();
        used.iter()
            .map(|(offset, len)| {
                let what = format!("{len} bytes are damaged; their second copy is whole");
                Error::corrupt("second copy", *offset, "F-34.2", what)
            })
            .collect()
    }

    /// Whether anything came from copies.
    pub fn is_used(&self) -> bool {
        !self.used.lock().is_empty()
    }

    fn note(&self, offset: u64, len: u64) {
        let mut used = self.used.lock();
        if used.is_empty() {
            log::warn!(
                "the image is damaged at byte {offset}: its second copy is used; 'weald check' \
                 names what is damaged, 'weald salvage' writes a whole image"
            );
        }
        used.insert(offset, len);
    }
}

/// Whether `source` begins like an image.
fn is_image(source: &dyn ReadAt) -> bool {
    let mut magic = [0; SUPERBLOCK_MAGIC.len()];
    source.read_exact_at(&mut magic, 0).is_ok() && magic == SUPERBLOCK_MAGIC
}

/// Whether the footer of `copies` belongs at the end of a file of `len` bytes, and was there.
///
/// More bytes behind it tell of an append that was interrupted. The records of a generation are
/// durable once its footer is written. Without a byte of it, an append may have ended before: only
/// the first generation has its name when all of it is there.
fn belongs(copies: &Copies, len: u64) -> bool {
    let footer = &copies.footer;
    len <= footer_end(footer) && (footer.generation == 1 || len > footer.footer_offset)
}

fn footer_end(footer: &Footer) -> u64 {
    footer.footer_offset.saturating_add(FOOTER_LEN as u64)
}

impl ReadAt for Mended {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let inner_len = self.inner.len();
        let end = offset.saturating_add(buf.len() as u64);
        if end <= inner_len || end > self.len {
            return self.inner.read_exact_at(buf, offset);
        }
        // The bytes that were cut off read as zeros, which no digest has.
        let left = inner_len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (front, rest) = buf.split_at_mut(left);
        rest.fill(0);
        if front.is_empty() {
            return Ok(());
        }
        self.inner.read_exact_at(front, offset)
    }

    fn read_again_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        let end = offset.saturating_add(buf.len() as u64);
        if end <= self.inner.len() && self.inner.read_again_at(buf, offset)? {
            return Ok(true);
        }
        let Some(copies) = self.copies() else {
            return Ok(false);
        };
        for (start, bytes) in copies.parts() {
            let Some(at) = offset.checked_sub(start) else {
                continue;
            };
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            if let Some(part) = bytes.get(at..at.saturating_add(buf.len())) {
                buf.copy_from_slice(part);
                self.note(start, bytes.len() as u64);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn stop_waiting(&self) {
        self.inner.stop_waiting();
    }
}

/// The generation of a damaged footer at the end of `source` whose second copy is whole.
pub fn finished_by_copies(source: &dyn ReadAt) -> Option<u64> {
    let copies = search(source)?;
    let is_finished = belongs(&copies, source.len());
    is_finished.then_some(copies.footer.generation)
}

/// The copies that end at `end`, where the directory begins.
pub fn copies_before(source: &dyn ReadAt, end: u64) -> Option<Copies> {
    let mut trailer = [0; COPIES_TRAILER_LEN];
    let at = end.checked_sub(COPIES_TRAILER_LEN as u64)?;
    source.read_exact_at(&mut trailer, at).ok()?;
    read(source, Copies::start_before(end, &trailer)?, end)
}

fn read(source: &dyn ReadAt, start: u64, end: u64) -> Option<Copies> {
    let least = (SUPERBLOCK_LEN + HEADER_LEN) as u64;
    let len = end.checked_sub(start)?;
    if start < least || len > BLOCK_LEN_MAX || end > source.len() {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    source.read_exact_at(&mut bytes, start).ok()?;
    Copies::parse(bytes, start).ok()
}

/// The last copies in the last part of `source`, found by their footer.
fn search(source: &dyn ReadAt) -> Option<Copies> {
    let len = source.len();
    let searched = SEARCHED_LEN_MIN.saturating_add(len / SEARCHED_SHARE);
    let first = len.saturating_sub(searched);
    let mut end = len;
    while end > first {
        let start = end.saturating_sub(PIECE_LEN).max(first);
        // The magic may lie across two pieces.
        let stop = end
            .saturating_add((FOOTER_MAGIC.len() as u64).saturating_sub(1))
            .min(len);
        let mut piece = vec![0; usize::try_from(stop.saturating_sub(start)).ok()?];
        read_or_zeros(source, &mut piece, start);
        let windows = piece.windows(FOOTER_MAGIC.len()).enumerate().rev();
        for (index, _) in windows.filter(|(_, bytes)| *bytes == FOOTER_MAGIC.as_slice()) {
            let at = start.saturating_add(index as u64);
            if let Some(copies) = copies_around(source, at) {
                return Some(copies);
            }
        }
        end = start;
    }
    None
}

/// The copies whose footer lies at `at`, if their length or their header says the same.
fn copies_around(source: &dyn ReadAt, at: u64) -> Option<Copies> {
    let mut bytes = [0; FOOTER_LEN];
    source.read_exact_at(&mut bytes, at).ok()?;
    let footer = Copies::footer_of(&bytes)?;
    let start = at.checked_sub(SUPERBLOCK_LEN as u64)?;
    let copies = read(source, start, footer.directory_offset)?;
    let tail = copies.bytes().len().checked_sub(COPIES_TRAILER_LEN)?;
    let trailer = copies.bytes().get(tail..)?;
    let is_ended = Copies::start_before(footer.directory_offset, trailer) == Some(start);
    (is_ended || has_header(source, &copies)).then_some(copies)
}

/// Whether the header in front of `copies` is theirs.
fn has_header(source: &dyn ReadAt, copies: &Copies) -> bool {
    let expected = copies.record(Digest::of(copies.bytes()));
    let mut header = [0; HEADER_LEN];
    let read = source.read_exact_at(&mut header, expected.offset);
    read.is_ok() && header == *expected.header().as_bytes()
}

/// Verifies the copies of the generation that `footer` ends. Returns their record, if there are
/// any, and what is wrong with it.
pub fn verify(source: &dyn ReadAt, footer: &Footer) -> Option<(RecordRef, Option<Error>)> {
    let found = copies_before(source, footer.directory_offset);
    let found = found.or_else(|| {
        let searched = search(source)?;
        (searched.footer.directory_offset == footer.directory_offset).then_some(searched)
    })?;
    let record = found.record(Digest::of(found.bytes()));
    if has_header(source, &found) && found.footer == *footer {
        return Some((record, None));
    }
    let what = "the second copies are damaged; the originals are read";
    let error = Error::corrupt("copies", record.offset, "F-34.1", what);
    Some((record, Some(error)))
}
