//! The memory plan divides `--memory` between the stages of a build. The build refuses a budget
//! that it cannot keep; it never exceeds the budget.

use crate::compress::cluster;
use crate::compress::compressors::Compressors;
use crate::compress::dictionary;
use crate::dedup::streams::WINDOW_SHARES;
use crate::options::plan::Plan;
use crate::options::{BuildOptions, SmallTree};
use crate::order;
use crate::progress::Observer;
use crate::read::pieces;
use crate::read::readers::WHOLE_LEN_MAX;
use crate::read::recode;
use crate::scan::ScannedTree;
use crate::write::metadata;
use weald_codec::CodecSpec;
use weald_filter::DIR_RULES_LEN_MAX;
use weald_format::{Error, Result};
use weald_io::WriteBehind;

/// Code, stacks, allocator overhead, metadata pages and their encoders, bytes.
const BUILD_FIXED_LEN: u64 = 48 << 20;
/// Cost of one entry from scan to end, bytes: 48 + name (about 24) in the scan; 48 twice while
/// entries are sorted; 44 for digest and table slot of a content of its own; 4 for its number.
const ENTRY_MEMORY_LEN: u64 = 170;

/// Cost of one open directory while the tree is written, bytes: two hashers and a few vectors.
const OPEN_DIR_LEN: u64 = 4608;

/// Cost of one distinct xattr set while the tree is written, bytes: digest and number in a table.
const XATTR_SET_LEN: u64 = 96;

/// Files of full length that reader threads may hold ahead of the segmenter, for one thread and at
/// most.
const FILES_AHEAD_MIN: u64 = 2;
const FILES_AHEAD_MAX: u64 = 3;
/// Bytes of files that they may hold for each thread, if there are many.
const FILES_AHEAD_OF_THREAD_LEN: u64 = WHOLE_LEN_MAX / 2;

/// Fewer threads than this leave the segmenter time to decode archives once more.
const PLAINS_THREADS_MIN: u64 = 4;

/// Longer archives are streamed, whatever the budget, bytes.
const ARCHIVE_LEN_MAX: u64 = 64 << 20;

/// Bytes of blocks that wait for the threads that write a spool, at most, unless two blocks are
/// longer.
const SPOOL_QUEUE_LEN_MAX: u64 = 32 << 20;
/// Most threads that write a spool. One writes 0.4 to 6 GB/s.
const SPOOL_THREADS_MAX: u64 = 4;

/// Streams with a codec.
const CODEC_STREAMS: u64 = 3;

/// Figures of the tree that determine how much memory it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeSize {
    /// Entries.
    pub entry_count: u64,
    /// Depth of the deepest directory.
    pub depth: u64,
    /// Distinct xattr sets.
    pub xattr_set_count: u64,
    /// Bytes that these sets take in memory.
    pub xattrs_len: u64,
}

impl TreeSize {
    /// Returns the size of a scanned tree.
    pub fn of(tree: &ScannedTree) -> Self {
        Self {
            entry_count: u64::from(tree.entry_count()),
            depth: tree.depth(),
            xattr_set_count: tree.xattr_sets().len() as u64,
            xattrs_len: tree.xattrs_memory_len(),
        }
    }

    /// Memory that the tree takes from scan to end, bytes.
    fn memory_len(&self) -> u64 {
        self.entry_count * ENTRY_MEMORY_LEN
            + self.depth * OPEN_DIR_LEN
            + self.xattr_set_count * XATTR_SET_LEN
            + self.xattrs_len
    }
}

/// What to report of a need of `need_len` bytes for `threads` threads where `usual_len` is usual:
/// all that one thread needs above that, and what several need if it is more than twice as much. A
/// limit that cannot rise (`len_max` is 0) was asked for and is not reported.
pub fn raised_len(usual_len: u64, len_max: u64, threads: u64, need_len: u64) -> Option<u64> {
    let silent_len = match threads {
        1 => usual_len,
        _ => 2 * usual_len,
    };
    (len_max > 0 && need_len > silent_len).then_some(need_len)
}

