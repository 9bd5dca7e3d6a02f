//! The cache on disk: copies of chunks, shared by the processes of a user, bounded, and safe to
//! delete at any time.
//!
//! ```text
//! DIR/                 mode 0700, of this user: nobody else can put a file there
//!   usage              bytes of all copies; who locks it may change it
//!   IMAGE DIGEST/NO    one chunk: a digest, then its bytes
//!   IMAGE DIGEST/.PID.N    a chunk that is being written
//! ```
//!
//! A copy gets its name when it is complete. Nothing is synced: a copy whose digest does not fit is
//! removed and counts as absent, whatever happened to it. A copy is counted before it is written,
//! so that the limit holds at any moment; the count is made anew from the files when it reaches the
//! limit, and the copies that were used longest ago go. Every failure of the cache means that there
//! is no copy, and none is an error of a reader.

use crate::settings::CacheSettings;
use bytes::Bytes;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use weald_format::{Digest, Error, Result};

/// File with the count.
const USAGE: &str = "usage";
/// Bytes of the digest before the bytes of a chunk.
const DIGEST_LEN: usize = 32;
/// Attempts to lock the count, and the pause between them; then the copy is not kept.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// Age at which a file that is being written counts as left behind by a killed process.
const LEFT_BEHIND: Duration = Duration::from_secs(600);
/// How exact the time of the last use is: a read changes it no more often.
const USED_STEP: Duration = Duration::from_secs(10);

/// The copies of the chunks of one image.
pub struct ImageCache {
    dir: PathBuf,
    len_max: u64,
    image: Digest,
}

/// A file of the cache.
struct Copy {
    image: String,
    name: String,
    len: u64,
    used: SystemTime,
}

impl ImageCache {
    /// The copies for the image with digest `image`. Makes the directory.
    ///
    /// # Errors
    /// `Invalid` for a directory of another user, or to which others have access; `Io`.
    pub fn open(settings: &CacheSettings, image: Digest) -> Result<Self> {
        let cache = Self {
            dir: settings.dir.clone(),
            len_max: settings.len_max.0,
            image,
        };
        let failed = |error| Error::io(format!("{}: the cache", cache.dir.display()), error);
        if cache.root()?.is_none() {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(&cache.dir).map_err(failed)?;
            cache.root()?;
        }
        Ok(cache)
    }

