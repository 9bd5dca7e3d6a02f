//! Raw bytes to stored bytes, verified by decoding before anybody sees them.

use crate::decode::{BROTLI_WINDOW_BITS, DICTIONARY_STEP_LEN, Decoder, DictionaryBytes};
use brotli::enc::BrotliEncoderParams;
use liblzma::stream::{Action, Check, Filters, LzmaOptions, Status, Stream};
use lz4::block::CompressionMode;
use std::sync::Arc;
use weald_format::container::Codec;
use weald_format::{Error, ErrorKind, Result};
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{self, CCtx, CParameter, InBuffer, OutBuffer};

mod parameters;

use parameters::{Effort, SMALL, effort_len};

/// Which codec, at which level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodecSpec {
    /// Stored as they are.
    None,
    /// LZ4.
    Lz4,
    /// LZ4, whose encoder looks longer at level 1 … 12: decodes as fast.
    Lz4Hc(i32),
    /// Zstandard at level 1 … 22.
    Zstd(i32),
    /// Zstandard for ordinary data: level 16 with half and a quarter of its tables, so that more of
    /// a search stays in the processor's caches, and matches from four bytes on; and level 12 for
    /// blocks of which a sample says that a long search gains little. Blocks of up to 256 KiB, and
    /// such as begin with a dictionary, are level 16's.
    ZstdLean,
    /// Zstandard for machine code: the parser of level 16, a quarter of its tables, half of its
    /// search, and matches from three bytes on. 3% smaller than level 16 in less time.
    ZstdCode,
    /// xz (LZMA2) at preset 0 … 9.
    Xz(u32),
    /// Brotli at quality 0 … 11.
    Brotli(u32),
}

impl CodecSpec {
    /// Memory that one encoding thread needs besides input and output, bytes, for blocks of
    /// `block_len`.
    ///
    /// # Source
    /// Zstandard: window, hash, chain and, from level 16 on, the optimal parser's tables, as
    /// `ZSTD_estimateCCtxSize` gives for the window of the block. xz: 11.5 × dictionary
    /// (`lzma_easy_encoder_memusage`).
    // encodes what this program made
    #[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
    pub fn context_len(self, block_len: u64) -> u64 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1 << 16,
            Self::Lz4Hc(_) => 1 << 19,
            Self::ZstdLean | Self::ZstdCode => {
                // Four bytes for each place of two tables; the parser's own and sequences besides.
                let places = block_len.clamp(1 << 16, 1 << 27).next_power_of_two() * 2;
                let tree_places = match self {
                    Self::ZstdLean => places.min(1 << 21),
                    _ => places.min(1 << 20),
                };
                let tables_len = (tree_places + places.min(1 << 20)) * 4;
                tables_len + (2 << 20) + effort_len(self, block_len)
            }
            Self::Zstd(level) => {
                let tables = block_len.clamp(1 << 16, 1 << 27);
                let factor = if level >= 19 {
                    14
                } else if level >= 13 {
                    9
                } else {
                    5
                };
                tables * factor + (1 << 20)
            }
            Self::Xz(_) => block_len.max(1 << 20) * 12,
            Self::Brotli(quality) => brotli_context_len(quality, block_len),
        }
    }
}

/// Bytes that a context of Zstandard with a dictionary may take besides its tables.
const SHARED_CONTEXT_REST_LEN: u64 = 2 << 20;

impl CodecSpec {
    /// Memory that one encoding thread needs for blocks of `block_len` that begin with a dictionary
    /// of `dictionary_len`, bytes; 0 where there is none.
    ///
    /// # Source
    /// `ZSTD_sizeof_CCtx` of zstd 1.5.7: tables for the next power of two of the dictionary and of
    /// the half kilobyte that Zstandard takes what follows it for, once as they are made and once
    /// as a frame goes on with them.
    #[allow(clippy::arithmetic_side_effects)] // lengths of blocks and small factors
    pub fn shared_context_len(self, dictionary_len: u64, block_len: u64) -> u64 {
        let Some(level) = self.dictionary_level().filter(|_| dictionary_len > 0) else {
            return 0;
        };
        let places = (dictionary_len + 1024).next_power_of_two();
        let factor = match level {
            10.. => 34,
            4.. => 23,
            _ => 4,
        };
        places * factor + block_len + SHARED_CONTEXT_REST_LEN
    }
}

