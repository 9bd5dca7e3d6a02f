//! File contents: lengths around all limits, and data that is easy, hard, or repeated at odd
//! positions.

use super::maker::Maker;
use crate::Rng;
use weald_format::Result;

/// Lengths around the limits of pages, frames and blocks.
pub fn make_sizes(root: &Maker, rng: &mut Rng) -> Result<()> {
    let mut sizes = vec![0, 1, 2, 3, 7, 63, 64, 65, 511, 512, 513];
    for border in [4 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20] {
        sizes.extend([border - 1, border, border + 1]);
    }
    sizes
        .iter()
        .try_for_each(|&size| root.file(format!("{size}"), &rng.bytes(size)))
}

/// Repeats and patterns.
pub fn make_content(root: &Maker, rng: &mut Rng) -> Result<()> {
    let same = rng.bytes(100_000);
    let identical = root.dir("identical")?;
    (0..20).try_for_each(|n| identical.file(format!("{n}"), &same))?;
    let prefix = root.dir("same-size")?;
    for number in 0..20_u8 {
        // Equal length, different only in the last byte: these look shareable but must not be
        // shared.
        prefix.file(format!("{number}"), &[&same[..50_000], &[number]].concat())?;
    }
    make_sharing(&root.dir("sharing")?, rng)?;
    make_patterns(&root.dir("patterns")?, rng)
}

/// Versions of one file, with parts inserted, removed, moved and changed at odd positions.
fn make_sharing(root: &Maker, rng: &mut Rng) -> Result<()> {
    let mut version = rng.bytes(700_001);
    for number in 0..12 {
        root.file(format!("version{number}"), &version)?;
        let at = rng.below(version.len() as u64 - 70_000) as usize;
        let piece = rng.bytes(1 + rng.clone().below(3000) as usize);
        match number % 4 {
            0 => drop(version.splice(at..at, piece)),
            1 => drop(version.drain(at..at + piece.len())),
            2 => version[at] ^= 1,
            _ => version.rotate_left(at),
        }
    }
    let half = version.len() / 2;
    root.file("first-half", &version[..half])?;
    root.file("second-half", &version[half..])?;
    root.file("twice", &[version.as_slice(), &version].concat())
}

/// Data of every kind: incompressible, constant, periodic, text, and mixtures.
fn make_patterns(root: &Maker, rng: &mut Rng) -> Result<()> {
    root.file("random-8m", &rng.bytes(8 << 20))?;
    for byte in [0, 1, 0xFF] {
        root.file(format!("constant-{byte}"), &vec![byte; (8 << 20) + 3])?;
    }
    for period in [1, 2, 3, 7, 31, 100, 4095, 4097, 65_537] {
        let unit = rng.bytes(period);
        root.file(
            format!("period-{period}"),
            &unit
                .iter()
                .cycle()
                .take(600_000)
                .copied()
                .collect::<Vec<_>>(),
        )?;
    }
    let words: [&str; 8] = [
        "weald ", "forest ", "block ", "digest ", "of ", "the ", "tree\n", "image ",
    ];
    let text: String = (0..200_000).map(|_| *rng.pick(&words)).collect();
    root.file("text", text.as_bytes())?;
    let mixed: Vec<u8> = (0..64)
        .flat_map(|n| {
            if n % 2 == 0 {
                rng.bytes(16 << 10)
            } else {
                vec![n; 16 << 10]
            }
        })
        .collect();
    root.file("mixed", &mixed)
}
