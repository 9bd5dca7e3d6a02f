//! Zstandard parameters beyond the level, and the choice between a quick and a thorough search for
//! ordinary data. `docs/design/0004-levels.md` compares them with other parameters.

use super::context::{WithoutExtras, failed, set};
use super::spec::CodecSpec;
use weald_format::Result;
use zstd::bulk::Compressor;
use zstd::zstd_safe::{CParameter, Strategy};

/// Maximum block length for which Zstandard has its own row of levels, bytes. The tables of these
/// levels are no larger than such blocks need.
const SMALL_LEN: u64 = 256 << 10;

/// Whether blocks of up to `block_len` get the parameters of large blocks.
pub const fn is_large(block_len: u64) -> bool {
    block_len > SMALL_LEN
}

/// Parameters of level 16 for up to 256 KiB. Zstandard adds the length of a dictionary to the
/// length of the input. Without these parameters it would choose those for megabytes of data, for
/// example matches of at least five bytes (`clevels.h` of zstd 1.5.7).
pub const SMALL: [CParameter; 4] = [
    CParameter::Strategy(Strategy::ZSTD_btultra),
    CParameter::SearchLog(6),
    CParameter::MinMatch(3),
    CParameter::TargetLength(128),
];

/// Parameters of [`CodecSpec::ZstdLean`] that differ from level 16. Level 16 has 2^22 entries in
/// either table and searches 2^5 candidates for matches of at least five bytes. It stops at a match
/// of 48.
const LEAN: [CParameter; 5] = [
    CParameter::ChainLog(21),
    CParameter::HashLog(20),
    CParameter::SearchLog(4),
    CParameter::MinMatch(4),
    CParameter::TargetLength(64),
];

/// Parameters of [`CodecSpec::ZstdCode`] that differ from level 16.
const CODE: [CParameter; 5] = [
    CParameter::ChainLog(20),
    CParameter::HashLog(20),
    CParameter::SearchLog(4),
    CParameter::MinMatch(3),
    CParameter::TargetLength(128),
];

/// Parser of level 16 for large blocks. [`LEAN`] does not set it, so that Zstandard chooses it by
/// the length of the block.
const PARSER: CParameter = CParameter::Strategy(Strategy::ZSTD_btopt);

/// Parameters of level 12 for large blocks, with half of its hash table, for blocks of any length.
const QUICK: [CParameter; 6] = [
    CParameter::Strategy(Strategy::ZSTD_lazy2),
    CParameter::ChainLog(22),
    CParameter::HashLog(22),
    CParameter::SearchLog(6),
    CParameter::MinMatch(5),
    CParameter::TargetLength(32),
];

/// Parameters of [`CodecSpec::ZstdDeep`] that differ from level 16.
const DEEP: [CParameter; 6] = [
    CParameter::Strategy(Strategy::ZSTD_btultra2),
    CParameter::ChainLog(23),
    CParameter::HashLog(21),
    CParameter::SearchLog(6),
    CParameter::MinMatch(3),
    CParameter::TargetLength(256),
];

impl CodecSpec {
    /// Parameters that differ from those of its level, for blocks of `block_len`.
    pub(super) const fn own_parameters(self, block_len: u64) -> &'static [CParameter] {
        match self {
            Self::ZstdDeep => &DEEP,
            Self::ZstdCode => &CODE,
            Self::ZstdLean if is_large(block_len) => &LEAN,
            _ => &[],
        }
    }
}

/// Number and length (bytes) of the pieces that make up the sample of a block. They come from the
/// middles of equal parts of the block.
const TRIAL_PIECE_COUNT: usize = 4;
/// See [`TRIAL_PIECE_COUNT`].
const TRIAL_PIECE_LEN: usize = 32 << 10;
const TRIAL_SAMPLE_LEN: usize = TRIAL_PIECE_COUNT * TRIAL_PIECE_LEN;
/// The thorough search must save at least one byte per this many raw bytes. Else the quick search
/// is used, which takes a sixth of its time.
const RAW_PER_SAVED_BYTE: usize = 182;

/// Maximum memory of [`Effort`] for blocks of `block_len`, bytes; 0 if the codec does not use it.
/// It counts the quick search's hash table with a tag byte per entry, the tables for a sample, and
/// the rest of both contexts.
#[allow(clippy::arithmetic_side_effects)] // lengths of tables
pub fn effort_len(spec: CodecSpec, block_len: u64) -> u64 {
    if spec != CodecSpec::ZstdLean || !is_large(block_len) {
        return 0;
    }
    let hashes = block_len.min(1 << 21).next_power_of_two() * 2;
    hashes * 5 + (6 << 20)
}

/// Recognizes blocks that a thorough search makes hardly smaller, and encodes them with a quick
/// one.
pub struct Effort {
    quick: Compressor<'static>,
    thorough: Compressor<'static>,
    sample: Vec<u8>,
}

