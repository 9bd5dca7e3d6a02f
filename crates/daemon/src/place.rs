//! The directory in which the servers of a user are found.
//!
//! Who may connect is decided here: the directory and its sockets are its owner's alone, and the
//! kernel refuses everybody else but root. Credentials of the other side (`SO_PEERCRED`) would say
//! no more, and carry a process id that means nothing in another PID namespace.

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};

/// Longest path of a socket: `sun_path` of unix(7) less its final zero.
const SOCKET_PATH_LEN_MAX: usize = 107;

/// How long to wait for another server that is about to begin or to end; it takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause between two attempts at the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The directory for servers, opened and found safe.
#[derive(Debug)]
pub struct Place {
    dir: OwnedFd,
    path: PathBuf,
    /// Mount namespace and root directory: servers of other ones see other files.
    view: String,
}

/// A socket of a server, bound under its name.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) listener: UnixListener,
    pub(crate) name: String,
}

/// The right to begin or to end a server; given back when dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code)] OwnedFd);

/// Where the servers of the user with `uid` are found: `WEALD_RUNTIME_DIR`, else `/run/weald` for
/// root, else `$XDG_RUNTIME_DIR/weald` where that directory is the user's, else `/tmp/weald-UID`.
pub fn default_dir(variable: impl Fn(&str) -> Option<OsString>, uid: u32) -> PathBuf {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(dir) = set("WEALD_RUNTIME_DIR") {
        return dir.into();
    }
    if uid == 0 {
        return "/run/weald".into();
    }
    let is_own = |dir: &PathBuf| std::fs::metadata(dir).is_ok_and(|stat| stat.uid() == uid);
    match set("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_own) {
        Some(dir) => dir.join("weald"),
        None => format!("/tmp/weald-{uid}").into(),
    }
}

impl Place {
    /// Opens the place at `path`, which is made if it is missing.
    ///
    /// # Errors
    /// `Invalid` where the directory is not ours alone; `Io`.
    pub fn make(path: &Path) -> Result<Self> {
        let told = |error| Error::io(path.display().to_string(), error);
        let path = std::path::absolute(path).map_err(told)?;
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(told)?;
        }
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(told(errno.into())),
        }
        Self::open(&path)
    }

    /// Opens the place at `path`; `None` where nobody has made it.
    ///
    /// # Errors
    /// As [`Place::make`].
    pub fn find(path: &Path) -> Result<Option<Self>> {
        match Self::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    fn open(path: &Path) -> Result<Self> {
        let told = |errno: Errno| Error::io(path.display().to_string(), errno.into());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty()).map_err(told)?;
        let stat = rustix::fs::fstat(&dir).map_err(told)?;
        let own = rustix::process::geteuid().as_raw();
        if stat.st_uid != own || stat.st_mode & 0o022 != 0 {
            return Err(Error::invalid(format!(
                "{}: expected a directory of user {own} that nobody else can write to, found one of user {} with mode {:04o}",
                path.display(),
                stat.st_uid,
                stat.st_mode & 0o7777
            )));
        }
        Ok(Self {
            dir,
            path: path.to_owned(),
            view: view(),
        })
    }

    /// The name of the socket of the server that many mounts share.
    pub(crate) fn shared_name(&self) -> String {
        format!("{}.shared", self.view)
    }

    /// A new name for the socket of a server that serves one mount alone.
    pub(crate) fn alone_name(&self) -> String {
        let chosen = std::hash::RandomState::new().build_hasher().finish();
        format!("{}-{chosen:016x}.alone", self.view)
    }

    /// The sockets of all servers of this place that see the files we see, in the order of their
    /// names.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let told = |error| Error::io(self.path.display().to_string(), error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(told)? {
            if let Ok(name) = entry.map_err(told)?.file_name().into_string()
                && is_socket_of(&name, &self.view)
            {
                names.push(name);
            }
        }
        // The shared server ends in "shared", the others in hexadecimal digits: it comes first.
        names.sort_unstable_by_key(|name| (!name.ends_with(".shared"), name.clone()));
        Ok(names)
    }

    /// Connects to a server; `None` where there is none.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn connect(&self, name: &str) -> Result<Option<UnixStream>> {
        use std::io::ErrorKind as K;
        match UnixStream::connect(self.address(name)) {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if matches!(error.kind(), K::NotFound | K::ConnectionRefused) => Ok(None),
            Err(error) => Err(self.told(name, error)),
        }
    }

    /// Makes the socket `name`; what killed servers have left behind is cleared away.
    ///
    /// # Errors
    /// `Busy` where a server answers under this name; `Io`.
    pub(crate) fn bind(&self, name: &str, _lock: &Lock) -> Result<Bound> {
        for other in self.names()? {
            if self.connect(&other)?.is_none() {
                self.unlink(&other)?;
            } else if other == name {
                return Err(Error::new(ErrorKind::Busy, "a server runs already"));
            }
        }
        let listener = UnixListener::bind(self.address(name)).map_err(|e| self.told(name, e))?;
        Ok(Bound {
            listener,
            name: name.to_owned(),
        })
    }

    /// Takes a socket away, so that nobody finds it any more.
    pub(crate) fn unlink(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.told(name, errno.into())),
        }
    }

    /// Waits until no other server is about to begin or to end.
    ///
    /// # Errors
    /// `Busy` where that takes too long; `Io`.
    pub(crate) fn lock(&self) -> Result<Lock> {
        let name = format!("{}.lock", self.view);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.dir, name.as_str(), flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| self.told(&name, errno.into()))?;
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
                Err(errno) => return Err(self.told(&name, errno.into())),
            }
        }
    }

    /// A path to the socket that is short enough for one.
    fn address(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        if path.as_os_str().len() <= SOCKET_PATH_LEN_MAX {
            return path;
        }
        Path::new("/proc/self/fd")
            .join(self.dir.as_raw_fd().to_string())
            .join(name)
    }

    fn told(&self, name: &str, error: std::io::Error) -> Error {
        let path = self.path.join(name);
        let has_proc = Path::new("/proc/self/fd").exists();
        if path.as_os_str().len() > SOCKET_PATH_LEN_MAX && !has_proc {
            let text = format!("{}: too long for a socket without /proc", path.display());
            return Error::invalid(text);
        }
        Error::io(path.display().to_string(), error)
    }
}

