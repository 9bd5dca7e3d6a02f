//! Plans which blocks and recipes to decode for files that will be read soon, for a program that
//! reads everything with several threads, and limits how much is decoded for them.
//!
//! Neighbouring files lie in the same blocks. Threads that read them would wait for the one of them
//! that decodes; threads that decode different blocks do not wait.

use super::extent_map::ExtentMap;
use crossbeam_channel::{Receiver, Sender, select};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashSet, VecDeque};
use std::ops::{ControlFlow, Range};
use weald_format::pages::Source;
use weald_format::{ContentId, Result};

/// Blocks and recipes that the planner remembers, so that it plans none twice while it is decoded.
const REMEMBERED_COUNT: usize = 4096;

/// Bytes decoded ahead take at most this fraction of the cache, so that none is evicted before it
/// is used.
const CACHE_SHARE: u64 = 4;

/// A block or a recipe to decode: [`Image::decode_ahead`](crate::Image::decode_ahead).
#[derive(Debug)]
pub struct DecodeJob {
    pub(crate) stream: u8,
    pub(crate) address: u64,
    pub(crate) len: u64,
}

impl DecodeJob {
    /// Decoded bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is decoded; no such job is planned.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The address of the map that owns a block or a recipe, its stream there, and its number.
type PieceKey = (usize, u8, u64);

/// Remembers what it planned.
#[derive(Debug, Default)]
pub struct DecodePlanner {
    known: HashSet<PieceKey>,
    /// The same keys, the oldest first.
    order: VecDeque<PieceKey>,
    /// For each stream of each image, the addresses of the block or recipe that was met last.
    last_met: Vec<((usize, u8), Range<u64>)>,
}

impl DecodePlanner {
    /// Visits the blocks and recipes that have bytes of content `id` of `map`, except those that
    /// were planned or are cached, until they have `len_max` bytes.
    ///
    /// # Errors
    /// `Io`, `Corrupt`: the reader of the content meets them too.
    pub(crate) fn plan(
        &mut self,
        map: &ExtentMap,
        id: ContentId,
        len_max: u64,
        visit: &mut dyn FnMut(DecodeJob),
    ) -> Result<()> {
        let (start, content_len) = map.range_of(id)?;
        let mut planned_len = 0u64;
        map.each_extent(
            start..start.saturating_add(content_len),
            &mut |_, extent| {
                if let Source::Stream { stream, address } = extent.source {
                    let end = address.saturating_add(extent.len);
                    let mut at = address;
                    while at < end && planned_len < len_max {
                        let (piece, is_new) = self.meet(map, stream, at)?;
                        if is_new {
                            let job = DecodeJob {
                                stream,
                                address: at,
                                len: piece.end.saturating_sub(piece.start),
                            };
                            planned_len = planned_len.saturating_add(job.len);
                            visit(job);
                        }
                        // Every block and recipe has a byte; without one the loop would not end.
                        at = piece.end.max(at.saturating_add(1));
                    }
                }
                Ok(if planned_len < len_max {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                })
            },
        )
    }

    /// The addresses of the block or recipe that has byte `at` of `stream`, and whether it is
    /// neither planned nor cached.
    fn meet(&mut self, map: &ExtentMap, stream: u8, at: u64) -> Result<(Range<u64>, bool)> {
        let (owner, owner_stream) = map.owner_of(stream);
        let space = (owner.address(), owner_stream);
        let last = self.last_met.iter_mut().find(|(known, _)| *known == space);
        if let Some((_, piece)) = &last
            && piece.contains(&at)
        {
            return Ok((piece.clone(), false));
        }
        let (no, piece) = owner.piece_at(owner_stream, at)?;
        match last {
            Some((_, last)) => *last = piece.clone(),
            None => self.last_met.push((space, piece.clone())),
        }
        let key = (owner.address(), owner_stream, no);
        if !self.known.insert(key) {
            return Ok((piece, false));
        }
        self.order.push_back(key);
        if self.order.len() > REMEMBERED_COUNT
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        let len = piece.end.saturating_sub(piece.start);
        let is_cached = owner.records().has_block(owner_stream, no, len);
        Ok((piece, !is_cached))
    }
}

/// Queues jobs, and what to decode before them.
pub struct AheadSender<T> {
    jobs: Sender<T>,
    decodes: Sender<DecodeJob>,
}

/// Takes what is queued; a copy for each thread.
pub struct AheadReceiver<T> {
    jobs: Receiver<T>,
    decodes: Receiver<DecodeJob>,
}

impl<T> Clone for AheadReceiver<T> {
    fn clone(&self) -> Self {
        Self {
            jobs: self.jobs.clone(),
            decodes: self.decodes.clone(),
        }
    }
}

/// A queue of at most `count_max` jobs. What to decode is limited by [`DecodeAhead`].
pub fn ahead_queue<T>(count_max: usize) -> (AheadSender<T>, AheadReceiver<T>) {
    let (job_sender, jobs) = crossbeam_channel::bounded(count_max);
    let (decode_sender, decodes) = crossbeam_channel::unbounded();
    let sender = AheadSender {
        jobs: job_sender,
        decodes: decode_sender,
    };
    (sender, AheadReceiver { jobs, decodes })
}

impl<T> AheadSender<T> {
    /// Queues `job` behind what is decoded for it; waits for room. Returns false if no thread is
    /// left.
    pub fn send(&self, decodes: Vec<DecodeJob>, job: T) -> bool {
        let mut decodes = decodes.into_iter();
        decodes.all(|decode| self.decodes.send(decode).is_ok()) && self.jobs.send(job).is_ok()
    }
}

impl<T> AheadReceiver<T> {
    /// The next job; `None` after the last one. Calls `decode` for everything that is to be decoded
    /// meanwhile: that comes before all jobs.
    pub fn next(&self, mut decode: impl FnMut(&DecodeJob)) -> Option<T> {
        loop {
            if let Ok(job) = self.decodes.try_recv() {
                decode(&job);
                continue;
            }
            select! {
                recv(self.decodes) -> job => match job {
                    Ok(job) => decode(&job),
                    // The sender is gone.
                    Err(_) => return self.jobs.recv().ok(),
                },
                recv(self.jobs) -> job => return job.ok(),
            }
        }
    }
}

/// Bytes that are decoded for files whose turn has not come.
pub struct DecodeAhead {
    len_max: u64,
    len: Mutex<u64>,
    has_shrunk: Condvar,
}

/// Bytes that are decoded for one file, or a few. Dropping it makes room for others.
pub struct AheadShare<'a> {
    ahead: &'a DecodeAhead,
    len: u64,
}

