//! Index pages made again from the records that they listed.

use super::survey::Survey;
use crate::records::page::Page;
use crate::records::read::{decode_record, read_whole_record};
use std::collections::BTreeSet;
use std::sync::Arc;
use weald_codec::DictionaryBytes;
use weald_format::container::{Codec, HEADER_LEN, RecordRef, RecordType};
use weald_format::directory::{Directory, IndexPage, PageRef, Section};
use weald_format::{Digest, Result};
use weald_io::ReadAt;

/// An index page that was made again.
pub struct NewPage<'a> {
    /// The reference to the lost page.
    pub record: RecordRef,
    /// References in it.
    pub record_count: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// Makes the lost index pages of `directory`, whose generation ends at `end`, again and lets it
/// refer to them. `put` stores one.
///
/// The records of a page lie in the file in their order, behind those of the page before and before
/// those of the page after. For all types but data, there is one section of the type, so that these
/// are the records of the type there. Blocks of several streams lie among each other: their pages
/// can be made again if only one of them is lost.
///
/// # Cost
/// Reads the index pages, and decodes the metadata records of lost pages.
pub fn rebuild(
    source: &dyn ReadAt,
    survey: &Survey,
    end: u64,
    directory: &mut Directory,
    put: &mut dyn FnMut(NewPage<'_>) -> RecordRef,
) {
    let is_lost = |record_type: RecordType, page: &PageRef| {
        !page.is_direct() && parse_page(source, record_type, page).is_err()
    };
    let mut known = BTreeSet::new();
    let mut lost_data_count = 0u64;
    for section in &directory.sections {
        for page in &section.pages {
            if is_lost(section.record_type, page) {
                let is_data = section.record_type == RecordType::Data;
                lost_data_count = lost_data_count.saturating_add(u64::from(is_data));
            } else {
                known.extend(refs_of(source, section.record_type, page));
            }
        }
    }
    let remains = Remains {
        source,
        survey,
        known,
        dictionary: dictionary_of(source, directory),
        previous_end: directory.previous_footer,
    };
    for section in &mut directory.sections {
        if section.record_type == RecordType::Data && lost_data_count > 1 {
            continue;
        }
        for no in 0..section.pages.len() {
            let page = section.pages.get(no).copied();
            let Some(page) = page.filter(|page| is_lost(section.record_type, page)) else {
                continue;
            };
            let range = remains.borders(section, no, end);
            let Some(bytes) = range.and_then(|r| remains.page(section.record_type, &page, r))
            else {
                continue;
            };
            let record = put(NewPage {
                record: page.record,
                record_count: page.record_count,
                bytes: &bytes,
            });
            if let Some(page) = section.pages.get_mut(no) {
                page.record = record;
            }
        }
    }
}

/// Offsets of the records that `page` lists; none if it cannot be read.
fn refs_of(source: &dyn ReadAt, record_type: RecordType, page: &PageRef) -> Vec<u64> {
    if page.is_direct() {
        return vec![page.record.offset];
    }
    let parsed = parse_page(source, record_type, page);
    parsed.map_or_else(
        |_| Vec::new(),
        |p| p.refs.iter().map(|r| r.offset).collect(),
    )
}

fn parse_page(source: &dyn ReadAt, record_type: RecordType, page: &PageRef) -> Result<IndexPage> {
    let bytes = read_whole_record(source, &page.record)?;
    let raw = bytes.get(HEADER_LEN..).unwrap_or_default();
    IndexPage::parse(
        raw,
        record_type,
        page.record_count as usize,
        page.item_count,
    )
}

/// The dictionary of metadata records, if it can be read.
fn dictionary_of(source: &dyn ReadAt, directory: &Directory) -> Option<Arc<DictionaryBytes>> {
    let section = directory.section(RecordType::Dictionary, 0)?;
    let record = section.pages.first()?.record;
    let mut raw = Vec::new();
    decode_record(source, &record, record.raw_len as usize, None, &mut raw).ok()?;
    DictionaryBytes::new(&raw).ok().map(Arc::new)
}

struct Remains<'a> {
    source: &'a dyn ReadAt,
    survey: &'a Survey,
    /// Offsets of the records that whole index pages and the directory list.
    known: BTreeSet<u64>,
    dictionary: Option<Arc<DictionaryBytes>>,
    /// Offset of the footer of the generation before; 0 without one.
    previous_end: u64,
}

