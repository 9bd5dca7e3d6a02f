//! Programs that carry their files: an ELF program of Weald, a page that says what to start, and an
//! image behind it. `docs/self-mounting.md` is the manual.
//!
//! Neighbours: the command `weald` is such a program, too; the program of this crate,
//! `weald-runtime`, only reads, and is small. Both are a [`Program`], which says how it mounts and
//! extracts; all else is the same.
//!
//! `head` makes and reads what stands before the image, `app` starts the program, `tree` gives it
//! its files by a mount or by extraction, `keeper` takes them away after the last process.
//! `small` is the program of this crate: `small/serve` mounts, `small/unpack` extracts.
//!
//! The conventions are those of AppImage's type 2, so that its tools recognise such a file.
#![forbid(unsafe_code)]

mod app;
mod description;
mod failure;
mod head;
mod keeper;
mod message;
mod program;
pub mod small;
mod tree;

pub use app::run_if_carried;
pub use head::make;
pub use keeper::{KEEPER, run as run_keeper};
pub use program::{AS_ITSELF, Carried, Program, itself};
