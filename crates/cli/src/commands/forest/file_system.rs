//! A file that holds a file system, mounted while a forest is made in it.

use super::MkfsWord;
use anyhow::{Context, bail};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weald_forest::Totals;

/// Bytes that a file of data wastes in its last block, at most.
const BLOCK_LEN: u64 = 4096;
/// What a file system takes before anything is in it.
const BASE_LEN: u64 = 512 << 20;
/// How long somebody else may keep it mounted, and how often that is tried.
const BUSY_FOR: Duration = Duration::from_secs(5);
const BUSY_STEP: Duration = Duration::from_millis(50);

/// A file system that is being filled. Dropped before it is sealed, it is gone.
pub struct FileSystem {
    file: PathBuf,
    mount_point: PathBuf,
    is_mounted: bool,
    is_kept: bool,
}

impl FileSystem {
    /// Makes the sparse file `target`, with room for what `totals` say, and mounts it beside
    /// itself.
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

    /// Where it is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Unmounts it and keeps the file.
    pub fn seal(mut self) -> anyhow::Result<()> {
        self.unmount()?;
        (self.is_mounted, self.is_kept) = (false, true);
        Ok(())
    }

    /// Others look at a new file system too, and let it go in a moment.
    fn unmount(&self) -> anyhow::Result<()> {
        let end = Instant::now() + BUSY_FOR;
        loop {
            match run(Command::new("umount").arg(&self.mount_point)) {
                Err(_) if Instant::now() < end => std::thread::sleep(BUSY_STEP),
                done => return done,
            }
        }
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // Best effort: what ended the work is told, and is more than this.
        if self.is_mounted {
            let _ = self.unmount();
        }
        let _ = fs::remove_dir(&self.mount_point);
        if !self.is_kept {
            let _ = fs::remove_file(&self.file);
        }
    }
}

/// Bytes that the file gets. It is sparse, so what is too much costs nothing.
fn image_len(kind: MkfsWord, totals: &Totals) -> u64 {
    let names = totals.files + totals.symlinks + totals.hard_links + totals.directories;
    let inodes = totals.inode_count();
    let (inode_len, name_len) = match kind {
        MkfsWord::Ext4 => (256, 320),
        MkfsWord::Xfs => (512, 320),
        // Items of a tree: inode, reference, two of the directory; and both copies while one is
        // written.
        MkfsWord::Btrfs => (512, 1600),
    };
    let data = totals.data_len + (totals.files - totals.empty_files) * BLOCK_LEN;
    let tree = inodes * inode_len + names * name_len + totals.directories * 2 * BLOCK_LEN;
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
