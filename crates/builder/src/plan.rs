//! The memory plan: who gets how much of `--memory`. A budget that cannot be kept is refused, not
//! overrun.

use crate::cluster;
use crate::compress::Compressors;
use crate::contents::CATEGORIES;
use crate::dictionary;
use crate::filter::DIR_RULES_LEN_MAX;
use crate::metadata;
use crate::options::{BuildOptions, Categories};
use crate::order;
use crate::read::WHOLE_LEN_MAX;
use crate::recode;
use crate::scan::ScannedTree;
use crate::watch::Watch;
use weald_codec::CodecSpec;
use weald_format::{Error, Result};

/// Code, stacks, allocator slack, metadata pages and their encoders.
const FIXED_LEN: u64 = 48 << 20;
/// What one entry costs from scan to end: 48 + name (about 24) in the scan, twice the 48 while it
/// is put in order, 44 for digest and table of a content of its own, 4 for its number.
const ENTRY_LEN: u64 = 170;

/// What one open directory costs while the tree is written: two hashers, a few vectors.
const OPEN_DIR_LEN: u64 = 4608;

/// What one distinct xattr set costs while the tree is written: its digest and number in a table.
const XATTR_SET_LEN: u64 = 96;

/// Files that are read ahead of the segmenter.
const READ_AHEAD_LEN: u64 = WHOLE_LEN_MAX * 3;

/// Into how many parts the window is divided for each stream, of which it gets one: half of it is
/// for ordinary data. Nothing is looked up in the stream that recipes make.
pub const WINDOW_SHARES: [u64; CATEGORIES.len()] = [2, 4, 8, u64::MAX, 8];

/// Longer archives are streamed, whatever the budget.
const ARCHIVE_LEN_MAX: u64 = 64 << 20;

/// The tree to be written, as far as it costs memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeSize {
    /// Entries.
    pub entry_count: u64,
    /// Most directories in each other.
    pub depth: u64,
    /// Distinct xattr sets.
    pub xattr_set_count: u64,
    /// Bytes that they take in memory.
    pub xattrs_len: u64,
}

impl TreeSize {
    /// The size of a scanned tree.
    pub fn of(tree: &ScannedTree) -> Self {
        Self {
            entry_count: u64::from(tree.entry_count()),
            depth: tree.depth(),
            xattr_set_count: tree.xattr_sets().len() as u64,
            xattrs_len: tree.xattrs_memory_len(),
        }
    }

    /// Bytes that it takes from scan to end.
    fn memory_len(&self) -> u64 {
        self.entry_count * ENTRY_LEN
            + self.depth * OPEN_DIR_LEN
            + self.xattr_set_count * XATTR_SET_LEN
            + self.xattrs_len
    }
}

/// What the stages may use, bytes unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Compressor threads.
    pub threads: usize,
    /// Raw bytes per block.
    pub block_len: u64,
    /// Codec of ordinary blocks.
    pub codec: CodecSpec,
    /// Codec of blocks of x86 code.
    pub x86_codec: CodecSpec,
    /// Codec of blocks of ARM64 code.
    pub arm64_codec: CodecSpec,
    /// Shortest repeat.
    pub match_len_min: u32,
    /// Pieces that are put beside those they resemble; 0: none are.
    pub cluster_len: u64,
    /// Longest dictionary of ordinary blocks; 0 where their codec has none.
    pub dictionary_len: u64,
    /// What is told apart.
    pub categories: Categories,
    /// Table of samples.
    pub table_len: u64,
    /// Blocks kept in memory to compare with.
    pub window_len: u64,
    /// Files read ahead.
    pub read_ahead_len: u64,
    /// Archives up to this length are read whole, to be taken apart.
    pub archive_len_max: u64,
    /// The budget that the other lengths follow from.
    pub memory_len: u64,
    /// The limit: `memory_len`, or more where the options need more and the limit may rise.
    pub limit_len: u64,
}

/// How many threads, of at most `wanted`, fit the limit of `options` when `need` says how many
/// bytes so many take; and the limit, which rises from `memory_len` as far as `memory_len_max`
/// where not even one thread fits.
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

