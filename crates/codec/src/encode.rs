//! Encodes raw bytes to stored bytes, and verifies each result by decoding it.

use crate::decode::{BROTLI_WINDOW_BITS, DICTIONARY_STEP_LEN, Decoder, DictionaryBytes};
use brotli::enc::BrotliEncoderParams;
use liblzma::stream::{Action, Check, Filters, LzmaOptions, Status, Stream};
use lz4::block::CompressionMode;
use std::sync::Arc;
use weald_format::container::Codec;
use weald_format::{Error, Result};
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{self, CCtx, CParameter, InBuffer, OutBuffer};

mod context;
mod memory;
mod parameters;
mod spec;

pub use memory::history_context_len;
pub use spec::CodecSpec;

use context::{WithoutExtras, failed, set, zstd_error};
use parameters::{Effort, SMALL};

/// Result of an encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Codec of the stored bytes: `none` if the requested codec did not make them smaller.
    pub codec: Codec,
    /// Stored bytes, never more than the raw bytes.
    pub stored: Vec<u8>,
}

/// Maximum overhead of a block in a frame, bytes.
const STEP_COST_MAX: usize = 64;

/// A dictionary that many Zstandard encoders share, at one level.
#[derive(Clone)]
pub struct SharedDictionary {
    bytes: Arc<[u8]>,
    level: i32,
    decoder: Arc<DictionaryBytes>,
}

impl SharedDictionary {
    /// Prepares `bytes` for encoders of `level`.
    ///
    /// # Errors
    /// `Corrupt` if `bytes` begin like a Zstandard dictionary but are not one.
    pub fn new(level: i32, bytes: &[u8]) -> Result<Self> {
        Ok(Self {
            bytes: bytes.into(),
            level,
            decoder: Arc::new(DictionaryBytes::new(bytes)?),
        })
    }

    /// Makes a context that starts every frame with the dictionary. The context builds its tables
    /// with the first frame.
    fn context(&self) -> Result<CCtx<'static>> {
        let mut context =
            CCtx::try_create().ok_or_else(|| Error::limit("no memory for an encoder"))?;
        let own: &[CParameter] = match self.level {
            16 => &SMALL,
            _ => &[],
        };
        let plain = [
            CParameter::CompressionLevel(self.level),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ];
        for &parameter in plain.iter().chain(own) {
            context.set_parameter(parameter).map_err(zstd_error)?;
        }
        context.load_dictionary(&self.bytes).map_err(zstd_error)?;
        Ok(context)
    }
}

/// Reusable encoding state of one thread.
pub struct Encoder {
    spec: CodecSpec,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    effort: Option<Effort>,
    dictionary: Option<Arc<DictionaryBytes>>,
    /// The dictionary that was used last, and a context for it.
    with_shared: Option<(SharedDictionary, CCtx<'static>)>,
    decoder: Decoder,
}

impl Encoder {
    /// Makes an encoder for blocks of up to `block_len` raw bytes.
    ///
    /// # Errors
    /// `Limit` if the codec refuses its parameters or memory.
    pub fn new(spec: CodecSpec, block_len: u64) -> Result<Self> {
        let mut encoder = Self {
            spec,
            zstd: None,
            effort: None,
            dictionary: None,
            with_shared: None,
            decoder: Decoder::default(),
        };
        if spec.is_zstd() {
            let mut context = zstd::bulk::Compressor::new(spec.zstd_level()).map_err(failed)?;
            let own = spec.own_parameters(block_len).iter();
            own.copied().try_for_each(|p| set(&mut context, p))?;
            let window = u64::BITS.saturating_sub(block_len.saturating_sub(1).leading_zeros());
            let window = CParameter::WindowLog(window.clamp(10, 26));
            set(&mut context, window)?;
            encoder.zstd = Some(context.without_extras()?);
            encoder.effort = Effort::new(spec, block_len, window)?;
        }
        Ok(encoder)
    }

