//! The rows, counts and bytes that one commit gathers.

use crate::cut::Bytes;
use crate::index::BlockPlace;
use crate::properties::Rules;
use crate::tables::Counts;
use std::collections::BTreeSet;
use std::time::Duration;
use weald_codec::CodecSpec;
use weald_format::volume::WindowPlace;
use weald_format::{BlockId, Digest, Error, Ino, Result};
use weald_store::StoreWriter;
use weald_store::engine::Batch;

/// Place of a piece of a new window.
#[derive(Debug, Clone, Copy)]
pub(super) enum At {
    Block(BlockId, u32),
    /// In the new block with this number, at this offset.
    New(usize, u32),
    /// The place of the run with this number, and an offset from there on.
    Run(usize, u32),
}

/// A piece of a window that is to be committed.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewPiece {
    /// First byte, from the start of the window.
    pub start: u32,
    /// Length, bytes.
    pub len: u32,
    pub at: At,
    /// Whether a run begins here that must be found again after a mount.
    pub begins_run: bool,
}

/// A new block that waits for its encoding.
#[derive(Debug)]
pub(super) struct NewBlock {
    /// Its number within the commit.
    pub no: usize,
    pub raw: Bytes,
    /// Digest of `raw`, if it is known.
    pub digest: Option<Digest>,
    /// How it is stored.
    pub rules: Rules,
    /// Digests and offsets of the runs in it.
    pub runs: Vec<(Digest, u32)>,
}

/// Rows, counts and bytes that one commit gathers.
pub(super) struct Work<'a> {
    /// The writer, which no other volume uses meanwhile.
    pub writer: &'a mut StoreWriter,
    pub batch: Batch,
    pub counts: Counts,
    /// Changed windows and their pieces.
    pub windows: Vec<(WindowPlace, Vec<NewPiece>)>,
    /// Codec of files that have none of their own.
    pub usual_codec: CodecSpec,
    /// Time of slow codecs so far, as estimated.
    pub slow_time: Duration,
    /// New blocks that got a faster codec than their files have.
    pub hasty: BTreeSet<usize>,
    /// How the data of the current file is stored.
    pub rules: Rules,
    /// Runs that wait for a place, and their length.
    pub waiting: Vec<(Bytes, Rules)>,
    pub waiting_len: u64,
    /// Places of the runs before those.
    pub run_places: Vec<At>,
    /// The pack that is being filled: its number, its codec, its bytes, and the runs in it.
    pub pack_no: Option<usize>,
    pub pack_codec: Option<CodecSpec>,
    pub pack: Vec<u8>,
    pub pack_runs: Vec<(Digest, u32)>,
    /// New blocks that wait for their encoding.
    pub full: Vec<NewBlock>,
    /// Ids of new blocks by number; 0 until they are stored.
    pub ids: Vec<BlockId>,
    /// Runs of this commit that have a place.
    pub known: hashbrown::HashMap<Digest, (usize, u32)>,
    pub dropped: Vec<Ino>,
}

impl<'a> Work<'a> {
    /// Nothing so far.
    pub fn new(writer: &'a mut StoreWriter) -> Self {
        Self {
            writer,
            batch: Batch::default(),
            counts: Counts::default(),
            windows: Vec::new(),
            usual_codec: CodecSpec::None,
            slow_time: Duration::ZERO,
            hasty: BTreeSet::new(),
            rules: Rules::default(),
            waiting: Vec::new(),
            waiting_len: 0,
            run_places: Vec::new(),
            pack_no: None,
            pack_codec: None,
            pack: Vec::new(),
            pack_runs: Vec::new(),
            full: Vec::new(),
            ids: Vec::new(),
            known: hashbrown::HashMap::new(),
            dropped: Vec::new(),
        }
    }

    /// Begins a block; returns its number within the commit.
    pub fn next_block(&mut self) -> usize {
        self.ids.push(BlockId::default());
        self.ids.len() - 1
    }

    /// Gives a run of bytes to the threads, and returns its number; its place comes later.
    pub fn add_run(&mut self, bytes: Bytes) -> usize {
        self.waiting_len += bytes.len() as u64;
        self.waiting.push((bytes, self.rules));
        self.run_places.len() + self.waiting.len() - 1
    }

    /// Where the bytes of a piece lie.
    ///
    /// # Errors
    /// `Invalid`: the run was given no place, or its block was not stored yet.
    pub fn resolve(&self, at: At) -> Result<BlockPlace> {
        let (at, after) = match at {
            At::Run(no, after) => (self.run_places.get(no).copied(), after),
            at => (Some(at), 0),
        };
        let found = match at {
            Some(At::Block(block, offset)) => Some(BlockPlace {
                block,
                offset: offset + after,
            }),
            Some(At::New(no, offset)) => {
                let id = self
                    .ids
                    .get(no)
                    .copied()
                    .filter(|id| *id != BlockId::default());
                id.map(|block| BlockPlace {
                    block,
                    offset: offset + after,
                })
            }
            _ => None,
        };
        found.ok_or_else(|| Error::invalid("a run of bytes has no place"))
    }

    /// Closes the pack that is being filled.
    pub fn close_pack(&mut self) {
        if let Some(no) = self.pack_no.take() {
            self.full.push(NewBlock {
                no,
                raw: Bytes::Own(std::mem::take(&mut self.pack)),
                digest: None,
                rules: Rules {
                    codec: self.pack_codec,
                    finds_repeats: true,
                    ..Rules::default()
                },
                runs: std::mem::take(&mut self.pack_runs),
            });
        }
    }
}