/// What brotli's encoder was measured to take at most for blocks of 256 KiB to 16 MiB of Python,
/// with a tenth on top. Beyond its largest window it takes no more.
#[allow(clippy::arithmetic_side_effects)] // lengths of blocks and small factors
fn brotli_context_len(quality: u32, block_len: u64) -> u64 {
    let len = block_len.clamp(1 << 18, 1 << (BROTLI_WINDOW_BITS + 1));
    let (factor, mib) = match quality {
        0 | 1 => (0, 1),
        2 | 3 => (3, 2),
        4..=6 => (8, 4),
        7 | 8 => (8, 12),
        9 => (9, 40),
        _ => (16, 24),
    };
    len * factor + (mib << 20)
}

impl CodecSpec {
    /// The level of Zstandard that it is, or begins with.
    const fn zstd_level(self) -> i32 {
        match self {
            Self::Zstd(level) => level,
            _ => 16,
        }
    }

    /// The level of Zstandard that blocks with a dictionary have; nothing where the codec takes
    /// none.
    pub const fn dictionary_level(self) -> Option<i32> {
        match self {
            Self::Zstd(_) | Self::ZstdLean => Some(self.zstd_level()),
            _ => None,
        }
    }
}

/// The outcome of an encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Codec actually used: `none` where the wanted one did not make it smaller.
    pub codec: Codec,
    /// Stored bytes, never more than the raw ones.
    pub stored: Vec<u8>,
}

/// Bytes that a block of a frame takes at most besides what it holds.
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
    /// `Corrupt` where `bytes` begin like a Zstandard dictionary and are none.
    pub fn new(level: i32, bytes: &[u8]) -> Result<Self> {
        Ok(Self {
            bytes: bytes.into(),
            level,
            decoder: Arc::new(DictionaryBytes::new(bytes)?),
        })
    }

    /// A context that begins every frame with the dictionary, whose tables it makes when it meets
    /// the first.
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
            context.set_parameter(parameter).map_err(named)?;
        }
        context.load_dictionary(&self.bytes).map_err(named)?;
        Ok(context)
    }
}

/// The text of a code of Zstandard's.
fn named(code: usize) -> Error {
    failed(zstd_safe::get_error_name(code))
}

/// Reusable encoding state of one thread.
pub struct Encoder {
    spec: CodecSpec,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    effort: Option<Effort>,
    dictionary: Option<Arc<DictionaryBytes>>,
    /// The dictionary that was met last, and a context for it.
    with_shared: Option<(SharedDictionary, CCtx<'static>)>,
    decoder: Decoder,
}

fn failed(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Limit, format!("encoder: {what}"))
}

impl Encoder {
    /// An encoder for blocks of up to `block_len` raw bytes.
    ///
    /// # Errors
    /// `Limit` where the codec refuses its parameters or memory.
    pub fn new(spec: CodecSpec, block_len: u64) -> Result<Self> {
        let mut encoder = Self {
            spec,
            zstd: None,
            effort: None,
            dictionary: None,
            with_shared: None,
            decoder: Decoder::default(),
        };
        if let CodecSpec::Zstd(_) | CodecSpec::ZstdLean | CodecSpec::ZstdCode = spec {
            let mut context = zstd::bulk::Compressor::new(spec.zstd_level()).map_err(failed)?;
            let own = spec.own_parameters(block_len).iter();
            own.copied().try_for_each(|p| set(&mut context, p))?;
            let window = u64::BITS.saturating_sub(block_len.saturating_sub(1).leading_zeros());
            let window = CParameter::WindowLog(window.clamp(10, 26));
            set(&mut context, window)?;
            encoder.zstd = Some(context.tuned()?);
            encoder.effort = Effort::new(spec, block_len, window)?;
        }
        Ok(encoder)
    }

