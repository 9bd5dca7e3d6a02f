//! The segmenter splits the stream of contents into fresh bytes and repeats of earlier data.
//!
//! It samples positions by content: a gear hash whose top bits are zero marks a sample, so that
//! equal data has equal samples wherever it lies. The segmenter compares a sample that it has seen
//! before byte by byte and extends the match in both directions. Fresh bytes fill the blocks of a
//! stream; repeats become extents that point to the earlier data.
//!
//! The cost per input byte is bounded for any input: at most one sample per `SAMPLE_GAP` bytes, at
//! most four candidates per sample, and a failed candidate costs at most the shortest match.

use crate::compress::record_history::Hits;
use crate::segment::look_back::LookBack;
use crate::segment::match_table::{GEAR, HASH_WINDOW_LEN, MatchTable, StreamAddress};
use crate::threads;
use std::sync::Arc;
use weald_format::Result;
use weald_format::container::{RecordRef, RecordType};
use weald_format::pages::{Extent, Source};

/// Least distance between two samples, bytes. Without it constant data would be sampled at every
/// byte.
const SAMPLE_GAP: usize = 16;
/// Fresh bytes held back, so that a later match can extend backwards over them.
const HELD_LEN: usize = 64 << 10;
/// Bytes of an image that are sampled at once on demand.
const SAMPLED_LEN: u64 = 1 << 20;
/// Held bytes that stay held when the older ones are written to a block.
const HELD_AFTER_LEN: usize = 4 << 10;

/// End of the addresses that fit in a slot of the match table.
const ADDRESS_END: u64 = 1 << 40;

/// Receives the segmenter's output, in order.
pub trait SegmentSink {
    /// Takes a block of `stream`: it is full, or the last one.
    ///
    /// # Errors
    /// Those of writing it.
    fn block(&mut self, stream: u8, block: Arc<Vec<u8>>) -> Result<()>;

    /// Takes the next piece of the logical space.
    ///
    /// # Errors
    /// Those of writing it.
    fn extent(&mut self, extent: Extent) -> Result<()>;

    /// Offset in the output at which block `no` of `stream` can be read back uncompressed; `None`
    /// while the block is not written yet.
    fn raw_offset(&self, stream: u8, no: u64) -> Option<u64>;
}

/// A repeat: bytes `start .. end` of the data equal the bytes at `found_at`.
struct Match {
    start: usize,
    end: usize,
    found_at: StreamAddress,
}

/// The segmenter, with the look-back data of all streams.
pub struct Segmenter {
    table: Option<MatchTable>,
    look_backs: Vec<LookBack>,
    match_len_min: usize,
    /// The hash of a sample has no bits set from this bit on.
    sample_shift: u32,
    /// Whether samples are thinned out while data comes. If the input length is known, the sampling
    /// distance is chosen in advance.
    thins_out: bool,
    /// Address behind the last match. After a cut the data mostly continues to match there.
    expected: Option<StreamAddress>,
    /// Offset in its file of the next data.
    file_offset: u64,
    /// Bytes found as repeats.
    pub repeated_len: u64,
    /// Repeats of data that images hold, counted by region.
    pub hits: Hits,
}

/// Padding before fresh bytes, so that machine words stay aligned.
const PADDING: [u8; 8] = [0; 8];

impl Segmenter {
    /// Creates a segmenter over `look_backs`, one for each stream. With `match_len_min` 0 it finds
    /// no repeats. The table takes `table_len` bytes. The sampling distance is chosen so that the
    /// samples of `total_len` bytes fit; if the length is unknown, samples are thinned out when the
    /// table fills.
    pub fn new(
        mut look_backs: Vec<LookBack>,
        match_len_min: u32,
        table_len: u64,
        total_len: Option<u64>,
    ) -> Self {
        let front_len: u64 = look_backs.iter().map(LookBack::front_len).sum();
        let known_len = total_len.unwrap_or(0).saturating_add(front_len);
        if match_len_min == 0 {
            look_backs.iter_mut().for_each(LookBack::forget);
        }
        // Samples are at least 16 bytes apart, so more slots are never needed.
        let table_len = match total_len {
            Some(_) => table_len.min((known_len / 2).next_power_of_two()),
            None => table_len,
        };
        let slot_count = MatchTable::slot_count(table_len.max(1 << 16));
        // One sample every 2^bits bytes: at least eight in the shortest match, unless the table is
        // too small for so many.
        let wanted = (match_len_min / 8).max(16).ilog2();
        let fitting = (known_len / slot_count).max(1).ilog2() + 1;
        let sample_shift = 64 - wanted.max(fitting).min(32);
        Self {
            table: (match_len_min > 0).then(|| MatchTable::new(slot_count, sample_shift)),
            look_backs,
            match_len_min: match_len_min.max(HASH_WINDOW_LEN as u32) as usize,
            sample_shift,
            thins_out: total_len.is_none(),
            expected: None,
            file_offset: 0,
            repeated_len: 0,
            hits: Hits::default(),
        }
    }

