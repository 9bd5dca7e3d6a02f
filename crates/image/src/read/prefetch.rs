//! Prefetch: plans which blocks to decode before a sequential reader requests them.

use super::access_pattern::ReadaheadWindow;
use super::extent_map::ExtentMap;
use crate::cache::prefetch_pool::{PrefetchJob, PrefetchPool, PrefetchTarget};
use std::ops::{ControlFlow, Range};
use std::sync::Weak;
use weald_format::pages::Source;

/// Blocks and recipes that are prefetched for one request at most.
const PREFETCH_COUNT_MAX: usize = 16;
/// Extents that are visited for them at most: a file that is all repeats has one every few hundred
/// bytes.
const EXTENT_COUNT_MAX: usize = 4096;

/// Bytes of compressed data that are prefetched at least, be it many small blocks or a few large
/// ones. With less, the threads wait for work whenever their reader does something else.
const PREFETCH_LEN: u64 = 16 << 20;

/// The readahead window if `thread_count` threads decode blocks of `block_len` bytes and blocks may
/// take `cache_len` bytes of the cache. The prefetch takes at most an eighth of these; one block if
/// only one fits; nothing if it would evict what is being read.
///
/// Uncompressed data are prefetched by one block for each thread and one more: they should be in
/// the processor's cache when they are handed out.
pub fn readahead_window(
    block_len: u64,
    thread_count: usize,
    cache_len: u64,
    is_plain: bool,
) -> ReadaheadWindow {
    let one_round_len = block_len.saturating_mul((thread_count as u64).saturating_add(1));
    let wanted_len = if is_plain {
        one_round_len
    } else {
        one_round_len.saturating_mul(2).max(PREFETCH_LEN)
    };
    let len = match cache_len / 8 {
        eighth if eighth >= block_len => wanted_len.min(eighth),
        _ if cache_len / 4 >= block_len => block_len,
        _ => 0,
    };
    let first_step_len = (block_len / 2).min(len / 2);
    let step_len = if is_plain {
        first_step_len
    } else {
        first_step_len.max(len / 8)
    };
    ReadaheadWindow {
        len,
        step_len,
        first_step_len,
    }
}

/// A block or a recipe to decode.
struct Planned {
    /// The address of the map that owns it, its stream there, and its number.
    piece: (usize, u8, u64),
    /// The stream, as the planning image numbers it.
    stream: u8,
    address: u64,
    len: u64,
}

/// The blocks and recipes to decode for one request.
#[derive(Default)]
pub struct PrefetchPlan(Vec<Planned>);

impl PrefetchPlan {
    /// A plan for bytes `range` of a file that begins at logical byte `start` and has `content_len`
    /// bytes. Ends at the first unreadable extent: the reader meets the error again.
    pub fn for_file(map: &ExtentMap, start: u64, range: Range<u64>, content_len: u64) -> Self {
        let mut plan = Self::default();
        let from = start.saturating_add(range.start);
        let end = start.saturating_add(range.end.min(content_len));
        if from >= end {
            return plan;
        }
        let mut remaining_extents = EXTENT_COUNT_MAX;
        let seen = from..start.saturating_add(content_len);
        let _ = map.each_extent(seen, &mut |at, extent| {
            if at >= end || remaining_extents == 0 || plan.is_full() {
                return Ok(ControlFlow::Break(()));
            }
            remaining_extents = remaining_extents.saturating_sub(1);
            if let Source::Stream { stream, address } = extent.source {
                let len = extent.len.min(end.saturating_sub(at));
                plan.add(
                    map,
                    stream,
                    address..address.saturating_add(len),
                    extent.len,
                );
            }
            Ok(ControlFlow::Continue(()))
        });
        plan
    }

    /// A plan for the addresses `range` of a stream.
    pub fn for_stream(map: &ExtentMap, stream: u8, range: Range<u64>) -> Self {
        let mut plan = Self::default();
        plan.add(map, stream, range, u64::MAX);
        plan
    }

    fn is_full(&self) -> bool {
        self.0.len() >= PREFETCH_COUNT_MAX
    }

    /// Adds the blocks and recipes of addresses `range`, of an extent that has `extent_len` bytes
    /// from the start of the range. Each block is planned once, from the first of its bytes that
    /// any extent needs to the last.
    fn add(&mut self, map: &ExtentMap, stream: u8, range: Range<u64>, extent_len: u64) {
        let (owner, owner_stream) = map.owner_of(stream);
        let extent_end = range.start.saturating_add(extent_len);
        let mut at = range.start;
        while at < range.end && !self.is_full() {
            let Ok((no, addresses)) = owner.piece_at(owner_stream, at) else {
                return;
            };
            let front_end = extent_end.min(addresses.end);
            let front_len = front_end.saturating_sub(addresses.start);
            let piece = (owner.address(), owner_stream, no);
            if let Some(known) = self.0.iter_mut().find(|known| known.piece == piece) {
                let end = known.address.saturating_add(known.len).max(extent_end);
                known.address = known.address.min(at);
                known.len = end.saturating_sub(known.address);
            } else if !owner.records().has_block(owner_stream, no, front_len) {
                self.0.push(Planned {
                    piece,
                    stream,
                    address: at,
                    len: extent_end.saturating_sub(at),
                });
            }
            // Every block and recipe has at least one byte; without one the loop would not end.
            at = addresses.end.max(at.saturating_add(1));
        }
    }

    /// Queues the plan; `target` decodes.
    pub fn queue(self, pool: &PrefetchPool, target: &Weak<impl PrefetchTarget + 'static>) {
        for planned in self.0 {
            pool.queue(PrefetchJob {
                target: target.clone(),
                stream: planned.stream,
                address: planned.address,
                len: planned.len,
            });
        }
    }
}
