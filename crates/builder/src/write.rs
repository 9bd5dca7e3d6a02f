//! Writing the image.
//!
//! `image_writer` writes records and seals the image, with the second copies of `second_copies`.
//! `metadata` encodes pages with threads. `known_dirs` finds equal directories, `tree_writer`
//! stores each distinct directory once, `times` collects times that are not in it, and `emit`
//! passes the scanned tree to them, with the xattrs of `changed_xattrs`.

pub mod changed_xattrs;
pub mod emit;
pub mod equal_files;
pub mod image_writer;
pub mod known_dirs;
pub mod metadata;
mod second_copies;
pub mod times;
pub mod tree_writer;
