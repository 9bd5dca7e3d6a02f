//! Mounts change from one server to another, as on an upgrade, while their users wait and see
//! nothing of it.
//!
//! The taker opens all images while the giver still serves. Then the giver stops reading requests,
//! which the kernel queues, and sends its connections to the kernel; the taker has them all and
//! says so; the giver lets go and says so; only then the taker reads. Whatever fails before that,
//! the giver goes on by itself: so there is no moment at which both read, and none at which an
//! error is found that leaves a mount with nobody.

use crate::message::{Giving, HandedMount, Hello, Refusal, Request, Taking, receive, send};
use crate::place::{Bound, Place};
use crate::served::{Live, Opened, Served};
use crate::server::{Phase, Server, ServerOptions, Shared};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weald_format::{ByteLen, Error, ErrorKind, Result};
use weald_fuse::Paused;
use weald_image::SharedCache;

/// How long one side waits for the other: as long as images on slow storage may take to open.
const STEP_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// How long the taker waits for the giver to end before its mounts say that they are served.
const END_TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

/// A mount that nobody serves at the moment.
struct Waiting {
    served: Arc<Served>,
    live: Live,
    paused: Paused,
}

/// Gives all mounts to the process behind `stream`; on failure they are served on.
pub(crate) fn give(shared: &Arc<Shared>, stream: &UnixStream) -> Result<()> {
    if let Err(error) = shared.begin_hand_over() {
        return refuse(stream, &error);
    }
    let mut waiting = Vec::new();
    match try_give(shared, stream, &mut waiting) {
        Ok(()) => {
            shared.end_hand_over(Phase::Given);
            Ok(())
        }
        Err(error) => {
            for mount in waiting {
                go_on(shared, mount);
            }
            shared.end_hand_over(Phase::Open);
            log::warn!("the mounts stay with this server: {error:?}");
            // The other side may be gone.
            let _ = refuse(stream, &error);
            Ok(())
        }
    }
}

fn refuse(stream: &UnixStream, error: &Error) -> Result<()> {
    send(stream, &Giving::Refused(Refusal::of(error)), None)
}

fn try_give(shared: &Arc<Shared>, stream: &UnixStream, waiting: &mut Vec<Waiting>) -> Result<()> {
    let mounts = shared.mounts();
    for served in &mounts {
        served.check_movable()?;
    }
    let bound = shared.bound.lock().clone();
    let bound = bound.ok_or_else(|| Error::new(ErrorKind::Busy, "the server is ending"))?;
    if !shared.options.is_shared {
        return Err(Error::invalid("this server serves one mount alone"));
    }
    let server = Giving::Server {
        cache_len: shared.cache.counts().len_max,
        ends_when_idle: shared.options.ends_when_idle,
        log: shared.log().map(PathBuf::into_os_string),
        mount_count: mounts.len() as u64,
    };
    send(stream, &server, Some(bound.listener.as_fd()))?;
    for served in &mounts {
        send(stream, &Giving::Mount(served.handed.clone()), None)?;
    }
    let Taking::Ready = expect(stream)? else {
        return Err(Error::invalid("expected the other server to be ready"));
    };
    for served in mounts {
        match pause(shared, served)? {
            Some(mount) => {
                waiting.push(mount);
                let Some(Waiting { paused, .. }) = waiting.last() else {
                    continue;
                };
                let device = Giving::Device {
                    negotiated: paused.negotiated,
                    dir: paused.dir.clone().into_os_string(),
                    mount_id: paused.mount_id,
                };
                send(stream, &device, Some(paused.device.as_fd()))?;
            }
            None => send(stream, &Giving::Over, None)?,
        }
    }
    let Taking::Confirmed = expect(stream)? else {
        return Err(Error::invalid("expected the other server to confirm"));
    };
    send(stream, &Giving::Released, None)
}

/// Stops serving a mount; `None` where it has ended meanwhile.
fn pause(shared: &Arc<Shared>, served: Arc<Served>) -> Result<Option<Waiting>> {
    let Some(live) = served.take() else {
        return Ok(None);
    };
    match live.pause() {
        Ok(paused) => Ok(Some(Waiting {
            served,
            live,
            paused,
        })),
        Err(_) if live.is_over() => {
            shared.finish(&served, live);
            Ok(None)
        }
        Err(error) => {
            served.put_back(live);
            // Its watcher may have looked just before.
            if let Some(live) = served.take_if_over() {
                shared.finish(&served, live);
                return Ok(None);
            }
            Err(error)
        }
    }
}

