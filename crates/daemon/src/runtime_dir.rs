//! Runtime directory: holds the sockets of a user's servers.
//!
//! Two checks keep other users out. The directory has mode 0700 and its sockets 0600, so the kernel
//! refuses connections of other users. Both sides of a connection also compare the peer's user id
//! (`SO_PEERCRED`) with their own; this check still holds if a mode is loosened later.
//!
//! The directory is opened once, without following a symlink, and checked through its descriptor.
//! Every later access starts at that descriptor, because the path may lead elsewhere by then.

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};
use weald_io::OwnDir;

/// Timeout of the lock. Another server holds it while it starts or ends, for milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause between two attempts to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// How long a client waits while the queue of a server is full. A running server accepts
/// connections within milliseconds, a stopped one never.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Length of the queue of connections that the server has not accepted; more clients wait in
/// connect(2).
const BACKLOG: i32 = 128;

/// Runtime directory, opened and checked.
#[derive(Debug, Clone)]
pub struct RuntimeDir {
    dir: Arc<OwnedFd>,
    path: PathBuf,
    /// Mount namespace and root directory: servers in other ones see other files.
    view: String,
}

/// Bound socket of a server, with its name.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) listener: UnixListener,
    pub(crate) name: String,
}

/// Lock for the start and the end of a server; drop releases it.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code)] OwnedFd);

impl RuntimeDir {
    /// Opens the runtime directory at `path`. Creates it and its parents if they are missing.
    ///
    /// # Errors
    /// `Invalid` if other users own or can enter the directory; `Io`.
    pub fn make(path: &Path) -> Result<Self> {
        OwnDir::make(path).and_then(Self::of)
    }

    /// Opens the runtime directory at `path`; `None` if it does not exist.
    ///
    /// # Errors
    /// As [`RuntimeDir::make`].
    pub fn find(path: &Path) -> Result<Option<Self>> {
        OwnDir::find(path)?.map(Self::of).transpose()
    }

    fn of(own_dir: OwnDir) -> Result<Self> {
        let (dir, path) = own_dir.into_parts();
        let stat = rustix::fs::fstat(&dir).map_err(|errno| error_at(&path, errno))?;
        let own = (stat.st_dev, stat.st_ino);
        let runtime_dir = Self {
            dir: Arc::new(dir),
            path,
            view: view(),
        };
        match std::fs::metadata(runtime_dir.proc_path("")) {
            Ok(found) if (found.dev(), found.ino()) == own => Ok(runtime_dir),
            _ => Err(Error::invalid(format!(
                "{}: /proc/self/fd does not lead to it; mount /proc, which connections need",
                runtime_dir.path.display()
            ))),
        }
    }

    /// Socket name of the shared server.
    pub(crate) fn shared_name(&self) -> String {
        format!("{}.shared", self.view)
    }

    /// New socket name for a server of a single mount.
    pub(crate) fn alone_name(&self) -> String {
        let chosen = std::hash::RandomState::new().build_hasher().finish();
        format!("{}-{chosen:016x}.alone", self.view)
    }