    /// Makes a Zstandard encoder for metadata that uses `dictionary`.
    ///
    /// # Errors
    /// `Limit`.
    pub fn with_dictionary(level: i32, dictionary: &[u8]) -> Result<Self> {
        let context = zstd::bulk::Compressor::with_dictionary(level, dictionary).map_err(failed)?;
        Ok(Self {
            spec: CodecSpec::Zstd(level),
            zstd: Some(context.without_extras()?),
            effort: None,
            dictionary: Some(Arc::new(DictionaryBytes::new(dictionary)?)),
            with_shared: None,
            decoder: Decoder::default(),
        })
    }

    /// Encodes `raw`, decodes the result and compares.
    ///
    /// # Errors
    /// `Limit` if the codec fails.
    /// # Panics
    /// If the decoder does not return `raw`: a codec that loses data must not be used further.
    pub fn encode(&mut self, raw: &[u8]) -> Result<Encoded> {
        self.encode_with(raw, None)
    }

    /// The same for bytes of several kinds, which meet at `borders`, in ascending order. A block of
    /// the Zstandard frame ends at each, so that every kind has a table of its own for its symbols.
    ///
    /// # Errors
    /// As [`Encoder::encode`].
    /// # Panics
    /// As [`Encoder::encode`].
    pub fn encode_in_parts(&mut self, raw: &[u8], borders: &[usize]) -> Result<Encoded> {
        let is_zstd = matches!(self.spec, CodecSpec::Zstd(_));
        match &mut self.zstd {
            Some(context) if is_zstd && !borders.is_empty() => {
                let codec = if self.dictionary.is_some() {
                    Codec::ZstdDictionary
                } else {
                    Codec::Zstd
                };
                let stored = encode_up_to(borders, raw, context.context_mut())?;
                self.verify(raw, codec, stored, None)
            }
            _ => self.encode(raw),
        }
    }

    /// The same with a dictionary. Only Zstandard uses it.
    ///
    /// # Errors
    /// As [`Encoder::encode`].
    /// # Panics
    /// As [`Encoder::encode`].
    pub fn encode_with(
        &mut self,
        raw: &[u8],
        dictionary: Option<&SharedDictionary>,
    ) -> Result<Encoded> {
        let dictionary = dictionary.filter(|_| self.spec.dictionary_level().is_some());
        let (codec, stored) = match self.spec {
            CodecSpec::None => (Codec::None, Vec::new()),
            CodecSpec::Lz4 => (Codec::Lz4, lz4_flex::block::compress(raw)),
            CodecSpec::Lz4Hc(level) => {
                let mode = CompressionMode::HIGHCOMPRESSION(level);
                let stored = lz4::block::compress(raw, Some(mode), false);
                (Codec::Lz4, stored.map_err(failed)?)
            }
            CodecSpec::Zstd(_) | CodecSpec::ZstdLean if dictionary.is_some() => {
                let shared = dictionary.ok_or_else(|| failed("no dictionary"))?;
                let context = self.context_of(shared)?;
                (Codec::ZstdDictionary, encode_in_steps(raw, context)?)
            }
            CodecSpec::Zstd(_)
            | CodecSpec::ZstdLean
            | CodecSpec::ZstdCode
            | CodecSpec::ZstdDeep => {
                let codec = if self.dictionary.is_some() {
                    Codec::ZstdDictionary
                } else {
                    Codec::Zstd
                };
                let quick = match &mut self.effort {
                    Some(effort) => effort.quick_for(raw)?,
                    None => None,
                };
                let context = quick.or(self.zstd.as_mut());
                let context = context.ok_or_else(|| failed("no context"))?;
                (codec, context.compress(raw).map_err(failed)?)
            }
            CodecSpec::Xz(preset) => (Codec::Xz, encode_xz(preset, raw)?),
            CodecSpec::Brotli(quality) => (Codec::Brotli, encode_brotli(quality, raw)?),
        };
        self.verify(raw, codec, stored, dictionary)
    }

