//! The client: connects to a server, sends a request, and retries if the server ends meanwhile.

use crate::message::{Hello, Refusal, Reply, Request, receive};
use crate::opened_request::OpenedRequest;
use crate::pulse::{Pulse, PulseWatch};
use crate::report::ServerReport;
use crate::runtime_dir::RuntimeDir;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};

/// Largest number of attempts to mount, while servers end before they answer or hand their mounts
/// over.
const ATTEMPT_COUNT_MAX: u32 = 1200;

/// Pause between two attempts.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(50);

/// Time between two looks at a server that has not answered.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Timeout for the report of a server.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for a report with the space of volumes, which the server counts.
const SPACE_TIMEOUT: Duration = Duration::from_secs(600);

/// Whether a server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// A server runs; this process or another one has started it.
    Yes,
    /// No server runs, and the user was told the reason.
    No,
}

/// Result of one attempt.
enum Attempt {
    Mounted,
    /// No server runs.
    NoServer,
    /// The server has ended or is handing its mounts over.
    ServerEnded,
}

/// Asks the running server of `runtime_dir` to mount `request`. Returns `false` if no server runs.
///
/// # Errors
/// The error of the server; `Busy` if every attempt met a server that was ending.
pub fn attach(runtime_dir: &RuntimeDir, request: &OpenedRequest) -> Result<bool> {
    let mounted = mount(runtime_dir, request, &mut || Ok(Started::No))?;
    Ok(mounted == Started::Yes)
}

/// As [`attach`], but calls `start` to start a server if none runs.
///
/// # Errors
/// As [`attach`], and those of `start`.
pub fn mount(
    runtime_dir: &RuntimeDir,
    request: &OpenedRequest,
    start: &mut dyn FnMut() -> Result<Started>,
) -> Result<Started> {
    for _ in 0..ATTEMPT_COUNT_MAX {
        match try_mount(runtime_dir, request)? {
            Attempt::Mounted => return Ok(Started::Yes),
            Attempt::NoServer if start()? == Started::No => return Ok(Started::No),
            Attempt::NoServer => {}
            Attempt::ServerEnded => std::thread::sleep(ATTEMPT_PAUSE),
        }
    }
    Err(Error::new(
        ErrorKind::Busy,
        "servers end again and again before they answer",
    ))
}

fn try_mount(runtime_dir: &RuntimeDir, request: &OpenedRequest) -> Result<Attempt> {
    let Some(stream) = runtime_dir.connect(&runtime_dir.shared_name())? else {
        return Ok(Attempt::NoServer);
    };
    // No timeout: opening an image on slow storage may take long, and the user can interrupt.
    let reply = request
        .send(&stream)
        .and_then(|()| receive_reply(&stream, None));
    match reply {
        Ok(Some((Reply::Mounted, _))) => Ok(Attempt::Mounted),
        Ok(Some((Reply::Refused(refusal), _))) => Err(refusal.into_error()),
        Ok(Some(_)) => Err(unexpected()),
        Ok(None) => Ok(Attempt::ServerEnded),
        Err(error) if has_hung_up(&error) => Ok(Attempt::ServerEnded),
        Err(error) => Err(error),
    }
}

/// Asks the servers of `runtime_dir` for the one that has the store of a volume open for writing,
/// and lets it mount `request`, too. `lock` is the file that the writer of the store locks, open
/// for writing. Returns `false` if no server has the store.
///
/// # Errors
/// The error of the server that has the store; `Busy` if every attempt met a server that was
/// ending; `Io`.
pub fn join(
    runtime_dir: &RuntimeDir,
    request: &OpenedRequest,
    lock: BorrowedFd<'_>,
) -> Result<bool> {
    for _ in 0..ATTEMPT_COUNT_MAX {
        let mut has_ended = false;
        for server in runtime_dir.names()? {
            let Some(stream) = runtime_dir.connect(&server)? else {
                continue;
            };
            let sent = request.send_beside(&stream, lock);
            match sent.and_then(|()| receive_reply(&stream, None)) {
                Ok(Some((Reply::Mounted, _))) => return Ok(true),
                Ok(Some((Reply::NotHere, _))) => {}
                Ok(Some((Reply::Refused(refusal), _))) => refuse(refusal)?,
                Ok(Some(_)) => return Err(unexpected()),
                Ok(None) => has_ended = true,
                Err(error) if is_of_stopped(&error) => log::warn!("{error}"),
                Err(error) if has_hung_up(&error) => has_ended = true,
                Err(error) => return Err(error),
            }
        }
        if !has_ended {
            return Ok(false);
        }
        std::thread::sleep(ATTEMPT_PAUSE);
    }
    Err(Error::new(
        ErrorKind::Busy,
        "servers end again and again before they answer",
    ))
}

