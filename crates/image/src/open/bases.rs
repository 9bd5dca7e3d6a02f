//! Base images: the search for their files or for images of a store, and the streams that refer to
//! them.

use super::directory::open_directory;
use super::generations::{footers, generations, has_digest, list};
use super::options::OpenOptions;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::directory::{Base, Directory};
use weald_format::{Digest, Error, Result};
use weald_io::ReadAt;
#[cfg(feature = "places")]
use weald_remote::RemoteSource;
#[cfg(feature = "places")]
use weald_store::StoredImage;

#[cfg(feature = "places")]
mod elsewhere;

/// Longest chain of images of which each is the base image of the next.
const BASE_CHAIN_LEN_MAX: usize = 16;
/// Files of a directory that are searched for a renamed base image.
const SEARCHED_FILES_MAX: usize = 10_000;

fn bad(rule: &'static str, what: String) -> Error {
    Error::corrupt("base image", 0, rule, what)
}

/// The base images that the generations of the image in `source` lie on.
///
/// # Errors
/// `Io`, `Unsupported`, `Corrupt`.
pub fn bases_of(source: &dyn ReadAt) -> Result<Vec<Base>> {
    let (superblock_digest, footers) = footers(source)?;
    let mut bases: Vec<Base> = Vec::new();
    for footer in &footers {
        for base in open_directory(source, footer, &superblock_digest)?.bases {
            if !bases
                .iter()
                .any(|known| known.image_digest == base.image_digest)
            {
                bases.push(base);
            }
        }
    }
    Ok(bases)
}

/// Image digests of all generations of the image in `source`, any of which can be the base image of
/// another image.
///
/// # Errors
/// `Io`, `Unsupported`, `Corrupt`.
pub fn image_digests(source: &dyn ReadAt) -> Result<Vec<Digest>> {
    Ok(list(source)?.iter().map(|g| g.image_digest).collect())
}

/// Refuses base images below too many others.
///
/// # Errors
/// `Corrupt`.
pub fn check_depth(directory: &Directory, depth: usize) -> Result<()> {
    if directory.bases.is_empty() || depth < BASE_CHAIN_LEN_MAX {
        Ok(())
    } else {
        let what =
            format!("more than {BASE_CHAIN_LEN_MAX} images, each the base image of the next");
        Err(bad("F-22.2", what))
    }
}

/// Compares the stream count of an open base image with the reference to it.
///
/// # Errors
/// `Corrupt` if they differ.
pub fn check_stream_count(base: &Base, directory: &Directory) -> Result<()> {
    let found = directory.streams.len() as u64;
    if found == base.stream_count {
        Ok(())
    } else {
        let what = format!("expected {} streams, found {found}", base.stream_count);
        Err(bad("F-22.1", what))
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

/// Where a base image is.
pub enum BasePlace {
    /// In the file at this path.
    File(PathBuf),
    /// In a store.
    #[cfg(feature = "places")]
    Stored(StoredImage),
    /// On a server.
    #[cfg(feature = "places")]
    Remote(Box<RemoteSource>),
}

/// Finds a base image: by its name, or else any file or image of a store with its digest. The
/// images of the store in `options` come first; a directory that is a store stands for its images.
/// On a server, whose directories cannot be listed, the base image is found by its name alone.
///
/// # Errors
/// `Corrupt` if nothing has it.
/// # Cost
/// Reads the footers of all images in the directories, if no file of the name has the digest.
pub fn find(base: &Base, options: &OpenOptions) -> Result<BasePlace> {
    let dirs = &options.base_dirs;
    #[cfg(feature = "places")]
    if let Some(image) = elsewhere::find_stored(base, dirs, options.store.as_ref()) {
        return Ok(BasePlace::Stored(image));
    }
    let name = OsStr::from_bytes(&base.name);
    let named = dirs.iter().map(|dir| dir.join(name));
    let others = dirs.iter().flat_map(|dir| files(dir));
    let mut candidates = named.chain(others);
    let found = candidates.find(|path| holds(path, &base.image_digest));
    if let Some(path) = found {
        return Ok(BasePlace::File(path));
    }
    #[cfg(feature = "places")]
    if let Some(source) = elsewhere::find_remote(base, dirs) {
        return Ok(BasePlace::Remote(Box::new(source)));
    }
    let what = format!(
        "{} with image digest {} is not in {}",
        base.name.escape_ascii(),
        base.image_digest,
        shown_places(options).join(", ")
    );
    Err(bad("F-22.1", what))
}

/// The directories, and the store, that are searched.
fn shown_places(options: &OpenOptions) -> Vec<String> {
    #[cfg(feature = "places")]
    return elsewhere::shown_places(&options.base_dirs, options.store.as_ref());
    #[cfg(not(feature = "places"))]
    options
        .base_dirs
        .iter()
        .map(|dir| dir.display().to_string())
        .collect()
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_file = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|t| t.is_file());
    let mut files: Vec<_> = entries
        .filter(is_file)
        .take(SEARCHED_FILES_MAX)
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
}

/// Whether any generation of the image at `path` has this digest.
fn holds(path: &Path, digest: &Digest) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|m| m.is_file());
    is_file && generations(path).is_ok_and(|list| has_digest(&list, digest))
}
