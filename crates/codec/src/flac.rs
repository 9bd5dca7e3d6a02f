//! Samples (PCM audio, the pixels of FITS images) as FLAC streams (RFC 9639) and back, byte for
//! byte.
//!
//! A stream of ours is a whole FLAC stream that any decoder plays; the decoder reads the part of
//! FLAC that `docs/format.md` section 20 allows. Both are integer arithmetic but for the choice of
//! predictors, which uses no function that differs between machines, so that the same samples give
//! the same stream everywhere.

mod bits;
mod decode;
mod encode;
mod rice;

pub use decode::decode;
pub use encode::encode;

/// First bytes of a stream.
const MARKER: [u8; 4] = *b"fLaC";
/// Header of the one metadata block, STREAMINFO: the last of its kind, 34 bytes.
const INFO_HEADER: [u8; 4] = [0x80, 0, 0, 34];
/// Samples of a channel in one frame that the format allows, which bounds what a decoder holds
/// besides the result.
const FRAME_SAMPLES_MAX: usize = 16384;
/// Channels that FLAC can have.
pub const CHANNELS_MAX: usize = 8;
/// Highest order of a predictor.
const ORDER_MAX: usize = 32;

/// Code of the bits of a sample in the header of a frame.
const fn bits_code(bits: u32) -> u32 {
    match bits {
        8 => 1,
        16 => 4,
        24 => 6,
        _ => 7,
    }
}

/// How two channels are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stereo {
    Independent,
    LeftSide,
    SideRight,
    MidSide,
}

/// Coefficients of the fixed predictors by order, that of the sample just before first.
const FIXED: [&[i32]; 5] = [&[], &[1], &[2, -1], &[3, -3, 1], &[4, -6, 4, -1]];

#[cfg(test)]
mod tests;
