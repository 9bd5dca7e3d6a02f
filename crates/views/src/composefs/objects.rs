//! The objects of a composefs image: one file for each distinct content, named by its fs-verity
//! digest. Threads read, hash and write them. Files without names collect until one sync covers all
//! of them; then they get their names. So an object with a name is always complete.

use super::bits::Bits;
use super::options::{ImageOptions, ObjectPlace, VerityPolicy, Written, object_name};
use crate::spill::Spill;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weald_codec::{FSVERITY_DIGEST_LEN as DIGEST_LEN, FsVerity};
use weald_format::{
    Attributes, ByteLen, ContentId, EntryIndex, Error, ErrorKind, FileKind, InodeNo, Result, Times,
};
use weald_image::{Image, Inode};
use weald_vfs::{ContentPart, each_part, parallel};

/// Bytes of digests in memory before they go to a file.
const DIGEST_LIST_LEN: usize = 8 << 20;

/// Files that wait for their names at once. Each holds a descriptor.
const WAITING_COUNT_MAX: usize = 128;

/// Bytes that wait for their names at once.
const WAITING_LEN_MAX: u64 = 256 << 20;

/// Permissions of an object. They ignore the umask, because other users read the mount.
const OBJECT_MODE: u16 = 0o644;

/// Permissions of the directories of objects.
const OBJECT_DIR_MODE: u16 = 0o755;

/// `mode`, or what is left of it for the owner if new files are private: the kernel reads objects
/// with the rights of whom has mounted the image.
fn allowed(mode: u16) -> u16 {
    if weald_io::are_new_files_private() {
        mode & 0o700
    } else {
        mode
    }
}

/// Hexadecimal digits of the digests of the other algorithm of fs-verity, behind the first two.
const SHA512_NAME_LEN: usize = 126;

/// Reads the contents `contents` of `image`; returns their digests, in ascending order of contents.
/// Writes those objects that the directory of objects does not have.
pub(super) fn write_objects(
    image: &Image,
    contents: &Bits,
    options: &ImageOptions<'_>,
) -> Result<(Spill, Written)> {
    let mut list = Spill::new(DIGEST_LIST_LEN, options.temp_dir.to_owned());
    let mut written = Written::default();
    let dir = match options.objects {
        Some(place) => Some(ObjectDir::open(place, options.verity)?),
        None => None,
    };
    let worker = Worker {
        image,
        dir: dir.as_ref(),
        has_right_digests: options.objects.is_some_and(|place| place.has_right_digests),
        new_len_max: options.objects.map_or(u64::MAX, |place| place.new_len_max),
        new_len: AtomicU64::new(0),
        is_cancelled: options.is_cancelled,
        is_stopped: AtomicBool::new(false),
    };
    let mut naming = dir.as_ref().map(Naming::new);
    let mut failure = None;
    let mut ids = contents.iter();
    parallel::ordered(
        options.thread_count,
        || ids.next(),
        |id| {
            let made = worker.make(ContentId(id));
            made.map_err(|error| match error.kind() {
                ErrorKind::Corrupt => {
                    error.context(format!("content {id}, whose files 'weald check' names"))
                }
                // The error names an object or a file of the image already.
                _ => error,
            })
        },
        |made| {
            let taken = made.and_then(|made| {
                list.append(&made.digest)?;
                written.object_count += 1;
                written.object_len += made.len;
                match &mut naming {
                    Some(naming) => naming.take(made, &mut written),
                    None => Ok(()),
                }
            });
            let Err(error) = taken else {
                return ControlFlow::Continue(());
            };
            worker.is_stopped.store(true, Ordering::Relaxed);
            failure = Some(error);
            ControlFlow::Break(())
        },
    );
    if let Some(error) = failure {
        return Err(error);
    }
    if let Some(naming) = naming {
        naming.finish(&mut written)?;
    }
    written.is_protected = dir.as_ref().is_some_and(|dir| dir.verity.is_protected());
    Ok((list, written))
}

/// A directory of objects.
struct ObjectDir {
    fd: OwnedFd,
    shown: String,
    verity: Verity,
}

/// Protection of objects.
struct Verity {
    policy: VerityPolicy,
    /// Whether the file system refused it.
    is_missing: AtomicBool,
}

impl Verity {
    fn is_protected(&self) -> bool {
        self.policy != VerityPolicy::Off && !self.is_missing.load(Ordering::Relaxed)
    }

    /// Protects an object, which nobody has open for writing.
    fn protect(&self, file: &File, shown: &str) -> Result<()> {
        if !self.is_protected() {
            return Ok(());
        }
        match weald_sys::enable_verity(file) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(_) if self.policy == VerityPolicy::Try => {
                self.is_missing.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) if weald_sys::is_without_verity(&error) => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{shown}: the file system or the kernel has no fs-verity: use ext4 with the \
                     feature verity, or btrfs, or give --verity try"
                ),
            )),
            Err(error) => Err(Error::io(format!("{shown}: enabling fs-verity"), error)),
        }
    }
}

