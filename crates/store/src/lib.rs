//! The store: holds the blocks of many images once, wherever they lie.
//!
//! From below to above: [`disk`] (files, and what a crash leaves of them) → [`engine`] (tables)
//! → `segment` (records in files) → `store` (what readers see) and `image` (an image read like
//! a file) → `writer` (the one writer) → `incoming`, `import`, `remove`, `replace`, `collect`, `check` → `recover`,
//! and `salvage` beside them. `docs/design/0023-store.md` says why it is built so,
//! `docs/format.md` what its files hold.
//!
//! Neighbours: `format` declares the bytes, `io` has `ReadAt`; the image reader opens what this
//! room finds. Nothing here decodes a block.
#![forbid(unsafe_code)]

mod check;
mod collect;
pub mod disk;
pub mod engine;
mod image;
mod import;
mod incoming;
mod index;
mod layout;
mod name;
mod recover;
mod remove;
mod replace;
mod salvage;
mod segment;
#[cfg(test)]
mod simulation;
mod store;
mod writer;

pub use check::{Checked, Finding};
pub use collect::{CollectOptions, Collected};
pub use image::StoredImage;
pub use import::Imported;
pub use incoming::Incoming;
pub use layout::check_name;
pub use name::{find, is_store, split};
pub use replace::ImageLock;
pub use salvage::Salvaged;
pub use store::{ImageInfo, SEGMENT_LEN_DEFAULT, Store, StoreInfo};
pub use writer::{StoreWriter, WriteOptions};
