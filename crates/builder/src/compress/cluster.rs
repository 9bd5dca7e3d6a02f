//! Clustering groups similar fresh data, so that it lands in the same compression block.
//!
//! Without it a stream has the order of the files. The differences between two versions of a file
//! then lie megabytes apart, in blocks that are compressed separately. Clustering therefore holds
//! blocks back in a spool. It reorders the pieces of a window of fresh bytes so that similar pieces
//! are adjacent, and cuts new blocks. The segmenter continues to use addresses in the original
//! order. The final addresses are known only at the end, so extents wait in a spool too.

mod extents;
mod likeness;

use crate::options::plan::Plan;
use crate::threads::Pool;
use extents::ExtentSpool;
use likeness::{FEATURES_MAX, Feature};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use weald_format::pages::{Extent, ExtentRun, Source};
use weald_format::{Error, Result};
use weald_io::{ReadAt, Spool, SpoolReader};

/// Memory of a piece of the window, bytes: its features in two sort orders.
const OPEN_PIECE_COST: u64 = (FEATURES_MAX * 2 * size_of::<Feature>()) as u64;
/// Memory of a piece until the end, bytes: its address.
const PIECE_COST: u64 = 8;
/// Maximum number of pieces that are ordered together: a feature has an index of 32 bits.
const WINDOW_COUNT_MAX: u64 = (1 << 31) / FEATURES_MAX as u64;
/// Maximum number of threads that take features: faster than files can be read.
const FEATURE_THREADS_MAX: u64 = 4;

/// Number of pieces that are ordered together within a budget of `memory_len` bytes: 1 GiB of
/// pieces of 32 KiB for 512 MiB.
fn window_count(memory_len: u64) -> u64 {
    (memory_len / 16 / OPEN_PIECE_COST).clamp(64, WINDOW_COUNT_MAX)
}

/// Maximum number of pieces of one image. For longer input the pieces are longer.
fn piece_count_max(memory_len: u64) -> u64 {
    memory_len / 64 / PIECE_COST
}

/// Memory for clustering within a budget of `memory_len`, for pieces of `cluster_len` in blocks of
/// `block_len`, beside `threads` compressors; bytes. It does not depend on the length of the input.
pub fn memory_len(memory_len: u64, block_len: u64, cluster_len: u64, threads: u64) -> u64 {
    match cluster_len {
        0 => 0,
        // The last term: the block that is being filled, and those whose features are taken.
        _ => {
            window_count(memory_len) * OPEN_PIECE_COST
                + piece_count_max(memory_len) * PIECE_COST
                + block_len * (1 + feature_thread_count(threads))
        }
    }
}

/// Number of threads that take features beside `threads` compressors. One takes them of a gigabyte
/// in a second.
fn feature_thread_count(threads: u64) -> u64 {
    (threads / 4).clamp(1, FEATURE_THREADS_MAX)
}

/// A block for the compressors.
pub struct ReorderedBlock {
    /// Its stream.
    pub stream: u8,
    /// Its bytes.
    pub raw: Arc<Vec<u8>>,
    /// Whether it is the last block of its stream.
    pub is_last: bool,
}

/// A block whose features are to be taken.
struct FeatureJob {
    /// Index of its stream.
    stream: usize,
    block: Arc<Vec<u8>>,
    piece_len: usize,
    /// Number in the window of its first piece.
    first: u32,
}

/// Takes the features of blocks: the index of the stream, and the features.
type FeatureThreads = Pool<FeatureJob, (usize, Vec<Feature>)>;

fn feature_threads(count: u64) -> Result<FeatureThreads> {
    let worker = || {
        let mut scratch = Vec::new();
        move |job: FeatureJob| {
            let mut features = Vec::new();
            for (no, piece) in (job.first..).zip(job.block.chunks(job.piece_len)) {
                likeness::take_features(piece, no, &mut scratch, &mut features);
            }
            Ok((job.stream, features))
        }
    };
    Pool::start(count as usize, "cluster", &worker)
}