impl Remains<'_> {
    /// Where the records of page `no` of `section` lie.
    fn borders(&self, section: &Section, no: usize, end: u64) -> Option<(u64, u64)> {
        let record_type = section.record_type;
        let refs = |page: &PageRef| refs_of(self.source, record_type, page);
        let is_own_of_generation = matches!(
            record_type,
            RecordType::Links | RecordType::Times | RecordType::Fsverity
        );
        let first = match no.checked_sub(1) {
            Some(before) => refs(section.pages.get(before)?).last().copied()?,
            None if is_own_of_generation => self.previous_end,
            None => 0,
        };
        let last = match section.pages.get(no.saturating_add(1)) {
            Some(page) => refs(page).first().copied()?,
            None => end,
        };
        Some((first, last))
    }

    /// The bytes of a lost page, whose records lie between two offsets, if all of them are found.
    fn page(
        &self,
        record_type: RecordType,
        page: &PageRef,
        (first, last): (u64, u64),
    ) -> Option<Vec<u8>> {
        let found = self.survey.records.iter().map(|found| found.record);
        let mut refs: Vec<RecordRef> = found
            .filter(|r| r.record_type == record_type && first < r.offset && r.offset < last)
            .filter(|r| !self.known.contains(&r.offset))
            .collect();
        if refs.len() as u64 > page.record_count {
            // Second copies that could not be told from records.
            let mut seen = BTreeSet::new();
            refs.retain(|r| seen.insert(r.digest));
        }
        let mut counts: Vec<Option<u64>> = refs.iter().map(|r| self.item_count(r)).collect();
        if (refs.len() as u64).saturating_add(1) == page.record_count {
            let place = self.gap(&refs, (first, last))?;
            let index = refs.partition_point(|r| r.offset < place);
            refs.insert(index, lost_record(record_type, place));
            counts.insert(index, None);
        }
        if refs.len() as u64 != page.record_count {
            return None;
        }
        let sum: u64 = counts
            .iter()
            .flatten()
            .try_fold(0u64, |sum, n| sum.checked_add(*n))?;
        let rest = page.item_count.checked_sub(sum)?;
        let unknown = counts.iter().filter(|count| count.is_none()).count();
        // What cannot be counted gets the rest: all of it if it is one record.
        if unknown > 1 || (unknown == 0 && rest != 0) {
            return None;
        }
        let mut items = Vec::with_capacity(counts.len());
        for (record, count) in refs.iter_mut().zip(counts) {
            let count = count.unwrap_or(rest);
            if record.digest == Digest::default() && record_type == RecordType::Data {
                (record.raw_len, record.stored_len) = (count, count);
            }
            items.push(count);
        }
        let bytes = IndexPage::encode(&refs, &items);
        let count = page.record_count as usize;
        let parsed = IndexPage::parse(&bytes, record_type, count, page.item_count);
        parsed.is_ok().then_some(bytes)
    }

    /// The one damaged place between two offsets that no known record explains.
    fn gap(&self, refs: &[RecordRef], (first, last): (u64, u64)) -> Option<u64> {
        let is_free = |start: &u64| {
            let has = |r: &RecordRef| r.offset == *start;
            !refs.iter().any(has) && !self.known.contains(start)
        };
        let damaged = self.survey.damaged.iter().map(|range| range.start);
        let mut places = damaged
            .filter(|at| (first..last).contains(at))
            .filter(is_free);
        let place = places.next()?;
        places.next().is_none().then_some(place)
    }

    /// Items of a record, as its section counts them; `None` if that takes bytes that are lost.
    fn item_count(&self, record: &RecordRef) -> Option<u64> {
        if record.record_type == RecordType::Data {
            return Some(record.raw_len);
        }
        let mut raw = Vec::new();
        let dictionary = match record.codec {
            Codec::ZstdDictionary => Some(self.dictionary.as_ref()?),
            Codec::ZstdHistory => return None,
            _ => None,
        };
        let raw_len = record.raw_len as usize;
        decode_record(self.source, record, raw_len, dictionary, &mut raw).ok()?;
        Page::count_items(record.record_type, &raw).ok()
    }
}

/// A reference to a record that is lost: it fails when it is read.
fn lost_record(record_type: RecordType, offset: u64) -> RecordRef {
    RecordRef {
        record_type,
        codec: Codec::None,
        offset,
        stored_len: 1,
        raw_len: 1,
        digest: Digest::default(),
    }
}
