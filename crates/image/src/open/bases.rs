//! Base images: the search for their files, and the streams that refer to them.

use super::generations::generations;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::directory::{Base, Directory};
use weald_format::{Digest, Error, Result};

/// Longest chain of images of which each is the base image of the next.
const DEPTH_MAX: usize = 16;
/// Files of a directory that are searched for a renamed base image.
const FILES_MAX: usize = 10_000;

fn bad(rule: &'static str, what: String) -> Error {
    Error::corrupt("base image", 0, rule, what)
}

/// Refuses base images below too many others.
///
/// # Errors
/// `Corrupt`.
pub fn check_depth(directory: &Directory, depth: usize) -> Result<()> {
    match directory.bases.is_empty() || depth < DEPTH_MAX {
        true => Ok(()),
        false => {
            let what = format!("more than {DEPTH_MAX} images, each the base image of the next");
            Err(bad("F-22.2", what))
        }
    }
}

/// Compares the stream count of an open base image with the reference to it.
///
/// # Errors
/// `Corrupt` if they differ.
pub fn check_stream_count(base: &Base, directory: &Directory) -> Result<()> {
    let found = directory.streams.len() as u64;
    match found == base.stream_count {
        true => Ok(()),
        false => {
            let what = format!("expected {} streams, found {found}", base.stream_count);
            Err(bad("F-22.1", what))
        }
    }
}

/// For each stream of `directory` that refers to a base image: that one of `bases`, and the number
/// of the stream there.
pub fn streams<T>(directory: &Directory, bases: &[Arc<T>]) -> Vec<Option<(Arc<T>, u8)>> {
    let base_stream = |no| {
        let (base, stream) = directory.base_stream(no)?;
        Some((bases.get(base)?.clone(), u8::try_from(stream).ok()?))
    };
    let streams = (0..directory.streams.len() as u64).map(base_stream);
    streams.collect()
}

/// Finds the file of a base image: by its name, or else any file with its digest.
///
/// # Errors
/// `Corrupt` if no directory of `dirs` has it.
/// # Cost
/// Reads the footers of all images in `dirs`, if no file of the name has the digest.
pub fn find(base: &Base, dirs: &[PathBuf]) -> Result<PathBuf> {
    let name = OsStr::from_bytes(&base.name);
    let named = dirs.iter().map(|dir| dir.join(name));
    let others = dirs.iter().flat_map(|dir| files(dir));
    let mut candidates = named.chain(others);
    candidates
        .find(|path| holds(path, &base.image_digest))
        .ok_or_else(|| {
            let dirs: Vec<_> = dirs.iter().map(|d| d.display().to_string()).collect();
            let what = format!(
                "{} with image digest {} is not in {}",
                base.name.escape_ascii(),
                base.image_digest,
                dirs.join(", ")
            );
            bad("F-22.1", what)
        })
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_file = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|t| t.is_file());
    let mut files: Vec<_> = entries
        .filter(is_file)
        .take(FILES_MAX)
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
}

/// Whether any generation of the image at `path` has this digest.
fn holds(path: &Path, digest: &Digest) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|m| m.is_file());
    is_file && generations(path).is_ok_and(|list| list.iter().any(|g| g.image_digest == *digest))
}
