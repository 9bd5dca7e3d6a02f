//! Takes the files of a program away after its last process.

use crate::failure::{Context, refuse};
use rustix::fs::{FlockOperation, flock};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use weald_format::Result;
use weald_fuse::{Busy, mount_at};

/// The name under which this program is a keeper.
pub const KEEPER: &str = "weald-app-keeper";

/// Word before the others of a process that starts the keeper and ends: the program, which takes
/// the place of the process that was started, has no child that it does not know.
pub const START: &str = "start";

/// Runs a keeper: `[start] unmount|remove LOCK DIR SECONDS`.
pub fn run(words: &[OsString]) -> ExitCode {
    let done = match words.split_first() {
        Some((word, rest)) if word == START => start(rest),
        _ => keep(words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::message::failed(&error),
    }
}

fn start(words: &[OsString]) -> Result<()> {
    let mut keeper = Command::new("/proc/self/exe");
    keeper.arg0(KEEPER).args(words).current_dir("/");
    keeper.stdin(Stdio::null()).stdout(Stdio::null());
    keeper
        .stderr(Stdio::null())
        .spawn()
        .context("start of the keeper")?;
    Ok(())
}

fn keep(words: &[OsString]) -> Result<()> {
    let [action, lock, dir, seconds] = words else {
        return refuse(format!(
            "{KEEPER} is started by programs that carry an image"
        ));
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
        // A kill leaves nothing under the name that looks complete.
        let unfinished = unfinished(dir);
        std::fs::rename(dir, &unfinished).context("directory")?;
        remove(&unfinished);
        return Ok(());
    }
    // Another keeper may have been faster.
    let real = weald_fuse::path_of(dir).context("mount point")?;
    if mount_at(&real).is_some() {
        weald_fuse::unmount(&real, Busy::Detach)?;
    }
    std::fs::remove_dir(dir).context("directory")
}

/// Where the files are while they are extracted to `dir` or removed.
pub fn unfinished(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
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
