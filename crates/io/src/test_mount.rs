//! A small file system for tests, which fills up.

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::path::Path;

/// A tmpfs on a temporary directory, unmounted when dropped. Needs root, as the whole test suite
/// does.
pub struct SmallFs(tempfile::TempDir);

impl SmallFs {
    /// A tmpfs that holds `len` bytes.
    pub fn new(len: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = std::ffi::CString::new(format!("size={len}")).unwrap();
        mount(
            "tmpfs",
            dir.path(),
            "tmpfs",
            MountFlags::empty(),
            options.as_c_str(),
        )
        .expect("mounting needs root");
        Self(dir)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallFs {
    fn drop(&mut self) {
        let unmounted = unmount(self.0.path(), UnmountFlags::DETACH);
        assert!(unmounted.is_ok() || std::thread::panicking());
    }
}