    /// The directory, or `None` if it does not exist.
    fn root(&self) -> Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = match rustix::fs::open(&self.dir, flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => {
                let what = format!("{}: the cache", self.dir.display());
                return Err(Error::io(what, error.into()));
            }
        };
        let stat = rustix::fs::fstat(&opened)
            .map_err(|error| Error::io(self.dir.display().to_string(), error.into()))?;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
        if is_ours && stat.st_mode & 0o077 == 0 {
            return Ok(Some(opened));
        }
        let what = format!(
            "{}: a cache for URLs is a directory of its user, closed to others: 'chmod 700' it, or \
             name another one",
            self.dir.display()
        );
        Err(Error::invalid(what))
    }

    /// The directory of the image's copies.
    fn image_dir(&self) -> Option<OwnedFd> {
        open_dir(&self.root().ok()??, &self.image.to_string())
    }

    /// The bytes of chunk `no`, which has `len`, if there is a copy that is whole.
    pub fn read(&self, no: u64, len: usize) -> Option<Bytes> {
        let dir = self.image_dir()?;
        let name = name_of(no);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut file = File::from(rustix::fs::openat(&dir, &name, flags, Mode::empty()).ok()?);
        let metadata = file.metadata().ok()?;
        let whole = len.saturating_add(DIGEST_LEN);
        let mut bytes = vec![0; whole];
        let is_whole = metadata.is_file()
            && metadata.len() == whole as u64
            && file.read_exact(&mut bytes).is_ok();
        let mut bytes = Bytes::from(bytes);
        let digest = bytes.split_to(DIGEST_LEN);
        if !is_whole || *digest != self.digest(no, &bytes) {
            log::warn!(
                "{}: a damaged copy in the cache is fetched again",
                self.dir.display()
            );
            let _ = rustix::fs::unlinkat(&dir, &name, AtFlags::empty());
            return None;
        }
        let age = metadata
            .modified()
            .ok()
            .and_then(|used| used.elapsed().ok());
        if age.is_some_and(|age| age > USED_STEP) {
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: rustix::fs::UTIME_NOW,
            };
            let times = Timestamps {
                last_access: now,
                last_modification: now,
            };
            let _ = rustix::fs::futimens(&file, &times);
        }
        Some(bytes)
    }

    /// Keeps a copy of chunk `no` if there is room.
    pub fn write(&self, no: u64, bytes: &[u8]) {
        if let Err(error) = self.try_write(no, bytes) {
            log::info!("{}: no copy is kept: {error}", self.dir.display());
        }
    }

    fn try_write(&self, no: u64, bytes: &[u8]) -> std::io::Result<()> {
        let gone = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let root = self
            .root()
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        let root = root.ok_or_else(gone)?;
        // Before the directory is made: whoever makes room removes empty ones.
        if !self.admit(&root, bytes.len().saturating_add(DIGEST_LEN) as u64)? {
            return Ok(());
        }
        let image = self.image.to_string();
        match rustix::fs::mkdirat(&root, &image, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let dir = open_dir(&root, &image).ok_or_else(gone)?;
        let hidden = hidden_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&dir, &hidden, flags | OFlags::NOFOLLOW, mode)?;
        let mut file = File::from(file);
        let written = file
            .write_all(&self.digest(no, bytes))
            .and_then(|()| file.write_all(bytes))
            .and_then(|()| Ok(rustix::fs::renameat(&dir, &hidden, &dir, name_of(no))?));
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&dir, &hidden, AtFlags::empty());
        }
        written
    }

    /// Removes the copy of chunk `no`.
    pub fn remove(&self, no: u64) {
        if let Some(dir) = self.image_dir() {
            let _ = rustix::fs::unlinkat(&dir, name_of(no), AtFlags::empty());
        }
    }

    /// Digest of a chunk in its place: a copy that was moved does not fit.
    fn digest(&self, no: u64, bytes: &[u8]) -> [u8; DIGEST_LEN] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.image.0);
        hasher.update(&no.to_le_bytes());
        hasher.update(bytes);
        hasher.finalize().into()
    }

    /// Counts `len` more bytes; returns whether they are within the limit.
    fn admit(&self, root: &OwnedFd, len: u64) -> std::io::Result<bool> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let usage = File::from(rustix::fs::openat(root, USAGE, flags, mode)?);
        if !lock(&usage) {
            return Ok(false);
        }
        let mut counted = [0; 8];
        let total = match usage.read_exact_at(&mut counted, 0) {
            Ok(()) => u64::from_le_bytes(counted),
            Err(_) => u64::MAX,
        };
        let mut total = total.saturating_add(len);
        if total > self.len_max {
            total = self.make_room(root, len).saturating_add(len);
        }
        let fits = total <= self.len_max;
        let total = if fits {
            total
        } else {
            total.saturating_sub(len)
        };
        usage.write_all_at(&total.to_le_bytes(), 0)?;
        Ok(fits)
    }

    /// Removes the copies that were used longest ago until an eighth of the limit and `len` bytes
    /// are free. Returns the bytes of the others.
    fn make_room(&self, root: &OwnedFd, len: u64) -> u64 {
        let mut copies = copies(root);
        copies.sort_by_key(|copy| copy.used);
        let mut total: u64 = copies.iter().map(|copy| copy.len).sum();
        let room = (self.len_max / 8).max(len);
        let goal = self.len_max.saturating_sub(room);
        for copy in copies {
            let is_written = copy.name.starts_with('.');
            let is_left = copy.used.elapsed().is_ok_and(|age| age > LEFT_BEHIND);
            let goes = if is_written { is_left } else { total > goal };
            let dir = open_dir(root, &copy.image).filter(|_| goes);
            let removed = dir.map(|dir| rustix::fs::unlinkat(&dir, &copy.name, AtFlags::empty()));
            if removed.is_some_and(|removed| removed.is_ok()) {
                total = total.saturating_sub(copy.len);
            }
        }
        total
    }
}

/// A name that no other thread or process uses.
fn hidden_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".{}.{next:x}", std::process::id())
}

fn name_of(no: u64) -> String {
    format!("{no:x}")
}

fn lock(file: &File) -> bool {
    for _ in 0..LOCK_ATTEMPTS {
        if rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return true;
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    false
}

fn open_dir(root: &OwnedFd, name: &str) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(root, name, flags, Mode::empty()).ok()
}

/// All copies of the cache in `root`. Removes directories of images without copies.
fn copies(root: &OwnedFd) -> Vec<Copy> {
    let mut found = Vec::new();
    for image in names(root.as_fd()) {
        let Some(dir) = open_dir(root, &image) else {
            continue;
        };
        let before = found.len();
        for name in names(dir.as_fd()) {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let Ok(stat) = rustix::fs::statat(&dir, &name, flags) else {
                continue;
            };
            let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
            let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
            let used = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
            let len = u64::try_from(stat.st_size).unwrap_or(0);
            let image = image.clone();
            found.push(Copy {
                image,
                name,
                len,
                used,
            });
        }
        if found.len() == before {
            let _ = rustix::fs::unlinkat(root, &image, AtFlags::REMOVEDIR);
        }
    }
    found
}

