//! The server: accepts requests, keeps the list of mounts, and ends with the last mount.

use crate::hand_over;
use crate::message::{Hello, Refusal, Reply, Request, receive, send};
use crate::opened_request::OpenedRequest;
use crate::place::{Bound, Place, check_peer};
use crate::presence::MountLock;
use crate::report::{ServerReport, descriptor_count};
use crate::served::{Live, Served, now};
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_format::{ByteLen, Error, ErrorKind, Result};
use weald_fuse::Busy;
use weald_image::SharedCache;

/// Connections that are answered at the same time; more clients wait. A client has one connection
/// per request.
const CONNECTION_COUNT_MAX: usize = 64;

/// Timeout for receiving a request and for sending the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a shared server waits for another mount after its last mount has ended.
const IDLE_GRACE: Duration = Duration::from_secs(1);

/// How long a new server waits for its first mount. The client that has started it sends the
/// request at once.
const FIRST_GRACE: Duration = Duration::from_secs(30);

/// Interval at which a cache evicts entries that were not requested since the last time.
const EVICTION_INTERVAL: Duration = Duration::from_secs(60);

/// A further signal within this time counts as the same request to end. `timeout` signals a process
/// and its process group, systemd may send SIGHUP after SIGTERM, and a terminal signals a whole
/// process group, all within milliseconds. An impatient user takes longer, or tries once more.
const SAME_SIGNAL_GRACE: Duration = Duration::from_secs(1);

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

/// A server whose socket exists and whose first mount, if any, is live. [`Server::run`] serves it.
pub struct Server {
    pub(crate) shared: Arc<Shared>,
    wake: UnixStream,
    signals: UnixStream,
}

/// State that the threads of a server share.
pub(crate) struct Shared {
    pub(crate) options: ServerOptions,
    pub(crate) cache: Arc<SharedCache>,
    pub(crate) place: Option<Place>,
    pub(crate) bound: Mutex<Option<Arc<Bound>>>,
    state: Mutex<State>,
    /// Notified when a mount request has succeeded or failed.
    added: Condvar,
    wake: UnixStream,
    log: Mutex<Option<PathBuf>>,
    started: u64,
}

#[derive(Default)]
struct State {
    phase: Phase,
    mounts: BTreeMap<u64, Arc<Served>>,
    next_id: u64,
    connection_count: usize,
    /// Number of mount requests in progress.
    adding_count: usize,
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
enum Activity {
    /// It has mounts, or a mount request is in progress.
    Serving,
    /// It has a client connection but no mount. Repeated status requests do not extend the grace
    /// period.
    Asked,
    Idle,
}

impl Server {
    /// Starts a server, creates its socket in `place`, and mounts `first`.
    ///
    /// From this call on, a signal waits for [`Server::run`]. It cannot kill the process in the
    /// middle of a mount.
    ///
    /// # Errors
    /// `Busy` if a shared server runs already; the errors of the mount of `first`. For a server of
    /// a single mount, a missing socket is logged and no error.
    pub fn start(
        place: Option<Place>,
        options: ServerOptions,
        first: Option<OpenedRequest>,
    ) -> Result<Self> {
        let cache = SharedCache::new(options.cache_len);
        let is_shared = options.is_shared;
        let server = Self::new(place, options, cache)?;
        let shared = &server.shared;
        if is_shared {
            shared.show()?;
        }
        if let Some(request) = first {
            shared.mount(request)?;
        }
        if !is_shared && let Err(error) = shared.show() {
            log::info!("'weald mounts' will not show this mount: {error:?}");
        }
        Ok(server)
    }

    /// Log file: the one of the options, of the latest request, or of the previous server.
    pub fn log(&self) -> Option<PathBuf> {
        self.shared.log()
    }

    pub(crate) fn new(
        place: Option<Place>,
        options: ServerOptions,
        cache: Arc<SharedCache>,
    ) -> Result<Self> {
        let failed = |error| Error::io("start of the server", error);
        let (signals, signal_sink) = UnixStream::pair().map_err(failed)?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let sink = signal_sink.try_clone().map_err(failed)?;
            signal_hook::low_level::pipe::register(signal, sink).map_err(failed)?;
        }
        let (wake, wake_sink) = UnixStream::pair().map_err(failed)?;
        for end in [&wake, &wake_sink, &signals] {
            end.set_nonblocking(true).map_err(failed)?;
        }
        if let Err(error) = weald_sys::raise_open_file_limit() {
            log::info!("the limit of open files stays as it is: {error}");
        }
        weald_sys::share_heap();
        let shared = Arc::new(Shared {
            log: Mutex::new(options.log.clone()),
            options,
            cache,
            place,
            bound: Mutex::default(),
            state: Mutex::default(),
            added: Condvar::new(),
            wake: wake_sink,
            started: now(),
        });
        Ok(Self {
            shared,
            wake,
            signals,
        })
    }

