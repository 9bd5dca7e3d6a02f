//! The digest by which fs-verity of the Linux kernel names a file, computed while its bytes pass:
//! SHA-256, blocks of 4096 bytes, no salt.
//!
//! The digest is the SHA-256 of a descriptor of 256 bytes, which has the file's length and the
//! root of a Merkle tree over its blocks. Memory is one block for each level of the tree, 36 KiB
//! for the largest file.
//!
//! Source: `Documentation/filesystems/fsverity.rst` of Linux.

use sha2::{Digest as _, Sha256};

/// Bytes of a digest.
pub const DIGEST_LEN: usize = 32;

/// Bytes of a block of the Merkle tree and of the data below it.
pub const MERKLE_BLOCK_LEN: usize = 4096;

const BLOCK_LEN_U64: u64 = MERKLE_BLOCK_LEN as u64;

/// Digests in a block.
const DIGESTS_PER_BLOCK: u64 = (MERKLE_BLOCK_LEN / DIGEST_LEN) as u64;

/// Bytes of the descriptor whose digest names the file.
const DESCRIPTOR_LEN: usize = 256;

const ZEROS: [u8; MERKLE_BLOCK_LEN] = [0; MERKLE_BLOCK_LEN];

/// Computes the digest of a file from its bytes in order.
///
/// A block is hashed when a byte beyond it arrives, because the only block of a level is its root.
#[derive(Debug, Default, Clone)]
pub struct FsVerity {
    /// Bytes of the data block that is being filled.
    data: Vec<u8>,
    /// The block of each level that is being filled; the lowest level first.
    levels: Vec<Vec<u8>>,
    len: u64,
}

impl FsVerity {
    /// A file without bytes so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next bytes of the file.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.len = self.len.saturating_add(bytes.len() as u64);
        while !bytes.is_empty() {
            if self.data.is_empty() && bytes.len() > MERKLE_BLOCK_LEN {
                let (block, rest) = bytes.split_at(MERKLE_BLOCK_LEN);
                push(&mut self.levels, 0, &sha256(block));
                bytes = rest;
                continue;
            }
            self.flush_full_block();
            let free_len = MERKLE_BLOCK_LEN.saturating_sub(self.data.len());
            let (fits, rest) = bytes.split_at(free_len.min(bytes.len()));
            self.data.extend_from_slice(fits);
            bytes = rest;
        }
    }

    /// Adds `len` zero bytes, as a hole has them.
    ///
    /// # Cost
    /// O(log `len`): whole subtrees of zeros have the same digests.
    pub fn update_zeros(&mut self, len: u64) {
        let free_len = MERKLE_BLOCK_LEN.saturating_sub(self.data.len()) as u64;
        let head = len.min(free_len);
        self.update(ZEROS.get(..head as usize).unwrap_or_default());
        let rest = len.saturating_sub(head);
        if rest == 0 {
            return;
        }
        self.flush_full_block();
        let block_count = rest.saturating_sub(1) / BLOCK_LEN_U64;
        push_equal(&mut self.levels, sha256(&ZEROS), block_count);
        let whole = block_count.saturating_mul(BLOCK_LEN_U64);
        self.len = self.len.saturating_add(whole);
        let tail = rest.saturating_sub(whole);
        self.update(ZEROS.get(..tail as usize).unwrap_or_default());
    }

    /// Number of bytes so far.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether no byte was added.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the digest of the file.
    pub fn finish(self) -> [u8; DIGEST_LEN] {
        let mut descriptor = [0; DESCRIPTOR_LEN];
        let mut root = [0; DIGEST_LEN];
        if self.len > 0 {
            root = root_of(self.data, self.levels);
        }
        // Version 1, SHA-256, blocks of 2^12 bytes, no salt, four bytes reserved, length, root.
        let fields: [&[u8]; 3] = [
            &[1, 1, 12, 0, 0, 0, 0, 0],
            &self.len.to_le_bytes(),
            root.as_slice(),
        ];
        let bytes = fields.concat();
        for (to, from) in descriptor.iter_mut().zip(bytes) {
            *to = from;
        }
        sha256(&descriptor)
    }

    fn flush_full_block(&mut self) {
        if self.data.len() == MERKLE_BLOCK_LEN {
            push(&mut self.levels, 0, &sha256(&self.data));
            self.data.clear();
        }
    }
}

/// Returns the digest of a file with these bytes.
pub fn fsverity_digest(bytes: &[u8]) -> [u8; DIGEST_LEN] {
    let mut state = FsVerity::new();
    state.update(bytes);
    state.finish()
}

/// Adds a digest to a level; a full block goes to the level above before.
fn push(levels: &mut Vec<Vec<u8>>, level: usize, digest: &[u8; DIGEST_LEN]) {
    let Some(block) = levels.get_mut(level) else {
        // Levels appear one by one from below.
        levels.push(digest.to_vec());
        return;
    };
    if block.len() < MERKLE_BLOCK_LEN {
        block.extend_from_slice(digest);
        return;
    }
    let full = sha256(block);
    block.clear();
    block.extend_from_slice(digest);
    push(levels, level.saturating_add(1), &full);
}

