//! One mount of a server, from the request to the unmount.

use crate::followed::{Followed, Follower};
use crate::message::{HandedMount, MountRequest, Prefetch};
use crate::mount_lock::MountLock;
use crate::opened_request::OpenedRequest;
use crate::place::MountPlace;
use crate::report::MountReport;
use crate::runtime_dir::RuntimeDir;
use crate::volume_mount::{self, Beside, FileId, OpenVolume, SharedStore};
use parking_lot::Mutex;
use rustix::fs::Access;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use weald_format::{ByteLen, Digest, Error, Result};
use weald_fuse::{DeviceNo, Identity, Mount, MountOptions, Paused, Trace};
use weald_image::{Hotness, Image, OpenOptions, PrefetchHandle, PrefetchSet, SharedCache};
use weald_store::StoreLocation;
use weald_volume::Volume;

/// A mount in the list of its server.
pub(crate) struct Served {
    pub(crate) id: u64,
    pub(crate) handed: HandedMount,
    /// The lock of the store of a volume, also when the mount has ended.
    lock_file: Option<FileId>,
    device: String,
    /// `None` after the end of the mount, and while another process takes it over.
    live: Mutex<Option<Live>>,
}

/// Resources of a mount while it is served.
pub(crate) struct Live {
    mount: Arc<Mount>,
    content: Content,
    prefetch: Option<PrefetchHandle>,
    mount_lock: Option<MountLock>,
    /// The thread of a mount that follows a name.
    follower: Option<Follower>,
}

/// The tree of a mount.
#[allow(clippy::large_enum_variant)] // one for each mount
pub(crate) enum Content {
    /// An image, which does not change.
    Image(Opened),
    /// A volume. The volumes of a store have a process of their own.
    Volume(OpenVolume),
}

/// An open image with its cache and its mount options.
pub(crate) struct Opened {
    tree: ImageTree,
    pub(crate) cache: Arc<SharedCache>,
    options: MountOptions,
}

/// What an image mount shows.
enum ImageTree {
    Image(Arc<Image>),
    /// The image that has a name at the moment.
    Followed(Arc<Followed>),
}

impl Opened {
    /// The image that the mount shows now.
    pub(crate) fn image(&self) -> Arc<Image> {
        match &self.tree {
            ImageTree::Image(image) => Arc::clone(image),
            ImageTree::Followed(followed) => followed.image(),
        }
    }

    /// Follows the name of the image from now on, if the options say so. `store` is the directory
    /// of its store.
    fn follow(&mut self, store: &OwnedFd, request: &MountRequest) -> Result<()> {
        if !self.options.follows_name {
            return Ok(());
        }
        let name = request.stored.as_deref().unwrap_or_default();
        let dup = |fd: &OwnedFd| fd.try_clone().map_err(|e| Error::io("the store", e));
        let (holder, request) = (dup(store)?, request.clone());
        let cache = Arc::clone(&self.cache);
        let open = move || {
            let opened = Self::open_state(dup(&holder)?, &request, &cache, None)?;
            Ok(opened.image())
        };
        let subdir = self.options.subdir.take();
        let place = (dup(store)?, name);
        let followed = Followed::new(place, self.image(), subdir, Box::new(open))?;
        self.tree = ImageTree::Followed(Arc::new(followed));
        Ok(())
    }

    /// Opens the image: the file `holder`, or an image of the store directory `holder`.
    fn open(holder: OwnedFd, request: &MountRequest, shared: &Arc<SharedCache>) -> Result<Self> {
        Self::open_state(holder, request, shared, None)
    }

    /// Opens the image again in the process that takes over: the same image digest and generation.
    pub(crate) fn open_again(handed: &HandedMount, shared: &Arc<SharedCache>) -> Result<Self> {
        let digest = Digest::from_hex(&handed.image_digest)
            .ok_or_else(|| Error::invalid("image digest: expected 64 hexadecimal digits"))?;
        let path = holder_path(&handed.request);
        let holder = File::open(&path).map_err(|e| Error::io(path.display().to_string(), e))?;
        let state = Some((digest, handed.generation));
        Self::open_state(holder.into(), &handed.request, shared, state)
    }

