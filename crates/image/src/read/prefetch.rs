//! What is decoded before anybody reads it: ahead of who reads in order, and for who warms a cache.

use super::{Contents, Manner, wanted};
use crate::ahead::Job;
use crate::readers::{Sight, Trail};
use crate::records::Found;
use std::ops::{ControlFlow, Range};
use weald_format::Result;
use weald_format::container::{Codec, RecordType};
use weald_format::pages::Source;

/// Pieces that are decoded ahead of one request at most.
const JOB_COUNT_MAX: usize = 16;
/// Extents that are looked at for them: files that are all repeats have one every few hundred
/// bytes.
const LOOK_COUNT_MAX: usize = 4096;

/// What is to be decoded, each by its name: whose piece it is, of which stream, and its number.
/// Contents that are open stay where they are.
type Jobs = Vec<((usize, u8, u64), Job)>;

/// What takes a codec is decoded so far ahead at least, many small blocks or a few large ones: with
/// less, threads wait for work each time that their reader does something else.
const AHEAD_LEN: u64 = 16 << 20;

/// How far to look ahead where `thread_count` threads decode blocks of `block_len` bytes, within an
/// eighth of what blocks may take; one block where only that fits, none where it would drive out
/// what is read.
///
/// Of what is stored as it is no more than a block for each thread and one: it should be in the
/// processor's cache when it is handed out.
pub(super) fn sight_of(
    block_len: u64,
    thread_count: usize,
    cache_len: u64,
    is_plain: bool,
) -> Sight {
    let each_one = block_len.saturating_mul((thread_count as u64).saturating_add(1));
    let all = match is_plain {
        true => each_one,
        false => each_one.saturating_mul(2).max(AHEAD_LEN),
    };
    let len = match cache_len / 8 {
        eighth if eighth >= block_len => all.min(eighth),
        _ if cache_len / 4 >= block_len => block_len,
        _ => 0,
    };
    let first_len = (block_len / 2).min(len / 2);
    let step_len = match is_plain {
        true => first_len,
        false => first_len.max(len / 8),
    };
    Sight {
        len,
        step_len,
        first_len,
    }
}

impl Contents {
    /// Has bytes `ahead` of a file decoded that begins at `start` of the logical space and is
    /// `content_len` bytes long.
    pub(super) fn look_ahead(&self, start: u64, ahead: Range<u64>, content_len: u64) -> Result<()> {
        let from = start.saturating_add(ahead.start);
        let end = start.saturating_add(ahead.end.min(content_len));
        if from >= end {
            return Ok(());
        }
        let (mut jobs, mut left) = (Jobs::new(), LOOK_COUNT_MAX);
        let seen = from..start.saturating_add(content_len);
        let looked = self.each_extent(seen, &mut |at, extent| {
            if at >= end || left == 0 || jobs.len() >= JOB_COUNT_MAX {
                return Ok(ControlFlow::Break(()));
            }
            left = left.saturating_sub(1);
            if let Source::Stream { stream, address } = extent.source {
                let len = extent.len.min(end.saturating_sub(at));
                let run = address..address.saturating_add(len);
                self.add_jobs(stream, run, extent.len, &mut jobs);
            }
            Ok(ControlFlow::Continue(()))
        });
        self.send(jobs);
        looked
    }

    /// Has bytes `run` of a stream decoded.
    pub(super) fn look_along(&self, stream: u8, run: Range<u64>) {
        let mut jobs = Jobs::new();
        self.add_jobs(stream, run, u64::MAX, &mut jobs);
        self.send(jobs);
    }

