//! `weald umount`: takes a mounted image away and waits for its server to end.

use super::mount::place_dir;
use crate::help::{DONE_OR_FAILED, Help};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weald_daemon::{Place, Watch};
use weald_format::ErrorKind;
use weald_fuse::Busy;

/// How long the server may take to let go of the mount. It only has to give its memory back.
const SERVER_END_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a mount in use is tried again: programs that have just closed their files hold them a
/// moment longer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause between two attempts.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Unmount an image
#[derive(Debug, Args)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub struct UmountArgs {
    /// Mount point
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Detach a busy mount now and unmount it when its last process leaves (lazy unmount)
    #[arg(short, long)]
    pub lazy: bool,
}

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "Umount returns when the server has closed the image; with --lazy, at once. If the \
         mount is busy, umount tries again for two seconds.",
    ],
    examples: &[("Unmount an image", "weald umount /mnt")],
    exit_status: DONE_OR_FAILED,
};

/// Unmounts; returns when the server has let go of the image, with `--lazy` at once.
///
/// # Errors
/// Nothing mounted there, or in use.
pub fn run(args: UmountArgs) -> Result<ExitCode> {
    let shown = || args.dir.display().to_string();
    // A mount whose server has died cannot be looked at, but it can be unmounted.
    let dir = args
        .dir
        .canonicalize()
        .or_else(|_| std::path::absolute(&args.dir))
        .with_context(shown)?;
    if weald_fuse::is_fuse(&dir) == Some(false) {
        bail!("{}: no image is mounted there", shown());
    }
    let watch = watch(&dir);
    unmount(&dir, args.lazy).with_context(shown)?;
    if let Some(watch) = watch
        && !args.lazy
        && !watch.wait(SERVER_END_TIMEOUT)
    {
        log::warn!(
            "{}: unmounted, but the server still has the image open: another mount namespace, such \
             as a container, may have it mounted",
            shown()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Watches the server of what is mounted on `dir`, if it is one of this user's; never waits.
fn watch(dir: &Path) -> Option<Watch> {
    let device = weald_fuse::device_of(dir).ok()?;
    let found = Place::find(&place_dir()).and_then(|place| match place {
        Some(place) => place.watch(device),
        None => Ok(None),
    });
    found
        .inspect_err(|error| log::info!("not waiting for the server: {error}"))
        .unwrap_or_default()
}

fn unmount(dir: &Path, is_lazy: bool) -> weald_format::Result<()> {
    if is_lazy {
        return weald_fuse::unmount(dir, Busy::Detach);
    }
    let start = Instant::now();
    loop {
        match weald_fuse::unmount(dir, Busy::Refuse) {
            Err(error) if error.kind() == ErrorKind::Busy && start.elapsed() < BUSY_TIMEOUT => {
                std::thread::sleep(BUSY_PAUSE);
            }
            other => return other,
        }
    }
}
