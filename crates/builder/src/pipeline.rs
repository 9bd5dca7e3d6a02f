//! The operations that call the stages.
//!
//! `plan` divides the memory. `build` packs a directory or the tree of an image: `state` is what it
//! keeps between the stages, `files` processes the files that fit in memory, `long` streams longer
//! ones, and `previous` keeps old entries of files that cannot be read. `changes` compares an
//! appended tree with the one before. `list` names what a build would pack. `report` collects the
//! figures. `stream` packs an input stream, `rewrite` writes an image again in other blocks, and
//! `recover` truncates an interrupted append. `salvage` makes an image of what is left of a damaged
//! one. `destination` opens the file or the store that an image goes to; `stored` builds images of
//! a store and encodes its half-used blocks again.

pub mod build;
mod changes;
mod destination;
mod files;
pub mod list;
mod long;
pub mod plan;
mod previous;
pub mod recover;
mod report;
pub mod rewrite;
pub mod salvage;
mod state;
pub mod stored;
pub mod stream;
