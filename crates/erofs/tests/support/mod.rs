//! Helpers of the tests of the reader.

use weald_erofs::reader::{FileReader, Inode, Volume};
use weald_format::Result;
use weald_testkit::Rng;

/// The data of `inode`, read in pieces of `piece_len` bytes.
pub fn data(volume: &Volume, inode: &Inode, piece_len: usize) -> Result<Vec<u8>> {
    let mut data = vec![0; inode.size as usize];
    let mut reader = FileReader::new(inode);
    let mut at = 0;
    for piece in data.chunks_mut(piece_len) {
        reader.read_exact_at(volume, at, piece)?;
        at += piece.len() as u64;
    }
    Ok(data)
}

/// A copy of the image `whole` with one to three damaged bytes, each between the start of the
/// superblock and one of `ends`.
pub fn damaged(whole: &[u8], rng: &mut Rng, ends: &[usize]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..1 + rng.below(3) {
        let end = ends[rng.below(ends.len() as u64) as usize];
        let at = 1024 + rng.below(end as u64 - 1024) as usize;
        bytes[at] = match rng.below(3) {
            0 => rng.below(256) as u8,
            1 => bytes[at] ^ 1 << rng.below(8),
            _ => 0xff,
        };
    }
    // Without the checksum of the superblock, other damage is reached.
    bytes[1032] &= !1;
    bytes
}