/// Blocks that wait for their order, and extents that wait for their addresses.
pub struct Clusters {
    threads: FeatureThreads,
    /// Number of blocks whose features may be taken at once.
    thread_count: u64,
    spool: Spool,
    extents: ExtentSpool,
    streams: Vec<Stream>,
    /// Number of pieces in the window; the window is closed when it reaches `window_count`.
    open_count: u64,
    window_count: u64,
    piece_count_max: u64,
    /// Whether all blocks have come.
    is_closed: bool,
    /// Whether a window was closed.
    is_begun: bool,
}

/// State of one stream.
struct Stream {
    no: u8,
    /// Bytes of a block in the new order.
    new_block_len: u64,
    /// Bytes of the stream that an image already has; they keep their addresses.
    front_len: u64,
    block_len: u64,
    piece_len: u64,
    /// Offset of each block in the spool.
    blocks: Vec<u64>,
    /// Length of all blocks, bytes.
    len: u64,
    /// Features of the pieces of the window; piece 0 is the first of the window.
    features: Vec<Feature>,
    /// New address of each piece, by its original number. Addresses of pieces in the open window
    /// are not known yet.
    addresses: Vec<u64>,
    /// Number of pieces in the window.
    open_count: u32,
    /// Bytes that have their new address.
    placed_len: u64,
    /// From this address on the stream keeps its original order: the maximum number of pieces is
    /// reached.
    plain_from: u64,
    /// Pieces that wait for their block, in the new order: original address and length.
    waiting: VecDeque<(u64, u64)>,
    /// The block that is being filled.
    block: Vec<u8>,
}

/// Keeps the features of the next block of a stream.
fn keep(streams: &mut [Stream], (stream, features): (usize, Vec<Feature>)) -> Result<()> {
    streams[stream].features.extend(features);
    Ok(())
}

/// Length of a piece, bytes. A block holds a whole number of pieces.
fn piece_len(plan: &Plan, total_len: Option<u64>) -> u64 {
    let least = total_len.unwrap_or(0) / piece_count_max(plan.memory_len).max(1);
    let wanted = least.next_power_of_two().max(plan.cluster_len);
    plan.block_len
        .div_ceil(plan.block_len.div_ceil(wanted.min(plan.block_len)))
}

impl Clusters {
    /// Creates clusters for `streams`, each with the length that an image already has of it.
    /// `total_len` is the approximate input length in bytes, if known. Waiting data goes to unnamed
    /// files in `spool_dir`.
    ///
    /// # Errors
    /// As [`Spool::create`]; `Io` if the system allows no thread.
    pub fn new(
        plan: &Plan,
        total_len: Option<u64>,
        streams: &[(u8, u64)],
        spool_dir: &Path,
    ) -> Result<Self> {
        let stream = |&(no, front_len): &(u8, u64)| Stream {
            no,
            front_len,
            new_block_len: plan.block_len,
            block_len: plan.block_len,
            piece_len: piece_len(plan, total_len),
            blocks: Vec::new(),
            len: 0,
            features: Vec::new(),
            addresses: Vec::new(),
            open_count: 0,
            placed_len: 0,
            plain_from: u64::MAX,
            waiting: VecDeque::new(),
            block: Vec::new(),
        };
        let thread_count = feature_thread_count(plan.threads as u64);
        Ok(Self {
            threads: feature_threads(thread_count)?,
            thread_count,
            spool: Spool::create_with(spool_dir, plan.spool_writers)?,
            extents: ExtentSpool::new(Spool::create(spool_dir)?),
            streams: streams.iter().map(stream).collect(),
            open_count: 0,
            window_count: window_count(plan.memory_len),
            piece_count_max: piece_count_max(plan.memory_len),
            is_closed: false,
            is_begun: false,
        })
    }

    /// Returns a reader of the spool, which holds the blocks in their original order.
    pub fn reader(&self) -> SpoolReader {
        self.spool.reader()
    }

    /// Whether blocks of `stream` are clustered.
    pub fn is_clustered(&self, stream: u8) -> bool {
        self.streams.iter().any(|s| s.no == stream)
    }

    /// Offset in the spool of block `no` of `stream`, in original order.
    pub fn spool_offset(&self, stream: u8, no: u64) -> Option<u64> {
        let stream = self.streams.iter().find(|s| s.no == stream)?;
        stream.blocks.get(usize::try_from(no).ok()?).copied()
    }

