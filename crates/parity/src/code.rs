//! The Reed-Solomon code of one column: that of Leopard-RS over GF(2^16) with the layout for few
//! recovery shards ("high rate"), from the crate `reed-solomon-simd`.

use crate::layout::Code;
use reed_solomon_simd::engine::DefaultEngine;
use reed_solomon_simd::rate::{HighRateDecoder, HighRateEncoder, RateDecoder, RateEncoder};
use weald_format::{Error, Result};

/// Makes the recovery blocks of columns.
pub struct ColumnEncoder(HighRateEncoder<DefaultEngine>);

impl ColumnEncoder {
    /// For blocks of `block_len` bytes, a multiple of 64.
    ///
    /// # Errors
    /// `Limit` if the code cannot have these numbers of rows.
    pub fn new(code: &Code, block_len: usize) -> Result<Self> {
        let engine = DefaultEngine::new();
        let encoder = HighRateEncoder::new(code.rows, code.recovery_rows, block_len, engine, None);
        encoder.map(Self).map_err(failed)
    }

    /// Gives the recovery blocks of a column whose blocks are `blocks`, in order, to `take`.
    ///
    /// # Errors
    /// `Limit` for another number of blocks, or blocks of another length.
    pub fn encode<'a>(
        &mut self,
        blocks: impl Iterator<Item = &'a [u8]>,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        for block in blocks {
            self.0.add_original_shard(block).map_err(failed)?;
        }
        let made = self.0.encode().map_err(failed)?;
        for (index, block) in made.recovery_iter().enumerate() {
            take(index, block);
        }
        Ok(())
    }
}

/// Restores missing blocks of columns.
pub struct ColumnDecoder(HighRateDecoder<DefaultEngine>);

impl ColumnDecoder {
    /// As [`ColumnEncoder::new`].
    ///
    /// # Errors
    /// As [`ColumnEncoder::new`].
    pub fn new(code: &Code, block_len: usize) -> Result<Self> {
        let engine = DefaultEngine::new();
        let decoder = HighRateDecoder::new(code.rows, code.recovery_rows, block_len, engine, None);
        decoder.map(Self).map_err(failed)
    }

    /// Gives the missing blocks of a column to `take`, with their rows. `blocks` and `recovery` are
    /// the whole ones with their rows; together at least as many as the column has rows.
    ///
    /// # Errors
    /// `Limit` if they are fewer; an error of `take`.
    pub fn decode<'a>(
        &mut self,
        blocks: impl Iterator<Item = (usize, &'a [u8])>,
        recovery: impl Iterator<Item = (usize, &'a [u8])>,
        mut take: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        for (row, block) in blocks {
            self.0.add_original_shard(row, block).map_err(failed)?;
        }
        for (row, block) in recovery {
            self.0.add_recovery_shard(row, block).map_err(failed)?;
        }
        let restored = self.0.decode().map_err(failed)?;
        for (row, block) in restored.restored_original_iter() {
            take(row, block)?;
        }
        Ok(())
    }
}

fn failed(error: reed_solomon_simd::Error) -> Error {
    Error::limit(format!("parity: {error}"))
}
