//! The mount of a volume: opens the volume for writing and serves it.

use crate::message::MountRequest;
use crate::report::VolumeProperties;
use crate::store_owner::belongs_to_root_alone;
use crate::volume_options::VolumeMountOptions;
use rustix::fs::{AtFlags, Stat};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use weald_format::{Error, Result};
use weald_fuse::{Mount, MountPoint, RUNNING_SYNCS_MAX, Trace, WritableOptions};
use weald_store::{LOCK_FILE, Role, SYNCS_MAX, Store, StoreLocation};
use weald_vfs::WritableFs;
use weald_volume::{
    FollowedStore, FollowedVolume, OpenOptions, OpenStore, Volume, VolumeInfo, WithSnapshots,
};

// A volume has as many records of its log under way as its mount answers syncs at a time.
const _: () = assert!(RUNNING_SYNCS_MAX == SYNCS_MAX);

/// A volume that is mounted.
pub(crate) struct OpenVolume {
    pub(crate) source: VolumeSource,
    /// The file that the writer of its store locks.
    pub(crate) lock_file: FileId,
    pub(crate) properties: VolumeProperties,
}

/// What a mount of a volume shows.
#[derive(Clone)]
pub(crate) enum VolumeSource {
    /// A volume that changes by its mount alone.
    Own(Arc<Volume>),
    /// A volume of a standby.
    Followed(Arc<FollowedVolume>),
}

impl VolumeSource {
    /// The volume as it is now; `None` if it is gone.
    pub(crate) fn volume(&self) -> Option<Arc<Volume>> {
        match self {
            Self::Own(volume) => Some(Arc::clone(volume)),
            Self::Followed(followed) => followed.volume(),
        }
    }

    /// The store, for further volumes of it.
    pub(crate) fn store(&self) -> SharedStore {
        match self {
            Self::Own(volume) => SharedStore::Own(Arc::clone(volume.store())),
            Self::Followed(volume) => SharedStore::Followed(Arc::clone(volume.followed())),
        }
    }

    fn fs(&self) -> Arc<dyn WritableFs> {
        match self {
            Self::Own(volume) if volume.is_snapshot() => Arc::clone(volume) as Arc<dyn WritableFs>,
            Self::Own(volume) => Arc::new(WithSnapshots::new(Arc::clone(volume))),
            Self::Followed(volume) => Arc::clone(volume) as Arc<dyn WritableFs>,
        }
    }

    /// Writes the last changes.
    ///
    /// # Errors
    /// As [`Volume::close`].
    pub(crate) fn close(&self) -> Result<()> {
        match self {
            Self::Own(volume) => volume.close(),
            Self::Followed(volume) => volume.close(),
        }
    }
}

/// A store that is open for volumes.
pub(crate) enum SharedStore {
    /// One that its mounts change.
    Own(Arc<OpenStore>),
    /// A standby.
    Followed(Arc<FollowedStore>),
}

impl SharedStore {
    fn open(store: &Store, options: &OpenOptions) -> Result<Self> {
        let is_followed = options.is_read_only && store.role()? == Role::Standby;
        Ok(if is_followed {
            Self::Followed(FollowedStore::open(store, options.clone())?)
        } else {
            Self::Own(OpenStore::open(store, options)?)
        })
    }

    /// Whether `name` is that of a snapshot rather than of a volume.
    fn names_snapshot(&self, name: &str) -> bool {
        match self {
            Self::Own(store) => store.names_snapshot(name),
            Self::Followed(store) => store.shared().is_some_and(|s| s.names_snapshot(name)),
        }
    }

    fn add(&self, name: &str, options: OpenOptions) -> Result<(VolumeSource, VolumeInfo)> {
        let gone = || {
            Error::new(
                weald_format::ErrorKind::Busy,
                "the standby cannot be read now",
            )
        };
        Ok(match self {
            Self::Own(store) => {
                let info = store.info(name)?;
                let volume = Volume::open_in(store, name, options)?;
                (VolumeSource::Own(volume), info)
            }
            Self::Followed(store) => {
                let info = store.shared().ok_or_else(gone)?.info(name)?;
                let volume = store.add(name, options)?;
                (VolumeSource::Followed(Arc::new(volume)), info)
            }
        })
    }
}

