//! Takes the files of a program away after its last process.

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use weald_fuse::{Busy, mount_at};

/// The name under which this program is a keeper.
pub const KEEPER: &str = "weald-app-keeper";

/// Runs a keeper: `unmount|remove LOCK DIR SECONDS`.
pub fn run(words: &[OsString]) -> ExitCode {
    match keep(words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::messages::error(&error);
            ExitCode::from(crate::status::FAILED)
        }
    }
}

fn keep(words: &[OsString]) -> Result<()> {
    let [action, lock, dir, seconds] = words else {
        bail!("{KEEPER} is started by programs that carry an image");
    };
    let pause = seconds.to_str().and_then(|text| text.parse().ok());
    let pause = Duration::from_secs(pause.context("seconds")?);
    // The end of the program's session is not that of its files.
    let _ = rustix::process::setsid();
    let lock = File::open(lock).context("lock")?;
    loop {
        flock(&lock, FlockOperation::LockExclusive).context("lock")?;
        if pause.is_zero() {
            break;
        }
        flock(&lock, FlockOperation::Unlock).context("lock")?;
        std::thread::sleep(pause);
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            break;
        }
    }
    let dir = Path::new(dir);
    if action == "remove" {
        remove(dir);
        return Ok(());
    }
    // Another keeper may have been faster.
    let real = weald_fuse::path_of(dir)?;
    if mount_at(&real).is_some() {
        weald_fuse::unmount(&real, Busy::Detach)?;
    }
    std::fs::remove_dir(dir).context("directory")
}

/// Removes a tree with directories that nobody may write to.
pub fn remove(dir: &Path) {
    if std::fs::remove_dir_all(dir).is_ok() || !dir.exists() {
        return;
    }
    let mut chmod = Command::new("chmod");
    chmod.args(["-R", "u+rwX", "--"]).arg(dir);
    let _ = chmod.stdin(Stdio::null()).stderr(Stdio::null()).status();
    // What is left is found at the next start.
    let _ = std::fs::remove_dir_all(dir);
}
