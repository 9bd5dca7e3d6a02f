//! Decodes stored bytes to raw bytes. The caller has verified the stored bytes. Even so, a forged
//! length cannot make a decoder allocate more than the announced raw length and a fixed working
//! set.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use liblzma::stream::{Action, Status, Stream};
use std::sync::Arc;
use weald_format::container::Codec;
use weald_format::{Error, ErrorKind, Result};
use zstd::dict::DecoderDictionary;
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

/// Maximum memory of the xz decoder besides its output, bytes: preset 9 needs 65 MiB.
const XZ_MEMORY_MAX: u64 = 80 << 20;

/// Largest window of Brotli in RFC 7932: 2^24 bytes. "Large windows" of up to 1 GiB are an
/// extension.
pub(crate) const BROTLI_WINDOW_BITS: u32 = 24;

/// First bytes of a Zstandard frame.
const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Raw bytes after which a Zstandard encoder ends a block of its frame. A decoder decodes at least
/// one such block at a time (RFC 8878, 3.1.1.2).
pub(crate) const ZSTD_STEP_LEN: usize = 128 << 10;

/// The same length for blocks that share a dictionary. Readers read them in small pieces, so their
/// encoder ends a block of the frame this often (W-8). This costs 0.4% of the stored bytes:
/// `docs/design/0010-reading-in-small-pieces.md`.
pub const DICTIONARY_STEP_LEN: usize = 32 << 10;

/// Unit of a front for the other codecs, bytes. With smaller units, readers would decode the same
/// front again too often.
const FRONT_STEP_LEN: usize = 64 << 10;

/// Maximum memory of an idle front decoder, bytes. A larger one is freed: Zstandard's context also
/// holds the bytes that it decoded.
const FRONT_CONTEXT_KEPT_MAX: usize = 8 << 20;

/// Maximum raw length of a frame whose front is decoded into a buffer for the whole frame. For
/// longer frames the buffer holds the front only.
const IN_PLACE_LEN_MAX: usize = 1 << 20;

/// Header of each block of a Zstandard frame, bytes.
const BLOCK_HEADER_LEN: usize = 3;

/// Number of bytes to decode if a reader wants the first `wanted` of `raw_len` bytes. The result is
/// a multiple of the codec's step. It is `raw_len` if the front would be nearly everything, or if
/// the codec cannot stop early.
pub fn front_len(codec: Codec, raw_len: usize, wanted: usize) -> usize {
    let step = match codec {
        Codec::Zstd => ZSTD_STEP_LEN,
        Codec::ZstdDictionary => DICTIONARY_STEP_LEN,
        Codec::None | Codec::Xz => FRONT_STEP_LEN,
        Codec::Lz4 | Codec::Brotli | Codec::ZstdHistory => return raw_len,
    };
    let front = wanted.max(1).checked_next_multiple_of(step);
    let nearly_all = raw_len.saturating_sub(raw_len / 8);
    front.filter(|&f| f < nearly_all).unwrap_or(raw_len)
}

/// Length of the best buffer for decoding the first `len` of `raw_len` bytes. For short frames it
/// is the whole frame: then the codec needs no window of its own.
pub fn front_buffer_len(codec: Codec, raw_len: usize, len: usize) -> usize {
    match codec {
        Codec::Zstd | Codec::ZstdDictionary if raw_len <= IN_PLACE_LEN_MAX => raw_len,
        _ => len,
    }
}