impl DecodeAhead {
    /// A limit for a cache of `cache_len` bytes.
    pub fn new(cache_len: u64) -> Self {
        Self {
            len_max: cache_len / CACHE_SHARE,
            len: Mutex::new(0),
            has_shrunk: Condvar::new(),
        }
    }

    /// Most bytes to plan for one file: the rest of it is decoded when it is read.
    pub fn len_max_of_file(&self) -> u64 {
        self.len_max / 2
    }

    /// Waits until there is room for `jobs`, or no share is left.
    pub fn wait_for(&self, jobs: &[DecodeJob]) -> AheadShare<'_> {
        let lens = jobs.iter().map(DecodeJob::len);
        let len = lens.fold(0u64, u64::saturating_add);
        let is_too_much = |used: &mut u64| *used > 0 && used.saturating_add(len) > self.len_max;
        let mut used = self.len.lock();
        if len > 0 {
            self.has_shrunk.wait_while(&mut used, is_too_much);
        }
        *used = used.saturating_add(len);
        AheadShare { ahead: self, len }
    }
}

impl Drop for AheadShare<'_> {
    fn drop(&mut self) {
        if self.len > 0 {
            let mut used = self.ahead.len.lock();
            *used = used.saturating_sub(self.len);
            drop(used);
            self.ahead.has_shrunk.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    fn jobs(len: u64) -> [DecodeJob; 1] {
        let (stream, address) = (0, 0);
        [DecodeJob {
            stream,
            address,
            len,
        }]
    }

    /// Would catch: a job that is lost, or taken while something waits to be decoded, and a thread
    /// that waits for ever.
    #[test]
    fn jobs_come_after_what_is_decoded() {
        let (sender, receiver) = ahead_queue(8);
        for job in 0..4u64 {
            assert!(sender.send(jobs(job + 1).into(), job));
        }
        let mut decoded = Vec::new();
        assert_eq!(receiver.next(|job| decoded.push(job.len())), Some(0));
        assert_eq!(decoded, [1, 2, 3, 4]);
        drop(sender);
        let rest: Vec<u64> = std::iter::from_fn(|| receiver.clone().next(|_| panic!())).collect();
        assert_eq!(rest, [1, 2, 3]);
        let (sender, receiver) = ahead_queue(1);
        drop(receiver);
        assert!(!sender.send(Vec::new(), ()));
    }

    /// Would catch: a plan beyond the limit that does not wait, one that waits for ever, and a
    /// first plan that is longer than the limit.
    #[test]
    fn a_plan_waits_until_there_is_room() {
        let ahead = DecodeAhead::new(400);
        let first = ahead.wait_for(&jobs(150));
        drop(ahead.wait_for(&[]));
        let is_planned = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let second = ahead.wait_for(&jobs(60));
                is_planned.store(true, Ordering::SeqCst);
                drop(ahead.wait_for(&jobs(40)));
                drop(second);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!is_planned.load(Ordering::SeqCst));
            drop(first);
        });
        assert!(is_planned.into_inner());
        assert_eq!(*ahead.len.lock(), 0);
    }
}
