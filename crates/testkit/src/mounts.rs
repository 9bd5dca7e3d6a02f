//! A directory for tests that mount images: short path, servers of its own, cleaned up however a
//! test ends.
//!
//! Neighbours: [`command`](crate::command) finds the real binary. Nothing here waits for a process
//! by its number, because an orphan stays a zombie if nobody reaps it. Tests wait for children, and
//! look up mounts below this directory only.

use crate::command::{Output, weald_command, weald_path};
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use weald_sys::unescaped;

/// Maximum time that a test waits for an event: far more than the busiest machine needs, and less
/// than a run of all tests may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Commands of the shell for a process in a mount namespace of its own, with the directory of its
/// test as the working directory: they detach its copies of other tests' mounts, which would keep
/// those from ending.
pub const FORGET_OTHERS: &str = r#"
    own=$(pwd -P)
    findmnt -rno TARGET -t fuse.weald,fuseblk.weald | while read -r dir; do
        case $dir in "$own"/*) ;; *) umount -l "$dir" 2>/dev/null || true ;; esac
    done
"#;

/// A temporary directory with images, mount points and servers. On drop it detaches every mount
/// below it, so that servers end, and removes itself.
#[derive(Debug)]
pub struct Ground {
    path: PathBuf,
    /// Removed last.
    _base: TempDir,
}

impl Ground {
    /// Makes a new one that every user may enter, with an empty directory for servers that only its
    /// owner may enter.
    ///
    /// # Panics
    /// If it cannot be made.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        let base = tempfile::Builder::new()
            .prefix("wg")
            .tempdir()
            .expect("temporary directory");
        set_mode(base.path(), 0o755);
        // The path in the form of the kernel's mount list.
        let path = base.path().canonicalize().expect("path of the directory");
        let ground = Self { path, _base: base };
        fs::create_dir(ground.runtime_dir()).expect("runtime directory");
        set_mode(&ground.runtime_dir(), 0o700);
        ground
    }

    /// The directory, without symlinks in its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of `name` in this directory; it need not exist.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Path of the image `name`; it need not exist.
    pub fn image(&self, name: &str) -> PathBuf {
        self.at(format!("{name}.weald"))
    }

    /// The directory `name`, for a source or a mount point. Makes it if it is missing.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.at(name);
        fs::create_dir_all(&dir).expect("directory");
        dir
    }

    /// Directory for the sockets of this directory's servers.
    pub fn runtime_dir(&self) -> PathBuf {
        self.at("run")
    }

    /// Makes a command for the real binary, with this working directory and these servers, and with
    /// empty standard input.
    ///
    /// # Panics
    /// As [`weald_path`](crate::command::weald_path).
    pub fn command(&self) -> Command {
        let mut command = weald_command();
        command
            .current_dir(&self.path)
            .env("WEALD_RUNTIME_DIR", self.runtime_dir())
            .stdin(Stdio::null());
        command
    }

    /// Makes a command that runs a script of bash in this directory, with these servers; `$WEALD`
    /// is the binary.
    ///
    /// # Panics
    /// As [`weald_path`].
    pub fn script(&self, script: &str) -> Command {
        let mut command = Command::new("bash");
        command
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(&self.path)
            .env("WEALD", weald_path())
            .env("WEALD_RUNTIME_DIR", self.runtime_dir())
            .env("LC_ALL", "C");
        command
    }

    /// Runs the binary with `args` to its end.
    ///
    /// # Panics
    /// As [`finish`].
    #[track_caller]
    pub fn weald<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Output {
        finish(self.command().args(args))
    }

    /// Packs the directory `source` into `image`; `args` are more options of `weald build`.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn build(&self, source: &Path, image: &Path, args: &[&str]) {
        let mut command = self.command();
        command.args(["build", "--quiet"]).args(args);
        finish(command.arg(source).arg(image)).expect(0);
    }

    /// Mounts `image` on `dir`; `args` are more options of `weald mount`. The mount is live on
    /// return.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn mount(&self, image: &Path, dir: &Path, args: &[&str]) {
        let mut command = self.command();
        finish(command.arg("mount").args(args).arg(image).arg(dir)).expect(0);
        assert!(self.is_mounted(dir), "{}", dir.display());
    }

    /// Unmounts `dir` with `weald umount`, and retries for a while if it is in use: a child that
    /// another test has just forked holds all descriptors of this process until it calls exec.
    ///
    /// # Panics
    /// If that fails.
    #[track_caller]
    pub fn umount(&self, dir: &Path) {
        const TRIES: usize = 20;
        for tries_left in (0..TRIES).rev() {
            let said = finish(self.command().arg("umount").arg(dir));
            if tries_left == 0 || !said.stderr.contains("in use") {
                said.expect(0);
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!self.is_mounted(dir), "{}", dir.display());
    }

    /// Mounts `image` on `dir` in a child that serves only this mount, and waits until it is live.
    ///
    /// # Panics
    /// If the child ends before that, or takes longer than [`PATIENCE`].
    #[track_caller]
    pub fn serve(&self, image: &Path, dir: &Path, args: &[&str]) -> Server {
        let mut command = self.command();
        command.args(["mount", "--foreground"]).args(args);
        let mut server = Server::start(command.arg(image).arg(dir));
        eventually("the mount", || {
            assert!(server.is_running(), "{}", server.log());
            self.is_mounted(dir)
        });
        server
    }

    /// Whether a file system is mounted on `dir`, a directory below this one. Does not access the
    /// mount.
    ///
    /// # Panics
    /// If the kernel's mount list cannot be read.
    pub fn is_mounted(&self, dir: &Path) -> bool {
        self.mounts().iter().any(|mount| mount == dir)
    }

    /// All mount points below this directory, in the order of mounting.
    ///
    /// # Panics
    /// If the kernel's mount list cannot be read.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let list = fs::read("/proc/self/mountinfo").expect("/proc/self/mountinfo");
        let lines = list.split(|byte| *byte == b'\n');
        let dirs = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
        dirs.map(|dir| PathBuf::from(unescaped(dir)))
            .filter(|dir| dir != &self.path && dir.starts_with(&self.path))
            .collect()
    }
}

/// The lines of a table of mounts, such as `/proc/self/mounts`. Tests beside this one mount on
/// names that are no UTF-8: a replacement character stands for what cannot be shown.
///
/// # Panics
/// If the table cannot be read.
pub fn mount_lines(table: &str) -> Vec<String> {
    let table = fs::read(table).expect("a table of mounts");
    let table = String::from_utf8_lossy(&table);
    table.lines().map(str::to_owned).collect()
}

impl Drop for Ground {
    fn drop(&mut self) {
        // A test that failed may leave a server stopped. An unmount would wait for it for ever.
        let flags = if std::thread::panicking() {
            UnmountFlags::DETACH | UnmountFlags::FORCE
        } else {
            UnmountFlags::DETACH
        };
        // Several mounts may lie on one directory. If a detach fails, a later round may detach it
        // together with a mount above it.
        for _ in 0..3 {
            for dir in self.mounts().iter().rev() {
                let _ = rustix::mount::unmount(dir, flags);
            }
        }
    }
}

/// A child process that is killed and waited for on drop. Its standard output and error go to a
/// file.
#[derive(Debug)]
pub struct Server {
    child: Child,
    said: File,
}

impl Server {
    /// Starts `command`.
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let said = tempfile::tempfile().expect("temporary file");
        let twin = || Stdio::from(said.try_clone().expect("descriptor"));
        let child = command.stdout(twin()).stderr(twin()).spawn();
        let child = child.expect("the program starts");
        Self { child, said }
    }

    /// Process id, for signals. It stays valid until the child was waited for.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended yet.
    ///
    /// # Panics
    /// If its state cannot be read.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("state of a child").is_none()
    }

    /// Its output so far.
    ///
    /// # Panics
    /// If the output cannot be read.
    pub fn log(&self) -> String {
        // Reads at explicit offsets, because the child uses the file's offset.
        let len = self.said.metadata().expect("length").len();
        let mut said = vec![0; usize::try_from(len).expect("a few lines")];
        self.said
            .read_exact_at(&mut said, 0)
            .expect("what a child said");
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Kills it (SIGKILL).
    ///
    /// # Panics
    /// If it cannot be waited for.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().expect("end of a child");
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// If it takes longer than [`PATIENCE`].
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the end of a child", || {
            status = self.child.try_wait().expect("state of a child");
            status.is_some()
        });
        status.expect("it has ended")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end. Its output goes to files, not pipes, so that a server which it leaves
/// running does not block the test.
///
/// # Panics
/// If it cannot be started, or takes longer than [`PATIENCE`].
#[track_caller]
pub fn finish(command: &mut Command) -> Output {
    let [mut stdout, mut stderr] = [(), ()].map(|()| tempfile::tempfile().expect("temporary file"));
    let twin = |file: &File| Stdio::from(file.try_clone().expect("descriptor"));
    command.stdout(twin(&stdout)).stderr(twin(&stderr));
    let child = command.spawn().expect("the program starts");
    let mut guard = Server {
        child,
        said: tempfile::tempfile().expect("temporary file"),
    };
    let status = guard.wait();
    let [out, err] = [&mut stdout, &mut stderr].map(|file| {
        let mut bytes = Vec::new();
        file.rewind().expect("offset");
        file.read_to_end(&mut bytes).expect("what a program said");
        bytes
    });
    Output {
        code: status.code(),
        stdout: out,
        stderr: String::from_utf8_lossy(&err).into_owned(),
    }
}

/// Waits until another thread or process has done something.
///
/// # Panics
/// If it does not happen within [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut is_done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_done() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
}

#[cfg(test)]
mod tests {
    use super::*;

    // Catches: a fixture that leaves mounts behind or does not see them.
    #[test]
    fn a_ground_takes_its_mounts_away() {
        let ground = Ground::new();
        let (path, dir) = (ground.path().to_owned(), ground.dir("a mount"));
        for _ in 0..2 {
            let said = finish(
                Command::new("mount")
                    .args(["-t", "tmpfs", "none"])
                    .arg(&dir),
            );
            said.expect(0);
        }
        assert_eq!(ground.mounts(), [dir.clone(), dir.clone()]);
        assert!(ground.is_mounted(&dir));
        drop(ground);
        assert!(!path.exists());
    }

    #[test]
    fn a_server_ends_with_its_guard() {
        let mut server =
            Server::start(Command::new("sh").args(["-c", "echo here; exec sleep 1000"]));
        eventually("a word", || server.log() == "here\n");
        assert!(server.is_running());
        server.kill();
        assert!(!server.is_running());
    }
}