/// A dictionary, prepared for decoding.
pub struct DictionaryBytes(DecoderDictionary<'static>);

impl DictionaryBytes {
    /// Prepares the dictionary `bytes`.
    ///
    /// # Errors
    /// `Corrupt` if the bytes begin like a Zstandard dictionary but are not one.
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
    /// For whole frames that need a dictionary.
    dictionary: Option<DCtx<'static>>,
    /// For fronts of frames without a dictionary.
    front: Option<DCtx<'static>>,
    /// For fronts of frames that need the dictionary that was used last.
    dictionary_front: Option<DictionaryFront>,
}

self_cell::self_cell!(
    /// A context together with the dictionary that it refers to. Preparing a context for each of
    /// many small frames costs 4% of the time to read them.
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
    /// `Corrupt` if the bytes do not decode to that length; `Limit` if memory for it cannot be
    /// allocated.
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

    /// Decodes `stored` to exactly `raw_len` bytes in `raw`. Reuses the memory of `raw` and
    /// discards its old bytes.
    ///
    /// # Errors
    /// As [`Decoder::decode`]; the content of `raw` is unspecified then.
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

    /// Decodes a Zstandard frame that refers back to `history`, to exactly `raw_len` bytes in
    /// `raw`. Discards the old bytes of `raw`.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn decode_with_history(
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
        let zstd_error = |code| bad(codec, zstd::zstd_safe::get_error_name(code));
        let mut context = zstd::zstd_safe::DCtx::try_create()
            .ok_or_else(|| Error::new(ErrorKind::Limit, "no memory for a decoder"))?;
        context.ref_prefix(history).map_err(zstd_error)?;
        context.decompress(raw, frame).map_err(zstd_error)?;
        if raw.len() == raw_len {
            Ok(())
        } else {
            Err(bad(
                codec,
                format_args!("expected {raw_len} bytes, found {}", raw.len()),
            ))
        }
    }

    /// Decodes the first [`front_len`] of `raw_len` bytes into `raw` and discards its old bytes.
    /// Does not check the bytes after the front. If the front fails, decodes everything: each
    /// error is one that decoding the whole record would return.
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
            // The old bytes of the buffer are overwritten, not cleared first: clearing costs as
            // much time as some codecs take to decode.
            match codec {
                Codec::None => {
                    raw.clear();
                    raw.extend_from_slice(stored.get(..len).unwrap_or(&[]));
                }
                Codec::Zstd => {
                    raw.resize(front_buffer_len(codec, raw_len, len), 0);
                    let decoded_len = self.zstd_front(stored, raw_len, len, raw).unwrap_or(0);
                    raw.truncate(decoded_len.min(len));
                }
                Codec::Xz => {
                    raw.resize(len, 0);
                    let decoded_len = xz_front(stored, raw).unwrap_or(0);
                    raw.truncate(decoded_len);
                }
                Codec::ZstdDictionary => {
                    raw.resize(front_buffer_len(codec, raw_len, len), 0);
                    let decoded_len = dictionary
                        .and_then(|d| self.dictionary_front(stored, raw_len, len, d, raw));
                    raw.truncate(decoded_len.unwrap_or(0).min(len));
                }
                Codec::Lz4 | Codec::Brotli | Codec::ZstdHistory => {}
            }
            if raw.len() == len {
                return Ok(());
            }
        }
        self.decode_into(codec, stored, raw_len, dictionary, raw)
    }

    /// Decodes at least the first `wanted` bytes of a frame into `buffer`. Returns the number of
    /// decoded bytes.
    fn zstd_front(
        &mut self,
        stored: &[u8],
        raw_len: usize,
        wanted: usize,
        buffer: &mut [u8],
    ) -> Option<usize> {
        let mut context = match self.front.take() {
            Some(mut context) => {
                context.reset(ResetDirective::SessionOnly).ok()?;
                context
            }
            None => DCtx::try_create()?,
        };
        let decoded_len = frame_front(&mut context, stored, raw_len, wanted, buffer)?;
        if context.sizeof() <= FRONT_CONTEXT_KEPT_MAX {
            self.front = Some(context);
        }
        Some(decoded_len)
    }

    /// The same for a frame that needs a dictionary.
    fn dictionary_front(
        &mut self,
        stored: &[u8],
        raw_len: usize,
        wanted: usize,
        dictionary: &Arc<DictionaryBytes>,
        buffer: &mut [u8],
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
        let (decoded_len, memory_len) = front.with_dependent_mut(|_, context| {
            let decoded_len = frame_front(context, stored, raw_len, wanted, buffer);
            (decoded_len, context.sizeof())
        });
        if decoded_len.is_some() && memory_len <= FRONT_CONTEXT_KEPT_MAX {
            self.dictionary_front = Some(front);
        }
        decoded_len
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

/// Maximum window for a frame of `raw_len` bytes. A frame that asks for a longer window gets no
/// memory.
pub(crate) fn window_of(raw_len: usize) -> DParameter {
    let log = usize::BITS.saturating_sub(raw_len.saturating_sub(1).leading_zeros());
    DParameter::WindowLogMax(log.clamp(10, 27))
}

fn frame_front(
    context: &mut DCtx<'_>,
    stored: &[u8],
    raw_len: usize,
    wanted: usize,
    buffer: &mut [u8],
) -> Option<usize> {
    check_single_frame(Codec::Zstd, stored).ok()?;
    context.set_parameter(window_of(raw_len)).ok()?;
    // If the buffer has room for the whole frame, Zstandard decodes in place, without a window and
    // a copy of its own. Then it stops only when its input ends, so it gets one block at a time.
    let is_in_place = buffer.len() >= raw_len;
    let in_place = DParameter::StableOutBuffer(is_in_place);
    context.set_parameter(in_place).ok()?;
    let mut output = OutBuffer::around(buffer);
    let (mut at, mut given) = (0, frame_header_len(stored)?);
    while output.pos() < wanted {
        given = if is_in_place {
            block_end(stored, given)?
        } else {
            stored.len()
        };
        let mut input = InBuffer::around(stored.get(..given)?);
        input.set_pos(at);
        while output.pos() < wanted {
            let before = (output.pos(), input.pos());
            let hint = context.decompress_stream(&mut output, &mut input).ok()?;
            if hint == 0 || before == (output.pos(), input.pos()) {
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

/// Length of the header of a frame, bytes (RFC 8878, section 3.1.1.1).
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

/// End of the block that begins at `start` of a frame (RFC 8878, section 3.1.1.2). For the last
/// block this is the end of the frame.
pub(crate) fn block_end(frame: &[u8], start: usize) -> Option<usize> {
    let header: [u8; BLOCK_HEADER_LEN] = *frame.get(start..)?.first_chunk()?;
    let [low, middle, high] = header.map(usize::from);
    let header = low | middle << 8 | high << 16;
    let stored_len = match header >> 1 & 3 {
        // RLE block: one byte to repeat.
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

/// Checks that `stored` is one Zstandard frame. zstd itself would also accept several frames, and
/// skippable frames with arbitrary bytes.
pub(crate) fn check_single_frame(codec: Codec, stored: &[u8]) -> Result<()> {
    let is_frame = stored.starts_with(&ZSTD_MAGIC);
    let len = zstd::zstd_safe::find_frame_compressed_size(stored);
    if is_frame && len == Ok(stored.len()) {
        Ok(())
    } else {
        Err(bad(codec, "expected exactly one frame"))
    }
}

/// Decodes the beginning of an xz stream into `front` as far as it goes; returns the number of
/// bytes.
fn xz_front(stored: &[u8], front: &mut [u8]) -> Option<usize> {
    let mut stream = Stream::new_stream_decoder(XZ_MEMORY_MAX, 0).ok()?;
    stream.process(stored, front, Action::Run).ok()?;
    usize::try_from(stream.total_out()).ok()
}

fn decode_xz(stored: &[u8], raw: &mut Vec<u8>) -> Result<()> {
    let codec = Codec::Xz;
    let mut stream = Stream::new_stream_decoder(XZ_MEMORY_MAX, 0).map_err(|e| bad(codec, e))?;
    // `process_vec` fills only spare capacity, so the output cannot exceed the announced length.
    match stream.process_vec(stored, raw, Action::Finish) {
        Ok(Status::StreamEnd) if stream.total_in() == stored.len() as u64 => Ok(()),
        Ok(_) => Err(bad(codec, "expected the stream to end with the record")),
        Err(e) => Err(bad(codec, e)),
    }
}

/// Decodes a stream that must fill `raw` exactly.
fn decode_brotli(stored: &[u8], raw: &mut [u8]) -> Result<()> {
    let alloc = StandardAlloc::default;
    // Strict mode: the stream cannot ask for a window beyond `BROTLI_WINDOW_BITS`.
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
        _ => Err(bad(
            Codec::Brotli,
            "expected the stream to end with the record",
        )),
    }
}