    /// A Zstandard encoder for metadata that shares `dictionary`.
    ///
    /// # Errors
    /// `Limit`.
    pub fn with_dictionary(level: i32, dictionary: &[u8]) -> Result<Self> {
        let context = zstd::bulk::Compressor::with_dictionary(level, dictionary).map_err(failed)?;
        Ok(Self {
            spec: CodecSpec::Zstd(level),
            zstd: Some(context.tuned()?),
            effort: None,
            dictionary: Some(Arc::new(DictionaryBytes::new(dictionary)?)),
            with_shared: None,
            decoder: Decoder::default(),
        })
    }

    /// Encodes `raw`, decodes the outcome and compares.
    ///
    /// # Errors
    /// `Limit` where the codec fails.
    /// # Panics
    /// If the decoder does not give back `raw`: a codec that loses data must not go on.
    pub fn encode(&mut self, raw: &[u8]) -> Result<Encoded> {
        self.encode_with(raw, None)
    }

    /// The same with a dictionary, which only Zstandard uses.
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
            CodecSpec::Zstd(_) | CodecSpec::ZstdLean | CodecSpec::ZstdCode => {
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

/// One Zstandard frame that goes on behind `history`, verified by decoding. What `raw` shares with
/// `history` costs next to nothing.
///
/// # Errors
/// `Limit` where the codec fails.
/// # Panics
/// If the decoder does not give back `raw`.
/// # Cost
/// Level 12 and below: about 0.1 s for a history of 8 MiB; memory as [`history_context_len`] says.
pub fn encode_after(raw: &[u8], history: &[u8], level: i32) -> Result<Vec<u8>> {
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
        context.set_parameter(parameter).map_err(named)?;
    }
    context.ref_prefix(history).map_err(named)?;
    let mut frame = Vec::with_capacity(zstd::zstd_safe::compress_bound(raw.len()));
    context.compress2(&mut frame, raw).map_err(named)?;
    let mut decoded = Vec::new();
    let outcome = Decoder::decode_after(&frame, history, raw.len(), &mut decoded);
    assert!(
        outcome.is_ok() && decoded == raw,
        "zstd-history does not decode to what was encoded"
    );
    Ok(frame)
}

/// Bytes of memory that [`encode_after`] needs at level 12 or below for this history, the history
/// itself included twice: once as it is decoded, once as it is handed over.
///
/// # Source
/// zstd 1.5.7, `clevels.h`: hash and chain table of level 12 have 2^22 and 2^21 places at most.
pub fn history_context_len(history_len: u64) -> u64 {
    let places = history_len.next_power_of_two().min(1 << 21);
    places
        .saturating_mul(12)
        .saturating_add(history_len.saturating_mul(2))
        .saturating_add(4 << 20)
}

/// Bytes that Zstandard at `level` makes of `raw`, to compare others with.
///
/// # Errors
/// `Limit` where it fails.
pub fn trial_len(level: i32, raw: &[u8]) -> Result<usize> {
    let stored = zstd::bulk::compress(raw, level).map_err(failed)?;
    Ok(stored.len())
}

/// One frame that a decoder can leave at every [`DICTIONARY_STEP_LEN`] raw bytes.
#[allow(clippy::arithmetic_side_effects)] // encodes what this program made
fn encode_in_steps(raw: &[u8], context: &mut CCtx<'static>) -> Result<Vec<u8>> {
    context
        .set_pledged_src_size(Some(raw.len() as u64))
        .map_err(named)?;
    let step_count = raw.len() / DICTIONARY_STEP_LEN + 1;
    let room = zstd_safe::compress_bound(raw.len()) + step_count * STEP_COST_MAX;
    let mut stored = Vec::with_capacity(room);
    let mut output = OutBuffer::around(&mut stored);
    let mut rest = raw;
    while !rest.is_empty() {
        let (step, behind) = rest.split_at(rest.len().min(DICTIONARY_STEP_LEN));
        let how = match behind.is_empty() {
            true => ZSTD_EndDirective::ZSTD_e_end,
            false => ZSTD_EndDirective::ZSTD_e_flush,
        };
        let mut input = InBuffer::around(step);
        while context
            .compress_stream2(&mut output, &mut input, how)
            .map_err(named)?
            != 0
        {
            if output.pos() == room {
                return Err(Error::limit("an encoder wrote more than it said"));
            }
        }
        rest = behind;
    }
    Ok(stored)
}

fn set(context: &mut zstd::bulk::Compressor<'static>, parameter: CParameter) -> Result<()> {
    context.set_parameter(parameter).map_err(failed)
}

trait Tuned: Sized {
    fn tuned(self) -> Result<Self>;
}

impl Tuned for zstd::bulk::Compressor<'static> {
    /// Leaves out what records hold already: checksum and dictionary id. The content size stays: it
    /// lets the decoder refuse a frame that is too long before it starts.
    fn tuned(mut self) -> Result<Self> {
        set(&mut self, CParameter::ChecksumFlag(false))?;
        set(&mut self, CParameter::DictIdFlag(false))?;
        Ok(self)
    }
}

