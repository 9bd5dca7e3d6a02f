//! Images with some of the generations of another: each is packed anew, one after the other, behind
//! the ones before.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use weald_builder::{BuildOptions, Observer, Report, build_from_image};
use weald_image::{Generation, Image};
use weald_io::{OutputFile, TargetKind};

/// Bytes that are copied at a time.
const PIECE_LEN: usize = 1 << 20;

/// The generations to keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// Every one.
    All,
    /// So many of the newest.
    Last(u64),
    /// These numbers and ranges of numbers, both ends included.
    Numbers(Vec<(u64, u64)>),
}

impl FromStr for Kept {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}': expected all, last, last:3 or a list such as 1,4-7");
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0_u64);
        if text == "all" {
            return Ok(Self::All);
        }
        if text == "last" {
            return Ok(Self::Last(1));
        }
        if let Some(count) = text.strip_prefix("last:") {
            return number(count).map(Self::Last).ok_or_else(wrong);
        }
        let ranges = text.split(',').map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range = number(first).zip(number(last));
            range
                .filter(|(first, last)| first <= last)
                .ok_or_else(wrong)
        });
        Ok(Self::Numbers(ranges.collect::<Result<_, _>>()?))
    }
}

impl Kept {
    /// The numbers of the generations to keep out of `all`, ascending.
    ///
    /// # Errors
    /// If one that is named does not exist.
    pub fn numbers(&self, all: &[Generation]) -> Result<Vec<u64>> {
        let mut numbers: Vec<u64> = all.iter().map(|generation| generation.number).collect();
        numbers.sort_unstable();
        let count = numbers.len();
        match self {
            Self::All => {}
            Self::Last(kept) => {
                let kept = usize::try_from(*kept).unwrap_or(usize::MAX);
                drop(numbers.drain(..count.saturating_sub(kept)));
            }
            Self::Numbers(ranges) => {
                for (first, last) in ranges {
                    for end in [first, last] {
                        if !numbers.contains(end) {
                            bail!("there is no generation {end}: the image has 1 to {count}");
                        }
                    }
                }
                let is_kept = |number: &u64| {
                    let mut ranges = ranges.iter();
                    ranges.any(|(first, last)| (first..=last).contains(&number))
                };
                numbers.retain(is_kept);
            }
        }
        Ok(numbers)
    }
}

/// Writes an image with the generations `numbers` of another, which `open` opens, to `target`. They
/// get new numbers, from 1, and keep their labels; that of `options` is for the last one. Returns
/// the report about the last one, with the problems of all.
///
/// # Errors
/// As [`build_from_image`]. The target is unchanged then.
/// # Cost
/// Reads and packs every generation; space for two of the new images beside the target.
pub fn write_kept(
    numbers: &[u64],
    open: &dyn Fn(u64) -> Result<Image>,
    (target, overwrite): (&Path, bool),
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    if target == Path::new("-") {
        bail!("generations are appended to a file, which a pipe is not: name a file");
    }
    if !overwrite {
        weald_io::refuse_existing(target)?;
    }
    let before = state(target);
    let parent = target.parent().filter(|dir| !dir.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let dir = tempfile::Builder::new()
        .prefix(".weald-")
        .tempdir_in(parent);
    let dir = dir.with_context(|| parent.display().to_string())?;
    let unfinished = dir.path().join("image");
    let (mut last, mut problem_count) = (None, 0);
    for number in numbers {
        let image = Arc::new(open(*number)?);
        let mut options = options.clone();
        if options.label.is_none() || numbers.last() != Some(number) {
            options.label = Some(image.directory().label.clone());
        }
        options.append = last.is_some();
        options.allow_removal = true;
        keep_times_of(&image, &mut options)?;
        let built = build_from_image(&image, &unfinished, false, &options, observer);
        let report = built.with_context(|| format!("generation {number}"))?;
        problem_count += report.problem_count;
        last = Some(report);
    }
    let Some(mut report) = last else {
        bail!("no generation is left");
    };
    report.problem_count = problem_count;
    if state(target) != before {
        bail!(
            "{}: another command changed it meanwhile; it stays as it is",
            target.display()
        );
    }
    copy(&unfinished, target, overwrite)?;
    Ok(report)
}

/// Keeps each kind of time that the image has; if one entry has it, all have it.
pub fn keep_times_of(image: &Image, options: &mut BuildOptions) -> Result<()> {
    let times = image.root()?.times;
    options.keep_atime = times.atime.is_some();
    options.keep_ctime = times.ctime.is_some();
    options.keep_btime = times.btime.is_some();
    Ok(())
}

/// Inode, length and time of a file, which tell whether a generation was appended to it.
fn state(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let stat = path.metadata().ok()?;
    Some((stat.ino(), stat.len(), stat.mtime(), stat.mtime_nsec()))
}

/// Copies a complete image to its place, where it gets owner and mode of what it replaces.
fn copy(from: &Path, target: &Path, overwrite: bool) -> Result<()> {
    let mut from = File::open(from).context("the new image")?;
    let mut output = OutputFile::create(target, TargetKind::File)?;
    let mut piece = vec![0; PIECE_LEN];
    loop {
        let len = from.read(&mut piece).context("the new image")?;
        match piece.get(..len) {
            Some([]) | None => break,
            Some(bytes) => output.write_all(bytes)?,
        }
    }
    Ok(output.commit(overwrite)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_generations() {
        let all: Vec<Generation> = (1..=5)
            .rev()
            .map(|number| Generation {
                number,
                image_digest: weald_format::Digest::of(b""),
                tree_digest: weald_format::Digest::of(b""),
                image_len: number,
            })
            .collect();
        for (word, numbers) in [
            ("all", &[1, 2, 3, 4, 5][..]),
            ("last", &[5]),
            ("last:2", &[4, 5]),
            ("last:9", &[1, 2, 3, 4, 5]),
            ("2", &[2]),
            ("5,1-2,2", &[1, 2, 5]),
        ] {
            let kept: Kept = word.parse().unwrap();
            assert_eq!(kept.numbers(&all).unwrap(), numbers, "{word}");
        }
        for word in ["", "0", "last:0", "3-2", "1,", "one", "-1", "1-", "last:"] {
            assert!(word.parse::<Kept>().is_err(), "{word}");
        }
        for word in ["6", "4-6"] {
            assert!(word.parse::<Kept>().unwrap().numbers(&all).is_err());
        }
    }
}