/// The names in a directory.
fn names(dir: std::os::fd::BorrowedFd<'_>) -> Vec<String> {
    let entries = Dir::read_from(dir).into_iter().flatten().flatten();
    let is_known = |kind| matches!(kind, FileType::Directory | FileType::RegularFile);
    let entries = entries.filter(|entry| is_known(entry.file_type()));
    let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    names.filter(|name| name != "." && name != "..").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use weald_format::ByteLen;

    fn cache(dir: &Path, len_max: u64, image: &str) -> Result<ImageCache> {
        let settings = CacheSettings {
            dir: dir.to_owned(),
            len_max: ByteLen(len_max),
        };
        ImageCache::open(&settings, Digest::of(image.as_bytes()))
    }

    fn used(dir: &Path) -> u64 {
        let images = std::fs::read_dir(dir).expect("cache").flatten();
        let files = images.filter_map(|image| std::fs::read_dir(image.path()).ok());
        let files = files.flatten().flatten();
        files.map(|file| file.metadata().expect("stat").len()).sum()
    }

    /// Would catch: copies of one image for another, or of one chunk for another; a copy that was
    /// changed, cut or moved and counts all the same.
    #[test]
    fn only_what_was_written_comes_back() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let dir = scratch.path().join("a/b");
        let ours = cache(&dir, 1 << 20, "image").expect("cache");
        let other = cache(&dir, 1 << 20, "other").expect("cache");
        ours.write(1, b"bytes");
        assert_eq!(ours.read(1, 5).as_deref(), Some(&b"bytes"[..]));
        assert_eq!((ours.read(2, 5), other.read(1, 5)), (None, None));
        let image = dir.join(Digest::of(b"image").to_string());
        for at in [0, 31, 32, 36] {
            ours.write(1, b"bytes");
            let path = image.join("1");
            let mut bytes = std::fs::read(&path).expect("read");
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).expect("write");
            assert_eq!(ours.read(1, 5), None, "byte {at}");
            assert!(!path.exists(), "a damaged copy goes");
        }
        ours.write(1, b"bytes");
        std::fs::rename(image.join("1"), image.join("2")).expect("rename");
        assert_eq!(ours.read(2, 5), None, "another place");
        ours.write(1, b"bytes");
        std::fs::remove_dir_all(&dir).expect("remove");
        assert_eq!(ours.read(1, 5), None);
        ours.write(1, b"bytes");
        drop(cache(&dir, 1 << 20, "image").expect("made again"));
        ours.write(1, b"bytes");
        assert!(ours.read(1, 5).is_some());
    }

    /// Would catch: a cache that grows beyond its limit, also with a lost or wrong count and with
    /// files of a killed process; one that removes what was used last.
    #[test]
    fn the_limit_holds() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let (dir, limit) = (scratch.path().join("c"), 100_000);
        let chunk = vec![7; 10_000];
        let caches = ["x", "y"].map(|image| cache(&dir, limit, image).expect("cache"));
        for no in 0..100 {
            caches[(no % 2) as usize].write(no, &chunk);
            assert!(used(&dir) <= limit, "{} bytes", used(&dir));
            match no {
                50 => std::fs::remove_file(dir.join(USAGE)).expect("remove"),
                60 => std::fs::write(dir.join(USAGE), [0; 3]).expect("write"),
                _ => {}
            }
        }
        assert!(caches[1].read(99, chunk.len()).is_some(), "the last one");
        assert!(used(&dir) > limit / 2);
        caches[0].write(0, &vec![0; 200_000]);
        assert!(used(&dir) <= limit, "a chunk above the limit");
    }

    /// Would catch: a cache in a directory where others can put files.
    #[test]
    fn directories_of_others_are_refused() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let dir = scratch.path().join("c");
        std::fs::create_dir(&dir).expect("mkdir");
        for mode in [0o755, 0o770, 0o701] {
            std::fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).expect("chmod");
            assert!(cache(&dir, 1 << 20, "x").is_err(), "{mode:o}");
        }
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).expect("chmod");
        assert!(cache(&dir, 1 << 20, "x").is_ok());
        std::os::unix::fs::symlink(&dir, scratch.path().join("link")).expect("symlink");
        assert!(cache(&scratch.path().join("link"), 1 << 20, "x").is_err());
    }
}
