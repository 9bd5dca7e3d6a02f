//! Decoded blocks, as many as fit into a limit.

use hashbrown::HashMap;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use weald_codec::Decoder;
use weald_format::limits::BLOCK_LEN_MAX;
use weald_format::{Error, Result};
use weald_store::BlockReader;

#[derive(Default)]
struct Kept {
    blocks: HashMap<u64, Arc<[u8]>>,
    order: VecDeque<u64>,
    len: u64,
}

/// Reads and decodes blocks.
pub struct Blocks {
    reader: Arc<BlockReader>,
    len_max: u64,
    kept: Mutex<Kept>,
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
        Self {
            reader,
            len_max,
            kept: Mutex::default(),
            decoders: Mutex::default(),
        }
    }

    /// The decoded bytes of block `id`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn get(&self, id: u64) -> Result<Arc<[u8]>> {
        if let Some(block) = self.kept.lock().blocks.get(&id) {
            return Ok(block.clone());
        }
        let (record, stored) = self.reader.read(id)?;
        if record.raw_len > BLOCK_LEN_MAX {
            let what = format!("block {id} has {} decoded bytes", record.raw_len);
            return Err(Error::corrupt("record", 0, "F-2.3", what));
        }
        let mut decoder = self.decoders.lock().pop().unwrap_or_default();
        let raw = decoder.decode(record.codec, &stored, record.raw_len as usize, None);
        self.decoders.lock().push(decoder);
        let block: Arc<[u8]> = raw?.into();
        self.keep(id, block.clone());
        Ok(block)
    }

    fn keep(&self, id: u64, block: Arc<[u8]>) {
        let mut kept = self.kept.lock();
        kept.len += block.len() as u64;
        if let Some(old) = kept.blocks.insert(id, block) {
            kept.len -= old.len() as u64;
        } else {
            kept.order.push_back(id);
        }
        while kept.len > self.len_max
            && let Some(oldest) = kept.order.pop_front()
        {
            let dropped = kept.blocks.remove(&oldest);
            kept.len -= dropped.map_or(0, |block| block.len() as u64);
        }
    }

    /// Decoded bytes that it keeps.
    pub fn kept_len(&self) -> u64 {
        self.kept.lock().len
    }

    /// The reader of stored bytes.
    pub fn reader(&self) -> &BlockReader {
        &self.reader
    }
}
