//! Lets others wait for the end of the process that serves a mount.
//!
//! umount(2) returns when the mount is gone, its server a moment later. A script that unmounts and
//! then replaces the image, or counts processes, wants the later moment. The server holds an
//! abstract socket named after the device number of its mount, which no other live mount has;
//! whoever is connected to it hears of the server's end.

use crate::mount::Mount;
use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Held by the server of a mount as long as it runs.
#[derive(Debug)]
pub struct Presence {
    _listener: UnixListener,
}

impl Presence {
    /// Makes this process known as the server of `mount`; `None` where another process has the
    /// name.
    pub fn announce(mount: &Mount) -> Option<Self> {
        let bound = address(mount.device()).and_then(|address| UnixListener::bind_addr(&address));
        match bound {
            Ok(_listener) => Some(Self { _listener }),
            Err(error) => {
                log::info!("nobody can wait for the end of this process: {error}");
                None
            }
        }
    }
}

/// A connection to the server of a mount, made while the mount is still there.
#[derive(Debug)]
pub struct Watch {
    stream: UnixStream,
}

impl Watch {
    /// Watches the server of the mount with `device`; `None` where there is no such server.
    pub fn start(device: (u32, u32)) -> Option<Self> {
        let stream = UnixStream::connect_addr(&address(device).ok()?).ok()?;
        Some(Self { stream })
    }

    /// Waits for the end of the server; whether it came within `timeout`.
    pub fn wait(mut self, timeout: Duration) -> bool {
        if self.stream.set_read_timeout(Some(timeout)).is_err() {
            return false;
        }
        // The server never writes, so that only its end or the timeout wakes us.
        !matches!(self.stream.read(&mut [0]), Err(error) if is_timeout(&error))
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
    )
}

fn address((major, minor): (u32, u32)) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("weald-mount-{major}:{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_hears_of_the_end_and_not_before() {
        // No device has such a number, and the process id keeps parallel runs apart.
        let device = (u32::MAX, std::process::id());
        assert!(Watch::start(device).is_none());
        let listener = UnixListener::bind_addr(&address(device).expect("name")).expect("bind");
        let early = Watch::start(device).expect("connected");
        assert!(!early.wait(Duration::from_millis(20)));
        let watch = Watch::start(device).expect("connected");
        drop(listener);
        assert!(watch.wait(Duration::from_secs(120)));
    }
}
