//! Mounts of the kernel: a composefs image of the metadata as EROFS, and overlayfs over it and a
//! directory of objects. No process serves such a mount.
//!
//! 1. `record` is what a view cache notes about a view; `dirs` reaches its files through
//!    descriptors; `cache` makes views: the metadata image of a tree and the objects that it names;
//!    `obtain` makes room for a new one within the limit.
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
mod dirs;
mod image_file;
mod obtain;
mod record;
mod rootless;
mod table;
mod unmount;
mod upper;
mod warm;

pub use assemble::Methods;
pub use cache::{View, ViewCache, ViewLimit, ViewOptions};
pub use collect::{Collected, Usage, collect, collect_gone, mounted_images, trim, usage};
pub use dirs::is_in_user_namespace;
pub use rootless::{check_rootless, mount_over, view};
pub use table::{KernelMount, mount_on, mounts};
pub use unmount::unmount;
pub use upper::{UpperLayer, XattrKind, layer_over, work_dir_beside};

use crate::composefs::VerityPolicy;
use assemble::{Assembly, attach};
use obtain::obtain;
use rustix::mount::MountAttrFlags;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use upper::Upper;
use weald_format::{Error, ErrorKind, Result};
use weald_image::Image;

/// How a mount behaves.
pub struct KernelOptions<'a> {
    /// The writable layer.
    pub upper: Option<UpperLayer<'a>>,
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
/// `weald:`. Makes the view in `cache` first, if it is not there; beyond the limit, and if the disk
/// is full, it removes views without mounts. Returns the view.
///
/// # Errors
/// `Limit` if the view does not fit into a strict limit;
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
    let view = obtain(image, cache, &options.view)?;
    let tree = &view.record.image_digest;
    let upper = options.upper.as_ref();
    let upper = upper.map(|layer| Upper::prepare(layer, image, tree, XattrKind::Trusted));
    let upper = upper.transpose()?;
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
    if has_right {
        Ok(())
    } else {
        Err(Error::new(
            ErrorKind::Unsupported,
            "--kernel needs root (CAP_SYS_ADMIN): leave it out to mount through FUSE, or give \
         --overlay in a user namespace",
        ))
    }
}
