//! Mounts a volume beside another one of its store, whose writer this server has.

use crate::hold_server::lock_file;
use crate::message::{MountRequest, Reply};
use crate::opened_request::OpenedRequest;
use crate::place::MountPlace;
use crate::served::Served;
use crate::shared::Shared;
use crate::volume_mount::Beside;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};

/// How long a session may take to notice that the kernel has ended its mount.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// Mounts the volume of `request`. The client shows with the last descriptor that it can write to
/// the store. Returns no reply if the server is ending: the client then tries again.
///
/// # Errors
/// `Busy` if the volume is mounted already; those of the mount.
pub(crate) fn mount_volume(
    shared: &Arc<Shared>,
    request: MountRequest,
    mut descriptors: Vec<OwnedFd>,
) -> Result<Option<Reply>> {
    let lock_file = lock_file(descriptors.pop().as_slice())?;
    let mounts = shared.mounts();
    let mut of_store = mounts.iter().filter(|served| served.is_of_store(lock_file));
    let mounted = of_store
        .clone()
        .find(|served| served.is_named(request.stored.as_deref()));
    match mounted.map(|served| place_of(served)) {
        None => {}
        // The client tries again, until the volume is closed.
        Some(MountPlace::Closing) => return Ok(None),
        Some(place) => {
            let advice = match place {
                MountPlace::Here(_) => "already: unmount it there first",
                _ => "and can be mounted again when no process has it any more",
            };
            let what = format!(
                "{}: {} {advice}",
                Path::new(&request.image).display(),
                place.describe(std::process::id()),
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
    }
    if of_store.clone().next().is_none() {
        return Ok(Some(Reply::NotHere));
    }
    let Some(store) = of_store.find_map(|served| served.store(lock_file)) else {
        // The last volume of the store is being closed.
        return Ok(None);
    };
    let opened = OpenedRequest::received(request, descriptors)?;
    let beside = Beside { store, lock_file };
    let is_mounted = shared.mount_beside(opened, Some(&beside))?;
    Ok(is_mounted.then_some(Reply::Mounted))
}

/// The place of a mount. After umount(2), a moment passes until the session has noticed.
fn place_of(served: &Served) -> MountPlace {
    const PAUSE: Duration = Duration::from_millis(10);
    let begun = Instant::now();
    loop {
        match served.place() {
            MountPlace::Nowhere if begun.elapsed() < NOTICE_TIMEOUT => std::thread::sleep(PAUSE),
            place => return place,
        }
    }
}
