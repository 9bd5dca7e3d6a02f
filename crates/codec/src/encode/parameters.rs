//! What Zstandard is told beyond a level, and how much of its effort ordinary data is worth.
//! `docs/design/0004-levels.md` has what other parameters come to.

use super::{CodecSpec, Tuned, failed, set};
use weald_format::Result;
use zstd::bulk::Compressor;
use zstd::zstd_safe::{CParameter, Strategy};

/// Blocks up to this length have their own row of levels in Zstandard, whose tables are no larger
/// than they need to be.
const SMALL_LEN: u64 = 256 << 10;

/// Whether blocks of up to `block_len` have the parameters of large ones.
pub const fn is_large(block_len: u64) -> bool {
    block_len > SMALL_LEN
}

/// What level 16 is for up to 256 KiB. Zstandard counts a dictionary to the length of what it is to
/// encode, and would take what is good for megabytes of data, matches of five bytes and more for
/// one (`clevels.h` of zstd 1.5.7).
pub const SMALL: [CParameter; 4] = [
    CParameter::Strategy(Strategy::ZSTD_btultra),
    CParameter::SearchLog(6),
    CParameter::MinMatch(3),
    CParameter::TargetLength(128),
];

/// The parameters in which [`CodecSpec::ZstdLean`] differs from level 16, which has 2^22 places in
/// either table, and searches 2^5 candidates for matches of five bytes and more, 48 of which are
/// enough to stop at.
const LEAN: [CParameter; 5] = [
    CParameter::ChainLog(21),
    CParameter::HashLog(20),
    CParameter::SearchLog(4),
    CParameter::MinMatch(4),
    CParameter::TargetLength(64),
];

/// Those in which [`CodecSpec::ZstdCode`] does.
const CODE: [CParameter; 5] = [
    CParameter::ChainLog(20),
    CParameter::HashLog(20),
    CParameter::SearchLog(4),
    CParameter::MinMatch(3),
    CParameter::TargetLength(128),
];

/// The parser of level 16 for large blocks, which [`LEAN`] leaves to the length of the block.
const PARSER: CParameter = CParameter::Strategy(Strategy::ZSTD_btopt);

/// Level 12 for large blocks, with half of its hashes, for blocks of any length.
const QUICK: [CParameter; 6] = [
    CParameter::Strategy(Strategy::ZSTD_lazy2),
    CParameter::ChainLog(22),
    CParameter::HashLog(22),
    CParameter::SearchLog(6),
    CParameter::MinMatch(5),
    CParameter::TargetLength(32),
];

impl CodecSpec {
    /// What sets it apart from its level, for blocks of `block_len`.
    pub(super) const fn own_parameters(self, block_len: u64) -> &'static [CParameter] {
        match self {
            Self::ZstdCode => &CODE,
            Self::ZstdLean if is_large(block_len) => &LEAN,
            _ => &[],
        }
    }
}

/// Pieces of a block, from the middles of as many equal parts, that stand for it, and their length
/// in bytes.
const PIECE_COUNT: usize = 4;
/// See [`PIECE_COUNT`].
const PIECE_LEN: usize = 32 << 10;
const SAMPLE_LEN: usize = PIECE_COUNT * PIECE_LEN;
/// Of so many raw bytes a thorough search has to save one more than a quick one, which takes a
/// sixth of its time.
const WORTH: usize = 182;

/// Bytes of memory that [`Effort`] takes at most for blocks of `block_len`, 0 where there is none:
/// hashes of the quick search with a byte more each, tables for a sample, and what either has
/// besides.
#[allow(clippy::arithmetic_side_effects)] // lengths of tables
pub fn effort_len(spec: CodecSpec, block_len: u64) -> u64 {
    if spec != CodecSpec::ZstdLean || !is_large(block_len) {
        return 0;
    }
    let hashes = block_len.min(1 << 21).next_power_of_two() * 2;
    hashes * 5 + (6 << 20)
}

/// Tells blocks that a thorough search makes little smaller, and encodes these with a quick one.
pub struct Effort {
    quick: Compressor<'static>,
    thorough: Compressor<'static>,
    sample: Vec<u8>,
}

