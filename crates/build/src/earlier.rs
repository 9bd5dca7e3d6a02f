//! Records of older generations, as the history of small new ones: what an append brings mostly resembles what is there, but alone in
//! a block it has nothing to be compressed with.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use weald_codec::{CodecSpec, Encoded, encode_after};
use weald_format::container::{Codec, RecordRef, RecordType};
use weald_format::limits::{HISTORY_COUNT_MAX, HISTORY_LEN_MAX};
use weald_format::{Result, history};
use weald_image::Image;

/// Longer blocks have enough of their own; for them a reader should not decode others.
const TAIL_LEN_MAX: usize = 1 << 20;
/// Addresses that count together when the repeats that lead to them are counted: 2^20 bytes.
const REGION_BITS: u32 = 20;
/// Level of blocks after a history. The optimal parser (19) makes a fifth less, but takes 2.6 s to look at 8 MiB, which would be most of
/// an append; `docs/design/0006-generations.md` has the figures.
const DATA_LEVEL: i32 = 12;
/// Larger metadata records have enough of their own.
const PAGE_LEN_MAX: usize = 64 << 10;
/// Most bytes that a metadata record has as its history: its encoder, at the strongest level, takes 26 times that.
const PAGE_HISTORY_LEN_MAX: u64 = 1 << 20;
/// Records of a type that are tried with a history. Where many are new, the history is soon a small part of them.
const TRIES_MAX: u32 = 4;

/// Most bytes of history of one block within a budget of `memory_len`: an eighth of the budget, that of the table of samples, is free
/// by then and enough for its encoder.
pub fn history_len_max(memory_len: u64) -> u64 {
    (memory_len / 64).min(8 << 20).min(HISTORY_LEN_MAX)
}

/// How often repeats led to each region of each stream.
#[derive(Debug, Default)]
pub struct Hits(BTreeMap<(u8, u64), u64>);

impl Hits {
    /// A repeat of what lies at `address`.
    pub fn add(&mut self, stream: u8, address: u64) {
        *self.0.entry((stream, address >> REGION_BITS)).or_default() += 1;
    }

    /// Hits in regions that begin in `len` bytes from `start` on, or hold its first byte.
    fn within(&self, stream: u8, start: u64, len: u64) -> u64 {
        let (first, last) = (start >> REGION_BITS, (start + len - 1) >> REGION_BITS);
        let found = self.0.range((stream, first)..=(stream, last));
        found.map(|(_, count)| count).sum()
    }
}

/// Records that make a history.
struct Records {
    numbers: Vec<u64>,
    refs: Vec<RecordRef>,
}

impl Records {
    fn bytes(&self, image: &Image, stream: u8) -> Result<Vec<u8>> {
        let mut all = Vec::with_capacity(self.refs.iter().map(|r| r.raw_len as usize).sum());
        for record in &self.refs {
            all.extend_from_slice(&image.decoded(stream, record)?);
        }
        Ok(all)
    }

    /// `raw` encoded after this history, if that is smaller than `other`.
    fn smaller(
        &self,
        image: &Image,
        stream: u8,
        raw: &[u8],
        level: i32,
        other: Encoded,
    ) -> Result<Encoded> {
        let mut stored = history::encode(&self.numbers);
        let frame = encode_after(raw, &self.bytes(image, stream)?, level)?;
        stored.extend_from_slice(&frame);
        let codec = Codec::ZstdHistory;
        Ok(match stored.len() < other.stored.len() {
            true => Encoded { codec, stored },
            false => other,
        })
    }
}

/// Finds histories for the last blocks of streams.
pub struct Tails {
    image: Arc<Image>,
    hits: Hits,
    len_max: u64,
    /// Held by who encodes: there is memory for one.
    turn: Arc<Mutex<()>>,
}

/// The history of one block.
pub struct TailHistory {
    image: Arc<Image>,
    stream: u8,
    records: Records,
    turn: Arc<Mutex<()>>,
}

