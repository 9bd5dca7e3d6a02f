//! What a client does: finds a server, asks, and asks again where the server has ended meanwhile.

use crate::message::{Hello, Reply, Request, receive};
use crate::opened_request::OpenedRequest;
use crate::place::Place;
use crate::report::ServerReport;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use weald_format::{Error, ErrorKind, Result};

/// How often a mount is tried while servers end before they answer, or give their mounts away.
const ATTEMPT_COUNT_MAX: u32 = 1200;

/// Pause between two attempts.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a server may take to tell about itself.
const REPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether there is a server now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Started {
    /// There is, started just now or by somebody else.
    Yes,
    /// There is none, and the user knows why.
    No,
}

/// What came of one attempt.
enum Tried {
    Mounted,
    /// No server runs.
    Nobody,
    /// It has ended, or is giving its mounts away.
    Gone,
}

/// Has the server that runs in `place` mount what `request` says, if one runs there: `false` where
/// none does.
///
/// # Errors
/// Whatever the server says against it; `Busy` where servers only come and go.
pub fn attach(place: &Place, request: &OpenedRequest) -> Result<bool> {
    let mounted = mount(place, request, &mut || Ok(Started::No))?;
    Ok(mounted == Started::Yes)
}

/// As [`attach`], but starts a server by `start` where none runs.
///
/// # Errors
/// As [`attach`], and those of `start`.
pub fn mount(
    place: &Place,
    request: &OpenedRequest,
    start: &mut dyn FnMut() -> Result<Started>,
) -> Result<Started> {
    for _ in 0..ATTEMPT_COUNT_MAX {
        match try_mount(place, request)? {
            Tried::Mounted => return Ok(Started::Yes),
            Tried::Nobody if start()? == Started::No => return Ok(Started::No),
            Tried::Nobody => {}
            Tried::Gone => std::thread::sleep(ATTEMPT_PAUSE),
        }
    }
    Err(Error::new(
        ErrorKind::Busy,
        "servers end again and again before they answer",
    ))
}

fn try_mount(place: &Place, request: &OpenedRequest) -> Result<Tried> {
    let Some(stream) = place.connect(&place.shared_name())? else {
        return Ok(Tried::Nobody);
    };
    // An image on slow storage may take its time to open; who asked can interrupt.
    let reply = request
        .send(&stream)
        .and_then(|()| receive::<Reply>(&stream, None));
    match reply {
        Ok(Some((Reply::Mounted, _))) => Ok(Tried::Mounted),
        Ok(Some((Reply::Refused(refusal), _))) => Err(refusal.into_error()),
        Ok(Some(_)) => Err(unexpected()),
        Ok(None) => Ok(Tried::Gone),
        Err(error) if has_hung_up(&error) => Ok(Tried::Gone),
        Err(error) => Err(error),
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

/// What all servers of `place` tell, the shared one first. One that does not answer is told of by
/// `log` and left out.
///
/// # Errors
/// `Io`.
pub fn reports(place: &Place) -> Result<Vec<ServerReport>> {
    let mut reports = Vec::new();
    for name in place.names()? {
        let told = match place.connect(&name) {
            Ok(Some(stream)) => report(&stream),
            Ok(None) => continue,
            Err(error) => Err(error),
        };
        match told {
            Ok(Some(report)) => reports.push(report),
            Ok(None) => {}
            Err(error) if has_hung_up(&error) => {}
            Err(error) => log::warn!("a server is left out: {error:?}"),
        }
    }
    Ok(reports)
}

/// `None` where the server has ended meanwhile.
pub(crate) fn report(stream: &UnixStream) -> Result<Option<ServerReport>> {
    let timeout = Some(REPORT_TIMEOUT);
    stream
        .set_write_timeout(timeout)
        .map_err(|error| Error::io("connection", error))?;
    Hello::send(stream, &Request::Report, &[])?;
    let mut server = match receive::<Reply>(stream, timeout)? {
        Some((Reply::Server(server), _)) => server,
        Some((Reply::Refused(refusal), _)) => return Err(refusal.into_error()),
        Some(_) => return Err(unexpected()),
        None => return Ok(None),
    };
    for _ in 0..server.mount_count {
        match receive::<Reply>(stream, timeout)? {
            Some((Reply::Mount(mount), _)) => server.mounts.push(mount),
            _ => return Err(unexpected()),
        }
    }
    Ok(Some(server))
}

fn unexpected() -> Error {
    Error::invalid("a server says something else than expected")
}
