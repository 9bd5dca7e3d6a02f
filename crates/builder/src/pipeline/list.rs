//! Names what a build would pack, and writes nothing.

use crate::options::BuildOptions;
use crate::pipeline::build::{CountProblems, scan_all, scan_options};
use crate::pipeline::destination::Destination;
use crate::progress::Observer;
use crate::scan::{DirNo, Layer, ScannedTree};
use std::path::Path;
use weald_format::{FileKind, Result};

/// Gets the path of an entry, from the root of the tree, and its kind.
pub type TakePath<'a> = dyn FnMut(&[u8], FileKind) -> Result<()> + 'a;

/// Calls `take` for each entry that [`crate::build_layers`] would pack into an image at `target`,
/// in the order of the image: a directory before what lies in it, names in byte order. Returns the
/// number of problems, which `observer` gets. Nothing is written, and no file is read.
///
/// # Errors
/// As [`crate::build_layers`], as far as they come before contents are read; those of `take`.
/// # Cost
/// That of a scan; with `options.at`, the tree of the image is read.
pub fn list_layers(
    layers: &[Layer<'_>],
    target: &Path,
    options: &BuildOptions,
    observer: &dyn Observer,
    take: &mut TakePath<'_>,
) -> Result<u64> {
    options.validate()?;
    let problems = CountProblems::new(observer);
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        threads => threads,
    };
    let old = match options.at {
        Some(_) => {
            let destination = Destination::File {
                target,
                overwrite: true,
            };
            Some(destination.open_starting(options, threads)?)
        }
        None => None,
    };
    let old = old.as_ref().and_then(|old| old.appended());
    let own = weald_sys::stat_path(target).ok();
    let own = own.filter(|stat| stat.kind == FileKind::Regular);
    let own: Vec<(u64, u64)> = own.map(|stat| (stat.dev, stat.ino)).into_iter().collect();
    let scan_options = scan_options(options, threads, &own);
    let at = options.at.as_ref();
    let tree = scan_all(layers, at, old, &scan_options, &problems)?;
    list_tree(&tree, take)?;
    Ok(problems.count())
}

fn list_tree(tree: &ScannedTree, take: &mut TakePath<'_>) -> Result<()> {
    let mut path = Vec::new();
    take(&path, FileKind::Directory)?;
    // Of each open directory: its entries that are to come, and the length of its path.
    let mut stack = vec![(tree.entries_of(DirNo(0)), 0)];
    while let Some((rest, len)) = stack.last_mut() {
        path.truncate(*len);
        let Some(entry) = rest.next() else {
            stack.pop();
            continue;
        };
        if *len > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(tree.name(entry));
        take(&path, tree.kind(entry))?;
        if let Some(dir) = tree.dir(entry) {
            stack.push((tree.entries_of(dir), path.len()));
        }
    }
    Ok(())
}
