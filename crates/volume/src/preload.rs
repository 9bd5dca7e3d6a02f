//! Fills the cache with the content of a volume after it was opened.

use crate::background;
use crate::core::Core;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use weald_format::Result;

/// A volume that is filled while it is open.
pub trait Preloaded: Send + Sync + 'static {
    /// State, tables and blocks; `None` once the volume is closing.
    fn open_core(&self) -> Option<&Core>;
}

/// Starts a thread that reads the blocks of `volume`, until the cache is full or the volume closes.
///
/// # Errors
/// `Io` if there is no thread.
pub fn start(volume: &Arc<impl Preloaded>) -> Result<()> {
    let weak = Arc::downgrade(volume);
    background::start("weald-preload", move || {
        if let Err(error) = run(&weak) {
            log::warn!("the content of a volume is not in memory: {error}");
        }
    })
}

fn run(weak: &Weak<impl Preloaded>) -> Result<()> {
    let Some(volume) = weak.upgrade() else {
        return Ok(());
    };
    let mut blocks = BTreeSet::new();
    let mut remaining_len = 0;
    if let Some(core) = volume.open_core() {
        core.tables.each_piece(&mut |piece| {
            blocks.insert(piece.block);
        })?;
        remaining_len = core.options.cache_len / 2;
    }
    drop(volume);
    for id in blocks {
        let Some(volume) = weak.upgrade() else { break };
        let Some(core) = volume.open_core() else {
            break;
        };
        let _gate = core.shared.gate.read();
        // Changes may have dropped the block meanwhile. A read of a damaged one reports it.
        if let Ok(block) = core.blocks.get(id) {
            let Some(less) = remaining_len.checked_sub(block.len() as u64) else {
                break;
            };
            remaining_len = less;
        }
    }
    Ok(())
}
