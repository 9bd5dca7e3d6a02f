//! What users want on a tier: the files with the attribute `user.weald.tier`, as of the last
//! commit. And the blocks of a path, for those who move it by hand.

use crate::properties::TIER;
use crate::reader::find_name;
use crate::tables::{Tables, of_piece};
use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use weald_format::volume::{Piece, VolumeRow, WindowPlace};
use weald_format::{BlockId, Cookie, Error, FileKind, Ino, Result, WindowNo};
use weald_store::engine::{Engine, Table};
use weald_store::tier::Pins;

/// A part of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumePart {
    /// Path from the root on, with '/' between names; empty for everything.
    pub path: Vec<u8>,
    /// Bytes of the file; `None` for all of it.
    pub range: Option<Range<u64>>,
}

/// The rows of a volume, which nobody needs to have open.
fn tables_of(engine: &Arc<dyn Engine>, row: &VolumeRow) -> Tables {
    Tables::new(engine.clone(), row.volume_no, row.chunk_len, row.next_ino)
}

/// Pins all blocks of files with a tier, of all volumes. `check` is called for each of them.
///
/// # Errors
/// `Io`, `Corrupt`; those of `check`.
/// # Cost
/// Reads the attributes of all files, and the extents of those with a tier.
pub fn pin_all(
    engine: &Arc<dyn Engine>,
    pins: &mut Pins,
    check: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let mut volumes = Vec::new();
    engine.scan(Table::Volumes, &[], &mut |_, value| {
        // A damaged row is told when the store is opened.
        volumes.extend(VolumeRow::parse(value).ok());
        Ok(ControlFlow::Continue(()))
    })?;
    for row in &volumes {
        let tables = tables_of(engine, row);
        let mut wanted = Vec::new();
        tables.each_xattr_of_all(&mut |ino, name, value| {
            if name == TIER
                && let Ok(tier) = std::str::from_utf8(value)
            {
                wanted.push((ino, tier.to_owned()));
            }
        })?;
        for (ino, tier) in wanted {
            check()?;
            let all = 0..u64::MAX;
            each_piece(&tables, ino, &all, &mut |piece| {
                pins.pin(piece.block, &tier);
            })?;
        }
    }
    Ok(())
}

/// Visits the pieces of a file that have a byte of `range`.
fn each_piece(
    tables: &Tables,
    ino: Ino,
    range: &Range<u64>,
    visit: &mut dyn FnMut(&Piece),
) -> Result<()> {
    let len = tables.chunk_len();
    let first = WindowPlace {
        ino,
        window: WindowNo::of(range.start, len),
    };
    tables.each_window(first, &mut |window, row| {
        let base = window.start(len);
        if base >= range.end {
            return ControlFlow::Break(());
        }
        for piece in &row.0 {
            let of = of_piece(base, piece).range;
            if of.start < range.end && of.end > range.start {
                visit(piece);
            }
        }
        ControlFlow::Continue(())
    })
}

/// The blocks of a part of the volume `row`, as of the last commit.
///
/// # Errors
/// `NotFound` if there is no such path; `Invalid` for a range of what is no file; `Io`, `Corrupt`.
/// # Cost
/// Reads the names and extents below the path; 16 bytes of memory for each block.
pub fn blocks_of(
    engine: &Arc<dyn Engine>,
    row: &VolumeRow,
    part: &VolumePart,
) -> Result<BTreeSet<BlockId>> {
    let mut blocks = BTreeSet::new();
    each_file(engine, row, part, &mut |tables, ino, range| {
        each_piece(tables, ino, range, &mut |piece| {
            blocks.insert(piece.block);
        })
    })?;
    Ok(blocks)
}

/// Receives a file of a volume, and the range of it that belongs to the part.
type VisitFile<'a> = dyn FnMut(&Tables, Ino, &Range<u64>) -> Result<()> + 'a;

/// Visits the files of a part of the volume.
fn each_file(
    engine: &Arc<dyn Engine>,
    row: &VolumeRow,
    part: &VolumePart,
    visit: &mut VisitFile<'_>,
) -> Result<()> {
    let tables = tables_of(engine, row);
    let (mut ino, mut kind) = (row.root, FileKind::Directory);
    for name in part.path.split(|byte| *byte == b'/') {
        if name.is_empty() || name == b"." {
            continue;
        }
        let found = match kind {
            FileKind::Directory => find_name(&tables, row, (ino, name))?,
            _ => None,
        };
        let found = found.ok_or_else(|| {
            let path = String::from_utf8_lossy(&part.path);
            Error::not_found(format!("{path}: no such file in the volume"))
        })?;
        (ino, kind) = (found.ino, found.kind);
    }
    if part.range.is_some() && kind != FileKind::Regular {
        let path = String::from_utf8_lossy(&part.path);
        return Err(Error::invalid(format!(
            "{path}: only a file has a range of bytes"
        )));
    }
    let range = part.range.clone().unwrap_or(0..u64::MAX);
    let mut dirs = match kind {
        FileKind::Directory => vec![ino],
        FileKind::Regular => return visit(&tables, ino, &range),
        _ => return Ok(()),
    };
    while let Some(dir) = dirs.pop() {
        let mut files = Vec::new();
        tables.each_name(dir, Cookie::START, &mut |_, row| {
            match row.kind {
                FileKind::Directory => dirs.push(row.ino),
                FileKind::Regular => files.push(row.ino),
                _ => {}
            }
            ControlFlow::Continue(())
        })?;
        for ino in files {
            visit(&tables, ino, &range)?;
        }
    }
    Ok(())
}
