//! A mount that follows the name of an image in a store.
//!
//! The root of the mount has no number of its own image: the kernel asks for its entries each time,
//! and gets those of the image that has the name at that moment. An entry below has a number with
//! the number of its *version* in the high bits, so that numbers of two images never meet, and what
//! the kernel keeps of one is never shown for the other. A version lasts while it has the name,
//! while the kernel knows one of its numbers (an open file, a working directory, a name that it
//! keeps), and while its root is being listed.
//!
//! **When it looks.** Each request on the root compares the file of the map with what it was: one
//! stat(2). So who opens a file after the name has moved gets the new image, without a delay. A
//! thread of each mount waits for changes of the directory, too: it makes the kernel drop the names
//! of the old root, so that an image that nobody reads goes, and its space with it.

use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, statat};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, FileKind, InodeNo, ROOT_INODE, Result, XattrSet};
use weald_fuse::{Capacity, Features, Mount, Tree, VisitEntry};
use weald_image::{FileBytes, Image, Inode, Run};

/// Low bits of a number: the inode number in its image. No image has so many entries.
const INO_BITS: u32 = 44;
const INO_MASK: u64 = (1 << INO_BITS) - 1;
/// Most versions of one mount. Numbers are not used again.
const VERSION_NO_MAX: u64 = (1 << (63 - INO_BITS)) - 1;
/// How long a name is left alone whose image cannot be opened.
const RETRY: Duration = Duration::from_secs(1);
/// How often the thread looks for versions that have ended, while there are old ones.
const SWEEP: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// What tells the file of a map from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MapFile {
    device: u64,
    ino: u64,
    len: i64,
    changed: (i64, i64),
}

/// One image that the name has meant.
struct Version {
    no: u64,
    image: Arc<Image>,
    /// Its root, or the directory of `subdir=`.
    root: InodeNo,
    /// Answers that named its inodes, and listings of its root.
    references: AtomicI64,
}

struct Versions {
    current: Arc<Version>,
    /// Those that the kernel knows, by number.
    older: BTreeMap<u64, Arc<Version>>,
}

/// What was found under the name.
#[derive(Debug, Default)]
struct Seen {
    file: Option<MapFile>,
    /// One whose image could not be opened, and when to try it again.
    failed: Option<(MapFile, Instant)>,
}

/// Opens the image that has the name.
type Open = dyn Fn() -> Result<Arc<Image>> + Send + Sync;

/// The tree of a mount that follows a name.
pub(crate) struct Followed {
    /// The directory of the store.
    store: OwnedFd,
    /// The file of the map, below it.
    map: PathBuf,
    subdir: Option<PathBuf>,
    open: Box<Open>,
    versions: RwLock<Versions>,
    seen: Mutex<Seen>,
}

impl Followed {
    /// Follows the image `name` of the store in the directory `store`, which is `image` so far.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` if the image has no directory `subdir`.
    pub(crate) fn new(
        (store, name): (OwnedFd, &str),
        image: Arc<Image>,
        subdir: Option<PathBuf>,
        open: Box<Open>,
    ) -> Result<Self> {
        let current = Arc::new(Version::new(1, image, subdir.as_deref())?);
        Ok(Self {
            store,
            map: Path::new("images").join(name),
            subdir,
            open,
            versions: RwLock::new(Versions {
                current,
                older: BTreeMap::new(),
            }),
            seen: Mutex::default(),
        })
    }

    /// The image that the mount shows to those who open something now.
    pub(crate) fn image(&self) -> Arc<Image> {
        Arc::clone(&self.versions.read().current.image)
    }

    /// Looks whether the name means another image, and shows it then.
    fn look(&self) {
        let mut seen = self.seen.lock();
        // A name that is gone shows what it meant.
        let Some(file) = self.map_file() else { return };
        let waits = |(failed, time): (MapFile, Instant)| failed == file && Instant::now() < time;
        if seen.file == Some(file) || seen.failed.is_some_and(waits) {
            return;
        }
        match self.switch() {
            Ok(()) => {
                *seen = Seen {
                    file: Some(file),
                    failed: None,
                }
            }
            Err(error) => {
                log::warn!("{}: the mount stays as it is: {error}", self.map.display());
                seen.failed = Some((file, Instant::now() + RETRY));
            }
        }
    }

