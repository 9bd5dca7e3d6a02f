//! The blocks that were found damaged: content that is written again is stored anew.
//!
//! A block is found by its record, and its bytes are not read, so new content could become a block
//! that nobody can read. Collections, reads of volumes and salvages note what they could not read,
//! in the file `damaged` of the store; a check changes nothing, and so notes nothing. The file only
//! says which blocks to verify before they are used again: nothing is lost with it.

use crate::layout;
use crate::store::Store;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::{BlockId, Result};

/// Most bytes of the file.
const LEN_MAX: u64 = 16 << 20;
/// Most blocks in it.
const COUNT_MAX: usize = 1 << 16;

/// Numbers of blocks, each with the reason. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct DamagedBlocks(Arc<Mutex<BTreeMap<BlockId, String>>>);

impl DamagedBlocks {
    /// Reads the file; none if there is none, or if it is damaged.
    pub fn read(store: &Store) -> Self {
        let bytes = store
            .disk
            .read_file(layout::DAMAGED, LEN_MAX)
            .unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let blocks =
            lines.filter_map(|(id, why)| Some((BlockId(id.parse().ok()?), why.to_owned())));
        Self(Arc::new(Mutex::new(blocks.take(COUNT_MAX).collect())))
    }

    /// Adds a block.
    pub fn note(&self, id: BlockId, why: &str) {
        let mut blocks = self.0.lock();
        if blocks.len() < COUNT_MAX {
            let why = why.replace('\n', " ");
            blocks.entry(id).or_insert(why);
        }
    }

    /// Drops a block that can be read.
    pub fn forget(&self, id: BlockId) {
        self.0.lock().remove(&id);
    }

    /// Whether block `id` was found damaged.
    pub fn has(&self, id: BlockId) -> bool {
        self.0.lock().contains_key(&id)
    }

    /// All of them.
    pub fn blocks(&self) -> BTreeMap<BlockId, String> {
        self.0.lock().clone()
    }

    /// Drops those that `keeps` refuses.
    pub fn retain(&self, keeps: &dyn Fn(BlockId) -> bool) {
        self.0.lock().retain(|id, _| keeps(*id));
    }

    /// Writes the file, or removes it.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn write(&self, store: &Store) -> Result<()> {
        let blocks = self.blocks();
        let disk = &*store.disk;
        let is_there = disk.list("")?.iter().any(|name| name == layout::DAMAGED);
        if blocks.is_empty() {
            if is_there {
                disk.remove(layout::DAMAGED)?;
            }
            return Ok(());
        }
        let lines = blocks.iter().map(|(id, why)| format!("{id} {why}\n"));
        let text: String = lines.collect();
        if is_there
            && disk
                .read_file(layout::DAMAGED, LEN_MAX)
                .is_ok_and(|b| b == text.as_bytes())
        {
            return Ok(());
        }
        let new = format!("{}.new", layout::DAMAGED);
        disk.write_file(&new, text.as_bytes())?;
        disk.rename(&new, layout::DAMAGED)
    }
}
