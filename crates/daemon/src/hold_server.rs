//! Holds a state of a mounted volume while a client reads it, and adds images to its store.
//!
//! The client may do what it could with a store that is not mounted: it shows that it can open the
//! store's lock for writing. The server sends a copy of the rows and keeps the blocks, which the
//! client reads itself. The client makes the image with its own rights, and the server opens no
//! file for it.

use crate::byte_frames::{ByteSender, receive_bytes};
use crate::message::{AddImage, AddedImage, Refusal, Reply, receive, send};
use crate::shared::Shared;
use crate::volume_mount::FileId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use weald_format::{Error, Result};
use weald_store::PartsParser;
use weald_volume::{Adding, Hold, OpenOptions, Volume};

/// Time between two looks whether the volume was unmounted.
const LOOK_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Time in which the rest of a message comes whose first byte is there.
const MESSAGE_TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

/// Holds the volume `name` of the store whose lock is in `descriptors`, or the snapshot of a volume
/// that `VOLUME@NAME` names, or with no name the blocks of the store, until the client closes the
/// connection or the hold ends. With `changes`, the client gets what differs between two states.
///
/// # Errors
/// `Io` of the connection.
pub(crate) fn hold(
    shared: &Shared,
    stream: &UnixStream,
    (name, changes): (Option<&str>, Option<[Option<&str>; 2]>),
    descriptors: &[OwnedFd],
) -> Result<()> {
    let lock_file = match lock_file(descriptors) {
        Ok(lock_file) => lock_file,
        Err(error) => return refuse(stream, &error),
    };
    let mounted = match (name, find(shared, name, lock_file)) {
        (Some(name), None) => weald_store::split_state(name).and_then(|(volume, of)| {
            let volume = find(shared, Some(volume), lock_file)?;
            Some(volume.hold_state_of(of))
        }),
        (_, found) => found.map(|volume| match name {
            Some(_) => volume.hold(),
            None => volume.hold_blocks(),
        }),
    };
    let mut opened = None;
    let hold = match (mounted, name) {
        (Some(hold), _) => hold,
        (None, None) => return send(stream, &Reply::NotHere, &[]),
        (None, Some(name)) => match open(shared, name, lock_file) {
            Ok(Some(volume)) => opened.insert(Opened(volume)).0.hold(),
            Ok(None) => return send(stream, &Reply::NotHere, &[]),
            Err(error) => Err(error),
        },
    };
    let mut hold = match hold {
        Ok(hold) => hold,
        Err(error) => return refuse(stream, &error),
    };
    send(stream, &Reply::Held, &[])?;
    if name.is_some() {
        let copied = match changes {
            Some(names) => send_changes(stream, &mut hold, names)?,
            None => {
                let mut rows = ByteSender::new(stream)?;
                let copied = hold.copy_rows(&mut |bytes| rows.put(bytes).map(drop));
                rows.finish()?;
                copied
            }
        };
        match copied {
            Ok(()) => send(stream, &Reply::Done, &[])?,
            Err(error) => return refuse(stream, &error),
        }
    }
    while wait(stream, &hold)? {
        let Some((request, _)) = receive::<AddImage>(stream, MESSAGE_TIMEOUT)? else {
            return Ok(());
        };
        add(stream, &hold, &request.name)?;
    }
    Ok(())
}

/// Sends the rows of two states that differ, one state after the other. Returns the error of
/// reading them.
///
/// # Errors
/// `Io` of the connection.
fn send_changes(
    stream: &UnixStream,
    hold: &mut Hold,
    names: [Option<&str>; 2],
) -> Result<Result<()>> {
    let mut rows = ByteSender::new(stream)?;
    let mut at = 0;
    let copied = hold.copy_changes(names, &mut |no, bytes| {
        if no != at {
            at = no;
            rows.finish()?;
        }
        rows.put(bytes).map(drop)
    });
    // The client expects two of them, also of a failure.
    for _ in at..2 {
        rows.finish()?;
    }
    Ok(copied)
}

/// A volume that is open as long as its state is held.
struct Opened(Arc<Volume>);

impl Drop for Opened {
    fn drop(&mut self) {
        if let Err(error) = self.0.close() {
            log::warn!("a volume that was read: {error}");
        }
    }
}

/// Opens the volume or snapshot `name`, which is not mounted, of a store of which another volume
/// is; `None` if there is no such volume.
fn open(shared: &Shared, name: &str, lock_file: FileId) -> Result<Option<Arc<Volume>>> {
    let Some(other) = find(shared, None, lock_file) else {
        return Ok(None);
    };
    let options = OpenOptions {
        background: false,
        is_read_only: true,
        ..OpenOptions::default()
    };
    Volume::open_in(other.store(), name, options).map(Some)
}

