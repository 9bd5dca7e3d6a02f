//! Uses records of older generations and of base images as the history of small new records. New
//! data mostly resembles old data, but a small block alone contains little to compress against.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use weald_codec::{CodecSpec, Encoded, encode_with_history};
use weald_format::Result;
use weald_format::container::{Codec, RecordRef, RecordType};
use weald_format::directory::Category;
use weald_format::history::History;
use weald_format::limits::{HISTORY_COUNT_MAX, HISTORY_LEN_MAX};
use weald_image::Image;

/// Longest block that gets a history, bytes. A longer block compresses well alone, and with a
/// history a reader would have to decode other blocks too.
const HISTORY_BLOCK_LEN_MAX: usize = 1 << 20;
/// Size of the regions in which repeats are counted: 2^20 bytes.
const REGION_BITS: u32 = 20;
/// Zstandard level of blocks with a history. The optimal parser (19) makes them a fifth smaller,
/// but needs 2.6 s to index 8 MiB, which would be most of an append;
/// `docs/design/0006-generations.md` has the figures.
const DATA_LEVEL: i32 = 12;
/// Longest history of a new block of an image of a store, in lengths of the block. Decoding and
/// indexing a history takes time by what is old, so that little new data gets a short history or
/// none: `docs/design/0023-store.md` has the figures.
pub const HISTORY_SHARE_MAX: u64 = 128;
/// Longest metadata record that gets a history, bytes.
const HISTORY_PAGE_LEN_MAX: usize = 64 << 10;
/// Longest history of a metadata record, bytes. Its encoder takes 26 times as much memory at the
/// strongest level.
const PAGE_HISTORY_LEN_MAX: u64 = 1 << 20;
/// Records of one type that are tried with a history. If many records are new, the history soon
/// saves little.
const TRIES_MAX: u32 = 4;

/// Longest history of one block for a budget of `memory_len`, bytes. The match table, an eighth of
/// the budget, is free by then and is enough for the encoder.
pub fn history_len_max(memory_len: u64) -> u64 {
    (memory_len / 64).min(8 << 20).min(HISTORY_LEN_MAX)
}

/// Number of repeats that led to each region of each stream.
#[derive(Debug, Default)]
pub struct Hits(BTreeMap<(u8, u64), u64>);

impl Hits {
    /// Counts a repeat of the data at `address`.
    pub fn add(&mut self, stream: u8, address: u64) {
        *self.0.entry((stream, address >> REGION_BITS)).or_default() += 1;
    }

    /// Number of repeats in the regions that overlap the `len` bytes from `start` on.
    fn within(&self, stream: u8, start: u64, len: u64) -> u64 {
        let (first, last) = (start >> REGION_BITS, (start + len - 1) >> REGION_BITS);
        let found = self.0.range((stream, first)..=(stream, last));
        found.map(|(_, count)| count).sum()
    }
}

/// A section of an image whose records can serve as a history.
#[derive(Clone)]
pub struct HistorySource {
    /// The image.
    pub image: Arc<Image>,
    /// Its stream in that image; 0 for metadata.
    pub stream: u8,
    /// The stream of category `base` that leads to it; `None` in the image that is appended to.
    pub base_stream: Option<u8>,
}

/// Records that form a history.
struct Records {
    section: HistorySource,
    numbers: Vec<u64>,
    refs: Vec<RecordRef>,
}

impl Records {
    /// Collects records of `section`, each with its number, in ascending order.
    fn new(section: &HistorySource, found: impl IntoIterator<Item = (u64, RecordRef)>) -> Self {
        let (numbers, refs) = found.into_iter().unzip();
        Self {
            section: section.clone(),
            numbers,
            refs,
        }
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        let mut all = Vec::with_capacity(self.refs.iter().map(|r| r.raw_len as usize).sum());
        let HistorySource { image, stream, .. } = &self.section;
        for (no, record) in self.numbers.iter().zip(&self.refs) {
            image.append_decoded(record.record_type, *stream, *no, &mut all)?;
        }
        Ok(all)
    }

    /// Encodes `raw` with this history. Returns `other` if that is not larger.
    fn encode_if_smaller(&self, raw: &[u8], level: i32, other: Encoded) -> Result<Encoded> {
        let history = History {
            base_stream: self.section.base_stream,
            numbers: self.numbers.clone(),
        };
        let mut stored = history.encode();
        let frame = encode_with_history(raw, &self.bytes()?, level)?;
        stored.extend_from_slice(&frame);
        let codec = Codec::ZstdHistory;
        Ok(if stored.len() < other.stored.len() {
            Encoded { codec, stored }
        } else {
            other
        })
    }
}

/// Finds histories for the last blocks of streams.
pub struct TailHistories {
    /// Streams where a history may lie: category, number under which the segmenter counted repeats,
    /// location.
    sections: Vec<(Category, u8, HistorySource)>,
    hits: Hits,
    len_max: u64,
    /// Longest history of a block in lengths of the block.
    share_max: u64,
    /// Held while a thread encodes: there is memory for one encoder.
    turn: Arc<Mutex<()>>,
}

/// The history of one block.
pub struct TailHistory {
    records: Records,
    turn: Arc<Mutex<()>>,
}

impl TailHistories {
    /// Creates a finder of histories of at most `len_max` bytes and `share_max` lengths of their
    /// block each. `sections` are the candidate streams by category; `hits` counts repeats under
    /// the stream number that stands with each.
    pub fn new(
        sections: Vec<(Category, u8, HistorySource)>,
        hits: Hits,
        len_max: u64,
        share_max: u64,
    ) -> Self {
        Self {
            sections,
            hits,
            len_max,
            share_max,
            turn: Arc::default(),
        }
    }