impl ObjectDir {
    fn open(place: ObjectPlace<'_>, policy: VerityPolicy) -> Result<Self> {
        let shown = place.path.display().to_string();
        let failed = |error| Error::io(shown.clone(), error);
        let fd = match place.dir {
            Some(dir) => dir.try_clone_to_owned().map_err(failed)?,
            None => {
                let (fd, is_new) = weald_io::open_or_make_dir(place.path)?;
                if is_new {
                    weald_sys::chmod_fd(&fd, allowed(OBJECT_DIR_MODE)).map_err(failed)?;
                }
                refuse_other_algorithm(place.path)?;
                fd
            }
        };
        Ok(Self {
            fd,
            shown,
            verity: Verity {
                policy,
                is_missing: AtomicBool::new(false),
            },
        })
    }

    fn error(&self, name: &str, error: io::Error) -> Error {
        Error::io(format!("{}/{name}", self.shown), error)
    }

    /// Whether the object is there. One of another length is an error.
    fn has(&self, name: &str, len: u64) -> Result<bool> {
        let stat = match weald_sys::stat_at(&self.fd, name.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other.map_err(|error| self.error(name, error))?,
        };
        let (kind, found) = (stat.kind, stat.size);
        match (kind, found == len) {
            (FileKind::Regular, true) => Ok(true),
            (FileKind::Regular, false) => Err(Error::invalid(format!(
                "{}/{name}: has {found} bytes, and the content with this digest has {len}: the \
                 object is damaged; remove it",
                self.shown
            ))),
            _ => Err(Error::invalid(format!(
                "{}/{name}: is no regular file: the directory has something else than objects; \
                 give another --objects",
                self.shown
            ))),
        }
    }

    /// Protects an object that was there before, and compares the digest that the kernel then has.
    fn protect(&self, name: &str, digest: &[u8; DIGEST_LEN]) -> Result<()> {
        if !self.verity.is_protected() {
            return Ok(());
        }
        let failed = |error| self.error(name, error);
        let file = weald_sys::open_file_at(&self.fd, name.as_bytes()).map_err(failed)?;
        self.verity
            .protect(&file, &format!("{}/{name}", self.shown))?;
        if !self.verity.is_protected() {
            return Ok(());
        }
        let found = weald_sys::measure_verity(&file).map_err(failed)?;
        if found == *digest {
            Ok(())
        } else {
            Err(Error::invalid(format!(
                "{}/{name}: has other bytes than the content with this digest: the object is \
             damaged; remove it",
                self.shown
            )))
        }
    }

    /// The directory of an object.
    fn sub_dir(&self, name: &str) -> Result<(OwnedFd, Vec<u8>)> {
        let (dir, file) = name.split_once('/').unwrap_or((".", name));
        let mode = allowed(OBJECT_DIR_MODE);
        let opened = match weald_sys::make_dir_at(&self.fd, dir.as_bytes(), mode) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => weald_sys::open_dir_at(&self.fd, dir.as_bytes()),
        };
        let opened = opened.map_err(|error| self.error(dir, error))?;
        Ok((opened, file.as_bytes().to_vec()))
    }

    fn sync(&self) -> Result<()> {
        let synced = rustix::fs::syncfs(&self.fd);
        synced.map_err(|error| Error::io(self.shown.clone(), error.into()))
    }
}

/// Refuses a directory whose objects are named by SHA-512.
fn refuse_other_algorithm(path: &Path) -> Result<()> {
    let failed = |error| Error::io(path.display().to_string(), error);
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name().len() != 2 || !entry.path().is_dir() {
            continue;
        }
        let mut names = std::fs::read_dir(entry.path()).map_err(failed)?;
        let Some(Ok(first)) = names.next() else {
            continue;
        };
        let name = first.file_name();
        let is_hex = name.as_bytes().iter().all(u8::is_ascii_hexdigit);
        if is_hex && name.len() == SHA512_NAME_LEN {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{}: has objects that are named by SHA-512, and weald names them by SHA-256: \
                     give another directory",
                    path.display()
                ),
            ));
        }
        return Ok(());
    }
    Ok(())
}

/// A file with the bytes of an object, without its name.
struct Unnamed {
    file: File,
    /// Its hidden name in the directory, if the file system has no files without names.
    hidden: Option<Vec<u8>>,
}

/// A content that was read.
struct Made {
    digest: [u8; DIGEST_LEN],
    len: u64,
    /// The object, if the directory did not have it.
    object: Option<Unnamed>,
}