impl Tails {
    /// Histories of at most `len_max` bytes each, of blocks of `image` that `hits` counts.
    pub fn new(image: Arc<Image>, hits: Hits, len_max: u64) -> Self {
        Self {
            image,
            hits,
            len_max,
            turn: Arc::default(),
        }
    }

    /// The history of a block of `len` bytes that ends `stream`: the blocks that most repeats led to.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the index.
    pub fn of(&self, stream: u8, codec: CodecSpec, len: usize) -> Result<Option<Arc<TailHistory>>> {
        // Who chose another codec has reasons that are not size.
        if len > TAIL_LEN_MAX
            || !matches!(
                codec,
                CodecSpec::Zstd(_) | CodecSpec::ZstdLight | CodecSpec::Xz(_)
            )
        {
            return Ok(None);
        }
        let (mut found, mut start, mut no) = (Vec::new(), 0, 0);
        self.image
            .each_record(RecordType::Data, stream, &mut |record, _| {
                let count = self.hits.within(stream, start, record.raw_len);
                if count > 0 && record.codec != Codec::ZstdHistory {
                    found.push((count, no, *record));
                }
                start += record.raw_len;
                no += 1;
                Ok(())
            })?;
        found.sort_by_key(|&(count, no, _)| (std::cmp::Reverse(count), no));
        let mut left = self.len_max;
        found.retain(|(_, _, record)| match left.checked_sub(record.raw_len) {
            Some(less) => {
                left = less;
                true
            }
            None => false,
        });
        found.truncate(HISTORY_COUNT_MAX);
        found.sort_by_key(|&(_, no, _)| no);
        Ok((!found.is_empty()).then(|| {
            Arc::new(TailHistory {
                image: self.image.clone(),
                stream,
                records: Records {
                    numbers: found.iter().map(|f| f.1).collect(),
                    refs: found.iter().map(|f| f.2).collect(),
                },
                turn: self.turn.clone(),
            })
        }))
    }
}

impl TailHistory {
    /// `raw`, after its filter, encoded after this history, if that is smaller than `other`.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the older blocks; `Limit`.
    pub fn smaller(&self, raw: &[u8], other: Encoded) -> Result<Encoded> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.records
            .smaller(&self.image, self.stream, raw, DATA_LEVEL, other)
    }
}

/// Encodes small metadata records after those that an image has.
pub struct Pages {
    image: Arc<Image>,
    tries: BTreeMap<RecordType, u32>,
}

impl Pages {
    /// Pages behind those of `image`.
    pub fn new(image: Arc<Image>) -> Self {
        Self {
            image,
            tries: BTreeMap::new(),
        }
    }

    /// `raw` encoded after the newest records of its type, if that is smaller than `other`.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the older records; `Limit`.
    pub fn smaller(
        &mut self,
        record_type: RecordType,
        raw: &[u8],
        level: i32,
        other: Encoded,
    ) -> Result<Encoded> {
        // Numbers of these count from the front of every generation.
        let is_of_names = matches!(record_type, RecordType::Links | RecordType::Times);
        let tries = self.tries.entry(record_type).or_default();
        *tries += 1;
        if *tries > TRIES_MAX || is_of_names || raw.len() > PAGE_LEN_MAX {
            return Ok(other);
        }
        let mut newest = VecDeque::new();
        let mut no = 0;
        self.image.each_record(record_type, 0, &mut |record, _| {
            if record.codec != Codec::ZstdHistory {
                newest.push_back((no, *record));
            }
            if newest.len() > HISTORY_COUNT_MAX {
                newest.pop_front();
            }
            no += 1;
            Ok(())
        })?;
        let mut left = PAGE_HISTORY_LEN_MAX;
        let fits = |(_, record): &(u64, RecordRef)| {
            let less = left.checked_sub(record.raw_len);
            left = less.unwrap_or(left);
            less.is_some()
        };
        let mut records: Vec<_> = newest.into_iter().rev().take_while(fits).collect();
        if records.is_empty() {
            return Ok(other);
        }
        records.reverse();
        let (numbers, refs) = records.into_iter().unzip();
        Records { numbers, refs }.smaller(&self.image, 0, raw, level, other)
    }
}
