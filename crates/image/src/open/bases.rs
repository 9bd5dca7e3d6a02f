//! Base images: found by their digests, opened, read through.

use crate::records::BaseStreams;
use crate::{Image, OpenOptions, generations};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::directory::{Base, Directory};
use weald_format::{Digest, Error, Result};

/// Images that may lie on each other.
const DEPTH_MAX: usize = 16;
/// Files of a directory that are looked at for one that was renamed.
const FILES_MAX: usize = 10_000;

fn bad(rule: &'static str, what: String) -> Error {
    Error::corrupt("base image", 0, rule, what)
}

/// Opens the bases of an image that lies `depth` images below the one that was asked for.
pub(crate) fn open_all(
    directory: &Directory,
    options: &OpenOptions,
    depth: usize,
) -> Result<Vec<Arc<Image>>> {
    if !directory.bases.is_empty() && depth >= DEPTH_MAX {
        let what = format!("more than {DEPTH_MAX} images lie on each other");
        return Err(bad("F-22.2", what));
    }
    let bases = directory.bases.iter();
    bases.map(|base| open(base, options, depth)).collect()
}

/// What each stream of `directory` stands for in `bases`.
pub(crate) fn streams(directory: &Directory, bases: &[Arc<Image>]) -> BaseStreams {
    let base_stream = |no| {
        let (base, stream) = directory.base_stream(no)?;
        Some((bases.get(base)?.clone(), u8::try_from(stream).ok()?))
    };
    let streams = (0..directory.streams.len() as u64).map(base_stream);
    streams.collect()
}

fn open(base: &Base, options: &OpenOptions, depth: usize) -> Result<Arc<Image>> {
    let path = find(base, &options.base_dirs)?;
    let options = OpenOptions {
        expected_digest: Some(base.image_digest),
        generation: None,
        ..options.clone()
    };
    let image = Image::open_file(&path, &options, depth.saturating_add(1))?;
    let found = image.directory.streams.len() as u64;
    match found == base.stream_count {
        true => Ok(Arc::new(image)),
        false => {
            let what = format!("expected {} streams, found {found}", base.stream_count);
            Err(bad("F-22.1", what).context(path.display()))
        }
    }
}

/// The file that holds the base: by its name, or else any with its digest.
fn find(base: &Base, dirs: &[PathBuf]) -> Result<PathBuf> {
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

/// Whether a generation of the image at `path` has this digest.
fn holds(path: &Path, digest: &Digest) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|m| m.is_file());
    is_file && generations(path).is_ok_and(|list| list.iter().any(|g| g.image_digest == *digest))
}
