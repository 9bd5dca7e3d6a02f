//! Stored bytes to raw bytes. The caller has verified the stored bytes; a forged length still cannot make a decoder
//! allocate more than the raw length that was announced, plus a fixed working set.

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use liblzma::stream::{Action, Status, Stream};
use std::sync::Arc;
use weald_format::container::Codec;
use weald_format::{Error, ErrorKind, Result};
use zstd::dict::DecoderDictionary;

/// Most memory that the xz decoder may use besides its output: preset 9 needs 65 MiB.
const XZ_MEMORY_MAX: u64 = 80 << 20;

/// The largest window of brotli as RFC 7932 has it, 16 MiB; "large windows" of up to 1 GiB are an extension.
pub(crate) const BROTLI_WINDOW_BITS: u32 = 24;

/// First bytes of a Zstandard frame.
const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

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
}

fn bad(codec: Codec, what: impl std::fmt::Display) -> Error {
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
    /// `Corrupt` where the bytes do not decode to that length; `Limit` where memory for it cannot be had.
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

    /// Decodes `stored` to exactly `raw_len` bytes in `raw`, whose old bytes go and whose memory is used again.
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
                let mut context = zstd::bulk::Decompressor::with_prepared_dictionary(&dictionary.0)
                    .map_err(|e| bad(codec, e))?;
                context
                    .decompress_to_buffer(stored, raw)
                    .map_err(|e| bad(codec, e))?;
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

    /// Decodes a Zstandard frame that goes on behind `history` to exactly `raw_len` bytes in `raw`, whose old bytes go.
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

/// zstd itself would take several frames, and frames of any bytes to be skipped.
fn check_single_frame(codec: Codec, stored: &[u8]) -> Result<()> {
    let is_frame = stored.starts_with(&ZSTD_MAGIC);
    let len = zstd::zstd_safe::find_frame_compressed_size(stored);
    match is_frame && len == Ok(stored.len()) {
        true => Ok(()),
        false => Err(bad(codec, "expected one frame and nothing else")),
    }
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
