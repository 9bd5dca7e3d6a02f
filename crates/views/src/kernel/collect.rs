//! Removes views that no mount uses, and objects that no view has.
//!
//! Views are ranked: those that are mounted, then the others, the last used first. An object counts
//! for the first view that has it, so that the lengths add up to what the disk has. Views are kept
//! while the sum is within the limit.

use super::cache::{IMAGE_SUFFIX, IMAGES, OBJECTS, RECORD_SUFFIX, ViewCache, image_path, name_of};
use super::image_file::open_volume;
use super::record::Record;
use crate::composefs::object_name;
use rustix::fs::FlockOperation;
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;
use weald_erofs::reader::Walker;
use weald_format::{Error, FileKind, Result};
use weald_image::Image;

/// Digests that are in memory at once. Caches with more objects are examined in several passes,
/// each for a range of digests.
const DIGEST_COUNT_MAX: u64 = 1 << 20;

/// Sub-directories of the directory of objects, by the first byte of the digest.
const DIR_COUNT: u64 = 256;

/// The xattr that names the object of a file.
const REDIRECT: &[u8] = b"trusted.overlay.redirect";

/// Report of [`collect`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Views that were removed.
    pub removed_view_count: u64,
    /// Objects that were removed.
    pub removed_object_count: u64,
    /// Bytes of what was removed.
    pub removed_len: u64,
    /// Views that are kept.
    pub kept_view_count: u64,
    /// Kept views that a mount has.
    pub mounted_view_count: u64,
    /// Bytes of what is kept.
    pub kept_len: u64,
}

/// A view of the cache.
struct Ranked {
    name: String,
    image_len: u64,
    /// `None` without a record: the view is not complete.
    record: Option<Record>,
    is_mounted: bool,
    used: SystemTime,
}

