//! Volumes of a standby that are mounted: they are read-only, and move on to later states of the
//! replica that the standby follows.
//!
//! A thread looks for new states. When there are some, it waits until no request runs, closes the
//! volumes, lets the store follow, and opens them again. Requests wait meanwhile. An inode keeps
//! its number; one that is gone is not found any more.

use crate::background;
use crate::open_store::OpenStore;
use crate::options::OpenOptions;
use crate::snapshot_dir::WithSnapshots;
use crate::volume::Volume;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Ino, Result};
use weald_store::faults::Faults;
use weald_store::{FollowOptions, Place, PlaceLocation, Store};
use weald_vfs::{
    AllocateMode, Failure, FilePlace, FsCapacity, Listed, Nanoseconds, NewInode, NewStat, Outcome,
    RenameMode, Stat, WritableFs, XattrMode,
};

/// Time between two looks for new states, if the user has set none.
const EVERY_DEFAULT: Duration = Duration::from_secs(10);
/// The shortest time that a user can set.
const EVERY_MIN: Duration = Duration::from_secs(1);
/// Time between two looks at whether anybody needs the thread.
const PAUSE: Duration = Duration::from_millis(200);

/// A standby with volumes that are mounted.
pub struct FollowedStore {
    store: Store,
    /// How the store is opened.
    options: OpenOptions,
    open: RwLock<Open>,
    /// The last error, which is logged once.
    error: Mutex<String>,
}

/// What is open.
#[derive(Default)]
struct Open {
    /// `None` while the tables change, or if they cannot be read.
    shared: Option<Arc<OpenStore>>,
    volumes: BTreeMap<String, Opened>,
}

struct Opened {
    options: OpenOptions,
    /// `None` if the volume is gone.
    volume: Option<WithSnapshots>,
}

impl std::fmt::Debug for FollowedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FollowedStore").finish_non_exhaustive()
    }
}

impl FollowedStore {
    /// Opens a standby, and starts the thread that follows.
    ///
    /// # Errors
    /// `Busy` if another process follows just now; `Corrupt`, `Io`.
    pub fn open(store: &Store, options: OpenOptions) -> Result<Arc<Self>> {
        let shared = OpenStore::open(store, &options)?;
        let followed = Arc::new(Self {
            store: store.clone(),
            options,
            open: RwLock::new(Open {
                shared: Some(shared),
                volumes: BTreeMap::new(),
            }),
            error: Mutex::default(),
        });
        let weak = Arc::downgrade(&followed);
        background::start("weald-follow", move || run(&weak))?;
        Ok(followed)
    }

    /// Opens the volume `name`.
    ///
    /// # Errors
    /// As [`Volume::open_in`].
    pub fn add(self: &Arc<Self>, name: &str, options: OpenOptions) -> Result<FollowedVolume> {
        let mut open = self.open.write();
        let shared = open.shared.as_ref().ok_or_else(|| {
            let what = format!("{}: cannot be read just now", self.store.shown());
            Error::new(ErrorKind::Busy, what)
        })?;
        let volume = Volume::open_in(shared, name, options.clone())?;
        let opened = Opened {
            options,
            volume: Some(WithSnapshots::new(volume)),
        };
        open.volumes.insert(name.to_owned(), opened);
        Ok(FollowedVolume {
            followed: self.clone(),
            name: name.to_owned(),
        })
    }

    /// The open tables; `None` while they change.
    pub fn shared(&self) -> Option<Arc<OpenStore>> {
        self.open.read().shared.clone()
    }

    /// Takes new states, if there are some.
    fn step(&self, place: &dyn Place) -> Result<()> {
        let is_open = self.open.read().shared.is_some();
        if is_open && !self.store.may_follow(place)? {
            return Ok(());
        }
        let mut open = self.open.write();
        for opened in open.volumes.values_mut() {
            if let Some(volume) = opened.volume.take()
                && let Err(error) = volume.volume().close()
            {
                log::warn!("{}: {error}", self.store.shown());
            }
        }
        open.shared = None;
        let followed = self.store.follow(
            place,
            &FollowOptions {
                writer_name: self.options.writer_name.clone(),
                accepts_damage: false,
                faults: Faults::default(),
            },
        );
        // Whatever has happened, what is there can be read.
        self.reopen(&mut open)?;
        for what in followed?.damage {
            log::warn!("{}: {what}", self.store.shown());
        }
        Ok(())
    }

    fn reopen(&self, open: &mut Open) -> Result<()> {
        let shared = OpenStore::open(&self.store, &self.options)?;
        for (name, opened) in &mut open.volumes {
            match Volume::open_in(&shared, name, opened.options.clone()) {
                Ok(volume) => opened.volume = Some(WithSnapshots::new(volume)),
                Err(error) => log::warn!("{}:{name}: {error}", self.store.shown()),
            }
        }
        open.shared = Some(shared);
        Ok(())
    }

    /// Logs an error, unless it was the last one.
    fn tell(&self, error: Option<&Error>) {
        let text = error.map_or(String::new(), Error::with_causes);
        let mut last = self.error.lock();
        if *last != text {
            if !text.is_empty() {
                log::warn!("the standby does not follow: {text}");
            }
            *last = text;
        }
    }
}

fn run(weak: &Weak<FollowedStore>) {
    let mut place: Option<Box<dyn Place>> = None;
    let mut last = Instant::now();
    loop {
        thread::sleep(PAUSE);
        let Some(followed) = weak.upgrade() else {
            return;
        };
        if last.elapsed() < EVERY_MIN {
            continue;
        }
        let every = match followed.store.standby_status() {
            Ok(Some(status)) if status.settings.every_s > 0 => {
                Duration::from_secs(status.settings.every_s)
            }
            _ => EVERY_DEFAULT,
        };
        if last.elapsed() < every {
            continue;
        }
        last = Instant::now();
        let opened = match place.take() {
            Some(place) => Ok(place),
            None => open_place(&followed.store),
        };
        let done = opened.and_then(|opened| {
            let done = followed.step(&*opened);
            // A connection that failed is made again.
            place = Some(opened).filter(|_| done.is_ok());
            done
        });
        followed.tell(done.as_ref().err());
    }
}

