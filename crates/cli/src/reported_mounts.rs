//! Mounts of this user, as their servers report them.

use crate::runtime_dir::runtime_dir_path;
use std::path::Path;
use weald_daemon::{MountPlace, MountReport, RuntimeDir, reports, space_reports};
use weald_fuse::{DeviceNo, Identity};

/// Information that the command requests from the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Their mounts.
    Mounts,
    /// Also the space of volumes, which takes longer.
    Space,
}

/// Process id of a server, and one of its mounts.
pub type Mounted = (u32, MountReport);

/// Where a mount is.
pub fn place_of(mount: &MountReport) -> MountPlace {
    let what = Identity {
        device: DeviceNo::parse(&mount.device).unwrap_or_default(),
        dir: Path::new(&mount.dir).to_owned(),
        source: mount.image.clone(),
    };
    MountPlace::of(&what, mount.is_over)
}

/// The first mount of this user that `is_wanted`, and the process id of its server.
pub fn mount_of(
    ask: Ask,
    is_wanted: impl Fn(&MountReport) -> bool,
) -> anyhow::Result<Option<Mounted>> {
    let Some(runtime_dir) = RuntimeDir::find(&runtime_dir_path())? else {
        return Ok(None);
    };
    let servers = match ask {
        Ask::Mounts => reports(&runtime_dir)?,
        Ask::Space => space_reports(&runtime_dir)?,
    };
    let mut mounts = servers.into_iter().flat_map(|server| {
        let pid = server.pid;
        server.mounts.into_iter().map(move |mount| (pid, mount))
    });
    Ok(mounts.find(|(_, mount)| is_wanted(mount)))
}
