//! The server: accepts requests, keeps the list of mounts, and ends with the last mount.

use crate::connection::Connection;
use crate::opened_request::OpenedRequest;
use crate::runtime_dir::{RuntimeDir, check_peer};
use crate::shared::{Activity, IDLE_GRACE, Phase, ServerOptions, Shared};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};
use weald_image::SharedCache;

/// Connections that are answered at the same time; more clients wait. A client has one connection
/// per request.
const CONNECTION_COUNT_MAX: usize = 64;

/// Interval at which a cache evicts entries that were not requested since the last time.
const EVICTION_INTERVAL: Duration = Duration::from_secs(60);

/// A further signal within this time counts as the same request to end. `timeout` signals a process
/// and its process group, systemd may send SIGHUP after SIGTERM, and a terminal signals a whole
/// process group, all within milliseconds. An impatient user takes longer, or tries once more.
const SAME_SIGNAL_GRACE: Duration = Duration::from_secs(1);

/// A server whose socket exists and whose first mount, if any, is live. [`Server::run`] serves it.
pub struct Server {
    pub(crate) shared: Arc<Shared>,
    wake: UnixStream,
    signals: UnixStream,
}

impl Server {
    /// Starts a server, creates its socket in `runtime_dir`, and mounts `first`.
    ///
    /// From this call on, a signal waits for [`Server::run`]. It cannot kill the process in the
    /// middle of a mount.
    ///
    /// # Errors
    /// `Busy` if a shared server runs already; the errors of the mount of `first`. For a server of
    /// a single mount, a missing socket is logged and no error.
    pub fn start(
        runtime_dir: Option<RuntimeDir>,
        options: ServerOptions,
        first: Option<OpenedRequest>,
    ) -> Result<Self> {
        let cache = SharedCache::new(options.cache_len);
        let is_shared = options.is_shared;
        let server = Self::new(runtime_dir, options, cache)?;
        let shared = &server.shared;
        if is_shared {
            shared.show()?;
            shared.restore();
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
        runtime_dir: Option<RuntimeDir>,
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
        let shared = Arc::new(Shared::new(runtime_dir, options, cache, wake_sink));
        Ok(Self {
            shared,
            wake,
            signals,
        })
    }

    /// Serves until the last mount has ended, until another process has taken over, or until a
    /// signal unmounts everything. A lasting server also continues without mounts.
    ///
    /// # Errors
    /// `Busy` if a second signal arrives while mounts are still in use; `Io`, also if the last
    /// changes of a volume did not reach the disk.
    pub fn run(self) -> Result<()> {
        self.serve()?;
        if self.shared.state.lock().has_lost {
            Err(Error::new(
                ErrorKind::Io,
                "the last changes of the volume are lost",
            ))
        } else {
            Ok(())
        }
    }

    /// Unmounts everything as a signal does, and returns when that is done.
    ///
    /// # Errors
    /// As [`Server::run`].
    pub fn end(self) -> Result<()> {
        self.shared.close();
        self.run()
    }

    fn serve(&self) -> Result<()> {
        let mut idle_since = None;
        let mut last_eviction = Instant::now();
        let mut ending_since: Option<Instant> = None;
        loop {
            if self.wait(idle_since.is_some())? {
                match ending_since {
                    Some(since) if since.elapsed() < SAME_SIGNAL_GRACE => {}
                    Some(_) => {
                        self.shared.commit();
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
                    Ok(()) => Connection::answer_in_thread(&self.shared, stream),
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