    /// Socket names of all servers with our mount namespace and root directory: the shared server
    /// first, then the others by name.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let mut names = self.all_names()?;
        names.retain(|name| is_socket_of(name, &self.view));
        names.sort_unstable_by_key(|name| (!name.ends_with(".shared"), name.clone()));
        Ok(names)
    }

    /// All names in the directory that are UTF-8; names of servers always are.
    pub(crate) fn all_names(&self) -> Result<Vec<String>> {
        let failed = |errno| error_at(&self.path, errno);
        let mut names = Vec::new();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.dir, ".", flags, Mode::empty()).map_err(failed)?;
        for entry in Dir::new(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Connects to a server of our own user; `None` if no server listens.
    ///
    /// # Errors
    /// `Invalid` if the server belongs to another user; `Busy` if it accepts no connections; `Io`.
    pub(crate) fn connect(&self, name: &str) -> Result<Option<UnixStream>> {
        let socket =
            new_socket(SocketFlags::CLOEXEC).map_err(|errno| self.error_of(name, errno))?;
        // The send timeout also limits connect(2) while the queue of the server is full.
        set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_TIMEOUT))
            .and_then(|()| rustix::net::connect(&socket, &self.address(name)?))
            .map_or_else(
                |errno| match errno {
                    Errno::NOENT | Errno::CONNREFUSED => Ok(None),
                    Errno::AGAIN => Err(self.stopped(name)),
                    errno => Err(self.error_of(name, errno)),
                },
                |()| {
                    let stream = UnixStream::from(socket);
                    check_peer(&stream).map_err(|e| e.context(self.path.join(name).display()))?;
                    Ok(Some(stream))
                },
            )
    }

    /// Whether a process listens at the socket, also one that accepts no connections. Never blocks.
    fn is_live(&self, name: &str) -> Result<bool> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connected = new_socket(flags)
            .and_then(|socket| rustix::net::connect(&socket, &self.address(name)?));
        match connected {
            Ok(()) | Err(Errno::AGAIN) => Ok(true),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(false),
            Err(errno) => Err(self.error_of(name, errno)),
        }
    }

    /// Creates the socket `name`; removes sockets and lock files of killed servers.
    ///
    /// # Errors
    /// `Busy` if a server listens under this name; `Io`.
    pub(crate) fn bind(&self, name: &str, _lock: &Lock) -> Result<Bound> {
        for other in self.names()? {
            if !self.is_live(&other)? {
                self.unlink(&other)?;
            } else if other == name {
                return Err(Error::new(ErrorKind::Busy, "a server runs already"));
            }
        }
        self.remove_stale_mount_locks()?;
        let failed = |errno| self.error_of(name, errno);
        let socket = new_socket(SocketFlags::CLOEXEC).map_err(failed)?;
        let address = self.address(name).map_err(failed)?;
        rustix::net::bind(&socket, &address).map_err(failed)?;
        // The umask decides the mode of a new socket. No client can connect before listen(2), so
        // no connection precedes this mode.
        let mode = Mode::RUSR | Mode::WUSR;
        let shown = rustix::fs::chmodat(&self.dir, name, mode, AtFlags::empty())
            .and_then(|()| rustix::net::listen(&socket, BACKLOG));
        if let Err(errno) = shown {
            self.unlink(name)?;
            return Err(failed(errno));
        }
        Ok(Bound {
            listener: UnixListener::from(socket),
            name: name.to_owned(),
        })
    }

    /// Removes the name of a socket or lock file; a missing name is no error.
    pub(crate) fn unlink(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error_of(name, errno)),
        }
    }

    /// Gives a file of the directory another name.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::renameat(&self.dir, from, &self.dir, to)
            .map_err(|errno| self.error_of(from, errno))
    }

    /// Takes the lock for the start and the end of servers; waits for other holders.
    ///
    /// # Errors
    /// `Busy` if another server still holds the lock after the timeout; `Io`.
    pub(crate) fn lock(&self) -> Result<Lock> {
        let name = format!("{}.lock", self.view);
        let file = self.open_lock(&name, OFlags::CREATE)?;
        let start = Instant::now();
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Lock(file)),
                Err(Errno::WOULDBLOCK) if start.elapsed() < LOCK_TIMEOUT => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Err(Errno::WOULDBLOCK) => {
                    let text = format!(
                        "{}: held by another server",
                        self.path.join(&name).display()
                    );
                    return Err(Error::new(ErrorKind::Busy, text));
                }
                Err(errno) => return Err(self.error_of(&name, errno)),
            }
        }
    }

    /// Opens a lock file of the directory.
    pub(crate) fn open_lock(&self, name: &str, more: OFlags) -> Result<OwnedFd> {
        // NONBLOCK: a FIFO of this name does not block open(2).
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | more;
        rustix::fs::openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| {
            match errno {
                Errno::NOENT => Error::not_found(self.path.join(name).display().to_string()),
                errno => self.error_of(name, errno),
            }
        })
    }

    /// Whether `name` in the directory still leads to `file`.
    pub(crate) fn has(&self, name: &str, file: &OwnedFd) -> bool {
        let named = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let same = |a: Stat, b: Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
        named.is_ok_and(|named| rustix::fs::fstat(file).is_ok_and(|file| same(named, file)))
    }

    /// Path through the descriptor of the directory; always short enough for a socket address.
    fn proc_path(&self, name: &str) -> PathBuf {
        let number = self.dir.as_raw_fd().to_string();
        Path::new("/proc/self/fd").join(number).join(name)
    }

    fn address(&self, name: &str) -> rustix::io::Result<SocketAddrUnix> {
        SocketAddrUnix::new(self.proc_path(name))
    }

    fn error_of(&self, name: &str, errno: Errno) -> Error {
        error_at(&self.path.join(name), errno)
    }

    fn stopped(&self, name: &str) -> Error {
        let text = format!(
            "{}: its server has taken no connection for {} seconds; \
             continue it (SIGCONT) or end it",
            self.path.join(name).display(),
            CONNECT_TIMEOUT.as_secs()
        );
        Error::new(ErrorKind::Busy, text)
    }
}

/// Refuses a connection if the peer runs as another user.
///
/// Root is no exception. A server need not admit root, which can become any user. A client of root
/// must not trust a server of another user. So both sides follow one rule.
///
/// # Errors
/// `Invalid`; `Io`.
pub(crate) fn check_peer(stream: &UnixStream) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    match weald_sys::peer_uid(stream.as_fd()) {
        Ok(uid) if uid == own => Ok(()),
        Ok(uid) => Err(Error::invalid(format!(
            "the other side of the connection is user {uid}, expected user {own}"
        ))),
        Err(error) => Err(Error::io("user of the other side", error)),
    }
}

fn new_socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn error_at(path: &Path, errno: Errno) -> Error {
    Error::io(path.display().to_string(), errno.into())
}

fn is_socket_of(name: &str, view: &str) -> bool {
    name.strip_prefix(view).is_some_and(|rest| {
        rest == ".shared" || (rest.starts_with('-') && rest.ends_with(".alone"))
    })
}

