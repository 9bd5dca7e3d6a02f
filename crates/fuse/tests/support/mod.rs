//! Shared by the tests of mounts: a live mount that cleans up after itself, a shell, a tree that
//! counts its calls.
#![allow(dead_code)]

pub mod slow;
pub mod stub;

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;
use weald_format::{InodeNo, Result, XattrSet};
use weald_fuse::{Busy, Capacity, Features, Mount, MountOptions, MountPoint, Tree, VisitEntry};
use weald_image::{Inode, Run};
use weald_vfs::WritableFs;

/// A mounted tree with its own directory; drop unmounts the tree and removes the directory.
pub struct Live {
    /// The directory that holds the mount point, for files beside it.
    pub base: TempDir,
    /// The mount point.
    pub dir: PathBuf,
    pub mount: Option<Mount>,
}

impl Live {
    pub fn new<T: Tree>(tree: T, options: &str) -> Self {
        let base = public_dir();
        let dir = base.path().join("mount");
        std::fs::create_dir(&dir).expect("mount point");
        let options = MountOptions::parse([options]).expect("options");
        let mount =
            weald_fuse::mount(tree, OsStr::new("the source"), &dir, &options).expect("mount");
        Self {
            base,
            dir,
            mount: Some(mount),
        }
    }

    /// Mounts a file system that can change.
    pub fn writable(fs: Arc<dyn WritableFs>, options: &str) -> Self {
        let base = public_dir();
        let dir = base.path().join("mount");
        std::fs::create_dir(&dir).expect("mount point");
        let parsed = MountOptions::parse_writable([options], &mut |_| Ok(false));
        let (options, writable) = parsed.expect("options");
        let point = MountPoint::open(&dir).expect("mount point");
        let source = OsStr::new("the volume");
        let mount = weald_fuse::mount_writable(fs, source, &point, &options, &writable, None);
        Self {
            base,
            dir,
            mount: Some(mount.expect("mount")),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs a shell script with the mount point as `$1` and the directory beside it as `$2`.
    pub fn sh(&self, script: &str) -> String {
        sh(script, &[&self.dir, self.base.path()])
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            let _ = mount.unmounter().unmount(Busy::Detach);
            let ended = mount.wait();
            if !std::thread::panicking() {
                ended.expect("session");
            }
        }
    }
}

/// A temporary directory that other users can enter.
pub fn public_dir() -> TempDir {
    let base = tempfile::tempdir().expect("temporary directory");
    std::fs::set_permissions(base.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    base
}

/// Runs a shell script, which must succeed; returns its standard output, then its standard error.
pub fn sh(script: &str, arguments: &[&Path]) -> String {
    let mut command = Command::new("bash");
    let output = command
        .args(["-euc", script, "bash"])
        .args(arguments)
        .env("LC_ALL", "C")
        .output();
    let output = output.expect("bash");
    let text = [output.stdout, output.stderr]
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .concat();
    assert!(output.status.success(), "{script}\n{text}");
    text
}

/// The errno of a failure.
pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result
        .expect_err("must fail")
        .raw_os_error()
        .expect("an errno")
}

/// Timeout of a wait; generous, because a loaded machine is slow.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// Waits until `holds`.
#[track_caller]
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never came: {what}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// A gate that blocks readers while it is closed. Drop opens it, so that a failed test leaves no
/// blocked reader.
#[derive(Default)]
pub struct Door {
    is_closed: parking_lot::Mutex<bool>,
    opened: parking_lot::Condvar,
    waiting: AtomicU64,
}

impl Door {
    pub fn close(&self) {
        *self.is_closed.lock() = true;
    }

    pub fn open(&self) {
        *self.is_closed.lock() = false;
        self.opened.notify_all();
    }

    pub fn pass(&self) {
        let mut is_closed = self.is_closed.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while *is_closed {
            self.opened.wait(&mut is_closed);
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Number of blocked readers.
    pub fn waiting_count(&self) -> u64 {
        self.waiting.load(Ordering::SeqCst)
    }
}

/// Opens a door at the end of a test, even if the test fails.
pub struct Opener(pub Arc<Door>);

impl Drop for Opener {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Hook that runs before each read of a [`Guarded`] tree.
pub type Guard = dyn Fn(&Inode, u64) -> Result<()> + Send + Sync;

/// A tree that calls its guard before every read of content.
pub struct Guarded<T> {
    pub tree: T,
    pub guard: Box<Guard>,
}

/// Forwards and counts every call.
pub struct Counting<T> {
    pub tree: T,
    pub calls: Arc<AtomicU64>,
}

impl<T: Tree> Counting<T> {
    pub fn new(tree: T) -> (Self, Arc<AtomicU64>) {
        let calls = Arc::default();
        (
            Self {
                tree,
                calls: Arc::clone(&calls),
            },
            calls,
        )
    }

    fn counted(&self) -> &T {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &self.tree
    }
}

impl<T: Tree> Tree for Counting<T> {
    type Chunk = T::Chunk;

    fn features(&self) -> Features {
        self.tree.features()
    }

    fn capacity(&self) -> Capacity {
        self.counted().capacity()
    }

    fn inode(&self, ino: InodeNo) -> Result<Inode> {
        self.counted().inode(ino)
    }

    fn parent(&self, ino: InodeNo) -> Result<InodeNo> {
        self.counted().parent(ino)
    }

    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<Inode>> {
        self.counted().lookup(dir, name)
    }

    fn read_dir(&self, dir: InodeNo, start: u64, visit: &mut VisitEntry<'_>) -> Result<()> {
        self.counted().read_dir(dir, start, visit)
    }

    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.counted().read_link(inode)
    }

    fn xattrs(&self, inode: &Inode) -> Result<Arc<XattrSet>> {
        self.counted().xattrs(inode)
    }

    fn read(&self, inode: &Inode, offset: u64, len: usize) -> Result<Vec<T::Chunk>> {
        self.counted().read(inode, offset, len)
    }

    fn runs(
        &self,
        inode: &Inode,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        self.counted().runs(inode, offset, visit)
    }
}

impl<T: Tree> Tree for Guarded<T> {
    type Chunk = T::Chunk;

    fn features(&self) -> Features {
        self.tree.features()
    }

    fn capacity(&self) -> Capacity {
        self.tree.capacity()
    }

    fn inode(&self, ino: InodeNo) -> Result<Inode> {
        self.tree.inode(ino)
    }

    fn parent(&self, ino: InodeNo) -> Result<InodeNo> {
        self.tree.parent(ino)
    }

    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<Inode>> {
        self.tree.lookup(dir, name)
    }

    fn read_dir(&self, dir: InodeNo, start: u64, visit: &mut VisitEntry<'_>) -> Result<()> {
        self.tree.read_dir(dir, start, visit)
    }

    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.tree.read_link(inode)
    }

    fn xattrs(&self, inode: &Inode) -> Result<Arc<XattrSet>> {
        self.tree.xattrs(inode)
    }

    fn read(&self, inode: &Inode, offset: u64, len: usize) -> Result<Vec<T::Chunk>> {
        (self.guard)(inode, offset)?;
        self.tree.read(inode, offset, len)
    }

    fn runs(
        &self,
        inode: &Inode,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        self.tree.runs(inode, offset, visit)
    }
}
