//! The C library `libweald`: images read without a mount, by the calls of `include/weald.h`.
//!
//! The rules of the border: each call checks its pointers for NULL and trusts them otherwise, as C
//! does; no panic crosses it (it becomes EIO); an error is a negative errno, and its text is kept
//! for the thread. All `unsafe` of this crate is in this file. `docs/c.md` is for users.

mod failure;
mod listing;

use failure::{Failure, keep, last_error};
use listing::{WealdStat, stat_of};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use weald_format::FileKind;
use weald_image::{Image, Inode, OpenOptions, TreePlace};
use weald_vfs::Follow;

/// Version of the interface: `WEALD_C_VERSION`.
const VERSION: u32 = 1;
/// `WEALD_NOFOLLOW`.
const NOFOLLOW: c_int = 1;

/// An open image.
#[derive(Debug)]
pub struct WealdImage {
    image: Arc<Opened>,
}

struct Opened(Image);

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Image")
    }
}

/// An open regular file.
#[derive(Debug)]
pub struct WealdFile {
    image: Arc<Opened>,
    inode: Inode,
}

/// A callback for entries.
pub type WealdVisit =
    unsafe extern "C" fn(*mut c_void, *const c_char, usize, *const WealdStat) -> c_int;

/// Runs a call: its result, or a negative errno.
fn call(work: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => done,
        Ok(Err(failure)) => keep(failure),
        Err(_) => keep(Failure::panicked()),
    }
}

/// As [`call`], for results that are errors or small.
fn small(work: impl FnOnce() -> Result<i64, Failure>) -> c_int {
    c_int::try_from(call(work)).unwrap_or(c_int::MAX)
}

/// # Safety
/// `pointer` is NULL, or points to a value that lives and does not change during the call.
unsafe fn at<'a, T>(pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.ok_or_else(Failure::null)
}

/// # Safety
/// `text` is NULL, or points to bytes with a zero byte at the end that do not change during the
/// call.
unsafe fn bytes_of<'a>(text: *const c_char) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(Failure::null());
    }
    // SAFETY: not NULL; as the caller says otherwise.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// Stores a new object for the caller, who closes it.
///
/// # Safety
/// `out` is NULL, or points to room for a pointer.
unsafe fn hand_out<T>(out: *mut *mut T, object: T) -> Result<i64, Failure> {
    if out.is_null() {
        return Err(Failure::null());
    }
    // SAFETY: not NULL; as the caller says otherwise.
    unsafe { out.write(Box::into_raw(Box::new(object))) };
    Ok(0)
}

/// Copies `bytes` to `buf`, if it has room.
///
/// # Safety
/// `buf` is NULL, or points to `len` bytes that nobody else uses during the call.
unsafe fn copy_out(bytes: &[u8], buf: *mut c_char, len: usize) -> Result<i64, Failure> {
    if len > 0 {
        if buf.is_null() {
            return Err(Failure::null());
        }
        if bytes.len() > len {
            return Err(Failure::too_small(bytes.len()));
        }
        // SAFETY: `buf` has at least so many bytes, which are none of ours.
        unsafe {
            buf.cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }
    Ok(i64::try_from(bytes.len()).unwrap_or(i64::MAX))
}

fn inode_at(image: &Image, path: &[u8], flags: c_int) -> Result<Inode, Failure> {
    let follow = if flags & NOFOLLOW == 0 {
        Follow::Yes
    } else {
        Follow::No
    };
    let located = weald_vfs::resolve(image, path, follow);
    Ok(located.map_err(|error| Failure::of_path(&error))?.inode)
}

/// The version of the interface.
#[unsafe(no_mangle)]
pub extern "C" fn weald_c_version() -> u32 {
    VERSION
}

/// The text of the last error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn weald_error() -> *const c_char {
    last_error()
}

