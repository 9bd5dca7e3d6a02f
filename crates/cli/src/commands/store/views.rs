//! The view cache in a store: which images are mounted by the kernel, and what the views take.

use crate::commands::mount_kernel::STORE_VIEWS;
use crate::open_store::show_path;
use anyhow::bail;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use weald_format::Digest;
use weald_image::generations;
use weald_store::Store;
use weald_views::kernel::{self, Collected, Usage, ViewCache};

/// The view cache of `store`, if it has one that this user may use.
fn cache(store: &Store) -> Option<ViewCache> {
    let path = Path::new(&store.shown()).join(STORE_VIEWS);
    match ViewCache::find(&path) {
        Ok(cache) => cache,
        Err(error) => {
            log::info!("{}: {error}", path.display());
            None
        }
    }
}

/// Image digests of all generations of the image `name`.
fn digests(store: &Store, name: &str) -> weald_format::Result<Vec<Digest>> {
    let path = PathBuf::from(format!("{}:{name}", store.shown()));
    let list = generations(&path)?;
    Ok(list
        .iter()
        .map(|generation| generation.image_digest)
        .collect())
}

/// Refuses to remove an image that the kernel has mounted: the mount would go on, and the next one
/// would find no image.
///
/// # Errors
/// If it is mounted, with the directory if this process sees it.
pub(super) fn refuse_mounted(store: &Store, name: &str) -> anyhow::Result<()> {
    let shown = format!("{}:{name}", store.shown());
    let store_dir = Path::new(&store.shown()).canonicalize()?;
    let is_of_image = |image: &Path| {
        weald_store::split(image).is_some_and(|(dir, other)| {
            other == name && dir.canonicalize().is_ok_and(|dir| dir == store_dir)
        })
    };
    if let Some(mount) = kernel::mounts()?
        .iter()
        .find(|mount| is_of_image(&mount.image))
    {
        bail!(
            "{shown}: is mounted by the kernel on {}: unmount it first, or use --force",
            show_path(&mount.dir)
        );
    }
    let mounted = match cache(store) {
        Some(cache) => kernel::mounted_images(&cache)?,
        None => return Ok(()),
    };
    let own = if mounted.is_empty() {
        Vec::new()
    } else {
        // An image that cannot be read is in use by no mount that this could tell.
        digests(store, name).unwrap_or_default()
    };
    if own.iter().any(|digest| mounted.contains(digest)) {
        bail!(
            "{shown}: is mounted by the kernel in another mount namespace, such as that of a \
             container: unmount it there first, or use --force"
        );
    }
    Ok(())
}

/// Views of the store, if it has a cache.
pub(super) fn usage(store: &Store) -> Option<Usage> {
    let usage = kernel::usage(&cache(store)?);
    usage.inspect_err(|error| log::info!("{error}")).ok()
}

/// Removes the views without mounts of images that are no longer in the store.
///
/// # Errors
/// Errors of the cache. If an image cannot be read, all views stay.
pub(super) fn collect_gone(store: &Store) -> anyhow::Result<Collected> {
    let Some(cache) = cache(store) else {
        return Ok(Collected::default());
    };
    let mut kept = HashSet::new();
    for name in store.names()? {
        match digests(store, &name) {
            Ok(digests) => kept.extend(digests),
            Err(error) => {
                log::warn!("the view cache stays as it is: {name}: {error}");
                return Ok(Collected::default());
            }
        }
    }
    let done = kernel::collect_gone(&cache, &|digest| !kept.contains(digest))?;
    Ok(done.unwrap_or_default())
}
