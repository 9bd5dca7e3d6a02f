//! Decoded blocks, as many as fit into a limit.

use crate::options::CHUNK_LEN_MAX;
use parking_lot::Mutex;
use std::sync::Arc;
use weald_codec::Decoder;
use weald_format::limits::BLOCK_LEN_MAX;
use weald_format::{BlockId, Error, Result};
use weald_store::BlockReader;
use weald_store::row_cache::{CacheSize, RowCache};

/// Reads and decodes blocks. Several that want the same block at once wait for one.
pub struct Blocks {
    reader: Arc<BlockReader>,
    kept: RowCache<BlockId, Arc<[u8]>>,
    decoders: Mutex<Vec<Decoder>>,
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks").finish_non_exhaustive()
    }
}

impl Blocks {
    /// Keeps at most `len_max` decoded bytes.
    pub fn new(reader: Arc<BlockReader>, len_max: u64) -> Self {
        let size = CacheSize {
            len_max,
            usual_len: 128 << 10,
            longest_len: CHUNK_LEN_MAX.into(),
        };
        Self {
            reader,
            kept: RowCache::new(size, |block| block.len()),
            decoders: Mutex::default(),
        }
    }

    /// The decoded bytes of block `id`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn get(&self, id: BlockId) -> Result<Arc<[u8]>> {
        self.kept.get_or_read(&id, || self.decode(id))
    }

    fn decode(&self, id: BlockId) -> Result<Arc<[u8]>> {
        let (record, stored) = self.reader.read(id)?;
        if record.raw_len > BLOCK_LEN_MAX {
            let what = format!("block {id} has {} decoded bytes", record.raw_len);
            return Err(Error::corrupt("record", 0, "F-2.3", what));
        }
        let mut decoder = self.decoders.lock().pop().unwrap_or_default();
        let raw = decoder.decode(record.codec, &stored, record.raw_len as usize, None);
        self.decoders.lock().push(decoder);
        Ok(raw?.into())
    }

    /// Memory of the blocks that it keeps, bytes, roughly.
    pub fn kept_len(&self) -> u64 {
        self.kept.memory_len()
    }

    /// The reader of stored bytes.
    pub fn reader(&self) -> &BlockReader {
        &self.reader
    }
}
