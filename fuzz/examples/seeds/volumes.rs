//! Seeds from the tables and the sync log of volumes.

use crate::Corpus;
use weald_format::FileKind;

/// Groups of rows in every layout.
pub fn row_groups(corpus: &Corpus) {
    use weald_format::row_group::{Rows, Shape};
    use weald_format::volume::{ExtentsRow, NameRow, Piece, pair_key};
    let (mut names, mut extents) = (Rows::default(), Rows::default());
    for n in 1..30 {
        let row = NameRow {
            name: format!("name{n}").into_bytes(),
            ino: 90 - n,
            kind: FileKind::Regular,
        };
        let cookie = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let name = names.push(&pair_key(1, n, cookie), &row.encode());
        let piece = Piece {
            start: 0,
            len: n as u32,
            block: 7,
            offset: 100 * n as u32,
        };
        let window = extents.push(&pair_key(1, n, 0), &ExtentsRow(vec![piece]).encode());
        name.and(window).expect("ascending keys");
    }
    for shape in [None, Some(Shape::Names)] {
        corpus.put("row_group", &names.encode(0..names.count(), shape));
    }
    let shape = Some(Shape::Extents);
    corpus.put("row_group", &extents.encode(0..extents.count(), shape));
}

/// Records of a sync log: superblock, header with its body, and bodies with every kind of change.
pub fn sync_log(corpus: &Corpus) {
    use weald_format::sync_log::{
        DeltaBuilder, DeltaHeader, DeltaItem, DeltaStart, DeltaTable, SyncLogId,
    };
    use weald_format::volume::{NameRow, QuotaRow, number_key, pair_key, xattr_key};
    use zerocopy::IntoBytes;
    let start = DeltaStart {
        next_ino: 300,
        now: 1_700_000_000_000_000_000,
    };
    let name = NameRow {
        name: b"name".to_vec(),
        ino: 5,
        kind: FileKind::Regular,
    };
    let (name, quota) = (name.encode(), QuotaRow::default().encode());
    let (name_key, key) = (pair_key(1, 2, 3), number_key(1, 5));
    let xattr = xattr_key(1, 5, b"user.k");
    let mut builder = DeltaBuilder::new(start);
    for item in [
        DeltaItem::Row(DeltaTable::Names, &name_key, Some(&name)),
        DeltaItem::Row(DeltaTable::Inodes, &key, None),
        DeltaItem::Row(DeltaTable::Orphans, &key, Some(b"")),
        DeltaItem::Row(DeltaTable::Quotas, &key, Some(&quota)),
        DeltaItem::Row(DeltaTable::Xattrs, &xattr, Some(b"value")),
        DeltaItem::Bytes(5, 4096, b"bytes"),
        DeltaItem::Hole(5, 0, 4096),
        DeltaItem::Block(5, 1 << 40, 100, 7, 28),
        DeltaItem::Drop(9),
    ] {
        builder.push(&item);
    }
    let body = builder.finish();
    let id = SyncLogId {
        uuid: [7; 16],
        snapshot: 1,
    };
    let header = DeltaHeader {
        layer: 9,
        base: 8,
        sequence: 2,
        unsynced: 1,
        ..DeltaHeader::default()
    };
    let header = id.encode_header(&header, &body);
    corpus.put("sync_log", &[&[0], &body[..]].concat());
    corpus.put("sync_log", &[&[1], header.as_bytes(), &body].concat());
    let superblock = id.encode_superblock(16 << 20);
    corpus.put("sync_log", &[&[2], superblock.as_bytes()].concat());
}
