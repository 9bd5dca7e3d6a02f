//! Hand-over of all mounts from one server process to another, for example on an upgrade. Processes
//! that use a mount wait meanwhile and see no error.
//!
//! 1. The taker opens all images while the giver still serves.
//! 2. The giver stops reading requests, which the kernel then queues, and sends its connections to
//!    the kernel.
//! 3. The taker confirms that it has all connections.
//! 4. The giver releases the mounts and says so. Only then the taker reads requests.
//!
//! If a step before the release fails, the giver serves the mounts again. So two processes never
//! read at the same time, and no detected error leaves a mount without a server.

pub(crate) mod give;

use crate::client::{has_hung_up, report};
use crate::message::{Giving, HandedMount, Hello, Request, Taking, receive, send};
use crate::runtime_dir::{Bound, RuntimeDir};
use crate::served::{Content, Opened, Served};
use crate::server::Server;
use crate::shared::ServerOptions;
use give::STEP_TIMEOUT;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weald_format::{ByteLen, Error, ErrorKind, Result};
use weald_fuse::Paused;
use weald_image::SharedCache;

/// How long the taker waits for the end of the giver before it creates the mount locks of its
/// mounts.
const END_TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

/// Largest number of attempts to start a lasting server while another one ends.
const START_ATTEMPT_COUNT_MAX: u32 = 200;

/// Pause between two attempts.
const START_PAUSE: Duration = Duration::from_millis(50);

/// Takes over all mounts of the running server of `runtime_dir`. `cache_len` replaces the limit of
/// its cache.
///
/// # Errors
/// `NotFound` if no server runs; `Busy` if it has a mount that cannot be handed over; `Invalid` if
/// the path of an image now leads to another image; other errors of opening an image. The other
/// server then continues.
pub fn take_over(runtime_dir: RuntimeDir, cache_len: Option<ByteLen>) -> Result<Server> {
    let name = runtime_dir.shared_name();
    let Some(stream) = runtime_dir.connect(&name)? else {
        return Err(Error::not_found(
            "no server runs whose mounts could be taken over",
        ));
    };
    let offer = ask(&stream)?;
    let options = ServerOptions {
        cache_len: cache_len.unwrap_or(ByteLen(offer.cache_len)),
        is_shared: true,
        ends_when_idle: offer.ends_when_idle,
        log: offer.log.clone(),
    };
    take(runtime_dir, &stream, offer, options)
}

/// Starts a shared server that does not end when idle. It replaces a running server that has no
/// mounts and ends when idle, as one does for a moment after its last unmount.
///
/// `asked` is the cache size that the user requested, if any.
///
/// # Errors
/// `Busy` if another server runs; the message has its cache size. Otherwise as [`take_over`].
pub fn start_lasting(
    runtime_dir: &RuntimeDir,
    options: &ServerOptions,
    asked: Option<ByteLen>,
) -> Result<Server> {
    for _ in 0..START_ATTEMPT_COUNT_MAX {
        let tried = match runtime_dir.connect(&runtime_dir.shared_name())? {
            None => Server::start(Some(runtime_dir.clone()), options.clone(), None).map(Some),
            Some(stream) => replace_idle(runtime_dir, &stream, options, asked)?,
        };
        match tried {
            Ok(Some(server)) => return Ok(server),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Busy || has_hung_up(&error) => {}
            Err(error) => return Err(error),
        }
        std::thread::sleep(START_PAUSE);
    }
    Err(Error::new(
        ErrorKind::Busy,
        "a server runs already, and is ending; try again when it has ended",
    ))
}

/// Replaces the server behind `stream`. An outer error is final. After an inner `None`, `Busy` or
/// lost connection the caller retries, because a server is starting or ending.
fn replace_idle(
    runtime_dir: &RuntimeDir,
    stream: &UnixStream,
    options: &ServerOptions,
    asked: Option<ByteLen>,
) -> Result<Result<Option<Server>>> {
    match report(stream) {
        Ok(Some(server)) if server.mount_count > 0 => {
            return Err(runs_already(server.cache.len_max, asked));
        }
        Ok(Some(_)) => {}
        other => return Ok(other.map(|_| None)),
    }
    let Some(stream) = runtime_dir.connect(&runtime_dir.shared_name())? else {
        return Ok(Ok(None));
    };
    match ask(&stream) {
        Ok(offer) if offer.ends_when_idle && offer.mount_count == 0 => {
            Ok(take(runtime_dir.clone(), &stream, offer, options.clone()).map(Some))
        }
        Ok(offer) => Err(runs_already(offer.cache_len, asked)),
        Err(error) => Ok(Err(error)),
    }
}

