//! Requests to the server that has a volume of a store mounted: what only the writer of the store
//! can do.

use crate::client::{has_hung_up, is_of_stopped, receive_reply, unexpected};
use crate::message::{Hello, Reply, Request, receive};
use crate::runtime_dir::RuntimeDir;
use crate::snapshot_work::{SnapshotReport, SnapshotWork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use weald_format::{Error, Result};
use weald_store::tier::TierReport;
use weald_store::{CollectOptions, Collected, IfTaken};
use weald_volume::TierMove;

/// Time between two looks whether the user has interrupted.
const LOOK_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Asks the servers of `runtime_dir` until one has a mount that fits the request. `lock` is the
/// file that the writer of the store locks, open for writing. Returns the connection and the first
/// answer; `None` if no server has such a mount.
///
/// # Errors
/// Those of the server; `Io`.
pub(crate) fn ask(
    runtime_dir: &RuntimeDir,
    lock: BorrowedFd<'_>,
    request: &Request,
) -> Result<Option<(UnixStream, Reply)>> {
    let mut refusal = None;
    for server in runtime_dir.names()? {
        let Some(stream) = runtime_dir.connect(&server)? else {
            continue;
        };
        let sent = Hello::send(&stream, request, &[lock]);
        // No timeout: a commit takes as long as the disk does, and the user can interrupt.
        match sent.and_then(|()| receive_reply(&stream, None)) {
            Ok(Some((Reply::NotHere, _)) | None) => {}
            // A server of another version may have other volumes.
            Ok(Some((Reply::Refused(refused), _))) => {
                refusal.get_or_insert(refused);
            }
            Ok(Some((reply, _))) => return Ok(Some((stream, reply))),
            Err(error) if has_hung_up(&error) => {}
            Err(error) if is_of_stopped(&error) => log::warn!("{error}"),
            Err(error) => return Err(error),
        }
    }
    match refusal {
        Some(refusal) => Err(refusal.into_error()),
        None => Ok(None),
    }
}

/// Lets the server that has a volume of the store mounted remove the image `name`. `lock` is the
/// file that the writer of the store locks, open for writing. Returns whether there is such a
/// server. The server completes the removal also if this process ends.
///
/// # Errors
/// Those of the server, `Busy` if a reader has the image open and `is_forced` is false; `Io`.
pub fn remove_image(
    runtime_dir: &RuntimeDir,
    lock: BorrowedFd<'_>,
    name: &str,
    is_forced: bool,
) -> Result<bool> {
    let request = Request::RemoveImage {
        name: name.to_owned(),
        is_forced,
    };
    match ask(runtime_dir, lock, &request)? {
        Some((_, Reply::Done)) => Ok(true),
        Some(_) => Err(unexpected()),
        None => Ok(false),
    }
}

/// Lets the server that has a volume of the store mounted give the image `name` the name `new`.
/// `lock` is the file that the writer of the store locks, open for writing. Returns whether there
/// is such a server. The server completes it also if this process ends.
///
/// # Errors
/// Those of [`weald_volume::Volume::rename_image`]; `Io`.
pub fn rename_image(
    runtime_dir: &RuntimeDir,
    lock: BorrowedFd<'_>,
    name: &str,
    new: &str,
    if_taken: IfTaken,
) -> Result<bool> {
    let request = Request::RenameImage {
        name: name.to_owned(),
        new: new.to_owned(),
        replaces: if_taken == IfTaken::Replace,
    };
    match ask(runtime_dir, lock, &request)? {
        Some((_, Reply::Done)) => Ok(true),
        Some(_) => Err(unexpected()),
        None => Ok(false),
    }
}

/// Lets the server that has volumes of a store mounted write all of them to disk. `lock` is the
/// file that the writer of the store locks, open for writing. Returns whether there is such a
/// server.
///
/// # Errors
/// Those of the server; `Io`.
pub fn commit(runtime_dir: &RuntimeDir, lock: BorrowedFd<'_>) -> Result<bool> {
    match ask(runtime_dir, lock, &Request::Commit)? {
        Some((_, Reply::Done)) => Ok(true),
        Some(_) => Err(unexpected()),
        None => Ok(false),
    }
}

/// Lets the server that has volumes of a store mounted move between its tiers what users and the
/// policies ask for, or what `wanted` names. `lock` is the file that the writer of the store locks,
/// open for writing. Returns nothing if there is no such server. The server goes on also if this
/// process ends.
///
/// # Errors
/// Those of the server; `Io`.
pub fn move_tiers(
    runtime_dir: &RuntimeDir,
    lock: BorrowedFd<'_>,
    wanted: Option<&TierMove>,
) -> Result<Option<TierReport>> {
    let part = wanted.and_then(|wanted| wanted.part.as_ref());
    let part = part.map(|part| {
        let range = part.range.as_ref().map(|range| (range.start, range.end));
        (part.path.clone(), range)
    });
    let wanted = wanted.map(|wanted| (wanted.name.clone(), wanted.to.clone()));
    match ask(runtime_dir, lock, &Request::MoveTiers { wanted, part })? {
        Some((_, Reply::MovedTiers(report))) => Ok(Some(report.into())),
        Some(_) => Err(unexpected()),
        None => Ok(None),
    }
}

/// Lets the server that has volumes of a store mounted do something with the snapshots of the
/// volume `name`. `lock` is the file that the writer of the store locks, open for writing. Returns
/// nothing if there is no such server.
///
/// # Errors
/// Those of the server; `Io`.
pub fn work_on_snapshots(
    runtime_dir: &RuntimeDir,
    lock: BorrowedFd<'_>,
    name: &str,
    work: &SnapshotWork,
) -> Result<Option<Vec<SnapshotReport>>> {
    let request = Request::Snapshots {
        volume: name.to_owned(),
        work: work.clone(),
    };
    match ask(runtime_dir, lock, &request)? {
        Some((stream, reply)) => receive_list(&stream, reply).map(Some),
        None => Ok(None),
    }
}

/// The list of which `reply` is the first part.
pub(crate) fn receive_list(stream: &UnixStream, mut reply: Reply) -> Result<Vec<SnapshotReport>> {
    let mut all = Vec::new();
    loop {
        let Reply::Snapshots { list, has_more } = reply else {
            return Err(unexpected());
        };
        all.extend(list);
        if !has_more {
            return Ok(all);
        }
        let received = receive::<Reply>(stream, None)?;
        (reply, _) = received.ok_or_else(unexpected)?;
    }
}

/// Lets the server that has a volume of the store mounted collect the store. `lock` is the file
/// that the writer of the store locks, open for writing. Once `is_interrupted` says so, the server
/// comes to an end early. Returns nothing if there is no such server.
///
/// # Errors
/// Those of the server, `Busy` while a volume is being sealed; `Io`.
pub fn collect(
    runtime_dir: &RuntimeDir,
    lock: BorrowedFd<'_>,
    options: &CollectOptions,
    is_interrupted: &dyn Fn() -> bool,
) -> Result<Option<Collected>> {
    let request = Request::Collect {
        copy_below_percent: options.copy_below_percent,
        copy_len_max: options.copy_len_max,
    };
    let stream = match ask(runtime_dir, lock, &request)? {
        Some((stream, Reply::Collecting)) => stream,
        Some(_) => return Err(unexpected()),
        None => return Ok(None),
    };
    let lost = |error: std::io::Error| Error::io("connection", error);
    let mut is_told = false;
    loop {
        let mut ends = [PollFd::new(&stream, PollFlags::IN)];
        match poll(&mut ends, Some(&LOOK_INTERVAL)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => break,
            Err(errno) => return Err(lost(errno.into())),
        }
        if !is_told && is_interrupted() {
            stream.shutdown(Shutdown::Write).map_err(lost)?;
            is_told = true;
        }
    }
    match receive::<Reply>(&stream, None)? {
        Some((Reply::Collected(done), _)) => Ok(Some(done.into())),
        Some((Reply::Refused(refusal), _)) => Err(refusal.into_error()),
        Some(_) => Err(unexpected()),
        None => Err(Error::invalid(
            "the server of the volume has ended: what was collected until then is done, and the \
             next gc continues",
        )),
    }
}