    /// Takes the next block of `stream` in original order.
    ///
    /// # Errors
    /// `Io`, `Full` from the spool.
    pub fn push_block(&mut self, stream: u8, block: &Arc<Vec<u8>>) -> Result<()> {
        let Some(index) = self.streams.iter().position(|s| s.no == stream) else {
            return Err(Error::invalid("blocks of this stream are not clustered"));
        };
        let offset = self.spool.append_shared(block)?;
        let stream = &mut self.streams[index];
        stream.blocks.push(offset);
        stream.len += block.len();
        if stream.is_plain() {
            self.open_count += 1;
        } else {
            let piece_len = stream.piece_len as usize;
            let job = FeatureJob {
                stream: index,
                block: block.clone(),
                piece_len,
                first: stream.open_count,
            };
            let count = block.len().div_ceil(piece_len as u64);
            stream.open_count += count as u32;
            self.open_count += count;
            let streams = &mut self.streams;
            let keep = &mut |taken| keep(streams, taken);
            self.threads.wait_below(self.thread_count, keep)?;
            self.threads.submit(job, keep)?;
        }
        if self.open_count >= self.window_count {
            self.close_window()?;
        }
        Ok(())
    }

    /// Assigns new addresses to all pieces that have come.
    fn close_window(&mut self) -> Result<()> {
        let streams = &mut self.streams;
        self.threads.drain(&mut |taken| keep(streams, taken))?;
        self.open_count = 0;
        self.is_begun = true;
        let piece_count_max = self.piece_count_max;
        self.streams
            .iter_mut()
            .for_each(|s| s.close_window(piece_count_max));
        Ok(())
    }

    /// Takes an extent, or a base run that stands for `count` extents.
    ///
    /// # Errors
    /// `Io`, `Full` from the spool.
    pub fn push_extent(&mut self, run: ExtentRun, count: usize) -> Result<()> {
        self.extents.push(run, count)
    }

