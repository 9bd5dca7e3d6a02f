//! Finds or makes places of runs: in blocks that are there, in packs, or in blocks of their own.

use super::Committer;
use super::work::{At, NewBlock, Work};
use crate::core::Core;
use crate::cut::Bytes;
use crate::index::{BlockPlace, DEDUP_LEN_MIN};
use crate::parallel::Encoders;
use crate::properties::Rules;
use weald_format::container::{Codec, RecordRef, RecordType};
use weald_format::{Digest, Result};

impl Committer {
    /// Finds or makes places of all runs that wait.
    pub(super) fn place_runs(&mut self, core: &Core, work: &mut Work<'_>) -> Result<()> {
        let runs = std::mem::take(&mut work.waiting);
        let len = std::mem::take(&mut work.waiting_len);
        let (index, settling) = (&self.index, &self.settling);
        let found = self.workers.map(&runs, len, |_, (run, rules)| {
            let is_looked_up = rules.finds_repeats && run.len() >= DEDUP_LEN_MIN;
            let digest = is_looked_up.then(|| Digest::of(run))?;
            let mut run_places = index.candidates(&digest);
            let fits = |place: &BlockPlace| settling.accepts(place) && is_at(core, *place, run);
            Some((digest, run_places.find(fits)))
        });
        for (run, found) in runs.into_iter().zip(found) {
            let at = self.place_run(core, work, run, found)?;
            work.run_places.push(at);
        }
        self.store_blocks(core, work)
    }

    /// Place of a run: a whole window becomes a block, others lie in packs.
    fn place_run(
        &mut self,
        core: &Core,
        work: &mut Work<'_>,
        (run, rules): (Bytes, Rules),
        found: Option<(Digest, Option<BlockPlace>)>,
    ) -> Result<At> {
        let chunk = core.tables.chunk_len() as usize;
        if let Some((digest, place)) = found {
            if let Some(place) = place
                && work.writer.has_block(place.block)?
            {
                return Ok(At::Block(place.block, place.offset));
            }
            if let Some((no, offset)) = work.known.get(&digest) {
                return Ok(At::New(*no, *offset));
            }
        }
        let digest = found.map(|(digest, _)| digest);
        if run.len() >= rules.chunk_len as usize {
            let no = work.next_block();
            let runs = digest.map(|digest| (digest, 0)).into_iter().collect();
            work.known.extend(digest.map(|digest| (digest, (no, 0))));
            work.full.push(NewBlock {
                no,
                raw: run,
                digest,
                rules,
                runs,
            });
            return Ok(At::New(no, 0));
        }
        let is_other = work.pack_codec != rules.codec;
        if is_other || work.pack.len() + run.len() > chunk {
            work.close_pack();
        }
        work.pack_codec = rules.codec;
        let no = match work.pack_no {
            Some(no) => no,
            None => work.next_block(),
        };
        work.pack_no = Some(no);
        let offset = work.pack.len() as u32;
        work.pack.extend_from_slice(&run);
        if let Some(digest) = digest {
            work.pack_runs.push((digest, offset));
            work.known.insert(digest, (no, offset));
        }
        Ok(At::New(no, offset))
    }

    /// Encodes and appends the new blocks that wait, in the order in which they were made.
    pub(super) fn store_blocks(&mut self, core: &Core, work: &mut Work<'_>) -> Result<()> {
        let mut full = std::mem::take(&mut work.full);
        self.hurry(core, work, &mut full);
        let len = full.iter().map(|block| block.raw.len() as u64).sum();
        let encoded = self.workers.map(&full, len, encode);
        for (block, encoded) in full.into_iter().zip(encoded) {
            let (record, stored) = encoded?;
            let stored = stored.as_deref().unwrap_or(&block.raw);
            let id = if block.rules.finds_repeats {
                work.writer.put(&record, stored)?
            } else {
                work.writer.put_new(&record, stored)?
            };
            for (digest, offset) in &block.runs {
                let place = BlockPlace {
                    block: id,
                    offset: *offset,
                };
                self.index.insert(digest, place);
            }
            if let Some(slot) = work.ids.get_mut(block.no) {
                *slot = id;
            }
        }
        Ok(())
    }
}

/// Whether the bytes at `place` are `run`. A block that cannot be read is no duplicate.
pub(super) fn is_at(core: &Core, place: BlockPlace, run: &[u8]) -> bool {
    let Ok(block) = core.blocks.get(place.block) else {
        return false;
    };
    let start = place.offset as usize;
    let end = start.saturating_add(run.len());
    block.get(start..end).is_some_and(|bytes| bytes == run)
}

/// Record of a new block, and its stored bytes unless they are the raw ones.
fn encode(encoders: &mut Encoders, block: &NewBlock) -> Result<(RecordRef, Option<Vec<u8>>)> {
    let encoded = encoders.of(block.rules.codec)?.encode(&block.raw)?;
    let (stored, digest) = match encoded.codec {
        Codec::None => (None, block.digest),
        _ => (Some(encoded.stored), None),
    };
    let bytes = stored.as_deref().unwrap_or(&block.raw);
    let record = RecordRef {
        record_type: RecordType::Data,
        codec: encoded.codec,
        offset: 0,
        stored_len: bytes.len() as u64,
        raw_len: block.raw.len() as u64,
        digest: digest.unwrap_or_else(|| Digest::of(bytes)),
    };
    Ok((record, stored))
}