impl Effort {
    /// For blocks of up to `block_len` by `spec`; `None` where all of them get the same.
    ///
    /// # Errors
    /// `Limit` where Zstandard refuses its parameters or memory.
    pub fn new(spec: CodecSpec, block_len: u64, window: CParameter) -> Result<Option<Self>> {
        if effort_len(spec, block_len) == 0 {
            return Ok(None);
        }
        let context = |parameters: &[CParameter]| {
            let mut context = Compressor::new(spec.zstd_level()).map_err(failed)?;
            let own = parameters.iter().copied().chain([window]);
            for parameter in own {
                set(&mut context, parameter)?;
            }
            context.tuned()
        };
        let thorough: Vec<_> = LEAN.into_iter().chain([PARSER]).collect();
        Ok(Some(Self {
            quick: context(&QUICK)?,
            thorough: context(&thorough)?,
            sample: Vec::new(),
        }))
    }

    /// The encoder for `raw`, if a sample of it says that a thorough search is not worth its time.
    ///
    /// # Errors
    /// `Limit` where the codec fails.
    /// # Cost
    /// A fiftieth of a thorough search for blocks of 4 MiB.
    pub fn quick_for(&mut self, raw: &[u8]) -> Result<Option<&mut Compressor<'static>>> {
        if raw.len() <= SAMPLE_LEN * 2 {
            return Ok(None);
        }
        self.sample.clear();
        for part in raw.chunks_exact(raw.len() / PIECE_COUNT) {
            let piece = part.get(part.len() / 2..).unwrap_or_default();
            self.sample.extend(piece.iter().take(PIECE_LEN));
        }
        let quick_len = self.quick.compress(&self.sample).map_err(failed)?.len();
        let thorough_len = self.thorough.compress(&self.sample).map_err(failed)?.len();
        let is_worth = quick_len.saturating_sub(thorough_len) >= self.sample.len() / WORTH;
        Ok((!is_worth).then_some(&mut self.quick))
    }

    /// Bytes of memory that it takes once it has quickly encoded a block like `raw`.
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

    /// Words of four bytes out of a thousand: a quick search, whose matches have five bytes and
    /// more, finds few of them.
    fn words(len: usize) -> Vec<u8> {
        let dictionary = noise(4 << 10, b"dictionary");
        let choices = noise(len / 2, b"words");
        let choices = choices.chunks_exact(2);
        let words = choices.map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])) % 1000);
        let words = words.flat_map(|no| &dictionary[no * 4..no * 4 + 4]);
        words.copied().collect()
    }

    /// Would catch: an effort that is the same for all data, or the wrong way round.
    #[test]
    fn noise_is_worth_no_search_and_words_are() {
        let mut effort = effort();
        let noise = noise(4 << 20, b"noise");
        assert!(effort.quick_for(&noise).unwrap().is_some());
        assert!(effort.quick_for(&words(4 << 20)).unwrap().is_none());
        // Of few bytes the sample would be most.
        assert!(effort.quick_for(&noise[..SAMPLE_LEN]).unwrap().is_none());
    }

    /// Would catch: a sample that sees the front alone.
    #[test]
    fn pieces_come_from_all_over_a_block() {
        let mut effort = effort();
        let mut raw = words(4 << 20);
        raw[..3 << 20].copy_from_slice(&noise(3 << 20, b"front"));
        effort.quick_for(&raw).unwrap();
        assert_eq!(effort.sample.len(), SAMPLE_LEN);
        let last = &effort.sample[3 * PIECE_LEN..];
        assert_eq!(last, &raw[(3 << 20) + (512 << 10)..][..PIECE_LEN]);
    }

    /// Would catch: an encoder that does not ask.
    #[test]
    fn the_encoder_does_what_the_sample_says() {
        // Six bits of noise a byte: there is nothing to find.
        let sixes: Vec<u8> = noise(4 << 20, b"sixes").iter().map(|b| b >> 2).collect();
        let mut encoder = Encoder::new(CodecSpec::ZstdLean, 4 << 20).unwrap();
        let quick = effort().quick.compress(&sixes).unwrap();
        assert!(encoder.encode(&sixes).unwrap().stored == quick);
        let words = words(4 << 20);
        let quick = effort().quick.compress(&words).unwrap();
        let thorough = effort().thorough.compress(&words).unwrap();
        assert!(encoder.encode(&words).unwrap().stored == thorough);
        assert!(thorough.len() + words.len() / WORTH < quick.len());
    }
}
