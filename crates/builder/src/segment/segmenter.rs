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
use crate::segment::match_table::{HASH_WINDOW_LEN, MatchTable, StreamAddress};
use crate::segment::samples::{Marked, Marks, SAMPLE_GAP, SampleRule};
use crate::threads;
use std::sync::Arc;
use weald_format::Result;
use weald_format::container::{RecordRef, RecordType};
use weald_format::pages::{Extent, Source};

/// Fresh bytes held back, so that a later match can extend backwards over them.
const HELD_LEN: usize = 64 << 10;
/// Bytes of an image that are sampled at once on demand.
const SAMPLED_LEN: u64 = 1 << 20;
/// Held bytes that stay held when the older ones are written to a block.
const HELD_AFTER_LEN: usize = 4 << 10;

/// Distance in marks at which the match table is prefetched: the time of a read from memory.
const MARKS_AHEAD: usize = 8;

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
        let rule = SampleRule::new(self.sample_shift);
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
                Ok((start, rule.samples(&image.block(there, &record)?)))
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
            for (hash, end) in SampleRule::new(self.sample_shift).samples(&bytes) {
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

    /// The rule by which other threads can mark data before it comes; `None` if that would be in
    /// vain: no repeats are looked for, or the rule changes while data comes.
    pub fn rule(&self) -> Option<SampleRule> {
        let is_fixed = self.table.is_some() && !self.thins_out;
        is_fixed.then(|| SampleRule::new(self.sample_shift))
    }

    /// Takes the next `data` of the logical space. Its fresh bytes go to `stream`. `marks` are
    /// those of the rule of this segmenter in `data`, if they are known.
    ///
    /// # Errors
    /// Those of the sink, and `Io`, `Full` from the spool.
    /// # Cost
    /// O(data); about 1 ns per byte if nothing repeats, less with `marks`.
    pub fn push(
        &mut self,
        sink: &mut dyn SegmentSink,
        stream: u8,
        data: &[u8],
        marks: Option<Marked<'_>>,
    ) -> Result<()> {
        if self.table.is_none() {
            return self.emit_fresh(sink, stream, data, &mut Vec::new(), 0);
        }
        let mut samples: Vec<(usize, u64)> = Vec::new();
        let mut fresh = self.continue_match(sink, data)?;
        let mut at = fresh;
        let rule = SampleRule::new(self.sample_shift);
        let mut marks = Marks::new(rule, data, at, marks);
        let mut last_sample = 0;
        while at < data.len() {
            if let (Some(table), Some(hash)) = (&self.table, marks.ahead(MARKS_AHEAD)) {
                table.prefetch(hash);
            }
            let (next, found) = marks.next(at, HELD_LEN / 2);
            at = next;
            if let Some(hash) = found
                && at >= HASH_WINDOW_LEN
                && at >= last_sample + SAMPLE_GAP
            {
                last_sample = at;
                if let Some(found) = self.find(hash, data, fresh, at)? {
                    self.emit_fresh(sink, stream, &data[fresh..found.start], &mut samples, fresh)?;
                    self.emit_match(sink, &found)?;
                    (fresh, at) = (found.end, found.end);
                    marks.jump(at);
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

    /// Closes the last block of every stream, and frees the others: no more data may come.
    ///
    /// # Errors
    /// As [`Segmenter::push`].
    pub fn finish(&mut self, sink: &mut dyn SegmentSink) -> Result<()> {
        let look_backs = std::mem::take(&mut self.look_backs);
        for (stream, mut look_back) in look_backs.into_iter().enumerate() {
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
            .for_each(|(stream, data)| segmenter.push(&mut sink, *stream, data, None).unwrap());
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
            segmenter.push(&mut sink, 0, piece, None).unwrap();
        }
        assert_eq!(segmenter.repeated_len, 0);
        // 8192 slots for a sample every 32 bytes would remember a quarter of a megabyte.
        for piece in data.chunks(piece_len) {
            segmenter.push(&mut sink, 0, b"between", None).unwrap();
            segmenter.push(&mut sink, 0, &piece[3..], None).unwrap();
        }
        assert!(
            segmenter.repeated_len > len as u64 * 95 / 100,
            "{} of {len}",
            segmenter.repeated_len
        );
        assert_eq!(MatchTable::slot_count(table_len), 8192);
    }

    /// Would catch: marks of other threads that make another image.
    #[test]
    fn marks_that_were_found_ahead_change_nothing() {
        let (a, b) = (noise(1, 300_000), noise(2, 40_000));
        let mut edited = a.clone();
        edited.splice(100_000..100_010, noise(3, 700));
        let constant = vec![7u8; 200_000];
        let text: Vec<u8> = b"some words "
            .iter()
            .copied()
            .cycle()
            .take(90_001)
            .collect();
        let all = [a, b, edited, constant, text].concat();
        // Cuts at odd places: matches and windows begin and end across them.
        let cuts = [0, 1, 63, 64, 65, 1000, 299_990, 340_100, 341_000, all.len()];
        let dir = tempfile::tempdir().unwrap();
        let run = |is_ahead: bool| {
            let look_backs = vec![LookBack::new(50_000, 100_000, dir.path())];
            let total = Some(all.len() as u64);
            let mut segmenter = Segmenter::new(look_backs, 256, 1 << 20, total);
            let rule = segmenter.rule().unwrap();
            let marks = rule.marks(&all).filter(|_| is_ahead);
            let mut sink = Collect::default();
            for cut in cuts.windows(2) {
                let here = marks.as_ref().map(|marks| marks.within(cut[0]..cut[1]));
                let data = &all[cut[0]..cut[1]];
                segmenter.push(&mut sink, 0, data, here).unwrap();
            }
            segmenter.finish(&mut sink).unwrap();
            (sink.streams, sink.extents, segmenter.repeated_len)
        };
        let alone = run(false);
        assert!(alone.2 > 200_000);
        assert_eq!(run(true), alone);
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
