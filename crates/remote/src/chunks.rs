//! Chunks of objects: in memory, on disk, or on their way.
//!
//! A chunk that several readers want is requested once. It stays in memory while there is room, and
//! on disk if there is a cache. A request that failed leaves nothing behind: the next reader asks
//! again, so that a server that is back serves at once.

use crate::disk_cache::ImageCache;
use crate::object::{Failure, Object};
use crate::read_ahead::{STEP, Window};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use weald_format::{Digest, Error, ErrorKind, Result};

/// Bytes of a chunk, the unit of requests and of the cache on disk; the last one of an object is
/// shorter. `docs/design/0036-urls.md` has the figures.
pub const CHUNK_LEN: u64 = 256 << 10;
/// Chunks of the longest request.
const REQUEST_CHUNKS_MAX: u64 = STEP;
/// Bytes of chunks of images that stay in memory: more than is fetched ahead.
const MEMORY_MAX: usize = 48 << 20;
/// What a reader waits beyond the time of a request, which ends by itself.
const GRACE: Duration = Duration::from_secs(90);

/// How long the end of a reader waits for copies that are being written.
const COPY_TIME_MAX: Duration = Duration::from_secs(2);

/// A chunk that was requested.
pub struct Chunk {
    state: Mutex<ChunkState>,
    changed: Condvar,
}

enum ChunkState {
    Pending,
    Ready(Bytes),
    Failed(Failure),
}

impl Chunk {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(ChunkState::Pending),
            changed: Condvar::new(),
        })
    }

    /// Whether a reader would have to wait.
    pub fn is_pending(&self) -> bool {
        matches!(*self.state.lock(), ChunkState::Pending)
    }

    /// Waits until `deadline` for the bytes.
    fn wait(&self, deadline: Instant) -> Option<std::result::Result<Bytes, weald_format::Error>> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                ChunkState::Ready(bytes) => return Some(Ok(bytes.clone())),
                ChunkState::Failed(failure) => return Some(Err(failure.error())),
                ChunkState::Pending => {}
            }
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return None;
            }
        }
    }

    fn set(&self, state: ChunkState) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }
}

/// An object, and the copies of its chunks on disk.
pub struct Member {
    object: Object,
    disk: Option<ImageCache>,
    /// Digest of each chunk, if they are known: no other bytes reach a reader or the disk.
    digests: Option<Arc<[Digest]>>,
    /// Number of its first chunk. Between the chunks of two objects is at least one number that no
    /// chunk has, so that nobody takes them for adjacent, and no group has chunks of both.
    first: u64,
}

impl Member {
    /// An object with copies in `disk`.
    pub fn new(object: Object, disk: Option<ImageCache>) -> Self {
        Self {
            object,
            disk,
            digests: None,
            first: 0,
        }
    }

    /// As [`Member::new`], with the digest of each chunk.
    pub fn verified(object: Object, disk: Option<ImageCache>, digests: Arc<[Digest]>) -> Self {
        Self {
            digests: Some(digests),
            ..Self::new(object, disk)
        }
    }

    /// Whether `bytes` are those of chunk `no`, as far as that is known.
    fn has_digest(&self, no: u64, bytes: &[u8]) -> bool {
        let Some(digests) = &self.digests else {
            return true;
        };
        let wanted = usize::try_from(self.own_no(no)).ok();
        let wanted = wanted.and_then(|no| digests.get(no));
        wanted.is_some_and(|wanted| *wanted == Digest::of(bytes))
    }

    /// The number behind its last chunk.
    fn end(&self) -> u64 {
        self.first
            .saturating_add(self.object.len().div_ceil(CHUNK_LEN))
    }

    /// The number of a chunk in the object alone.
    fn own_no(&self, no: u64) -> u64 {
        no.saturating_sub(self.first)
    }

    /// The bytes of the object in chunk `no`.
    fn range_of(&self, no: u64) -> Range<u64> {
        let start = self.own_no(no).saturating_mul(CHUNK_LEN);
        let start = start.min(self.object.len());
        start..start.saturating_add(CHUNK_LEN).min(self.object.len())
    }
}

/// The chunks of one object, or of several that share threads, window and memory.
pub struct Chunks {
    members: Vec<Member>,
    held: Mutex<Held>,
    /// Bytes that stay in memory.
    memory_max: usize,
    runtime: Handle,
    is_stopped: AtomicBool,
    /// Requests whose chunks are being written to disk.
    writing: Mutex<usize>,
    written: Condvar,
}