/// Fails with the error of a server, unless that speaks another protocol: it may have other stores,
/// and the lock of this one says which process has it.
fn refuse(refusal: Refusal) -> Result<()> {
    if refusal.is_of_protocol() {
        log::warn!(
            "a server of another version is left out: {}",
            refusal.into_error()
        );
        Ok(())
    } else {
        Err(refusal.into_error())
    }
}

/// Receives the answer of a server, but does not wait for one that is stopped.
///
/// # Errors
/// `Busy` if the server is stopped ([`is_of_stopped`]); otherwise as [`receive`].
pub(crate) fn receive_reply(
    stream: &UnixStream,
    timeout: Option<Duration>,
) -> Result<Option<(Reply, Vec<OwnedFd>)>> {
    let pid = weald_sys::peer_pid(stream.as_fd()).ok().flatten();
    let mut watch = pid.map(PulseWatch::new);
    let begun = Instant::now();
    while timeout.is_none_or(|timeout| begun.elapsed() < timeout) {
        if has_news(stream, LOOK_INTERVAL)? {
            return receive(stream, timeout);
        }
        if let Some((pid, watch)) = pid.zip(watch.as_mut())
            && watch.look() == Pulse::Stopped
        {
            let complaint = Pulse::Stopped.complaint(pid).unwrap_or_default();
            return Err(Error::new(ErrorKind::Busy, complaint));
        }
    }
    let late = std::io::ErrorKind::TimedOut.into();
    Err(Error::io("connection between server and client", late))
}

/// Whether [`receive_reply`] did not wait, because the server is stopped.
pub(crate) fn is_of_stopped(error: &Error) -> bool {
    error.kind() == ErrorKind::Busy && error.to_string().contains("its server, is stopped")
}

/// Whether the other side says something within `timeout`.
pub(crate) fn has_news(stream: &UnixStream, timeout: Duration) -> Result<bool> {
    let mut ends = [PollFd::new(stream, PollFlags::IN)];
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(&mut ends, Some(&timeout)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Ok(false),
        Ok(_) => Ok(true),
        Err(errno) => Err(Error::io("connection", errno.into())),
    }
}

pub(crate) fn has_hung_up(error: &Error) -> bool {
    use std::io::ErrorKind as K;
    let kind = error.io_source().map(std::io::Error::kind);
    matches!(
        kind,
        Some(K::BrokenPipe | K::ConnectionReset | K::UnexpectedEof)
    )
}

/// Reports of all servers of `runtime_dir`, the shared server first. A server that does not answer
/// is logged and left out.
///
/// # Errors
/// `Io`.
pub fn reports(runtime_dir: &RuntimeDir) -> Result<Vec<ServerReport>> {
    all_reports(runtime_dir, &Request::Report, REPORT_TIMEOUT)
}

/// As [`reports`], with the space of volumes.
///
/// # Errors
/// `Io`.
pub fn space_reports(runtime_dir: &RuntimeDir) -> Result<Vec<ServerReport>> {
    all_reports(runtime_dir, &Request::ReportSpace, SPACE_TIMEOUT)
}

fn all_reports(
    runtime_dir: &RuntimeDir,
    request: &Request,
    timeout: Duration,
) -> Result<Vec<ServerReport>> {
    let mut reports = Vec::new();
    for name in runtime_dir.names()? {
        let answer = match runtime_dir.connect(&name) {
            Ok(Some(stream)) => ask_report(&stream, request, timeout),
            Ok(None) => continue,
            Err(error) => Err(error),
        };
        match answer {
            Ok(Some(report)) => reports.push(report),
            Ok(None) => {}
            Err(error) if has_hung_up(&error) => {}
            Err(error) => log::warn!("a server is left out: {error:?}"),
        }
    }
    Ok(reports)
}

/// Report of the server behind `stream`; `None` if the server has ended meanwhile.
pub(crate) fn report(stream: &UnixStream) -> Result<Option<ServerReport>> {
    ask_report(stream, &Request::Report, REPORT_TIMEOUT)
}

fn ask_report(
    stream: &UnixStream,
    request: &Request,
    timeout: Duration,
) -> Result<Option<ServerReport>> {
    let timeout = Some(timeout);
    stream
        .set_write_timeout(timeout)
        .map_err(|error| Error::io("connection", error))?;
    Hello::send(stream, request, &[])?;
    let mut server = match receive_reply(stream, timeout)? {
        Some((Reply::Server(server), _)) => server,
        Some((Reply::Refused(refusal), _)) => return Err(refusal.into_error()),
        Some(_) => return Err(unexpected()),
        None => return Ok(None),
    };
    for _ in 0..server.mount_count {
        match receive_reply(stream, timeout)? {
            Some((Reply::Mount(mount), _)) => server.mounts.push(*mount),
            _ => return Err(unexpected()),
        }
    }
    Ok(Some(server))
}

pub(crate) fn unexpected() -> Error {
    Error::invalid("a server says something else than expected")
}