/// Returns how many threads, at most `wanted`, fit in the limit, and that limit. `need` returns the
/// bytes that a number of threads takes. If not even one thread fits in `memory_len`, the limit
/// rises, at most to `memory_len_max`.
pub fn fit_threads(
    memory_len: u64,
    memory_len_max: u64,
    wanted: u64,
    need: &dyn Fn(u64) -> u64,
) -> Option<(u64, u64)> {
    let fitting = |limit: u64| (1..=wanted).rev().find(|&threads| need(threads) <= limit);
    if let Some(threads) = fitting(memory_len) {
        return Some((threads, memory_len));
    }
    fitting(memory_len_max).map(|threads| (threads, need(threads)))
}

/// The error for options that need at least `least` MiB. `advice` names options that would fit.
pub fn too_little(options_len: u64, len_max: u64, least: u64, advice: &str) -> Error {
    let what = if len_max > options_len {
        format!(
            "memory: these options need {least} MiB at least, more than the {} MiB that half of \
         this machine has: use -m {least}M if it may take so much{advice}",
            len_max >> 20
        )
    } else {
        format!(
            "memory: these options need {least} MiB at least, and -m limits them to {} MiB: use \
         -m {least}M{advice}",
            options_len >> 20
        )
    };
    Error::limit(what)
}

impl Plan {
    /// Divides `options.memory_len` for a tree of `size` on `cpu_count` CPUs. `images_len` bytes
    /// are reserved for the image that is appended to and for base images.
    ///
    /// # Errors
    /// `Limit` if even the smallest plan needs more; the message says how much.
    pub fn new(
        options: &BuildOptions,
        cpu_count: usize,
        size: &TreeSize,
        images_len: u64,
    ) -> Result<Self> {
        let wanted = if options.threads == 0 {
            cpu_count
        } else {
            options.threads
        };
        let fixed = BUILD_FIXED_LEN + size.memory_len() + images_len;
        let need = |options: &BuildOptions, threads| {
            // Files are sorted before blocks are cut, and directory rules are read before that.
            // These stages never overlap, so the largest counts.
            let order_len = order::memory_len(options, size.entry_count, threads);
            fixed
                + blocks_need(options, threads)
                    .max(order_len)
                    .max(rules_len(options))
        };
        // Fewer threads need less. The bytes of the image depend neither on the number of threads
        // nor on the limit: everything that decides about them is derived from `memory_len`.
        let of_threads = |threads| need(options, threads);
        let (len, len_max) = (options.budget_len(), options.memory_len_max);
        let Some((threads, limit_len)) = fit_threads(len, len_max, wanted as u64, &of_threads)
        else {
            let least = least_mib(options, &|options| need(options, 1));
            let advice = smaller_blocks(options, &|options| need(options, 1));
            return Err(too_little(len, len_max, least, &advice));
        };
        let spool_writers = spool_writers(options, threads, limit_len - of_threads(threads));
        let need_len = of_threads(threads) + spool_writers.queue_len_max;
        Ok(Self {
            threads: threads as usize,
            block_len: options.block_len,
            small_tree: small_tree(options, threads, fixed, limit_len),
            codec: options.codec,
            x86_codec: options.x86_codec.unwrap_or(options.codec),
            arm64_codec: options.arm64_codec.unwrap_or(options.codec),
            match_len_min: options.match_len_min,
            cluster_len: options.cluster_len,
            dictionary_len: dictionary_len(options),
            categories: options.categories,
            keep_fsverity: options.keep_fsverity,
            table_len: table_len(options),
            window_len: window_len(options),
            read_ahead_len: files_ahead_len(threads),
            archive_len_max: archive_len_max(options),
            plains_len: plains_len(options, threads),
            spool_writers,
            memory_len: options.memory_len,
            limit_len,
            raised_len: raised_len(options.memory_len, len_max, threads, need_len),
        })
    }

    /// Reports to `observer` if the build may take more memory than usual, unless that was asked
    /// for.
    pub fn report_raised_limit(&self, observer: &dyn Observer) {
        if let Some(len) = self.raised_len {
            observer.memory_raised(self.memory_len, len, self.threads);
        }
    }

    /// Number of threads that may encode the metadata of a tree of `size`, now that blocks no
    /// longer need memory. `held_len` bytes are in other use. The result is at least 1: the fixed
    /// share covers one thread.
    pub fn metadata_threads(&self, size: &TreeSize, held_len: u64) -> usize {
        let used = BUILD_FIXED_LEN + size.memory_len() + held_len;
        let fitting = self.limit_len.saturating_sub(used) / metadata::THREAD_LEN;
        self.threads.min(fitting as usize).max(1)
    }

