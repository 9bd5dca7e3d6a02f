//! Decodes blocks.

use super::failure::{damaged, unsupported};
use flate2::{Decompress, FlushDecompress, Status};
use liblzma::stream::{Action, Stream};
use weald_format::{Error, Result};

/// Bytes that the decoder of xz may take: dictionaries are no longer than a block.
const XZ_MEMORY_LEN: u64 = 32 << 20;

/// How the blocks of an image are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    Gzip,
    Xz,
    Lz4,
    Zstd,
}

impl Codec {
    /// The codec of this number in the superblock.
    ///
    /// # Errors
    /// `Unsupported` for others, by name.
    pub fn of_number(number: u16) -> Result<Self> {
        match number {
            1 => Ok(Self::Gzip),
            2 => Err(unsupported("compressed with LZMA")),
            3 => Err(unsupported("compressed with LZO")),
            4 => Ok(Self::Xz),
            5 => Ok(Self::Lz4),
            6 => Ok(Self::Zstd),
            other => Err(unsupported(format!("compressed with codec {other}"))),
        }
    }

    /// Decodes `stored` to the start of `out`; returns how many bytes there are.
    ///
    /// # Errors
    /// `Invalid` for damaged bytes, and for more than fit.
    pub fn decode(self, stored: &[u8], out: &mut [u8]) -> Result<usize> {
        let decoded = match self {
            Self::Gzip => decode_zlib(stored, out),
            Self::Xz => return decode_xz(stored, out),
            Self::Lz4 => lz4_flex::block::decompress_into(stored, out).ok(),
            Self::Zstd => zstd::bulk::decompress_to_buffer(stored, out).ok(),
        };
        decoded.ok_or_else(cannot)
    }
}

fn cannot() -> Error {
    damaged("a compressed block cannot be decoded")
}

fn decode_zlib(stored: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut decoder = Decompress::new(true);
    let decoded = decoder.decompress(stored, out, FlushDecompress::Finish);
    let is_end = decoded.is_ok_and(|status| status == Status::StreamEnd);
    is_end.then_some(decoder.total_out() as usize)
}

fn decode_xz(stored: &[u8], out: &mut [u8]) -> Result<usize> {
    let stream = Stream::new_stream_decoder(XZ_MEMORY_LEN, 0);
    let mut stream = stream.map_err(|e| Error::io("a decoder", e.into()))?;
    let decoded = stream.process(stored, out, Action::Finish);
    let is_end = decoded.is_ok_and(|status| status == liblzma::stream::Status::StreamEnd);
    if is_end {
        Ok(stream.total_out() as usize)
    } else {
        Err(cannot())
    }
}