/// Identifies the mount namespace and root directory of this process: processes with another view
/// see other files under the same names.
fn view() -> String {
    let namespace = std::fs::read_link("/proc/self/ns/mnt").ok();
    let digits = |link: &OsStr| -> String {
        let text = link.to_string_lossy();
        text.chars().filter(char::is_ascii_digit).collect()
    };
    let namespace = namespace.map_or_else(|| "any".into(), |link| digits(link.as_os_str()));
    match std::fs::metadata("/") {
        Ok(root) => format!("{namespace}-{:x}-{:x}", root.dev(), root.ino()),
        Err(_) => namespace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Would catch: a socket that other users can reach or replace.
    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let base = tempfile::tempdir().expect("directory");
        let dir = base.path().join("a/b");
        assert!(RuntimeDir::find(&dir).expect("missing is fine").is_none());
        RuntimeDir::make(&dir).expect("made");
        let mode = std::fs::metadata(&dir).expect("stat").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        for mode in [0o701, 0o710, 0o755, 0o770] {
            std::fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).expect("chmod");
            let refused = RuntimeDir::make(&dir)
                .expect_err("open to others")
                .to_string();
            let words = [
                format!("mode {mode:04o}"),
                "chmod 700".into(),
                "_DIR".into(),
            ];
            assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
        }
        let file = base.path().join("file");
        std::fs::write(&file, "").expect("write");
        RuntimeDir::make(&file).expect_err("no directory");
    }

    /// Would catch: a symlink that changes its target after the check, and a trailing slash that
    /// makes the kernel follow it.
    #[test]
    fn symlinks_are_refused_and_not_followed_by_mkdir() {
        let base = tempfile::tempdir().expect("directory");
        let own = base.path().join("own");
        RuntimeDir::make(&own).expect("made");
        let link = base.path().join("link");
        std::os::unix::fs::symlink(&own, &link).expect("link");
        for path in [link.clone(), link.join(""), link.join(".")] {
            let refused = RuntimeDir::find(&path).expect_err("a link").to_string();
            assert!(refused.contains("symbolic link"), "{refused}");
            RuntimeDir::make(&path).expect_err("a link");
        }
        // A dangling symlink stands for a name that becomes a symlink before mkdir(2).
        std::os::unix::fs::symlink(base.path().join("away"), base.path().join("gap"))
            .expect("link");
        RuntimeDir::make(&base.path().join("gap/run")).expect_err("through a link");
        assert!(!base.path().join("away").exists());
    }

    /// Would catch: a second look-up of the path after the check of its directory.
    #[test]
    fn another_directory_under_the_same_path_changes_nothing() {
        let base = tempfile::tempdir().expect("directory");
        let [path, aside] = ["run", "aside"].map(|name| base.path().join(name));
        let runtime_dir = RuntimeDir::make(&path).expect("made");
        std::fs::rename(&path, &aside).expect("moved");
        let planted = RuntimeDir::make(&path).expect("made");
        let name = runtime_dir.shared_name();
        let theirs = planted
            .bind(&name, &planted.lock().expect("lock"))
            .expect("bind");
        assert!(runtime_dir.names().expect("list").is_empty());
        assert!(runtime_dir.connect(&name).expect("nobody there").is_none());
        let ours = runtime_dir
            .bind(&name, &runtime_dir.lock().expect("lock"))
            .expect("bind");
        let [held, planted] = [&aside, &path].map(|dir| {
            let stat = std::fs::symlink_metadata(dir.join(&name)).expect("a socket");
            (stat.ino(), stat.mode() & 0o777)
        });
        assert_ne!(held.0, planted.0);
        assert_eq!((held.1, planted.1), (0o600, 0o600));
        drop((ours, theirs));
    }

    /// Would catch: a socket of a killed server that blocks the next one, or the removal of a live
    /// server's socket.
    #[test]
    fn dead_sockets_are_replaced_and_live_ones_are_not() {
        for len in [1, 150] {
            let base = tempfile::tempdir().expect("directory");
            let runtime_dir = RuntimeDir::make(&base.path().join("x".repeat(len))).expect("made");
            let name = runtime_dir.shared_name();
            assert!(runtime_dir.connect(&name).expect("nobody").is_none());
            let bound = runtime_dir
                .bind(&name, &runtime_dir.lock().expect("lock"))
                .expect("bind");
            assert!(runtime_dir.connect(&name).expect("connect").is_some());
            let busy = runtime_dir.bind(&name, &runtime_dir.lock().expect("lock"));
            assert_eq!(busy.expect_err("busy").kind(), ErrorKind::Busy);
            let dead = runtime_dir.alone_name();
            drop(
                runtime_dir
                    .bind(&dead, &runtime_dir.lock().expect("lock"))
                    .expect("bind"),
            );
            assert_eq!(runtime_dir.names().expect("list"), [&*name, &*dead]);
            drop(bound);
            let again = runtime_dir
                .bind(&name, &runtime_dir.lock().expect("lock"))
                .expect("replaced");
            assert_eq!(runtime_dir.names().expect("list"), [again.name]);
        }
    }
}
