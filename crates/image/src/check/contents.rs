//! Checking contents: each decoded once and hashed, by many threads.

use crate::Image;
use crate::check::Checker;
use parking_lot::Mutex;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::container::RecordType;
use weald_format::pages::Source;
use weald_format::tree_digest::ContentHasher;
use weald_format::{ContentId, Digest, Error, Result};

/// Contents that a thread takes at once.
const CONTENTS_AT_ONCE: u64 = 64;
/// Bytes of a content read at once.
const PIECE_LEN: u64 = 1 << 20;
/// Errors kept: the same damaged block is met by many contents.
const ERRORS_MAX: usize = 1000;

fn bad(what: String) -> Error {
    Error::corrupt("content", 0, "F-10.3", what)
}

#[derive(Default)]
struct Results {
    digests: Vec<Option<Digest>>,
    errors: Vec<Error>,
    len: u64,
}

/// Contents in as many parts as there are threads, each of which begins with its own: two that go
/// through neighbouring contents wait for each other's blocks.
struct Parts {
    /// For each part the next content, and the one behind its last.
    parts: Vec<(AtomicU64, u64)>,
}

impl Parts {
    fn new(count: u64, threads: usize) -> Self {
        let threads = threads.max(1) as u64;
        let share = count.div_ceil(threads);
        let place = |no: u64| share.saturating_mul(no).min(count);
        let part = |no: u64| (AtomicU64::new(place(no)), place(no.saturating_add(1)));
        Self {
            parts: (0..threads).map(part).collect(),
        }
    }

    /// Some contents for thread `no`: of its part, and when that is done of the others.
    fn take(&self, no: usize) -> Option<Range<u64>> {
        let (before, own) = self.parts.split_at_checked(no)?;
        own.iter().chain(before).find_map(|(next, end)| {
            let start = next.fetch_add(CONTENTS_AT_ONCE, Ordering::Relaxed);
            (start < *end).then(|| start..start.saturating_add(CONTENTS_AT_ONCE).min(*end))
        })
    }
}

fn digest_all(image: &Image, count: u64, threads: usize) -> Results {
    let parts = Parts::new(count, threads);
    let results = Mutex::new(Results {
        digests: no_digests(count),
        ..Results::default()
    });
    std::thread::scope(|scope| {
        for no in 0..threads.max(1) {
            let (parts, results) = (&parts, &results);
            scope.spawn(move || {
                while let Some(contents) = parts.take(no) {
                    check_some(image, contents, results);
                }
            });
        }
    });
    results.into_inner()
}

/// Digest of every content.
pub(crate) fn digests(image: &Image, threads: usize) -> Result<Vec<Digest>> {
    let count = image.summary.content_count;
    check_starts(image, count)?;
    let results = digest_all(image, count, threads);
    match results.errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(results.digests.into_iter().flatten().collect()),
    }
}

/// Contents that recipes make, in part or whole.
pub(crate) fn made(image: &Image) -> Result<Vec<ContentId>> {
    let mut made = Vec::new();
    if image.records.item_count(RecordType::Recipes, 0) == 0 {
        return Ok(made);
    }
    for id in (0..image.summary.content_count).map(ContentId) {
        let mut is_made = false;
        each_source(image, id, &mut |stream, _| {
            is_made |= image.contents.is_made_anywhere(stream);
            Ok(())
        })?;
        if is_made {
            made.push(id);
        }
    }
    Ok(made)
}

/// Digest of every content; none where it cannot be read.
pub(crate) fn check_contents(checker: &mut Checker<'_>) -> Vec<Option<Digest>> {
    let image = checker.image;
    let count = image.summary.content_count;
    if let Err(error) = check_starts(image, count) {
        checker.found(error);
    }
    let results = digest_all(image, count, checker.options.threads);
    checker.report.content_count = results.digests.len() as u64;
    checker.report.content_len = results.len;
    results
        .errors
        .into_iter()
        .for_each(|error| checker.found(error));
    results.digests
}

/// One slot for every content. The count is bounded by the length of the file: see
/// `Directory::check_fits`.
fn no_digests(count: u64) -> Vec<Option<Digest>> {
    vec![None; usize::try_from(count).unwrap_or(0)]
}

/// Whether the contents tile the logical space.
fn check_starts(image: &Image, count: u64) -> Result<()> {
    let mut end = 0u64;
    for id in 0..count {
        let (start, len) = image.contents.extent_of(ContentId(id))?;
        if start != end {
            return Err(bad(format!(
                "content {id}: expected logical start {end}, found {start}"
            )));
        }
        end = end.saturating_add(len);
    }
    let logical_len = image.records.item_count(RecordType::Extents, 0);
    match end == logical_len {
        true => Ok(()),
        false => Err(bad(format!(
            "contents end at logical byte {end}, extents at {logical_len}"
        ))),
    }
}

