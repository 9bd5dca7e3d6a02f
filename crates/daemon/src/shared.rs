//! The list of mounts and the other state that the threads of a server share.

use crate::mount_lock::MountLock;
use crate::opened_request::OpenedRequest;
use crate::report::{ServerReport, descriptor_count};
use crate::runtime_dir::{Bound, RuntimeDir};
use crate::served::{Closed, Live, Served, now};
use crate::volume_mount::Beside;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_format::{ByteLen, Error, ErrorKind, Result};
use weald_fuse::Busy;
use weald_image::SharedCache;

/// Timeout for receiving a request and for sending the answer.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a shared server waits for another mount after its last mount has ended.
pub(crate) const IDLE_GRACE: Duration = Duration::from_secs(1);

/// How long a new server waits for its first mount. The client that has started it sends the
/// request at once.
const FIRST_GRACE: Duration = Duration::from_secs(30);

/// Options of a server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Limit in bytes of the cache that its mounts share.
    pub cache_len: ByteLen,
    /// Whether it accepts further mounts.
    pub is_shared: bool,
    /// Whether it ends when it has no mount.
    pub ends_when_idle: bool,
    /// Log file; a server that takes over uses it too.
    pub log: Option<PathBuf>,
}

/// State that the threads of a server share.
pub(crate) struct Shared {
    pub(crate) options: ServerOptions,
    pub(crate) cache: Arc<SharedCache>,
    pub(crate) runtime_dir: Option<RuntimeDir>,
    pub(crate) bound: Mutex<Option<Arc<Bound>>>,
    pub(crate) state: Mutex<SharedState>,
    /// Notified when a mount request has succeeded or failed.
    added: Condvar,
    wake: UnixStream,
    log: Mutex<Option<PathBuf>>,
    started: u64,
}

#[derive(Default)]
pub(crate) struct SharedState {
    pub(crate) phase: Phase,
    mounts: BTreeMap<u64, Arc<Served>>,
    next_id: u64,
    pub(crate) connection_count: usize,
    /// Number of mount requests in progress.
    adding_count: usize,
    /// Whether the last changes of a volume did not reach the disk.
    pub(crate) has_lost: bool,
    /// Mount locks that are kept until the process ends.
    mount_locks_until_exit: Vec<MountLock>,
}

/// State of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Phase {
    /// It accepts requests.
    #[default]
    Open,
    /// Another process is taking the mounts over. Requests wait until that process accepts them, or
    /// this one if the hand-over fails.
    HandingOver,
    /// Another process has taken the mounts over.
    Given,
    /// Clients cannot find it, and it ends with its last mount.
    Closing,
}

/// Work that keeps a server from ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// It has mounts, or a mount request is in progress.
    Serving,
    /// It has a client connection but no mount. Repeated status requests do not extend the grace
    /// period.
    Asked,
    Idle,
}

impl Shared {
    /// Creates the state of a server that accepts requests; a byte in `wake` wakes it.
    pub(crate) fn new(
        runtime_dir: Option<RuntimeDir>,
        options: ServerOptions,
        cache: Arc<SharedCache>,
        wake: UnixStream,
    ) -> Self {
        Self {
            log: Mutex::new(options.log.clone()),
            options,
            cache,
            runtime_dir,
            bound: Mutex::default(),
            state: Mutex::default(),
            added: Condvar::new(),
            wake,
            started: now(),
        }
    }

    /// Creates the socket, so that clients can find this server.
    pub(crate) fn show(&self) -> Result<()> {
        let runtime_dir = self
            .runtime_dir
            .as_ref()
            .ok_or_else(|| Error::not_found("no runtime directory for a socket"))?;
        let name = if self.options.is_shared {
            runtime_dir.shared_name()
        } else {
            runtime_dir.alone_name()
        };
        let lock = runtime_dir.lock()?;
        *self.bound.lock() = Some(Arc::new(runtime_dir.bind(&name, &lock)?));
        Ok(())
    }

    /// Removes the socket. Returns `false` if another server holds the lock; this server then keeps
    /// running.
    pub(crate) fn hide(&self) -> bool {
        if let (Some(runtime_dir), Some(bound)) = (&self.runtime_dir, self.bound.lock().clone()) {
            let hidden = runtime_dir
                .lock()
                .and_then(|_lock| runtime_dir.unlink(&bound.name));
            if let Err(error) = hidden {
                log::warn!("{error:?}");
                return error.kind() != ErrorKind::Busy;
            }
        }
        *self.bound.lock() = None;
        true
    }