    fn open_state(
        holder: OwnedFd,
        request: &MountRequest,
        shared: &Arc<SharedCache>,
        state: Option<(Digest, u64)>,
    ) -> Result<Self> {
        let mut options = MountOptions::parse(&request.options)?;
        refuse_with_follow(&options, request)?;
        let is_local = |dir: &&mut PathBuf| !weald_remote::is_url(dir);
        for dir in options.base_dirs.iter_mut().filter(is_local) {
            *dir = Path::new(&request.working_dir).join(&*dir);
        }
        let cache = match options.cache_len {
            Some(len) if len.0 != shared.counts().len_max => SharedCache::new(len),
            _ => Arc::clone(shared),
        };
        let (digest, generation) = state.unzip();
        let open_options = OpenOptions {
            cache_len: ByteLen(cache.counts().len_max),
            expected_digest: digest.or(options.expected_digest),
            generation: generation.or(options.generation),
            base_dirs: options.base_dirs.clone(),
            prefetch_threads: std::thread::available_parallelism().map_or(1, usize::from),
            cache: Some(Arc::clone(&cache)),
            ..OpenOptions::default()
        };
        let image = match &request.stored {
            _ if request.url.is_some() => {
                let url = request.url.as_deref().unwrap_or_default();
                Image::open_path(Path::new(url), options.start, &open_options)?
            }
            None => {
                let path = Path::new(&request.image);
                Image::open_file(holder.into(), path, options.start, &open_options)?
            }
            Some(name) => {
                let location = StoreLocation::Dir {
                    dir: holder,
                    shown: holder_path(request),
                };
                let store = location.open()?;
                let opened = |name: &str| {
                    Image::open_stored(store.clone(), name, options.start, &open_options)
                };
                match opened(name) {
                    // The giver reads an image that was replaced, or has another name now.
                    Err(error) if state.is_some() => {
                        let mut others = store.names_of_maps()?.into_iter();
                        others.find_map(|name| opened(&name).ok()).ok_or(error)?
                    }
                    opened => opened?,
                }
            }
        };
        Ok(Self {
            tree: ImageTree::Image(Arc::new(image)),
            cache,
            options,
        })
    }
}

/// Refuses what makes no sense for a name that moves.
fn refuse_with_follow(options: &MountOptions, request: &MountRequest) -> Result<()> {
    let given = [
        (
            request.stored.is_none(),
            "only an image of a store, STORE:NAME, has a name that moves",
        ),
        (options.expected_digest.is_some(), "digest= is of one image"),
        (options.generation.is_some(), "generation= is of one image"),
        (request.record.is_some(), "--record is of one image"),
    ];
    let found = given.iter().find(|(is_given, _)| *is_given);
    match found.filter(|_| options.follows_name) {
        Some((_, what)) => Err(Error::invalid(format!("option 'follow': {what}"))),
        None => Ok(()),
    }
}

/// Path of the image file, or of the image's store.
fn holder_path(request: &MountRequest) -> PathBuf {
    let path = request.image.as_bytes();
    let name_len = request.stored.as_ref().map_or(0, |name| name.len() + 1);
    let len = path.len().saturating_sub(name_len);
    PathBuf::from(OsStr::from_bytes(path.get(..len).unwrap_or(path)))
}