fn check_some(image: &Image, contents: Range<u64>, results: &Mutex<Results>) {
    let done: Vec<_> = contents
        .map(|id| (id, content_digest(image, ContentId(id))))
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

/// Digest and data length of a content, decoded.
fn content_digest(image: &Image, id: ContentId) -> Result<(Digest, u64)> {
    let (_, len) = image.contents.extent_of(id)?;
    let mut runs = Vec::new();
    image.contents.runs(id, 0, &mut |run| {
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
            at = at.saturating_add(chunk.len() as u64);
        }
        read = read.saturating_add(run_len);
    }
    Ok((hasher.finish(), read))
}

/// Which contents lie in records that did not fail; the digests are zero, nothing is decoded.
///
/// # Cost
/// O(contents + extents): a recipe is looked at by its plain content's outcome, however many
/// extents refer to it.
pub(crate) fn probe_contents(checker: &mut Checker<'_>) -> Vec<Option<Digest>> {
    let image = checker.image;
    let mut contents = no_digests(image.summary.content_count);
    // Contents that recipes make in part, ascending.
    let mut made: Vec<u64> = Vec::new();
    for (id, slot) in contents.iter_mut().enumerate() {
        let id = id as u64;
        if let Ok(is_made) = probe(image, ContentId(id)) {
            *slot = Some(Digest::default());
            if is_made {
                made.push(id);
            }
        }
    }
    let is_whole = |plain: ContentId| {
        let index = usize::try_from(plain.0).unwrap_or(usize::MAX);
        contents.get(index).is_some_and(Option::is_some) && made.binary_search(&plain.0).is_err()
    };
    let is_damaged = |&id: &u64| probe_recipes(image, ContentId(id), &is_whole).is_err();
    let damaged: Vec<u64> = made.iter().copied().filter(is_damaged).collect();
    for id in damaged {
        let index = usize::try_from(id).unwrap_or(usize::MAX);
        if let Some(slot) = contents.get_mut(index) {
            *slot = None;
        }
    }
    contents
}

/// Visits stream and addresses of every extent of a content that is no hole.
fn each_source(
    image: &Image,
    id: ContentId,
    visit: &mut dyn FnMut(u8, Range<u64>) -> Result<()>,
) -> Result<()> {
    let (start, len) = image.contents.extent_of(id)?;
    let range = start..start.saturating_add(len);
    image.contents.each_extent(range, &mut |_, extent| {
        if let Source::Stream { stream, address } = extent.source {
            visit(stream, address..address.saturating_add(extent.len))?;
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Fails where a content lies in a block that did; otherwise whether recipes make a part of it.
fn probe(image: &Image, id: ContentId) -> Result<bool> {
    let mut is_made = false;
    each_source(image, id, &mut |stream, mut range| {
        if image.contents.is_made(stream) {
            is_made = true;
            return Ok(());
        }
        if image.contents.base_of(stream).is_some() {
            return Ok(());
        }
        while range.start < range.end {
            let found = image
                .records
                .record_of_item(RecordType::Data, stream, range.start)?;
            if image.records.has_failed(&found.record) {
                return Err(bad(format!("content {id} lies in a damaged block")));
            }
            range.start = found.first_item.saturating_add(found.item_count);
        }
        Ok(())
    })?;
    Ok(is_made)
}

/// Fails where a recipe that makes a part of content `id` cannot be read, or its plain content is
/// not whole.
fn probe_recipes(image: &Image, id: ContentId, is_whole: &dyn Fn(ContentId) -> bool) -> Result<()> {
    each_source(image, id, &mut |stream, mut range| {
        while image.contents.is_made(stream) && range.start < range.end {
            let made = image.contents.made_at(range.start)?;
            let recipe = made.recipe()?;
            if !is_whole(recipe.plain) {
                return Err(bad(format!("content {id} is made of damaged bytes")));
            }
            range.start = made.first.saturating_add(recipe.len);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: contents that nobody looks at, or two threads do.
    #[test]
    fn every_content_is_taken_once() {
        for (count, threads) in [(0, 2), (1, 4), (63, 2), (1000, 3), (4096, 1), (10_000, 7)] {
            let parts = Parts::new(count, threads);
            let mut taken: Vec<u64> = Vec::new();
            // The last thread does half of its part, then the first all that is left.
            for no in [threads - 1, 0] {
                let pieces = std::iter::from_fn(|| parts.take(no));
                let most = if no == 0 { usize::MAX } else { 3 };
                taken.extend(pieces.take(most).flatten());
            }
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..count), "{count} by {threads}");
        }
    }
}