    pub(crate) fn state(&self) -> (Phase, Activity) {
        let state = self.state.lock();
        let activity = match (
            state.mounts.is_empty() && state.adding_count == 0,
            state.connection_count,
        ) {
            (false, _) => Activity::Serving,
            (true, 0) => Activity::Idle,
            (true, _) => Activity::Asked,
        };
        (state.phase, activity)
    }

    /// How long to wait for the next mount before the server ends.
    pub(crate) fn grace(&self) -> Duration {
        match (self.options.is_shared, self.state.lock().next_id) {
            (false, _) => Duration::ZERO,
            (true, 0) => FIRST_GRACE,
            (true, _) => IDLE_GRACE,
        }
    }

    pub(crate) fn wake(&self) {
        // A full pipe also wakes the reader.
        let _ = (&self.wake).write(&[0]);
    }

    pub(crate) fn adopt(&self, bound: Bound) {
        *self.bound.lock() = Some(Arc::new(bound));
    }

    /// Evicts the idle entries of each cache, those that were not requested since the last
    /// call, and returns their memory to the system.
    pub(crate) fn evict_idle(&self) {
        self.cache.evict_idle();
        let mounts = self.mounts();
        let own = mounts
            .iter()
            .filter_map(|served| served.own_cache(&self.cache));
        own.for_each(|cache| cache.evict_idle());
        weald_sys::trim_heap();
    }

    /// All mounts, oldest first.
    pub(crate) fn mounts(&self) -> Vec<Arc<Served>> {
        self.state.lock().mounts.values().cloned().collect()
    }

    pub(crate) fn log(&self) -> Option<PathBuf> {
        self.log.lock().clone()
    }

    /// Mounts `request`. Returns `false` if the server is ending or handing its mounts over; the
    /// client then tries again.
    pub(crate) fn mount(self: &Arc<Self>, request: OpenedRequest) -> Result<bool> {
        self.mount_beside(request, None)
    }

    /// As [`Shared::mount`], for a volume of a store that is open.
    pub(crate) fn mount_beside(
        self: &Arc<Self>,
        request: OpenedRequest,
        beside: Option<&Beside>,
    ) -> Result<bool> {
        let id = {
            let mut state = self.state.lock();
            if state.phase != Phase::Open {
                return Ok(false);
            }
            state.adding_count += 1;
            state.next_id += 1;
            // The server goes on: nobody waits for its end.
            state.mount_locks_until_exit.clear();
            state.next_id
        };
        let _adding = MountInProgress(self);
        let log = request.log().map(Path::to_owned);
        let place = (&self.cache, self.runtime_dir.as_ref());
        let served = Served::mount(id, request, beside, place)?;
        // After the mount, so that a refused request creates no file and does not switch the log.
        // If the log file cannot be opened, the mount is detached again.
        if log.is_some() {
            log_to(log.as_deref())?;
            *self.log.lock() = log;
        }
        self.insert(served)?;
        Ok(true)
    }

    /// Adds a live mount to the list and starts the thread that waits for its end.
    pub(crate) fn insert(self: &Arc<Self>, served: Served) -> Result<()> {
        let served = Arc::new(served);
        let (shared, waiting) = (Arc::clone(self), Arc::clone(&served));
        self.state.lock().mounts.insert(served.id, served);
        let waiter = std::thread::Builder::new().name("watch".into());
        let id = waiting.id;
        if let Err(error) = waiter.spawn(move || shared.wait_for_end(&waiting)) {
            let served = self.state.lock().mounts.remove(&id);
            // Dropping the mount detaches it.
            drop(served.and_then(|served| served.take()));
            return Err(Error::io("start of a thread", error));
        }
        self.remember();
        Ok(())
    }

    fn wait_for_end(&self, served: &Served) {
        let Some(mount) = served.connection() else {
            return;
        };
        if let Err(error) = mount.wait() {
            log::error!("{}: {error:?}", mount.dir().display());
        }
        drop(mount);
        // `take` returns `None` for a paused mount: the thread that paused it is responsible for
        // it.
        if let Some(live) = served.take() {
            self.finish(served, live);
        }
    }

