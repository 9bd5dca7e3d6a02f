//! The directory in which the servers of a user are found.
//!
//! Other users are kept out twice. The directory has mode 0700 and its sockets 0600, so that the
//! kernel refuses their connections. Both sides of a connection also compare the other side's user
//! id (`SO_PEERCRED`) with their own, which still holds where somebody loosens a mode later.
//!
//! The directory is opened once, without following a symlink, and checked through its descriptor.
//! Every later name starts at that descriptor: the path may lead elsewhere by then.

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};

/// Permission bits that a directory for servers must not have: any of group and others.
const MODE_OF_OTHERS: u32 = 0o077;

/// How long to wait for another server that is about to begin or to end; it takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause between two attempts at the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// How long a client waits while the queue of a server is full: a server that runs takes
/// connections within milliseconds, a stopped one never.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that wait until the server takes them; more clients wait in connect(2).
const BACKLOG: i32 = 128;

/// The directory for servers, opened and found safe.
#[derive(Debug, Clone)]
pub struct Place {
    dir: Arc<OwnedFd>,
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
    /// Opens the place at `path`, which is made if it is missing, with the directories above it.
    ///
    /// # Errors
    /// `Invalid` where the directory is not ours alone; `Io`.
    pub fn make(path: &Path) -> Result<Self> {
        match Self::find(path)? {
            Some(place) => Ok(place),
            None => {
                let path = plain(path)?;
                Self::checked(make_dirs(&path)?, path)
            }
        }
    }