    fn map_file(&self) -> Option<MapFile> {
        let stat = statat(&self.store, &self.map, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(MapFile {
            device: stat.st_dev,
            ino: stat.st_ino,
            len: stat.st_size,
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
        })
    }

    /// Opens the image of the name. The map may have changed although the image did not, because
    /// blocks have moved.
    fn switch(&self) -> Result<()> {
        let image = (self.open)()?;
        let before = self.current();
        let (old, new) = (before.image.summary(), image.summary());
        if (old.image_digest, old.generation) == (new.image_digest, new.generation) {
            return Ok(());
        }
        if before.no >= VERSION_NO_MAX {
            return Err(Error::limit("the name has moved too often: mount it again"));
        }
        let next = Version::new(before.no + 1, image, self.subdir.as_deref())?;
        let mut versions = self.versions.write();
        let old = std::mem::replace(&mut versions.current, Arc::new(next));
        versions.older.insert(old.no, old);
        Ok(())
    }

    fn current(&self) -> Arc<Version> {
        Arc::clone(&self.versions.read().current)
    }

    fn version(&self, no: u64) -> Result<Arc<Version>> {
        let versions = self.versions.read();
        if versions.current.no == no {
            return Ok(Arc::clone(&versions.current));
        }
        let found = versions.older.get(&no).map(Arc::clone);
        found.ok_or_else(|| Error::new(ErrorKind::Moved, "an image that was replaced is gone"))
    }

    /// The version of a number, and the number in its image. For the root it is the one that has
    /// the name now.
    fn resolve(&self, ino: InodeNo) -> Result<(Arc<Version>, InodeNo)> {
        if ino == ROOT_INODE {
            self.look();
            let version = self.current();
            let root = version.root;
            return Ok((version, root));
        }
        let version = self.version(ino.0 >> INO_BITS)?;
        Ok((version, InodeNo(ino.0 & INO_MASK)))
    }

    /// The version of an inode that this tree has shown, and the inode in its image.
    fn inner(&self, inode: &Inode) -> Result<(Arc<Version>, Inode)> {
        let version = self.version(inode.name_no.0 >> INO_BITS)?;
        let ino = if inode.ino == ROOT_INODE {
            version.root
        } else {
            InodeNo(inode.ino.0 & INO_MASK)
        };
        let name_no = InodeNo(inode.name_no.0 & INO_MASK);
        let inode = Inode {
            ino,
            name_no,
            ..inode.clone()
        };
        Ok((version, inode))
    }

    /// Drops old versions that nobody uses. Returns whether some are left.
    fn sweep(&self) -> bool {
        let mut versions = self.versions.write();
        versions.older.retain(|_, version| {
            // A request that has the version may be about to count.
            version.references.load(Ordering::SeqCst) > 0 || Arc::strong_count(version) > 1
        });
        !versions.older.is_empty()
    }

    fn older(&self) -> Vec<Arc<Version>> {
        self.versions
            .read()
            .older
            .values()
            .map(Arc::clone)
            .collect()
    }
}

impl Version {
    fn new(no: u64, image: Arc<Image>, subdir: Option<&Path>) -> Result<Self> {
        let mut root = ROOT_INODE;
        for component in subdir.into_iter().flat_map(Path::components) {
            let Component::Normal(name) = component else {
                continue;
            };
            let found = Image::lookup(&image, root, name.as_bytes())?;
            let dir = found.filter(|inode| inode.kind == FileKind::Directory);
            let dir = dir.ok_or_else(|| {
                let shown = name.display();
                Error::not_found(format!("subdir: the image has no directory {shown}"))
            })?;
            root = dir.ino;
        }
        if image.summary().name_count > INO_MASK {
            return Err(Error::limit(
                "an image with so many entries is not followed",
            ));
        }
        Ok(Self {
            no,
            image,
            root,
            references: AtomicI64::new(0),
        })
    }

    /// The number of an inode of this version for the kernel.
    fn number(&self, ino: InodeNo) -> InodeNo {
        if ino == self.root {
            ROOT_INODE
        } else {
            self.real_number(ino)
        }
    }

    /// As [`Version::number`]; the root of this version has a number, too.
    fn real_number(&self, ino: InodeNo) -> InodeNo {
        InodeNo(self.no << INO_BITS | ino.0)
    }

    fn shown(&self, inode: &Inode) -> Inode {
        Inode {
            ino: self.number(inode.ino),
            name_no: self.real_number(inode.name_no),
            ..inode.clone()
        }
    }

    fn count(&self, change: i64) {
        self.references.fetch_add(change, Ordering::SeqCst);
    }
}

impl Tree for Followed {
    type Chunk = FileBytes;

    // Those of a later image are not known.
    fn features(&self) -> Features {
        Features {
            has_xattrs: true,
            has_acls: true,
            has_holes: true,
            has_btimes: true,
            is_plain: false,
        }
    }

    fn capacity(&self) -> Capacity {
        self.look();
        self.current().image.capacity()
    }

    fn inode(&self, ino: InodeNo) -> Result<Inode> {
        let (version, ino) = self.resolve(ino)?;
        Ok(version.shown(&Image::inode(&version.image, ino)?))
    }