    /// Serves until the last mount has ended (for ever if the server does not end when idle), until
    /// another process has taken over, or until a signal arrives, which unmounts everything.
    ///
    /// # Errors
    /// `Busy` if a second signal arrives while mounts are still in use; `Io`.
    pub fn run(self) -> Result<()> {
        let mut idle_since = None;
        let mut last_eviction = Instant::now();
        let mut ending_since: Option<Instant> = None;
        loop {
            if self.wait(idle_since.is_some())? {
                match ending_since {
                    Some(since) if since.elapsed() < SAME_SIGNAL_GRACE => {}
                    Some(_) => {
                        return Err(Error::new(
                            ErrorKind::Busy,
                            "a second signal: its users lose their mounts",
                        ));
                    }
                    None => {
                        ending_since = Some(Instant::now());
                        self.shared.close();
                    }
                }
            }
            if last_eviction.elapsed() >= EVICTION_INTERVAL {
                last_eviction = Instant::now();
                self.shared.evict_idle();
            }
            match self.shared.state() {
                (Phase::Given, _) => return Ok(()),
                (Phase::Closing, Activity::Idle | Activity::Asked) => {
                    self.shared.hide();
                    return Ok(());
                }
                (Phase::Open, activity @ (Activity::Idle | Activity::Asked))
                    if self.shared.options.ends_when_idle =>
                {
                    let since = *idle_since.get_or_insert_with(Instant::now);
                    let is_due = since.elapsed() >= self.shared.grace();
                    if is_due
                        && activity == Activity::Idle
                        && !self.has_caller()?
                        && self.shared.hide()
                    {
                        return Ok(());
                    }
                }
                _ => idle_since = None,
            }
        }
    }

