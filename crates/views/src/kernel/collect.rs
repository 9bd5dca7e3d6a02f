//! Removes views that no mount uses, and objects that no view has.
//!
//! Views are ranked: those that are mounted, then the others, the last used first. An object counts
//! for the first view that has it, so that the lengths add up to what the disk has. Views are kept
//! while the sum is within the limit.

use super::cache::{
    IMAGE_SUFFIX, RECORD_SUFFIX, VERIFIED_SUFFIX, ViewCache, image_name, record_name,
};
use super::dirs::Dir;
use super::image_file::open_volume;
use super::record::Record;
use crate::composefs::object_name;
use rustix::fs::FlockOperation;
use std::collections::HashSet;
use weald_erofs::reader::Walker;
use weald_format::{Digest, Error, FileKind, Result, Timestamp};

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
    used: Timestamp,
}

impl Ranked {
    /// Whether its objects are to be kept: a view of an earlier version has no record, and a mount
    /// may have it.
    fn has_objects(&self) -> bool {
        self.record.is_some() || self.is_mounted
    }
}

/// Images whose digests are known to be right, of which no view is left. Above this number all are
/// forgotten, so that the list does not grow for ever.
const VERIFIED_COUNT_MAX: usize = 10_000;

/// Removes views that no mount has, the least recently used first, until the cache has at most
/// `len_max` bytes; then objects that no view has. Waits until mounts in the making are done, or
/// returns `None` at once if there are some and `may_wait` is off.
///
/// A view that cannot be read is removed. If a mount has it, its objects are not known, and all
/// objects stay; a warning in the log says so.
///
/// # Errors
/// `Io`.
pub fn collect(cache: &ViewCache, len_max: u64, may_wait: bool) -> Result<Option<Collected>> {
    collect_some(cache, len_max, may_wait, &|_| false)
}

/// Removes views that no mount has, of images of which `is_gone` says that nobody has them any
/// more; then objects that no view has. Does not wait, as [`trim`].
///
/// # Errors
/// As [`collect`].
pub fn collect_gone(
    cache: &ViewCache,
    is_gone: &dyn Fn(&Digest) -> bool,
) -> Result<Option<Collected>> {
    let is_any_gone = views(cache)?.iter().any(|view| {
        let record = view.record.as_ref();
        !view.is_mounted && record.is_none_or(|record| is_gone(&record.source))
    });
    if is_any_gone {
        collect_some(cache, u64::MAX, false, is_gone)
    } else {
        Ok(None)
    }
}

