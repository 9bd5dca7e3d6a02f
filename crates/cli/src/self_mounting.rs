//! Programs that carry their files: an ELF program of Weald, a page that says what to start, and an
//! image behind it. `head.rs` makes and reads what stands before the image, `app.rs` starts the
//! program, `tree.rs` gives it its files by a mount or by extraction, `keeper.rs` takes them away
//! after the last process. `docs/self-mounting.md` is the manual.
//!
//! The conventions are those of AppImage's type 2, so that its tools recognise such a file.

mod app;
mod head;
mod keeper;
mod tree;

pub use app::run_if_carried;
pub use head::make;
pub use keeper::{KEEPER, run as run_keeper};

/// Variable with which a program that carries an image is Weald itself: `WEALD_AS_ITSELF=1 ./APP ls
/// APP`.
pub const AS_ITSELF: &str = "WEALD_AS_ITSELF";
