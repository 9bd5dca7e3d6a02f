//! Layout of FLAC streams that encoder and decoder share.

/// First bytes of a stream.
pub const MARKER: [u8; 4] = *b"fLaC";
/// Header of the only metadata block, STREAMINFO: the last metadata block, 34 bytes.
pub const INFO_HEADER: [u8; 4] = [0x80, 0, 0, 34];
/// Maximum samples of a channel in one frame that recipes allow. It bounds the memory of a decoder
/// besides its output.
pub const FRAME_SAMPLES_MAX: usize = 16384;
/// Maximum channels of FLAC.
pub const CHANNELS_MAX: usize = 8;
/// Maximum order of a predictor.
pub const ORDER_MAX: usize = 32;

/// Code of the bits per sample in the header of a frame.
pub const fn bits_code(bits: u32) -> u32 {
    match bits {
        8 => 1,
        16 => 4,
        24 => 6,
        _ => 7,
    }
}

/// Stereo coding of two channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stereo {
    Independent,
    LeftSide,
    SideRight,
    MidSide,
}

/// Coefficients of the fixed predictors by order; the coefficient of the nearest sample first.
pub const FIXED: [&[i32]; 5] = [&[], &[1], &[2, -1], &[3, -3, 1], &[4, -6, 4, -1]];
