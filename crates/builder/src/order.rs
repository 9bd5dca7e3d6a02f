//! The order in which files are read and contents are stored.

pub(crate) mod mix;
mod nilsimsa;

use crate::options::script::{Candidate, Script};
use crate::options::{BuildOptions, Order};
use crate::progress::Observer;
use crate::read::readers::Job;
use crate::scan::ScannedTree;
use mix::mixed;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use weald_format::{Error, FileKind, Result};

/// Bytes at the front of a file that its signature covers. Files with similar fronts are assumed to
/// be similar.
const SIGNED_LEN: u64 = 1 << 20;
/// Length of a shingle, bytes.
const SHINGLE_LEN: usize = 16;
/// Mask and value of a rolling hash that selects one shingle in 32. The hash decides, so equal data
/// selects equal shingles wherever it lies.
const SELECTED: u64 = 0x1f;
/// Number of hashes in a signature: the smallest of the file. Two files share the first with the
/// probability that they share a shingle.
const SIGNATURE_LEN: usize = 4;

/// Smallest hashes, ascending.
type Signature = [u64; SIGNATURE_LEN];

/// Sorts `jobs`, which are in path order, into the order of `options`.
///
/// # Errors
/// `Invalid` if the script or the list is wrong, or if the build is cancelled.
/// # Cost
/// O(n log n); the similarity and nilsimsa orders read up to 1 MiB of each file.
pub fn arrange(
    tree: &ScannedTree,
    mut jobs: Vec<Job>,
    options: &BuildOptions,
    threads: usize,
    observer: &dyn Observer,
) -> Result<Vec<Job>> {
    if let Some(script) = options.script.as_ref().filter(|s| s.orders()) {
        let jobs = by_script(script, tree, &jobs, observer)?;
        return Ok(hot_first(tree, jobs, &options.hot_paths));
    }
    match &options.order {
        Order::Path => {}
        Order::Name => jobs.sort_by(|a, b| {
            let by_name = tree.name(a.entry).cmp(tree.name(b.entry));
            by_name.then(a.entry.cmp(&b.entry))
        }),
        Order::ReversePath => by_reverse_path(tree, &mut jobs),
        Order::Similarity => by_similarity(tree, &mut jobs, threads, observer)?,
        Order::Nilsimsa => by_nilsimsa(tree, &mut jobs, threads, observer)?,
        Order::List(paths) => by_list(tree, &mut jobs, paths)?,
    }
    Ok(hot_first(tree, jobs, &options.hot_paths))
}

/// Moves the files that `paths` name to the front, in that order; the others keep their order.
fn hot_first(tree: &ScannedTree, mut jobs: Vec<Job>, paths: &[Vec<u8>]) -> Vec<Job> {
    if paths.is_empty() {
        return jobs;
    }
    let mut ranks: HashMap<&[u8], usize> = HashMap::with_capacity(paths.len());
    for (rank, path) in paths.iter().enumerate() {
        ranks.entry(path).or_insert(rank);
    }
    let rank = |job: &Job| {
        let rank = ranks.get(tree.path_of(job.entry).as_slice());
        rank.copied().unwrap_or(usize::MAX)
    };
    jobs.sort_by_cached_key(rank);
    jobs
}

fn by_script(
    script: &Script,
    tree: &ScannedTree,
    jobs: &[Job],
    observer: &dyn Observer,
) -> Result<Vec<Job>> {
    let paths: Vec<Vec<u8>> = jobs.iter().map(|job| tree.path_of(job.entry)).collect();
    let mut candidates = jobs.iter().zip(&paths).map(|(job, path)| {
        let (attributes, mtime) = (tree.attributes(job.entry), tree.mtime(job.entry));
        Candidate::new(path, FileKind::Regular, job.len, attributes, mtime)
    });
    let order = script.order(&mut candidates, &|| observer.is_cancelled())?;
    let order = order.unwrap_or_default();
    Ok(order.into_iter().map(|index| jobs[index]).collect())
}

/// Sorts by name, then by the name of the directory, and so on upwards. Files at the same place in
/// sibling trees become adjacent.
fn by_reverse_path(tree: &ScannedTree, jobs: &mut [Job]) {
    let names = |entry| tree.way_up(entry).map(|entry| tree.name(entry));
    jobs.sort_by(|a, b| {
        let by_names = names(a.entry).cmp(names(b.entry));
        by_names.then(a.entry.cmp(&b.entry))
    });
}

