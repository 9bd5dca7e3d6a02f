//! Stored bytes to raw bytes. The caller has verified the stored bytes; a forged length still
//! cannot make a decoder allocate more than the raw length that was announced, plus a fixed working
//! set.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use liblzma::stream::{Action, Status, Stream};
use std::sync::Arc;
use weald_format::container::Codec;
use weald_format::{Error, ErrorKind, Result};
use zstd::dict::DecoderDictionary;
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

/// Most memory that the xz decoder may use besides its output: preset 9 needs 65 MiB.
const XZ_MEMORY_MAX: u64 = 80 << 20;

/// The largest window of brotli as RFC 7932 has it, 16 MiB; "large windows" of up to 1 GiB are an
/// extension.
pub(crate) const BROTLI_WINDOW_BITS: u32 = 24;

/// First bytes of a Zstandard frame.
const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Raw bytes in which a Zstandard encoder ends a block of its frame: the decoder makes no fewer at
/// once (RFC 8878, 3.1.1.2).
pub(crate) const ZSTD_STEP_LEN: usize = 128 << 10;

/// The same for blocks that share a dictionary: they are there to be read in small pieces, so that
/// their encoder ends a block of the frame so often (W-8). It costs 0.4% of the stored bytes:
/// `docs/design/0010-reading-in-small-pieces.md`.
pub const DICTIONARY_STEP_LEN: usize = 32 << 10;

/// Bytes that the other codecs make at once where only the front is wanted: fewer would not be
/// worth a second look.
const STEP_LEN: usize = 64 << 10;

/// A decoder of fronts that holds more than this is not kept: Zstandard's holds what it has decoded
/// besides.
const FRONT_CONTEXT_KEPT_MAX: usize = 8 << 20;

/// Frames of more bytes are decoded into a buffer for their front alone.
const IN_PLACE_LEN_MAX: usize = 1 << 20;

/// Bytes before each block of a Zstandard frame.
const BLOCK_HEADER_LEN: usize = 3;

/// How many of `raw_len` bytes are decoded where the first `wanted` are wanted: whole steps of the
/// codec, and all of them where the front would be nearly everything or the codec knows no front.
pub fn front_len(codec: Codec, raw_len: usize, wanted: usize) -> usize {
    let step = match codec {
        Codec::Zstd => ZSTD_STEP_LEN,
        Codec::ZstdDictionary => DICTIONARY_STEP_LEN,
        Codec::None | Codec::Xz => STEP_LEN,
        Codec::Lz4 | Codec::Brotli | Codec::ZstdHistory => return raw_len,
    };
    let front = wanted.max(1).checked_next_multiple_of(step);
    let nearly_all = raw_len.saturating_sub(raw_len / 8);
    front.filter(|&f| f < nearly_all).unwrap_or(raw_len)
}

/// Bytes of a buffer in which the first `len` of `raw_len` bytes are decoded best: all, where they
/// are few and the codec can then do without memory of its own.
pub fn front_room(codec: Codec, raw_len: usize, len: usize) -> usize {
    match codec {
        Codec::Zstd | Codec::ZstdDictionary if raw_len <= IN_PLACE_LEN_MAX => raw_len,
        _ => len,
    }
}

/// A metadata dictionary, ready to decode with.
pub struct DictionaryBytes(DecoderDictionary<'static>);

impl DictionaryBytes {
    /// Prepares the dictionary `bytes`.
    ///
    /// # Errors
    /// `Corrupt` where they begin like a Zstandard dictionary but are none.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        let prepared = DecoderDictionary::try_copy(bytes);
        prepared
            .map(Self)
            .map_err(|e| Error::corrupt("dictionary", 0, "F-3.12", e.to_string()))
    }
}

/// Reusable decoding state of one thread.
#[derive(Default)]
pub struct Decoder {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    /// For frames that need a dictionary.
    dictionary: Option<DCtx<'static>>,
    /// For fronts of frames.
    front: Option<DCtx<'static>>,
    /// The same for frames that need the dictionary that was needed last.
    dictionary_front: Option<DictionaryFront>,
}

self_cell::self_cell!(
    /// A context that refers to its dictionary: preparing one for each of many small frames costs
    /// 4% of reading them.
    struct DictionaryFront {
        owner: Arc<DictionaryBytes>,
        #[not_covariant]
        dependent: DCtx,
    }
);

impl DictionaryFront {
    fn of(dictionary: &Arc<DictionaryBytes>) -> Option<Self> {
        fn refer(dictionary: &Arc<DictionaryBytes>) -> std::result::Result<DCtx<'_>, ()> {
            let mut context = DCtx::try_create().ok_or(())?;
            let referred = context.ref_ddict(dictionary.0.as_ddict());
            referred.map_err(|_| ())?;
            Ok(context)
        }
        Self::try_new(dictionary.clone(), refer).ok()
    }
}

