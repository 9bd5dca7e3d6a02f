//! Base images in stores, and on servers.

use crate::open::generations::{has_digest, list};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weald_format::directory::Base;
use weald_remote::{Location, RemoteSource, is_url};
use weald_store::{Store, StoreLocation, StoredImage};

/// The base image in `store`, or in one of those `dirs` that are stores.
pub fn find_stored(base: &Base, dirs: &[PathBuf], store: Option<&Store>) -> Option<StoredImage> {
    let opened = dirs.iter().filter(|dir| weald_store::is_store(dir));
    let opened = opened.filter_map(|dir| StoreLocation::Path(dir.clone()).open().ok());
    let mut stores = store.cloned().into_iter().chain(opened);
    stores.find_map(|store| find_in(base, &store))
}

/// The image of `store` that has the digest: first the one of the name.
fn find_in(base: &Base, store: &Store) -> Option<StoredImage> {
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

/// The base image below one of those `dirs` that are URLs.
pub fn find_remote(base: &Base, dirs: &[PathBuf]) -> Option<RemoteSource> {
    let mut urls = dirs.iter().filter(|dir| is_url(dir));
    urls.find_map(|dir| find_below(base, dir))
}

/// The object of the base image's name below the URL `dir`, if it has the digest.
fn find_below(base: &Base, dir: &Path) -> Option<RemoteSource> {
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

/// `dirs` and `store` as messages show them.
pub fn shown_places(dirs: &[PathBuf], store: Option<&Store>) -> Vec<String> {
    let dirs = dirs.iter().map(|dir| weald_remote::shown(dir));
    dirs.chain(store.map(Store::shown)).collect()
}
