//! Mounts of the kernel: a composefs image of the metadata as EROFS, and overlayfs over it and a
//! directory of objects. No process serves such a mount.
//!
//! 1. `record` is what a view cache notes about a view; `cache` makes views: the metadata image of
//!    a tree and the objects that it names.
//! 2. `warm` reads the metadata image into the page cache, in order.
//! 3. `upper` prepares the writable layer; `assemble` makes the mount by the mount API of Linux.
//! 4. `table` finds the mounts in `/proc/self/mountinfo`; `unmount` takes one away.
//! 5. `collect` removes views that no mount uses; `image_file` reads their metadata.
//! 6. `rootless` mounts for a user in a user namespace, with the metadata through FUSE.
//!
//! Invariants:
//! 1. A mount exists as a whole or not at all, because it gets its place last, by one system call.
//!    All that a killed process leaves are a view that the next mount uses, and an empty work
//!    directory, which the next mount uses or `unmount` removes.
//! 2. The overlay holds the only references to the EROFS mount and its loop device, so that they
//!    are gone when it is.
//! 3. A metadata image that the kernel has open keeps its name and its objects.

mod assemble;
mod cache;
mod collect;
mod image_file;
mod record;
mod rootless;
mod table;
mod unmount;
mod upper;
mod warm;

pub use assemble::Methods;
pub use cache::{View, ViewCache, ViewOptions};
pub use collect::{Collected, collect, make_room, trim};
pub use rootless::{check_rootless, is_in_user_namespace, mount_over, view};
pub use table::{KernelMount, mount_on, mounts};
pub use unmount::unmount;
pub use upper::work_dir_beside;

use crate::composefs::VerityPolicy;
use assemble::{Assembly, attach};
use rustix::mount::MountAttrFlags;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use upper::{Upper, XattrKind};
use weald_format::{Error, ErrorKind, Result};
use weald_image::Image;

/// How a mount behaves.
pub struct KernelOptions<'a> {
    /// Directory of a writable layer; it is made if it is missing.
    pub upper: Option<&'a Path>,
    /// Work directory of overlayfs; the default is beside the layer.
    pub work: Option<&'a Path>,
    /// fs-verity digest that the metadata image must have.
    pub expected_digest: Option<[u8; 32]>,
    /// `nosuid`, `nodev`, `noexec`, `noatime`.
    pub attributes: MountAttrFlags,
    /// Which of its methods the kernel may be asked for.
    pub methods: Methods,
    /// How the view is made.
    pub view: ViewOptions<'a>,
}

/// Mounts `image` on the directory `point`; `/proc/mounts` shows `source` as its origin, after
/// `weald:`. Makes the view in `cache` first, if it is not there; if the disk is full, it removes
/// views without mounts. Returns the view.
///
/// # Errors
/// `Unsupported` if the kernel, the file system of the cache or that of the writable layer lacks
/// something; `Invalid` if the metadata image has another digest than `expected_digest`; `Io`,
/// `Full`, `Limit`, `Corrupt`.
pub fn mount(
    image: &Image,
    cache: &ViewCache,
    source: &OsStr,
    point: BorrowedFd<'_>,
    options: &KernelOptions<'_>,
) -> Result<View> {
    check_rights()?;
    let view = match cache.make_view(image, &options.view) {
        Err(error) if error.kind() == ErrorKind::Full => {
            collect(cache, 0, false)?;
            cache.make_view(image, &options.view)?
        }
        other => other?,
    };
    let upper = match options.upper {
        Some(dir) => Some(Upper::prepare(
            dir,
            options.work,
            image,
            XattrKind::Trusted,
        )?),
        None => None,
    };
    let is_verified = match options.view.verity {
        VerityPolicy::Require => true,
        VerityPolicy::Try => view.record.is_protected,
        VerityPolicy::Off => false,
    };
    let assembly = Assembly {
        cache,
        view: &view,
        expected_digest: options.expected_digest,
        source,
        upper: upper.as_ref(),
        is_verified,
        attributes: options.attributes,
        methods: options.methods,
    };
    let made = assembly.make()?;
    attach(&made, point)?;
    Ok(view)
}

/// Refuses users who cannot mount.
///
/// # Errors
/// `Unsupported` without `CAP_SYS_ADMIN`.
pub fn check_rights() -> Result<()> {
    let sets = rustix::thread::capabilities(None);
    let has_right = sets.is_ok_and(|sets| {
        sets.effective
            .contains(rustix::thread::CapabilitySet::SYS_ADMIN)
    });
    match has_right {
        true => Ok(()),
        false => Err(Error::new(
            ErrorKind::Unsupported,
            "--kernel needs root (CAP_SYS_ADMIN): leave it out to mount through FUSE, or give \
             --overlay in a user namespace",
        )),
    }
}