/// The error of options that need `least` MiB at least. `advice` says what would fit instead.
pub fn too_little(options_len: u64, len_max: u64, least: u64, advice: &str) -> Error {
    let what = match len_max > options_len {
        true => format!(
            "memory: these options need {least} MiB at least, more than the {} MiB that half of \
             this machine has: use -m {least}M if it may take so much{advice}",
            len_max >> 20
        ),
        false => format!(
            "memory: these options need {least} MiB at least, and -m limits them to {} MiB: use \
             -m {least}M{advice}",
            options_len >> 20
        ),
    };
    Error::limit(what)
}

impl Plan {
    /// Shares out `options.memory_len` for a tree of `size` on `cpu_count` CPUs; `prior_len` bytes
    /// go to an image that is appended to.
    ///
    /// # Errors
    /// `Limit` where even the smallest plan needs more; it says how much.
    pub fn new(
        options: &BuildOptions,
        cpu_count: usize,
        size: &TreeSize,
        prior_len: u64,
    ) -> Result<Self> {
        let wanted = if options.threads == 0 {
            cpu_count
        } else {
            options.threads
        };
        let fixed = FIXED_LEN + size.memory_len() + prior_len;
        let need = |options: &BuildOptions, threads| {
            // Files are put in order before blocks are cut, and rules of directories are read
            // before that.
            let order_len = order::memory_len(options, size.entry_count, threads);
            fixed
                + blocks_need(options, threads)
                    .max(order_len)
                    .max(rules_len(options))
        };
        // Fewer threads need less; the bytes of the image do not depend on how many there are, nor
        // on the limit: what decides about them follows from `memory_len`.
        let of_threads = |threads| need(options, threads);
        let (len, len_max) = (options.memory_len, options.memory_len_max);
        let Some((threads, limit_len)) = fit_threads(len, len_max, wanted as u64, &of_threads)
        else {
            let least = least_mib(options, &|options| need(options, 1));
            let advice = smaller_blocks(options, &|options| need(options, 1));
            return Err(too_little(len, len_max, least, &advice));
        };
        Ok(Self {
            threads: threads as usize,
            block_len: options.block_len,
            codec: options.codec,
            x86_codec: options.x86_codec.unwrap_or(options.codec),
            arm64_codec: options.arm64_codec.unwrap_or(options.codec),
            match_len_min: options.match_len_min,
            cluster_len: options.cluster_len,
            dictionary_len: dictionary_len(options),
            categories: options.categories,
            table_len: table_len(options),
            window_len: window_len(options),
            read_ahead_len: READ_AHEAD_LEN,
            archive_len_max: archive_len_max(options),
            memory_len: options.memory_len,
            limit_len,
        })
    }

    /// Tells `watch` if the limit is higher than the budget.
    pub fn tell(&self, watch: &dyn Watch) {
        if self.limit_len > self.memory_len {
            watch.memory_raised(self.memory_len, self.limit_len);
        }
    }

    /// Threads that may encode the metadata of a tree of `size`, now that blocks need no memory any
    /// more, while `held_len` bytes are somebody else's. One where memory is short: it is counted
    /// with the rest.
    pub fn metadata_threads(&self, size: &TreeSize, held_len: u64) -> usize {
        let used = FIXED_LEN + size.memory_len() + held_len;
        let fitting = self.limit_len.saturating_sub(used) / metadata::THREAD_LEN;
        self.threads.min(fitting as usize).max(1)
    }

    /// Whether the tree of a stream fits, now that its contents have passed and blocks need no
    /// memory any more. `source_len` bytes are the source's own.
    ///
    /// # Errors
    /// `Limit`; it says how much is needed.
    pub fn check_tree(
        options: &BuildOptions,
        size: &TreeSize,
        content_count: u64,
        source_len: u64,
    ) -> Result<()> {
        let need = FIXED_LEN + size.memory_len() + content_count * CONTENT_LEN + source_len;
        let limit = options.memory_len.max(options.memory_len_max);
        match need <= limit {
            true => Ok(()),
            false => {
                let (least, have) = (need.div_ceil(1 << 20), limit >> 20);
                let what = format!(
                    "memory: this tree needs {least} MiB, and the limit is {have} MiB: use -m \
                     {least}M"
                );
                Err(Error::limit(what))
            }
        }
    }
}

