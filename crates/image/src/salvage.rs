//! Reading a damaged image: what is left of it, found without trust in any single place.
//!
//! `overlay` is the storage in which bytes that are made anew stand beside those of the file,
//! `survey` walks the records from front to back, `index` makes index pages again, `repair` opens
//! the result as an image, and `remains` reads a tree of which parts are missing. Invariant: no
//! byte of a record is used that does not match a digest.

pub mod index;
pub mod overlay;
pub mod remains;
pub mod repair;
pub mod survey;