    /// Returns the history of the last block, `len` bytes long, of a stream of `category`: the
    /// blocks that most repeats led to, all of one image.
    ///
    /// # Errors
    /// `Io`, `Corrupt` from the index.
    pub fn history_for(
        &self,
        category: Category,
        codec: CodecSpec,
        len: usize,
    ) -> Result<Option<Arc<TailHistory>>> {
        // A user who chose another codec did so for other reasons than size.
        if len > HISTORY_BLOCK_LEN_MAX || !(codec.is_zstd() || matches!(codec, CodecSpec::Xz(_))) {
            return Ok(None);
        }
        let mut best: Option<(u64, Records)> = None;
        for (_, counted, section) in self.sections.iter().filter(|p| p.0 == category) {
            let len_max = self.share_max.saturating_mul(len as u64).min(self.len_max);
            let (count, records) = self.most_repeated(*counted, section, len_max)?;
            if count > best.as_ref().map_or(0, |b| b.0) {
                best = Some((count, records));
            }
        }
        Ok(best.map(|(_, records)| {
            Arc::new(TailHistory {
                records,
                turn: self.turn.clone(),
            })
        }))
    }

    /// Returns the blocks of `section` that most repeats led to, counted under stream number
    /// `counted`, together at most `len_max` bytes long, and the number of those repeats.
    fn most_repeated(
        &self,
        counted: u8,
        section: &HistorySource,
        len_max: u64,
    ) -> Result<(u64, Records)> {
        let (mut found, mut start, mut no) = (Vec::new(), 0, 0);
        section
            .image
            .each_record(RecordType::Data, section.stream, &mut |record, _| {
                let count = self.hits.within(counted, start, record.raw_len);
                if count > 0 && record.codec != Codec::ZstdHistory {
                    found.push((count, no, *record));
                }
                start += record.raw_len;
                no += 1;
                Ok(())
            })?;
        found.sort_by_key(|&(count, no, _)| (std::cmp::Reverse(count), no));
        let mut remaining_len = len_max;
        found.retain(
            |(_, _, record)| match remaining_len.checked_sub(record.raw_len) {
                Some(less) => {
                    remaining_len = less;
                    true
                }
                None => false,
            },
        );
        found.truncate(HISTORY_COUNT_MAX);
        found.sort_by_key(|&(_, no, _)| no);
        let count = found.iter().map(|f| f.0).sum();
        let records = Records::new(section, found.into_iter().map(|f| (f.1, f.2)));
        Ok((count, records))
    }
}

impl TailHistory {
    /// Encodes `raw`, which is filtered already, with this history. Returns `other` if that is not
    /// larger.
    ///
    /// # Errors
    /// `Io`, `Corrupt` from the older blocks; `Limit`.
    pub fn encode_if_smaller(&self, raw: &[u8], other: Encoded) -> Result<Encoded> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.records.encode_if_smaller(raw, DATA_LEVEL, other)
    }
}

/// Encodes small metadata records with older records as their history.
pub struct PageHistories {
    sections: Vec<HistorySource>,
    tries: BTreeMap<RecordType, u32>,
}

impl PageHistories {
    /// Uses the records of the images in `places`.
    pub fn new(sections: Vec<HistorySource>) -> Self {
        Self {
            sections,
            tries: BTreeMap::new(),
        }
    }

    /// Encodes `raw` with the newest records of its type in one of the images as its history.
    /// Returns `other` if that is not larger.
    ///
    /// # Errors
    /// `Io`, `Corrupt` from the older records; `Limit`.
    pub fn encode_if_smaller(
        &mut self,
        record_type: RecordType,
        raw: &[u8],
        level: i32,
        other: Encoded,
    ) -> Result<Encoded> {
        // These records hold numbers of names, which every generation counts anew, so that old
        // records do not resemble new ones.
        let is_of_names = matches!(record_type, RecordType::Links | RecordType::Times);
        let mut best = other;
        if is_of_names || raw.len() > HISTORY_PAGE_LEN_MAX {
            return Ok(best);
        }
        let tries = self.tries.entry(record_type).or_default();
        for section in &self.sections {
            *tries += 1;
            if *tries > TRIES_MAX {
                break;
            }
            if let Some(records) = newest(section, record_type)? {
                best = records.encode_if_smaller(raw, level, best)?;
            }
        }
        Ok(best)
    }
}

/// Returns the newest records of a type in `section`, as many as fit in a history.
fn newest(section: &HistorySource, record_type: RecordType) -> Result<Option<Records>> {
    let mut newest = VecDeque::new();
    let mut no = 0;
    section
        .image
        .each_record(record_type, 0, &mut |record, _| {
            if record.codec != Codec::ZstdHistory {
                newest.push_back((no, *record));
            }
            if newest.len() > HISTORY_COUNT_MAX {
                newest.pop_front();
            }
            no += 1;
            Ok(())
        })?;
    let mut remaining_len = PAGE_HISTORY_LEN_MAX;
    let fits = |(_, record): &(u64, RecordRef)| {
        let less = remaining_len.checked_sub(record.raw_len);
        remaining_len = less.unwrap_or(remaining_len);
        less.is_some()
    };
    let mut found: Vec<_> = newest.into_iter().rev().take_while(fits).collect();
    found.reverse();
    Ok((!found.is_empty()).then(|| Records::new(section, found)))
}