fn collect_some(
    cache: &ViewCache,
    len_max: u64,
    may_wait: bool,
    is_gone: &dyn Fn(&Digest) -> bool,
) -> Result<Option<Collected>> {
    let how = if may_wait {
        FlockOperation::LockExclusive
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    let Some(_lock) = cache.lock("lock", how)? else {
        return Ok(None);
    };
    remove_leftovers(cache)?;
    let mut views = views(cache)?;
    views.sort_by_key(|view| (!view.is_mounted, std::cmp::Reverse(view.used)));
    let passes = passes(&views);
    let (lens, is_complete) = object_lens(cache, &mut views, &passes)?;
    let mut done = Collected::default();
    let mut kept = Vec::new();
    let mut is_full = false;
    for (view, object_len) in views.into_iter().zip(lens) {
        let len = view.image_len + object_len;
        let is_wanted = match &view.record {
            Some(record) => !is_gone(&record.source),
            None => false,
        };
        // Behind the first view that is removed, lengths do not have the objects shared with it.
        is_full |= is_wanted && done.kept_len + len > len_max;
        if view.is_mounted || !is_full && is_wanted {
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
    if is_complete {
        sweep(cache, &kept, &passes, &mut done)?;
    }
    Ok(Some(done))
}

/// As [`collect`], without waiting, if the cache may have more than `len_max` bytes.
///
/// # Errors
/// As [`collect`].
pub fn trim(cache: &ViewCache, len_max: u64) -> Result<Option<Collected>> {
    let mut len_at_most = 0_u64;
    for name in cache.images().names()? {
        if let Some(name) = name.strip_suffix(RECORD_SUFFIX)
            && let Some(record) = cache.record(name)?
        {
            len_at_most = len_at_most.saturating_add(record.image_len + record.object_len);
        }
    }
    if len_at_most > len_max {
        collect(cache, len_max, false)
    } else {
        Ok(None)
    }
}

/// Views and bytes of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Views, also those that are not complete.
    pub view_count: u64,
    /// Views that a mount has.
    pub mounted_view_count: u64,
    /// Bytes on the disk.
    pub len: u64,
}

/// Counts views and bytes of `cache`.
///
/// # Errors
/// `Io`.
/// # Cost
/// Asks for the attributes of each file.
pub fn usage(cache: &ViewCache) -> Result<Usage> {
    let views = views(cache)?;
    Ok(Usage {
        view_count: views.len() as u64,
        mounted_view_count: views.iter().filter(|view| view.is_mounted).count() as u64,
        len: used_len(cache)?,
    })
}

/// Digests of the images of which a mount has the view, in any mount namespace.
///
/// # Errors
/// `Io`.
pub fn mounted_images(cache: &ViewCache) -> Result<Vec<Digest>> {
    let mounted = views(cache)?.into_iter().filter(|view| view.is_mounted);
    Ok(mounted
        .filter_map(|view| Some(view.record?.source))
        .collect())
}

/// Bytes that the cache takes on the disk.
///
/// # Errors
/// `Io`.
/// # Cost
/// Asks for the attributes of each file.
pub fn used_len(cache: &ViewCache) -> Result<u64> {
    let sum = |dir: &Dir| -> Result<u64> {
        let names = dir.names()?;
        Ok(names.iter().map(|name| dir.disk_len(name)).sum())
    };
    let mut len = sum(cache.images())?;
    for byte in 0..DIR_COUNT {
        if let Some(dir) = cache.objects().find(&format!("{byte:02x}"))? {
            len += sum(&dir)?;
        }
    }
    Ok(len)
}

/// Removes records without an image, what killed processes left, and the list of verified images
/// if it has become long. Nobody makes a view meanwhile.
fn remove_leftovers(cache: &ViewCache) -> Result<()> {
    let names = cache.images().names()?;
    let verified = |name: &&String| name.ends_with(VERIFIED_SUFFIX);
    let is_long = names.iter().filter(verified).count() > VERIFIED_COUNT_MAX;
    for name in &names {
        let record_of = name.strip_suffix(RECORD_SUFFIX);
        let is_used = match record_of.or(name.strip_suffix(VERIFIED_SUFFIX)) {
            Some(view) if record_of.is_some() || is_long => {
                cache.images().stat(&image_name(view))?.is_some()
            }
            Some(_) => true,
            None => name.ends_with(IMAGE_SUFFIX),
        };
        if !is_used {
            cache.images().remove(name)?;
        }
    }
    Ok(())
}

/// Lists the views of a cache, also those that are not complete.
fn views(cache: &ViewCache) -> Result<Vec<Ranked>> {
    let images = cache.images();
    let mut views = Vec::new();
    for name in images.names()? {
        let Some(view) = name.strip_suffix(IMAGE_SUFFIX) else {
            continue;
        };
        let Some(image) = images.stat(&name)? else {
            continue;
        };
        let record = images.stat(&record_name(view))?;
        views.push(Ranked {
            name: view.to_owned(),
            image_len: image.size,
            record: cache.record(view)?,
            is_mounted: cache.is_mounted(view)?,
            used: record.map_or(Timestamp::default(), |record| record.mtime),
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

/// Bytes of the objects of each view that no earlier view has, and whether the objects of all
/// views that stay are known. A view that cannot be read loses its record.
fn object_lens(
    cache: &ViewCache,
    views: &mut [Ranked],
    passes: &[std::ops::Range<u64>],
) -> Result<(Vec<u64>, bool)> {
    let mut lens = vec![0; views.len()];
    let mut is_complete = true;
    for range in passes {
        let dirs = ObjectDirs::open(cache, range)?;
        let mut first: HashSet<[u8; 32]> = HashSet::new();
        for (view, len) in views.iter_mut().zip(&mut lens) {
            let read = each_object(cache, view, range, &mut |digest| {
                if first.insert(digest) {
                    *len += dirs.disk_len(&digest);
                }
            });
            let Err(error) = read else {
                continue;
            };
            if view.is_mounted {
                is_complete = false;
                log::warn!(
                    "the objects of a mounted view are not known, so that none is removed: {error}"
                );
            } else {
                log::warn!("a view that cannot be read is removed: {error}");
            }
            view.record = None;
        }
    }
    Ok((lens, is_complete))
}

/// Directories of objects of a range of digests.
struct ObjectDirs {
    start: u64,
    dirs: Vec<Option<Dir>>,
}

impl ObjectDirs {
    fn open(cache: &ViewCache, range: &std::ops::Range<u64>) -> Result<Self> {
        let dirs = range
            .clone()
            .map(|byte| cache.objects().find(&format!("{byte:02x}")));
        Ok(Self {
            start: range.start,
            dirs: dirs.collect::<Result<_>>()?,
        })
    }

    /// Bytes of the object on the disk.
    fn disk_len(&self, digest: &[u8; 32]) -> u64 {
        let index = u64::from(digest[0]).checked_sub(self.start);
        let dir = index.and_then(|index| self.dirs.get(index as usize)?.as_ref());
        let path = object_name(digest);
        let name = path.split_once('/').map_or("", |(_, name)| name);
        dir.map_or(0, |dir| dir.disk_len(name))
    }
}

/// Visits the objects that a view names. Each may be visited more than once.
fn each_object(
    cache: &ViewCache,
    view: &Ranked,
    range: &std::ops::Range<u64>,
    visit: &mut dyn FnMut([u8; 32]),
) -> Result<()> {
    if !view.has_objects() {
        return Ok(());
    }
    let shown = cache.images().shown_at(&image_name(&view.name));
    let file = cache.open_image(&view.name)?;
    let walk = || {
        let volume = open_volume(file, view.image_len, shown.clone())?;
        let mut walker = Walker::of_own(&volume);
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
    walk().map_err(|error: Error| error.context(shown))
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
    let Some(dir) = cache.objects().find(&prefix)? else {
        return Ok(());
    };
    for name in dir.names()? {
        let digest = super::record::digest(&format!("{prefix}{name}"));
        if digest.is_some_and(|digest| wanted.contains(&digest)) {
            continue;
        }
        done.removed_len += dir.disk_len(&name);
        done.removed_object_count += 1;
        dir.remove(&name)?;
    }
    Ok(())
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