fn is_socket_of(name: &str, view: &str) -> bool {
    name.strip_prefix(view).is_some_and(|rest| {
        rest == ".shared" || (rest.starts_with('-') && rest.ends_with(".alone"))
    })
}

/// What tells apart processes that see different files under the same names.
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

    fn variables<'a>(set: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| {
            set.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.into())
        }
    }

    #[test]
    fn the_directory_is_found_by_user_and_environment() {
        let named = [("WEALD_RUNTIME_DIR", "/x"), ("XDG_RUNTIME_DIR", "/y")];
        assert_eq!(default_dir(variables(&named), 7), Path::new("/x"));
        assert_eq!(
            default_dir(variables(&named[1..]), 0),
            Path::new("/run/weald")
        );
        assert_eq!(default_dir(variables(&[]), 7), Path::new("/tmp/weald-7"));
        let others = [("XDG_RUNTIME_DIR", "/proc/self")];
        assert_eq!(
            default_dir(variables(&others), 4_000_000),
            Path::new("/tmp/weald-4000000")
        );
        let base = tempfile::tempdir().expect("directory");
        let uid = rustix::process::geteuid().as_raw();
        let own = [("XDG_RUNTIME_DIR", base.path().to_str().expect("UTF-8"))];
        if uid != 0 {
            assert_eq!(default_dir(variables(&own), uid), base.path().join("weald"));
        }
    }

    /// Would catch: a server whose socket others can put in its place.
    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let base = tempfile::tempdir().expect("directory");
        let dir = base.path().join("a/b");
        assert!(Place::find(&dir).expect("missing is fine").is_none());
        Place::make(&dir).expect("made");
        let mode = std::fs::metadata(&dir).expect("stat").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o770)).expect("chmod");
        let refused = Place::make(&dir).expect_err("writable by the group");
        assert!(refused.to_string().contains("mode 0770"), "{refused}");
        let file = base.path().join("file");
        std::fs::write(&file, "").expect("write");
        Place::make(&file).expect_err("no directory");
    }

    /// Would catch: a socket of a killed server that keeps the next one away, or a live one that is
    /// cleared away.
    #[test]
    fn dead_sockets_are_replaced_and_live_ones_are_not() {
        for len in [1, 150] {
            let base = tempfile::tempdir().expect("directory");
            let place = Place::make(&base.path().join("x".repeat(len))).expect("made");
            let name = place.shared_name();
            assert!(place.connect(&name).expect("nobody").is_none());
            let bound = place
                .bind(&name, &place.lock().expect("lock"))
                .expect("bind");
            assert!(place.connect(&name).expect("connect").is_some());
            let busy = place.bind(&name, &place.lock().expect("lock"));
            assert_eq!(busy.expect_err("busy").kind(), ErrorKind::Busy);
            let dead = place.alone_name();
            drop(
                place
                    .bind(&dead, &place.lock().expect("lock"))
                    .expect("bind"),
            );
            assert_eq!(place.names().expect("list"), [&*name, &*dead]);
            drop(bound);
            let again = place
                .bind(&name, &place.lock().expect("lock"))
                .expect("replaced");
            assert_eq!(place.names().expect("list"), [again.name]);
        }
    }
}