impl Served {
    /// Mounts `request`; programs can use the mount when the call returns. A volume is mounted
    /// `beside` others of its store, if that is given.
    pub(crate) fn mount(
        id: u64,
        request: OpenedRequest,
        beside: Option<&Beside>,
        (shared, runtime_dir): (&Arc<SharedCache>, Option<&RuntimeDir>),
    ) -> Result<Self> {
        let OpenedRequest {
            request,
            image,
            point,
        } = request;
        if request.is_volume {
            let store_path = holder_path(&request);
            let holder = (image, store_path.as_path());
            let (mount, volume) = volume_mount::mount(holder, &request, &point, beside)?;
            return Ok(Self::of_volume(id, request, (mount, volume), runtime_dir));
        }
        let store = image.try_clone().map_err(|e| Error::io("the image", e))?;
        let mut opened = Opened::open(image, &request, shared)?;
        opened.follow(&store, &request)?;
        drop(store);
        let prefetch = match &request.prefetch {
            None => None,
            Some(Prefetch::All) => Some(PrefetchSet::All),
            Some(Prefetch::File(path)) => Some(PrefetchSet::Hot(Hotness::open(path.as_ref())?)),
        };
        if let Some(path) = &request.record {
            check_writable(path.as_ref())?;
            opened.image().record_hotness();
        }
        // After the checks, so that a refused request creates no file.
        let trace = request.trace.as_ref();
        let trace = trace.map(|path| Trace::create(path.as_ref())).transpose()?;
        let (source, options) = (&request.image, &opened.options);
        let mount = match &opened.tree {
            ImageTree::Image(image) => {
                weald_fuse::mount_on(Arc::clone(image), source, &point, options, trace)
            }
            ImageTree::Followed(followed) => {
                weald_fuse::mount_on(Arc::clone(followed), source, &point, options, trace)
            }
        };
        let mount = mount.map_err(|error| error.context(point.path().display()))?;
        let prefetch = prefetch
            .map(|what| opened.image().prefetch(what))
            .transpose()?;
        let mount_lock = lock_mount(&mount, false, runtime_dir);
        let image = opened.image();
        let summary = image.summary();
        let handed = HandedMount {
            image_digest: summary.image_digest.to_string(),
            generation: summary.generation,
            started: now(),
            request,
        };
        let live = Live::new(mount, Content::Image(opened), prefetch, mount_lock)?;
        Ok(Self::new(id, handed, live))
    }

    fn of_volume(
        id: u64,
        request: MountRequest,
        (mount, volume): (Mount, OpenVolume),
        runtime_dir: Option<&RuntimeDir>,
    ) -> Self {
        // Until the volume is closed, so that it can be mounted again at once.
        mount.hold_end();
        let mount_lock = lock_mount(&mount, true, runtime_dir);
        let handed = HandedMount {
            image_digest: String::new(),
            generation: 0,
            started: now(),
            request,
        };
        let live = Live::of(mount, Content::Volume(volume), None, mount_lock);
        Self::new(id, handed, live)
    }

    /// Resumes a paused mount: one of another process, or our own after a failed hand-over.
    pub(crate) fn resume(
        id: u64,
        handed: HandedMount,
        content: Content,
        mount_lock: Option<MountLock>,
        paused: Paused,
    ) -> Result<Self> {
        let Content::Image(opened) = &content else {
            return Err(Error::invalid("a volume stays with its process"));
        };
        let mount = weald_fuse::resume(opened.image(), paused, &opened.options)?;
        let live = Live::of(mount, content, None, mount_lock);
        Ok(Self::new(id, handed, live))
    }

    fn new(id: u64, handed: HandedMount, live: Live) -> Self {
        let device = live.mount.device();
        let lock_file = match &live.content {
            Content::Volume(open) => Some(open.lock_file),
            Content::Image(_) => None,
        };
        Self {
            id,
            handed,
            lock_file,
            device: device.to_string(),
            live: Mutex::new(Some(live)),
        }
    }

    /// Connection to the kernel; `None` after the end of the mount.
    pub(crate) fn connection(&self) -> Option<Arc<Mount>> {
        self.live
            .lock()
            .as_ref()
            .map(|live| Arc::clone(&live.mount))
    }

    /// Whether the kernel has ended the mount: what it had is being closed.
    pub(crate) fn is_over(&self) -> bool {
        self.live.lock().as_ref().is_none_or(Live::is_over)
    }

    /// Where the mount is.
    pub(crate) fn place(&self) -> MountPlace {
        let request = &self.handed.request;
        let what = Identity {
            device: DeviceNo::parse(&self.device).unwrap_or_default(),
            dir: Path::new(&request.dir).to_owned(),
            source: request.image.clone(),
        };
        MountPlace::of(&what, self.is_over())
    }

    /// Whether this is the mount with the device number `device`.
    pub(crate) fn has_device(&self, device: &str) -> bool {
        self.device == device
    }

    /// Whether this mount has, or had, the volume `name`.
    pub(crate) fn is_named(&self, name: Option<&str>) -> bool {
        self.handed.request.stored.as_deref() == name
    }

    /// Takes the resources of the mount; the caller must close them or put them back. `None` if
    /// another thread has taken them.
    pub(crate) fn take(&self) -> Option<Live> {
        self.live.lock().take()
    }

    /// Undoes [`Served::take`].
    pub(crate) fn put_back(&self, live: Live) {
        *self.live.lock() = Some(live);
    }

