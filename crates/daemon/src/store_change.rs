//! Changes the store of a mounted volume for a client, which shows that it could do so itself: it
//! can open the store's lock for writing.

use crate::hold::{refuse, volume_of_store};
use crate::message::{Reply, send};
use crate::shared::Shared;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use weald_format::Result;
use weald_volume::Removing;

/// Removes the image `name`, also if the client ends meanwhile.
///
/// # Errors
/// `Io` of the connection.
pub(crate) fn remove_image(
    shared: &Shared,
    stream: &UnixStream,
    (name, is_forced): (&str, bool),
    descriptors: &[OwnedFd],
) -> Result<()> {
    let begun = match volume_of_store(shared, descriptors) {
        Ok(Some(volume)) => volume.begin_removal(name, is_forced),
        Ok(None) => return send(stream, &Reply::NotHere, &[]),
        Err(error) => Err(error),
    };
    // The volume is not kept: it may be unmounted meanwhile.
    match begun.and_then(Removing::finish) {
        Ok(()) => send(stream, &Reply::Done, &[]),
        Err(error) => refuse(stream, &error),
    }
}