pub(crate) fn bad(codec: Codec, what: impl std::fmt::Display) -> Error {
    Error::corrupt(
        "stored bytes",
        0,
        "F-3.11",
        format!("{} decoder: {what}", codec.name()),
    )
}

impl Decoder {
    /// Decodes `stored` to exactly `raw_len` bytes.
    ///
    /// # Errors
    /// `Corrupt` where the bytes do not decode to that length; `Limit` where memory for it cannot
    /// be had.
    pub fn decode(
        &mut self,
        codec: Codec,
        stored: &[u8],
        raw_len: usize,
        dictionary: Option<&Arc<DictionaryBytes>>,
    ) -> Result<Vec<u8>> {
        let mut raw = Vec::new();
        self.decode_into(codec, stored, raw_len, dictionary, &mut raw)?;
        Ok(raw)
    }

    /// Decodes `stored` to exactly `raw_len` bytes in `raw`, whose old bytes go and whose memory is
    /// used again.
    ///
    /// # Errors
    /// As [`Decoder::decode`]; what `raw` holds then is of no use.
    pub fn decode_into(
        &mut self,
        codec: Codec,
        stored: &[u8],
        raw_len: usize,
        dictionary: Option<&Arc<DictionaryBytes>>,
        raw: &mut Vec<u8>,
    ) -> Result<()> {
        raw.clear();
        raw.try_reserve_exact(raw_len).map_err(|_| {
            Error::new(
                ErrorKind::Limit,
                format!("no memory for {raw_len} decoded bytes"),
            )
        })?;
        match codec {
            Codec::None => raw.extend_from_slice(stored),
            Codec::Lz4 => {
                raw.resize(raw_len, 0);
                let len =
                    lz4_flex::block::decompress_into(stored, raw).map_err(|e| bad(codec, e))?;
                raw.truncate(len);
            }
            Codec::Zstd => {
                check_single_frame(codec, stored)?;
                self.decode_zstd(stored, raw)?;
            }
            Codec::ZstdDictionary => {
                check_single_frame(codec, stored)?;
                let dictionary =
                    dictionary.ok_or_else(|| bad(codec, "the image has no dictionary"))?;
                let context = self.dictionary.get_or_insert_with(DCtx::create);
                context
                    .decompress_using_ddict(raw, stored, dictionary.0.as_ddict())
                    .map_err(|e| bad(codec, zstd::zstd_safe::get_error_name(e)))?;
            }
            Codec::Xz => decode_xz(stored, raw)?,
            Codec::Brotli => {
                raw.resize(raw_len, 0);
                decode_brotli(stored, raw)?;
            }
            Codec::ZstdHistory => return Err(bad(codec, "its history is missing")),
        }
        if raw.len() != raw_len {
            return Err(bad(
                codec,
                format_args!("expected {raw_len} bytes, found {}", raw.len()),
            ));
        }
        Ok(())
    }

