//! Opens a damaged image: chooses the directory, makes lost index pages again from the records
//! that they listed, and shows the result as an image.

use super::index::rebuild;
use super::overlay::{Overlay, WithCopies};
use super::survey::{Survey, WatchSurvey};
use crate::image::Image;
use crate::open::mended::copies_before;
use crate::open::options::OpenOptions;
use crate::records::read::{read_or_zeros, read_whole_record};
use std::sync::Arc;
use weald_codec::Decoder;
use weald_format::container::{
    Codec, FOOTER_LEN, Footer, HEADER_LEN, RecordRef, RecordType, SUPERBLOCK_LEN, SuperblockRecord,
};
use weald_format::copies::Copies;
use weald_format::directory::{Directory, check_lens};
use weald_format::{Digest, Error, ErrorKind, Result};
use weald_io::ReadAt;
use zerocopy::IntoBytes;

/// A damaged image, opened with all that could be made again.
pub struct Damaged {
    /// The image. Records that are lost still fail.
    pub image: Arc<Image>,
    /// Its storage.
    pub source: Arc<dyn ReadAt>,
    /// What was found in the file.
    pub survey: Survey,
    /// What was damaged and was made again or replaced, a sentence each.
    pub repaired: Vec<String>,
    /// The tree digest of the directory. With all parts there, the tree has it.
    pub tree_digest: Digest,
    /// Bytes behind the generation, if none was asked for: of a newer one whose directory is lost,
    /// or of an append that was interrupted.
    pub behind_len: u64,
}

/// A directory that the file still has, and the footer that belongs to it.
struct Candidate {
    directory: Directory,
    footer: Footer,
    /// Whether it comes from a second copy.
    is_copy: bool,
}

/// All second copies in the file whose directory is whole.
fn copies_of(source: &dyn ReadAt, survey: &Survey) -> Vec<Copies> {
    let records = || survey.records.iter().map(|found| found.record);
    let of_type = |wanted| records().filter(move |r| r.record_type == wanted);
    let read = |record: RecordRef| {
        let start = record.offset.saturating_add(HEADER_LEN as u64);
        let len = record.stored_len.min(source.len().saturating_sub(start));
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        read_or_zeros(source, &mut bytes, start);
        Copies::parse(bytes, start).ok()
    };
    let mut all: Vec<Copies> = of_type(RecordType::Copies).filter_map(read).collect();
    // Copies whose header is damaged still end with their length.
    for directory in of_type(RecordType::Directory) {
        let found = copies_before(source, directory.offset);
        all.extend(found.filter(|found| all.iter().all(|known| known.offset != found.offset)));
    }
    all
}

impl Damaged {
    /// Opens what is left of the image in `source`: its newest generation whose directory is whole,
    /// or the one that `options` name.
    ///
    /// # Errors
    /// `Unsupported` for an image of a newer version; `Corrupt` if no directory is left, or a base
    /// image is not found; `Invalid` if `watch` ends the walk, or there is no such generation.
    /// # Cost
    /// As [`Survey::of`]; memory of the directory and of index pages that are made again.
    pub fn open(
        source: Arc<dyn ReadAt>,
        options: &OpenOptions,
        watch: &mut WatchSurvey<'_>,
    ) -> Result<Self> {
        let mut repaired = Vec::new();
        check_superblock(&*source, &mut repaired)?;
        let mut survey = Survey::of(&*source, watch)?;
        let copies = copies_of(&*source, &survey);
        // Where the header of the copies is lost, the walk found the records in them.
        let is_in = |r: &RecordRef, c: &Copies| (c.offset..c.end()).contains(&r.offset);
        survey
            .records
            .retain(|r| !copies.iter().any(|copies| is_in(&r.record, copies)));
        let chosen = choose(&*source, (&survey, &copies), options)?;
        let end = chosen.footer.footer_offset;
        if chosen.is_copy {
            repaired.push(format!(
                "the directory of generation {} at byte {} is damaged: its second copy is used",
                chosen.footer.generation, chosen.footer.directory_offset
            ));
        }
        if !survey.footers.iter().any(|(_, f)| *f == chosen.footer) {
            repaired.push(format!(
                "the footer of generation {} at byte {end} is damaged",
                chosen.footer.generation
            ));
        }
        let is_asked_for = options.generation.is_some() || options.expected_digest.is_some();
        let behind_len = source
            .len()
            .saturating_sub(end.saturating_add(FOOTER_LEN as u64));
        let behind_len = if is_asked_for { 0 } else { behind_len };
        let tail_at = source.len().max(end.saturating_add(FOOTER_LEN as u64));
        let source: Arc<dyn ReadAt> = Arc::new(WithCopies::new(source, copies));
        let mut tail = Tail {
            at: tail_at,
            bytes: Vec::new(),
        };
        let tree_digest = chosen.directory.tree_digest;
        let mut directory = chosen.directory;
        directory.superblock_digest = Digest::of(SuperblockRecord::current().as_bytes());
        rebuild(&*source, &survey, end, &mut directory, &mut |page| {
            repaired.push(format!(
                "an index page of {} records at byte {} is damaged",
                page.record_count, page.record.offset
            ));
            tail.put_record(RecordType::Index, page.bytes)
        });
        tail.put_directory(&directory);
        let source: Arc<dyn ReadAt> = Arc::new(Overlay::new(source, tail_at, tail.bytes));
        let options = OpenOptions {
            generation: None,
            expected_digest: None,
            ..options.clone()
        };
        let image = Arc::new(Image::open(source.clone(), &options)?);
        Ok(Self {
            image,
            source,
            survey,
            repaired,
            tree_digest,
            behind_len,
        })
    }
}

