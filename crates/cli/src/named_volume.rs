//! The volume that a command line names, by `STORE:NAME`.

use crate::open_store::{open_dir, show_path};
use crate::reported_mounts::{Ask, Mounted, mount_of, place_of};
use crate::runtime_dir::runtime_dir_path;
use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};
use weald_daemon::{MountPlace, MountReport, RuntimeDir, VolumeProperties};
use weald_fuse::DeviceNo;
use weald_store::Store;

/// How long a server may take to notice that the kernel has ended its mount.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause between two looks at a mount that is ending.
const PAUSE: Duration = Duration::from_millis(20);

/// A volume of a store.
#[derive(Args, Debug)]
pub struct VolumePath {
    /// Volume: STORE:NAME
    #[arg(value_name = "STORE:NAME", value_hint = ValueHint::DirPath)]
    pub volume: PathBuf,
}

/// A volume that a command names.
pub struct Named {
    pub store: Store,
    /// Directory of the store, without symlinks.
    pub dir: PathBuf,
    pub name: String,
}

/// `path` from the root of the volume on, relative.
pub fn inner_path(path: &Path) -> anyhow::Result<PathBuf> {
    let mut inner = PathBuf::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => inner.push(name),
            _ => bail!(
                "{}: expected a path in the volume, from its root on, without '..'",
                show_path(path)
            ),
        }
    }
    Ok(inner)
}

impl Named {
    /// Opens the store of `STORE:NAME`.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        if let Some((store, name)) = weald_store::split(path) {
            return Ok(Self {
                store: open_dir(&store)?,
                dir: store.canonicalize()?,
                name,
            });
        }
        let words = show_path(path);
        if weald_store::is_store(path) {
            bail!("{words}: names a store: add the volume, as in {words}:NAME");
        }
        let text = path.as_os_str().as_bytes();
        if let Some(at) = text.iter().rposition(|&byte| byte == b':') {
            let store = std::ffi::OsStr::from_bytes(text.get(..at).unwrap_or_default());
            open_dir(Path::new(store))?;
        }
        bail!("{words}: expected STORE:NAME, with the directory of a store before the colon")
    }

    /// As [`Named::open`]; a store stands for all its volumes.
    pub fn open_all(path: &Path) -> anyhow::Result<Vec<Self>> {
        if weald_store::split(path).is_some() || !weald_store::is_store(path) {
            return Ok(vec![Self::open(path)?]);
        }
        let names = open_dir(path)?.volume_names()?;
        let dir = path.canonicalize()?;
        let each = names.into_iter().map(|name| {
            let (store, dir) = (open_dir(path)?, dir.clone());
            Ok(Self { store, dir, name })
        });
        each.collect()
    }

    /// `STORE:NAME` in messages.
    pub fn shown(&self) -> String {
        format!("{}:{}", self.store.shown(), self.name)
    }

    /// Properties of the volume, and its mount.
    pub fn properties(&self) -> anyhow::Result<(VolumeProperties, Option<Mounted>)> {
        let mounted = self.mounted(Ask::Space)?;
        if let Some((_, mount)) = &mounted
            && let Some(properties) = &mount.volume
        {
            return Ok((properties.clone(), mounted));
        }
        let volumes = weald_volume::list(&self.store)?;
        let found = volumes.iter().find(|volume| volume.name == self.name);
        let found = found.map(VolumeProperties::from);
        Ok((found.with_context(|| self.missing())?, None))
    }

    fn missing(&self) -> String {
        let (words, store) = (self.shown(), self.store.shown());
        format!("{words}: no such volume: 'weald volume ls {store}' lists them")
    }

    /// Refuses a name that is no volume.
    pub fn find(&self) -> anyhow::Result<()> {
        if self.store.names()?.contains(&self.name) {
            bail!(
                "{}: names an image, which does not change, and this command takes a volume",
                self.shown()
            );
        }
        let volumes = self.store.volume_names()?;
        if !volumes.contains(&self.name) {
            if let Some((volume, _)) = weald_store::split_state(&self.name)
                && volumes.iter().any(|name| name == volume)
            {
                bail!(
                    "{}: names a snapshot, and this command takes a volume",
                    self.shown()
                );
            }
            bail!("{}", self.missing());
        }
        Ok(())
    }

    /// Refuses a mounted volume.
    pub fn refuse_mounted(&self, what: &str) -> anyhow::Result<()> {
        if let Some((pid, mount)) = self.mounted(Ask::Mounts)? {
            let place = place_of(&mount);
            bail!(
                "{}: {}, and cannot be {what} meanwhile{}",
                self.shown(),
                place.describe(pid),
                match place {
                    MountPlace::Here(_) => ": unmount it first, with 'weald umount'",
                    _ => "",
                }
            );
        }
        Ok(())
    }

    /// The mount of this volume, and the process id of its server; `None` if no server of this
    /// user has it. Waits for a server that is closing the volume.
    pub fn mounted(&self, ask: Ask) -> anyhow::Result<Option<Mounted>> {
        let mut path = self.dir.clone().into_os_string().into_vec();
        path.push(b':');
        path.extend_from_slice(self.name.as_bytes());
        let begun = Instant::now();
        loop {
            let found = mount_of(ask, |mount| mount.image.as_bytes() == path)?;
            match &found {
                Some((pid, mount)) if mount.is_over => wait_for_closing(*pid, mount)?,
                // After umount(2), a moment passes until the server has noticed.
                Some((_, mount))
                    if begun.elapsed() < NOTICE_TIMEOUT
                        && place_of(mount) == MountPlace::Nowhere =>
                {
                    std::thread::sleep(PAUSE);
                }
                _ => return Ok(found),
            }
        }
    }
}

/// Waits while the server `pid` closes what it had mounted.
fn wait_for_closing(pid: u32, mount: &MountReport) -> anyhow::Result<()> {
    let device = DeviceNo::parse(&mount.device).unwrap_or_default();
    let server = match RuntimeDir::find(&runtime_dir_path())? {
        Some(runtime_dir) => runtime_dir.mount_server(device)?,
        None => None,
    };
    if let Some(server) = server.filter(|server| server.pid() == pid) {
        let waited = server.wait_while_working();
        waited.with_context(|| format!("{}: is being closed", mount.image.display()))?;
    }
    std::thread::sleep(PAUSE);
    Ok(())
}
