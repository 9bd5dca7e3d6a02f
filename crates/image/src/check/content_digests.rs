//! Digests of all contents: each decoded once and hashed, by many threads.

use super::parallel::threads_for;
use crate::image::Image;
use crate::read::decode_ahead::{AheadShare, DecodeAhead, DecodePlanner, ahead_queue};
use parking_lot::Mutex;
use std::ops::{ControlFlow, Range};
use std::thread::Builder;
use weald_codec::{FSVERITY_DIGEST_LEN, FsVerity};
use weald_format::container::RecordType;
use weald_format::pages::Source;
use weald_format::tree_digest::ContentHasher;
use weald_format::{ContentId, Digest, Error, Result};

/// Jobs in the queue for each thread. With few jobs most threads wait for the same block, because
/// neighbouring contents lie in the same blocks.
const JOBS_PER_THREAD: usize = 8;
/// Contents that a thread takes at a time.
const CONTENTS_AT_ONCE: u64 = 64;
/// Bytes of contents after which a thread takes no more at a time.
const LEN_AT_ONCE: u64 = 1 << 20;
/// Bytes of a content read at once.
const PIECE_LEN: u64 = 1 << 20;
/// Errors that are kept: many contents meet the same damaged block.
const ERRORS_MAX: usize = 1000;

/// An error about the contents.
pub fn bad(what: String) -> Error {
    Error::corrupt("content", 0, "F-10.3", what)
}

/// Digests of all contents.
#[derive(Default)]
pub struct ContentDigests {
    /// Digest of each content; `None` if it cannot be read.
    pub digests: Vec<Option<Digest>>,
    /// Distinct errors, [`ERRORS_MAX`] at most.
    pub errors: Vec<Error>,
    /// Bytes that were hashed.
    pub len: u64,
}

/// Computes the digests of all `count` contents with `threads` threads.
pub fn digest_all(image: &Image, count: u64, threads: usize) -> ContentDigests {
    let wanted = Wanted {
        is_wanted: &|_| true,
        verified: &[],
    };
    digest_some(image, count, threads, &wanted)
}

/// As [`digest_all`]; compares the kept fs-verity digests of the contents of `verified` too.
pub fn digest_and_verify(
    image: &Image,
    count: u64,
    threads: usize,
    verified: &[bool],
) -> ContentDigests {
    let wanted = Wanted {
        is_wanted: &|_| true,
        verified,
    };
    digest_some(image, count, threads, &wanted)
}

/// Contents to digest.
struct Wanted<'a> {
    is_wanted: &'a (dyn Fn(u64) -> bool + Sync),
    /// By number, whether the kept fs-verity digest is compared; false behind the end.
    verified: &'a [bool],
}

impl Wanted<'_> {
    fn is_verified(&self, id: u64) -> bool {
        let id = usize::try_from(id).unwrap_or(usize::MAX);
        self.verified.get(id).copied().unwrap_or(false)
    }
}

/// The digests of the contents of `is_wanted`.
///
/// # Errors
/// `Io`, `Corrupt`: the first error.
pub fn digests_of(
    image: &Image,
    is_wanted: &[bool],
    threads: usize,
) -> Result<Vec<Option<Digest>>> {
    let count = image.summary.content_count;
    let is_wanted = |id| {
        let id = usize::try_from(id).unwrap_or(usize::MAX);
        is_wanted.get(id).copied().unwrap_or(false)
    };
    let wanted = Wanted {
        is_wanted: &is_wanted,
        verified: &[],
    };
    let results = digest_some(image, count, threads, &wanted);
    match results.errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(results.digests),
    }
}