    /// Waits for an event and accepts a connection if one arrived. Returns whether a signal
    /// arrived.
    fn wait(&self, is_idle: bool) -> Result<bool> {
        let (phase, connection_count) = {
            let state = self.shared.state.lock();
            (state.phase, state.connection_count)
        };
        let accepts = phase == Phase::Open && connection_count < CONNECTION_COUNT_MAX;
        let bound = accepts.then(|| self.shared.bound.lock().clone()).flatten();
        let mut ends = vec![PollFd::new(&self.wake, PollFlags::IN)];
        // During a hand-over a signal waits until it is known which process has the mounts.
        if phase != Phase::HandingOver {
            ends.push(PollFd::new(&self.signals, PollFlags::IN));
        }
        if let Some(bound) = &bound {
            ends.push(PollFd::new(&bound.listener, PollFlags::IN));
        }
        let timeout = if is_idle {
            IDLE_GRACE / 10
        } else {
            EVICTION_INTERVAL / 4
        };
        poll_for(&mut ends, timeout)?;
        let has = |end: &dyn AsFd| {
            use std::os::fd::AsRawFd;
            let number = end.as_fd().as_raw_fd();
            ends.iter()
                .any(|e| e.as_fd().as_raw_fd() == number && !e.revents().is_empty())
        };
        if has(&self.wake) {
            drain(&self.wake);
        }
        if let Some(bound) = bound.as_ref().filter(|bound| has(&bound.listener)) {
            match bound.listener.accept() {
                Ok((stream, _)) => match check_peer(&stream) {
                    Ok(()) => self.shared.answer_in_thread(stream),
                    Err(error) => log::warn!("a client is not answered: {error}"),
                },
                Err(error) => {
                    log::warn!("a connection is lost: {error}");
                    // Usually no descriptor is free. Wait until other connections have closed
                    // theirs.
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
        Ok(has(&self.signals) && drain(&self.signals) > 0)
    }

    /// Whether a client is waiting to be accepted.
    fn has_caller(&self) -> Result<bool> {
        match &*self.shared.bound.lock() {
            Some(bound) => {
                let mut ends = [PollFd::new(&bound.listener, PollFlags::IN)];
                poll_for(&mut ends, Duration::ZERO)?;
                Ok(!ends.iter().all(|end| end.revents().is_empty()))
            }
            None => Ok(false),
        }
    }
}

impl Shared {
    /// Creates the socket, so that clients can find this server.
    fn show(&self) -> Result<()> {
        let place = self
            .place
            .as_ref()
            .ok_or_else(|| Error::not_found("no place for a socket"))?;
        let name = if self.options.is_shared {
            place.shared_name()
        } else {
            place.alone_name()
        };
        let lock = place.lock()?;
        *self.bound.lock() = Some(Arc::new(place.bind(&name, &lock)?));
        Ok(())
    }

    /// Removes the socket. Returns `false` if another server holds the lock; this server then keeps
    /// running.
    fn hide(&self) -> bool {
        if let (Some(place), Some(bound)) = (&self.place, self.bound.lock().clone()) {
            let hidden = place.lock().and_then(|_lock| place.unlink(&bound.name));
            if let Err(error) = hidden {
                log::warn!("{error:?}");
                return error.kind() != ErrorKind::Busy;
            }
        }
        *self.bound.lock() = None;
        true
    }

    fn state(&self) -> (Phase, Activity) {
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
    fn grace(&self) -> Duration {
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
    fn evict_idle(&self) {
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

    fn answer_in_thread(self: &Arc<Self>, stream: UnixStream) {
        self.state.lock().connection_count += 1;
        let connection = Connection {
            shared: Arc::clone(self),
            stream,
        };
        let answering = std::thread::Builder::new().name("answer".into());
        if let Err(error) = answering.spawn(move || connection.answer()) {
            log::warn!("a connection is lost: {error}");
        }
    }

    /// Mounts `request`. Returns `false` if the server is ending or handing its mounts over; the
    /// client then tries again.
    fn mount(self: &Arc<Self>, request: OpenedRequest) -> Result<bool> {
        let id = {
            let mut state = self.state.lock();
            if state.phase != Phase::Open {
                return Ok(false);
            }
            state.adding_count += 1;
            state.next_id += 1;
            state.next_id
        };
        let _adding = Adding(self);
        let log = request.log().map(Path::to_owned);
        let served = Served::mount(id, request, &self.cache, self.place.as_ref())?;
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
        let mount_lock = live.close(record);
        let is_last = self.state.lock().mounts.len() <= 1;
        if is_last {
            // A lasting server stays without any mount: return its memory to the system.
            weald_sys::trim_heap();
        }
        let mut state = self.state.lock();
        state.mounts.remove(&served.id);
        // If two mounts end at the same time, each of them counts the other.
        let is_last_of_several = !is_last && state.mounts.is_empty();
        match mount_lock {
            // A client that waits for the end of such a mount waits for the end of its server.
            Some(mut mount_lock) if !self.options.is_shared => {
                mount_lock.hide();
                state.mount_locks_until_exit.push(mount_lock);
            }
            other => drop(other),
        }
        drop(state);
        if is_last_of_several {
            weald_sys::trim_heap();
        }
        self.wake();
    }

    /// Removes a lost mount from the list.
    pub(crate) fn forget(&self, id: u64) {
        self.state.lock().mounts.remove(&id);
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

    /// Unmounts everything after a signal. Mounts in use are detached and still served.
    fn close(self: &Arc<Self>) {
        self.state.lock().phase = Phase::Closing;
        let shared = Arc::clone(self);
        let closing = std::thread::Builder::new().name("unmount".into());
        let spawned = closing.spawn(move || {
            let mut state = shared.state.lock();
            while state.adding_count > 0 {
                shared.added.wait(&mut state);
            }
            drop(state);
            shared.mounts().iter().for_each(|served| unmount(served));
            // A client that wants to mount meanwhile waits, and then starts another server.
            shared.hide();
            shared.wake();
        });
        if let Err(error) = spawned {
            log::error!("nothing is unmounted: {error}");
        }
    }

    fn report(&self) -> ServerReport {
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
struct Adding<'a>(&'a Shared);

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        self.0.state.lock().adding_count -= 1;
        self.0.added.notify_all();
        self.0.wake();
    }
}

/// A connection that is being answered.
struct Connection {
    shared: Arc<Shared>,
    stream: UnixStream,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.state.lock().connection_count -= 1;
        self.shared.wake();
    }
}

impl Connection {
    fn answer(self) {
        if let Err(error) = self.try_answer() {
            log::info!("a client was not answered: {error:?}");
        }
    }

    fn try_answer(&self) -> Result<()> {
        let timeout = Some(REQUEST_TIMEOUT);
        self.stream
            .set_write_timeout(timeout)
            .map_err(|e| Error::io("connection", e))?;
        let Some((hello, descriptors)) = receive::<Hello>(&self.stream, timeout)? else {
            return Ok(());
        };
        match hello.request() {
            Ok(Request::Mount(_)) if !self.shared.options.is_shared => {
                self.refuse(&Error::invalid("this server serves one mount alone"))
            }
            Ok(Request::Mount(request)) => {
                let opened = OpenedRequest::received(*request, descriptors);
                match opened.and_then(|opened| self.shared.mount(opened)) {
                    Ok(true) => send(&self.stream, &Reply::Mounted, &[]),
                    // The closed connection tells the client to try again.
                    Ok(false) => Ok(()),
                    Err(error) => self.refuse(&error),
                }
            }
            Ok(Request::Report) => self.report(),
            Ok(Request::TakeOver) => hand_over::give(&self.shared, &self.stream),
            Err(error) => self.refuse(&error),
        }
    }

    fn refuse(&self, error: &Error) -> Result<()> {
        send(&self.stream, &Reply::Refused(Refusal::of(error)), &[])
    }

    fn report(&self) -> Result<()> {
        let mounts = self.shared.mounts();
        let server = ServerReport {
            mount_count: mounts.len() as u64,
            ..self.shared.report()
        };
        send(&self.stream, &Reply::Server(server), &[])?;
        for served in mounts {
            send(&self.stream, &Reply::Mount(served.report()), &[])?;
        }
        Ok(())
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

fn poll_for(ends: &mut [PollFd<'_>], timeout: Duration) -> Result<()> {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(ends, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::io("poll", errno.into())),
    }
}

/// Reads all available bytes; returns their number.
fn drain(mut end: &UnixStream) -> usize {
    let mut buffer = [0; 64];
    let mut count = 0;
    while let Ok(len) = end.read(&mut buffer)
        && len > 0
    {
        count += len;
    }
    count
}
