//! Base images: the search for their files or for images of a store, and the streams that refer to
//! them.

use super::directory::open_directory;
use super::generations::{Generation, footers, generations, list};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::directory::{Base, Directory};
use weald_format::{Digest, Error, Result};
use weald_io::ReadAt;
use weald_remote::{Location, RemoteSource, is_url};
use weald_store::{Store, StoreLocation, StoredImage};

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
    Stored(StoredImage),
    /// On a server.
    Remote(Box<RemoteSource>),
}

/// Finds a base image: by its name, or else any file or image of a store with its digest. The
/// images of `store` come first; a directory of `dirs` that is a store stands for its images. On a
/// server, whose directories cannot be listed, the base image is found by its name alone.
///
/// # Errors
/// `Corrupt` if nothing has it.
/// # Cost
/// Reads the footers of all images in `dirs`, if no file of the name has the digest.
pub fn find(base: &Base, dirs: &[PathBuf], store: Option<&Store>) -> Result<BasePlace> {
    let opened = dirs.iter().filter(|dir| weald_store::is_store(dir));
    let opened = opened.filter_map(|dir| StoreLocation::Path(dir.clone()).open().ok());
    if let Some(image) = store
        .cloned()
        .into_iter()
        .chain(opened)
        .find_map(|store| find_stored(base, &store))
    {
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
    let urls = dirs.iter().filter(|dir| is_url(dir));
    let found = urls.into_iter().find_map(|dir| find_remote(base, dir));
    let found = found.map(|source| BasePlace::Remote(Box::new(source)));
    found.ok_or_else(|| {
        let mut dirs: Vec<_> = dirs.iter().map(|dir| weald_remote::shown(dir)).collect();
        dirs.extend(store.map(Store::shown));
        let what = format!(
            "{} with image digest {} is not in {}",
            base.name.escape_ascii(),
            base.image_digest,
            dirs.join(", ")
        );
        bad("F-22.1", what)
    })
}

/// The image of `store` that has the digest: first the one of the name.
fn find_stored(base: &Base, store: &Store) -> Option<StoredImage> {
    let name = String::from_utf8_lossy(&base.name).into_owned();
    let short = name.strip_suffix(".weald").map(str::to_owned);
    let others = store.names().unwrap_or_default();
    let mut names = [Some(name), short].into_iter().flatten().chain(others);
    names.find_map(|name| {
        let image = StoredImage::open(store.clone(), &name).ok()?;
        let has = list(&image).is_ok_and(|list| has_digest(&list, &base.image_digest));
        has.then_some(image)
    })
}

/// The object of the base image's name below the URL `dir`, if it has the digest.
fn find_remote(base: &Base, dir: &Path) -> Option<RemoteSource> {
    let location = Location::beside(dir, OsStr::from_bytes(&base.name)).ok()?;
    let opened = RemoteSource::open(&location);
    let opened = opened.and_then(|source| list(&source).map(|list| (source, list)));
    match opened {
        Ok((source, list)) => has_digest(&list, &base.image_digest).then_some(source),
        Err(error) => {
            log::warn!("a base image that is not read: {error}");
            None
        }
    }
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

fn has_digest(list: &[Generation], digest: &Digest) -> bool {
    list.iter().any(|g| g.image_digest == *digest)
}
