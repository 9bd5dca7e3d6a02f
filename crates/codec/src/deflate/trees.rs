//! The Huffman codes that zlib and gzip choose for a block. They have their own way to break ties,
//! to limit code lengths, and to describe the codes. If another encoder chose differently, the
//! recipe keeps its description instead.
//!
//! # Source
//! The behaviour is that of zlib 1.3.1, `trees.c`: `build_tree`, `gen_bitlen`, `scan_tree`,
//! `send_all_trees`.
// indices are symbols of fixed tables
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::bits::{BitWriter, Bits};
use super::parse::{LENGTHS_ORDER, Lengths, codes};
use super::tokens::{DISTANCE_SYMBOLS, END_OF_BLOCK, LITERAL_SYMBOLS, Token, distance_of, len_of};

/// Maximum length of a code for literals, lengths and distances, and of a code for code lengths,
/// bits.
const CODE_LEN_MAX: usize = 15;
const LENGTH_CODE_LEN_MAX: usize = 7;

/// Encoding of a block that zlib chooses.
pub enum Coding {
    /// Stored: the plain bytes.
    Stored,
    /// In the fixed codes.
    Fixed,
    /// In codes of its own, with their description.
    Dynamic(Lengths, Bits),
}

impl Coding {
    /// Chooses the shortest encoding for a block of `tokens` with `plain_len` plain bytes, as
    /// `_tr_flush_block` does.
    pub fn of(tokens: &[Token], plain_len: usize) -> Self {
        let frequencies = Frequencies::of(tokens);
        let mut header = BitWriter::default();
        let lengths = frequencies.describe(&mut header);
        let header = header.into_bits();
        // The three header bits of the block count too.
        let len_of = |bits: u64| bits.saturating_add(3 + 7).wrapping_shr(3);
        let bits = frequencies.coded_bits(&lengths);
        let dynamic_len = len_of(bits.saturating_add(header.count));
        let fixed_len = len_of(frequencies.coded_bits(&Lengths::fixed()));
        if (plain_len as u64).saturating_add(4) <= dynamic_len.min(fixed_len) {
            Self::Stored
        } else if fixed_len <= dynamic_len {
            Self::Fixed
        } else {
            Self::Dynamic(lengths, header)
        }
    }
}

/// Number of occurrences of each symbol in a block.
pub struct Frequencies {
    literals: [u32; LITERAL_SYMBOLS],
    distances: [u32; DISTANCE_SYMBOLS],
}

impl Frequencies {
    /// Counts the symbols of a block of `tokens`, its end included.
    pub fn of(tokens: &[Token]) -> Self {
        let mut found = Self {
            literals: [0; LITERAL_SYMBOLS],
            distances: [0; DISTANCE_SYMBOLS],
        };
        found.literals[END_OF_BLOCK] = 1;
        for token in tokens {
            let (symbol, distance) = token.symbols();
            found.literals[symbol.code] += 1;
            if let Some(distance) = distance {
                found.distances[distance.code] += 1;
            }
        }
        found
    }

    /// Builds the codes and appends their description to `out`.
    pub fn describe(&self, out: &mut BitWriter) -> Lengths {
        let mut lengths = Lengths {
            literals: code_lens(&self.literals, CODE_LEN_MAX),
            distances: code_lens(&self.distances, CODE_LEN_MAX),
        };
        trim(&mut lengths.literals);
        trim(&mut lengths.distances);
        let mut runs = runs_of(&lengths.literals);
        runs.extend(runs_of(&lengths.distances));
        let mut frequencies = [0; LENGTHS_ORDER.len()];
        runs.iter().for_each(|run| frequencies[run.symbol] += 1);
        let order_lens = code_lens(&frequencies, LENGTH_CODE_LEN_MAX);
        let used = |&i: &usize| order_lens[LENGTHS_ORDER[i]] != 0;
        let order_count = (0..LENGTHS_ORDER.len())
            .rev()
            .find(used)
            .unwrap_or(0)
            .max(3)
            + 1;
        out.put(lengths.literals.len() as u32 - 257, 5);
        out.put(lengths.distances.len() as u32 - 1, 5);
        out.put(order_count as u32 - 4, 4);
        for &symbol in &LENGTHS_ORDER[..order_count] {
            out.put(u32::from(order_lens[symbol]), 3);
        }
        let mut table = [(0, 0); LENGTHS_ORDER.len()];
        for (symbol, code, len) in codes(&order_lens).unwrap_or_default() {
            table[symbol] = (u32::from(code), u32::from(len));
        }
        for run in &runs {
            let (code, len) = table[run.symbol];
            out.put(code, len);
            out.put(run.extra, run.extra_count);
        }
        lengths
    }