    /// Decodes a Zstandard frame that goes on behind `history` to exactly `raw_len` bytes in `raw`,
    /// whose old bytes go.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn decode_after(
        frame: &[u8],
        history: &[u8],
        raw_len: usize,
        raw: &mut Vec<u8>,
    ) -> Result<()> {
        let codec = Codec::ZstdHistory;
        check_single_frame(codec, frame)?;
        raw.clear();
        raw.try_reserve_exact(raw_len).map_err(|_| {
            let what = format!("no memory for {raw_len} decoded bytes");
            Error::new(ErrorKind::Limit, what)
        })?;
        let named = |code| bad(codec, zstd::zstd_safe::get_error_name(code));
        let mut context = zstd::zstd_safe::DCtx::try_create()
            .ok_or_else(|| Error::new(ErrorKind::Limit, "no memory for a decoder"))?;
        context.ref_prefix(history).map_err(named)?;
        context.decompress(raw, frame).map_err(named)?;
        match raw.len() == raw_len {
            true => Ok(()),
            false => Err(bad(
                codec,
                format_args!("expected {raw_len} bytes, found {}", raw.len()),
            )),
        }
    }

    /// Decodes the first [`front_len`] bytes of `raw_len` into `raw`, whose old bytes go. What lies
    /// behind them is not looked at. Where a front cannot be had, everything is decoded: an error
    /// is one that all of it would give.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn decode_front_into(
        &mut self,
        codec: Codec,
        stored: &[u8],
        raw_len: usize,
        wanted: usize,
        dictionary: Option<&Arc<DictionaryBytes>>,
        raw: &mut Vec<u8>,
    ) -> Result<()> {
        let len = front_len(codec, raw_len, wanted);
        let more = len.saturating_sub(raw.len());
        if len < raw_len && raw.try_reserve_exact(more).is_ok() {
            // What a buffer had before is overwritten, not cleared first: clearing costs as much as
            // decoding some codecs.
            match codec {
                Codec::None => {
                    raw.clear();
                    raw.extend_from_slice(stored.get(..len).unwrap_or(&[]));
                }
                Codec::Zstd => {
                    raw.resize(front_room(codec, raw_len, len), 0);
                    let made = self.zstd_front(stored, raw_len, len, raw).unwrap_or(0);
                    raw.truncate(made.min(len));
                }
                Codec::Xz => {
                    raw.resize(len, 0);
                    let made = xz_front(stored, raw).unwrap_or(0);
                    raw.truncate(made);
                }
                Codec::ZstdDictionary => {
                    raw.resize(front_room(codec, raw_len, len), 0);
                    let made = dictionary
                        .and_then(|d| self.dictionary_front(stored, raw_len, len, d, raw));
                    raw.truncate(made.unwrap_or(0).min(len));
                }
                Codec::Lz4 | Codec::Brotli | Codec::ZstdHistory => {}
            }
            if raw.len() == len {
                return Ok(());
            }
        }
        self.decode_into(codec, stored, raw_len, dictionary, raw)
    }

    /// Makes the first `wanted` bytes of a frame at the front of `room`, or more; how many there
    /// are.
    fn zstd_front(
        &mut self,
        stored: &[u8],
        raw_len: usize,
        wanted: usize,
        room: &mut [u8],
    ) -> Option<usize> {
        let mut context = match self.front.take() {
            Some(mut context) => {
                context.reset(ResetDirective::SessionOnly).ok()?;
                context
            }
            None => DCtx::try_create()?,
        };
        let made = frame_front(&mut context, stored, raw_len, wanted, room)?;
        if context.sizeof() <= FRONT_CONTEXT_KEPT_MAX {
            self.front = Some(context);
        }
        Some(made)
    }

    /// The same for a frame that needs a dictionary.
    fn dictionary_front(
        &mut self,
        stored: &[u8],
        raw_len: usize,
        wanted: usize,
        dictionary: &Arc<DictionaryBytes>,
        room: &mut [u8],
    ) -> Option<usize> {
        let kept = self.dictionary_front.take();
        let mut front = match kept.filter(|kept| Arc::ptr_eq(kept.borrow_owner(), dictionary)) {
            Some(mut kept) => {
                let reset = |context: &mut DCtx<'_>| context.reset(ResetDirective::SessionOnly);
                kept.with_dependent_mut(|_, context| reset(context)).ok()?;
                kept
            }
            None => DictionaryFront::of(dictionary)?,
        };
        let (made, memory_len) = front.with_dependent_mut(|_, context| {
            let made = frame_front(context, stored, raw_len, wanted, room);
            (made, context.sizeof())
        });
        if made.is_some() && memory_len <= FRONT_CONTEXT_KEPT_MAX {
            self.dictionary_front = Some(front);
        }
        made
    }

    fn decode_zstd(&mut self, stored: &[u8], raw: &mut Vec<u8>) -> Result<()> {
        let context = match &mut self.zstd {
            Some(context) => context,
            none => none.insert(zstd::bulk::Decompressor::new().map_err(|e| bad(Codec::Zstd, e))?),
        };
        context
            .decompress_to_buffer(stored, raw)
            .map_err(|e| bad(Codec::Zstd, e))?;
        Ok(())
    }
}

/// A frame that wants a longer window than it has bytes gets no memory for it.
pub(crate) fn window_of(raw_len: usize) -> DParameter {
    let log = usize::BITS.saturating_sub(raw_len.saturating_sub(1).leading_zeros());
    DParameter::WindowLogMax(log.clamp(10, 27))
}

fn frame_front(
    context: &mut DCtx<'_>,
    stored: &[u8],
    raw_len: usize,
    wanted: usize,
    room: &mut [u8],
) -> Option<usize> {
    check_single_frame(Codec::Zstd, stored).ok()?;
    context.set_parameter(window_of(raw_len)).ok()?;
    // Where there is room for the whole frame, Zstandard decodes in place, with no window and no
    // copy of its own; it then stops only for want of input, of which it gets a block at a time.
    let is_in_place = room.len() >= raw_len;
    let in_place = DParameter::StableOutBuffer(is_in_place);
    context.set_parameter(in_place).ok()?;
    let mut output = OutBuffer::around(room);
    let (mut at, mut given) = (0, frame_header_len(stored)?);
    while output.pos() < wanted {
        given = match is_in_place {
            true => block_end(stored, given)?,
            false => stored.len(),
        };
        let mut input = InBuffer::around(stored.get(..given)?);
        input.set_pos(at);
        while output.pos() < wanted {
            let before = (output.pos(), input.pos());
            let left = context.decompress_stream(&mut output, &mut input).ok()?;
            if left == 0 || before == (output.pos(), input.pos()) {
                break;
            }
        }
        at = input.pos();
        if given == stored.len() {
            break;
        }
    }
    Some(output.pos())
}