/// Opens an image.
///
/// # Safety
/// As `weald.h` says of the arguments; NULL is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weald_open(path: *const c_char, image: *mut *mut WealdImage) -> c_int {
    small(|| {
        // SAFETY: a string of the caller.
        let path = unsafe { bytes_of(path) }?;
        let place = TreePlace::parse(Path::new(OsStr::from_bytes(path)));
        if !place.path.is_empty() {
            return Err(Failure::invalid("a directory of an image cannot be opened"));
        }
        let options = OpenOptions {
            generation: place.generation().map_err(|error| Failure::of(&error))?,
            ..OpenOptions::default()
        };
        let opened = Image::open_path(&place.image, 0, &options);
        let opened = opened.map_err(|error| Failure::of(&error))?;
        let object = WealdImage {
            image: Arc::new(Opened(opened)),
        };
        // SAFETY: room of the caller.
        unsafe { hand_out(image, object) }
    })
}

/// Closes an image.
///
/// # Safety
/// `image` is NULL, or came from [`weald_open`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weald_close(image: *mut WealdImage) {
    call(|| {
        if !image.is_null() {
            // SAFETY: `hand_out` made it, and the caller gives it back.
            drop(unsafe { Box::from_raw(image) });
        }
        Ok(0)
    });
}

/// The attributes of an entry.
///
/// # Safety
/// As `weald.h` says of the arguments; NULL is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weald_lookup(
    image: *const WealdImage,
    path: *const c_char,
    flags: c_int,
    stat: *mut WealdStat,
) -> c_int {
    small(|| {
        // SAFETY: an open image and a string of the caller.
        let (image, path) = unsafe { (at(image)?, bytes_of(path)?) };
        let inode = inode_at(&image.image.0, path, flags)?;
        if stat.is_null() {
            return Err(Failure::null());
        }
        // SAFETY: not NULL; room of the caller.
        unsafe { stat.write(stat_of(&inode)) };
        Ok(0)
    })
}

/// Visits a directory.
///
/// # Safety
/// As `weald.h` says of the arguments; NULL is an error. `visit` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weald_readdir(
    image: *const WealdImage,
    path: *const c_char,
    visit: Option<WealdVisit>,
    context: *mut c_void,
) -> c_int {
    small(|| {
        // SAFETY: an open image and a string of the caller.
        let (image, path) = unsafe { (at(image)?, bytes_of(path)?) };
        let visit = visit.ok_or_else(Failure::null)?;
        let image = &image.image.0;
        let dir = inode_at(image, path, 0)?;
        if dir.kind != FileKind::Directory {
            return Err(Failure::not_a_directory(path));
        }
        let mut ended = 0;
        let mut name_z = Vec::new();
        let listed = image.read_dir(dir.ino, 0, &mut |_, name, inode| {
            name_z.clear();
            name_z.extend_from_slice(name);
            name_z.push(0);
            let stat = stat_of(inode);
            // SAFETY: the function of the caller, with values that live until it returns.
            ended = unsafe { visit(context, name_z.as_ptr().cast(), name.len(), &raw const stat) };
            if ended == 0 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        listed.map_err(|error| Failure::of(&error))?;
        Ok(ended.into())
    })
}

/// The target of a symlink.
///
/// # Safety
/// As `weald.h` says of the arguments; NULL is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weald_readlink(
    image: *const WealdImage,
    path: *const c_char,
    buf: *mut c_char,
    len: usize,
) -> i64 {
    call(|| {
        // SAFETY: an open image and a string of the caller.
        let (image, path) = unsafe { (at(image)?, bytes_of(path)?) };
        let image = &image.image.0;
        let link = inode_at(image, path, NOFOLLOW)?;
        if link.kind != FileKind::Symlink {
            return Err(Failure::invalid("the entry is not a symlink"));
        }
        let target = image
            .read_link(&link)
            .map_err(|error| Failure::of(&error))?;
        // SAFETY: room of the caller.
        unsafe { copy_out(&target, buf, len) }
    })
}

/// The names of the extended attributes of an entry.
///
/// # Safety
/// As `weald.h` says of the arguments; NULL is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weald_listxattr(
    image: *const WealdImage,
    path: *const c_char,
    flags: c_int,
    buf: *mut c_char,
    len: usize,
) -> i64 {
    call(|| {
        // SAFETY: an open image and a string of the caller.
        let (image, path) = unsafe { (at(image)?, bytes_of(path)?) };
        let image = &image.image.0;
        let inode = inode_at(image, path, flags)?;
        let found = image.xattrs(&inode).map_err(|error| Failure::of(&error))?;
        let mut names = Vec::new();
        for xattr in found.iter() {
            names.extend_from_slice(&xattr.name);
            names.push(0);
        }
        // SAFETY: room of the caller.
        unsafe { copy_out(&names, buf, len) }
    })
}