    /// Checks that the tree of a stream fits, after its contents have passed and blocks no longer
    /// need memory. `source_len` bytes belong to the source.
    ///
    /// # Errors
    /// `Limit`; the message says how much is needed.
    pub fn check_tree(
        options: &BuildOptions,
        size: &TreeSize,
        content_count: u64,
        source_len: u64,
    ) -> Result<()> {
        let need =
            BUILD_FIXED_LEN + size.memory_len() + content_count * CONTENT_MEMORY_LEN + source_len;
        let limit = options.budget_len().max(options.memory_len_max);
        if need <= limit {
            Ok(())
        } else {
            let (least, have) = (need.div_ceil(1 << 20), limit >> 20);
            let what = format!(
                "memory: this tree needs {least} MiB, and the limit is {have} MiB: use -m \
                 {least}M"
            );
            Err(Error::limit(what))
        }
    }
}

/// Cost of a stored content, bytes: its digest and its slot in a table by digest.
pub const CONTENT_MEMORY_LEN: u64 = 44;

/// Bytes that cutting and compressing blocks with `threads` compressors takes.
fn blocks_need(options: &BuildOptions, threads: u64) -> u64 {
    let blocks = Compressors::in_flight_max(threads) * options.block_len * 2;
    let packing = threads * context_len(options)
        + threads * recode::memory_len(&options.categories)
        + recode::shared_memory_len(&options.categories)
        + blocks
        + minimum_shared(options, threads)
        + shared_dictionary_len(options)
        + cluster_len(options, threads);
    // The dictionary is trained before compression begins.
    let learning = match dictionary_len(options) {
        0 => 0,
        _ => dictionary::TRAINING_LEN,
    };
    packing.max(learning)
}

/// What a small tree has, if the options allow it, and how many threads compress its blocks. They
/// have the memory of the search for repeats too, which is over by then.
fn small_tree(
    options: &BuildOptions,
    threads: u64,
    fixed: u64,
    limit_len: u64,
) -> Option<(SmallTree, usize)> {
    // These conditions decide about bytes: the machine has no part in them. Whoever chose codecs
    // or blocks wants no others.
    let usual = BuildOptions::level(BuildOptions::LEVEL_DEFAULT).ok()?;
    let is_usual = (options.codec, options.x86_codec, options.arm64_codec)
        == (usual.codec, usual.x86_codec, usual.arm64_codec)
        && options.block_len == usual.block_len
        && options.cluster_len > 0
        && dictionary_len(options) == 0
        && options.memory_len >= usual.memory_len;
    let small = options.small_tree.filter(|_| is_usual)?;
    let context_len = small.codec.context_len(small.block_len);
    let need = |threads: u64| {
        let blocks_len = (Compressors::in_flight_max(threads) + 1) * small.block_len;
        let blocks_len = blocks_len.min(small.len_max + small.block_len * CODEC_STREAMS) * 2;
        fixed + threads * context_len + blocks_len + cluster_len(options, threads)
    };
    let fitting = (1..=threads)
        .rev()
        .find(|&threads| need(threads) <= limit_len);
    Some((small, fitting.unwrap_or(1) as usize))
}

/// Bytes that clustering takes.
fn cluster_len(options: &BuildOptions, threads: u64) -> u64 {
    let (memory_len, block_len) = (options.memory_len, options.block_len);
    cluster::memory_len(memory_len, block_len, options.cluster_len, threads)
}

/// Bytes that the rules of the directories on the current path may take.
fn rules_len(options: &BuildOptions) -> u64 {
    if options.filter.asks_dirs() {
        DIR_RULES_LEN_MAX
    } else {
        0
    }
}

fn dictionary_len(options: &BuildOptions) -> u64 {
    match options.codec.dictionary_level() {
        Some(_) => options.dictionary_len,
        None => 0,
    }
}

/// Memory of the dictionaries, bytes: the raw bytes, and the tables of encoders and decoders.
fn shared_dictionary_len(options: &BuildOptions) -> u64 {
    // An image that is appended to may have a dictionary for each of three streams.
    3 * 3 * dictionary_len(options)
}

