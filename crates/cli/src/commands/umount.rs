//! `weald umount`: takes a mounted image away and waits for its server to end.

use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use weald_fuse::{Busy, Watch};

/// How long the end of the server may take. It only has to give its memory back.
const SERVER_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Unmount an image
///
/// Returns when the server has ended, with --lazy at once.
#[derive(Debug, Args)]
#[command(after_long_help = UMOUNT_EXAMPLES)]
pub struct UmountArgs {
    /// The directory on which an image is mounted
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Take a mount that is in use out of sight now; it ends when its last user is done
    #[arg(short, long)]
    pub lazy: bool,
}

const UMOUNT_EXAMPLES: &str = "\
Examples:
  weald umount /mnt
  weald umount --lazy /mnt";

/// Unmounts; returns when the server has ended, with `--lazy` at once.
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
    let watch = weald_fuse::device_of(&dir).ok().and_then(Watch::start);
    let busy = if args.lazy {
        Busy::Detach
    } else {
        Busy::Refuse
    };
    weald_fuse::unmount(&dir, busy).with_context(shown)?;
    if let Some(watch) = watch
        && !args.lazy
        && !watch.wait(SERVER_END_TIMEOUT)
    {
        log::warn!("{}: unmounted, but its server still runs", shown());
    }
    Ok(ExitCode::SUCCESS)
}
