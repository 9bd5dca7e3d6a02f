//! Facts about an image for reports and for programs that write another image from it.
//!
//! `sections` counts stored bytes by section, `space` computes the savings of each step of the
//! builder. `by_directory` divides the stored bytes of blocks among files (`block_charges`),
//! `by_generation` those of records among generations. `used` finds the contents that the tree
//! uses, `placed` where the bytes of a file lie, `raw_access` gives records, streams and templates
//! as they are stored, `fsverity` the kept digests.

mod block_charges;
pub mod by_directory;
pub mod by_generation;
mod fsverity;
pub mod placed;
pub mod raw_access;
pub mod sections;
pub mod space;
pub mod used;
