//! Gets the view of an image within the limit of the cache. Objects of a view that was not
//! completed are removed at once.

use super::cache::{View, ViewCache, ViewOptions};
use super::collect::{collect, trim, used_len};
use weald_format::{Error, ErrorKind, Result};
use weald_image::Image;

/// Returns the view of `image`. Before it is made, views that no mount has are removed until the
/// cache has at most `options.limit` bytes with it; all of them if the disk is full.
///
/// # Errors
/// `Limit` if the limit is strict and the view does not fit; `Full` with the bytes that it needs;
/// those of making a view.
pub fn obtain(image: &Image, cache: &ViewCache, options: &ViewOptions<'_>) -> Result<View> {
    if cache.has_view(image, options)? {
        return cache.make_view(image, options, u64::MAX);
    }
    let room = room(image, cache, options)?;
    let made = match cache.make_view(image, options, room) {
        Err(error) if error.kind() == ErrorKind::Full => {
            collect(cache, 0, false)?;
            cache.make_view(image, options, room)
        }
        other => other,
    };
    let error = match made {
        Ok(view) => return Ok(view),
        Err(error) => error,
    };
    if let Err(error) = collect(cache, options.limit.len_max, false) {
        log::warn!("{}: what was begun of a view stays: {error}", cache.shown());
    }
    Err(match error.kind() {
        ErrorKind::Full => error.context(full(cache, cache.data_len(image, options)?)),
        ErrorKind::Limit if options.limit.is_strict => error.context(beyond(
            cache.data_len(image, options)?,
            options.limit.len_max,
        )),
        _ => error,
    })
}

/// Bytes that the objects of the view of `image` may take.
fn room(image: &Image, cache: &ViewCache, options: &ViewOptions<'_>) -> Result<u64> {
    let limit = options.limit;
    if limit.len_max == u64::MAX {
        return Ok(u64::MAX);
    }
    let content_len = image.summary().content_len;
    // Holes take no room, nor do contents that no name of the tree has: both cost a walk to know.
    let needed = if content_len > limit.len_max {
        cache.data_len(image, options)?
    } else {
        content_len
    };
    if limit.is_strict && needed > limit.len_max {
        return Err(Error::limit(beyond(needed, limit.len_max)));
    }
    if let Err(error) = trim(cache, limit.len_max.saturating_sub(needed)) {
        log::warn!("the view cache stays as it is: {error:?}");
    }
    if !limit.is_strict {
        return Ok(u64::MAX);
    }
    Ok(limit.len_max.saturating_sub(used_len(cache)?))
}

/// The message about a limit that is too small.
fn beyond(needed: u64, limit: u64) -> String {
    format!(
        "the files of the image have {needed} bytes, and the limit of the view cache is {limit}, \
         mounted views included: give a larger --view-limit, or leave --kernel out to mount \
         through FUSE"
    )
}

/// The message about a full disk.
fn full(cache: &ViewCache, needed: u64) -> String {
    let stat = rustix::fs::fstatvfs(cache.images());
    let free = stat.map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    format!(
        "{}: the view of the image needs {needed} bytes for the data of files, and some for the \
         names; {free} are free: make room, give --view-cache DIR elsewhere, or leave --kernel out \
         to mount through FUSE",
        cache.shown(),
    )
}