fn open_place(store: &Store) -> Result<Box<dyn Place>> {
    let status = store.standby_status()?;
    let status = status.ok_or_else(|| Error::invalid("the store is no standby any more"))?;
    PlaceLocation::parse(&status.place)?.open()
}

/// A volume of a standby, which moves on.
#[derive(Debug)]
pub struct FollowedVolume {
    followed: Arc<FollowedStore>,
    name: String,
}

impl FollowedVolume {
    /// The volume as it is now; `None` if it is gone.
    pub fn volume(&self) -> Option<Arc<Volume>> {
        let open = self.followed.open.read();
        let opened = open.volumes.get(&self.name)?;
        opened.volume.as_ref().map(|volume| volume.volume().clone())
    }

    /// The standby, for further volumes of it.
    pub fn followed(&self) -> &Arc<FollowedStore> {
        &self.followed
    }

    /// Closes the volume.
    ///
    /// # Errors
    /// As [`Volume::close`].
    pub fn close(&self) -> Result<()> {
        let opened = self.followed.open.write().volumes.remove(&self.name);
        match opened.and_then(|opened| opened.volume) {
            Some(volume) => volume.volume().close(),
            None => Ok(()),
        }
    }

    /// Does something with the volume, which stays what it is meanwhile.
    fn with<T>(&self, what: impl FnOnce(&WithSnapshots) -> Outcome<T>) -> Outcome<T> {
        let open: RwLockReadGuard<'_, Open> = self.followed.open.read();
        let opened = open.volumes.get(&self.name);
        match opened.and_then(|opened| opened.volume.as_ref()) {
            Some(volume) => what(volume),
            None => Err(Failure::from(Errno::STALE)),
        }
    }
}

impl WritableFs for FollowedVolume {
    fn stat(&self, ino: Ino) -> Outcome<Stat> {
        self.with(|volume| volume.stat(ino))
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Outcome<Stat> {
        self.with(|volume| volume.lookup(dir, name))
    }

    fn parent(&self, dir: Ino) -> Outcome<Ino> {
        self.with(|volume| volume.parent(dir))
    }

    fn list(&self, dir: Ino, after: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Outcome<()> {
        self.with(|volume| volume.list(dir, after, visit))
    }

    fn set_stat(&self, ino: Ino, new: &NewStat, now: Nanoseconds) -> Outcome<Stat> {
        self.with(|volume| volume.set_stat(ino, new, now))
    }

    fn create(&self, dir: Ino, name: &[u8], new: &NewInode<'_>, now: Nanoseconds) -> Outcome<Stat> {
        self.with(|volume| volume.create(dir, name, new, now))
    }

    fn create_unnamed(&self, dir: Ino, new: &NewInode<'_>, now: Nanoseconds) -> Outcome<Stat> {
        self.with(|volume| volume.create_unnamed(dir, new, now))
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        self.with(|volume| volume.link(ino, dir, name, now))
    }

    fn unlink(&self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        self.with(|volume| volume.unlink(dir, name, now))
    }

    fn rmdir(&self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        self.with(|volume| volume.rmdir(dir, name, now))
    }

    fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Nanoseconds,
    ) -> Outcome<Option<Stat>> {
        self.with(|volume| volume.rename(from, to, mode, now))
    }

    fn forget(&self, ino: Ino) -> Outcome<()> {
        self.with(|volume| volume.forget(ino))
    }

    fn read_link(&self, ino: Ino) -> Outcome<Vec<u8>> {
        self.with(|volume| volume.read_link(ino))
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Outcome<()> {
        self.with(|volume| volume.read(ino, offset, len, out))
    }

    fn write(&self, ino: Ino, offset: u64, bytes: &[u8], now: Nanoseconds) -> Outcome<()> {
        self.with(|volume| volume.write(ino, offset, bytes, now))
    }

    fn allocate(
        &self,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<()> {
        self.with(|volume| volume.allocate(ino, mode, offset, len, now))
    }

    fn copy_range(
        &self,
        from: FilePlace,
        to: FilePlace,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<u64> {
        self.with(|volume| volume.copy_range(from, to, len, now))
    }

    fn seek(&self, ino: Ino, offset: u64, wants_hole: bool) -> Outcome<u64> {
        self.with(|volume| volume.seek(ino, offset, wants_hole))
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Outcome<Vec<u8>> {
        self.with(|volume| volume.xattr(ino, name))
    }

    fn xattr_names(&self, ino: Ino) -> Outcome<Vec<Vec<u8>>> {
        self.with(|volume| volume.xattr_names(ino))
    }

    fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        now: Nanoseconds,
    ) -> Outcome<()> {
        self.with(|volume| volume.set_xattr(ino, name, value, mode, now))
    }

    fn remove_xattr(&self, ino: Ino, name: &[u8], now: Nanoseconds) -> Outcome<()> {
        self.with(|volume| volume.remove_xattr(ino, name, now))
    }

    fn sync(&self) -> Outcome<()> {
        Ok(())
    }

    fn has_flags(&self) -> bool {
        true
    }

    fn capacity(&self) -> Outcome<FsCapacity> {
        self.with(|volume| volume.capacity())
    }

    fn capacity_at(&self, ino: Ino) -> Outcome<FsCapacity> {
        self.with(|volume| volume.capacity_at(ino))
    }
}