/// Reads contents; shared by the threads.
struct Worker<'a> {
    image: &'a Image,
    dir: Option<&'a ObjectDir>,
    has_right_digests: bool,
    new_len_max: u64,
    /// Bytes that were written to new objects.
    new_len: AtomicU64,
    is_cancelled: &'a (dyn Fn() -> bool + Sync),
    is_stopped: AtomicBool,
}

impl Worker<'_> {
    fn make(&self, content: ContentId) -> Result<Made> {
        let len = self.image.content_len(content)?;
        let kept = self.image.kept_fsverity_of(content)?;
        let is_made = match kept {
            Some(digest) => self.is_made(&digest, len)?,
            None => false,
        };
        if let (true, true, Some(digest)) = (is_made, self.has_right_digests, kept) {
            return Ok(Made {
                digest,
                len,
                object: None,
            });
        }
        let inode = inode_of(content, len);
        // The content is read in any case: only its bytes tell that it is the object.
        let mut object = match self.dir {
            Some(dir) if !is_made => Some(create(dir)?),
            _ => None,
        };
        let read = self.read(&inode, object.as_ref());
        let digest = match (read, self.dir) {
            // An image of somebody else must not name an object by a wrong digest.
            (Ok(digest), dir) if kept.is_some_and(|kept| kept != digest) => {
                discard(dir, object);
                let what = "the content has another fs-verity digest than the image keeps";
                return Err(Error::corrupt(
                    "fsverity page",
                    0,
                    "F-28.3",
                    what.to_owned(),
                ));
            }
            (Ok(digest), _) => digest,
            (Err(error), dir) => {
                discard(dir, object);
                return Err(error);
            }
        };
        if let (Some(dir), Some(made)) = (self.dir, object.take()) {
            let name = object_name(&digest);
            object = match dir.has(&name, len) {
                Ok(false) => Some(made),
                other => {
                    discard(Some(dir), Some(made));
                    if other? {
                        dir.protect(&name, &digest)?;
                    }
                    None
                }
            };
        }
        Ok(Made {
            digest,
            len,
            object,
        })
    }

    /// Whether the directory has the object of a kept digest.
    fn is_made(&self, digest: &[u8; DIGEST_LEN], len: u64) -> Result<bool> {
        let Some(dir) = self.dir else {
            return Ok(false);
        };
        let name = object_name(digest);
        // An object of another length is damaged, or the kept digest is wrong: the content tells.
        let is_made = matches!(dir.has(&name, len), Ok(true));
        if is_made {
            dir.protect(&name, digest)?;
        }
        Ok(is_made)
    }

    /// Counts bytes of a new object.
    fn count_new(&self, len: usize) -> Result<()> {
        let before = self.new_len.fetch_add(len as u64, Ordering::Relaxed);
        if before.saturating_add(len as u64) > self.new_len_max {
            Err(Error::limit(format!(
                "the view needs more than the {} bytes that are left of the limit of the cache",
                self.new_len_max
            )))
        } else {
            Ok(())
        }
    }

    /// Reads a content, writes it to `object`, and returns its digest.
    fn read(&self, inode: &Inode, object: Option<&Unnamed>) -> Result<[u8; DIGEST_LEN]> {
        let mut verity = FsVerity::new();
        let mut failure = None;
        each_part(self.image, inode, &mut |part| {
            if self.is_stopped.load(Ordering::Relaxed) || (self.is_cancelled)() {
                failure = Some(Error::invalid("interrupted"));
                return ControlFlow::Break(());
            }
            let offset = verity.len();
            let bytes = match part {
                ContentPart::Hole(len) => {
                    verity.update_zeros(len);
                    return ControlFlow::Continue(());
                }
                ContentPart::Data(bytes) => bytes,
            };
            verity.update(bytes);
            let written = match object {
                Some(object) => self.write(object, bytes, offset),
                None => Ok(()),
            };
            if let Err(error) = written {
                failure = Some(error);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        if verity.len() != inode.size.0 {
            let what = format!("a content has {} bytes, not {}", verity.len(), inode.size);
            return Err(Error::invalid(what));
        }
        if let Some(object) = object {
            let cut = object.file.set_len(verity.len());
            cut.map_err(|error| Error::io(self.shown(), error))?;
        }
        Ok(verity.finish())
    }

    fn write(&self, object: &Unnamed, bytes: &[u8], offset: u64) -> Result<()> {
        self.count_new(bytes.len())?;
        let written = object.file.write_all_at(bytes, offset);
        written.map_err(|error| Error::io(self.shown(), error))
    }

    fn shown(&self) -> String {
        self.dir.map(|dir| dir.shown.clone()).unwrap_or_default()
    }
}

/// A file of the directory's file system, without its name.
fn create(dir: &ObjectDir) -> Result<Unnamed> {
    let failed = |error| Error::io(dir.shown.clone(), error);
    let mode = allowed(OBJECT_MODE);
    let made = match weald_sys::create_unnamed_at(&dir.fd, mode) {
        Ok(file) => Unnamed { file, hidden: None },
        Err(_) => {
            let made = weald_io::with_hidden_name(b"object", |name| {
                weald_sys::create_file_at(&dir.fd, name, mode)
            });
            let (file, name) = made.map_err(failed)?;
            let hidden = Some(name);
            Unnamed { file, hidden }
        }
    };
    if weald_io::are_new_files_private() {
        weald_io::remove_acl(&made.file).map_err(failed)?;
    }
    weald_sys::chmod_fd(&made.file, mode).map_err(failed)?;
    Ok(made)
}

/// Removes a file that gets no name.
fn discard(dir: Option<&ObjectDir>, object: Option<Unnamed>) {
    if let (Some(dir), Some(hidden)) = (dir, object.and_then(|object| object.hidden)) {
        // A file that cannot be removed is a hidden file too many, which harms nobody.
        let _ = weald_sys::remove_file_at(&dir.fd, &hidden);
    }
}

/// A content as a file, to be read.
fn inode_of(content: ContentId, len: u64) -> Inode {
    Inode {
        ino: InodeNo(0),
        name_no: InodeNo(0),
        kind: FileKind::Regular,
        attributes: Attributes::default(),
        nlink: 1,
        size: ByteLen(len),
        times: Times::default(),
        xattr_set: None,
        content: Some(content),
        template: None,
        entry: EntryIndex(0),
    }
}

/// Gives objects their names, many after one sync.
struct Naming<'a> {
    dir: &'a ObjectDir,
    waiting: Vec<(String, u64, Unnamed)>,
    waiting_len: u64,
}

impl<'a> Naming<'a> {
    fn new(dir: &'a ObjectDir) -> Self {
        Self {
            dir,
            waiting: Vec::new(),
            waiting_len: 0,
        }
    }

    fn take(&mut self, made: Made, written: &mut Written) -> Result<()> {
        let name = object_name(&made.digest);
        let Some(object) = made.object else {
            return self.protect_old(&name);
        };
        self.waiting_len += made.len;
        self.waiting.push((name, made.len, object));
        let is_full = self.waiting.len() >= WAITING_COUNT_MAX;
        if is_full || self.waiting_len >= WAITING_LEN_MAX {
            self.name_all(written)
        } else {
            Ok(())
        }
    }

    /// Protects an object that was there.
    fn protect_old(&self, name: &str) -> Result<()> {
        if !self.dir.verity.is_protected() {
            return Ok(());
        }
        let opened = weald_sys::open_file_at(&self.dir.fd, name.as_bytes());
        let file = opened.map_err(|error| self.dir.error(name, error))?;
        let shown = format!("{}/{name}", self.dir.shown);
        self.dir.verity.protect(&file, &shown)
    }

    fn name_all(&mut self, written: &mut Written) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.dir.sync()?;
        for (name, len, object) in std::mem::take(&mut self.waiting) {
            if self.name(&name, object)? {
                written.new_object_count += 1;
                written.new_object_len += len;
            }
        }
        self.waiting_len = 0;
        Ok(())
    }

    /// Gives an object its name; returns whether nobody else has done so.
    fn name(&self, name: &str, object: Unnamed) -> Result<bool> {
        let (sub_dir, file_name) = self.dir.sub_dir(name)?;
        let failed = |error| self.dir.error(name, error);
        let shown = format!("{}/{name}", self.dir.shown);
        // fs-verity needs a file that nobody has open for writing.
        let path = format!("/proc/self/fd/{}", object.file.as_fd().as_raw_fd());
        let readable = File::open(path).map_err(failed)?;
        drop(object.file);
        self.dir.verity.protect(&readable, &shown)?;
        let linked = match &object.hidden {
            None => weald_sys::link_unnamed_at(&readable, &sub_dir, &file_name),
            Some(hidden) => {
                weald_sys::rename_new_at(&self.dir.fd, hidden, &sub_dir, &file_name).map(|_| ())
            }
        };
        match linked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let hidden = object.hidden.map(|name| (&self.dir.fd, name));
                if let Some((dir, hidden)) = hidden {
                    weald_sys::remove_file_at(dir, &hidden).map_err(failed)?;
                }
                Ok(false)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Names the last objects and makes all names durable.
    fn finish(mut self, written: &mut Written) -> Result<()> {
        self.name_all(written)?;
        if written.new_object_count > 0 {
            self.dir.sync()
        } else {
            Ok(())
        }
    }
}

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        for (_, _, object) in std::mem::take(&mut self.waiting) {
            discard(Some(self.dir), Some(object));
        }
    }
}
