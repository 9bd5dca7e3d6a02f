//! Pieces of blocks of which little is used, and of blocks that were encoded in a hurry, are
//! written again. The old blocks go with their last reference, as after any overwrite.

use super::Committer;
use super::files::ENCODED_AT_ONCE_LEN;
use super::pieces::{cut_window, kept_piece};
use super::work::{At, NewPiece, Work};
use crate::core::Core;
use crate::cut::Bytes;
use crate::layer::{ContentRange, Layer, RangeContent};
use crate::options::Chunking;
use crate::options::PlantedBug;
use crate::tables::of_piece;
use weald_format::Result;
use weald_format::volume::{ExtentsRow, Piece};

/// Pieces of a window from which on its borders are those of overwrites, not of its content: what
/// lies together becomes one piece.
const SCATTERED_PIECES_MIN: usize = 8;

impl Committer {
    /// Writes the windows again that were chosen, but for those that `layer` changes.
    pub(super) fn write_again(
        &mut self,
        core: &Core,
        work: &mut Work<'_>,
        layer: &Layer,
        usual: Chunking,
    ) -> Result<()> {
        for place in std::mem::take(&mut self.again) {
            self.settling.settled(place);
            let ino = place.ino;
            let is_dropped = self.drops.contains(&ino) || layer.drops.contains(&ino);
            if is_dropped || layer.files.contains_key(&ino) {
                continue;
            }
            if core.tables.inode(ino)?.is_none() {
                continue;
            }
            let Some(row) = core.tables.window(place)? else {
                continue;
            };
            work.rules = core.rules(layer, ino, usual)?;
            // Damaged data stays where it is: it must not stop the commit.
            let base = place.window.start(core.tables.chunk_len());
            let segments = match self.segments_again(core, base, &row) {
                Err(error) if error.is_unreadable() => {
                    log::warn!("a part of inode {ino} is not written again: {error}");
                    continue;
                }
                other => other?,
            };
            let pieces = pieces_again(core, work, base, &segments)?;
            work.windows.push((place, pieces));
            if work.waiting_len >= ENCODED_AT_ONCE_LEN {
                self.place_runs(core, work)?;
            }
        }
        Ok(())
    }

    /// The content of the window at `base`: bytes of what is written again, places of the rest. Of
    /// a window of which half is written again, all is.
    fn segments_again(
        &self,
        core: &Core,
        base: u64,
        row: &ExtentsRow,
    ) -> Result<Vec<ContentRange>> {
        let len = |pieces: &mut dyn Iterator<Item = &Piece>| -> u64 {
            pieces.map(|piece| u64::from(piece.len)).sum()
        };
        let is_replaced = |piece: &Piece| self.settling.replaces(piece.block);
        let replaced_len = len(&mut row.0.iter().filter(|piece| is_replaced(piece)));
        let is_scattered = row.0.len() >= SCATTERED_PIECES_MIN;
        let takes_all = is_scattered && replaced_len * 2 >= len(&mut row.0.iter());
        let mut segments = Vec::with_capacity(row.0.len());
        for piece in &row.0 {
            let mut segment = of_piece(base, piece);
            if takes_all || is_replaced(piece) {
                if core.has_bug(PlantedBug::SettledFromStart) {
                    segment.source = RangeContent::Block(piece.block, 0);
                }
                let mut bytes = Vec::with_capacity(piece.len as usize);
                core.copy_out(std::slice::from_ref(&segment), &mut bytes)?;
                segment.source = RangeContent::Bytes(bytes.into(), 0);
            }
            segments.push(segment);
        }
        Ok(segments)
    }
}

/// Makes pieces of a window. Few pieces keep their borders, at which data may have been cut by its
/// content.
fn pieces_again(
    core: &Core,
    work: &mut Work<'_>,
    base: u64,
    segments: &[ContentRange],
) -> Result<Vec<NewPiece>> {
    if segments.len() >= SCATTERED_PIECES_MIN {
        return cut_window(core, work, base, segments);
    }
    let mut pieces = Vec::with_capacity(segments.len());
    for segment in segments {
        let RangeContent::Bytes(bytes, _) = &segment.source else {
            pieces.extend(kept_piece(base, segment));
            continue;
        };
        let run = Bytes::Shared(bytes.clone(), 0..bytes.len());
        pieces.push(NewPiece {
            start: (segment.range.start - base) as u32,
            len: segment.len() as u32,
            at: At::Run(work.add_run(run), 0),
            begins_run: true,
        });
    }
    Ok(pieces)
}