/// Refuses an image of a newer version, which is not damaged.
fn check_superblock(source: &dyn ReadAt, repaired: &mut Vec<String>) -> Result<()> {
    let mut superblock = [0; SUPERBLOCK_LEN];
    let len = superblock.len().min(source.len() as usize);
    let read = superblock.get_mut(..len).unwrap_or_default();
    read_or_zeros(source, read, 0);
    match SuperblockRecord::parse(&superblock) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Unsupported => Err(error),
        Err(_) => {
            repaired.push("the superblock is damaged".to_owned());
            Ok(())
        }
    }
}

/// Bytes made anew behind the end of the file.
struct Tail {
    at: u64,
    bytes: Vec<u8>,
}

impl Tail {
    fn end(&self) -> u64 {
        self.at.saturating_add(self.bytes.len() as u64)
    }

    /// Puts a record that no codec makes smaller.
    fn put_record(&mut self, record_type: RecordType, stored: &[u8]) -> RecordRef {
        let record = RecordRef {
            record_type,
            codec: Codec::None,
            offset: self.end(),
            stored_len: stored.len() as u64,
            raw_len: stored.len() as u64,
            digest: Digest::of(stored),
        };
        self.bytes.extend_from_slice(record.header().as_bytes());
        self.bytes.extend_from_slice(stored);
        record
    }

    /// Puts the directory, and a footer for it.
    fn put_directory(&mut self, directory: &Directory) {
        let start = self.bytes.len();
        let record = self.put_record(RecordType::Directory, &directory.encode());
        let image_digest = Digest::of(self.bytes.get(start..).unwrap_or_default());
        let footer = Footer {
            generation: directory.generation,
            directory_offset: record.offset,
            directory_len: record.end().saturating_sub(record.offset),
            footer_offset: record.end(),
            previous_footer: Some(directory.previous_footer).filter(|at| *at != 0),
            image_digest,
            tree_digest: directory.tree_digest,
        };
        self.bytes.extend_from_slice(footer.encode().as_bytes());
    }
}

/// The directory to use: the newest one that belongs to this file.
fn choose(
    source: &dyn ReadAt,
    (survey, copies): (&Survey, &[Copies]),
    options: &OpenOptions,
) -> Result<Candidate> {
    let mut candidates = Vec::new();
    for copies in copies {
        let directory = copies.parts().nth(2).map(|(_, bytes)| bytes.to_vec());
        let read = directory.and_then(|bytes| {
            let header = bytes.get(..HEADER_LEN)?;
            let record = RecordRef::parse_header(header, copies.footer.directory_offset).ok()?;
            candidate_of(bytes, &record).ok()
        });
        candidates.extend(read.map(|c| Candidate { is_copy: true, ..c }));
    }
    for found in &survey.records {
        if found.record.record_type != RecordType::Directory || !found.is_whole {
            continue;
        }
        let read = read_candidate(source, &found.record);
        candidates.extend(read.ok());
    }
    candidates.retain(|c| belongs(survey, c));
    // Of a directory and its copy the original comes last.
    candidates.sort_by_key(|c| (c.footer.generation, c.footer.footer_offset, !c.is_copy));
    let is_wanted = |c: &&Candidate| match (options.generation, options.expected_digest) {
        (Some(number), _) => c.footer.generation == number,
        (None, Some(digest)) => c.footer.image_digest == digest,
        (None, None) => true,
    };
    let known = candidates.iter().map(|c| c.footer.generation);
    let known: Vec<String> = known.map(|n| n.to_string()).collect();
    if let Some(index) = candidates.iter().rposition(|c| is_wanted(&c)) {
        return Ok(candidates.swap_remove(index));
    }
    if known.is_empty() {
        let what = format!(
            "no directory is left among {} records, so that nothing says which of them belong \
             together",
            survey.records.len()
        );
        return Err(Error::corrupt("directory", 0, "F-4.5", what));
    }
    let what = format!("no such generation is left: there are {}", known.join(", "));
    Err(Error::invalid(what))
}

fn read_candidate(source: &dyn ReadAt, record: &RecordRef) -> Result<Candidate> {
    candidate_of(read_whole_record(source, record)?, record)
}

/// The directory of these bytes of a record, header included.
fn candidate_of(bytes: Vec<u8>, record: &RecordRef) -> Result<Candidate> {
    check_lens(record)?;
    let stored = bytes.get(HEADER_LEN..).unwrap_or_default();
    let raw_len = record.raw_len as usize;
    let raw = Decoder::default().decode(record.codec, stored, raw_len, None)?;
    let directory = Directory::parse(&raw)?;
    let footer = Footer {
        generation: directory.generation,
        directory_offset: record.offset,
        directory_len: bytes.len() as u64,
        footer_offset: record.end(),
        previous_footer: Some(directory.previous_footer).filter(|at| *at != 0),
        image_digest: Digest::of(&bytes),
        tree_digest: directory.tree_digest,
    };
    directory.check_fits(footer.directory_offset)?;
    Ok(Candidate {
        directory,
        footer,
        is_copy: false,
    })
}

/// Whether the footer of a directory, or a record or an index page to which it refers, lies where
/// it says. Data without a codec may hold another image, whose directory is none of this file.
fn belongs(survey: &Survey, candidate: &Candidate) -> bool {
    let footer = &candidate.footer;
    let mut footers = survey.footers.iter();
    let mut pages = candidate.directory.sections.iter().flat_map(|s| &s.pages);
    footers.any(|(at, found)| *at == footer.footer_offset && found == footer)
        || pages.any(|page| {
            let found = survey.at(page.record.offset);
            found.is_some_and(|found| found.record == page.record)
        })
}
