//! The bytes of EROFS, the read-only file system of the Linux kernel: what lies where in an image.
//! The structures follow `fs/erofs/erofs_fs.h` of Linux 6.18; `docs/design/0024-views.md` says what
//! Weald reads and writes of them.
#![forbid(unsafe_code)]

pub mod dump;
pub mod layout;
pub mod reader;
pub mod writer;
