//! Scrubs a store: beside its open volumes, or without them.
//!
//! `names` finds the files that damaged blocks cost; `drive` performs the steps of a scrub, with
//! its pauses, and follows what users want; `beside` does it in the server of a store, `alone` in a
//! command, which opens the store for each pass and closes it again.

mod alone;
mod beside;
mod drive;
mod names;

pub use alone::scrub_alone;
pub(crate) use beside::start;
pub use drive::ScrubEnd;
#[cfg(test)]
pub(crate) use {beside::host_of, drive::take_up};
