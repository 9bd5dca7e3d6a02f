//! The torture tree: every feature of a Linux file system that a packer can get wrong.
//!
//! Each section is a directory of its own: `names`, `modes`, `owners`, `times`, `kinds`, `xattrs`,
//! `acls`, `symlinks`, `hardlinks`, `sparse`, `huge`, `sizes`, `content`, `empty`; and `big` on
//! request. [`make_deep`] makes a separate tree that rsync and most tools cannot walk. If the file
//! system refuses an inode, that is an error; nothing is skipped.

mod attributes;
mod big;
mod content;
mod links;
mod maker;
mod names;
mod sparse;

use crate::Rng;
use maker::Maker;
use std::path::Path;
use weald_format::{Result, Timestamp};

pub use big::{make_big, make_deep};

/// Options of the tree.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Seed of names, contents and times; the same seed makes the same tree.
    pub seed: u64,
    /// Whether to add `big`: a directory of 10^6 entries and 10^5 empty directories.
    pub big: bool,
}

/// Number of entries in the directory `big/million`.
const BIG_ENTRY_COUNT: u32 = 1_000_000;

/// Number of empty directories below `big/spread`.
const BIG_DIR_COUNT: u32 = 100_000;

/// Makes the tree in the directory `dir`, which must exist and be empty. Prints the seed to
/// standard error.
///
/// # Errors
/// `Io` if the file system or the user's permissions do not suffice (root is needed), `Full`.
pub fn make(dir: &Path, options: &Options) -> Result<()> {
    eprintln!("torture tree: seed {}", options.seed);
    let mut rng = Rng::new(options.seed);
    let root = Maker::open(dir)?;
    names::make(&root.dir("names")?, &mut rng)?;
    attributes::make_modes(&root.dir("modes")?)?;
    attributes::make_owners(&root.dir("owners")?)?;
    attributes::make_kinds(&root.dir("kinds")?)?;
    attributes::make_xattrs(&root.dir("xattrs")?, &mut rng)?;
    attributes::make_acls(&root.dir("acls")?)?;
    links::make_symlinks(&root.dir("symlinks")?, &mut rng)?;
    links::make_hard_links(&root.dir("hardlinks")?, &mut rng)?;
    sparse::make(&root.dir("sparse")?, &mut rng)?;
    sparse::make_huge(&root.dir("huge")?)?;
    content::make_sizes(&root.dir("sizes")?, &mut rng)?;
    content::make_content(&root.dir("content")?, &mut rng)?;
    make_empty(&root.dir("empty")?)?;
    if options.big {
        make_big(&dir.join("big"), BIG_ENTRY_COUNT, BIG_DIR_COUNT)?;
    }
    let times = root.dir("times")?;
    root.set_all_times(&mut rng, &["big"])?;
    attributes::make_times(&times)?;
    times.set_mtime(
        "",
        Timestamp {
            seconds: 1,
            nanoseconds: 1,
        },
    )?;
    root.set_mtime(
        "",
        Timestamp {
            seconds: 1_000_000_007,
            nanoseconds: 7,
        },
    )
}

/// Empty directories: alone, nested, and as the only child.
fn make_empty(root: &Maker) -> Result<()> {
    for number in 0..100 {
        root.dir(format!("dir{number}"))?;
    }
    let mut nested = root.dir("nested")?;
    for _ in 0..20 {
        nested = nested.dir("n")?;
    }
    root.file("file", b"")
}

#[cfg(test)]
mod tests;
