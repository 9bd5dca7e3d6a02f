//! Resumable decoding of a Zstandard frame: in place, block by block, as far as readers want, and
//! later further.

use crate::decode::{
    ZSTD_STEP_LEN, bad, block_end, check_single_frame, frame_header_len, window_of,
};
use weald_format::container::Codec;
use weald_format::{Error, ErrorKind, Result};
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, get_error_name};

/// Decoder of one frame that can stop after each block of the frame and resume later.
///
/// The decoded bytes lie in memory of the caller. Later blocks refer back to them, so they must not
/// change until the whole frame is decoded.
pub struct FrameDecoder {
    context: DCtx<'static>,
    /// Number of stored bytes that the context has consumed.
    taken: usize,
    /// Start of the next block in the frame.
    block_start: usize,
    decoded_len: usize,
}

impl FrameDecoder {
    /// Memory of a decoder besides stored and decoded bytes: Zstandard's tables (96 KiB) and a
    /// block of its input.
    pub const CONTEXT_LEN: usize = 256 << 10;

    /// Maximum number of raw bytes that one step decodes: a block of the frame.
    pub const FRAME_BLOCK_LEN_MAX: usize = ZSTD_STEP_LEN;

    /// Starts with the frame `stored` of `raw_len` raw bytes.
    ///
    /// # Errors
    /// `Corrupt` if it is not a frame; `Limit` if memory cannot be allocated.
    pub fn new(stored: &[u8], raw_len: usize) -> Result<Self> {
        check_single_frame(Codec::Zstd, stored)?;
        let zstd_error = |code| bad(Codec::Zstd, get_error_name(code));
        let no_memory = || Error::new(ErrorKind::Limit, "no memory for a decoder");
        let mut context = DCtx::try_create().ok_or_else(no_memory)?;
        context
            .set_parameter(window_of(raw_len))
            .map_err(zstd_error)?;
        let in_place = DParameter::StableOutBuffer(true);
        context.set_parameter(in_place).map_err(zstd_error)?;
        let header_len = frame_header_len(stored);
        Ok(Self {
            context,
            taken: 0,
            block_start: header_len
                .ok_or_else(|| bad(Codec::Zstd, "expected a whole frame header"))?,
            decoded_len: 0,
        })
    }

    /// Number of bytes decoded so far.
    pub const fn decoded_len(&self) -> usize {
        self.decoded_len
    }

    /// Decodes the next block of the frame, at most 128 KiB, into `raw`. `raw` has the length of
    /// the whole frame and holds the bytes decoded so far. Returns whether more blocks follow.
    ///
    /// # Errors
    /// `Corrupt` if the frame does not decode to as many bytes as `raw` has. The decoder cannot
    /// resume then.
    pub fn decode_block(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<bool> {
        let codec = Codec::Zstd;
        let end = block_end(stored, self.block_start);
        let end = end.ok_or_else(|| bad(codec, "expected a whole block of the frame"))?;
        let is_last = end == stored.len();
        let raw_len = raw.len();
        let mut input = InBuffer::around(stored.get(..end).unwrap_or(&[]));
        input.set_pos(self.taken.min(end));
        let decoded_len = self.decoded_len.min(raw_len);
        let mut output = OutBuffer::around_pos(raw, decoded_len);
        let mut hint = 1;
        while hint != 0 {
            let before = (output.pos(), input.pos());
            let result = self.context.decompress_stream(&mut output, &mut input);
            hint = result.map_err(|code| bad(codec, get_error_name(code)))?;
            if before == (output.pos(), input.pos()) {
                break;
            }
        }
        (self.taken, self.decoded_len) = (input.pos(), output.pos());
        self.block_start = end;
        if is_last && (hint != 0 || self.decoded_len != raw_len) {
            let what = format!("expected {raw_len} bytes, found {}", self.decoded_len);
            return Err(bad(codec, what));
        }
        Ok(!is_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(len: usize) -> Vec<u8> {
        let words =
            (0u32..).flat_map(|n| format!("{} ", n.wrapping_mul(2_654_435_761) >> 18).into_bytes());
        words.take(len).collect()
    }

    fn frame_of(raw: &[u8]) -> Vec<u8> {
        zstd::bulk::compress(raw, 15).expect("compressed")
    }

    /// Catches: bytes that differ from those of the whole frame, steps longer than a block, a
    /// missed end.
    #[test]
    fn a_frame_is_decoded_block_by_block() {
        let raw = text(3 << 20);
        let frame = frame_of(&raw);
        let mut decoded = vec![7; raw.len()];
        let mut decoder = FrameDecoder::new(&frame, raw.len()).expect("a frame");
        let mut before = 0;
        while decoder.decode_block(&frame, &mut decoded).expect("a block") {
            let len = decoder.decoded_len();
            assert!(len > before && len - before <= 128 << 10);
            assert_eq!(decoded[..len], raw[..len]);
            before = len;
        }
        assert_eq!((decoder.decoded_len(), decoded), (raw.len(), raw));
    }

    /// Catches: a frame that is cut, has trailing bytes or has another length but is accepted; an
    /// endless loop on a frame that makes no progress.
    #[test]
    fn incomplete_frames_are_refused() {
        let raw = text(1 << 20);
        let frame = frame_of(&raw);
        let all = |stored: &[u8], len: usize| -> Result<()> {
            let mut decoder = FrameDecoder::new(stored, len)?;
            let mut decoded = vec![0; len];
            while decoder.decode_block(stored, &mut decoded)? {}
            Ok(())
        };
        all(&frame, raw.len()).expect("as it is");
        assert!(all(&frame, raw.len() - 1).is_err());
        assert!(all(&frame, raw.len() + 1).is_err());
        assert!(all(&frame, 0).is_err());
        assert!(all(&frame[..frame.len() - 1], raw.len()).is_err());
        assert!(all(&[&frame[..], b"more"].concat(), raw.len()).is_err());
        assert!(all(b"", raw.len()).is_err());
        for at in (0..frame.len()).step_by(4099) {
            let mut broken = frame.clone();
            broken[at] ^= 0x55;
            let _ = all(&broken, raw.len());
        }
    }
}
