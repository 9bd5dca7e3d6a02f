//! A layer as the body of a record of the sync log, and back.

use crate::commit::put_rows;
use crate::layer::{ContentRange, Layer, RangeContent};
use crate::options::PlantedBug;
use std::sync::Arc;
use weald_format::sync_log::{DeltaBuilder, DeltaItem, DeltaStart, DeltaTable, parse_body};
use weald_format::volume::{InodeRow, NamePlace, NameRow, QuotaRow};
use weald_format::{Result, VolumeNo};
use weald_store::engine::{Batch, Table};
use weald_store::faults::Faults;

/// Encodes all changes of `layer`, which belongs to the volume `volume_no`.
pub fn encode(layer: &Layer, volume_no: VolumeNo, faults: Faults<PlantedBug>) -> Vec<u8> {
    let mut builder = DeltaBuilder::new(DeltaStart {
        next_ino: layer.next_ino,
        now: layer.now,
    });
    let mut batch = Batch::default();
    put_rows(volume_no, layer, &mut batch);
    for change in &batch.0 {
        let table = match change.table {
            Table::Inodes => DeltaTable::Inodes,
            Table::Names => DeltaTable::Names,
            Table::Xattrs => DeltaTable::Xattrs,
            Table::Orphans => DeltaTable::Orphans,
            Table::Quotas => DeltaTable::Quotas,
            // A layer has no other rows.
            _ => continue,
        };
        let is_left_out = match (table, &change.value) {
            (DeltaTable::Names, None) => faults.has(PlantedBug::LogMissesOldNames),
            (DeltaTable::Quotas, _) => faults.has(PlantedBug::LogMissesQuotas),
            _ => false,
        };
        if is_left_out {
            continue;
        }
        builder.push(&DeltaItem::Row(table, &change.key, change.value.as_deref()));
    }
    for (ino, map) in &layer.files {
        if matches!(layer.inodes.get(ino), Some(None)) {
            continue;
        }
        for segment in map.all() {
            let (start, len) = (segment.range.start, segment.len());
            builder.push(&match &segment.source {
                RangeContent::Bytes(bytes, at) => {
                    let bytes = bytes.get(*at..*at + len as usize);
                    DeltaItem::Bytes {
                        ino: *ino,
                        start,
                        bytes: bytes.unwrap_or_default(),
                    }
                }
                RangeContent::Hole => DeltaItem::Hole {
                    ino: *ino,
                    start,
                    len,
                },
                RangeContent::Block(block, offset) => DeltaItem::Block {
                    ino: *ino,
                    start,
                    len,
                    block: *block,
                    offset: *offset,
                },
            });
        }
    }
    for ino in &layer.drops {
        builder.push(&DeltaItem::Drop(*ino));
    }
    builder.finish()
}

/// Decodes a body of the volume `volume_no`.
///
/// # Errors
/// `Corrupt`.
pub fn decode(body: &[u8], volume_no: VolumeNo) -> Result<Layer> {
    let mut layer = Layer {
        is_changed: true,
        ..Layer::default()
    };
    let start = parse_body(body, &mut |item| {
        let (ino, range, source) = match item {
            DeltaItem::Row(table, key, value) => {
                return put_row(&mut layer, volume_no, table, (key, value));
            }
            DeltaItem::Drop(ino) => {
                layer.drops.insert(ino);
                return Ok(());
            }
            DeltaItem::Bytes { ino, start, bytes } => {
                let source = RangeContent::Bytes(bytes.into(), 0);
                (ino, start..start + bytes.len() as u64, source)
            }
            DeltaItem::Hole { ino, start, len } => (ino, start..start + len, RangeContent::Hole),
            DeltaItem::Block {
                ino,
                start,
                len,
                block,
                offset,
            } => (ino, start..start + len, RangeContent::Block(block, offset)),
        };
        layer.put_range(ino, ContentRange { range, source });
        Ok(())
    })?;
    layer.next_ino = start.next_ino;
    layer.now = start.now;
    Ok(layer)
}

fn put_row(
    layer: &mut Layer,
    volume_no: VolumeNo,
    table: DeltaTable,
    (key, value): (&[u8], Option<&[u8]>),
) -> Result<()> {
    let (ino, rest) = table.split_key(volume_no, key)?;
    match table {
        DeltaTable::Inodes => {
            let row = value.map(InodeRow::parse).transpose()?;
            layer.put_inode(ino, row.map(Arc::new));
        }
        DeltaTable::Names => {
            let (_, place) = NamePlace::split_key(key)?;
            let row = value.map(NameRow::parse).transpose()?;
            layer.put_name(place, row.map(Arc::new));
        }
        DeltaTable::Xattrs => layer.put_xattr(ino, rest, value.map(Arc::from)),
        DeltaTable::Orphans => {
            layer.orphans.insert(ino, value.is_some());
        }
        DeltaTable::Quotas => {
            layer.put_quota(ino, value.map(QuotaRow::parse).transpose()?);
        }
    }
    Ok(())
}