    /// Decodes what `raw` was encoded as and compares; takes `raw` itself if that is no longer.
    fn verify(
        &mut self,
        raw: &[u8],
        codec: Codec,
        stored: Vec<u8>,
        dictionary: Option<&SharedDictionary>,
    ) -> Result<Encoded> {
        if stored.is_empty() || stored.len() >= raw.len() {
            return Ok(Encoded {
                codec: Codec::None,
                stored: raw.to_vec(),
            });
        }
        let used = dictionary.map(|d| &d.decoder).or(self.dictionary.as_ref());
        let decoded = self.decoder.decode(codec, &stored, raw.len(), used);
        assert!(
            decoded.is_ok_and(|d| d == raw),
            "{codec:?} does not decode to what was encoded"
        );
        Ok(Encoded { codec, stored })
    }

    fn context_of(&mut self, shared: &SharedDictionary) -> Result<&mut CCtx<'static>> {
        let known = self.with_shared.take();
        let known = known.filter(|(known, _)| Arc::ptr_eq(&known.bytes, &shared.bytes));
        let context = match known {
            Some((_, context)) => context,
            None => shared.context()?,
        };
        let (_, context) = self.with_shared.insert((shared.clone(), context));
        Ok(context)
    }
}

/// Encodes one Zstandard frame that may refer back to `history`, and verifies it by decoding. Data
/// that `raw` shares with `history` costs next to nothing.
///
/// # Errors
/// `Limit` if the codec fails.
/// # Panics
/// If the decoder does not return `raw`.
/// # Cost
/// Level 12 and below: about 0.1 s for a history of 8 MiB; memory: [`history_context_len`].
pub fn encode_with_history(raw: &[u8], history: &[u8], level: i32) -> Result<Vec<u8>> {
    let mut context =
        zstd::zstd_safe::CCtx::try_create().ok_or_else(|| failed("no memory for a context"))?;
    let len = (raw.len() as u64).saturating_add(history.len() as u64);
    let window = u64::BITS.saturating_sub(len.saturating_sub(1).leading_zeros());
    for parameter in [
        CParameter::CompressionLevel(level),
        CParameter::WindowLog(window.clamp(10, 27)),
        CParameter::ChecksumFlag(false),
        CParameter::DictIdFlag(false),
    ] {
        context.set_parameter(parameter).map_err(zstd_error)?;
    }
    context.ref_prefix(history).map_err(zstd_error)?;
    let mut frame = Vec::with_capacity(zstd::zstd_safe::compress_bound(raw.len()));
    context.compress2(&mut frame, raw).map_err(zstd_error)?;
    let mut decoded = Vec::new();
    let outcome = Decoder::decode_with_history(&frame, history, raw.len(), &mut decoded);
    assert!(
        outcome.is_ok() && decoded == raw,
        "zstd-history does not decode to what was encoded"
    );
    Ok(frame)
}

/// Length of `raw` after Zstandard at `level`, to compare other encodings with.
///
/// # Errors
/// `Limit` if Zstandard fails.
pub fn trial_len(level: i32, raw: &[u8]) -> Result<usize> {
    let stored = zstd::bulk::compress(raw, level).map_err(failed)?;
    Ok(stored.len())
}

/// Encodes one frame with a block boundary after every [`DICTIONARY_STEP_LEN`] raw bytes, so that a
/// decoder can stop there.
fn encode_in_steps(raw: &[u8], context: &mut CCtx<'static>) -> Result<Vec<u8>> {
    let steps: Vec<usize> = (0..raw.len())
        .step_by(DICTIONARY_STEP_LEN)
        .skip(1)
        .collect();
    encode_up_to(&steps, raw, context)
}