#[derive(Default)]
struct Held {
    window: Window,
    chunks: HashMap<u64, HeldChunk>,
    /// Bytes of those that are ready.
    len: usize,
    tick: u64,
}

/// A chunk in memory or on its way.
struct HeldChunk {
    chunk: Arc<Chunk>,
    /// When it was used last.
    used: u64,
    /// Whether a reader wanted it; otherwise it was fetched ahead.
    was_read: bool,
}

impl Held {
    /// The chunk `no` if it is there, as the last one used.
    fn find(&mut self, no: u64) -> Option<Arc<Chunk>> {
        self.tick = self.tick.saturating_add(1);
        let held = self.chunks.get_mut(&no)?;
        held.used = self.tick;
        Some(held.chunk.clone())
    }

    fn add(&mut self, no: u64) -> Arc<Chunk> {
        let chunk = Chunk::new();
        let held = HeldChunk {
            chunk: chunk.clone(),
            used: self.tick,
            was_read: false,
        };
        self.chunks.insert(no, held);
        chunk
    }

    /// Makes room for `len` more bytes, so that there are at most `len_max`.
    fn make_room(&mut self, len: usize, len_max: usize) {
        self.len = self.len.saturating_add(len);
        while self.len > len_max {
            let ready = self.chunks.iter().filter(|(_, c)| !c.chunk.is_pending());
            let oldest = ready.min_by_key(|(_, c)| c.used).map(|(no, _)| *no);
            let Some(no) = oldest else { return };
            self.remove(no);
        }
    }

    fn remove(&mut self, no: u64) {
        if let Some(held) = self.chunks.remove(&no)
            && let ChunkState::Ready(bytes) = &*held.chunk.state.lock()
        {
            self.len = self.len.saturating_sub(bytes.len());
        }
    }
}

impl Chunks {
    /// The chunks of `members`.
    pub fn new(members: Vec<Member>, runtime: Handle) -> Arc<Self> {
        Self::within(members, runtime, MEMORY_MAX)
    }

    /// As [`Chunks::new`], with so many bytes in memory.
    pub fn within(mut members: Vec<Member>, runtime: Handle, memory_max: usize) -> Arc<Self> {
        let mut next = 0u64;
        for member in &mut members {
            member.first = next;
            let end = member.end().saturating_add(1);
            next = end.div_ceil(REQUEST_CHUNKS_MAX) * REQUEST_CHUNKS_MAX;
        }
        Arc::new(Self {
            members,
            held: Mutex::default(),
            memory_max,
            runtime,
            is_stopped: AtomicBool::new(false),
            writing: Mutex::new(0),
            written: Condvar::new(),
        })
    }

