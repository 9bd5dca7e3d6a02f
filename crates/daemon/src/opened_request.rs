//! A mount request with the image and the mount point that the client has opened. The server reads
//! this file, or this directory of a store, and mounts on this directory, even if their paths lead
//! elsewhere later.

use crate::message::{Hello, MountRequest, Request, receive};
use crate::volume_mount;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use weald_format::{Error, Result};
use weald_fuse::MountPoint;
use weald_remote::Location;
use weald_store::{StoreLocation, StoredImage};

/// How long a new server waits for the request of the process that has started it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A mount request whose image and mount point are open.
#[derive(Debug)]
pub struct OpenedRequest {
    pub(crate) request: MountRequest,
    /// The image file, or the directory of the image's store.
    pub(crate) image: OwnedFd,
    pub(crate) point: MountPoint,
}

impl OpenedRequest {
    /// Opens `image`, a file or `STORE:NAME` (an image or a volume), and `dir`. Stores their
    /// absolute paths in `request`. The object of a URL is opened by the server alone.
    ///
    /// # Errors
    /// `NotFound`, `Io` if the image cannot be opened; for an image of a store as
    /// [`StoredImage::open`]; as [`MountPoint::open`].
    pub fn open(image: &Path, dir: &Path, request: MountRequest) -> Result<Self> {
        if let Some(location) = Location::parse(image) {
            return Self::of_url(image, &location?, dir, request);
        }
        let failed = |error| Error::io(image.display().to_string(), error);
        let (path, stored) = match weald_store::split(image) {
            Some((store, name)) => (store, Some(name)),
            None => (image.to_owned(), None),
        };
        let opened = OwnedFd::from(File::open(&path).map_err(failed)?);
        let number = opened.as_raw_fd();
        let path = std::fs::read_link(format!("/proc/self/fd/{number}")).map_err(failed)?;
        let mut is_volume = false;
        let shown = match &stored {
            None => path.into_os_string(),
            Some(name) => {
                // The client reports a missing image, because it knows the path as given.
                let store = StoreLocation::Path(path.clone()).open()?;
                is_volume = volume_mount::is_volume(&store, name)?;
                if !is_volume {
                    StoredImage::open(store, name)?;
                }
                stored_path(&path, name)
            }
        };
        let point = MountPoint::open(dir)?;
        let request = MountRequest {
            image: shown,
            stored,
            is_volume,
            dir: point.path().into(),
            ..request
        };
        Ok(Self {
            request,
            image: opened,
            point,
        })
    }

    fn of_url(
        image: &Path,
        location: &Location,
        dir: &Path,
        request: MountRequest,
    ) -> Result<Self> {
        let nothing = File::open("/dev/null").map_err(|error| Error::io("/dev/null", error))?;
        let point = MountPoint::open(dir)?;
        let request = MountRequest {
            image: location.shown().into(),
            url: image.to_str().map(str::to_owned),
            dir: point.path().into(),
            ..request
        };
        Ok(Self {
            request,
            image: nothing.into(),
            point,
        })
    }

    /// The request without its descriptors.
    pub fn request(&self) -> &MountRequest {
        &self.request
    }

    /// Returns the request without its log file.
    #[must_use]
    pub fn without_log(mut self) -> Self {
        self.request.log = None;
        self
    }

    /// Sends the request to a server that may have the store of the volume open. `lock` is the file
    /// that the writer of the store locks, open for writing.
    ///
    /// # Errors
    /// As [`OpenedRequest::send`].
    pub(crate) fn send_beside(&self, stream: &UnixStream, lock: BorrowedFd<'_>) -> Result<()> {
        let request = Request::MountVolume(Box::new(self.request.clone()));
        let descriptors = [self.image.as_fd(), self.point.as_fd(), lock];
        Hello::send(stream, &request, &descriptors)
    }

    /// Sends the request to the server behind `stream`.
    ///
    /// # Errors
    /// `Limit` for a request that is too long, `Io`.
    pub fn send(&self, stream: &UnixStream) -> Result<()> {
        let request = Request::Mount(Box::new(self.request.clone()));
        let descriptors = [self.image.as_fd(), self.point.as_fd()];
        Hello::send(stream, &request, &descriptors)
    }

    /// Receives a request that the parent process [sends](OpenedRequest::send).
    ///
    /// # Errors
    /// `Invalid` for another message, `Unsupported`, `Limit`, `Io`.
    pub fn receive(stream: &UnixStream) -> Result<Self> {
        match receive::<Hello>(stream, Some(REQUEST_TIMEOUT))? {
            Some((hello, descriptors)) => match hello.request()? {
                Request::Mount(request) => Self::received(*request, descriptors),
                _ => Err(Error::invalid("expected a request to mount")),
            },
            None => Err(Error::invalid("expected a request to mount, found none")),
        }
    }

    /// Combines a request with its descriptors. The path of the mount point becomes the current
    /// path of the descriptor.
    ///
    /// # Errors
    /// `Invalid` if the descriptors are not an image and a directory; `Io`.
    pub(crate) fn received(mut request: MountRequest, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let Ok([image, dir]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            let what = "expected an open image and an open mount point with the request";
            return Err(Error::invalid(what));
        };
        let point = MountPoint::new(dir, Path::new(&request.dir))?;
        request.dir = point.path().into();
        Ok(Self {
            request,
            image,
            point,
        })
    }

    /// Log file of the server from now on.
    pub(crate) fn log(&self) -> Option<&Path> {
        self.request.log.as_deref().map(Path::new)
    }
}

/// `STORE:NAME` of the image `name` in the store at `dir`.
fn stored_path(dir: &Path, name: &str) -> OsString {
    let mut path = dir.as_os_str().to_owned();
    path.push(":");
    path.push(name);
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::ErrorKind;

    /// Would catch: a request without descriptors that is served by its paths, and one with
    /// descriptors of other kinds.
    #[test]
    fn a_request_without_image_and_directory_is_refused() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let image: &Path = &scratch.path().join("image");
        std::fs::write(image, "image").expect("write");
        let request = MountRequest {
            image: image.into(),
            dir: scratch.path().into(),
            ..MountRequest::default()
        };
        let open = |path: &Path| OwnedFd::from(File::open(path).expect("open"));
        let received = |paths: &[&Path]| {
            let descriptors = paths.iter().map(|path| open(path)).collect();
            OpenedRequest::received(request.clone(), descriptors)
        };
        for paths in [&[][..], &[image], &[image, image], &[image; 3]] {
            let refused = received(paths).expect_err("not an image and a directory");
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{paths:?}");
        }
        let moved = scratch.path().join("moved");
        std::fs::create_dir(&moved).expect("mkdir");
        let opened = received(&[image, &moved]).expect("an image and a directory");
        let moved = moved.canonicalize().expect("path");
        assert_eq!(opened.request().dir, moved, "the path of what was opened");
    }
}
