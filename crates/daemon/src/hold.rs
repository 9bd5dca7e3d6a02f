//! Holds a state of a mounted volume while a client reads it.
//!
//! The client may do what it could with a store that is not mounted: it shows that it can open the
//! store's lock for writing. The server sends a copy of the rows and keeps the blocks, which the
//! client reads itself. The client makes the image with its own rights, and the server opens no
//! file for it.

use crate::byte_frames::ByteSender;
use crate::message::{Refusal, Reply, send};
use crate::shared::Shared;
use crate::volume_mount::FileId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use weald_format::{Error, Result};
use weald_volume::{Hold, Volume};

/// Time between two looks whether the volume was unmounted.
const LOOK_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Holds the volume `name` of the store whose lock is in `descriptors`, until the client closes the
/// connection or the hold ends.
///
/// # Errors
/// `Io` of the connection.
pub(crate) fn hold(
    shared: &Shared,
    stream: &UnixStream,
    name: &str,
    descriptors: &[OwnedFd],
) -> Result<()> {
    let volume = lock_file(descriptors).map(|lock_file| find(shared, name, lock_file));
    let hold = match volume {
        Ok(Some(volume)) => volume.hold(),
        Ok(None) => return send(stream, &Reply::NotHere, &[]),
        Err(error) => Err(error),
    };
    let mut hold = match hold {
        Ok(hold) => hold,
        Err(error) => return send(stream, &Reply::Refused(Refusal::of(&error)), &[]),
    };
    send(stream, &Reply::Held, &[])?;
    let mut rows = ByteSender::new(stream);
    let copied = hold.copy_rows(&mut |bytes| rows.put(bytes));
    rows.finish()?;
    match copied {
        Ok(()) => send(stream, &Reply::Done, &[])?,
        Err(error) => return send(stream, &Reply::Refused(Refusal::of(&error)), &[]),
    }
    wait(stream, &hold)
}

/// The lock of a store, which the client has opened for writing.
fn lock_file(descriptors: &[OwnedFd]) -> Result<FileId> {
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
    Ok((stat.st_dev, stat.st_ino))
}

fn find(shared: &Shared, name: &str, lock_file: FileId) -> Option<Arc<Volume>> {
    let mounts = shared.mounts();
    mounts
        .iter()
        .find_map(|served| served.volume(name, lock_file))
}

/// Waits until the client has closed the connection or `hold` has ended.
fn wait(stream: &UnixStream, hold: &Hold) -> Result<()> {
    while !hold.is_over() {
        let mut ends = [PollFd::new(stream, PollFlags::IN)];
        match poll(&mut ends, Some(&LOOK_INTERVAL)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(Error::io("connection", errno.into())),
        }
    }
    Ok(())
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
        assert_eq!(found, (stat.st_dev, stat.st_ino));
        for descriptors in [vec![], vec![open(false)], vec![open(true), open(true)]] {
            let refused = lock_file(&descriptors).expect_err("no proof");
            assert_eq!(refused.kind(), ErrorKind::Invalid);
        }
    }
}
