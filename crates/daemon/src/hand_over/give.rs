//! The giver: pauses its mounts and sends them to the other process.

use crate::message::{Giving, Refusal, Taking, receive, send};
use crate::served::{Live, Served};
use crate::shared::{Phase, Shared};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use weald_format::{Error, ErrorKind, Result};
use weald_fuse::Paused;

/// How long one side waits for the other: enough time to open images on slow storage.
pub(super) const STEP_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// A paused mount, which no process serves.
struct Waiting {
    served: Arc<Served>,
    live: Live,
    paused: Paused,
}

/// Hands all mounts to the process behind `stream`; after a failure this server serves them again.
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
                serve_again(shared, mount);
            }
            shared.end_hand_over(Phase::Open);
            // `weald serve` uses this request to ask a server without mounts whether it ends when
            // idle.
            if shared.mounts().is_empty() {
                log::info!("this server goes on: {error:?}")
            } else {
                log::warn!("the mounts stay with this server: {error:?}")
            }
            // The send may fail: the other process may have ended.
            let _ = refuse(stream, &error);
            Ok(())
        }
    }
}

fn refuse(stream: &UnixStream, error: &Error) -> Result<()> {
    send(stream, &Giving::Refused(Refusal::of(error)), &[])
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
    send(stream, &server, &[bound.listener.as_fd()])?;
    for served in &mounts {
        send(stream, &Giving::Mount(Box::new(served.handed.clone())), &[])?;
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
                send(stream, &device, &[paused.device.as_fd()])?;
            }
            None => send(stream, &Giving::Over, &[])?,
        }
    }
    let Taking::Confirmed = expect(stream)? else {
        return Err(Error::invalid("expected the other server to confirm"));
    };
    send(stream, &Giving::Released, &[])
}

/// Pauses a mount; `None` if it has ended meanwhile.
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
            // The mount may have ended after its thread last looked.
            if let Some(live) = served.take_if_over() {
                shared.finish(&served, live);
                return Ok(None);
            }
            Err(error)
        }
    }
}

/// Serves a mount again after a failed hand-over.
fn serve_again(shared: &Arc<Shared>, mount: Waiting) {
    let Waiting {
        served,
        live,
        paused,
    } = mount;
    let dir = paused.dir.clone();
    let (opened, mount_lock) = live.into_parts();
    let resumed = Served::resume(served.id, served.handed.clone(), opened, mount_lock, paused);
    if let Err(error) = resumed.and_then(|served| shared.insert(served)) {
        log::error!("{}: lost: {error:?}", dir.display());
        shared.forget(served.id);
    }
}

fn expect(stream: &UnixStream) -> Result<Taking> {
    match receive::<Taking>(stream, STEP_TIMEOUT)? {
        Some((taking, _)) => Ok(taking),
        None => Err(Error::invalid("the other server has given up")),
    }
}