impl Effort {
    /// Makes the chooser for blocks of up to `block_len`; `None` if `spec` treats all blocks alike.
    ///
    /// # Errors
    /// `Limit` if Zstandard refuses its parameters or memory.
    pub fn new(spec: CodecSpec, block_len: u64, window: CParameter) -> Result<Option<Self>> {
        if effort_len(spec, block_len) == 0 {
            return Ok(None);
        }
        let context = |parameters: &[CParameter]| {
            let mut context = Compressor::new(spec.zstd_level()).map_err(failed)?;
            let different = parameters.iter().copied().chain([window]);
            for parameter in different {
                set(&mut context, parameter)?;
            }
            context.without_extras()
        };
        let thorough: Vec<_> = LEAN.into_iter().chain([PARSER]).collect();
        Ok(Some(Self {
            quick: context(&QUICK)?,
            thorough: context(&thorough)?,
            sample: Vec::new(),
        }))
    }

    /// Returns the quick encoder if a sample of `raw` shows that a thorough search is not worth its
    /// time.
    ///
    /// # Errors
    /// `Limit` if the codec fails.
    /// # Cost
    /// A fiftieth of a thorough search for blocks of 4 MiB.
    pub fn quick_for(&mut self, raw: &[u8]) -> Result<Option<&mut Compressor<'static>>> {
        if raw.len() <= TRIAL_SAMPLE_LEN * 2 {
            return Ok(None);
        }
        self.sample.clear();
        for part in raw.chunks_exact(raw.len() / TRIAL_PIECE_COUNT) {
            let piece = part.get(part.len() / 2..).unwrap_or_default();
            self.sample.extend(piece.iter().take(TRIAL_PIECE_LEN));
        }
        let quick_len = self.quick.compress(&self.sample).map_err(failed)?.len();
        let thorough_len = self.thorough.compress(&self.sample).map_err(failed)?.len();
        let is_worth =
            quick_len.saturating_sub(thorough_len) >= self.sample.len() / RAW_PER_SAVED_BYTE;
        Ok((!is_worth).then_some(&mut self.quick))
    }

    /// Memory that it takes after it encoded a block like `raw` with the quick search, bytes.
    #[cfg(test)]
    pub fn len_after(&mut self, raw: &[u8]) -> u64 {
        self.quick.compress(raw).unwrap();
        let contexts = [&mut self.quick, &mut self.thorough];
        let lens = contexts.map(|context| context.context_mut().sizeof());
        lens.iter().sum::<usize>() as u64 + self.sample.capacity() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::Encoder;
    use super::*;

    fn effort() -> Effort {
        let effort = Effort::new(CodecSpec::ZstdLean, 4 << 20, CParameter::WindowLog(22));
        effort.unwrap().unwrap()
    }

    fn noise(len: usize, seed: &[u8]) -> Vec<u8> {
        let mut reader = blake3::Hasher::new().update(seed).finalize_xof();
        let mut noise = vec![0; len];
        reader.fill(&mut noise);
        noise
    }

    /// Words of four bytes from a list of a thousand. A quick search, whose matches have at least
    /// five bytes, finds few of them.
    fn words(len: usize) -> Vec<u8> {
        let dictionary = noise(4 << 10, b"dictionary");
        let choices = noise(len / 2, b"words");
        let choices = choices.chunks_exact(2);
        let words = choices.map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])) % 1000);
        let words = words.flat_map(|no| &dictionary[no * 4..no * 4 + 4]);
        words.copied().collect()
    }

    /// Catches: a choice that is the same for all data, or the wrong way round.
    #[test]
    fn noise_is_worth_no_search_and_words_are() {
        let mut effort = effort();
        let noise = noise(4 << 20, b"noise");
        assert!(effort.quick_for(&noise).unwrap().is_some());
        assert!(effort.quick_for(&words(4 << 20)).unwrap().is_none());
        // For a short block the sample would be most of it.
        assert!(
            effort
                .quick_for(&noise[..TRIAL_SAMPLE_LEN])
                .unwrap()
                .is_none()
        );
    }

    /// Catches: a sample of the front alone.
    #[test]
    fn pieces_come_from_all_over_a_block() {
        let mut effort = effort();
        let mut raw = words(4 << 20);
        raw[..3 << 20].copy_from_slice(&noise(3 << 20, b"front"));
        effort.quick_for(&raw).unwrap();
        assert_eq!(effort.sample.len(), TRIAL_SAMPLE_LEN);
        let last = &effort.sample[3 * TRIAL_PIECE_LEN..];
        assert_eq!(last, &raw[(3 << 20) + (512 << 10)..][..TRIAL_PIECE_LEN]);
    }

    /// Catches: an encoder that ignores the sample.
    #[test]
    fn the_encoder_does_what_the_sample_says() {
        // Six bits of noise per byte: there is nothing to find.
        let sixes: Vec<u8> = noise(4 << 20, b"sixes").iter().map(|b| b >> 2).collect();
        let mut encoder = Encoder::new(CodecSpec::ZstdLean, 4 << 20).unwrap();
        let quick = effort().quick.compress(&sixes).unwrap();
        assert!(encoder.encode(&sixes).unwrap().stored == quick);
        let words = words(4 << 20);
        let quick = effort().quick.compress(&words).unwrap();
        let thorough = effort().thorough.compress(&words).unwrap();
        assert!(encoder.encode(&words).unwrap().stored == thorough);
        assert!(thorough.len() + words.len() / RAW_PER_SAVED_BYTE < quick.len());
    }
}