    /// As [`Served::take`], if the mount has ended.
    pub(crate) fn take_if_over(&self) -> Option<Live> {
        let mut live = self.live.lock();
        if live.as_ref().is_some_and(Live::is_over) {
            live.take()
        } else {
            None
        }
    }

    /// Creates the mount lock of a mount that was taken over, so that clients can wait for its end.
    pub(crate) fn lock_mount(&self, runtime_dir: Option<&RuntimeDir>) {
        if let Some(live) = &mut *self.live.lock() {
            live.mount_lock = lock_mount(&live.mount, false, runtime_dir);
        }
    }

    /// The cache of this mount, if it is not `shared`.
    pub(crate) fn own_cache(&self, shared: &Arc<SharedCache>) -> Option<Arc<SharedCache>> {
        let cache = match &self.live.lock().as_ref()?.content {
            Content::Image(opened) => Arc::clone(&opened.cache),
            Content::Volume(_) => return None,
        };
        (!Arc::ptr_eq(&cache, shared)).then_some(cache)
    }

    /// Whether this mount has a volume of the store whose writer locks the file `lock_file`, or had
    /// one that is being closed.
    pub(crate) fn is_of_store(&self, lock_file: FileId) -> bool {
        self.lock_file == Some(lock_file)
    }

    /// The volume of this mount, if it lies in the store whose writer locks the file `lock_file`,
    /// and has this name.
    pub(crate) fn volume(&self, name: Option<&str>, lock_file: FileId) -> Option<Arc<Volume>> {
        match &self.live.lock().as_ref()?.content {
            Content::Volume(open) if open.lock_file == lock_file => {
                let is_it = name.is_none() || self.handed.request.stored.as_deref() == name;
                is_it.then(|| open.source.volume()).flatten()
            }
            _ => None,
        }
    }

    /// The store of the volume of this mount, if its writer locks the file `lock_file`.
    pub(crate) fn store(&self, lock_file: FileId) -> Option<SharedStore> {
        match &self.live.lock().as_ref()?.content {
            Content::Volume(open) if open.lock_file == lock_file => Some(open.source.store()),
            _ => None,
        }
    }

    /// Writes all changes of a volume to disk.
    ///
    /// # Errors
    /// Those of the volume.
    pub(crate) fn try_commit(&self) -> Result<()> {
        // Not under the lock: a commit takes as long as the disk does.
        let volume = match self.live.lock().as_ref().map(|live| &live.content) {
            Some(Content::Volume(open)) => open.source.volume(),
            _ => return Ok(()),
        };
        volume.map_or(Ok(()), |volume| volume.commit())
    }

    /// As [`Served::try_commit`], and logs an error.
    pub(crate) fn commit(&self) {
        if let Err(error) = self.try_commit() {
            log::error!(
                "{}: {error:?}",
                Path::new(&self.handed.request.dir).display()
            );
        }
    }

    /// Report of the mount for `weald mounts`.
    pub(crate) fn report(&self, has_space: bool) -> MountReport {
        let handed = &self.handed;
        let mut report = MountReport {
            dir: handed.request.dir.clone(),
            image: handed.request.image.clone(),
            image_digest: handed.image_digest.clone(),
            generation: handed.generation,
            started: handed.started,
            device: self.device.clone(),
            options: handed.request.options.clone(),
            ..MountReport::default()
        };
        report.is_over = self.is_over();
        let mut volume = None;
        if let Some(live) = &*self.live.lock() {
            report.count(live.mount.counters());
            report.live = live.mount.options();
            match &live.content {
                Content::Image(opened) => {
                    let image = opened.image();
                    report.cache = image.cache_counts().into();
                    // Of a name that is followed, this is what it means now.
                    let summary = image.summary();
                    report.image_digest = summary.image_digest.to_string();
                    report.generation = summary.generation;
                }
                Content::Volume(open) => {
                    report.volume = Some(open.properties.clone());
                    volume = open.source.volume();
                }
            }
        }
        // Not under the lock: counting takes long.
        if let Some(volume) = volume.filter(|_| has_space) {
            let status = volume.status();
            let status = status.inspect_err(|error| log::error!("space of the volume: {error:?}"));
            report.space = status.ok().map(Into::into);
        }
        report
    }