    /// Adds what is to be decoded for bytes `run` of a stream, of an extent that goes on for
    /// `rest_len` bytes: what is wanted of one block is one job, from the first of its bytes that
    /// somebody wants to the last.
    fn add_jobs(&self, stream: u8, run: Range<u64>, rest_len: u64, jobs: &mut Jobs) {
        if let Some((image, stream)) = self.base_of(stream) {
            return image.contents.add_jobs(*stream, run, rest_len, jobs);
        }
        let extent_end = run.start.saturating_add(rest_len);
        let mut at = run.start;
        while at < run.end && jobs.len() < JOB_COUNT_MAX {
            let Ok((no, piece)) = self.piece_at(stream, at) else {
                return;
            };
            let wanted_len = extent_end.min(piece.end).saturating_sub(piece.start);
            let name = (std::ptr::from_ref(self).addr(), stream, no);
            let known = jobs.iter_mut().find(|(known, _)| *known == name);
            if let Some((_, job)) = known {
                let end = job.address.saturating_add(job.len).max(extent_end);
                job.address = job.address.min(at);
                job.len = end.saturating_sub(job.address);
            } else if !self.records.has_block(stream, no, wanted_len) {
                let job = Job {
                    contents: self.own.clone(),
                    stream,
                    address: at,
                    len: extent_end.saturating_sub(at),
                };
                jobs.push((name, job));
            }
            // Every record and recipe has a byte at least; without one there would be no end.
            at = piece.end.max(at.saturating_add(1));
        }
    }

    fn send(&self, jobs: Jobs) {
        if jobs.is_empty() {
            return;
        }
        let pool = self.records.tag().cache().pool(0);
        jobs.into_iter().for_each(|(_, job)| pool.send(job));
    }

    /// Decodes all that bytes `run` of a stream lie in, and tells `visit` how long each piece is,
    /// which says whether it has enough.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_piece(
        &self,
        stream: u8,
        run: Range<u64>,
        visit: &mut dyn FnMut(usize) -> bool,
    ) -> Result<()> {
        if let Some((image, stream)) = self.base_of(stream) {
            return image.contents.each_piece(*stream, run, visit);
        }
        let mut at = run.start;
        while at < run.end {
            let end = self.piece_at(stream, at)?.1.end;
            if visit(self.load(stream, at, run.end.saturating_sub(at))?) {
                break;
            }
            // Every record and recipe has a byte at least; without one there would be no end.
            at = end.max(at.saturating_add(1));
        }
        Ok(())
    }

    /// Decodes what is at `address` of a stream into the cache, of the first block or recipe only:
    /// `len` bytes, or all where that is much of it. The length of that block, or of what the
    /// recipe makes.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn load(&self, stream: u8, address: u64, len: u64) -> Result<usize> {
        if self.is_made(stream) {
            return self
                .made_bytes(stream, address)
                .map(|(bytes, _)| bytes.len());
        }
        let found = self
            .records
            .record_of_item(RecordType::Data, stream, address)?;
        self.load_found(stream, &found, address, len)
    }

    fn load_found(&self, stream: u8, found: &Found, address: u64, len: u64) -> Result<usize> {
        let start = address.saturating_sub(found.first_item);
        let manner = Manner {
            is_in_order: true,
            ..Manner::default()
        };
        let block = (found.record.raw_len, self.records.grows(&found.record));
        let wanted = wanted((start, len, len), block, manner, false);
        let decoded = self.records.decoded(stream, found, wanted)?;
        Ok(decoded.len())
    }

    /// The same for who will come there soon, unless that one has come past it: what is stored as
    /// it is was let go by then ([`Records::take_plain`]), and would be read again for nobody.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn load_ahead(&self, stream: u8, address: u64, len: u64) -> Result<()> {
        if self.is_made(stream) {
            return self.made_bytes(stream, address).map(drop);
        }
        let found = self
            .records
            .record_of_item(RecordType::Data, stream, address)?;
        let all = found.first_item..found.first_item.saturating_add(found.item_count);
        let is_plain = found.record.codec == Codec::None;
        if is_plain && self.readers.have_passed(Trail::Stream(stream), &all) {
            return Ok(());
        }
        self.load_found(stream, &found, address, len).map(drop)
    }
}