    /// Lets all readers that wait fail, and those that come later.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        let held = self.held.lock();
        for held in held.chunks.values().filter(|c| c.chunk.is_pending()) {
            held.chunk
                .set(ChunkState::Failed(Failure::from(self.stopped())));
        }
    }

    /// Waits for a moment until the copies of what was fetched are on disk: a process that ends now
    /// would lose them.
    pub fn finish_copies(&self) {
        let deadline = Instant::now() + COPY_TIME_MAX;
        let mut writing = self.writing.lock();
        while *writing > 0 {
            if self.written.wait_until(&mut writing, deadline).timed_out() {
                return;
            }
        }
    }

    fn stopped(&self) -> Error {
        let object = self.members.first().map(|member| &member.object);
        let shown = object.map_or_else(String::new, |object| object.location().shown());
        Error::new(ErrorKind::Io, format!("{shown}: the image is being closed"))
    }

    /// The object with number `index`, and where its bytes begin among those of all objects.
    pub fn object(&self, index: usize) -> Option<(&Object, u64)> {
        let member = self.members.get(index)?;
        Some((&member.object, member.first.saturating_mul(CHUNK_LEN)))
    }

    /// The object that has chunk `no`.
    fn member(&self, no: u64) -> Option<&Member> {
        let index = self.members.partition_point(|member| member.first <= no);
        self.members.get(index.checked_sub(1)?)
    }

    /// The number behind the last chunk of the object that has chunk `no`.
    pub fn end_of_object(&self, no: u64) -> u64 {
        self.member(no).map_or(no, Member::end)
    }

    /// The numbers of the chunks that have bytes of `range`, among those of all objects.
    pub fn of(range: &Range<u64>) -> Range<u64> {
        range.start / CHUNK_LEN..range.end.div_ceil(CHUNK_LEN)
    }

    /// The chunks `numbers`, of which those that are not there are requested now.
    pub fn request(self: &Arc<Self>, numbers: Range<u64>) -> Vec<Arc<Chunk>> {
        let mut found = Vec::new();
        let mut missing: Vec<(u64, Arc<Chunk>)> = Vec::new();
        {
            let mut held = self.held.lock();
            for no in numbers.clone() {
                let chunk = held.find(no).unwrap_or_else(|| {
                    let chunk = held.add(no);
                    missing.push((no, chunk.clone()));
                    chunk
                });
                found.push(chunk);
            }
            self.add_neighbours(&mut held, &mut missing);
        }
        while !missing.is_empty() {
            let rest = missing.split_off(run_len(&missing));
            let run = std::mem::replace(&mut missing, rest);
            let chunks = self.clone();
            self.runtime.spawn(async move { chunks.load(run).await });
        }
        found
    }

    /// Asks for what a reader in order will want after the chunks `numbers`, which it reads now,
    /// but not beyond chunk `end`.
    pub fn ask_ahead(self: &Arc<Self>, numbers: &Range<u64>, waits: bool, end: u64) {
        let ahead = {
            let mut held = self.held.lock();
            if waits {
                held.window.widen();
            }
            for no in numbers.clone() {
                if let Some(chunk) = held.chunks.get_mut(&no) {
                    chunk.was_read = true;
                }
            }
            let was_read = |no: u64| held.chunks.get(&no).is_some_and(|chunk| chunk.was_read);
            let ahead = held.window.ahead(numbers, was_read);
            ahead.start..ahead.end.min(end)
        };
        if !ahead.is_empty() {
            drop(self.request(ahead));
        }
    }

    /// Adds to the `missing` chunks the others of their groups, if a group has one already: what is
    /// read twice in a megabyte is likely to be read a third time, and a request costs more than a
    /// few chunks.
    fn add_neighbours(&self, held: &mut Held, missing: &mut Vec<(u64, Arc<Chunk>)>) {
        for at in 0..missing.len() {
            let Some((no, _)) = missing.get(at) else {
                return;
            };
            let first = no / REQUEST_CHUNKS_MAX * REQUEST_CHUNKS_MAX;
            let end = self.end_of_object(*no);
            let group = first..first.saturating_add(REQUEST_CHUNKS_MAX).min(end);
            let is_new = |no: &u64| missing.iter().any(|(other, _)| other == no);
            let is_used = |no: u64| held.chunks.contains_key(&no) && !is_new(&no);
            if group.clone().any(is_used) {
                let absent: Vec<u64> = group.filter(|no| !held.chunks.contains_key(no)).collect();
                missing.extend(absent.into_iter().map(|no| (no, held.add(no))));
            }
        }
        missing.sort_by_key(|(no, _)| *no);
    }

    /// Waits for a chunk that was requested.
    ///
    /// # Errors
    /// As [`Object::read`].
    fn wait(&self, chunk: &Chunk) -> Result<Bytes> {
        if self.is_stopped.load(Ordering::SeqCst) && chunk.is_pending() {
            return Err(self.stopped());
        }
        let Some((object, _)) = self.object(0) else {
            return Err(self.stopped());
        };
        let limit = object.timeout().saturating_mul(2).saturating_add(GRACE);
        let found = chunk.wait(Instant::now() + limit);
        let late = || crate::failure::too_late(object.location(), limit);
        found.ok_or_else(late)?
    }

    /// Fills `buf` with the bytes in `range`, for which `chunks` were requested.
    ///
    /// # Errors
    /// As [`Object::read`].
    pub fn copy(&self, chunks: &[Arc<Chunk>], range: &Range<u64>, buf: &mut [u8]) -> Result<()> {
        let mut at = range.start;
        let mut rest = buf;
        for chunk in chunks {
            let bytes = self.wait(chunk)?;
            let from = (at % CHUNK_LEN) as usize;
            let part = bytes.get(from..).unwrap_or_default();
            let len = part.len().min(rest.len());
            let (head, tail) = rest.split_at_mut(len);
            head.copy_from_slice(part.get(..len).unwrap_or_default());
            at = at.saturating_add(len as u64);
            rest = tail;
        }
        Ok(())
    }

    /// Drops the copies of the chunks `numbers`, so that they come from the server again.
    pub fn forget(&self, numbers: Range<u64>) {
        for no in numbers {
            self.held.lock().remove(no);
            if let Some(member) = self.member(no)
                && let Some(disk) = &member.disk
            {
                disk.remove(member.own_no(no));
            }
        }
    }

    /// Loads the chunks `run`, which are adjacent: from the disk, or else from the server.
    async fn load(&self, run: Vec<(u64, Arc<Chunk>)>) {
        let mut absent = Vec::new();
        let Some(member) = run.first().and_then(|(no, _)| self.member(*no)) else {
            return;
        };
        let read = |no, len| member.disk.as_ref()?.read(member.own_no(no), len);
        for (no, chunk) in run {
            let range = member.range_of(no);
            let len = range.end.saturating_sub(range.start) as usize;
            match read(no, len) {
                Some(bytes) => self.is_ready(no, &chunk, bytes),
                None => absent.push((no, chunk)),
            }
        }
        while !absent.is_empty() {
            let rest = absent.split_off(run_len(&absent));
            self.fetch(member, &absent).await;
            absent = rest;
        }
    }

    fn is_ready(&self, no: u64, chunk: &Arc<Chunk>, bytes: Bytes) {
        let mut held = self.held.lock();
        let found = held.chunks.get(&no);
        // It may have been dropped meanwhile, and counts for nothing then.
        if found.is_some_and(|found| Arc::ptr_eq(&found.chunk, chunk)) {
            held.make_room(bytes.len(), self.memory_max);
        }
        chunk.set(ChunkState::Ready(bytes));
    }

    /// Lets the readers of a chunk fail, and the next one ask again.
    fn has_failed(&self, no: u64, chunk: &Arc<Chunk>, failure: Failure) {
        self.held.lock().remove(no);
        chunk.set(ChunkState::Failed(failure));
    }

    /// Fetches adjacent chunks in one request.
    async fn fetch(&self, member: &Member, run: &[(u64, Arc<Chunk>)]) {
        let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else {
            return;
        };
        let range = member.range_of(*first).start..member.range_of(*last).end;
        let read = member.object.read(range.clone()).await;
        match read {
            Ok(all) => {
                // Before any reader goes on, and perhaps ends.
                *self.writing.lock() += 1;
                for (no, chunk) in run {
                    let part = member.range_of(*no);
                    let from = part.start.saturating_sub(range.start) as usize;
                    let to = part.end.saturating_sub(range.start) as usize;
                    let bytes = all.get(from..to).unwrap_or_default();
                    // Damage costs its chunk, and not the others of the request.
                    if !member.has_digest(*no, bytes) {
                        let what = "the object is damaged: it does not have what was put there";
                        let error = crate::failure::lost(member.object.location(), what);
                        log::info!("{error}");
                        self.has_failed(*no, chunk, Failure::from(error));
                        continue;
                    }
                    // A copy: a slice would keep the whole answer in memory.
                    let bytes = Bytes::copy_from_slice(bytes);
                    self.is_ready(*no, chunk, bytes.clone());
                    if let Some(disk) = &member.disk {
                        disk.write(member.own_no(*no), &bytes);
                    }
                }
                *self.writing.lock() -= 1;
                self.written.notify_all();
            }
            Err(error) => {
                log::info!("{error}");
                let failure = Arc::new(Failure::from(error));
                for (no, chunk) in run {
                    self.has_failed(*no, chunk, Failure::from(failure.error()));
                }
            }
        }
    }
}

/// How many of the first chunks are adjacent and fit one request.
fn run_len(chunks: &[(u64, Arc<Chunk>)]) -> usize {
    let first = chunks.first().map_or(0, |(no, _)| *no);
    let is_in = |(at, (no, _)): &(usize, &(u64, Arc<Chunk>))| {
        *no == first.saturating_add(*at as u64) && (*at as u64) < REQUEST_CHUNKS_MAX
    };
    chunks.iter().enumerate().take_while(is_in).count().max(1)
}
