//! A connection of a client: receives one request and answers it.

use crate::beside::mount_volume;
use crate::hand_over::give::give;
use crate::hold_server::hold;
use crate::message::{Hello, Refusal, Reply, Request, receive, send};
use crate::opened_request::OpenedRequest;
use crate::report::ServerReport;
use crate::served::Served;
use crate::shared::{REQUEST_TIMEOUT, Shared};
use crate::store_change::{
    collect, commit, move_tiers, remove_image, rename_image, work_on_snapshots,
};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use weald_format::{Error, Result};
use weald_store::{CollectOptions, IfTaken};
use weald_volume::{TierMove, VolumePart};

/// A connection that is being answered.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    stream: UnixStream,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.state.lock().connection_count -= 1;
        self.shared.wake();
    }
}

impl Connection {
    /// Answers the client behind `stream` in a thread of its own.
    pub(crate) fn answer_in_thread(shared: &Arc<Shared>, stream: UnixStream) {
        shared.state.lock().connection_count += 1;
        let connection = Self {
            shared: Arc::clone(shared),
            stream,
        };
        let answering = std::thread::Builder::new().name("answer".into());
        if let Err(error) = answering.spawn(move || connection.answer()) {
            log::warn!("a connection is lost: {error}");
        }
    }

    fn answer(self) {
        if let Err(error) = self.try_answer() {
            log::info!("a client was not answered: {error:?}");
        }
    }

    fn try_answer(&self) -> Result<()> {
        let timeout = Some(REQUEST_TIMEOUT);
        self.stream
            .set_write_timeout(timeout)
            .map_err(|e| Error::io("connection", e))?;
        let Some((hello, descriptors)) = receive::<Hello>(&self.stream, timeout)? else {
            return Ok(());
        };
        match hello.request() {
            Ok(Request::Mount(_)) if !self.shared.options.is_shared => {
                self.refuse(&Error::invalid("this server serves one mount alone"))
            }
            Ok(Request::Mount(request)) => {
                let opened = OpenedRequest::received(*request, descriptors);
                match opened.and_then(|opened| self.shared.mount(opened)) {
                    Ok(true) => send(&self.stream, &Reply::Mounted, &[]),
                    // The closed connection tells the client to try again.
                    Ok(false) => Ok(()),
                    Err(error) => self.refuse(&error),
                }
            }
            Ok(Request::MountVolume(request)) => {
                match mount_volume(&self.shared, *request, descriptors) {
                    Ok(Some(reply)) => send(&self.stream, &reply, &[]),
                    Ok(None) => Ok(()),
                    Err(error) => self.refuse(&error),
                }
            }
            Ok(Request::Report) => self.report(false),
            Ok(Request::ReportSpace) => self.report(true),
            Ok(Request::Sync { device }) => self.with_mount(&device, Served::try_commit),
            Ok(Request::SetOptions { device, options }) => self.with_mount(&device, |served| {
                if let Some(mount) = served.connection() {
                    mount.set_options(options);
                }
                Ok(())
            }),
            Ok(Request::TakeOver) => give(&self.shared, &self.stream),
            Ok(Request::Hold(name)) => {
                let name = Some(name.as_str());
                hold(&self.shared, &self.stream, (name, None), &descriptors)
            }
            Ok(Request::HoldChanges { volume, states }) => {
                let states = states.each_ref().map(Option::as_deref);
                let what = (Some(volume.as_str()), Some(states));
                hold(&self.shared, &self.stream, what, &descriptors)
            }
            Ok(Request::HoldStore) => hold(&self.shared, &self.stream, (None, None), &descriptors),
            Ok(Request::RemoveImage { name, is_forced }) => {
                remove_image(&self.shared, &self.stream, (&name, is_forced), &descriptors)
            }
            Ok(Request::RenameImage {
                name,
                new,
                replaces,
            }) => {
                let if_taken = if replaces {
                    IfTaken::Replace
                } else {
                    IfTaken::Fail
                };
                let names = (name.as_str(), new.as_str(), if_taken);
                rename_image(&self.shared, &self.stream, names, &descriptors)
            }
            Ok(Request::Commit) => commit(&self.shared, &self.stream, &descriptors),
            Ok(Request::Collect {
                copy_below_percent,
                copy_len_max,
            }) => {
                let options = CollectOptions {
                    copy_below_percent,
                    copy_len_max,
                };
                collect(&self.shared, &self.stream, &options, &descriptors)
            }
            Ok(Request::MoveTiers { wanted, part }) => {
                let part = part.map(|(path, range)| VolumePart {
                    path,
                    range: range.map(|(start, end)| start..end),
                });
                let wanted = wanted.map(|(name, to)| TierMove { name, to, part });
                move_tiers(&self.shared, &self.stream, wanted.as_ref(), &descriptors)
            }
            Ok(Request::Snapshots { volume, work }) => {
                let work = (volume.as_str(), &work);
                work_on_snapshots(&self.shared, &self.stream, work, &descriptors)
            }
            Err(error) => self.refuse(&error),
        }
    }

    fn refuse(&self, error: &Error) -> Result<()> {
        send(&self.stream, &Reply::Refused(Refusal::of(error)), &[])
    }

    /// Does something with the mount that has the device number `device`.
    fn with_mount(&self, device: &str, does: impl FnOnce(&Served) -> Result<()>) -> Result<()> {
        let mounts = self.shared.mounts();
        match mounts.iter().find(|served| served.has_device(device)) {
            None => send(&self.stream, &Reply::NotHere, &[]),
            Some(served) => match does(served) {
                Ok(()) => send(&self.stream, &Reply::Done, &[]),
                Err(error) => self.refuse(&error),
            },
        }
    }

    fn report(&self, has_space: bool) -> Result<()> {
        let mounts = self.shared.mounts();
        let server = ServerReport {
            mount_count: mounts.len() as u64,
            ..self.shared.report()
        };
        send(&self.stream, &Reply::Server(server), &[])?;
        for served in mounts {
            send(
                &self.stream,
                &Reply::Mount(Box::new(served.report(has_space))),
                &[],
            )?;
        }
        Ok(())
    }
}