fn digest_some(image: &Image, count: u64, threads: usize, wanted: &Wanted<'_>) -> ContentDigests {
    let results = Mutex::new(ContentDigests {
        digests: no_digests(count),
        ..ContentDigests::default()
    });
    let data_len = image.records.item_count(RecordType::Extents, 0);
    let threads = threads_for(data_len, threads).max(1);
    let one_by_one = || {
        for start in (0..count).step_by(CONTENTS_AT_ONCE as usize) {
            let end = start.saturating_add(CONTENTS_AT_ONCE).min(count);
            check_some(image, start..end, wanted, &results);
        }
    };
    if threads == 1 {
        one_by_one();
        return results.into_inner();
    }
    let ahead = DecodeAhead::new(image.cache_counts().len_max);
    let (sender, receiver) =
        ahead_queue::<(Range<u64>, AheadShare<'_>)>(threads.saturating_mul(JOBS_PER_THREAD));
    std::thread::scope(|scope| {
        let start_thread = || {
            let (queue, results) = (receiver.clone(), &results);
            Builder::new().spawn_scoped(scope, move || {
                while let Some((contents, _ahead)) = queue.next(|job| image.decode_ahead(job)) {
                    check_some(image, contents, wanted, results);
                }
            })
        };
        // If the system allows no more threads, fewer do the work.
        let started = (0..threads).map_while(|_| start_thread().ok()).count();
        drop(receiver);
        if started == 0 {
            return one_by_one();
        }
        // The threads end when the sender is dropped.
        let sender = sender;
        let plans = image.records.decodes_everything();
        let mut planner = DecodePlanner::default();
        let mut start = 0;
        while start < count {
            let (end, mut planned) = (end_of_job(image, start, count), Vec::new());
            for id in (start..end).filter(|&id| plans && (wanted.is_wanted)(id)) {
                let (id, len_max) = (ContentId(id), ahead.len_max_of_file());
                // The thread that reads the content meets the same error.
                let _ = planner.plan(&image.map, id, len_max, &mut |job| planned.push(job));
            }
            let share = ahead.wait_for(&planned);
            if !sender.send(planned, (start..end, share)) {
                return;
            }
            start = end;
        }
    });
    results.into_inner()
}

/// The end of the contents that a thread takes together with content `start`.
fn end_of_job(image: &Image, start: u64, count: u64) -> u64 {
    let mut len = 0u64;
    for id in start..count.min(start.saturating_add(CONTENTS_AT_ONCE)) {
        let content_len = image.content_len(ContentId(id));
        len = len.saturating_add(content_len.unwrap_or(LEN_AT_ONCE));
        if len >= LEN_AT_ONCE {
            return id.saturating_add(1);
        }
    }
    count.min(start.saturating_add(CONTENTS_AT_ONCE))
}

/// The digest of every content.
///
/// # Errors
/// `Io`, `Corrupt`: the first error.
pub fn digests(image: &Image, threads: usize) -> Result<Vec<Digest>> {
    let count = image.summary.content_count;
    check_starts(image, count)?;
    let results = digest_all(image, count, threads);
    match results.errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(results.digests.into_iter().flatten().collect()),
    }
}

/// The contents that recipes make, partly or entirely.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn contents_from_recipes(image: &Image) -> Result<Vec<ContentId>> {
    let mut made = Vec::new();
    if image.records.item_count(RecordType::Recipes, 0) == 0 {
        return Ok(made);
    }
    for id in (0..image.summary.content_count).map(ContentId) {
        let mut is_made = false;
        each_source(image, id, &mut |stream, _| {
            is_made |= image.map.has_recipe_output(stream);
            Ok(())
        })?;
        if is_made {
            made.push(id);
        }
    }
    Ok(made)
}

/// One slot for every content. `Directory::check_fits` bounds the count by the length of the file.
pub fn no_digests(count: u64) -> Vec<Option<Digest>> {
    vec![None; usize::try_from(count).unwrap_or(0)]
}

/// Checks that the contents tile the logical space.
///
/// # Errors
/// `Corrupt` if they do not; `Io`.
pub fn check_starts(image: &Image, count: u64) -> Result<()> {
    let mut end = 0u64;
    for id in 0..count {
        let (start, len) = image.map.range_of(ContentId(id))?;
        if start != end {
            return Err(bad(format!(
                "content {id}: expected logical start {end}, found {start}"
            )));
        }
        end = end.saturating_add(len);
    }
    let logical_len = image.records.item_count(RecordType::Extents, 0);
    if end == logical_len {
        Ok(())
    } else {
        Err(bad(format!(
            "contents end at logical byte {end}, extents at {logical_len}"
        )))
    }
}

