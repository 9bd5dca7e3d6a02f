//! Encodes samples (PCM audio, the pixels of FITS images) as FLAC streams (RFC 9639), and decodes
//! them byte for byte.
//!
//! The encoder writes complete FLAC streams that any decoder plays. The decoder reads the part of
//! FLAC that `docs/format.md` section 20 allows. Both use integer arithmetic, except for the choice
//! of predictors. That choice uses no function that differs between machines, so that the same
//! samples give the same stream everywhere.

mod bits;
mod decode;
mod encode;
mod layout;
mod rice;

pub use decode::decode;
pub use encode::encode;
pub use layout::CHANNELS_MAX;

#[cfg(test)]
mod tests;