/// What a content costs once it is stored: its digest, and its place in a table by digest.
pub const CONTENT_LEN: u64 = 44;

/// Bytes that cutting and compressing blocks with `threads` compressors takes.
fn blocks_need(options: &BuildOptions, threads: u64) -> u64 {
    let blocks = Compressors::in_flight_max(threads) * options.block_len * 2;
    let packing = threads * context_len(options)
        + threads * recode::memory_len(&options.categories)
        + recode::shared_memory_len(&options.categories)
        + blocks
        + minimum_shared(options)
        + shared_dictionary_len(options)
        + cluster::memory_len(options.memory_len, options.block_len, options.cluster_len);
    // The dictionary is learned before anything is packed.
    let learning = match dictionary_len(options) {
        0 => 0,
        _ => dictionary::TRAINING_LEN,
    };
    packing.max(learning)
}

/// Rules of the directories that are being read.
fn rules_len(options: &BuildOptions) -> u64 {
    match options.filter.asks_dirs() {
        true => DIR_RULES_LEN_MAX,
        false => 0,
    }
}

fn dictionary_len(options: &BuildOptions) -> u64 {
    match options.codec.dictionary_level() {
        Some(_) => options.dictionary_len,
        None => 0,
    }
}

/// The dictionaries: their bytes, and prepared for decoders.
fn shared_dictionary_len(options: &BuildOptions) -> u64 {
    // An image that is appended to may have one of each stream.
    3 * 3 * dictionary_len(options)
}

/// A thread has one encoder at a time.
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

/// The smallest budget that would do, in MiB. Some shares grow with the budget, by less than a
/// quarter of it, so asking again and again comes to an end.
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

/// The largest blocks that would fit the budget, as words that go on behind "use -m SIZE".
fn smaller_blocks(options: &BuildOptions, need: &dyn Fn(&BuildOptions) -> u64) -> String {
    let mut smaller = options.clone();
    let limit = options.memory_len.max(options.memory_len_max);
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

/// Table and window decide which repeats are found, so they follow from the options alone, never
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

/// Two archives can be in memory, so that they get a sixteenth of the budget: more would cost
/// compressors.
fn archive_len_max(options: &BuildOptions) -> u64 {
    match options.categories.takes_apart() {
        true => (options.memory_len / 32).clamp(WHOLE_LEN_MAX, ARCHIVE_LEN_MAX),
        false => WHOLE_LEN_MAX,
    }
}

fn minimum_shared(options: &BuildOptions) -> u64 {
    // Read-ahead, which a single archive may exceed, one file more in the segmenter's hands, and
    // the open block of each of four streams.
    let archive_len = archive_len_max(options);
    let files_len = READ_AHEAD_LEN.max(archive_len) + archive_len;
    // Files of samples and of pictures bring what they are made of, which is smaller than they are.
    // Long samples are streamed, and longer files are not looked through for pictures.
    let categories = &options.categories;
    let packed_len = match (categories.pcm || categories.fits, categories.jpeg) {
        (_, true) => READ_AHEAD_LEN + recode::PICTURES_LEN_MAX as u64,
        (true, false) => READ_AHEAD_LEN + WHOLE_LEN_MAX,
        (false, false) => 0,
    };
    table_len(options) + histories_len(options) + files_len + packed_len
}

/// Blocks to compare with, at least one of each stream however small its share is, and the open
/// block of each.
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

    /// Would catch: a level that has room for one thread only in the memory that it comes with.
    #[test]
    fn every_level_has_two_threads_where_there_are_two_cores() {
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
        }
    }

    /// Would catch: an order whose memory nobody counts, or that is counted although it is given
    /// back before blocks are cut.
    #[test]
    fn what_an_order_needs_is_counted() {
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