    /// Ends a mount that was unmounted.
    pub(crate) fn finish(&self, served: &Served, live: Live) {
        let record = served.handed.request.record.as_deref().map(Path::new);
        let Closed {
            mount_lock,
            is_saved,
            mount,
        } = live.close(record);
        let is_last = self.state.lock().mounts.len() <= 1;
        if is_last {
            // A lasting server stays without any mount: return its memory to the system.
            weald_sys::trim_heap();
        }
        let mut state = self.state.lock();
        state.has_lost |= !is_saved;
        state.mounts.remove(&served.id);
        // If two mounts end at the same time, each of them counts the other.
        let is_last_of_several = !is_last && state.mounts.is_empty();
        match mount_lock {
            // A client that waits for the end of the last mount waits for the end of its server.
            Some(mut mount_lock)
                if !self.options.is_shared
                    && state.mounts.is_empty()
                    && state.adding_count == 0 =>
            {
                mount_lock.hide();
                state.mount_locks_until_exit.push(mount_lock);
            }
            other => drop(other),
        }
        drop(state);
        if is_last_of_several {
            weald_sys::trim_heap();
        }
        self.remember();
        if let Some(mount) = mount {
            // Everything is closed and forgotten: umount(2) returns.
            mount.release();
        }
        self.wake();
    }

    /// Removes a lost mount from the list.
    pub(crate) fn forget(&self, id: u64) {
        self.state.lock().mounts.remove(&id);
        self.remember();
        self.wake();
    }

    /// Begins a hand-over; waits for mount requests in progress.
    ///
    /// # Errors
    /// `Busy` if a mount request takes too long, or if the server is ending or handing over
    /// already.
    pub(crate) fn begin_hand_over(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.phase != Phase::Open {
            return Err(Error::new(
                ErrorKind::Busy,
                "the server is ending or being taken over already",
            ));
        }
        state.phase = Phase::HandingOver;
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        while state.adding_count > 0 {
            if self.added.wait_until(&mut state, deadline).timed_out() {
                state.phase = Phase::Open;
                self.wake();
                return Err(Error::new(
                    ErrorKind::Busy,
                    "an image is being mounted; try again",
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn end_hand_over(&self, phase: Phase) {
        self.state.lock().phase = phase;
        self.wake();
    }

    /// Writes all changes of volumes to disk.
    pub(crate) fn commit(&self) {
        self.mounts().iter().for_each(|served| served.commit());
    }

    /// Unmounts everything after a signal. Mounts in use are detached and still served.
    pub(crate) fn close(self: &Arc<Self>) {
        self.state.lock().phase = Phase::Closing;
        let shared = Arc::clone(self);
        let closing = std::thread::Builder::new().name("unmount".into());
        let spawned = closing.spawn(move || {
            let mut state = shared.state.lock();
            while state.adding_count > 0 {
                shared.added.wait(&mut state);
            }
            drop(state);
            // A process manager may kill this process before its users leave their mounts.
            shared.commit();
            shared.mounts().iter().for_each(|served| unmount(served));
            // A client that wants to mount meanwhile waits, and then starts another server.
            shared.hide();
            shared.wake();
        });
        if let Err(error) = spawned {
            log::error!("nothing is unmounted: {error}");
        }
    }

    pub(crate) fn report(&self) -> ServerReport {
        ServerReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            is_shared: self.options.is_shared,
            started: self.started,
            resident_len: weald_sys::resident_len().unwrap_or(0),
            descriptor_count: descriptor_count(),
            cache: self.cache.counts().into(),
            ..ServerReport::default()
        }
    }
}

fn unmount(served: &Served) {
    let Some(mount) = served.connection() else {
        return;
    };
    let unmounter = mount.unmounter();
    let unmounted = match unmounter.unmount(Busy::Refuse) {
        Err(error) if error.kind() == ErrorKind::Busy => {
            log::warn!(
                "{error}; serving those who use it until they are done, or until the next signal"
            );
            unmounter.unmount(Busy::Detach)
        }
        other => other,
    };
    if let Err(error) = unmounted {
        log::error!("{error}");
    }
}

/// A mount request in progress; dropping it decrements the count.
struct MountInProgress<'a>(&'a Shared);

impl Drop for MountInProgress<'_> {
    fn drop(&mut self) {
        self.0.state.lock().adding_count -= 1;
        self.0.added.notify_all();
        self.0.wake();
    }
}

/// Redirects the standard error of this process: appends to the file at `path`, or discards it for
/// `None`.
///
/// # Errors
/// `Io`, `NotFound`.
pub fn log_to(path: Option<&Path>) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    let (path, flags) = match path {
        Some(path) => (path, flags),
        None => (Path::new("/dev/null"), OFlags::WRONLY | OFlags::CLOEXEC),
    };
    let failed = |errno: rustix::io::Errno| Error::io(path.display().to_string(), errno.into());
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)).map_err(failed)?;
    rustix::stdio::dup2_stderr(&file).map_err(failed)
}