/// Encodes one frame in which a block ends at each of `borders`, which ascend.
#[allow(clippy::arithmetic_side_effects)] // trusted input: values of this program
fn encode_up_to(borders: &[usize], raw: &[u8], context: &mut CCtx<'static>) -> Result<Vec<u8>> {
    context
        .set_pledged_src_size(Some(raw.len() as u64))
        .map_err(zstd_error)?;
    let capacity = zstd_safe::compress_bound(raw.len()) + (borders.len() + 1) * STEP_COST_MAX;
    let mut stored = Vec::with_capacity(capacity);
    let mut output = OutBuffer::around(&mut stored);
    let (mut at, mut rest) = (0, raw);
    for &end in borders.iter().chain([&raw.len()]) {
        let len = end.saturating_sub(at).min(rest.len());
        let (step, after) = rest.split_at(len);
        (at, rest) = (at + len, after);
        let how = if rest.is_empty() {
            ZSTD_EndDirective::ZSTD_e_end
        } else {
            ZSTD_EndDirective::ZSTD_e_flush
        };
        let mut input = InBuffer::around(step);
        while context
            .compress_stream2(&mut output, &mut input, how)
            .map_err(zstd_error)?
            != 0
        {
            if output.pos() == capacity {
                return Err(Error::limit("encoder: wrote more than its declared bound"));
            }
        }
        if rest.is_empty() {
            break;
        }
    }
    Ok(stored)
}

// trusted input: values of this program
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
fn encode_xz(preset: u32, raw: &[u8]) -> Result<Vec<u8>> {
    let mut options = LzmaOptions::new_preset(preset).map_err(failed)?;
    options.dict_size((raw.len() as u32).next_power_of_two().clamp(4096, 64 << 20));
    let mut filters = Filters::new();
    filters.lzma2(&options);
    let mut stream = Stream::new_stream_encoder(&filters, Check::None).map_err(failed)?;
    let mut out = Vec::with_capacity(raw.len() + 256);
    match stream.process_vec(raw, &mut out, Action::Finish) {
        Ok(Status::StreamEnd) => Ok(out),
        // The output did not fit: it is larger than the raw bytes, so the caller stores those.
        Ok(_) => Ok(Vec::new()),
        Err(e) => Err(failed(e)),
    }
}