/// Sorts files that the list names, or that lie in a directory that it names, in list order; the
/// rest follows.
fn by_list(tree: &ScannedTree, jobs: &mut [Job], paths: &[Vec<u8>]) -> Result<()> {
    let mut ranks: HashMap<&[u8], usize> = HashMap::with_capacity(paths.len());
    for (rank, path) in paths.iter().enumerate() {
        ranks.entry(path).or_insert(rank);
    }
    let rank = |job: &Job| {
        let path = tree.path_of(job.entry);
        let mut front = path.as_slice();
        loop {
            if let Some(&rank) = ranks.get(front) {
                return rank;
            }
            match front.iter().rposition(|&b| b == b'/') {
                Some(slash) => front = &front[..slash],
                None => return usize::MAX,
            }
        }
    };
    let mut ranked: Vec<(usize, Job)> = jobs.iter().map(|job| (rank(job), *job)).collect();
    if !ranked.is_empty() && ranked.iter().all(|(rank, _)| *rank == usize::MAX) {
        return Err(Error::invalid(
            "the list of the order names no file that the source has",
        ));
    }
    ranked.sort_by_key(|&(rank, job)| (rank, job.entry));
    for (job, (_, next)) in jobs.iter_mut().zip(ranked) {
        *job = next;
    }
    Ok(())
}

/// Sorts by signature, longest files first. Files that share their smallest hashes become adjacent.
fn by_similarity(
    tree: &ScannedTree,
    jobs: &mut [Job],
    threads: usize,
    observer: &dyn Observer,
) -> Result<()> {
    let mut signed = signed(tree, jobs, threads, observer, signature)?;
    signed.sort_by(|(a_signature, a), (b_signature, b)| {
        let by_content = a_signature.cmp(b_signature).then(b.len.cmp(&a.len));
        by_content.then(a.entry.cmp(&b.entry))
    });
    for (job, (_, next)) in jobs.iter_mut().zip(signed) {
        *job = next;
    }
    Ok(())
}

/// Sorts by digest. Files that are similar as a whole become adjacent.
fn by_nilsimsa(
    tree: &ScannedTree,
    jobs: &mut [Job],
    threads: usize,
    observer: &dyn Observer,
) -> Result<()> {
    let mut signed = signed(tree, jobs, threads, observer, nilsimsa::digest)?;
    nilsimsa::chain(&mut signed);
    for (job, (_, next)) in jobs.iter_mut().zip(signed) {
        *job = next;
    }
    Ok(())
}

/// Memory that [`arrange`] takes for `file_count` files in addition to the jobs, bytes. It is freed
/// before blocks are cut.
pub fn memory_len(options: &BuildOptions, file_count: u64, threads: u64) -> u64 {
    let (paths, order) = (&options.hot_paths, &options.order);
    let hot_len = if paths.is_empty() {
        0
    } else {
        // A rank and an index for each job, and half of the jobs while they are sorted.
        paths_len(paths) + file_count * (size_of::<(usize, usize)>() + size_of::<Job>()) as u64
    };
    order_len(order, file_count, threads) + hot_len
}

/// Memory of paths and of a table of them, bytes.
fn paths_len(paths: &[Vec<u8>]) -> u64 {
    let text_len: usize = paths.iter().map(Vec::capacity).sum();
    // A table is at least half full after it has grown, and has one more byte per slot.
    let table_len = size_of::<(&[u8], usize)>() * 5 / 2;
    let path_len = size_of::<Vec<u8>>() + table_len;
    (text_len + paths.len() * path_len) as u64
}

fn order_len(order: &Order, file_count: u64, threads: u64) -> u64 {
    // The result of each thread, the signature in its slot, and the pair of signature and job, of
    // which sorting copies half.
    let signed_len = size_of::<(usize, Signature)>() + size_of::<Signature>();
    let sorted_len = size_of::<(Signature, Job)>() * 3 / 2;
    let ranked_len = size_of::<(usize, Job)>() * 3 / 2;
    match order {
        Order::Path => 0,
        Order::Name | Order::ReversePath => file_count * size_of::<Job>() as u64 / 2,
        // A growing vector holds its bytes up to three times.
        Order::Similarity | Order::Nilsimsa => {
            file_count * (signed_len * 2 + sorted_len) as u64 + threads * 2 * SIGNED_LEN
        }
        Order::List(paths) => paths_len(paths) + file_count * ranked_len as u64,
    }
}