/// Memory of the largest encoder, bytes: a thread has one encoder at a time.
fn context_len(options: &BuildOptions) -> u64 {
    let dictionary_len = dictionary_len(options);
    let of = |codec: CodecSpec| {
        codec.context_len(options.block_len)
            + codec.shared_context_len(dictionary_len, options.block_len)
    };
    let own = [options.x86_codec, options.arm64_codec];
    own.into_iter()
        .flatten()
        .map(of)
        .fold(of(options.codec), u64::max)
}

/// The smallest sufficient budget, MiB. Some shares grow with the budget, but by less than a
/// quarter of it, so the iteration ends.
fn least_mib(options: &BuildOptions, need: &dyn Fn(&BuildOptions) -> u64) -> u64 {
    let needed = |mib: u64| {
        let options = BuildOptions {
            memory_len: mib << 20,
            ..options.clone()
        };
        need(&options).div_ceil(1 << 20)
    };
    let mut mib = 1;
    while needed(mib) > mib {
        mib = needed(mib);
    }
    mib
}

/// Advice that names the largest blocks that fit the budget; it follows "use -m SIZE".
fn smaller_blocks(options: &BuildOptions, need: &dyn Fn(&BuildOptions) -> u64) -> String {
    let mut smaller = options.clone();
    let limit = options.budget_len().max(options.memory_len_max);
    while smaller.block_len > 64 << 10 {
        smaller.block_len /= 2;
        if need(&smaller) <= limit {
            return match smaller.block_len >> 20 {
                0 => format!(", or --block-size {}K", smaller.block_len >> 10),
                mib => format!(", or --block-size {mib}M"),
            };
        }
    }
    ", or a lower level".to_owned()
}

/// Table and window decide which repeats are found. They are derived from the options alone, never
/// from the machine.
fn table_len(options: &BuildOptions) -> u64 {
    if options.match_len_min == 0 {
        0
    } else {
        (options.memory_len / 8).clamp(1 << 20, 1 << 30)
    }
}

fn window_len(options: &BuildOptions) -> u64 {
    (options.memory_len / 16).max(options.block_len * 2)
}

/// Longest archive that is read whole, bytes. Two archives can be in memory at once and get a
/// sixteenth of the budget together: more would leave less for compressors.
fn archive_len_max(options: &BuildOptions) -> u64 {
    if options.categories.uses_recipes() {
        (options.memory_len / 32).clamp(WHOLE_LEN_MAX, ARCHIVE_LEN_MAX)
    } else {
        WHOLE_LEN_MAX
    }
}

/// Bytes of files that are read ahead of the segmenter. They do not decide about the image.
fn files_ahead_len(threads: u64) -> u64 {
    let count = (threads + 1).clamp(FILES_AHEAD_MIN, FILES_AHEAD_MAX);
    (count * WHOLE_LEN_MAX).max(threads * FILES_AHEAD_OF_THREAD_LEN)
}

/// Threads that write the spool of a build with `threads` compressors. Their queue takes a part of
/// `free_len`, the bytes that the compressors leave, so that it costs no compressor.
fn spool_writers(options: &BuildOptions, threads: u64, free_len: u64) -> WriteBehind {
    let two_blocks = 2 * options.block_len;
    if threads == 1 || free_len < two_blocks {
        return WriteBehind::NONE;
    }
    WriteBehind {
        thread_count: (threads / 4).clamp(1, SPOOL_THREADS_MAX) as usize,
        queue_len_max: free_len.min(SPOOL_QUEUE_LEN_MAX.max(two_blocks)),
    }
}

/// Plain bytes of archives that are kept until they are written.
fn plains_len(options: &BuildOptions, threads: u64) -> u64 {
    if options.categories.deflate && threads >= PLAINS_THREADS_MIN {
        files_ahead_len(threads) / 4
    } else {
        0
    }
}

fn minimum_shared(options: &BuildOptions, threads: u64) -> u64 {
    // Files read ahead, which a single archive may exceed; one more file in the segmenter; the open
    // block of each of four streams.
    let archive_len = archive_len_max(options);
    let files_len = files_ahead_len(threads).max(archive_len) + archive_len;
    let plains_len = plains_len(options, threads);
    let marks_len = match options.match_len_min {
        0 => 0,
        _ => (files_ahead_len(threads) + plains_len) / 2,
    };
    // A file of samples or pictures comes with its plain content, which is smaller than the file.
    // Long files of samples are streamed, and pictures are searched only in files up to
    // `PICTURES_LEN_MAX`.
    let categories = &options.categories;
    let packed_len = match (categories.pcm || categories.fits, categories.jpeg) {
        (_, true) => files_ahead_len(threads) + recode::PICTURES_LEN_MAX as u64,
        (true, false) => files_ahead_len(threads) + WHOLE_LEN_MAX,
        (false, false) => 0,
    };
    let ahead_len = files_len + marks_len + packed_len + plains_len + pieces::memory_len(threads);
    table_len(options) + histories_len(options) + ahead_len
}

