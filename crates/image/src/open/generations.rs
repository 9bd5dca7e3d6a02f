//! Generations: successive states of a tree in one file, each with its own footer.

use super::directory::read_directory;
use super::mended::{Mended, finished_by_copies};
use super::options::OpenOptions;
use std::path::Path;
use std::sync::Arc;
use weald_format::container::{
    FOOTER_LEN, FOOTER_MAGIC, Footer, HEADER_LEN, RecordRef, SUPERBLOCK_LEN, SuperblockRecord,
};
use weald_format::{Digest, Error, Result};
use weald_io::{FileSource, ReadAt};
#[cfg(feature = "places")]
use weald_remote::{Location, RemoteSource};

/// One generation of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation {
    /// Its number, from 1.
    pub number: u64,
    /// Digest of its directory, which authenticates everything in it.
    pub image_digest: Digest,
    /// Digest of names, attributes and contents.
    pub tree_digest: Digest,
    /// Bytes of the file up to its end: the length of the image at that time.
    pub image_len: u64,
}

impl Generation {
    fn of(footer: &Footer) -> Self {
        Self {
            number: footer.generation,
            image_digest: footer.image_digest,
            tree_digest: footer.tree_digest,
            image_len: footer.footer_offset.saturating_add(FOOTER_LEN as u64),
        }
    }
}

fn read_superblock(source: &dyn ReadAt) -> Result<Digest> {
    let image_len = source.len();
    let least = (SUPERBLOCK_LEN + HEADER_LEN + FOOTER_LEN) as u64;
    let mut superblock = [0; SUPERBLOCK_LEN];
    if image_len < SUPERBLOCK_LEN as u64 {
        let what = format!(
            "expected at least {least} bytes, found {image_len}: not an image, or truncated"
        );
        return Err(Error::corrupt("superblock", 0, "F-3.7", what));
    }
    source.read_exact_at(&mut superblock, 0)?;
    if SuperblockRecord::parse(&superblock).is_err() {
        // A copy of the storage may be damaged, and the original not.
        source.read_again_at(&mut superblock, 0)?;
    }
    SuperblockRecord::parse(&superblock)?;
    if image_len < least {
        let what = format!("expected at least {least} bytes, found {image_len}: truncated");
        return Err(Error::corrupt("footer", image_len, "F-4.1", what));
    }
    Ok(Digest::of(&superblock))
}

fn read_footer(source: &dyn ReadAt, offset: u64) -> Result<Footer> {
    let mut footer = [0; FOOTER_LEN];
    source.read_exact_at(&mut footer, offset)?;
    let parsed = Footer::parse(&footer, offset);
    // A copy may be damaged, and the original not, or the other way round.
    if parsed.is_err() && source.read_again_at(&mut footer, offset)? {
        return Footer::parse(&footer, offset);
    }
    parsed
}

/// Reads the superblock and the last footer; returns the digest of the former, and the latter.
///
/// # Errors
/// `Io`, `Unsupported`, `Corrupt`.
pub fn open_footer(source: &dyn ReadAt) -> Result<(Digest, Footer)> {
    let superblock_digest = read_superblock(source)?;
    let footer = read_footer(source, source.len().saturating_sub(FOOTER_LEN as u64))?;
    Ok((superblock_digest, footer))
}

/// The footer of the generation before that of `footer`, if there is one.
fn previous(source: &dyn ReadAt, footer: &Footer) -> Result<Option<Footer>> {
    let Some(offset) = footer.previous_footer else {
        return match footer.generation {
            1 => Ok(None),
            number => {
                let what = format!("generation {number} refers to no earlier one");
                Err(bad(footer, what))
            }
        };
    };
    let before = read_footer(source, offset)?;
    if before.generation.checked_add(1) == Some(footer.generation) {
        Ok(Some(before))
    } else {
        let what = format!(
            "generation {} refers to {} as the previous one",
            footer.generation, before.generation
        );
        Err(bad(footer, what))
    }
}

fn bad(footer: &Footer, what: String) -> Error {
    Error::corrupt("footer", footer.footer_offset, "F-4.7", what)
}