/// Adds `count` equal digests to the lowest level.
fn push_equal(levels: &mut Vec<Vec<u8>>, mut digest: [u8; DIGEST_LEN], mut count: u64) {
    let mut level = 0;
    while count > 0 {
        let filled = levels
            .get(level)
            .map_or(0, |block| block.len() / DIGEST_LEN);
        let free_len = DIGESTS_PER_BLOCK.saturating_sub(filled as u64);
        for _ in 0..free_len.min(count) {
            push(levels, level, &digest);
        }
        count = count.saturating_sub(free_len);
        if count == 0 {
            return;
        }
        // The block of this level is full: one digest more moves it up. Whole blocks of equal
        // digests that follow it are equal digests of the level above.
        let block_count = count.saturating_sub(1) / DIGESTS_PER_BLOCK;
        let rest = count.saturating_sub(block_count.saturating_mul(DIGESTS_PER_BLOCK));
        push(levels, level, &digest);
        let mut last = vec![];
        for _ in 0..rest {
            last.extend_from_slice(&digest);
        }
        let full: Vec<u8> = (0..DIGESTS_PER_BLOCK).flat_map(|_| digest).collect();
        digest = sha256(&full);
        if let Some(block) = levels.get_mut(level) {
            *block = last;
        }
        count = block_count;
        level = level.saturating_add(1);
    }
}

/// The root of the tree whose blocks on the right edge are not full.
fn root_of(data: Vec<u8>, mut levels: Vec<Vec<u8>>) -> [u8; DIGEST_LEN] {
    let mut digest = sha256_of_block(data);
    let mut level = 0;
    while level < levels.len() {
        push(&mut levels, level, &digest);
        let block = levels.get_mut(level).map(std::mem::take);
        digest = sha256_of_block(block.unwrap_or_default());
        level = level.saturating_add(1);
    }
    digest
}

/// Digest of a block with zeros behind its bytes.
fn sha256_of_block(mut block: Vec<u8>) -> [u8; DIGEST_LEN] {
    block.resize(MERKLE_BLOCK_LEN, 0);
    sha256(&block)
}

fn sha256(bytes: &[u8]) -> [u8; DIGEST_LEN] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(digest: [u8; DIGEST_LEN]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The digest of the crate `composefs`.
    fn oracle(bytes: &[u8]) -> String {
        use composefs::fsverity::{FsVerityHashValue, Sha256HashValue, compute_verity};
        compute_verity::<Sha256HashValue>(bytes).to_hex()
    }

    /// Bytes that differ from block to block.
    fn bytes(len: usize) -> Vec<u8> {
        let word = |at: usize| (at as u32).wrapping_mul(0x9e37_79b9).to_le_bytes();
        (0..len.div_ceil(4)).flat_map(word).take(len).collect()
    }

    /// Would catch: a root of the empty file that is the digest of a block of zeros, a tree of one
    /// block that gets a level above it, and blocks of a level that are hashed too early.
    #[test]
    fn equals_another_implementation_at_each_edge() {
        let empty = "3d248ca542a24fc62d1c43b916eae5016878e2533c88238480b26128a1f1af95";
        assert_eq!(hex(fsverity_digest(b"")), empty);
        let level = MERKLE_BLOCK_LEN * DIGESTS_PER_BLOCK as usize;
        for edge in [0, MERKLE_BLOCK_LEN, 2 * MERKLE_BLOCK_LEN, level, 2 * level] {
            for len in edge.saturating_sub(1)..=edge + 1 {
                let bytes = bytes(len);
                assert_eq!(hex(fsverity_digest(&bytes)), oracle(&bytes), "{len} bytes");
            }
        }
        let three_levels = bytes(level * DIGESTS_PER_BLOCK as usize + 1);
        assert_eq!(hex(fsverity_digest(&three_levels)), oracle(&three_levels));
    }

    /// Would catch: zeros that are added faster than their digests are right, at every fill of
    /// every level.
    #[test]
    fn zeros_equal_bytes() {
        let level = MERKLE_BLOCK_LEN * DIGESTS_PER_BLOCK as usize;
        let lens = [
            0,
            1,
            4095,
            4096,
            4097,
            level - 1,
            level,
            level + 1,
            3 * level + 5,
        ];
        for before in lens {
            for zeros in lens {
                for after in [0, 1, 5000] {
                    let mut state = FsVerity::new();
                    let mut all = bytes(before);
                    state.update(&all);
                    state.update_zeros(zeros as u64);
                    all.resize(before + zeros, 0);
                    state.update(&bytes(after));
                    all.extend(bytes(after));
                    assert_eq!(state.len(), all.len() as u64);
                    let parts = (before, zeros, after);
                    assert_eq!(state.finish(), fsverity_digest(&all), "{parts:?}");
                }
            }
        }
        let mut hole = FsVerity::new();
        hole.update_zeros(i64::MAX as u64);
        assert_eq!(hole.len(), i64::MAX as u64);
        hole.finish();
    }

    proptest! {
        /// Would catch: a digest that depends on how the bytes arrive.
        #[test]
        fn pieces_do_not_matter(lens in prop::collection::vec(0_usize..10_000, 0..20)) {
            let all = bytes(lens.iter().sum());
            let mut state = FsVerity::new();
            let mut at = 0;
            for len in lens {
                state.update(&all[at..at + len]);
                at += len;
            }
            prop_assert_eq!(state.finish(), fsverity_digest(&all));
        }
    }
}
