//! Codecs: raw bytes to stored bytes and back. Decoding has bounded memory. This crate does no I/O.
//!
//! ```
//! use weald_codec::{CodecSpec, Decoder, Encoder};
//!
//! # fn main() -> weald_format::Result<()> {
//! let raw = b"to be or not to be, ".repeat(50);
//! let encoded = Encoder::new(CodecSpec::Lz4, 1 << 16)?.encode(&raw)?;
//! assert!(encoded.stored.len() < raw.len());
//! let decoded = Decoder::default().decode(encoded.codec, &encoded.stored, raw.len(), None)?;
//! assert_eq!(decoded, raw);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
// Decoders never panic on untrusted bytes. Encoders see only bytes of this program; each function
// that relies on this says so.
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
mod frame_decoder;
mod fsverity;
pub mod jpeg;
mod recipe;
mod train;
pub mod x86;

pub use decode::{DICTIONARY_STEP_LEN, Decoder, DictionaryBytes, front_buffer_len, front_len};
pub use encode::{
    CodecSpec, Encoded, Encoder, SharedDictionary, encode_with_history, history_context_len,
    trial_len,
};
pub use frame_decoder::FrameDecoder;
pub use fsverity::{DIGEST_LEN as FSVERITY_DIGEST_LEN, FsVerity, fsverity_digest};
pub use recipe::run_recipe;
pub use train::{CONTENT_TRAINING_MEMORY_LEN, Sample, train_dictionary, train_on_contents};
