//! A Zstandard frame on its way: decoded in place, a block of it at a time, as far as somebody
//! wants, and later further.

use crate::decode::{
    ZSTD_STEP_LEN, bad, block_end, check_single_frame, frame_header_len, window_of,
};
use weald_format::container::Codec;
use weald_format::{Error, ErrorKind, Result};
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, get_error_name};

/// Where the decoder of one frame has come to.
///
/// The bytes that it makes lie in memory of the caller, and are what later ones refer to: they must
/// stay as they are until all is decoded.
pub struct Partial {
    context: DCtx<'static>,
    /// Stored bytes that were taken.
    taken: usize,
    /// Where the next block of the frame begins.
    block_start: usize,
    made_len: usize,
}

impl Partial {
    /// Memory of a decoder besides stored and decoded bytes: Zstandard's tables (96 KiB) and a
    /// block of its input.
    pub const MEMORY_LEN: usize = 256 << 10;

    /// Bytes of a step at most: those of a block of the frame.
    pub const STEP_LEN: usize = ZSTD_STEP_LEN;

    /// Begins with the frame `stored` of `raw_len` bytes.
    ///
    /// # Errors
    /// `Corrupt` where it is no frame; `Limit` where memory cannot be had.
    pub fn new(stored: &[u8], raw_len: usize) -> Result<Self> {
        check_single_frame(Codec::Zstd, stored)?;
        let named = |code| bad(Codec::Zstd, get_error_name(code));
        let no_memory = || Error::new(ErrorKind::Limit, "no memory for a decoder");
        let mut context = DCtx::try_create().ok_or_else(no_memory)?;
        context.set_parameter(window_of(raw_len)).map_err(named)?;
        let in_place = DParameter::StableOutBuffer(true);
        context.set_parameter(in_place).map_err(named)?;
        let header_len = frame_header_len(stored);
        Ok(Self {
            context,
            taken: 0,
            block_start: header_len.ok_or_else(|| bad(Codec::Zstd, "its header is cut"))?,
            made_len: 0,
        })
    }

    /// Bytes that are decoded by now.
    pub const fn made_len(&self) -> usize {
        self.made_len
    }

    /// Decodes the next block of the frame, 128 KiB at most, into `room`, which has the length of
    /// all of it and what was made so far; whether more are to come.
    ///
    /// # Errors
    /// `Corrupt` where the frame does not decode to as many bytes as `room` has. There is no way on
    /// then.
    pub fn step(&mut self, stored: &[u8], room: &mut [u8]) -> Result<bool> {
        let codec = Codec::Zstd;
        let end = block_end(stored, self.block_start);
        let end = end.ok_or_else(|| bad(codec, "a block of the frame is cut"))?;
        let is_last = end == stored.len();
        let raw_len = room.len();
        let mut input = InBuffer::around(stored.get(..end).unwrap_or(&[]));
        input.set_pos(self.taken.min(end));
        let made_len = self.made_len.min(raw_len);
        let mut output = OutBuffer::around_pos(room, made_len);
        let mut left = 1;
        while left != 0 {
            let before = (output.pos(), input.pos());
            let step = self.context.decompress_stream(&mut output, &mut input);
            left = step.map_err(|code| bad(codec, get_error_name(code)))?;
            if before == (output.pos(), input.pos()) {
                break;
            }
        }
        (self.taken, self.made_len) = (input.pos(), output.pos());
        self.block_start = end;
        if is_last && (left != 0 || self.made_len != raw_len) {
            let what = format!("expected {raw_len} bytes, found {}", self.made_len);
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

    /// Would catch: bytes that differ from those of the whole frame, steps of more than a block,
    /// and an end that is not seen.
    #[test]
    fn a_frame_comes_step_by_step() {
        let raw = text(3 << 20);
        let frame = frame_of(&raw);
        let mut room = vec![7; raw.len()];
        let mut partial = Partial::new(&frame, raw.len()).expect("a frame");
        let mut before = 0;
        while partial.step(&frame, &mut room).expect("a step") {
            let made = partial.made_len();
            assert!(made > before && made - before <= 128 << 10);
            assert_eq!(room[..made], raw[..made]);
            before = made;
        }
        assert_eq!((partial.made_len(), room), (raw.len(), raw));
    }

    /// Would catch: a frame that is cut, goes on, or has another length, taken for whole; and an
    /// endless loop with one that does not go on.
    #[test]
    fn what_is_no_whole_frame_is_refused() {
        let raw = text(1 << 20);
        let frame = frame_of(&raw);
        let all = |stored: &[u8], len: usize| -> Result<()> {
            let mut partial = Partial::new(stored, len)?;
            let mut room = vec![0; len];
            while partial.step(stored, &mut room)? {}
            Ok(())
        };
        all(&frame, raw.len()).expect("as it is");
        assert!(all(&frame, raw.len() - 1).is_err());
        assert!(all(&frame, raw.len() + 1).is_err());
        assert!(all(&frame, 0).is_err());
        assert!(all(&frame[..frame.len() - 1], raw.len()).is_err());
        assert!(all(&[&frame[..], b"more"].concat(), raw.len()).is_err());
        assert!(all(b"", raw.len()).is_err());
        for place in (0..frame.len()).step_by(4099) {
            let mut broken = frame.clone();
            broken[place] ^= 0x55;
            let _ = all(&broken, raw.len());
        }
    }
}
