//! Limits the time that a commit spends in slow codecs, which other users wait for.
//!
//! The owner of a file chooses its codec. Time is estimated by codec and length, not measured, so
//! that the bytes of a volume do not depend on the machine. Blocks beyond the limit are encoded
//! fast; their windows are written again when nothing waits.

use super::Committer;
use super::work::{NewBlock, Work};
use crate::core::Core;
use crate::garbage::STEP_LEN;
use std::time::Duration;
use weald_codec::CodecSpec;
use weald_format::Result;

/// The codec of blocks that come too late for a slow one.
const FAST: CodecSpec = CodecSpec::Zstd(3);

/// Time of a thread for one byte, in nanoseconds, of codecs that are slow: about those of text on a
/// processor of 2020, in blocks of 128 KiB. The others cost nothing here.
fn time_of_byte(codec: CodecSpec) -> u64 {
    match codec {
        CodecSpec::Zstd(..=5) => 0,
        CodecSpec::Zstd(..=9) => 30,
        CodecSpec::Zstd(..=12) => 60,
        CodecSpec::Zstd(..=15) => 150,
        CodecSpec::Zstd(_) => 600,
        CodecSpec::Lz4Hc(_) => 30,
        _ => 0,
    }
}

fn time_of(codec: CodecSpec, len: u64) -> Duration {
    Duration::from_nanos(time_of_byte(codec).saturating_mul(len))
}

impl Committer {
    /// Gives the blocks of `new` that come too late for a slow codec a fast one.
    pub(super) fn hurry(&self, core: &Core, work: &mut Work<'_>, new: &mut [NewBlock]) {
        let most = core.options.slow_encoding_max;
        for block in new {
            let codec = block.rules.codec.unwrap_or(work.usual_codec);
            let time = time_of(codec, block.raw.len() as u64);
            if time.is_zero() || work.slow_time + time <= most {
                work.slow_time += time;
                continue;
            }
            block.rules.codec = Some(FAST);
            // Nothing is gained by another try if the block alone takes too long.
            if time <= most {
                work.hasty.insert(block.no);
            }
        }
    }

    /// Windows that one commit writes again: their slowest codec must not take too long.
    pub(super) fn windows_at_once(&self, core: &Core) -> Result<usize> {
        let window_len = u64::from(core.tables.chunk_len());
        let count = if self.settling.has_hasty() {
            let slowest = time_of(CodecSpec::Zstd(22), window_len).as_nanos().max(1);
            core.options.slow_encoding_max.as_nanos() / slowest
        } else {
            u128::from(STEP_LEN / window_len)
        };
        Ok(count.clamp(1, 1024) as usize)
    }
}