// encodes what this program made
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
        // Did not fit: larger than raw, so the caller stores it as it is.
        Ok(_) => Ok(Vec::new()),
        Err(e) => Err(failed(e)),
    }
}

// encodes what this program made
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

    const SPECS: [CodecSpec; 9] = [
        CodecSpec::None,
        CodecSpec::Lz4,
        CodecSpec::Zstd(1),
        CodecSpec::Zstd(19),
        CodecSpec::ZstdLean,
        CodecSpec::ZstdCode,
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

    /// Would catch: contexts that outgrow what a build counts for them, and parameters that are
    /// said and not set.
    #[test]
    fn contexts_of_own_parameters_are_as_long_as_said_at_most() {
        let noise = |i: usize| (i.wrapping_mul(2_654_435_761) >> 13 & 15) as u8;
        for spec in [CodecSpec::ZstdLean, CodecSpec::ZstdCode] {
            for block_len in [
                4 << 10,
                64 << 10,
                208 << 10,
                300 << 10,
                1 << 20,
                4 << 20,
                8 << 20,
            ] {
                let block: Vec<u8> = (0..block_len).map(noise).collect();
                let mut encoder = Encoder::new(spec, block_len as u64).unwrap();
                let context = encoder.zstd.as_mut().unwrap();
                context.compress(&block).unwrap();
                let said = spec.context_len(block_len as u64);
                let effort = encoder.effort.as_mut();
                let rest = effort.map_or(0, |effort| effort.len_after(&block));
                let found = encoder.zstd.as_mut().unwrap().context_mut().sizeof() as u64 + rest;
                assert!(
                    found <= said && said <= found * 2 + (3 << 20),
                    "{spec:?}, block {block_len}: said {said}, found {found}"
                );
            }
        }
    }

    /// Would catch: small blocks with the tables of large ones.
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

    /// Would catch: contexts that outgrow what a build counts for them.
    #[test]
    fn a_context_with_a_dictionary_is_as_long_as_said_at_most() {
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
                let said = CodecSpec::Zstd(level)
                    .shared_context_len((dictionary_len as u64) << 10, (block_len as u64) << 10);
                let found = context.sizeof() as u64;
                assert!(
                    found <= said && (level < 13 || said <= found * 2 + (4 << 20)),
                    "level {level}, dictionary {dictionary_len}K, block {block_len}K: said {said}, found {found}"
                );
            }
        }
    }
}