/// A file of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    /// Number of its device.
    dev: u64,
    /// Number of its inode there.
    ino: u64,
}

impl FileId {
    /// The file with these attributes.
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
        }
    }
}

/// Whether `name` is a volume of `store`, or may be a snapshot of one, `VOLUME@NAME`.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn is_volume(store: &Store, name: &str) -> Result<bool> {
    let volumes = store.volume_names()?;
    let has = |name: &str| volumes.iter().any(|volume| volume == name);
    Ok(
        has(name)
            || snapshot_of(name).is_some_and(has) && !store.names()?.iter().any(|n| n == name),
    )
}

/// The volume in the name `VOLUME@NAME` of a snapshot.
fn snapshot_of(name: &str) -> Option<&str> {
    weald_store::split_state(name).map(|(volume, _)| volume)
}

/// A store that this process has open, and the file that its writer locks.
pub(crate) struct Beside {
    pub(crate) store: SharedStore,
    pub(crate) lock_file: FileId,
}

/// Opens the volume of `request`, whose store is the directory `holder`, and mounts it on `point`:
/// beside other volumes of a store that is open, if that is given.
pub(crate) fn mount(
    (holder, store_path): (OwnedFd, &Path),
    request: &MountRequest,
    point: &MountPoint,
    beside: Option<&Beside>,
) -> Result<(Mount, OpenVolume)> {
    let is_roots = belongs_to_root_alone(&holder);
    let mut options = VolumeMountOptions::parse_in(is_roots, &request.options)?;
    let name = request
        .stored
        .as_deref()
        .ok_or_else(|| Error::invalid("expected the name of a volume"))?;
    if request.prefetch.is_some() || request.record.is_some() {
        let what = "a volume has no --prefetch and no --record: images have them";
        return Err(Error::invalid(what));
    }
    let lock_file = rustix::fs::statat(&holder, LOCK_FILE, AtFlags::SYMLINK_NOFOLLOW);
    let lock_file = lock_file.map_err(|errno| {
        let path = store_path.join(LOCK_FILE);
        Error::io(path.display().to_string(), errno.into())
    })?;
    let lock_file = FileId::of(&lock_file);
    let dir = Path::new(&request.dir).display();
    let writer_name = format!("process {} (weald mount, on {dir})", std::process::id());
    let opened;
    let store = match beside {
        Some(beside) if beside.lock_file != lock_file => {
            return Err(Error::invalid("the lock belongs to another store"));
        }
        Some(beside) => {
            options.writable.is_read_only |= beside.store.names_snapshot(name);
            &beside.store
        }
        None => {
            let location = StoreLocation::Dir {
                dir: holder,
                shown: store_path.to_owned(),
            };
            let location = location.open()?;
            options.writable.is_read_only |= !location.volume_names()?.iter().any(|n| n == name);
            opened = SharedStore::open(&location, &options.open_options(writer_name.clone()))?;
            &opened
        }
    };
    let open_options = options.open_options(writer_name);
    let trace = request.trace.as_ref();
    let (source, info) = store.add(name, open_options)?;
    let writable = WritableOptions {
        ignores_case: info.is_case_insensitive,
        changes_elsewhere: matches!(source, VolumeSource::Followed(_)),
        ..options.writable
    };
    let trace = trace.map(|path| Trace::create(path.as_ref())).transpose()?;
    let shown = &request.image;
    let mount =
        weald_fuse::mount_writable(source.fs(), shown, point, &options.mount, &writable, trace);
    let mount = mount.map_err(|error| error.context(point.path().display()))?;
    let properties = (&info).into();
    let open = OpenVolume {
        source,
        lock_file,
        properties,
    };
    Ok((mount, open))
}