    /// Opens the place at `path`; `None` where nobody has made it.
    ///
    /// # Errors
    /// As [`Place::make`].
    pub fn find(path: &Path) -> Result<Option<Self>> {
        let path = plain(path)?;
        // Without `DIRECTORY`: a symlink is opened and then named in the message.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(dir) => Self::checked(dir, path).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(told_of(&path, errno)),
        }
    }

    fn checked(dir: OwnedFd, path: PathBuf) -> Result<Self> {
        let stat = rustix::fs::fstat(&dir).map_err(|errno| told_of(&path, errno))?;
        check_dir(&stat, &path)?;
        let place = Self {
            dir: Arc::new(dir),
            path,
            view: view(),
        };
        let own = (stat.st_dev, stat.st_ino);
        match std::fs::metadata(place.way_to("")) {
            Ok(found) if (found.dev(), found.ino()) == own => Ok(place),
            _ => Err(Error::invalid(format!(
                "{}: its sockets are reached through /proc/self/fd; mount /proc first",
                place.path.display()
            ))),
        }
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
        let mut names = self.all_names()?;
        names.retain(|name| is_socket_of(name, &self.view));
        // The shared server ends in "shared", the others in hexadecimal digits: it comes first.
        names.sort_unstable_by_key(|name| (!name.ends_with(".shared"), name.clone()));
        Ok(names)
    }

    /// Everything in the directory whose name is UTF-8, as all our names are.
    pub(crate) fn all_names(&self) -> Result<Vec<String>> {
        let told = |errno| told_of(&self.path, errno);
        let mut names = Vec::new();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.dir, ".", flags, Mode::empty()).map_err(told)?;
        for entry in Dir::new(dir).map_err(told)? {
            let entry = entry.map_err(told)?;
            if let Ok(name) = entry.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Connects to a server of our own user; `None` where there is none.
    ///
    /// # Errors
    /// `Invalid` where the server is another user's; `Busy` where it takes no connections; `Io`.
    pub(crate) fn connect(&self, name: &str) -> Result<Option<UnixStream>> {
        let socket = new_socket(SocketFlags::CLOEXEC).map_err(|errno| self.told(name, errno))?;
        // It also limits connect(2), while the queue of the server is full.
        set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_TIMEOUT))
            .and_then(|()| rustix::net::connect(&socket, &self.address(name)?))
            .map_or_else(
                |errno| match errno {
                    Errno::NOENT | Errno::CONNREFUSED => Ok(None),
                    Errno::AGAIN => Err(self.stopped(name)),
                    errno => Err(self.told(name, errno)),
                },
                |()| {
                    let stream = UnixStream::from(socket);
                    check_peer(&stream).map_err(|e| e.context(self.path.join(name).display()))?;
                    Ok(Some(stream))
                },
            )
    }

    /// Whether a process listens at the socket, even one that takes no connections; never waits.
    fn is_live(&self, name: &str) -> Result<bool> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connected = new_socket(flags)
            .and_then(|socket| rustix::net::connect(&socket, &self.address(name)?));
        match connected {
            Ok(()) | Err(Errno::AGAIN) => Ok(true),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(false),
            Err(errno) => Err(self.told(name, errno)),
        }
    }

    /// Makes the socket `name`; what killed servers have left behind is cleared away.
    ///
    /// # Errors
    /// `Busy` where a server answers under this name; `Io`.
    pub(crate) fn bind(&self, name: &str, _lock: &Lock) -> Result<Bound> {
        for other in self.names()? {
            if !self.is_live(&other)? {
                self.unlink(&other)?;
            } else if other == name {
                return Err(Error::new(ErrorKind::Busy, "a server runs already"));
            }
        }
        self.clear_presences()?;
        let told = |errno| self.told(name, errno);
        let socket = new_socket(SocketFlags::CLOEXEC).map_err(told)?;
        let address = self.address(name).map_err(told)?;
        rustix::net::bind(&socket, &address).map_err(told)?;
        // The umask decides the mode of a new socket. Nobody can connect before listen(2), so that
        // no connection is older than this mode.
        let mode = Mode::RUSR | Mode::WUSR;
        let shown = rustix::fs::chmodat(&self.dir, name, mode, AtFlags::empty())
            .and_then(|()| rustix::net::listen(&socket, BACKLOG));
        if let Err(errno) = shown {
            self.unlink(name)?;
            return Err(told(errno));
        }
        Ok(Bound {
            listener: UnixListener::from(socket),
            name: name.to_owned(),
        })
    }

    /// Takes a socket away, so that nobody finds it any more.
    pub(crate) fn unlink(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.told(name, errno)),
        }
    }

    /// Waits until no other server is about to begin or to end.
    ///
    /// # Errors
    /// `Busy` where that takes too long; `Io`.
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
                Err(errno) => return Err(self.told(&name, errno)),
            }
        }
    }

    /// Opens a file of the directory that is only there to be locked.
    pub(crate) fn open_lock(&self, name: &str, more: OFlags) -> Result<OwnedFd> {
        // Not even a FIFO of this name makes open(2) wait.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | more;
        rustix::fs::openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| {
            match errno {
                Errno::NOENT => Error::not_found(self.path.join(name).display().to_string()),
                errno => self.told(name, errno),
            }
        })
    }

    /// Whether `file` is what the directory has under `name`.
    pub(crate) fn has(&self, name: &str, file: &OwnedFd) -> bool {
        let named = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let same = |a: Stat, b: Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
        named.is_ok_and(|named| rustix::fs::fstat(file).is_ok_and(|file| same(named, file)))
    }

    /// A path that starts at the descriptor of the directory; always short enough for a socket.
    fn way_to(&self, name: &str) -> PathBuf {
        let number = self.dir.as_raw_fd().to_string();
        Path::new("/proc/self/fd").join(number).join(name)
    }

    fn address(&self, name: &str) -> rustix::io::Result<SocketAddrUnix> {
        SocketAddrUnix::new(self.way_to(name))
    }

    fn told(&self, name: &str, errno: Errno) -> Error {
        told_of(&self.path.join(name), errno)
    }

    fn stopped(&self, name: &str) -> Error {
        let text = format!(
            "{}: its server has taken no connection for {} seconds; continue it (SIGCONT) or end \
             it",
            self.path.join(name).display(),
            CONNECT_TIMEOUT.as_secs()
        );
        Error::new(ErrorKind::Busy, text)
    }
}

/// Refuses a connection whose other side runs as another user.
///
/// Not even root is an exception. Root gains nothing by it, as it can become any user; a client of
/// root must not trust a server of somebody else; and so both sides follow one rule.
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

/// The absolute path without a `/` or `/.` at its end, behind which a symlink would be followed.
fn plain(path: &Path) -> Result<PathBuf> {
    let path =
        std::path::absolute(path).map_err(|error| Error::io(path.display().to_string(), error))?;
    Ok(path.components().collect())
}

/// Makes the directory `path`, which is missing, and those above it that are missing too, without
/// following a symlink among them.
fn make_dirs(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut above = path.ancestors().skip(1);
    let (mut at, mut dir) = loop {
        let Some(ancestor) = above.next() else {
            return Err(told_of(path, Errno::NOENT));
        };
        match rustix::fs::open(ancestor, flags, Mode::empty()) {
            Ok(dir) => break (ancestor.to_owned(), dir),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(told_of(ancestor, errno)),
        }
    };
    let missing = path.strip_prefix(&at).unwrap_or(path).to_owned();
    for component in missing.components() {
        let Component::Normal(name) = component else {
            let text = format!("{}: '..' below a missing directory", path.display());
            return Err(Error::invalid(text));
        };
        at.push(name);
        let mode = if at == path { 0o700 } else { 0o755 };
        // The umask takes bits away and adds none.
        match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(told_of(&at, errno)),
        }
        dir = rustix::fs::openat(&dir, name, flags | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|errno| told_of(&at, errno))?;
        let stat = rustix::fs::fstat(&dir).map_err(|errno| told_of(&at, errno))?;
        check_owner(&stat, &at)?;
    }
    Ok(dir)
}

