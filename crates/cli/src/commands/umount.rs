//! `weald umount`: unmounts an image or a volume and waits until its server has released it.

use super::dead;
use crate::help::{DONE_OR_FAILED, Help};
use crate::reported_mounts::{Ask, mount_of, place_of};
use crate::runtime_dir::runtime_dir_path;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use weald_daemon::{MountServer, RuntimeDir};
use weald_format::ErrorKind;
use weald_fuse::{
    Busy, DeviceNo, Identity, MountEntry, holders_elsewhere, mount_at, mount_table, shown_holders,
    users_of,
};
use weald_views::kernel;

/// How long to wait in silence until the server releases the mount.
const SERVER_END_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to retry while the mount is busy: programs that have just ended may hold their files a
/// moment longer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause between two attempts.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// How long a lazy unmount waits until the server has closed the volume.
const DETACH_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause between two looks at a lazy unmount.
const DETACH_PAUSE: Duration = Duration::from_millis(5);

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
    /// Make the system call of a lazy unmount here, although it may wait for the server
    #[arg(long, hide = true)]
    pub in_this_process: bool,
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
        "If a container or another mount namespace has the mount as well, umount says so after ten \
         seconds, with a process of it, and exits with status 0: the server ends with the last of \
         these mounts. If the server is stopped or does not answer, umount names its process; \
         --lazy asks no server and returns at once.",
        "umount(8) does the same through umount.fuse.weald and umount.fuseblk.weald, which make \
         install installs. For a volume on a mount of type fuseblk, umount(2) itself returns when \
         everything is on stable storage and the volume is closed: it waits for a server that is \
         stopped, too, and no signal ends that. umount -f ends the connection to the server, for a \
         server that does not answer.",
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
    // A dead, stopped or stuck server must not stop this, so that no call here asks the file system
    // on the directory.
    let dir = weald_fuse::path_of(&args.dir).with_context(shown)?;
    if let Some(mount) = kernel::mount_on(&dir)? {
        retry(args.lazy, || kernel::unmount(&mount, args.lazy)).with_context(shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    if weald_fuse::is_fuse(&dir) == Some(false) {
        bail!("{}: {}", shown(), why_not_mounted(&dir));
    }
    let device = weald_fuse::device_of(&dir).with_context(shown)?;
    if args.lazy {
        match mount_at(&dir).filter(|entry| entry.is_on_block_device()) {
            Some(entry) if !args.in_this_process => detach_apart(&entry)?,
            _ => unmount(&dir, true).with_context(shown)?,
        }
        return dead::clear(&dir).map(|()| ExitCode::SUCCESS);
    }
    let source = mount_at(&dir).map(|entry| entry.source).unwrap_or_default();
    let what = Identity {
        device,
        dir: dir.clone(),
        source,
    };
    let served = server_of(device);
    if let Some((runtime_dir, server)) = &served
        && server.is_volume()
    {
        flush(runtime_dir, server, &dir).with_context(shown)?;
    }
    unmount(&dir, false)
        .map_err(|error| with_users(error, device))
        .with_context(shown)?;
    dead::clear(&dir)?;
    if let Some((runtime_dir, server)) = &served {
        wait_for_end(runtime_dir, server, (&args.dir, &what)).with_context(shown)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Detaches a mount with a block device. If nobody uses it, umount(2) waits for its server, which
/// may be stopped or stuck, and no signal ends that. So another process calls it.
fn detach_apart(entry: &MountEntry) -> Result<()> {
    weald_sys::close_all_on_exec();
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("weald")
        .args(["umount", "--lazy", "--in-this-process", "--"])
        .arg(&entry.dir)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context("start of umount")?;
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("end of umount")? {
            if status.success() {
                return Ok(());
            }
            let mut said = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                stderr.read_to_string(&mut said).context("umount")?;
            }
            bail!("{}", said.trim_start_matches("weald: ").trim_end());
        }
        let table = mount_table("self").context("/proc/self/mountinfo")?;
        if begun.elapsed() >= DETACH_TIMEOUT && !table.iter().any(|one| one.id == entry.id) {
            log::info!(
                "process {} waits until its server has closed it",
                child.id()
            );
            return Ok(());
        }
        std::thread::sleep(DETACH_PAUSE);
    }
}

/// Ends the connection to the server and unmounts, as `umount -f` means.
///
/// # Errors
/// As [`run`].
pub fn force(args: &UmountArgs) -> Result<ExitCode> {
    let shown = || args.dir.display().to_string();
    let dir = weald_fuse::path_of(&args.dir).with_context(shown)?;
    if args.lazy {
        unmount(&dir, true).with_context(shown)?
    } else {
        retry(false, || weald_fuse::abort(&dir)).with_context(shown)?
    }
    Ok(ExitCode::SUCCESS)
}

/// Why `dir`, which is no mount point of ours, has nothing to unmount.
fn why_not_mounted(dir: &Path) -> String {
    let was_here = mount_of(Ask::Mounts, |mount| mount.dir == *dir.as_os_str());
    let found = was_here
        .inspect_err(|error| log::info!("{error:?}"))
        .unwrap_or_default();
    match found {
        Some((pid, mount)) => format!(
            "nothing is mounted there; {} {}",
            mount.image.display(),
            place_of(&mount).describe(pid)
        ),
        None => "no image is mounted there, and no volume".to_owned(),
    }
}

/// The server of this user that has the mount with this device number. Never blocks.
fn server_of(device: DeviceNo) -> Option<(RuntimeDir, MountServer)> {
    let found = RuntimeDir::find(&runtime_dir_path()).and_then(|runtime_dir| match runtime_dir {
        Some(runtime_dir) => {
            let server = runtime_dir.mount_server(device)?;
            Ok(server.map(|server| (runtime_dir, server)))
        }
        None => Ok(None),
    });
    found
        .inspect_err(|error| log::info!("not waiting for the server: {error}"))
        .unwrap_or_default()
}

/// Writes the volume on `dir` to disk, so that an error reaches the user while the volume is still
/// mounted.
fn flush(runtime_dir: &RuntimeDir, server: &MountServer, dir: &Path) -> Result<()> {
    let pid = server.pid();
    let mut on_wait = || {
        log::warn!("{}: process {pid} writes the volume to disk", dir.display());
    };
    match server.sync(runtime_dir, &mut on_wait) {
        Ok(true) => Ok(()),
        // It takes no requests, because it ends, or has no socket. fsync(2) of a directory commits
        // everything.
        Ok(false) => File::open(dir)?.sync_all().map_err(Into::into),
        Err(error) if error.kind() == ErrorKind::Busy => {
            Err(anyhow!("{error}; 'weald umount --lazy' detaches the mount"))
        }
        Err(cause) => Err(anyhow!(
            "the volume cannot be written to disk ({cause}) and stays mounted: 'weald volume info' \
             shows the reason, 'weald umount --lazy' gives up what is not on disk"
        )),
    }
}

/// Waits until the server has closed what was mounted. If another mount namespace has the mount as
/// well, or a process keeps it, says so after a while.
fn wait_for_end(
    runtime_dir: &RuntimeDir,
    server: &MountServer,
    (dir, what): (&Path, &Identity),
) -> Result<()> {
    if server.wait(SERVER_END_TIMEOUT) {
        return Ok(());
    }
    let others = holders_elsewhere(what);
    let number = what.device.to_string();
    let is_kept = || {
        let found = mount_of(Ask::Mounts, |mount| mount.device == number);
        matches!(found, Ok(Some((_, mount))) if !mount.is_over)
    };
    if others.is_empty() && !server.is_volume() {
        log::warn!(
            "{}: unmounted, but the server, process {}, still has the image open: a process may \
             have a file of it open, or the server is stopped",
            dir.display(),
            server.pid()
        );
        return Ok(());
    }
    if others.is_empty() && !is_kept() {
        // The server closes the volume, which takes as long as the disk does.
        return server
            .wait_while_working()
            .map_err(|error| anyhow!("unmounted, but what it had is not closed yet: {error}"));
    }
    let is_on_disk = if server.is_volume() {
        // Processes that have the mount may have written meanwhile.
        server.sync(runtime_dir, &mut || {}).map_err(|error| {
            anyhow!("unmounted here, but still in use, and not written to disk: {error}")
        })?
    } else {
        false
    };
    let who = if others.is_empty() {
        "a process has a file of it open".to_owned()
    } else {
        format!(
            "in another mount namespace, such as a container, {} still has it mounted",
            shown_holders(&others)
        )
    };
    log::warn!(
        "{}: unmounted here{}; {who}, and process {} serves it until that ends",
        dir.display(),
        if is_on_disk {
            ", and everything is on disk"
        } else {
            ""
        },
        server.pid()
    );
    Ok(())
}

/// The error of a mount that is in use, with the processes that use it.
fn with_users(error: weald_format::Error, device: DeviceNo) -> anyhow::Error {
    let users = match error.kind() {
        ErrorKind::Busy => users_of(device),
        _ => Vec::new(),
    };
    if users.is_empty() {
        error.into()
    } else {
        anyhow!(
            "{error}: {} (weald umount --lazy detaches it)",
            shown_holders(&users)
        )
    }
}

fn unmount(dir: &Path, is_lazy: bool) -> weald_format::Result<()> {
    let busy = if is_lazy { Busy::Detach } else { Busy::Refuse };
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
