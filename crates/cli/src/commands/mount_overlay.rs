//! `weald mount --overlay`: for a user in a user namespace, metadata through FUSE and data through
//! overlayfs. A server runs as long as the mount.

use super::mount_args::{MountArgs, Verity};
use super::mount_kernel::{self, Prepared, mount_attributes};
use crate::background;
use anyhow::{Result, bail};
use clap::ValueEnum;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use weald_fuse::{Capacity, MetadataTree, MountOptions, mount_detached};
use weald_views::kernel;

/// Mounts the image; returns when the mount is complete, or with `--foreground` when it has ended.
///
/// # Errors
/// Any error before the mount is complete.
pub fn run(args: &MountArgs) -> Result<ExitCode> {
    let words = MountOptions::parse(&args.options)?.kernel;
    if args.kernel.verity == Some(Verity::Require) || words.verity.as_deref() == Some("require") {
        bail!("verity require: a mount of a user cannot verify data by fs-verity; use --kernel");
    }
    if args.kernel.digest.is_some() || words.metadata_digest.is_some() {
        bail!(
            "--digest and -o fsverity=HEX are for mounts by the kernel: use -o digest=HEX or \
             --kernel"
        );
    }
    kernel::check_rootless()?;
    if args.foreground {
        serve(args)
    } else {
        start(args)
    }
}

/// As [`run`], for the helper of mount(8); nothing happens if the image is mounted there.
///
/// # Errors
/// As [`run`].
pub fn run_once(args: &MountArgs) -> Result<ExitCode> {
    if mount_kernel::is_mounted(args)? {
        Ok(ExitCode::SUCCESS)
    } else {
        run(args)
    }
}

/// Starts the server, which is this command with two flags more.
fn start(args: &MountArgs) -> Result<ExitCode> {
    let mut words: Vec<OsString> = ["mount", "--foreground", "--ready-stdout", "--overlay"]
        .map(Into::into)
        .into();
    let flags = &args.kernel;
    let verity = flags.verity.and_then(|verity| verity.to_possible_value());
    let verity = verity.map(|value| OsString::from(value.get_name()));
    let path = |path: &Option<PathBuf>| path.clone().map(PathBuf::into_os_string);
    for (flag, value) in [
        ("--upper", path(&flags.upper)),
        ("--work", path(&flags.work)),
        ("--verity", verity),
        ("--view-cache", path(&flags.view_cache)),
        (
            "--view-limit",
            flags.view_limit.map(|len| len.to_string().into()),
        ),
        ("--log", path(&args.log)),
    ] {
        if let Some(value) = value {
            words.extend([flag.into(), value]);
        }
    }
    if flags.adopt_upper {
        words.push("--adopt-upper".into());
    }
    for options in &args.options {
        words.extend(["-o".into(), options.into()]);
    }
    let paths = [&args.image, &args.dir];
    words.push("--".into());
    words.extend(paths.map(|path| path.clone().into_os_string()));
    if background::start(words, None)? {
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::from(crate::status::FAILED))
    }
}

fn serve(args: &MountArgs) -> Result<ExitCode> {
    let prepared = Prepared::new(args)?;
    let (view, volume) = kernel::view(&prepared.image, &prepared.cache, &prepared.view_options())?;
    let summary = prepared.image.summary();
    let capacity = Capacity {
        content_len: summary.content_len,
        name_count: summary.name_count,
    };
    let tree = MetadataTree::new(volume, capacity)?;
    let (mount, lower) = mount_detached(tree, &prepared.source, &prepared.options)?;
    kernel::mount_over(
        &lower,
        &prepared.image,
        (&prepared.cache, &view),
        &prepared.source,
        prepared.point.as_fd(),
        prepared.layer(args),
        mount_attributes(&prepared.options),
    )?;
    drop(lower);
    if args.ready_stdout {
        background::detach()?;
        background::report_ready(args.log.as_deref())?;
    }
    mount.wait()?;
    drop(view);
    Ok(ExitCode::SUCCESS)
}
