//! The server of one mount, as a client finds it by the mount's lock file: what `weald umount` and
//! a remount ask of it. No call waits without limit for a server that is stopped or stuck.

use crate::client::{LOOK_INTERVAL, has_news, unexpected};
use crate::message::{Hello, Reply, Request, receive};
use crate::mount_lock::MountWaiter;
use crate::pulse::{Pulse, PulseWatch};
use crate::runtime_dir::RuntimeDir;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};
use weald_fuse::{DeviceNo, LiveOptions};

/// A server that has a mount.
#[derive(Debug)]
pub struct MountServer {
    device: DeviceNo,
    pid: u32,
    is_volume: bool,
    waiter: MountWaiter,
}

impl MountServer {
    /// Process id of the server.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it has a volume mounted.
    pub fn is_volume(&self) -> bool {
        self.is_volume
    }

    /// Writes all changes of the volume to disk. `on_wait` is called once if that takes long.
    /// Returns false if the server takes no requests any more: it is closing the volume.
    ///
    /// # Errors
    /// Those of the server; `Busy` if it is stopped or stuck; `Io`.
    pub fn sync(&self, runtime_dir: &RuntimeDir, on_wait: &mut dyn FnMut()) -> Result<bool> {
        let device = self.device.to_string();
        self.ask(runtime_dir, &Request::Sync { device }, on_wait)
    }

    /// Changes options of the mount. Returns false as [`MountServer::sync`] does.
    ///
    /// # Errors
    /// As [`MountServer::sync`].
    pub fn set_options(&self, runtime_dir: &RuntimeDir, options: LiveOptions) -> Result<bool> {
        let device = self.device.to_string();
        let request = Request::SetOptions { device, options };
        self.ask(runtime_dir, &request, &mut || {})
    }

    fn ask(
        &self,
        runtime_dir: &RuntimeDir,
        request: &Request,
        on_wait: &mut dyn FnMut(),
    ) -> Result<bool> {
        let Some(stream) = runtime_dir.connect_to(self.pid)? else {
            return Ok(false);
        };
        Hello::send(&stream, request, &[])?;
        self.wait_for_answer(&stream, on_wait)?;
        match receive::<Reply>(&stream, Some(LOOK_INTERVAL))? {
            Some((Reply::Done, _)) => Ok(true),
            Some((Reply::Refused(refusal), _)) => Err(refusal.into_error()),
            Some((Reply::NotHere, _)) | None => Ok(false),
            Some(_) => Err(unexpected()),
        }
    }

    fn wait_for_answer(&self, stream: &UnixStream, on_wait: &mut dyn FnMut()) -> Result<()> {
        const NOTICE: Duration = Duration::from_secs(10);
        let mut watch = PulseWatch::new(self.pid);
        let (begun, mut is_told) = (Instant::now(), false);
        loop {
            if has_news(stream, LOOK_INTERVAL)? {
                return Ok(());
            }
            if let Some(complaint) = watch.look().complaint(self.pid) {
                return Err(Error::new(ErrorKind::Busy, complaint));
            }
            if !is_told && begun.elapsed() >= NOTICE {
                is_told = true;
                on_wait();
            }
        }
    }

    /// Waits until the server has released the mount; returns whether it did within `timeout`.
    pub fn wait(&self, timeout: Duration) -> bool {
        self.waiter.wait(timeout)
    }

    /// As [`MountServer::wait`], for as long as the server works.
    ///
    /// # Errors
    /// `Busy` if it is stopped or stuck.
    pub fn wait_while_working(&self) -> Result<()> {
        let mut watch = PulseWatch::new(self.pid);
        while !self.waiter.wait(LOOK_INTERVAL) {
            match watch.look() {
                Pulse::Working => {}
                // The lock ends with the process.
                Pulse::Ended => return Ok(()),
                pulse => {
                    let complaint = pulse.complaint(self.pid).unwrap_or_default();
                    return Err(Error::new(ErrorKind::Busy, complaint));
                }
            }
        }
        Ok(())
    }
}

impl RuntimeDir {
    /// Finds the server that has the mount with the device number `device`; `None` if no server of
    /// this directory has it. Never blocks.
    ///
    /// # Errors
    /// `Io`.
    pub fn mount_server(&self, device: DeviceNo) -> Result<Option<MountServer>> {
        let Some(waiter) = self.mount_waiter(device)? else {
            return Ok(None);
        };
        let Some((pid, is_volume)) = waiter.server() else {
            return Ok(None);
        };
        Ok(Some(MountServer {
            device,
            pid,
            is_volume,
            waiter,
        }))
    }

    /// Connects to the server with this process id; `None` if it takes no requests.
    fn connect_to(&self, pid: u32) -> Result<Option<UnixStream>> {
        use std::os::fd::AsFd;
        for name in self.names()? {
            let Some(stream) = self.connect(&name)? else {
                continue;
            };
            if weald_sys::peer_pid(stream.as_fd()).is_ok_and(|peer| peer == Some(pid)) {
                return Ok(Some(stream));
            }
        }
        Ok(None)
    }
}