// trusted input: values of this program
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
fn encode_brotli(quality: u32, raw: &[u8]) -> Result<Vec<u8>> {
    let params = BrotliEncoderParams {
        quality: quality as i32,
        lgwin: (usize::BITS - raw.len().leading_zeros()).clamp(10, BROTLI_WINDOW_BITS) as i32,
        size_hint: raw.len(),
        ..BrotliEncoderParams::default()
    };
    let mut out = Vec::with_capacity(raw.len() / 2);
    brotli::BrotliCompress(&mut &raw[..], &mut out, &params).map_err(failed)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECS: [CodecSpec; 10] = [
        CodecSpec::None,
        CodecSpec::Lz4,
        CodecSpec::Zstd(1),
        CodecSpec::Zstd(19),
        CodecSpec::ZstdLean,
        CodecSpec::ZstdCode,
        CodecSpec::ZstdDeep,
        CodecSpec::Xz(6),
        CodecSpec::Brotli(0),
        CodecSpec::Brotli(9),
    ];

    #[test]
    fn every_codec_round_trips_and_refuses_wrong_lengths() {
        let text: Vec<u8> = (0..50_000u32)
            .flat_map(|i| format!("{} ", i % 977).into_bytes())
            .collect();
        for spec in SPECS {
            let encoded = Encoder::new(spec, 1 << 20).unwrap().encode(&text).unwrap();
            assert_eq!(
                encoded.codec == Codec::None,
                spec == CodecSpec::None,
                "{spec:?}"
            );
            let mut decoder = Decoder::default();
            assert_eq!(
                decoder
                    .decode(encoded.codec, &encoded.stored, text.len(), None)
                    .unwrap(),
                text
            );
            for wrong in [text.len() - 1, text.len() + 1, 0, 1] {
                assert!(
                    decoder
                        .decode(encoded.codec, &encoded.stored, wrong, None)
                        .is_err(),
                    "{spec:?} {wrong}"
                );
            }
            let cut = encoded.stored.len() - 1;
            assert!(
                decoder
                    .decode(encoded.codec, &encoded.stored[..cut], text.len(), None)
                    .is_err()
            );
        }
    }

    #[test]
    fn incompressible_bytes_are_stored_as_they_are() {
        let mut reader = blake3::Hasher::new().finalize_xof();
        let mut noise = vec![0; 100_000];
        reader.fill(&mut noise);
        for spec in SPECS {
            let encoded = Encoder::new(spec, 1 << 20).unwrap().encode(&noise).unwrap();
            assert_eq!(
                (encoded.codec, encoded.stored == noise),
                (Codec::None, true),
                "{spec:?}"
            );
        }
    }

    /// Catches: contexts that take more memory than a build reserves for them, and declared
    /// parameters that are not applied.
    #[test]
    fn contexts_of_own_parameters_are_no_longer_than_declared() {
        let noise = |i: usize| (i.wrapping_mul(2_654_435_761) >> 13 & 15) as u8;
        for spec in [
            CodecSpec::ZstdLean,
            CodecSpec::ZstdCode,
            CodecSpec::ZstdDeep,
        ] {
            for block_len in [
                4 << 10,
                64 << 10,
                208 << 10,
                300 << 10,
                1 << 20,
                4 << 20,
                8 << 20,
                16 << 20,
            ] {
                let block: Vec<u8> = (0..block_len).map(noise).collect();
                let mut encoder = Encoder::new(spec, block_len as u64).unwrap();
                let context = encoder.zstd.as_mut().unwrap();
                context.compress(&block).unwrap();
                let declared = spec.context_len(block_len as u64);
                let effort = encoder.effort.as_mut();
                let rest = effort.map_or(0, |effort| effort.len_after(&block));
                let found = encoder.zstd.as_mut().unwrap().context_mut().sizeof() as u64 + rest;
                assert!(
                    found <= declared && declared <= found * 2 + (3 << 20),
                    "{spec:?}, block {block_len}: declared {declared}, found {found}"
                );
            }
        }
    }

    /// Catches: small blocks with the tables of large ones.
    #[test]
    fn small_blocks_are_those_of_level_16() {
        let text: Vec<u8> = (0..40_000u32)
            .flat_map(|i| format!("{} ", i.wrapping_mul(i) % 9973).into_bytes())
            .collect();
        let stored = |spec, block_len| {
            let mut encoder = Encoder::new(spec, block_len).unwrap();
            encoder.encode(&text).unwrap().stored
        };
        let level = CodecSpec::Zstd(16);
        assert!(stored(CodecSpec::ZstdLean, 256 << 10) == stored(level, 256 << 10));
        assert!(stored(CodecSpec::ZstdLean, 4 << 20) != stored(level, 4 << 20));
    }

    /// Catches: contexts that take more memory than a build reserves for them.
    #[test]
    fn a_context_with_a_dictionary_is_no_longer_than_declared() {
        let noise = |len: usize, mask: usize| -> Vec<u8> {
            let byte = |i: usize| (i.wrapping_mul(2_654_435_761) >> 13 & mask) as u8;
            (0..len).map(byte).collect()
        };
        for level in [1, 3, 4, 6, 12, 13, 16, 22] {
            for (dictionary_len, block_len) in
                [(64, 64), (224, 208), (448, 208), (1024, 16), (448, 2048)]
            {
                let shared = SharedDictionary::new(level, &noise(dictionary_len << 10, 255));
                let mut context = shared.and_then(|shared| shared.context()).unwrap();
                encode_in_steps(&noise(block_len << 10, 15), &mut context).unwrap();
                let declared = CodecSpec::Zstd(level)
                    .shared_context_len((dictionary_len as u64) << 10, (block_len as u64) << 10);
                let found = context.sizeof() as u64;
                assert!(
                    found <= declared && (level < 13 || declared <= found * 2 + (4 << 20)),
                    "level {level}, dictionary {dictionary_len}K, block {block_len}K: \
                     declared {declared}, found {found}"
                );
            }
        }
    }
}
