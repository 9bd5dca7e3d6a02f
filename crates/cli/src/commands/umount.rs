//! `weald umount`: unmounts an image or a volume and waits until its server has released it.

use super::mount::runtime_dir_path;
use super::volume::{self, Ask};
use crate::help::{DONE_OR_FAILED, Help};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weald_daemon::{MountWaiter, RuntimeDir};
use weald_format::ErrorKind;
use weald_fuse::Busy;
use weald_views::kernel;

/// How long to wait until the server releases the mount of an image. It only has to free memory.
const SERVER_END_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for the server of a volume: it writes the last changes, which takes as long as
/// the disk does. The user can interrupt.
const VOLUME_END_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// How long to retry while the mount is busy: programs that have just ended may hold their files a
/// moment longer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause between two attempts.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Unmount an image or a volume
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
        "A volume is first written to disk; if that fails, umount says so, exits with status 2 and \
         leaves the volume mounted (--lazy detaches it). When umount returns 0, everything is on \
         stable storage.",
        "For a mount by the kernel (weald mount --kernel), umount also removes the work directory \
         that weald mount made. Changes stay in the directory of --upper.",
    ],
    examples: &[("Unmount an image", "weald umount /mnt")],
    exit_status: DONE_OR_FAILED,
};

/// Unmounts; returns when the server has released the image, with `--lazy` at once.
///
/// # Errors
/// Returns an error if nothing is mounted there or if the mount is in use.
pub fn run(args: UmountArgs) -> Result<ExitCode> {
    let shown = || args.dir.display().to_string();
    // If the server of the mount is dead, the directory cannot be accessed, but it can be
    // unmounted.
    let dir = args
        .dir
        .canonicalize()
        .or_else(|_| std::path::absolute(&args.dir))
        .with_context(shown)?;
    if let Some(mount) = kernel::mount_on(&dir)? {
        retry(args.lazy, || kernel::unmount(&mount, args.lazy)).with_context(shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    if weald_fuse::is_fuse(&dir) == Some(false) {
        bail!("{}: no image is mounted there, and no volume", shown());
    }
    let waiter = mount_waiter(&dir);
    let is_volume = is_volume(&dir);
    if is_volume && !args.lazy {
        sync(&dir).with_context(shown)?;
    }
    unmount(&dir, args.lazy).with_context(shown)?;
    let timeout = match is_volume {
        true => VOLUME_END_TIMEOUT,
        false => SERVER_END_TIMEOUT,
    };
    if let Some(waiter) = waiter
        && !args.lazy
        && !waiter.wait(timeout)
    {
        log::warn!(
            "{}: unmounted, but the server still has the image open: another mount namespace, such \
             as a container, may have it mounted",
            shown()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a server of this user serves a volume on `dir`. A server that does not answer has none.
fn is_volume(dir: &Path) -> bool {
    let found = volume::mount_of(Ask::Mounts, |mount| mount.dir == *dir.as_os_str());
    let found = found
        .inspect_err(|error| log::info!("{error:?}"))
        .unwrap_or_default();
    found.is_some_and(|(_, mount)| mount.volume.is_some())
}

/// Writes the volume on `dir` to disk, so that an error reaches the user while the volume is still
/// mounted.
fn sync(dir: &Path) -> Result<()> {
    // The kernel does not pass syncfs(2) to FUSE servers; fsync(2) of a directory commits
    // everything.
    File::open(dir)?.sync_all().map_err(|cause| {
        anyhow!(
            "the volume cannot be written to disk ({cause}) and stays mounted: 'weald volume info' \
             shows the reason, 'weald umount --lazy' gives up what is not on disk"
        )
    })
}

/// Opens the lock file of the mount on `dir`, if a server of this user has the mount. Never blocks.
fn mount_waiter(dir: &Path) -> Option<MountWaiter> {
    let device = weald_fuse::device_of(dir).ok()?;
    let found = RuntimeDir::find(&runtime_dir_path()).and_then(|runtime_dir| match runtime_dir {
        Some(runtime_dir) => runtime_dir.mount_waiter(device),
        None => Ok(None),
    });
    found
        .inspect_err(|error| log::info!("not waiting for the server: {error}"))
        .unwrap_or_default()
}

fn unmount(dir: &Path, is_lazy: bool) -> weald_format::Result<()> {
    let busy = match is_lazy {
        true => Busy::Detach,
        false => Busy::Refuse,
    };
    retry(is_lazy, || weald_fuse::unmount(dir, busy))
}

/// Calls `unmount` until the mount is no longer busy, for two seconds.
fn retry(
    is_lazy: bool,
    mut unmount: impl FnMut() -> weald_format::Result<()>,
) -> weald_format::Result<()> {
    let start = Instant::now();
    loop {
        match unmount() {
            Err(error) if is_lazy => return Err(error),
            Err(error) if error.kind() == ErrorKind::Busy && start.elapsed() < BUSY_TIMEOUT => {
                std::thread::sleep(BUSY_PAUSE);
            }
            other => return other,
        }
    }
}