fn runs_already(len: u64, asked: Option<ByteLen>) -> Error {
    let mib = |len: u64| len.div_ceil(1 << 20);
    let text = match asked {
        Some(asked) if asked.0 != len => format!(
            "a server runs already, with a cache of {} MiB, not of the {} MiB asked for; \
             'weald serve --take-over --cache SIZE' replaces it and keeps its mounts",
            mib(len),
            mib(asked.0)
        ),
        _ => format!(
            "a server runs already, with a cache of {} MiB; 'weald serve --take-over' replaces it",
            mib(len)
        ),
    };
    Error::new(ErrorKind::Busy, text)
}

/// First message of the giver: the properties of its server.
struct Offer {
    cache_len: u64,
    ends_when_idle: bool,
    log: Option<PathBuf>,
    mount_count: u64,
    listener: OwnedFd,
}

/// Asks the server behind `stream` to hand its mounts over.
fn ask(stream: &UnixStream) -> Result<Offer> {
    Hello::send(stream, &Request::TakeOver, &[])?;
    match next(stream)? {
        (
            Giving::Server {
                cache_len,
                ends_when_idle,
                log,
                mount_count,
            },
            Some(listener),
        ) => Ok(Offer {
            cache_len,
            ends_when_idle,
            log: log.map(PathBuf::from),
            mount_count,
            listener,
        }),
        _ => Err(unexpected()),
    }
}

/// Takes over the mounts of `offer`.
fn take(
    runtime_dir: RuntimeDir,
    stream: &UnixStream,
    offer: Offer,
    options: ServerOptions,
) -> Result<Server> {
    let name = runtime_dir.shared_name();
    let cache = SharedCache::new(options.cache_len);
    let server = Server::new(Some(runtime_dir), options, Arc::clone(&cache))?;
    let mut opened = Vec::new();
    for _ in 0..offer.mount_count {
        let (Giving::Mount(handed), _) = next(stream)? else {
            return Err(unexpected());
        };
        let image = Opened::open_again(&handed, &cache)?;
        opened.push((*handed, image));
    }
    send(stream, &Taking::Ready, &[])?;
    let mut taken = Vec::new();
    for (handed, image) in opened {
        if let Some(paused) = take_device(stream)? {
            taken.push((handed, image, paused));
        }
    }
    send(stream, &Taking::Confirmed, &[])?;
    let (Giving::Released, _) = next(stream)? else {
        return Err(unexpected());
    };
    let listener = UnixListener::from(offer.listener);
    server.shared.adopt(Bound { listener, name });
    serve_taken(&server, taken, stream);
    Ok(server)
}

/// Serves the mounts that were taken over. If one of them fails, only this one is lost.
fn serve_taken(server: &Server, taken: Vec<(HandedMount, Opened, Paused)>, stream: &UnixStream) {
    for (id, (handed, opened, paused)) in (1..).zip(taken) {
        let dir = paused.dir.clone();
        let resumed = Served::resume(id, handed, Content::Image(opened), None, paused);
        if let Err(error) = resumed.and_then(|served| server.shared.insert(served)) {
            log::error!("{}: lost: {error:?}", dir.display());
        }
    }
    // The giver locks the mount locks until it ends, and 'weald umount' waits for these. A small
    // delay until ours exist does no harm.
    if let Err(error) = receive::<Giving>(stream, END_TIMEOUT) {
        log::info!("the other server has not ended: {error:?}");
    }
    server
        .shared
        .mounts()
        .iter()
        .for_each(|served| served.lock_mount(server.shared.runtime_dir.as_ref()));
}

fn take_device(stream: &UnixStream) -> Result<Option<Paused>> {
    match next(stream)? {
        (Giving::Over, _) => Ok(None),
        (
            Giving::Device {
                negotiated,
                dir,
                mount_id,
            },
            Some(device),
        ) => Ok(Some(Paused {
            device,
            negotiated,
            dir: dir.into(),
            mount_id,
        })),
        _ => Err(unexpected()),
    }
}

/// Receives the next message of the giver, and the descriptor that comes with it.
fn next(stream: &UnixStream) -> Result<(Giving, Option<OwnedFd>)> {
    match receive::<Giving>(stream, STEP_TIMEOUT)? {
        Some((Giving::Refused(refusal), _)) => Err(refusal.into_error()),
        Some((giving, descriptors)) => Ok((giving, descriptors.into_iter().next())),
        None => Err(Error::new(ErrorKind::Busy, "the other server has hung up")),
    }
}

fn unexpected() -> Error {
    Error::invalid("the other server says something else than expected")
}