/// Pairs each file with the result of `sign`, the same for any number of threads. A file that
/// cannot be read gets a signature of all ones.
///
/// # Errors
/// `Invalid` if the build is cancelled.
fn signed(
    tree: &ScannedTree,
    jobs: &[Job],
    threads: usize,
    observer: &dyn Observer,
    sign: impl Fn(&[u8]) -> Signature + Sync,
) -> Result<Vec<(Signature, Job)>> {
    const FILES_AT_ONCE: usize = 256;
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        let mut data = Vec::new();
        loop {
            let start = next.fetch_add(FILES_AT_ONCE, Ordering::Relaxed);
            let end = jobs.len().min(start.saturating_add(FILES_AT_ONCE));
            if start >= end || observer.is_cancelled() {
                return done;
            }
            for (no, job) in (start..).zip(&jobs[start..end]) {
                data.clear();
                // If a file cannot be read now, the pipeline reports that when it reads the file
                // again.
                let read = tree
                    .open_file(job.entry)
                    .and_then(|file| file.read_front(SIGNED_LEN, &mut data));
                done.push((no, read.map_or([u64::MAX; SIGNATURE_LEN], |()| sign(&data))));
            }
        }
    };
    let mut signatures = vec![[u64::MAX; SIGNATURE_LEN]; jobs.len()];
    std::thread::scope(|scope| {
        let spawn = || crate::threads::start(scope, "order", work);
        let others: Vec<_> = (1..threads).map_while(|_| spawn().ok()).collect();
        let own = work();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .expect("a thread that computes signatures panicked")
        };
        for (no, signature) in own.into_iter().chain(others.into_iter().flat_map(join)) {
            signatures[no] = signature;
        }
    });
    if observer.is_cancelled() {
        Err(Error::invalid("interrupted"))
    } else {
        Ok(signatures.into_iter().zip(jobs.iter().copied()).collect())
    }
}

/// Returns the smallest hashes of the selected shingles of `data`.
fn signature(data: &[u8]) -> Signature {
    // A byte is shifted out after 16 more bytes, so the hash covers the last 16 bytes.
    const SHINGLE_SHIFT: u32 = 64 / SHINGLE_LEN as u32;
    let mut least = [u64::MAX; SIGNATURE_LEN];
    let mut rolling = 0u64;
    for &byte in data {
        rolling = (rolling << SHINGLE_SHIFT).wrapping_add(mixed(u64::from(byte)));
        if rolling >> 59 != SELECTED {
            continue;
        }
        let hash = mixed(rolling);
        if hash < least[SIGNATURE_LEN - 1] && !least.contains(&hash) {
            let index = least.partition_point(|&known| known < hash);
            least.copy_within(index..SIGNATURE_LEN - 1, index + 1);
            least[index] = hash;
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(from: usize, lines: usize) -> Vec<u8> {
        let line = |n: usize| format!("{n}: {:x}\n", mixed(n as u64));
        (from..from + lines)
            .map(line)
            .collect::<String>()
            .into_bytes()
    }

    /// Would catch: signatures that depend on the position of data, or that are equal for all
    /// files.
    #[test]
    fn similar_files_have_similar_signatures() {
        let one = text(0, 2000);
        let moved = [b"#!/bin/sh\n".as_slice(), &one].concat();
        let changed = [&one[..20_000], b"changed", &one[20_000..]].concat();
        let shared = |a: &[u8], b: &[u8]| {
            let (a, b) = (signature(a), signature(b));
            a.iter().filter(|hash| b.contains(hash)).count()
        };
        assert!(signature(&one).is_sorted());
        assert_eq!(shared(&one, &moved), SIGNATURE_LEN);
        assert!(shared(&one, &changed) >= SIGNATURE_LEN - 1);
        assert_eq!(shared(&one, &text(5000, 2000)), 0);
        assert_eq!(signature(b""), [u64::MAX; SIGNATURE_LEN]);
    }
}