/// Bytes of the header of a frame (RFC 8878, section 3.1.1.1).
pub(crate) fn frame_header_len(frame: &[u8]) -> Option<usize> {
    let descriptor = *frame.get(ZSTD_MAGIC.len())?;
    let is_single_segment = descriptor & 0x20 != 0;
    let window_len = usize::from(!is_single_segment);
    let dictionary_len = [0, 1, 2, 4].get(usize::from(descriptor & 3))?;
    let content_len = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        flag => 1 << flag,
    };
    let fields = [1, window_len, *dictionary_len, content_len];
    let len = |sum: usize, field: usize| sum.saturating_add(field);
    Some(fields.into_iter().fold(ZSTD_MAGIC.len(), len))
}

/// Where the block ends that begins at `start` of a frame (RFC 8878, section 3.1.1.2): the whole
/// frame, where it is the last one.
pub(crate) fn block_end(frame: &[u8], start: usize) -> Option<usize> {
    let header: [u8; BLOCK_HEADER_LEN] = *frame.get(start..)?.first_chunk()?;
    let [low, middle, high] = header.map(usize::from);
    let header = low | middle << 8 | high << 16;
    let stored_len = match header >> 1 & 3 {
        // One byte that is repeated.
        1 => 1,
        _ => header >> 3,
    };
    match header & 1 {
        1 => Some(frame.len()),
        _ => {
            let end = start.checked_add(BLOCK_HEADER_LEN)?.checked_add(stored_len);
            end.filter(|&end| end <= frame.len())
        }
    }
}

/// zstd itself would take several frames, and frames of any bytes to be skipped.
pub(crate) fn check_single_frame(codec: Codec, stored: &[u8]) -> Result<()> {
    let is_frame = stored.starts_with(&ZSTD_MAGIC);
    let len = zstd::zstd_safe::find_frame_compressed_size(stored);
    match is_frame && len == Ok(stored.len()) {
        true => Ok(()),
        false => Err(bad(codec, "expected one frame and nothing else")),
    }
}

/// Fills `front` with the first bytes of an xz stream, as far as they go; how many there are.
fn xz_front(stored: &[u8], front: &mut [u8]) -> Option<usize> {
    let mut stream = Stream::new_stream_decoder(XZ_MEMORY_MAX, 0).ok()?;
    stream.process(stored, front, Action::Run).ok()?;
    usize::try_from(stream.total_out()).ok()
}

fn decode_xz(stored: &[u8], raw: &mut Vec<u8>) -> Result<()> {
    let codec = Codec::Xz;
    let mut stream = Stream::new_stream_decoder(XZ_MEMORY_MAX, 0).map_err(|e| bad(codec, e))?;
    // `process_vec` fills spare capacity only, so the output cannot outgrow what was announced.
    match stream.process_vec(stored, raw, Action::Finish) {
        Ok(Status::StreamEnd) if stream.total_in() == stored.len() as u64 => Ok(()),
        Ok(_) => Err(bad(codec, "stream does not end where it should")),
        Err(e) => Err(bad(codec, e)),
    }
}

/// Fills `raw`, which the stream must do exactly.
fn decode_brotli(stored: &[u8], raw: &mut [u8]) -> Result<()> {
    let alloc = StandardAlloc::default;
    // Strict: the stream cannot ask for a window beyond `BROTLI_WINDOW_BITS`.
    let mut state = BrotliState::new_strict(alloc(), alloc(), alloc());
    let (mut stored_left, mut taken) = (stored.len(), 0);
    let (mut raw_left, mut given, mut total) = (raw.len(), 0, 0);
    let result = BrotliDecompressStream(
        &mut stored_left,
        &mut taken,
        stored,
        &mut raw_left,
        &mut given,
        raw,
        &mut total,
        &mut state,
    );
    let is_whole = (stored_left, raw_left) == (0, 0);
    match result {
        BrotliResult::ResultSuccess if is_whole => Ok(()),
        BrotliResult::ResultFailure => Err(bad(Codec::Brotli, "malformed stream")),
        _ => Err(bad(Codec::Brotli, "stream does not end where it should")),
    }
}