fn check_some(
    image: &Image,
    contents: Range<u64>,
    wanted: &Wanted<'_>,
    results: &Mutex<ContentDigests>,
) {
    let digest = |id| {
        if wanted.is_verified(id) {
            verified_digest(image, ContentId(id))
        } else {
            content_digest(image, ContentId(id), None)
        }
    };
    let done: Vec<_> = contents
        .filter(|&id| (wanted.is_wanted)(id))
        .map(|id| (id, digest(id)))
        .collect();
    let mut results = results.lock();
    for (id, result) in done {
        match result {
            Ok((digest, len)) => {
                if let Some(slot) = usize::try_from(id)
                    .ok()
                    .and_then(|id| results.digests.get_mut(id))
                {
                    *slot = Some(digest);
                }
                results.len = results.len.saturating_add(len);
            }
            Err(error) if results.errors.len() < ERRORS_MAX => {
                let same =
                    |e: &Error| e.place() == error.place() && e.to_string() == error.to_string();
                if !results.errors.iter().any(same) {
                    results.errors.push(error);
                }
            }
            Err(_) => {}
        }
    }
}

/// As [`content_digest`]; fails if the kept fs-verity digest is another one.
fn verified_digest(image: &Image, id: ContentId) -> Result<(Digest, u64)> {
    let kept = image.kept_fsverity_of(id)?;
    let mut state = FsVerity::new();
    let digest = content_digest(image, id, Some(&mut state))?;
    if Some(state.finish()) == kept {
        Ok(digest)
    } else {
        let what = format!("content {id} has another fs-verity digest than the image keeps");
        Err(Error::corrupt("fsverity page", 0, "F-28.3", what))
    }
}

/// Computes the fs-verity digest of a content.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn compute_fsverity(image: &Image, id: ContentId) -> Result<[u8; FSVERITY_DIGEST_LEN]> {
    let mut state = FsVerity::new();
    content_digest(image, id, Some(&mut state))?;
    Ok(state.finish())
}

/// Digest and data length of a content; decodes it. Its bytes go to `fsverity` too.
fn content_digest(
    image: &Image,
    id: ContentId,
    mut fsverity: Option<&mut FsVerity>,
) -> Result<(Digest, u64)> {
    let (_, len) = image.map.range_of(id)?;
    let mut runs = Vec::new();
    image.map.runs(id, 0, &mut |run| {
        if !run.is_hole {
            runs.push((run.offset, run.len));
        }
        ControlFlow::Continue(())
    })?;
    let is_dense = runs == [(0, len)];
    let mut hasher = if is_dense {
        ContentHasher::dense()
    } else {
        ContentHasher::sparse(len, &runs)
    };
    let mut read = 0u64;
    for (offset, run_len) in runs {
        let mut at = offset;
        let end = offset.saturating_add(run_len);
        while at < end {
            let chunk =
                image
                    .contents
                    .read(id, at, end.saturating_sub(at).min(PIECE_LEN) as usize)?;
            if chunk.is_empty() {
                return Err(bad(format!("content {id} ends at {at}, expected {end}")));
            }
            hasher.update(&chunk);
            if let Some(state) = &mut fsverity {
                state.update_zeros(at.saturating_sub(state.len()));
                state.update(&chunk);
            }
            at = at.saturating_add(chunk.len() as u64);
        }
        read = read.saturating_add(run_len);
    }
    if let Some(state) = fsverity {
        state.update_zeros(len.saturating_sub(state.len()));
    }
    Ok((hasher.finish(), read))
}

/// Visits stream and addresses of every extent of a content that is not a hole.
///
/// # Errors
/// `Io`, `Corrupt`, and those of `visit`.
pub fn each_source(
    image: &Image,
    id: ContentId,
    visit: &mut dyn FnMut(u8, Range<u64>) -> Result<()>,
) -> Result<()> {
    let (start, len) = image.map.range_of(id)?;
    let range = start..start.saturating_add(len);
    image.map.each_extent(range, &mut |_, extent| {
        if let Source::Stream { stream, address } = extent.source {
            visit(stream, address..address.saturating_add(extent.len))?;
        }
        Ok(ControlFlow::Continue(()))
    })
}