/// Blocks for comparison, at least one per stream however small its share is, and the open block of
/// each stream; bytes.
fn histories_len(options: &BuildOptions) -> u64 {
    let kept = |&share: &u64| (window_len(options) / share / options.block_len).max(1);
    let shares = WINDOW_SHARES.iter().filter(|&&share| share != u64::MAX);
    shares
        .map(|share| (kept(share) + 1) * options.block_len)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Order;

    /// Would catch: a level whose default memory has room for only one thread.
    #[test]
    fn every_level_runs_two_threads_on_two_cores() {
        let size = TreeSize {
            entry_count: 100_000,
            depth: 20,
            xattr_set_count: 10,
            xattrs_len: 1000,
        };
        for level in 0..=9 {
            let options = BuildOptions::level(level).unwrap();
            let plan = Plan::new(&options, 2, &size, 0).unwrap();
            assert_eq!(plan.threads, 2, "level {level}");
            if let Some((_, threads)) = plan.small_tree {
                assert_eq!(threads, 2, "small trees at level {level}");
            }
        }
    }

    /// Would catch: a queue that costs a thread, or does not fit in the limit beside the threads;
    /// threads that write for a build with one thread.
    #[test]
    fn the_queue_of_a_spool_takes_what_threads_leave() {
        let size = TreeSize {
            entry_count: 1000,
            depth: 5,
            xattr_set_count: 0,
            xattrs_len: 0,
        };
        let mut queue_lens = Vec::new();
        for (level, limit_mib) in [(1, 800), (5, 900), (7, 1 << 10), (7, 6 << 10), (9, 4 << 10)] {
            for threads in [1, 2, 16] {
                let plan = |limit_len| {
                    let options = BuildOptions {
                        threads,
                        limit_len,
                        ..BuildOptions::level(level).unwrap()
                    };
                    Plan::new(&options, 1, &size, 0).unwrap()
                };
                let limit_len = limit_mib << 20;
                let whole = plan(limit_len);
                let queue_len = whole.spool_writers.queue_len_max;
                assert_eq!(plan(limit_len - queue_len).threads, whole.threads);
                assert_eq!(queue_len == 0, whole.spool_writers.thread_count == 0);
                assert!(whole.threads > 1 || queue_len == 0);
                assert!(queue_len == 0 || queue_len >= 2 * whole.block_len);
                queue_lens.push(queue_len);
            }
        }
        assert!(queue_lens.contains(&SPOOL_QUEUE_LEN_MAX));
    }

    /// Would catch: an order whose memory the plan omits, or counts together with that of the
    /// blocks, although it is freed before blocks are cut.
    #[test]
    fn the_memory_of_an_order_is_counted() {
        let size = TreeSize {
            entry_count: 10_000_000,
            depth: 10,
            xattr_set_count: 0,
            xattrs_len: 0,
        };
        let plan = |order, memory_len| {
            let options = BuildOptions {
                order,
                memory_len,
                threads: 1,
                ..BuildOptions::default()
            };
            Plan::new(&options, 1, &size, 0)
        };
        let (tight, enough) = (3 << 30, 5 << 30);
        assert!(plan(Order::Path, tight).is_ok());
        for order in [Order::Similarity, Order::Nilsimsa] {
            let error = plan(order.clone(), tight).unwrap_err();
            assert!(error.to_string().contains("need 3"), "{error}");
            let ordered = plan(order, enough).unwrap();
            assert_eq!(ordered, plan(Order::Path, enough).unwrap());
        }
        let paths = vec![vec![b'a'; 1 << 20]; 2000];
        assert!(plan(Order::List(paths.clone().into()), tight).is_err());
        let hot = BuildOptions {
            hot_paths: paths.into(),
            memory_len: tight,
            threads: 1,
            ..BuildOptions::default()
        };
        assert!(Plan::new(&hot, 1, &size, 0).is_err());
    }
}