/// Removes views that no mount has, the least recently used first, until the cache has at most
/// `len_max` bytes; then objects that no view has. Waits until mounts in the making are done, or
/// returns `None` at once if there are some and `may_wait` is off.
///
/// # Errors
/// `Invalid` if a metadata image is damaged, so that its objects are not known; `Io`.
pub fn collect(cache: &ViewCache, len_max: u64, may_wait: bool) -> Result<Option<Collected>> {
    let how = match may_wait {
        true => FlockOperation::LockExclusive,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    let Some(_lock) = cache.lock("lock", how)? else {
        return Ok(None);
    };
    let mut views = views(cache)?;
    views.sort_by_key(|view| (!view.is_mounted, std::cmp::Reverse(view.used)));
    let passes = passes(&views);
    let lens = object_lens(cache, &views, &passes)?;
    let mut done = Collected::default();
    let mut kept = Vec::new();
    let mut is_full = false;
    for (view, object_len) in views.into_iter().zip(lens) {
        let len = view.image_len + object_len;
        // Behind the first view that is removed, lengths do not have the objects shared with it.
        is_full |= view.record.is_some() && done.kept_len + len > len_max;
        if view.is_mounted || !is_full && view.record.is_some() {
            done.kept_view_count += 1;
            done.mounted_view_count += u64::from(view.is_mounted);
            done.kept_len += len;
            kept.push(view);
            continue;
        }
        cache.remove_image(&view.name)?;
        done.removed_view_count += 1;
        done.removed_len += view.image_len;
    }
    sweep(cache, &kept, &passes, &mut done)?;
    Ok(Some(done))
}

/// Removes views that no mount has before the view of `image` is made, so that the cache has at
/// most `len_max` bytes with it. Does nothing if the view is there. Does not wait, as [`trim`].
///
/// The view counts with all its contents: objects that it shares with others are not known yet.
///
/// # Errors
/// As [`collect`].
pub fn make_room(cache: &ViewCache, image: &Image, len_max: u64) -> Result<Option<Collected>> {
    let summary = image.summary();
    if cache.record(&name_of(&summary.tree_digest))?.is_some() {
        return Ok(None);
    }
    trim(cache, len_max.saturating_sub(summary.content_len))
}

/// As [`collect`], without waiting, if the cache may have more than `len_max` bytes.
///
/// # Errors
/// As [`collect`].
pub fn trim(cache: &ViewCache, len_max: u64) -> Result<Option<Collected>> {
    let mut len_at_most = 0_u64;
    let dir = cache.path().join(IMAGES);
    let failed = |error| Error::io(dir.display().to_string(), error);
    for entry in std::fs::read_dir(&dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_string_lossy();
        if let Some(name) = name.strip_suffix(RECORD_SUFFIX)
            && let Some(record) = cache.record(name)?
        {
            len_at_most = len_at_most.saturating_add(record.image_len + record.object_len);
        }
    }
    match len_at_most > len_max {
        true => collect(cache, len_max, false),
        false => Ok(None),
    }
}

/// Lists the views of a cache, also those that are not complete.
fn views(cache: &ViewCache) -> Result<Vec<Ranked>> {
    let dir = cache.path().join(IMAGES);
    let failed = |error| Error::io(dir.display().to_string(), error);
    let mut views = Vec::new();
    for entry in std::fs::read_dir(&dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let Some(name) = name.strip_suffix(IMAGE_SUFFIX) else {
            // A record without an image, or what a killed process left.
            let is_record_of_image = name
                .strip_suffix(RECORD_SUFFIX)
                .is_some_and(|view| cache.path().join(image_path(view)).exists());
            if !is_record_of_image {
                std::fs::remove_file(entry.path()).map_err(failed)?;
            }
            continue;
        };
        let record = cache.record(name)?;
        let record_file = entry.path().with_extension(&RECORD_SUFFIX[1..]);
        let used = record_file.metadata().and_then(|meta| meta.modified());
        views.push(Ranked {
            name: name.to_owned(),
            image_len: entry.metadata().map_err(failed)?.len(),
            record,
            is_mounted: cache.is_mounted(name)?,
            used: used.unwrap_or(SystemTime::UNIX_EPOCH),
        });
    }
    Ok(views)
}

/// Ranges of the first bytes of digests, so that each pass has few of them.
fn passes(views: &[Ranked]) -> Vec<std::ops::Range<u64>> {
    let records = views.iter().filter_map(|view| view.record.as_ref());
    let count: u64 = records.map(|record| record.object_count).sum();
    let pass_count = count.div_ceil(DIGEST_COUNT_MAX).clamp(1, DIR_COUNT);
    let step = DIR_COUNT.div_ceil(pass_count) as usize;
    let starts = (0..DIR_COUNT).step_by(step);
    starts
        .map(|start| start..DIR_COUNT.min(start + step as u64))
        .collect()
}

/// Bytes of the objects of each view that no earlier view has.
fn object_lens(
    cache: &ViewCache,
    views: &[Ranked],
    passes: &[std::ops::Range<u64>],
) -> Result<Vec<u64>> {
    let objects = cache.path().join(OBJECTS);
    let mut lens = vec![0; views.len()];
    for range in passes {
        let mut first: HashSet<[u8; 32]> = HashSet::new();
        for (view, len) in views.iter().zip(&mut lens) {
            each_object(cache, view, range, &mut |digest| {
                if first.insert(digest) {
                    *len += disk_len(&objects.join(object_name(&digest)));
                }
            })?;
        }
    }
    Ok(lens)
}

/// Visits the objects that a view names. Each may be visited more than once.
fn each_object(
    cache: &ViewCache,
    view: &Ranked,
    range: &std::ops::Range<u64>,
    visit: &mut dyn FnMut([u8; 32]),
) -> Result<()> {
    if view.record.is_none() {
        return Ok(());
    }
    let path = image_path(&view.name);
    let shown = cache.shown_at(&path);
    let file = File::open(cache.path().join(&path)).map_err(|e| cache.error(&path, e))?;
    let walk = || {
        let volume = open_volume(file, view.image_len, shown.clone())?;
        let mut walker = Walker::new(&volume);
        while let Some(inode) = walker.next(&volume)? {
            if inode.kind != FileKind::Regular {
                continue;
            }
            let xattrs = volume.xattrs(&inode)?;
            let redirect = xattrs.iter().find(|xattr| xattr.name == REDIRECT);
            let Some(digest) = redirect.and_then(|xattr| digest_of(&xattr.value)) else {
                continue;
            };
            if range.contains(&u64::from(digest[0])) {
                visit(digest);
            }
        }
        Ok(())
    };
    walk().map_err(|error: Error| {
        error.context(format!(
            "{shown}: the objects of this view are not known, so that none can be removed; \
             unmount it, then remove the file"
        ))
    })
}

/// The digest in the path of an object: `/ab/cdef…`.
fn digest_of(redirect: &[u8]) -> Option<[u8; 32]> {
    let text = std::str::from_utf8(redirect).ok()?;
    let (dir, rest) = text.trim_start_matches('/').split_once('/')?;
    super::record::digest(&format!("{dir}{rest}"))
}

/// Removes the objects that none of the views `kept` has.
fn sweep(
    cache: &ViewCache,
    kept: &[Ranked],
    passes: &[std::ops::Range<u64>],
    done: &mut Collected,
) -> Result<()> {
    for range in passes {
        let mut wanted: HashSet<[u8; 32]> = HashSet::new();
        for view in kept {
            each_object(cache, view, range, &mut |digest| {
                wanted.insert(digest);
            })?;
        }
        for byte in range.clone() {
            sweep_dir(cache, byte as u8, &wanted, done)?;
        }
    }
    Ok(())
}

fn sweep_dir(
    cache: &ViewCache,
    byte: u8,
    wanted: &HashSet<[u8; 32]>,
    done: &mut Collected,
) -> Result<()> {
    let prefix = format!("{byte:02x}");
    let dir = cache.path().join(OBJECTS).join(&prefix);
    let failed = |error| Error::io(dir.display().to_string(), error);
    let entries = match std::fs::read_dir(&dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = [prefix.as_bytes(), entry.file_name().as_bytes()].concat();
        let digest = std::str::from_utf8(&name)
            .ok()
            .and_then(super::record::digest);
        if digest.is_some_and(|digest| wanted.contains(&digest)) {
            continue;
        }
        done.removed_len += disk_len(&entry.path());
        done.removed_object_count += 1;
        std::fs::remove_file(entry.path()).map_err(failed)?;
    }
    Ok(())
}

/// Bytes that a file takes on the disk, holes left out; 0 if it is missing.
fn disk_len(path: &Path) -> u64 {
    path.symlink_metadata()
        .map_or(0, |meta| meta.blocks() * 512)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a name of an object that is not the one that the writer gives it.
    #[test]
    fn redirects_name_objects() {
        let digest = std::array::from_fn(|index| index as u8 * 7);
        let redirect = format!("/{}", object_name(&digest));
        assert_eq!(digest_of(redirect.as_bytes()), Some(digest));
        for other in ["", "/", "/ab", "/ab/cd", "ab\u{e4}/"] {
            assert_eq!(digest_of(other.as_bytes()), None, "{other}");
        }
    }
}