    /// Inserts samples of the data that images hold in these streams, so that the segmenter finds
    /// repeats of it. Up to `threads` threads take the samples, fewer if they would hold more than
    /// `memory_len` bytes.
    ///
    /// # Errors
    /// `Io`, `Corrupt` from the images.
    /// # Cost
    /// Decodes that data once; the sampling takes about 1 ns per byte.
    pub fn insert_image_samples(&mut self, threads: usize, memory_len: u64) -> Result<()> {
        let Some(table) = &mut self.table else {
            return Ok(());
        };
        let shift = self.sample_shift;
        for (stream, look_back) in (0..).zip(&self.look_backs) {
            let Some((image, there)) = look_back.front() else {
                continue;
            };
            let (mut blocks, mut end, mut longest) = (Vec::new(), 0, 1);
            image.each_record(RecordType::Data, there, &mut |record, _| {
                blocks.push((end, *record));
                end += record.raw_len;
                longest = record.raw_len.max(longest);
                Ok(())
            })?;
            // Each thread holds a block and its samples, while the samples of the block before are
            // still inserted.
            let threads_max = usize::try_from(memory_len / (3 * longest)).unwrap_or(usize::MAX);
            let sample = |&(start, record): &(u64, RecordRef)| {
                Ok((start, samples(&image.block(there, &record)?, shift)))
            };
            threads::in_order(
                threads.min(threads_max),
                &blocks,
                &sample,
                &mut |(start, found)| {
                    for (hash, at) in found {
                        let address = start + u64::from(at);
                        if address < ADDRESS_END {
                            table.insert(hash, StreamAddress { stream, address });
                        }
                    }
                },
            )?;
        }
        Ok(())
    }

