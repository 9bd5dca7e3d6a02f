//! The model with a sync that waits, or fails.

use super::Door;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weald_model::ModelFs;
use weald_vfs::{
    AllocateMode, FilePlace, FsCapacity, Ino, Listed, Nanoseconds, NewInode, NewStat, Outcome,
    RenameMode, Stat, WritableFs, XattrMode,
};

/// A model whose sync passes a door.
pub struct Slow {
    pub fs: ModelFs,
    pub door: Arc<Door>,
    pub sync_count: AtomicU64,
    pub is_failing: AtomicBool,
}

impl Slow {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            fs: ModelFs::new(0o755, 0),
            door: Arc::default(),
            sync_count: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
        })
    }
}

macro_rules! forward {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> Outcome<$result> {
            self.fs.$name($($argument),*)
        })*
    };
}

impl WritableFs for Slow {
    forward! {
        fn stat(ino: Ino) -> Stat;
        fn lookup(dir: Ino, name: &[u8]) -> Stat;
        fn parent(dir: Ino) -> Ino;
        fn list(dir: Ino, after: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> ();
        fn set_stat(ino: Ino, new: &NewStat, now: Nanoseconds) -> Stat;
        fn create(dir: Ino, name: &[u8], new: &NewInode<'_>, now: Nanoseconds) -> Stat;
        fn create_unnamed(dir: Ino, new: &NewInode<'_>, now: Nanoseconds) -> Stat;
        fn link(ino: Ino, dir: Ino, name: &[u8], now: Nanoseconds) -> Stat;
        fn unlink(dir: Ino, name: &[u8], now: Nanoseconds) -> Stat;
        fn rmdir(dir: Ino, name: &[u8], now: Nanoseconds) -> Stat;
        fn rename(from: (Ino, &[u8]), to: (Ino, &[u8]), mode: RenameMode, now: Nanoseconds)
            -> Option<Stat>;
        fn forget(ino: Ino) -> ();
        fn read_link(ino: Ino) -> Vec<u8>;
        fn read(ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> ();
        fn write(ino: Ino, offset: u64, bytes: &[u8], now: Nanoseconds) -> ();
        fn allocate(ino: Ino, mode: AllocateMode, offset: u64, len: u64, now: Nanoseconds) -> ();
        fn copy_range(from: FilePlace, to: FilePlace, len: u64, now: Nanoseconds) -> u64;
        fn seek(ino: Ino, offset: u64, wants_hole: bool) -> u64;
        fn xattr(ino: Ino, name: &[u8]) -> Vec<u8>;
        fn xattr_names(ino: Ino) -> Vec<Vec<u8>>;
        fn set_xattr(ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, now: Nanoseconds) -> ();
        fn remove_xattr(ino: Ino, name: &[u8], now: Nanoseconds) -> ();
        fn capacity() -> FsCapacity;
    }

    fn sync(&self) -> Outcome<()> {
        self.door.pass();
        self.sync_count.fetch_add(1, Ordering::SeqCst);
        if self.is_failing.load(Ordering::SeqCst) {
            Err(Errno::IO.into())
        } else {
            Ok(())
        }
    }
}
