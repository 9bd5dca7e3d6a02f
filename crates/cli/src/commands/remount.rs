//! `remount` of a volume: changes options of a mount that exists.

use crate::reported_mounts::{Ask, mount_of};
use crate::runtime_dir::runtime_dir_path;
use anyhow::{Context, Result, bail};
use rustix::mount::MountFlags;
use std::path::Path;
use weald_daemon::{RuntimeDir, VolumeMountOptions, path_belongs_to_root_alone};
use weald_fuse::AccessTime;

/// Changes options of the volume `image` that is mounted on `dir`: those of the kernel, and those
/// that its server looks at for each request.
///
/// # Errors
/// A word that asks for what the mount does not have and a remount cannot change; a server that
/// does not answer; `remount` of mount(2).
pub fn run(image: &Path, dir: &Path, words: &[String]) -> Result<()> {
    let shown = || dir.display().to_string();
    let path = weald_fuse::path_of(dir).with_context(shown)?;
    let store = weald_store::split(image).map(|(store, _)| store);
    let is_roots = store.is_some_and(|store| path_belongs_to_root_alone(&store));
    let options = VolumeMountOptions::parse_in(is_roots, words)?;
    let device = weald_fuse::device_of(&path).with_context(shown)?;
    let runtime_dir = RuntimeDir::find(&runtime_dir_path())?;
    let server = runtime_dir.as_ref().map(|dir| dir.mount_server(device));
    let Some((runtime_dir, server)) = runtime_dir.as_ref().zip(server.transpose()?.flatten())
    else {
        bail!("{}: no server of this user has it mounted", dir.display());
    };
    let number = device.to_string();
    let found = mount_of(Ask::Mounts, |mount| mount.device == number)?;
    let Some((_, report)) = found else {
        bail!(
            "{}: process {} does not tell its options",
            dir.display(),
            server.pid()
        );
    };
    refuse_fixed(&report.options, words)?;
    let mut live = report.live.unwrap_or_default();
    for word in words.iter().flat_map(|list| list.split(',')) {
        live.apply(word);
    }
    // The kernel cannot change this flag, so that /proc/mounts would not show it.
    live.is_dirsync = report.live.unwrap_or_default().is_dirsync;
    if live.is_sync || live.is_dirsync {
        VolumeMountOptions::parse([report.options.join(",").as_str(), "sync"])?;
    }
    let mut flags = MountFlags::empty();
    for (is_on, flag) in [
        (options.writable.is_read_only, MountFlags::RDONLY),
        (!options.mount.has_suid, MountFlags::NOSUID),
        (!options.mount.has_devices, MountFlags::NODEV),
        (options.mount.is_noexec, MountFlags::NOEXEC),
        (live.is_sync, MountFlags::SYNCHRONOUS),
        (live.is_dirsync, MountFlags::DIRSYNC),
        (live.access_time == AccessTime::Never, MountFlags::NOATIME),
        (
            live.access_time == AccessTime::Relative,
            MountFlags::RELATIME,
        ),
        (
            live.access_time == AccessTime::Always,
            MountFlags::STRICTATIME,
        ),
        (live.skips_directories, MountFlags::NODIRATIME),
    ] {
        flags.set(flag, is_on);
    }
    // With `sync`, the server is ready before the kernel shows the word.
    if !server.set_options(runtime_dir, live)? {
        bail!("{}: its server is ending", dir.display());
    }
    rustix::mount::mount_remount(&path, flags, c"").context("remount")
}

/// Refuses words for what a remount cannot change, unless the mount has them.
fn refuse_fixed(old: &[String], words: &[String]) -> Result<()> {
    const FIXED: [&str; 18] = [
        "fuseblk",
        "nofuseblk",
        "acl",
        "noacl",
        "dirsync",
        "commit-interval",
        "cache",
        "fsync",
        "barrier",
        "snapdir",
        "log",
        "mode",
        "workers",
        "max_readahead",
        "fsname",
        "subtype",
        "xattr",
        "noxattr",
    ];
    let had: Vec<&str> = old.iter().flat_map(|list| list.split(',')).collect();
    for word in words.iter().flat_map(|list| list.split(',')) {
        let key = word.split_once('=').map_or(word, |(key, _)| key);
        let is_default = match word {
            "xattr" => !had.contains(&"noxattr"),
            "acl" => !had.contains(&"noacl"),
            _ => false,
        };
        if FIXED.contains(&key) && !had.contains(&word) && !is_default {
            bail!("option '{word}': a remount cannot change it: unmount the volume, then mount it");
        }
    }
    Ok(())
}
