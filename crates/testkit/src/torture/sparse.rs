//! Sparse files.

use super::maker::Maker;
use crate::Rng;
use weald_format::{ErrorKind, Result};

/// Holes at the start, in the middle, at the end, everywhere; data away from block borders; zeros
/// that are not a hole.
pub fn make(root: &Maker, rng: &mut Rng) -> Result<()> {
    let (piece, mib) = (rng.bytes(64 << 10), 1 << 20);
    root.pieces("hole-at-start", mib, &[(mib - 65536, &piece)])?;
    root.pieces("hole-at-end", mib, &[(0, &piece)])?;
    root.pieces("hole-in-middle", mib, &[(0, &piece), (mib - 65536, &piece)])?;
    root.pieces("hole-at-both-ends", mib, &[(mib / 2, &piece)])?;
    root.pieces("all-hole", mib, &[])?;
    root.pieces("all-hole-odd", 12_345, &[])?;
    root.pieces("one-byte-hole", 1, &[])?;
    root.pieces(
        "unaligned",
        mib + 17,
        &[(5000, b"short"), (300_001, &piece[..777]), (mib, b"end")],
    )?;
    root.pieces("last-byte", 5 * mib, &[(5 * mib - 1, b"!")])?;
    root.pieces("zeros-not-holes", mib, &[(0, &vec![0; mib as usize])])?;
    root.pieces(
        "zeros-and-hole",
        mib,
        &[(65536, &[0; 65536]), (mib / 2, &piece)],
    )?;
    for (name, step) in [("alternating-4k", 4096_u64), ("alternating-64k", 65536)] {
        let pieces: Vec<(u64, &[u8])> = (0..256)
            .map(|n| (n * 2 * step, &piece[..step as usize]))
            .collect();
        root.pieces(name, 512 * step, &pieces)?;
    }
    Ok(())
}

/// Files of terabytes: up to 4 TiB, or the maximum of the file system.
pub fn make_huge(root: &Maker) -> Result<()> {
    let len_max = longest(root)?;
    root.pieces("all-hole", len_max, &[])?;
    root.pieces(
        "data-in-middle",
        len_max,
        &[(len_max / 2, b"in the middle")],
    )?;
    root.pieces(
        "data-at-end",
        len_max,
        &[(0, b"start"), (len_max - 5, b"ended")],
    )?;
    root.pieces("beyond-32-bits", (1 << 32) + 5, &[(1 << 32, b"12345")])
}

/// Largest power of two, up to 4 TiB, that a file may be long.
fn longest(root: &Maker) -> Result<u64> {
    let mut len = 1 << 42;
    loop {
        match root.pieces("probe", len, &[]) {
            Err(error) if error.kind() == ErrorKind::Full && len > 1 << 34 => len /= 2,
            other => {
                other?;
                root.named(
                    b"probe",
                    "remove",
                    weald_sys::remove_file_at(&root.fd, b"probe"),
                )?;
                return Ok(len);
            }
        }
        root.named(
            b"probe",
            "remove",
            weald_sys::remove_file_at(&root.fd, b"probe"),
        )?;
    }
}
