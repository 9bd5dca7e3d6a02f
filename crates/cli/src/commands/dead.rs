//! Mounts that a directory has already: those of dead servers are taken away, and the same thing is
//! not mounted twice.

use crate::runtime_dir::runtime_dir_path;
use anyhow::{Context, Result, bail};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weald_daemon::{MountRequest, RuntimeDir};
use weald_fuse::{
    DeviceNo, MountEntry, MountOptions, is_dead, mount_at, mount_table, shown_source,
};
use weald_vfs::shown;

/// Whether the server of the mount `entry`, which is on top of its directory, has died.
fn has_died(entry: &MountEntry, runtime_dir: Option<&RuntimeDir>) -> bool {
    let server = runtime_dir.map(|runtime_dir| runtime_dir.mount_server(entry.device));
    // A server that lives may be stuck, so that the mount is asked only without one.
    !matches!(server, Some(Ok(Some(_)))) && is_dead(entry)
}

fn own_runtime_dir() -> Option<RuntimeDir> {
    RuntimeDir::find(&runtime_dir_path()).ok().flatten()
}

/// Takes away the mounts of Weald on top of `dir` whose servers have died, and says so.
///
/// # Errors
/// A dead mount that cannot be unmounted.
pub fn clear(dir: &Path) -> Result<()> {
    Ok(take_away(dir)?)
}

/// As [`clear`], with the error of the library.
///
/// # Errors
/// As [`clear`].
pub fn take_away(dir: &Path) -> weald_format::Result<()> {
    weald_fuse::take_away_dead(dir, |entry| has_died(entry, own_runtime_dir().as_ref()))
}

/// Refuses to mount the image of `request` on the directory that shows it already. Volumes are
/// refused by their server.
///
/// # Errors
/// If it is mounted there.
pub fn refuse_twice(request: &MountRequest) -> Result<()> {
    if request.is_volume {
        return Ok(());
    }
    let named = MountOptions::parse(&request.options)?.source_name;
    let source = named.map_or_else(|| request.image.clone(), Into::into);
    let entry = mount_at(Path::new(&request.dir)).filter(MountEntry::is_weald);
    if entry.is_some_and(|entry| entry.source.as_bytes() == shown_source(&source)) {
        bail!(
            "{}: is mounted on {} already: unmount it there first",
            shown(request.image.as_bytes()),
            shown(request.dir.as_bytes())
        );
    }
    Ok(())
}

/// All mounts of Weald in this mount namespace whose servers have died. `is_known` says whether a
/// server reports the mount with this device number.
///
/// # Errors
/// Those of reading the kernel's table.
pub fn all(is_known: impl Fn(DeviceNo) -> bool) -> Result<Vec<MountEntry>> {
    let runtime_dir = own_runtime_dir();
    let mut table = mount_table("self").context("/proc/self/mountinfo")?;
    table.retain(|entry| entry.is_weald() && !is_known(entry.device));
    // A mount below another one cannot be asked; its dead server has left no lock.
    table.retain(|entry| match mount_at(&entry.dir) {
        Some(top) if top.id == entry.id => has_died(entry, runtime_dir.as_ref()),
        _ => false,
    });
    Ok(table)
}