/// The footer of the generation that `options` select; `last` is the newest one.
///
/// # Errors
/// `Invalid` if there is none; `Io`, `Corrupt`.
pub fn choose(source: &dyn ReadAt, last: Footer, options: &OpenOptions) -> Result<Footer> {
    let newest = (last.generation, last.image_digest);
    let is_wanted = |footer: &Footer| match (options.generation, options.expected_digest) {
        (Some(number), _) => footer.generation == number,
        (None, Some(digest)) => footer.image_digest == digest,
        (None, None) => true,
    };
    let mut found = Some(last);
    while let Some(footer) = found {
        if is_wanted(&footer) {
            return match options.expected_digest {
                Some(expected) if expected != footer.image_digest => {
                    Err(other_digest(&expected, &footer.image_digest))
                }
                _ => Ok(footer),
            };
        }
        found = previous(source, &footer)?;
    }
    Err(match (options.generation, options.expected_digest) {
        (None, Some(expected)) => other_digest(&expected, &newest.1),
        (number, _) => Error::invalid(format!(
            "generation: expected 1 to {}, found {}",
            newest.0,
            number.unwrap_or(0)
        )),
    })
}

fn other_digest(expected: &Digest, found: &Digest) -> Error {
    Error::invalid(format!("image digest: expected {expected}, found {found}"))
}

/// Lists the generations of the image at `path`, a file, `STORE:NAME` or a URL, the newest first.
///
/// # Errors
/// `NotFound`, `Io`, `Corrupt`, `Unsupported`.
/// # Cost
/// Reads 128 bytes for each generation.
pub fn generations(path: &Path) -> Result<Vec<Generation>> {
    #[cfg(feature = "places")]
    if let Some(location) = Location::parse(path) {
        let location = location?;
        let source = RemoteSource::open(&location);
        let listed = source.and_then(|source| list(&Mended::new(Arc::new(source))?));
        return listed.map_err(|e| e.context(location.shown()));
    }
    // The text of an error names the image.
    #[cfg(feature = "places")]
    if let Some(image) = weald_store::find(path)? {
        return list(&image).map_err(|e| e.context(path.display()));
    }
    let source = FileSource::open(path, 0);
    let listed = source.and_then(|source| list(&Mended::new(Arc::new(source))?));
    listed.map_err(|e| e.context(path.display()))
}

/// Digest of the superblock, and the footers of all generations, the newest first.
///
/// # Errors
/// `Io`, `Corrupt`, `Unsupported`.
pub fn footers(source: &dyn ReadAt) -> Result<(Digest, Vec<Footer>)> {
    let (superblock_digest, last) = open_footer(source)?;
    Ok((superblock_digest, footers_from(source, last)?))
}

/// `last` and the footers before it, the newest first.
fn footers_from(source: &dyn ReadAt, last: Footer) -> Result<Vec<Footer>> {
    let (mut footers, mut found) = (Vec::new(), Some(last));
    while let Some(footer) = found {
        footers.push(footer);
        found = previous(source, &footer)?;
    }
    Ok(footers)
}

/// Lists the generation of the footer `last` and those before it, the newest first.
///
/// # Errors
/// `Io`, `Corrupt`, `Unsupported`.
pub fn list_from(source: &dyn ReadAt, last: &Footer) -> Result<Vec<Generation>> {
    let footers = footers_from(source, *last)?;
    Ok(footers.iter().map(Generation::of).collect())
}

/// Lists the generations of the image in `source`, the newest first.
///
/// # Errors
/// `Io`, `Corrupt`, `Unsupported`.
pub fn list(source: &dyn ReadAt) -> Result<Vec<Generation>> {
    let (_, footers) = footers(source)?;
    Ok(footers.iter().map(Generation::of).collect())
}

/// Whether one of the generations has the image digest `digest`.
pub fn has_digest(list: &[Generation], digest: &Digest) -> bool {
    list.iter().any(|g| g.image_digest == *digest)
}