    /// Number of bits of these symbols in codes of `lengths`, extra bits included.
    pub fn coded_bits(&self, lengths: &Lengths) -> u64 {
        let bits = |counts: &[u32], lens: &[u8], extra: fn(usize) -> u32| -> u64 {
            let each = counts.iter().zip(lens).enumerate();
            each.map(|(symbol, (&count, &len))| {
                u64::from(count) * (u64::from(len) + u64::from(extra(symbol)))
            })
            .sum()
        };
        let len_extra = |symbol| len_of(symbol).map_or(0, |(_, count)| count);
        let distance_extra = |symbol| distance_of(symbol).map_or(0, |(_, count)| count);
        bits(&self.literals, &lengths.literals, len_extra)
            + bits(&self.distances, &lengths.distances, distance_extra)
    }
}

/// Removes the symbols at the end that have no code; keeps the first symbol.
fn trim(lens: &mut Vec<u8>) {
    let end = lens
        .iter()
        .rposition(|&l| l != 0)
        .map_or(1, |last| last + 1);
    lens.truncate(end);
}

/// A symbol of the code for code lengths, with its extra bits.
struct LengthSymbol {
    symbol: usize,
    extra: u32,
    extra_count: u32,
}

impl LengthSymbol {
    fn new(symbol: usize, extra: usize, extra_count: u32) -> Self {
        Self {
            symbol,
            extra: extra as u32,
            extra_count,
        }
    }
}

/// Splits code lengths into runs: each symbol covers as many equal lengths as possible.
fn runs_of(lens: &[u8]) -> Vec<LengthSymbol> {
    let mut runs = Vec::new();
    let mut previous = None;
    let mut at = 0;
    // zlib limits a run by the length that it has just seen.
    let (mut count_max, mut count_min) = limits(previous, lens.first().copied());
    while at < lens.len() {
        let len = lens[at];
        let same = lens[at..].iter().take_while(|&&l| l == len).count();
        let count = same.min(count_max);
        at += count;
        push_runs(&mut runs, len, count, count_min, previous == Some(len));
        previous = Some(len);
        (count_max, count_min) = limits(previous, lens.get(at).copied());
    }
    runs
}

/// Maximum length of a run that begins with `next` after `previous`, and minimum length that is
/// worth a symbol.
fn limits(previous: Option<u8>, next: Option<u8>) -> (usize, usize) {
    match next {
        Some(0) => (138, 3),
        _ if previous == next => (6, 3),
        _ => (7, 4),
    }
}

fn push_runs(
    runs: &mut Vec<LengthSymbol>,
    len: u8,
    count: usize,
    count_min: usize,
    continues: bool,
) {
    let one = || LengthSymbol::new(usize::from(len), 0, 0);
    if count < count_min {
        runs.extend((0..count).map(|_| one()));
    } else if len != 0 {
        let mut remaining = count;
        if !continues {
            runs.push(one());
            remaining -= 1;
        }
        runs.push(LengthSymbol::new(16, remaining - 3, 2));
    } else if count <= 10 {
        runs.push(LengthSymbol::new(17, count - 3, 3));
    } else {
        runs.push(LengthSymbol::new(18, count - 11, 7));
    }
}

/// The Huffman tree under construction. Leaves are symbols; inner nodes follow them.
struct Nodes {
    weights: Vec<u32>,
    depths: Vec<u8>,
    parents: Vec<usize>,
    /// A heap; its root is at index 1.
    heap: Vec<usize>,
    heap_len: usize,
}