    /// Inserts samples of the `len` bytes at `address` of the data that an image holds in `stream`.
    ///
    /// # Errors
    /// `Io`, `Corrupt` from the image.
    /// # Cost
    /// Decodes blocks of the image as far as these bytes.
    pub fn insert_samples_of(&mut self, stream: u8, address: u64, len: u64) -> Result<()> {
        let Some(table) = &mut self.table else {
            return Ok(());
        };
        let look_back = self.look_backs.get(usize::from(stream));
        let Some((image, there)) = look_back.and_then(LookBack::front) else {
            return Ok(());
        };
        let (mut at, end, mut bytes) = (address, (address + len).min(ADDRESS_END), Vec::new());
        while at < end {
            bytes.clear();
            image.append_from_block(there, at, (end - at).min(SAMPLED_LEN), &mut bytes)?;
            for (hash, end) in samples(&bytes, self.sample_shift) {
                let address = at + u64::from(end);
                table.insert_once(hash, StreamAddress { stream, address });
            }
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Inserts samples of all data that images hold, on the calling thread.
    ///
    /// # Errors
    /// `Io`, `Corrupt` from the images.
    /// # Cost
    /// Decodes that data once, or twice where a part was decoded and dropped from the cache.
    pub fn insert_all_samples(&mut self) -> Result<()> {
        let lens: Vec<u64> = self.look_backs.iter().map(LookBack::front_len).collect();
        (0..)
            .zip(lens)
            .try_for_each(|(stream, len)| self.insert_samples_of(stream, 0, len))
    }

    /// Sets the offset in its file of the data that is pushed next. Aligned streams need it.
    pub fn set_file_offset(&mut self, offset: u64) {
        self.file_offset = offset;
    }

    /// Takes the next `data` of the logical space. Its fresh bytes go to `stream`.
    ///
    /// # Errors
    /// Those of the sink, and `Io`, `Full` from the spool.
    /// # Cost
    /// O(data); about 1 ns per byte if nothing repeats.
    pub fn push(&mut self, sink: &mut dyn SegmentSink, stream: u8, data: &[u8]) -> Result<()> {
        if self.table.is_none() {
            return self.emit_fresh(sink, stream, data, &mut Vec::new(), 0);
        }
        let mut samples: Vec<(usize, u64)> = Vec::new();
        let mut fresh = self.continue_match(sink, data)?;
        let mut at = fresh;
        let mut hash = hash_before(data, at);
        let mut last_sample = 0;
        while at < data.len() {
            let (next, sample) = next_sample(data, at, &mut hash, self.sample_shift);
            at = next;
            if sample && at >= HASH_WINDOW_LEN && at >= last_sample + SAMPLE_GAP {
                last_sample = at;
                if let Some(found) = self.find(hash, data, fresh, at)? {
                    self.emit_fresh(sink, stream, &data[fresh..found.start], &mut samples, fresh)?;
                    self.emit_match(sink, &found)?;
                    (fresh, at) = (found.end, found.end);
                    hash = hash_before(data, at);
                    samples.clear();
                    continue;
                }
                samples.push((at, hash));
            }
            if at - fresh >= HELD_LEN {
                let end = at - HELD_AFTER_LEN;
                self.emit_fresh(sink, stream, &data[fresh..end], &mut samples, fresh)?;
                fresh = end;
            }
        }
        self.emit_fresh(sink, stream, &data[fresh..], &mut samples, fresh)
    }

    /// If the data before was a repeat, tries to extend that match. Returns how many bytes of
    /// `data` the match covers.
    fn continue_match(&mut self, sink: &mut dyn SegmentSink, data: &[u8]) -> Result<usize> {
        let Some(found_at) = self.expected.take() else {
            return Ok(0);
        };
        let len =
            self.look_backs[usize::from(found_at.stream)].match_forward(found_at.address, data)?;
        if len < self.match_len_min {
            return Ok(0);
        }
        self.emit_match(
            sink,
            &Match {
                start: 0,
                end: len,
                found_at,
            },
        )?;
        Ok(len)
    }

    /// Returns the longest verified repeat around position `at`. It begins at `fresh` or later.
    fn find(&mut self, hash: u64, data: &[u8], fresh: usize, at: usize) -> Result<Option<Match>> {
        let Some(table) = &self.table else {
            return Ok(None);
        };
        let mut best: Option<Match> = None;
        for found_at in table.find(hash) {
            let Some(look_back) = self.look_backs.get_mut(usize::from(found_at.stream)) else {
                continue;
            };
            let len_before = look_back.match_backward(found_at.address, &data[fresh..at])?;
            let len_after = look_back.match_forward(found_at.address, &data[at..])?;
            let best_len = best
                .as_ref()
                .map_or(self.match_len_min - 1, |b| b.end - b.start);
            if len_before + len_after > best_len {
                let found_at = StreamAddress {
                    address: found_at.address - len_before as u64,
                    ..found_at
                };
                best = Some(Match {
                    start: at - len_before,
                    end: at + len_after,
                    found_at,
                });
            }
        }
        Ok(best)
    }

    fn emit_match(&mut self, sink: &mut dyn SegmentSink, found: &Match) -> Result<()> {
        let len = (found.end - found.start) as u64;
        let StreamAddress { stream, address } = found.found_at;
        self.expected = Some(StreamAddress {
            stream,
            address: address + len,
        });
        self.repeated_len += len;
        if address < self.look_backs[usize::from(stream)].front_len() {
            self.hits.add(stream, address);
        }
        sink.extent(Extent {
            len,
            source: Source::Stream { stream, address },
        })
    }

    /// Appends fresh bytes and inserts their samples in the table. The bytes begin at offset
    /// `from`; the positions of `samples` have the same origin.
    fn emit_fresh(
        &mut self,
        sink: &mut dyn SegmentSink,
        stream: u8,
        bytes: &[u8],
        samples: &mut Vec<(usize, u64)>,
        from: usize,
    ) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let look_back = &mut self.look_backs[usize::from(stream)];
        let padding_len = look_back.padding_len(self.file_offset + from as u64);
        append(look_back, sink, stream, &PADDING[..padding_len])?;
        let start = look_back.len();
        append(look_back, sink, stream, bytes)?;
        let end = from + bytes.len();
        let kept = samples.partition_point(|&(at, _)| at <= end);
        if let Some(table) = &mut self.table {
            for (at, hash) in samples.drain(..kept) {
                let address = start + at.saturating_sub(from) as u64;
                let is_sample = hash >> self.sample_shift == 0;
                if at >= from && address < ADDRESS_END && is_sample {
                    table.insert(hash, StreamAddress { stream, address });
                }
            }
            if self.thins_out && table.is_half_full() {
                self.thins_out = table.thin_out();
                self.sample_shift -= u32::from(self.thins_out);
            }
        }
        sink.extent(Extent {
            len: bytes.len() as u64,
            source: Source::Stream {
                stream,
                address: start,
            },
        })
    }

    /// Frees the match table: no more data will come.
    pub fn close(&mut self) {
        self.table = None;
    }

    /// Closes the last block of every stream.
    ///
    /// # Errors
    /// As [`Segmenter::push`].
    pub fn finish(&mut self, sink: &mut dyn SegmentSink) -> Result<()> {
        for (stream, look_back) in self.look_backs.iter_mut().enumerate() {
            if let Some(block) = look_back.finish()? {
                sink.block(stream as u8, block)?;
            }
        }
        Ok(())
    }

    /// Raw bytes appended to all streams. Call it before [`Segmenter::finish`].
    pub fn fresh_len(&self) -> u64 {
        self.look_backs.iter().map(LookBack::own_len).sum()
    }
}

/// Appends `bytes` to `stream` and hands full blocks to the sink.
fn append(
    look_back: &mut LookBack,
    sink: &mut dyn SegmentSink,
    stream: u8,
    mut bytes: &[u8],
) -> Result<()> {
    while !bytes.is_empty() {
        let (taken, full) = look_back.append(bytes)?;
        bytes = &bytes[taken..];
        if let Some(block) = full {
            sink.block(stream, block)?;
            look_back.release_blocks(&mut |no| sink.raw_offset(stream, no))?;
        }
    }
    Ok(())
}

/// Gear hash of the window that ends at `at`.
fn hash_before(data: &[u8], at: usize) -> u64 {
    let start = at.saturating_sub(HASH_WINDOW_LEN);
    data[start..at]
        .iter()
        .fold(0, |h, &b| (h << 1).wrapping_add(GEAR[usize::from(b)]))
}

/// Samples of one block: the hash, and the end of the bytes that it covers. They take at most one
/// byte of memory per byte of the block.
fn samples(block: &[u8], shift: u32) -> Vec<(u64, u32)> {
    let mut found = Vec::new();
    let (mut at, mut hash, mut last_sample) = (0, 0, 0);
    while at < block.len() {
        let (next, is_sample) = next_sample(block, at, &mut hash, shift);
        at = next;
        if is_sample && at >= HASH_WINDOW_LEN && at >= last_sample + SAMPLE_GAP {
            last_sample = at;
            found.push((hash, at as u32));
        }
    }
    found
}

/// Advances the rolling hash from `at` to behind the next sample, at most `HELD_LEN / 2` bytes.
/// Returns the position reached, and whether it is a sample.
fn next_sample(data: &[u8], at: usize, hash: &mut u64, shift: u32) -> (usize, bool) {
    let end = data.len().min(at + HELD_LEN / 2);
    let mut h = *hash;
    for (i, &byte) in data[at..end].iter().enumerate() {
        h = (h << 1).wrapping_add(GEAR[usize::from(byte)]);
        if h >> shift == 0 {
            *hash = h;
            return (at + i + 1, true);
        }
    }
    *hash = h;
    (end, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Collect {
        streams: Vec<Vec<u8>>,
        extents: Vec<Extent>,
    }

    impl SegmentSink for Collect {
        fn block(&mut self, stream: u8, block: Arc<Vec<u8>>) -> Result<()> {
            self.streams.resize(2, Vec::new());
            self.streams[usize::from(stream)].extend_from_slice(&block);
            Ok(())
        }

        fn extent(&mut self, extent: Extent) -> Result<()> {
            self.extents.push(extent);
            Ok(())
        }

        fn raw_offset(&self, _: u8, _: u64) -> Option<u64> {
            None
        }
    }

    fn run(pieces: &[(u8, Vec<u8>)]) -> (Collect, u64) {
        let dir = tempfile::tempdir().unwrap();
        let look_backs = (0..2)
            .map(|_| LookBack::new(50_000, 100_000, dir.path()))
            .collect();
        let total = pieces.iter().map(|p| p.1.len() as u64).sum();
        let mut segmenter = Segmenter::new(look_backs, 256, 1 << 20, Some(total));
        let mut sink = Collect::default();
        pieces
            .iter()
            .for_each(|(stream, data)| segmenter.push(&mut sink, *stream, data).unwrap());
        let fresh_len = segmenter.fresh_len();
        segmenter.finish(&mut sink).unwrap();
        let mut logical = Vec::new();
        for extent in &sink.extents {
            let Source::Stream { stream, address } = extent.source else {
                panic!("hole")
            };
            let start = address as usize;
            logical.extend_from_slice(
                &sink.streams[usize::from(stream)][start..start + extent.len as usize],
            );
        }
        let input: Vec<u8> = pieces.iter().flat_map(|p| p.1.clone()).collect();
        assert!(logical == input, "the extents do not reproduce the input");
        (sink, fresh_len)
    }

    fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&seed.to_le_bytes())
            .finalize_xof()
            .fill(&mut out);
        out
    }