/// Serves a mount again that was not taken.
fn go_on(shared: &Arc<Shared>, mount: Waiting) {
    let Waiting {
        served,
        live,
        paused,
    } = mount;
    let dir = paused.dir.clone();
    let (opened, presence) = live.into_parts();
    let resumed = Served::resume(served.id, served.handed.clone(), opened, presence, paused);
    if let Err(error) = resumed.and_then(|served| shared.insert(served)) {
        log::error!("{}: lost: {error:?}", dir.display());
        shared.forget(served.id);
    }
}

/// Takes all mounts of the server that runs in `place`; `cache_len` is another limit of the cache
/// than it has.
///
/// # Errors
/// `NotFound` where no server runs; `Busy` where one has mounts that cannot be moved; whatever
/// keeps an image from being opened again, `Invalid` where it is another one now. The other server
/// then goes on.
pub fn take_over(place: Place, cache_len: Option<ByteLen>) -> Result<Server> {
    let name = place.shared_name();
    let Some(stream) = place.connect(&name)? else {
        return Err(Error::not_found(
            "no server runs whose mounts could be taken over",
        ));
    };
    Hello::send(&stream, &Request::TakeOver)?;
    let (giving, listener) = next(&stream)?;
    let (
        Giving::Server {
            cache_len: old_len,
            ends_when_idle,
            log,
            mount_count,
        },
        Some(listener),
    ) = (giving, listener)
    else {
        return Err(unexpected());
    };
    let options = ServerOptions {
        cache_len: cache_len.unwrap_or(ByteLen(old_len)),
        is_shared: true,
        ends_when_idle,
        log: log.map(PathBuf::from),
    };
    let cache = SharedCache::new(options.cache_len);
    let server = Server::new(Some(place), options, Arc::clone(&cache))?;
    let mut opened = Vec::new();
    for _ in 0..mount_count {
        let (Giving::Mount(handed), _) = next(&stream)? else {
            return Err(unexpected());
        };
        let image = Opened::open_again(&handed, &cache)?;
        opened.push((handed, image));
    }
    send(&stream, &Taking::Ready, None)?;
    let mut taken = Vec::new();
    for (handed, image) in opened {
        if let Some(paused) = take_device(&stream)? {
            taken.push((handed, image, paused));
        }
    }
    send(&stream, &Taking::Confirmed, None)?;
    let (Giving::Released, _) = next(&stream)? else {
        return Err(unexpected());
    };
    let listener = UnixListener::from(listener);
    server.shared.adopt(Bound { listener, name });
    serve_taken(&server, taken, &stream);
    Ok(server)
}

/// Serves what is ours now. A mount that fails here is lost; the others are not.
fn serve_taken(server: &Server, taken: Vec<(HandedMount, Opened, Paused)>, stream: &UnixStream) {
    for (id, (handed, opened, paused)) in (1..).zip(taken) {
        let dir = paused.dir.clone();
        let resumed = Served::resume(id, handed, opened, None, paused);
        if let Err(error) = resumed.and_then(|served| server.shared.insert(served)) {
            log::error!("{}: lost: {error:?}", dir.display());
        }
    }
    // The names by which 'weald umount' waits are the other's as long as it runs. That they come a
    // little late harms nobody.
    if let Err(error) = receive::<Giving>(stream, END_TIMEOUT) {
        log::info!("the other server has not ended: {error:?}");
    }
    server
        .shared
        .mounts()
        .iter()
        .for_each(|served| served.announce());
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

/// What the giver says next.
fn next(stream: &UnixStream) -> Result<(Giving, Option<OwnedFd>)> {
    match receive::<Giving>(stream, STEP_TIMEOUT)? {
        Some((Giving::Refused(refusal), _)) => Err(refusal.into_error()),
        Some(other) => Ok(other),
        None => Err(Error::new(ErrorKind::Busy, "the other server has hung up")),
    }
}

fn expect(stream: &UnixStream) -> Result<Taking> {
    match receive::<Taking>(stream, STEP_TIMEOUT)? {
        Some((taking, _)) => Ok(taking),
        None => Err(Error::invalid("the other server has given up")),
    }
}

fn unexpected() -> Error {
    Error::invalid("the other server says something else than expected")
}