impl Nodes {
    fn is_less(&self, a: usize, b: usize) -> bool {
        let (left, right) = (self.weights[a], self.weights[b]);
        left < right || (left == right && self.depths[a] <= self.depths[b])
    }

    /// Moves the node at `at` down to its place in the heap.
    fn sift(&mut self, mut at: usize) {
        let node = self.heap[at];
        let mut child = at * 2;
        while child <= self.heap_len {
            if child < self.heap_len && self.is_less(self.heap[child + 1], self.heap[child]) {
                child += 1;
            }
            if self.is_less(node, self.heap[child]) {
                break;
            }
            self.heap[at] = self.heap[child];
            at = child;
            child *= 2;
        }
        self.heap[at] = node;
    }

    fn pop(&mut self) -> usize {
        let top = self.heap[1];
        self.heap[1] = self.heap[self.heap_len];
        self.heap_len -= 1;
        self.sift(1);
        top
    }
}

/// Computes code lengths for these frequencies: at most `len_max` bits, at least two symbols.
fn code_lens(frequencies: &[u32], len_max: usize) -> Vec<u8> {
    let count = frequencies.len();
    let node_count = count * 2;
    let mut nodes = Nodes {
        weights: frequencies.to_vec(),
        depths: vec![0; node_count],
        parents: vec![0; node_count],
        heap: vec![0; node_count + 1],
        heap_len: 0,
    };
    nodes.weights.resize(node_count, 0);
    let mut last = None;
    for symbol in (0..count).filter(|&s| frequencies[s] != 0) {
        nodes.heap_len += 1;
        nodes.heap[nodes.heap_len] = symbol;
        last = Some(symbol);
    }
    while nodes.heap_len < 2 {
        let symbol = match last {
            Some(symbol) if symbol >= 2 => 0,
            Some(symbol) => symbol + 1,
            None => 0,
        };
        if last.is_none_or(|l| l < 2) {
            last = Some(symbol);
        }
        nodes.heap_len += 1;
        nodes.heap[nodes.heap_len] = symbol;
        nodes.weights[symbol] = 1;
    }
    (1..=nodes.heap_len / 2).rev().for_each(|at| nodes.sift(at));
    // Nodes in the order in which they were merged, lightest first.
    let mut merged = Vec::with_capacity(node_count);
    let mut next = count;
    while nodes.heap_len >= 2 {
        let lighter = nodes.pop();
        let heavier = nodes.heap[1];
        merged.extend([lighter, heavier]);
        nodes.weights[next] = nodes.weights[lighter] + nodes.weights[heavier];
        nodes.depths[next] = nodes.depths[lighter].max(nodes.depths[heavier]) + 1;
        nodes.parents[lighter] = next;
        nodes.parents[heavier] = next;
        nodes.heap[1] = next;
        next += 1;
        nodes.sift(1);
    }
    merged.push(nodes.heap[1]);
    limited_lens(&nodes.parents, &merged, count, len_max)
}

/// Depths of the leaves. Leaves below `len_max` move up, and others move down to make room.
fn limited_lens(parents: &[usize], merged: &[usize], count: usize, len_max: usize) -> Vec<u8> {
    let mut lens = vec![0u8; parents.len()];
    let mut counts = vec![0usize; len_max + 1];
    let mut overflow = 0isize;
    // Downwards from the root, which was merged last.
    for &node in merged.iter().rev().skip(1) {
        let len = usize::from(lens[parents[node]]) + 1;
        if len > len_max {
            overflow += 1;
        }
        lens[node] = len.min(len_max) as u8;
        if node < count {
            counts[len.min(len_max)] += 1;
        }
    }
    if overflow > 0 {
        while overflow > 0 {
            let mut len = len_max - 1;
            while counts[len] == 0 {
                len -= 1;
            }
            counts[len] -= 1;
            counts[len + 1] += 2;
            counts[len_max] -= 1;
            overflow -= 2;
        }
        let mut leaves = merged.iter().filter(|&&node| node < count);
        for len in (1..=len_max).rev() {
            for &leaf in leaves.by_ref().take(counts[len]) {
                lens[leaf] = len as u8;
            }
        }
    }
    lens.truncate(count);
    lens
}