    /// Returns the next block that is complete, if there is one.
    ///
    /// # Errors
    /// `Io` from the spool.
    pub fn next_ready(&mut self) -> Result<Option<ReorderedBlock>> {
        for stream in &mut self.streams {
            if let Some(block) = stream.next_block(&self.spool, self.is_closed)? {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Ends the input: all pieces get their addresses. If they all fit in one window, and there are
    /// at most `small_len` bytes of them, blocks get `small_block_len` bytes. Returns whether they
    /// do.
    ///
    /// # Errors
    /// `Io`, `Full` from the spool.
    pub fn close(&mut self, small_len: u64, small_block_len: u64) -> Result<bool> {
        let len: u64 = self.streams.iter().map(|s| s.len).sum();
        let is_small = !self.is_begun && len <= small_len;
        if is_small {
            for stream in &mut self.streams {
                stream.new_block_len = small_block_len;
            }
        }
        self.close_window()?;
        self.is_closed = true;
        self.extents.close()?;
        Ok(is_small)
    }

    /// Bytes that wait for compression.
    pub fn waiting_len(&self) -> u64 {
        let pieces = |s: &Stream| s.waiting.iter().map(|piece| piece.1).sum::<u64>();
        let waiting = |s: &Stream| pieces(s) + s.block.len() as u64;
        self.streams.iter().map(waiting).sum()
    }

    /// Visits the extents in order, with their new addresses.
    ///
    /// # Errors
    /// `Io` from the spool; those of `visit`.
    pub fn each_extent(&self, visit: &mut dyn FnMut(ExtentRun, usize) -> Result<()>) -> Result<()> {
        self.extents.each(&mut |run, count| {
            let ExtentRun::Own(Extent {
                len,
                source: Source::Stream { stream, address },
            }) = run
            else {
                return visit(run, count);
            };
            match self.streams.iter().find(|s| s.no == stream) {
                Some(held) => held.each_part(address, len, &mut |address, len| {
                    let source = Source::Stream { stream, address };
                    visit(ExtentRun::Own(Extent { len, source }), 1)
                }),
                None => visit(run, count),
            }
        })
    }
}

impl Stream {
    fn pieces_per_block(&self) -> u64 {
        self.block_len.div_ceil(self.piece_len)
    }

    /// Original address and length of piece `no`.
    fn piece(&self, no: u64) -> (u64, u64) {
        let within = no % self.pieces_per_block() * self.piece_len;
        let start = no / self.pieces_per_block() * self.block_len + within;
        let end = (start - within + self.block_len).min(self.len);
        (start, self.piece_len.min(end - start))
    }

    /// Whether the stream keeps its original order from now on.
    fn is_plain(&self) -> bool {
        self.plain_from != u64::MAX
    }

    /// Assigns new addresses to the pieces of the window. After `piece_count_max` pieces the stream
    /// keeps its original order.
    fn close_window(&mut self, piece_count_max: u64) {
        let features = std::mem::take(&mut self.features);
        // In a single block, similar pieces are together in any order.
        let order = if self.len <= self.new_block_len {
            (0..self.open_count).collect()
        } else {
            likeness::order(features, self.open_count)
        };
        let first = self.addresses.len() as u64;
        let last = self.open_count.checked_sub(1);
        // A short piece goes last, so that all other pieces keep the alignment that the filters for
        // machine code need.
        let short = last.filter(|&no| self.piece(first + u64::from(no)).1 < self.piece_len);
        let full = order.into_iter().filter(|no| Some(*no) != short);
        self.addresses
            .resize((first + u64::from(self.open_count)) as usize, 0);
        for no in full.chain(short) {
            let no = first + u64::from(no);
            let (start, len) = self.piece(no);
            self.addresses[no as usize] = self.placed_len;
            self.placed_len += len;
            self.waiting.push_back((start, len));
        }
        self.open_count = 0;
        if !self.is_plain() && self.addresses.len() as u64 >= piece_count_max {
            self.plain_from = self.placed_len;
        }
        while self.placed_len < self.len {
            let len = self.block_len.min(self.len - self.placed_len);
            self.waiting.push_back((self.placed_len, len));
            self.placed_len += len;
        }
    }

    /// Returns the next block if all its pieces have come. Once the stream `is_closed`, the last
    /// block may be short.
    fn next_block(&mut self, spool: &Spool, is_closed: bool) -> Result<Option<ReorderedBlock>> {
        let block_len = self.new_block_len as usize;
        while self.block.len() < block_len
            && let Some((start, len)) = self.waiting.pop_front()
        {
            let offset = self.blocks[(start / self.block_len) as usize] + start % self.block_len;
            let filled = self.block.len();
            if filled == 0 {
                self.block.reserve_exact(block_len.min(4 << 20));
            }
            self.block.resize(filled + len as usize, 0);
            spool.read_exact_at(&mut self.block[filled..], offset)?;
        }
        let is_last = is_closed && self.waiting.is_empty() && self.block.len() <= block_len;
        if self.block.is_empty() || self.block.len() < block_len && !is_last {
            return Ok(None);
        }
        let rest = self.block.split_off(block_len.min(self.block.len()));
        let raw = Arc::new(std::mem::replace(&mut self.block, rest));
        Ok(Some(ReorderedBlock {
            stream: self.no,
            raw,
            is_last,
        }))
    }

    /// Visits the parts of the `len` bytes at the original `address`, with their new addresses.
    fn each_part(
        &self,
        address: u64,
        len: u64,
        visit: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        let end = address + len;
        let mut at = address;
        if at < self.front_len {
            at = end.min(self.front_len);
            visit(address, at - address)?;
        }
        while at < end {
            let own = at - self.front_len;
            if own >= self.plain_from {
                return visit(at, end - at);
            }
            let within = own % self.block_len;
            let no = own / self.block_len * self.pieces_per_block() + within / self.piece_len;
            let (start, piece_len) = self.piece(no);
            let part = (start + piece_len - own).min(end - at);
            let address = self.addresses.get(no as usize).filter(|_| part > 0);
            let address = *address.ok_or_else(|| {
                Error::invalid("an extent refers to bytes that were not received")
            })?;
            visit(self.front_len + address + (own - start), part)?;
            at += part;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::BuildOptions;
    use crate::pipeline::plan::TreeSize;
    use std::collections::BTreeMap;
    use weald_testkit::Rng;

    const IMAGE_FRONT_LEN: u64 = 1234;

    fn clusters(block_len: u64, cluster_len: u64, dir: &Path) -> Clusters {
        let options = BuildOptions {
            block_len,
            cluster_len,
            ..BuildOptions::default()
        };
        let size = TreeSize {
            entry_count: 1,
            depth: 1,
            xattr_set_count: 0,
            xattrs_len: 0,
        };
        let plan = Plan::new(&options, 1, &size, 0).unwrap();
        Clusters::new(&plan, Some(0), &[(0, 0), (2, IMAGE_FRONT_LEN)], dir).unwrap()
    }

    /// Holds versions of a few texts in two streams, with extents all over, and checks that every
    /// extent leads to its bytes. Returns the number of blocks that were ready before the end.
    fn run(block_len: u64, cluster_len: u64, limit: &dyn Fn(&mut Clusters)) -> usize {
        let dir = tempfile::tempdir().unwrap();
        let mut clusters = clusters(block_len, cluster_len, dir.path());
        limit(&mut clusters);
        let mut rng = Rng::new(block_len ^ cluster_len);
        let texts: Vec<Vec<u8>> = (0..3).map(|_| rng.bytes(3 * block_len as usize)).collect();
        let mut streams: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        let mut out: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        let mut take = |found: ReorderedBlock| {
            assert!(found.raw.len() == block_len || found.is_last);
            out.entry(found.stream).or_default().extend(&*found.raw);
        };
        let mut early = 0;
        for round in 0..12 {
            let no = if round % 3 == 2 { 2 } else { 0 };
            let mut text = rng.pick(&texts).clone();
            (0..text.len()).step_by(97).for_each(|i| text[i] = round);
            if round > 9 {
                text.truncate(text.len() - 1001);
            }
            for block in text.chunks(block_len as usize) {
                clusters.push_block(no, &Arc::new(block.to_vec())).unwrap();
                while let Some(found) = clusters.next_ready().unwrap() {
                    early += 1;
                    take(found);
                }
            }
            streams.entry(no).or_default().extend(text);
        }
        let mut wanted = Vec::new();
        for _ in 0..400 {
            let no = if rng.one_in(2) { 2 } else { 0 };
            let start = rng.below(streams[&no].len() as u64);
            let len = 1 + rng.below(streams[&no].len() as u64 - start);
            let range = start as usize..(start + len) as usize;
            wanted.extend_from_slice(&streams[&no][range]);
            let address = start + if no == 2 { IMAGE_FRONT_LEN } else { 0 };
            let source = Source::Stream {
                stream: no,
                address,
            };
            let run = ExtentRun::Own(Extent { len, source });
            clusters.push_extent(run, 1).unwrap();
        }
        clusters.close(0, 0).unwrap();
        while let Some(found) = clusters.next_ready().unwrap() {
            take(found);
        }
        assert_eq!(clusters.waiting_len(), 0);
        let mut found = Vec::new();
        let mut visit = |run, _| {
            let ExtentRun::Own(Extent {
                len,
                source: Source::Stream { stream, address },
            }) = run
            else {
                panic!("{run:?}");
            };
            let start = address - if stream == 2 { IMAGE_FRONT_LEN } else { 0 };
            found.extend_from_slice(&out[&stream][start as usize..(start + len) as usize]);
            Ok(())
        };
        clusters.each_extent(&mut visit).unwrap();
        assert!(
            found == wanted,
            "blocks of {block_len}, pieces of {cluster_len}"
        );
        early
    }

    /// Would catch: pieces lost, swapped or cut wrongly, for piece lengths that divide the block
    /// length and for others.
    #[test]
    fn every_extent_leads_to_its_bytes() {
        for (block_len, cluster_len) in [(64 << 10, 16 << 10), (5001, 4096), (40_000, 64 << 10)] {
            assert_eq!(run(block_len, cluster_len, &|_| {}), 0);
        }
    }

    /// Would catch: errors that occur only after the first window, or when the maximum number of
    /// pieces is reached.
    #[test]
    fn several_windows_and_the_piece_limit_work() {
        let small = |c: &mut Clusters| c.window_count = 20;
        assert!(run(64 << 10, 16 << 10, &small) > 10);
        let few = |c: &mut Clusters| (c.window_count, c.piece_count_max) = (20, 30);
        assert!(run(64 << 10, 16 << 10, &few) > 10);
        assert!(run(5001, 4096, &few) > 10);
    }
}
