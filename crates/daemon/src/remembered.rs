//! Mounts that a lasting server remembers in its runtime directory. If it is killed, the next one,
//! which systemd starts, mounts them again in place of the dead ones.

use crate::message::MountRequest;
use crate::opened_request::OpenedRequest;
use crate::runtime_dir::RuntimeDir;
use crate::shared::{Phase, Shared};
use rustix::fs::OFlags;
use std::path::Path;
use std::sync::Arc;
use weald_format::{Error, ErrorKind, Result};
use weald_fuse::{Busy, MountEntry, is_dead, mount_at};

/// Largest list in bytes: thousands of mounts.
const LIST_LEN_MAX: usize = 16 << 20;

impl Shared {
    /// Whether this server remembers its mounts: a manager of processes starts it again.
    fn has_memory(&self) -> bool {
        self.options.is_shared && !self.options.ends_when_idle
    }

    /// Writes the list of the mounts that there are now.
    pub(crate) fn remember(&self) {
        let phase = self.state.lock().phase;
        if !self.has_memory() || !matches!(phase, Phase::Open | Phase::Closing) {
            return;
        }
        let mounts = self.mounts();
        let requests: Vec<&MountRequest> = mounts
            .iter()
            .filter(|served| !served.is_over())
            .map(|served| &served.handed.request)
            .collect();
        if let Some(runtime_dir) = &self.runtime_dir
            && let Err(error) = write(runtime_dir, &requests)
        {
            log::warn!("a server that follows would not bring the mounts back: {error:?}");
        }
    }

    /// Mounts again what a server that was killed had mounted, where its dead mounts still are.
    pub(crate) fn restore(self: &Arc<Self>) {
        let Some(runtime_dir) = self.runtime_dir.as_ref().filter(|_| self.has_memory()) else {
            return;
        };
        let requests = match read(runtime_dir) {
            Ok(requests) => requests,
            Err(error) => return log::warn!("no mount is brought back: {error:?}"),
        };
        for request in requests {
            let dir = Path::new(&request.dir).to_owned();
            match self.restore_one(request) {
                Ok(true) => log::warn!("{}: mounted again; its server was killed", dir.display()),
                Ok(false) => {}
                Err(error) => log::error!("{}: not mounted again: {error:?}", dir.display()),
            }
        }
        self.remember();
    }

    fn restore_one(self: &Arc<Self>, request: MountRequest) -> Result<bool> {
        let dir = Path::new(&request.dir).to_owned();
        let there = mount_at(&dir).filter(MountEntry::is_weald);
        // Else somebody has unmounted it, or has mounted something else.
        if !there.is_some_and(|entry| is_dead(&entry)) {
            return Ok(false);
        }
        weald_fuse::unmount(&dir, Busy::Detach)?;
        let image = Path::new(&request.image).to_owned();
        let opened = OpenedRequest::open(&image, &dir, request)?;
        self.mount(opened)
    }
}

fn name(runtime_dir: &RuntimeDir) -> String {
    format!("{}.mounts", runtime_dir.shared_name())
}

fn write(runtime_dir: &RuntimeDir, requests: &[&MountRequest]) -> Result<()> {
    let name = name(runtime_dir);
    if requests.is_empty() {
        return runtime_dir.unlink(&name);
    }
    let text = serde_json::to_vec(requests)
        .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()))?;
    let new = format!("{name}.new");
    let file = runtime_dir.open_lock(&new, OFlags::CREATE | OFlags::TRUNC)?;
    let failed = |error| Error::io(new.clone(), error);
    use std::io::Write;
    std::fs::File::from(file).write_all(&text).map_err(failed)?;
    runtime_dir.rename(&new, &name)
}

fn read(runtime_dir: &RuntimeDir) -> Result<Vec<MountRequest>> {
    let name = name(runtime_dir);
    let file = match runtime_dir.open_lock(&name, OFlags::empty()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => std::fs::File::from(other?),
    };
    use std::io::Read;
    let mut text = Vec::new();
    let failed = |error| Error::io(name.clone(), error);
    file.take(LIST_LEN_MAX as u64)
        .read_to_end(&mut text)
        .map_err(failed)?;
    serde_json::from_slice(&text).map_err(|error| Error::invalid(format!("{name}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_back_and_a_damaged_one_is_an_error() {
        let base = tempfile::tempdir().expect("directory");
        let runtime_dir = RuntimeDir::make(&base.path().join("run")).expect("made");
        assert!(read(&runtime_dir).expect("none").is_empty());
        let request = MountRequest {
            image: "/a".into(),
            dir: "/b".into(),
            ..MountRequest::default()
        };
        write(&runtime_dir, &[&request, &request]).expect("written");
        let back = read(&runtime_dir).expect("whole");
        assert_eq!((back.len(), &back[1].dir), (2, &request.dir));
        std::fs::write(base.path().join("run").join(name(&runtime_dir)), "[{").expect("write");
        read(&runtime_dir).expect_err("cut");
        write(&runtime_dir, &[]).expect("removed");
        assert!(read(&runtime_dir).expect("none").is_empty());
    }
}