/// Answers with an error.
///
/// # Errors
/// `Io`.
pub(crate) fn refuse(stream: &UnixStream, error: &Error) -> Result<()> {
    send(stream, &Reply::Refused(Refusal::of(error)), &[])
}

/// Adds the image that the client sends now. A refusal goes out at once, so that the client need
/// not send the rest, which is dropped.
fn add(stream: &UnixStream, hold: &Hold, name: &str) -> Result<()> {
    let mut adding = or_refuse(stream, hold.add_image(name))?;
    let mut parser = PartsParser::default();
    let received = receive_bytes(
        stream,
        &|| wait(stream, hold).and_then(|_| hold.refuse_over()),
        &mut |bytes| {
            let Some(open) = &mut adding else {
                return Ok(());
            };
            let mut parts = Vec::new();
            let put = parser
                .push(bytes, &mut parts)
                .and_then(|()| open.put(parts));
            if or_refuse(stream, put)?.is_none() {
                adding = None;
            }
            Ok(())
        },
    );
    if hold.is_over() {
        return or_refuse(stream, hold.refuse_over()).map(drop);
    }
    received?;
    let Some(finished) = adding.map(Adding::finish) else {
        return Ok(());
    };
    match or_refuse(stream, finished)? {
        Some(imported) => send(stream, &Reply::Added(AddedImage::of(&imported)), &[]),
        None => Ok(()),
    }
}

/// The value, or `None` if the client was told of the error.
fn or_refuse<T>(stream: &UnixStream, outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) => refuse(stream, &error).map(|()| None),
    }
}

/// A mounted volume of the store whose lock is in `descriptors`.
///
/// # Errors
/// `Invalid` if the client could not write to the store itself; `Io`.
pub(crate) fn volume_of_store(
    shared: &Shared,
    descriptors: &[OwnedFd],
) -> Result<Option<Arc<Volume>>> {
    Ok(find(shared, None, lock_file(descriptors)?))
}

/// The mounted volume `name` of the store whose lock is in `descriptors`.
///
/// # Errors
/// As [`volume_of_store`].
pub(crate) fn volume_named(
    shared: &Shared,
    name: &str,
    descriptors: &[OwnedFd],
) -> Result<Option<Arc<Volume>>> {
    Ok(find(shared, Some(name), lock_file(descriptors)?))
}

/// The lock of a store, which the client has opened for writing.
pub(crate) fn lock_file(descriptors: &[OwnedFd]) -> Result<FileId> {
    let wrong = || Error::invalid("expected the lock of a store, open for writing");
    let [lock] = descriptors else {
        return Err(wrong());
    };
    let failed = |errno: rustix::io::Errno| Error::io("lock of a store", errno.into());
    let access = rustix::fs::fcntl_getfl(lock).map_err(failed)? & OFlags::ACCMODE;
    if access != OFlags::RDWR && access != OFlags::WRONLY {
        return Err(wrong());
    }
    let stat = rustix::fs::fstat(lock).map_err(failed)?;
    Ok(FileId::of(&stat))
}

fn find(shared: &Shared, name: Option<&str>, lock_file: FileId) -> Option<Arc<Volume>> {
    let mounts = shared.mounts();
    mounts
        .iter()
        .find_map(|served| served.volume(name, lock_file))
}

/// Waits until the client says something or closes the connection. Returns false if `hold` ends
/// before that.
fn wait(stream: &UnixStream, hold: &Hold) -> Result<bool> {
    while !hold.is_over() {
        let mut ends = [PollFd::new(stream, PollFlags::IN)];
        match poll(&mut ends, Some(&LOOK_INTERVAL)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => {
                let set = stream.set_read_timeout(MESSAGE_TIMEOUT);
                return set.map(|()| true).map_err(|e| Error::io("connection", e));
            }
            Err(errno) => return Err(Error::io("connection", errno.into())),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use weald_format::ErrorKind;

    // Would catch a client that may only read the store and gets a state of its volume.
    #[test]
    fn only_a_lock_that_is_open_for_writing_counts() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = |is_writing| {
            let opened = File::options().read(true).write(is_writing).open(&file);
            OwnedFd::from(opened.expect("open"))
        };
        let stat = rustix::fs::fstat(file.as_file()).expect("stat");
        let found = lock_file(&[open(true)]).expect("a lock");
        assert_eq!(found, FileId::of(&stat));
        for descriptors in [vec![], vec![open(false)], vec![open(true), open(true)]] {
            let refused = lock_file(&descriptors).expect_err("no proof");
            assert_eq!(refused.kind(), ErrorKind::Invalid);
        }
    }
}
