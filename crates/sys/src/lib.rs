//! System calls that `std` does not offer: raw directory reading, statx, xattrs without following
//! symlinks, holes, special files, file handles, all relative to an open directory. Also one call
//! each of zlib and Zstandard that no safe wrapper offers, and an allocator that asks for large
//! pages.
//!
//! Neighbours: `format` provides plain values (kinds, times); `io`, `builder`, `export` and
//! `testkit` call this crate.
//!
//! Invariants:
//! 1. No function follows a symlink in the last component of a name unless its doc comment says so.
//! 2. Names are bytes without NUL. A name with a NUL is refused with `EINVAL`.
//! 3. Errors are `std::io::Error` with the raw errno. Only the caller knows the path and the errno
//!    that it expects, so the caller makes the [`weald_format::Error`].
//! 4. Attributes of inodes that cannot be opened (symlinks, devices, sockets) are accessed through
//!    `/proc/self/fd`, so `/proc` must be mounted.
//! 5. Where fakeroot or pseudo is loaded, owners, modes, kinds, devices and xattrs are what it
//!    pretends (`faked.rs`).
//!
//! All code here is for Linux, except that for zlib, Zstandard, the heap, the allocator and the
//! cache. On other systems the rest is empty until somebody ports it.
//!
//! ```
//! # #[cfg(target_os = "linux")]
//! # fn main() -> std::io::Result<()> {
//! let file = std::fs::File::open("/proc/self/exe")?;
//! assert_eq!(weald_sys::stat_fd(&file)?.size, file.metadata()?.len());
//! # Ok(())
//! # }
//! # #[cfg(not(target_os = "linux"))]
//! # fn main() {}
//! ```

#[cfg(target_os = "linux")]
mod clock;
#[cfg(target_os = "linux")]
mod descriptors;
#[cfg(target_os = "linux")]
mod dir;
#[cfg(target_os = "linux")]
mod faked;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
mod fuse_device;
#[cfg(target_os = "linux")]
mod handle;
mod heap;
mod large_pages;
#[cfg(target_os = "linux")]
mod lease;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod lock;
#[cfg(target_os = "linux")]
mod loop_device;
#[cfg(target_os = "linux")]
mod map;
#[cfg(target_os = "linux")]
mod mount_namespace;
mod mount_words;
#[cfg(target_os = "linux")]
mod node;
mod prefetch;
#[cfg(target_os = "linux")]
mod random;
#[cfg(target_os = "linux")]
mod raw_stat;
#[cfg(target_os = "linux")]
mod rename_call;
#[cfg(target_os = "linux")]
mod socket;
#[cfg(target_os = "linux")]
mod stat;
#[cfg(target_os = "linux")]
mod verity;
#[cfg(target_os = "linux")]
mod xattr;
mod zlib;
mod zstd;

#[cfg(target_os = "linux")]
pub use clock::local_hour;
#[cfg(target_os = "linux")]
pub use descriptors::{close_all_on_exec, reserve_descriptors};
#[cfg(target_os = "linux")]
pub use dir::{
    DirBuffer, DirEntry, WORKING_DIR, enter_dir, leave_dir, open_beneath, open_dir, open_dir_at,
    open_dir_followed_at, open_place_at, read_dir, separate_working_dir,
};
#[cfg(target_os = "linux")]
pub use faked::{check_preload, is_on as is_pretended};
#[cfg(target_os = "linux")]
pub use file::{
    allocate, append_at, create_file_at, create_unnamed_at, data_runs, is_in_proc, is_of_link,
    link_unnamed_at, next_data, open_file_at, open_file_followed_at, open_followed_at,
    open_for_update, open_for_writing, open_node_at, punch_hole,
};
#[cfg(target_os = "linux")]
pub use fuse_device::open_fuse_device;
#[cfg(target_os = "linux")]
pub use handle::{FileHandle, handle_at, open_handle};
pub use heap::{share_heap, trim_heap};
pub use large_pages::{Allocator, want_large_pages};
#[cfg(target_os = "linux")]
pub use lease::is_open_elsewhere;
#[cfg(target_os = "linux")]
pub use limits::{
    effective_ids, free_inode_count, free_len, free_memory_len, is_btrfs, memory_len,
    open_file_limit, raise_open_file_limit, resident_len, umask,
};
#[cfg(target_os = "linux")]
pub use lock::try_lock_byte;
#[cfg(target_os = "linux")]
pub use loop_device::{attach_loop, attach_writable_loop};
#[cfg(target_os = "linux")]
pub use map::read_mapped;
#[cfg(target_os = "linux")]
pub use mount_namespace::with_own_mounts;
pub use mount_words::unescaped;
#[cfg(target_os = "linux")]
pub use node::{
    NewTimes, NodeKind, chmod_at, chmod_fd, chown_at, chown_fd, link_at, make_dir_at, make_node_at,
    make_symlink_at, remove_dir_at, remove_file_at, rename_at, rename_new_at, set_times_at,
    set_times_fd,
};
pub use prefetch::prefetch;
#[cfg(target_os = "linux")]
pub use random::fill_random;
#[cfg(target_os = "linux")]
pub use raw_stat::Stat;
#[cfg(target_os = "linux")]
pub use rename_call::{RenameCall, rename_call};
pub use socket::{peer_pid, peer_uid};
#[cfg(target_os = "linux")]
pub use stat::{read_link_at, stat_at, stat_fd, stat_path};
#[cfg(target_os = "linux")]
pub use verity::{enable_verity, is_without_verity, measure_verity};
#[cfg(target_os = "linux")]
pub use xattr::{
    get_xattr_at, get_xattr_fd, is_without_xattr, list_xattrs_at, list_xattrs_here, read_xattrs_at,
    read_xattrs_fd, remove_xattr_at, remove_xattr_fd, set_xattr_at, set_xattr_fd,
};
pub use zlib::deflate_filtered;
pub use zstd::{Training, train_dictionary};