    fn follows_name(&self) -> bool {
        let options = MountOptions::parse(&self.handed.request.options);
        options.is_ok_and(|options| options.follows_name)
    }

    /// Fails if the mount cannot be handed over.
    pub(crate) fn check_movable(&self) -> Result<()> {
        let request = &self.handed.request;
        let what = match (&request.record, &request.trace) {
            _ if request.is_volume => "is a volume",
            (Some(_), _) => "records what is read (--record)",
            (_, Some(_)) => "is traced (--trace)",
            _ if self.follows_name() => "follows a name (--follow)",
            _ => return Ok(()),
        };
        let dir = Path::new(&request.dir).display();
        Err(Error::new(
            weald_format::ErrorKind::Busy,
            format!("{dir}: {what}, which another server cannot go on with; unmount it first"),
        ))
    }
}

/// What is left of a mount that was closed.
pub(crate) struct Closed {
    pub(crate) mount_lock: Option<MountLock>,
    /// Whether all changes are on disk.
    pub(crate) is_saved: bool,
    /// The mount of a volume, whose unmount may wait to be released.
    pub(crate) mount: Option<Arc<Mount>>,
}

impl Live {
    /// Starts the thread of a mount that follows a name.
    fn new(
        mount: Mount,
        content: Content,
        prefetch: Option<PrefetchHandle>,
        mount_lock: Option<MountLock>,
    ) -> Result<Self> {
        let mut live = Self::of(mount, content, prefetch, mount_lock);
        if let Content::Image(opened) = &live.content
            && let ImageTree::Followed(followed) = &opened.tree
        {
            live.follower = Some(Follower::start(followed, &live.mount)?);
        }
        Ok(live)
    }

    fn of(
        mount: Mount,
        content: Content,
        prefetch: Option<PrefetchHandle>,
        mount_lock: Option<MountLock>,
    ) -> Self {
        Self {
            mount: Arc::new(mount),
            content,
            prefetch,
            mount_lock,
            follower: None,
        }
    }

    /// Ends a mount that was unmounted: writes the recorded hotness or the last changes of a
    /// volume, and releases all other resources.
    pub(crate) fn close(self, record: Option<&Path>) -> Closed {
        drop((self.prefetch, self.follower));
        let is_volume = matches!(self.content, Content::Volume(_));
        // Without a volume, this also ends the trace.
        let mount = Some(self.mount).filter(|_| is_volume);
        let mut is_saved = true;
        match &self.content {
            Content::Image(opened) => {
                if let Some(path) = record
                    && let Some(hotness) = opened.image().hotness()
                    && let Err(error) = hotness.write(path)
                {
                    log::error!("{}: {error:?}", path.display());
                }
            }
            Content::Volume(open) => {
                if let Err(error) = open.source.close() {
                    log::error!("the last changes of the volume are lost: {error:?}");
                    is_saved = false;
                }
            }
        }
        Closed {
            mount_lock: self.mount_lock,
            is_saved,
            mount,
        }
    }

    /// Stops reading requests.
    pub(crate) fn pause(&self) -> Result<Paused> {
        self.mount.pause()
    }

    /// Whether the mount has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.mount.is_over()
    }

    /// The resources that [`Served::resume`] needs after [`Live::pause`].
    pub(crate) fn into_parts(self) -> (Content, Option<MountLock>) {
        (self.content, self.mount_lock)
    }
}

/// Creates a mount lock for `mount`, if there is a runtime directory.
fn lock_mount(
    mount: &Mount,
    is_volume: bool,
    runtime_dir: Option<&RuntimeDir>,
) -> Option<MountLock> {
    let locked = runtime_dir?.lock_mount(mount.device(), is_volume);
    locked
        .inspect_err(|error| log::info!("nobody can wait for the end of this mount: {error:?}"))
        .ok()
}

/// Checks early that the directory of `path` is writable, instead of failing when the mount ends.
fn check_writable(path: &Path) -> Result<()> {
    let dir = match path.parent() {
        Some(dir) if dir != Path::new("") => dir.to_owned(),
        _ => PathBuf::from("."),
    };
    rustix::fs::access(&dir, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|errno| Error::io(dir.display().to_string(), errno.into()))
}

/// Seconds since 1970-01-01 UTC.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
