//! Records: read from storage, verified, decoded and parsed, without a cache.
//!
//! `read` reads, verifies and decodes one record; `page` parses metadata; `section` finds a record
//! by its number or by one of its items. Invariant: no byte leaves `read` that did not match the
//! digest of its reference.

pub mod page;
pub mod read;
pub mod section;