/// The value of an extended attribute.
///
/// # Safety
/// As `weald.h` says of the arguments; NULL is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weald_getxattr(
    image: *const WealdImage,
    path: *const c_char,
    name: *const c_char,
    flags: c_int,
    buf: *mut c_char,
    len: usize,
) -> i64 {
    call(|| {
        // SAFETY: an open image and strings of the caller.
        let (image, path, name) = unsafe { (at(image)?, bytes_of(path)?, bytes_of(name)?) };
        let image = &image.image.0;
        let inode = inode_at(image, path, flags)?;
        let found = image.xattrs(&inode).map_err(|error| Failure::of(&error))?;
        let xattr = found.iter().find(|xattr| xattr.name == name);
        let xattr = xattr.ok_or_else(|| Failure::no_xattr(name))?;
        // SAFETY: room of the caller.
        unsafe { copy_out(&xattr.value, buf, len) }
    })
}

/// Opens a regular file.
///
/// # Safety
/// As `weald.h` says of the arguments; NULL is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weald_file_open(
    image: *const WealdImage,
    path: *const c_char,
    file: *mut *mut WealdFile,
) -> c_int {
    small(|| {
        // SAFETY: an open image and a string of the caller.
        let (image, path) = unsafe { (at(image)?, bytes_of(path)?) };
        let inode = inode_at(&image.image.0, path, 0)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Failure::is_a_directory(path)),
            _ => return Err(Failure::invalid("the entry is not a regular file")),
        }
        let object = WealdFile {
            image: Arc::clone(&image.image),
            inode,
        };
        // SAFETY: room of the caller.
        unsafe { hand_out(file, object) }
    })
}

/// Reads bytes of a file.
///
/// # Safety
/// As `weald.h` says of the arguments; NULL is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weald_pread(
    file: *const WealdFile,
    buf: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    call(|| {
        // SAFETY: an open file of the caller.
        let file = unsafe { at(file) }?;
        if len == 0 {
            return Ok(0);
        }
        if buf.is_null() {
            return Err(Failure::null());
        }
        let left = file.inode.size.0.saturating_sub(offset);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        let len = len.min(READ_LEN_MAX);
        let read = file.image.0.read(&file.inode, offset, len);
        let read = read.map_err(|error| Failure::of(&error))?;
        let count = read.len().min(len);
        // SAFETY: `buf` has at least `len` bytes, which are none of ours.
        unsafe {
            buf.cast::<u8>()
                .copy_from_nonoverlapping(read.as_ptr(), count)
        };
        Ok(i64::try_from(count).unwrap_or(i64::MAX))
    })
}

/// Most bytes of one read, as on Linux: a longer one returns fewer.
const READ_LEN_MAX: usize = 0x7fff_f000;

/// Closes a file.
///
/// # Safety
/// `file` is NULL, or came from [`weald_file_open`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weald_file_close(file: *mut WealdFile) {
    call(|| {
        if !file.is_null() {
            // SAFETY: `hand_out` made it, and the caller gives it back.
            drop(unsafe { Box::from_raw(file) });
        }
        Ok(0)
    });
}
