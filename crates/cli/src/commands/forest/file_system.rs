//! A file with a file system that is mounted while a forest is written to it.

use anyhow::{Context, bail};
use clap::ValueEnum;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weald_forest::Totals;

/// Largest unused part of a file's last block, in bytes.
const UNUSED_LEN_MAX: u64 = 4096;
/// Space that a file system needs while it is empty, in bytes.
const BASE_LEN: u64 = 512 << 20;
/// How long to retry an unmount while another process uses the file system, and the pause between
/// two attempts.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// File systems for `--mkfs`.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum MkfsWord {
    Ext4,
    Xfs,
    Btrfs,
}

/// A file system that is being filled. If it is dropped before [`FileSystem::seal`], it is removed.
pub struct FileSystem {
    file: PathBuf,
    mount_point: PathBuf,
    is_mounted: bool,
    is_kept: bool,
}

impl FileSystem {
    /// Creates the sparse file `target` with a file system large enough for `totals`, and mounts it
    /// on a directory beside the file.
    pub fn make(kind: MkfsWord, target: &Path, totals: &Totals) -> anyhow::Result<Self> {
        let file = File::create_new(target).with_context(|| target.display().to_string())?;
        let mut mount_point = target.as_os_str().to_owned();
        mount_point.push(".mounted");
        let mut made = Self {
            file: target.to_path_buf(),
            mount_point: mount_point.into(),
            is_mounted: false,
            is_kept: false,
        };
        file.set_len(image_len(kind, totals))
            .with_context(|| target.display().to_string())?;
        drop(file);
        let inode_count = (totals.inode_count() + totals.inode_count() / 16 + 1024).to_string();
        let mut mkfs = match kind {
            MkfsWord::Ext4 => {
                let mut mkfs = Command::new("mkfs.ext4");
                mkfs.args(["-q", "-F", "-m", "0", "-N", &inode_count]);
                mkfs
            }
            MkfsWord::Xfs => {
                let mut mkfs = Command::new("mkfs.xfs");
                mkfs.args(["-q", "-f", "-i", "maxpct=0"]);
                mkfs
            }
            MkfsWord::Btrfs => {
                let mut mkfs = Command::new("mkfs.btrfs");
                mkfs.args(["-q", "-f", "-m", "single"]);
                mkfs
            }
        };
        run(mkfs.arg(target))?;
        fs::create_dir(&made.mount_point)
            .with_context(|| made.mount_point.display().to_string())?;
        run(Command::new("mount")
            .args(["-o", "loop,noatime"])
            .args([target, &made.mount_point]))?;
        made.is_mounted = true;
        Ok(made)
    }

    /// Mount point.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Unmounts the file system and keeps the file.
    pub fn seal(mut self) -> anyhow::Result<()> {
        self.unmount()?;
        (self.is_mounted, self.is_kept) = (false, true);
        Ok(())
    }

    /// Unmounts with retries: desktop services look into new file systems and keep them busy for a
    /// moment.
    fn unmount(&self) -> anyhow::Result<()> {
        let end = Instant::now() + UNMOUNT_TIMEOUT;
        loop {
            match run(Command::new("umount").arg(&self.mount_point)) {
                Err(_) if Instant::now() < end => std::thread::sleep(BUSY_PAUSE),
                done => return done,
            }
        }
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // Errors are ignored here, because the error that led here is reported.
        if self.is_mounted {
            let _ = self.unmount();
        }
        let _ = fs::remove_dir(&self.mount_point);
        if !self.is_kept {
            let _ = fs::remove_file(&self.file);
        }
    }
}

/// Length of the file. The file is sparse, so that unused space costs nothing.
fn image_len(kind: MkfsWord, totals: &Totals) -> u64 {
    let names = totals.files + totals.symlinks + totals.hard_links + totals.directories;
    let inodes = totals.inode_count();
    let (inode_len, name_len) = match kind {
        MkfsWord::Ext4 => (256, 320),
        MkfsWord::Xfs => (512, 320),
        // Items in the B-tree: an inode, a reference and two directory items. Copy on write keeps
        // two copies for a moment.
        MkfsWord::Btrfs => (512, 1600),
    };
    let data = totals.data_len + (totals.files - totals.empty_files) * UNUSED_LEN_MAX;
    let tree = inodes * inode_len + names * name_len + totals.directories * 2 * UNUSED_LEN_MAX;
    BASE_LEN + (data + tree) / 4 * 5
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| shown(&name))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said
            .lines()
            .rfind(|l| !l.trim().is_empty())
            .unwrap_or("failed");
        bail!("{}: {}", shown(&name), last.trim());
    }
    Ok(())
}

fn shown(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}
