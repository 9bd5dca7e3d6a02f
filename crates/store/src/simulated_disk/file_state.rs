//! A file of a simulated disk: what is durable, and what a crash may take.

use super::random::Random;

/// Bytes that a disk writes completely or not at all.
const SECTOR_LEN: usize = 512;

#[derive(Debug, Clone)]
pub enum Pending {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

pub fn apply(bytes: &mut Vec<u8>, change: &Pending) {
    match change {
        Pending::Write(offset, new) => {
            if bytes.len() < offset + new.len() {
                bytes.resize(offset + new.len(), 0);
            }
            bytes[*offset..offset + new.len()].copy_from_slice(new);
        }
        Pending::SetLen(len) => bytes.resize(*len, 0),
    }
}

#[derive(Debug, Clone, Default)]
pub struct FileState {
    pub durable: Vec<u8>,
    pub current: Vec<u8>,
    pub pending: Vec<Pending>,
    /// Whether the medium cannot read it.
    pub is_unreadable: bool,
    /// Whether it is a directory or the like.
    pub is_irregular: bool,
}

impl FileState {
    pub fn change(&mut self, change: Pending) {
        apply(&mut self.current, &change);
        self.pending.push(change);
    }

    /// Simulates a crash. Of the writes since the last sync, each is complete, torn or lost. The
    /// length is one that the file had, because a journal keeps the order of length changes.
    pub fn crash(&mut self, random: &mut Random) {
        let pending = std::mem::take(&mut self.pending);
        let kept = random.below(pending.len() as u64 + 1) as usize;
        let mut len = self.durable.len();
        for change in &pending[..kept] {
            len = match change {
                Pending::Write(offset, bytes) => len.max(offset + bytes.len()),
                Pending::SetLen(len) => *len,
            };
        }
        for change in &pending {
            match (change, random.below(4)) {
                (Pending::Write(offset, bytes), 1) => {
                    for (no, sector) in bytes.chunks(SECTOR_LEN).enumerate() {
                        if random.is_one_in(2) {
                            let at = offset + no * SECTOR_LEN;
                            apply(&mut self.durable, &Pending::Write(at, sector.to_vec()));
                        }
                    }
                }
                (Pending::Write(..), 2..) => apply(&mut self.durable, change),
                // Truncated bytes may return if the file grows again, but then as zeros.
                (Pending::SetLen(len), _) if *len < self.durable.len() => {
                    self.durable[*len..].fill(0);
                }
                _ => {}
            }
        }
        self.durable.resize(len, 0);
        self.current = self.durable.clone();
    }
}
