//! The files of a program that carries an image: a mount, or a directory into which they were
//! extracted. All processes of one user that start the same file share them.
//!
//! Each process of the program has a shared lock on the lock file of its tree, which it inherits,
//! so that the tree stays as long as one of them lives, however they end. The keeper waits for the
//! lock.

use crate::failure::{Context, refuse};
use crate::keeper::{self, KEEPER, START, unfinished};
use crate::program::{Carried, Program};
use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use weald_format::Result;
use weald_fuse::mount_at;
use weald_io::{OwnDir, runtime_dir_path};

/// How the files are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By a mount.
    Mount,
    /// By extraction.
    Extract,
    /// By a mount where that is possible.
    Auto,
}

impl How {
    /// The value of the variable `WEALD_APP`.
    pub fn parse(word: &str) -> Result<Self> {
        match word {
            "" | "auto" => Ok(Self::Auto),
            "mount" => Ok(Self::Mount),
            "extract" => Ok(Self::Extract),
            other => refuse(format!(
                "WEALD_APP={other}: expected mount, extract or auto"
            )),
        }
    }
}

/// The files, as long as the lock is held.
pub struct Tree {
    /// The directory.
    pub dir: PathBuf,
    /// The lock, which the processes of the program inherit.
    pub lock: File,
}

/// A file that carries an image.
pub struct Carrier<'a> {
    /// What stands before the image.
    pub program: &'a dyn Program,
    /// The file that was started.
    pub opened: &'a File,
    /// The image. The path of its file leads to another one when that was replaced meanwhile.
    pub image: Carried<'a>,
}

impl Carrier<'_> {
    /// Gives the files of the image. `keep` says how many seconds they stay after the last process,
    /// or `always`.
    ///
    /// # Errors
    /// If they cannot be given in that way.
    pub fn tree(&self, how: How, keep: &str) -> Result<Tree> {
        let key = self.key()?;
        let uid = rustix::process::geteuid().as_raw();
        let runtime_dir = runtime_dir_path(|name| std::env::var_os(name), uid);
        let apps = own_dir(&OwnDir::make(&runtime_dir)?.path().join("apps"))?;
        let start = lock_file(&apps.join(format!("{key}.start")))?;
        flock(&start, FlockOperation::LockExclusive).context("lock")?;
        let lock_path = apps.join(format!("{key}.lock"));
        let lock = lock_file(&lock_path)?;
        // A keeper has it while it takes the tree away.
        flock(&lock, FlockOperation::LockShared).context("lock")?;
        let dir = self.given(&apps.join(&key), &key, how, |action, dir| {
            start_keeper(&lock_path, action, dir, keep)
        })?;
        Ok(Tree { dir, lock })
    }

    /// What the file is called among those that are started.
    ///
    /// # Errors
    /// If its path leads to another file by now.
    fn key(&self) -> Result<String> {
        let own = key(&self.opened.metadata().context("/proc/self/exe")?);
        if self
            .image
            .file
            .metadata()
            .is_ok_and(|stat| key(&stat) == own)
        {
            Ok(own)
        } else {
            refuse("the file was replaced while it started: start it again")
        }
    }

    /// The directory with the files. `keeper` is started for what has to be taken away.
    fn given(
        &self,
        mount_point: &Path,
        key: &str,
        how: How,
        keeper: impl Fn(&str, &Path) -> Result<()>,
    ) -> Result<PathBuf> {
        if how != How::Extract {
            let mounted = self.mount(mount_point, how == How::Mount);
            match mounted {
                Ok(false) => return Ok(mount_point.to_owned()),
                Ok(true) => {
                    keeper("unmount", mount_point)?;
                    // The server opened what the path led to.
                    self.key()?;
                    return Ok(mount_point.to_owned());
                }
                Err(error) if how == How::Mount => return Err(error),
                Err(error) => log::info!("{error:#}; extracting instead"),
            }
        }
        let dir = own_dir(&cache_dir()?)?.join(key);
        if !dir.exists() {
            self.extract(&dir)?;
        }
        // Also where it was there: the keeper of a killed machine is gone.
        keeper("remove", &dir)?;
        Ok(dir)
    }

    /// Mounts the image unless it is mounted; returns whether this call did.
    fn mount(&self, dir: &Path, is_told: bool) -> Result<bool> {
        own_dir(dir).or_else(|error| {
            if mount_at(dir).is_some() {
                Ok(dir.to_owned())
            } else {
                Err(error)
            }
        })?;
        self.program.take_away_dead(dir)?;
        let real = weald_fuse::path_of(dir).context("mount point")?;
        if mount_at(&real).is_some() {
            return Ok(false);
        }
        let mut mount = self.program.mounting(self.image, dir);
        mount.stdin(Stdio::null()).stdout(Stdio::null());
        if !is_told {
            mount.stderr(Stdio::null());
        }
        if mount.status().context("mount")?.success() {
            Ok(true)
        } else {
            refuse("the image cannot be mounted; WEALD_APP=extract extracts it")
        }
    }

    fn extract(&self, dir: &Path) -> Result<()> {
        let unfinished = unfinished(dir);
        keeper::remove(&unfinished);
        let mut extract = self.program.extraction(self.image, &unfinished, &[], true);
        extract.stdin(Stdio::null()).stdout(Stdio::null());
        let status = extract.status().context("extract")?;
        if !status.success() {
            keeper::remove(&unfinished);
            return refuse(format!(
                "the image cannot be extracted to {}",
                dir.display()
            ));
        }
        if let Err(error) = self.key() {
            keeper::remove(&unfinished);
            return Err(error);
        }
        std::fs::rename(&unfinished, dir).context(dir.display().to_string())
    }
}

/// What a file is called: another file, or another state of it, has another key. No claim of its
/// content counts.
fn key(stat: &Metadata) -> String {
    format!(
        "{:x}-{:x}-{:x}-{:x}.{:x}",
        stat.dev(),
        stat.ino(),
        stat.len(),
        stat.mtime(),
        stat.mtime_nsec()
    )
}

fn lock_file(path: &Path) -> Result<File> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false);
    file.open(path).context(path.display().to_string())
}

/// Makes the directory at `path` for this user alone, or checks that it is that.
fn own_dir(path: &Path) -> Result<PathBuf> {
    let shown = || path.display().to_string();
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).context(shown());
        }
        _ => {}
    }
    let stat = path.symlink_metadata().context(shown())?;
    let uid = rustix::process::geteuid().as_raw();
    if !stat.is_dir() || stat.uid() != uid || stat.mode() & 0o022 != 0 {
        return refuse(format!("{}: other users could change it", path.display()));
    }
    Ok(path.to_owned())
}

/// Where extracted files lie: in the user's cache, else below `TMPDIR`.
fn cache_dir() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")));
    let cache = cache.filter(|dir| dir.is_absolute() && std::fs::create_dir_all(dir).is_ok());
    Ok(match cache {
        Some(dir) => dir.join("weald-apps"),
        None => {
            let uid = rustix::process::geteuid().as_raw();
            std::env::temp_dir().join(format!("weald-apps-{uid}"))
        }
    })
}

fn start_keeper(lock: &Path, action: &str, dir: &Path, keep: &str) -> Result<()> {
    if keep == "always" {
        return Ok(());
    }
    let mut starter = Command::new("/proc/self/exe");
    starter.arg0(KEEPER).arg(START).arg(action);
    starter.arg(lock).arg(dir).arg(keep);
    let status = starter.status().context("start of the keeper")?;
    if !status.success() {
        return refuse("the keeper cannot be started");
    }
    Ok(())
}