/// The newest generation with a complete footer and directory, for an image to which a generation
/// was being appended when the machine stopped. Contents are not tested.
///
/// A footer at the end of the file says that the last append was finished. Without one, a scan
/// follows the records from the start. A footer behind the first damaged record says that the
/// image is damaged, not that an append was interrupted.
///
/// # Errors
/// `Io`, `Unsupported`; `Corrupt` if no generation is complete, and for damage in a finished
/// generation.
/// # Cost
/// Reads 64 bytes for each record; without a footer at the end also all bytes behind the last
/// complete record.
pub fn last_whole_generation(source: &dyn ReadAt) -> Result<Generation> {
    read_superblock(source)?;
    if let Ok((_, last)) = open_footer(source) {
        let number = last.generation;
        let read = read_directory(source, &last);
        return read.map(|_| Generation::of(&last)).map_err(|e| {
            e.context(format!(
                "generation {number} was finished and is damaged, which recover cannot mend: \
                 'weald check' tells the damage, --generation reads older ones"
            ))
        });
    }
    if let Some(number) = finished_by_copies(source) {
        let what = format!(
            "generation {number} was finished and its footer is damaged: its second copy is whole, \
             and 'weald salvage' writes a whole image"
        );
        return Err(Error::corrupt("footer", source.len(), "F-4.3", what));
    }
    let mut found: Option<Footer> = None;
    let mut at = SUPERBLOCK_LEN as u64;
    while let Some((len, footer)) = step(source, at)? {
        at = at.saturating_add(len);
        // A footer counts if the directory that it authenticates is there.
        found = footer
            .filter(|f| read_directory(source, f).is_ok())
            .or(found);
    }
    if let Some(footer) = next_footer(source, at)? {
        let what = format!(
            "damaged, and generation {} was finished behind it: nothing is cut off; restore the \
             image from a copy",
            footer.generation
        );
        return Err(Error::corrupt("record header", at, "F-4.2", what));
    }
    found.as_ref().map(Generation::of).ok_or_else(|| {
        let what = "no complete record here and no footer behind it: the first build was \
                    interrupted or the image is truncated, so recover finds no generation to keep";
        Error::corrupt("footer", at, "F-4.2", what)
    })
}

/// The first footer at offset `from` or behind it.
fn next_footer(source: &dyn ReadAt, from: u64) -> Result<Option<Footer>> {
    const PIECE_LEN: u64 = 1 << 20;
    let mut at = from;
    while source.len().saturating_sub(at) >= FOOTER_LEN as u64 {
        let len = source.len().saturating_sub(at).min(PIECE_LEN);
        let mut piece = vec![0; usize::try_from(len).unwrap_or(0)];
        source.read_exact_at(&mut piece, at)?;
        let windows = piece.windows(FOOTER_MAGIC.len()).enumerate();
        for (index, _) in windows.filter(|(_, bytes)| *bytes == FOOTER_MAGIC.as_slice()) {
            let place = at.saturating_add(index as u64);
            if source.len().saturating_sub(place) >= FOOTER_LEN as u64
                && let Ok(footer) = read_footer(source, place)
            {
                return Ok(Some(footer));
            }
        }
        // The magic may lie across two pieces.
        at = at
            .saturating_add(len)
            .saturating_sub(FOOTER_MAGIC.len() as u64);
        if len < PIECE_LEN {
            break;
        }
    }
    Ok(None)
}

/// The length of the complete record at `at`, or of the footer there, with the footer; `None` if
/// there is neither.
fn step(source: &dyn ReadAt, at: u64) -> Result<Option<(u64, Option<Footer>)>> {
    let remaining = source.len().saturating_sub(at);
    if remaining < HEADER_LEN as u64 {
        return Ok(None);
    }
    let mut header = [0; HEADER_LEN];
    source.read_exact_at(&mut header, at)?;
    if header.starts_with(&FOOTER_MAGIC) {
        if remaining < FOOTER_LEN as u64 {
            return Ok(None);
        }
        let footer = read_footer(source, at).ok();
        return Ok(footer.map(|f| (FOOTER_LEN as u64, Some(f))));
    }
    let record = RecordRef::parse_header(&header, at).ok();
    let record = record.filter(|r| r.end() <= source.len());
    Ok(record.map(|r| (r.end().saturating_sub(at), None)))
}
