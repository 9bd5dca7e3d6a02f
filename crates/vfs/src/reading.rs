//! The cost of reading: how many bytes a small read, a file or a directory decodes, starting with
//! an empty cache.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use weald_format::{ContentId, FileKind, InodeNo, ROOT_INODE, Result};
use weald_image::{DecodeCost, Image};

/// Bytes of a small read.
pub const SMALL_READ_LEN: u64 = 4096;
/// Most small reads, files and directories that are sampled. The samples are evenly spaced, so that
/// the same image gives the same figures.
const SAMPLES_MAX: u64 = 10_000;
/// Most files of one directory that are read.
const DIR_FILES_MAX: usize = 100_000;

/// Distribution of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spread {
    /// Number of samples.
    pub count: u64,
    /// Mean.
    pub mean: u64,
    /// Median: half of the samples are at most this.
    pub median: u64,
    /// 99th percentile: 99 of 100 samples are at most this.
    pub percentile_99: u64,
    /// Largest sample.
    pub max: u64,
}

impl Spread {
    fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let count = values.len() as u64;
        let at = |share: u64| {
            let index = count.saturating_sub(1).saturating_mul(share) / 100;
            values.get(index as usize).copied().unwrap_or(0)
        };
        let sum = values
            .iter()
            .fold(0u128, |sum, &v| sum.saturating_add(u128::from(v)));
        let mean = sum.checked_div(u128::from(count)).unwrap_or(0);
        Self {
            count,
            mean: u64::try_from(mean).unwrap_or(u64::MAX),
            median: at(50),
            percentile_99: at(99),
            max: at(100),
        }
    }
}

/// Bytes that reads decode. The output of a recipe counts besides its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadingCost {
    /// For [`SMALL_READ_LEN`] bytes at an aligned offset anywhere in the contents.
    pub small_read: Spread,
    /// For a whole content.
    pub file: Spread,
    /// For all files directly in a directory that has files.
    pub directory: Spread,
}

/// Computes how many bytes reads of `image` decode.
///
/// # Errors
/// `Io`, `Corrupt`.
/// # Cost
/// Reads the index and extents of the samples; decodes no data. Memory is proportional to the
/// largest sampled directory.
pub fn reading_cost(image: &Image) -> Result<ReadingCost> {
    let mut cost = DecodeCost::default();
    Ok(ReadingCost {
        small_read: small_reads(image, &mut cost)?,
        file: files(image, &mut cost)?,
        directory: directories(image, &mut cost)?,
    })
}

/// Numbers below `end`, evenly spaced, [`SAMPLES_MAX`] at most.
fn samples(end: u64) -> impl Iterator<Item = u64> {
    let count = end.min(SAMPLES_MAX);
    let sample = move |n: u64| {
        let scaled = u128::from(n).saturating_mul(u128::from(end));
        scaled.checked_div(u128::from(count)).unwrap_or(0) as u64
    };
    (0..count).map(sample)
}

fn small_reads(image: &Image, cost: &mut DecodeCost) -> Result<Spread> {
    let mut lens = Vec::new();
    for at in samples(image.summary().content_len) {
        let Some((id, offset)) = image.content_at(at)? else {
            continue;
        };
        let start = offset & !(SMALL_READ_LEN - 1);
        cost.clear();
        image.add_decode_cost(id, start..start.saturating_add(SMALL_READ_LEN), cost)?;
        lens.push(cost.decoded_len());
    }
    Ok(Spread::of(lens))
}

fn files(image: &Image, cost: &mut DecodeCost) -> Result<Spread> {
    let mut lens = Vec::new();
    for id in samples(image.summary().content_count) {
        cost.clear();
        image.add_decode_cost(ContentId(id), 0..u64::MAX, cost)?;
        lens.push(cost.decoded_len());
    }
    Ok(Spread::of(lens))
}

fn directories(image: &Image, cost: &mut DecodeCost) -> Result<Spread> {
    // Inode numbers are dense, so that evenly spaced numbers sample the names, and with them the
    // directories that hold them.
    let mut dirs = BTreeSet::new();
    for no in samples(image.summary().name_count) {
        dirs.insert(image.parent(InodeNo(ROOT_INODE.0.saturating_add(no)))?);
    }
    let mut lens = Vec::new();
    for dir in dirs {
        let mut contents = BTreeSet::new();
        image.read_dir(dir, 0, &mut |_, _, inode| {
            if let (FileKind::Regular, Some(content)) = (inode.kind, inode.content) {
                contents.insert(content);
            }
            if contents.len() < DIR_FILES_MAX {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        if contents.is_empty() {
            continue;
        }
        cost.clear();
        for id in contents {
            image.add_decode_cost(id, 0..u64::MAX, cost)?;
        }
        lens.push(cost.decoded_len());
    }
    Ok(Spread::of(lens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_and_samples() {
        assert_eq!(Spread::of(Vec::new()), Spread::default());
        let spread = Spread::of((1..=100).rev().collect());
        assert_eq!((spread.count, spread.mean, spread.median), (100, 50, 50));
        assert_eq!((spread.percentile_99, spread.max), (99, 100));
        assert_eq!(samples(0).count(), 0);
        assert!(samples(3).eq(0..3));
        let many: Vec<u64> = samples(u64::MAX).collect();
        assert_eq!(many.len() as u64, SAMPLES_MAX);
        assert!(many.is_sorted_by(|a, b| a < b));
    }
}
