//! Codecs: raw bytes to stored bytes and back, bounded in memory on the way back. No I/O happens
//! here.
#![forbid(unsafe_code)]
// Untrusted bytes never panic; encoders, which see only what this program made, say so where they
// need to.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable
    )
)]

pub mod arm64;
mod decode;
pub mod deflate;
mod encode;
pub mod filter;
pub mod flac;
pub mod jpeg;
mod partial;
mod recipe;
mod train;
pub mod x86;

pub use decode::{DICTIONARY_STEP_LEN, Decoder, DictionaryBytes, front_len, front_room};
pub use encode::{
    CodecSpec, Encoded, Encoder, SharedDictionary, encode_after, history_context_len, trial_len,
};
pub use partial::Partial;
pub use recipe::make;
pub use train::{CONTENTS_TRAINING_LEN, Sample, train_dictionary, train_on_contents};
