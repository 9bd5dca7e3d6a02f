//! Codecs: raw bytes to stored bytes and back, bounded in memory on the way back. No I/O happens here.
#![forbid(unsafe_code)]

mod decode;
mod encode;
mod train;

pub use decode::{Decoder, DictionaryBytes};
pub use encode::{CodecSpec, Encoded, Encoder};
pub use train::{Sample, train_dictionary};
