//! The client of a held volume.

use crate::byte_frames::receive_bytes;
use crate::client::{has_hung_up, unexpected};
use crate::message::{Hello, Reply, Request, receive};
use crate::runtime_dir::RuntimeDir;
use rustix::net::{RecvFlags, recv};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use weald_format::{Error, Result};

/// A state of a mounted volume, which its server keeps until this is dropped.
#[derive(Debug)]
pub struct HeldVolume {
    stream: UnixStream,
}

impl HeldVolume {
    /// Lets the server that has mounted the volume `name` hold its present state, and hands a copy
    /// of the rows over as [`weald_volume::Hold::copy_rows`] does. `lock` is the file that the
    /// writer of the store locks, open for writing. Returns `None` if no server of this user has
    /// the volume.
    ///
    /// # Errors
    /// Those of the server and of `put`; `Io`.
    pub fn begin(
        runtime_dir: &RuntimeDir,
        lock: BorrowedFd<'_>,
        name: &str,
        put: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Option<Self>> {
        let mut refusal = None;
        for server in runtime_dir.names()? {
            let Some(stream) = runtime_dir.connect(&server)? else {
                continue;
            };
            let request = Request::Hold(name.to_owned());
            let sent = Hello::send(&stream, &request, &[lock]);
            // No timeout: a commit takes as long as the disk does, and the user can interrupt.
            match sent.and_then(|()| receive::<Reply>(&stream, None)) {
                Ok(Some((Reply::Held, _))) => {
                    receive_bytes(&stream, put)?;
                    return match receive::<Reply>(&stream, None)? {
                        Some((Reply::Done, _)) => Ok(Some(Self { stream })),
                        Some((Reply::Refused(refusal), _)) => Err(refusal.into_error()),
                        Some(_) => Err(unexpected()),
                        None => Err(Error::invalid("the server of the volume has ended")),
                    };
                }
                Ok(Some((Reply::NotHere, _)) | None) => {}
                // A server of another version may have other volumes.
                Ok(Some((Reply::Refused(refused), _))) => {
                    refusal.get_or_insert(refused);
                }
                Ok(Some(_)) => return Err(unexpected()),
                Err(error) if has_hung_up(&error) => {}
                Err(error) => return Err(error),
            }
        }
        match refusal {
            Some(refusal) => Err(refusal.into_error()),
            None => Ok(None),
        }
    }

    /// Whether the server has given the state up: the volume was unmounted, its disk is full, or
    /// the server has ended.
    pub fn is_over(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        !matches!(
            recv(&self.stream, &mut [0; 1], flags),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)
        )
    }
}