    #[test]
    fn repeats_anywhere_are_found_and_all_data_is_restored() {
        let (a, b) = (noise(1, 300_000), noise(2, 40_000));
        let mut edited = a.clone();
        edited.splice(100_000..100_010, noise(3, 700));
        let pieces = [
            (0, a.clone()),
            (1, b.clone()),
            (0, edited),
            (0, b),
            (1, a[7..].to_vec()),
        ];
        let (_, fresh) = run(&pieces);
        assert!(
            fresh < 345_000,
            "{fresh} fresh bytes of 340,000 distinct ones"
        );
    }

    /// Would catch: distant repeats that are not found if the input length is unknown, and a table
    /// above its size limit.
    #[test]
    fn repeats_far_back_are_found_in_a_stream_of_unknown_length() {
        let table_len = 1 << 16;
        let (len, piece_len) = (4_000_000, 500_000);
        let data = noise(9, len);
        let dir = tempfile::tempdir().unwrap();
        let look_backs = vec![LookBack::new(50_000, 1 << 30, dir.path())];
        let mut segmenter = Segmenter::new(look_backs, 256, table_len, None);
        let mut sink = Collect::default();
        for piece in data.chunks(piece_len) {
            segmenter.push(&mut sink, 0, piece).unwrap();
        }
        assert_eq!(segmenter.repeated_len, 0);
        // 8192 slots for a sample every 32 bytes would remember a quarter of a megabyte.
        for piece in data.chunks(piece_len) {
            segmenter.push(&mut sink, 0, b"between").unwrap();
            segmenter.push(&mut sink, 0, &piece[3..]).unwrap();
        }
        assert!(
            segmenter.repeated_len > len as u64 * 95 / 100,
            "{} of {len}",
            segmenter.repeated_len
        );
        assert_eq!(MatchTable::slot_count(table_len), 8192);
    }

    #[test]
    fn degenerate_data_is_restored() {
        for period in [1, 2, 255, 256, 257, 65_537] {
            let data: Vec<u8> = (0..400_000usize)
                .map(|i| ((i % period * 31) >> 3) as u8)
                .collect();
            run(&[
                (0, data.clone()),
                (1, data[5..].to_vec()),
                (0, vec![]),
                (0, vec![7]),
            ]);
        }
    }
}