    fn parent(&self, ino: InodeNo) -> Result<InodeNo> {
        let (version, ino) = self.resolve(ino)?;
        if ino == version.root {
            return Ok(ROOT_INODE);
        }
        Ok(version.number(Image::parent(&version.image, ino)?))
    }

    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<Inode>> {
        let (version, dir) = self.resolve(dir)?;
        let found = Image::lookup(&version.image, dir, name)?;
        Ok(found.map(|inode| {
            version.count(1);
            version.shown(&inode)
        }))
    }

    fn read_dir(&self, dir: InodeNo, start: u64, visit: &mut VisitEntry<'_>) -> Result<()> {
        let (version, dir) = self.resolve(dir)?;
        Image::read_dir(&version.image, dir, start, &mut |index, name, inode| {
            visit(index, name, &version.shown(inode))
        })
    }

    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        let (version, inode) = self.inner(inode)?;
        Image::read_link(&version.image, &inode)
    }

    fn xattrs(&self, inode: &Inode) -> Result<Arc<XattrSet>> {
        let (version, inode) = self.inner(inode)?;
        Image::xattrs(&version.image, &inode)
    }

    fn read(&self, inode: &Inode, offset: u64, len: usize) -> Result<Vec<FileBytes>> {
        let (version, inode) = self.inner(inode)?;
        version.image.read_vectored(&inode, offset, len)
    }

    fn runs(
        &self,
        inode: &Inode,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        let (version, inode) = self.inner(inode)?;
        Image::runs(&version.image, &inode, offset, visit)
    }

    fn stop_waiting(&self) {
        self.current().image.stop_waiting();
        for version in self.older() {
            version.image.stop_waiting();
        }
    }

    fn is_followed(&self) -> bool {
        true
    }

    fn begin_listing(&self) -> InodeNo {
        self.look();
        let version = self.current();
        version.count(1);
        version.real_number(version.root)
    }

    fn end_listing(&self, dir: InodeNo) {
        self.forget(dir, 1);
    }

    fn remember(&self, ino: InodeNo) {
        if ino != ROOT_INODE
            && let Ok(version) = self.version(ino.0 >> INO_BITS)
        {
            version.count(1);
        }
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        if ino != ROOT_INODE
            && let Ok(version) = self.version(ino.0 >> INO_BITS)
        {
            version.count(-i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

/// The thread of a mount that follows a name. It ends when this is dropped.
pub(crate) struct Follower {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts the thread.
    ///
    /// # Errors
    /// `Io` if the kernel has no room for a watch, or no thread can be started.
    pub(crate) fn start(followed: &Arc<Followed>, mount: &Arc<Mount>) -> Result<Self> {
        let failed = |errno: rustix::io::Errno| Error::io("watch of the store", errno.into());
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(failed)?;
        let images = format!("/proc/self/fd/{}/images", followed.store.as_raw_fd());
        let flags = WatchFlags::MOVED_TO | WatchFlags::CREATE | WatchFlags::DELETE;
        inotify::add_watch(&watch, images, flags).map_err(failed)?;
        let (stop, stopped) = UnixStream::pair().map_err(|e| Error::io("a socket", e))?;
        let (followed, mount) = (Arc::clone(followed), Arc::downgrade(mount));
        let thread = std::thread::Builder::new()
            .name("follow".into())
            .spawn(move || follow(&followed, &mount, &watch, &stopped))
            .map_err(|error| Error::io("start of a thread", error))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic.
            let _ = thread.join();
        }
    }
}

fn follow(followed: &Followed, mount: &Weak<Mount>, watch: &OwnedFd, stopped: &UnixStream) {
    let mut dropped = 0;
    loop {
        followed.look();
        for version in followed.older() {
            if version.no > dropped {
                drop_names(&version, mount);
                dropped = version.no;
            }
        }
        let has_older = followed.sweep();
        let mut fds = [
            PollFd::new(stopped, PollFlags::IN),
            PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, has_older.then_some(&SWEEP)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                log::error!("the mount finds new images at requests alone: poll: {errno}");
                return;
            }
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        if fds.first().is_some_and(is_ready) {
            return;
        }
        // What changed is of no interest: the name is looked at.
        let mut events = [0; 4096];
        while rustix::io::read(watch, &mut events).is_ok_and(|len| len > 0) {}
    }
}

/// Makes the kernel drop the names in the root of a version that was replaced.
fn drop_names(version: &Version, mount: &Weak<Mount>) {
    let listed = Image::read_dir(&version.image, version.root, 0, &mut |_, name, _| {
        let Some(mount) = mount.upgrade() else {
            return ControlFlow::Break(());
        };
        mount.drop_root_entry(name);
        ControlFlow::Continue(())
    });
    if let Err(error) = listed {
        log::warn!("an image that was replaced stays until its mount ends: {error}");
    }
}
