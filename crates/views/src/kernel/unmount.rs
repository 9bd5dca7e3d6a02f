//! Takes a mount away. With the overlay the kernel drops the EROFS mount and its loop device.

use super::table::KernelMount;
use super::upper::{remove_work_dir, work_dir_beside};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use weald_format::{Error, ErrorKind, Result};

/// Unmounts `mount`, and removes the work directory that Weald made for it. With `is_lazy` a mount
/// in use disappears now and ends with its last user; its work directory stays until the layer is
/// mounted and unmounted again.
///
/// # Errors
/// `Busy` if it is in use; `Unsupported` for users who cannot unmount; `Io`.
pub fn unmount(mount: &KernelMount, is_lazy: bool) -> Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    if is_lazy {
        flags |= UnmountFlags::DETACH;
    }
    match rustix::mount::unmount(&mount.dir, flags) {
        Ok(()) => {}
        Err(Errno::BUSY) => {
            return Err(Error::new(
                ErrorKind::Busy,
                "it is in use (an open file or a working directory is in it)",
            ));
        }
        Err(Errno::PERM) => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a mount of the kernel is unmounted by root (CAP_SYS_ADMIN) only",
            ));
        }
        Err(errno) => return Err(Error::io("umount", errno.into())),
    }
    let made = mount.upper.as_deref().and_then(work_dir_beside);
    match (&mount.work, made) {
        (Some(work), Some(made)) if !is_lazy && *work == made => remove_work_dir(work)
            .map_err(|error| Error::io(format!("{}: removing it", work.display()), error)),
        _ => Ok(()),
    }
}
