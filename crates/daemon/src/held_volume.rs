//! The client of a held volume.

use crate::byte_frames::{ByteSender, receive_bytes};
use crate::client::unexpected;
use crate::message::{AddImage, Reply, Request, receive, send};
use crate::runtime_dir::RuntimeDir;
use crate::store_request::ask;
use rustix::net::{RecvFlags, recv};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use weald_format::{Error, Result};
use weald_store::Imported;

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
        let request = Request::Hold(name.to_owned());
        let Some(held) = Self::hold(runtime_dir, lock, &request)? else {
            return Ok(None);
        };
        receive_bytes(&held.stream, &|| Ok(()), put)?;
        held.begun().map(Some)
    }

    /// As [`HeldVolume::begin`], with the rows of two states of the volume that differ between
    /// them, as [`weald_volume::Hold::copy_changes`] hands them over.
    ///
    /// # Errors
    /// As [`HeldVolume::begin`].
    pub fn begin_changes(
        runtime_dir: &RuntimeDir,
        lock: BorrowedFd<'_>,
        (volume, states): (&str, [Option<&str>; 2]),
        put: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<Option<Self>> {
        let request = Request::HoldChanges {
            volume: volume.to_owned(),
            states: states.map(|name| name.map(str::to_owned)),
        };
        let Some(held) = Self::hold(runtime_dir, lock, &request)? else {
            return Ok(None);
        };
        for no in 0..states.len() {
            receive_bytes(&held.stream, &|| Ok(()), &mut |bytes| put(no, bytes))?;
        }
        held.begun().map(Some)
    }

    /// The hold, after its rows have come.
    fn begun(self) -> Result<Self> {
        match receive::<Reply>(&self.stream, None)? {
            Some((Reply::Done, _)) => Ok(self),
            Some((Reply::Refused(refusal), _)) => Err(refusal.into_error()),
            Some(_) => Err(unexpected()),
            None => Err(ended()),
        }
    }

    /// As [`HeldVolume::begin`], for a store of which any volume is mounted, and without rows: to
    /// add images.
    ///
    /// # Errors
    /// Those of the server; `Io`.
    pub fn of_store(runtime_dir: &RuntimeDir, lock: BorrowedFd<'_>) -> Result<Option<Self>> {
        Self::hold(runtime_dir, lock, &Request::HoldStore)
    }

    fn hold(
        runtime_dir: &RuntimeDir,
        lock: BorrowedFd<'_>,
        request: &Request,
    ) -> Result<Option<Self>> {
        match ask(runtime_dir, lock, request)? {
            Some((stream, Reply::Held)) => Ok(Some(Self { stream })),
            Some(_) => Err(unexpected()),
            None => Ok(None),
        }
    }

    /// Begins an image with the name `name` in the store. The sender takes its parts, as
    /// [`weald_store::PartsWriter`] makes them; [`HeldVolume::finish_image`] follows.
    ///
    /// # Errors
    /// `Io`.
    pub fn add_image(&self, name: &str) -> Result<ImageSender> {
        let name = name.to_owned();
        send(&self.stream, &AddImage { name }, &[])?;
        let stream = self.stream.try_clone();
        Ok(ImageSender {
            bytes: ByteSender::new(&self.stream)?,
            stream: stream.map_err(|e| Error::io("connection", e))?,
        })
    }

    /// Ends the image whose parts were all sent.
    ///
    /// # Errors
    /// Those of the server; `Io`.
    pub fn finish_image(&self) -> Result<Imported> {
        match receive::<Reply>(&self.stream, None)? {
            Some((Reply::Added(added), _)) => added.into_imported(),
            Some((Reply::Refused(refusal), _)) => Err(refusal.into_error()),
            Some(_) => Err(unexpected()),
            None => Err(ended()),
        }
    }

    /// Whether the server has given the state up: the volume was unmounted, the server has ended,
    /// or, where an image is added, the disk is full.
    pub fn is_over(&self) -> bool {
        has_news(&self.stream)
    }
}

/// Whether the other side has said something or has closed the connection.
fn has_news(stream: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    !matches!(
        recv(stream, &mut [0; 1], flags),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR)
    )
}

/// Sends the parts of an image.
#[derive(Debug)]
pub struct ImageSender {
    bytes: ByteSender,
    stream: UnixStream,
}

impl ImageSender {
    /// Sends bytes.
    ///
    /// # Errors
    /// Those of the server, which it says before the end; `Io`.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match self.bytes.put(bytes) {
            Ok(false) => Ok(()),
            Ok(true) if !has_news(&self.stream) => Ok(()),
            sent => Err(self.refusal(sent.err())),
        }
    }

    /// Sends the rest.
    ///
    /// # Errors
    /// As [`ImageSender::put`].
    pub fn finish(&mut self) -> Result<()> {
        let sent = self.bytes.finish();
        sent.map_err(|error| self.refusal(Some(error)))
    }

    /// The error that the server has said, or else `error`.
    fn refusal(&self, error: Option<Error>) -> Error {
        let said = if has_news(&self.stream) {
            receive::<Reply>(&self.stream, None)
        } else {
            Ok(None)
        };
        match (said, error) {
            (Ok(Some((Reply::Refused(refusal), _))), _) => refusal.into_error(),
            (Ok(Some(_)), None) => unexpected(),
            (_, Some(error)) => error,
            (Err(error), None) => error,
            (Ok(None), None) => ended(),
        }
    }
}

fn ended() -> Error {
    Error::invalid("the server of the volume has ended")
}