fn check_owner(stat: &Stat, path: &Path) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid == own {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{}: expected a directory of user {own}, found one of user {} with mode {:04o}; set \
         WEALD_RUNTIME_DIR to a directory of your own",
        path.display(),
        stat.st_uid,
        stat.st_mode & 0o7777
    )))
}

/// Refuses what is no directory of ours alone.
fn check_dir(stat: &Stat, path: &Path) -> Result<()> {
    let shown = path.display();
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {}
        FileType::Symlink => {
            return Err(Error::invalid(format!(
                "{shown}: expected a directory for sockets, found a symbolic link of user {}; \
                 remove it, or set WEALD_RUNTIME_DIR to the directory itself",
                stat.st_uid
            )));
        }
        _ => return Err(Error::invalid(format!("{shown}: not a directory"))),
    }
    check_owner(stat, path)?;
    if stat.st_mode & MODE_OF_OTHERS == 0 {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{shown}: mode {:04o} lets other users at the sockets, expected mode 0700; run \
         'chmod 700 {shown}', or set WEALD_RUNTIME_DIR to another directory",
        stat.st_mode & 0o7777
    )))
}

fn told_of(path: &Path, errno: Errno) -> Error {
    Error::io(path.display().to_string(), errno.into())
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

    /// Would catch: a server whose socket others can reach or put another in place of.
    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let base = tempfile::tempdir().expect("directory");
        let dir = base.path().join("a/b");
        assert!(Place::find(&dir).expect("missing is fine").is_none());
        Place::make(&dir).expect("made");
        let mode = std::fs::metadata(&dir).expect("stat").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        for mode in [0o701, 0o710, 0o755, 0o770] {
            std::fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).expect("chmod");
            let refused = Place::make(&dir).expect_err("open to others").to_string();
            let words = [
                format!("mode {mode:04o}"),
                "chmod 700".into(),
                "_DIR".into(),
            ];
            assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
        }
        let file = base.path().join("file");
        std::fs::write(&file, "").expect("write");
        Place::make(&file).expect_err("no directory");
    }

    /// Would catch: a link that leads to a directory of ours now and elsewhere after the check; a
    /// slash behind its name, with which the kernel follows it all the same.
    #[test]
    fn a_symlink_is_no_place_and_none_is_made_through_one() {
        let base = tempfile::tempdir().expect("directory");
        let own = base.path().join("own");
        Place::make(&own).expect("made");
        let link = base.path().join("link");
        std::os::unix::fs::symlink(&own, &link).expect("link");
        for path in [link.clone(), link.join(""), link.join(".")] {
            let refused = Place::find(&path).expect_err("a link").to_string();
            assert!(refused.contains("symbolic link"), "{refused}");
            Place::make(&path).expect_err("a link");
        }
        // Missing at first, a link by the time of mkdir(2): as a dangling one.
        std::os::unix::fs::symlink(base.path().join("away"), base.path().join("gap"))
            .expect("link");
        make_dirs(&base.path().join("gap/run")).expect_err("through a link");
        assert!(!base.path().join("away").exists());
    }

    /// Would catch: a path that is looked up again after its directory was checked.
    #[test]
    fn another_directory_under_the_same_path_changes_nothing() {
        let base = tempfile::tempdir().expect("directory");
        let [path, aside] = ["run", "aside"].map(|name| base.path().join(name));
        let place = Place::make(&path).expect("made");
        std::fs::rename(&path, &aside).expect("moved");
        let planted = Place::make(&path).expect("made");
        let name = place.shared_name();
        let theirs = planted
            .bind(&name, &planted.lock().expect("lock"))
            .expect("bind");
        assert!(place.names().expect("list").is_empty());
        assert!(place.connect(&name).expect("nobody there").is_none());
        let ours = place
            .bind(&name, &place.lock().expect("lock"))
            .expect("bind");
        let [held, planted] = [&aside, &path].map(|dir| {
            let stat = std::fs::symlink_metadata(dir.join(&name)).expect("a socket");
            (stat.ino(), stat.mode() & 0o777)
        });
        assert_ne!(held.0, planted.0);
        assert_eq!((held.1, planted.1), (0o600, 0o600));
        drop((ours, theirs));
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
