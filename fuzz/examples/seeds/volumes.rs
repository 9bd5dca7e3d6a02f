//! Seeds from the tables and the sync log of volumes.

use crate::Corpus;
use weald_format::{BlockId, Cookie, FileKind, Ino, RecordNo, VolumeCommitNo, VolumeNo, WindowNo};

/// The volume of the rows.
const VOLUME: VolumeNo = VolumeNo(1);

/// Groups of rows in every layout.
pub fn row_groups(corpus: &Corpus) {
    use weald_format::row_group::{Rows, Shape};
    use weald_format::volume::{ExtentsRow, NamePlace, NameRow, Piece, WindowPlace};
    let (mut names, mut extents) = (Rows::default(), Rows::default());
    for n in 1..30 {
        let row = NameRow {
            name: format!("name{n}").into_bytes(),
            ino: Ino(90 - n),
            kind: FileKind::Regular,
        };
        let place = NamePlace {
            dir: Ino(n),
            cookie: Cookie(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        };
        let name = names.push(&place.key(VOLUME), &row.encode());
        let piece = Piece {
            start: 0,
            len: n as u32,
            block: BlockId(7),
            offset: 100 * n as u32,
        };
        let place = WindowPlace {
            ino: Ino(n),
            window: WindowNo::FIRST,
        };
        let window = extents.push(&place.key(VOLUME), &ExtentsRow(vec![piece]).encode());
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
    use weald_format::volume::{NamePlace, NameRow, QuotaRow, inode_key, xattr_key};
    use zerocopy::IntoBytes;
    let ino = Ino(5);
    let start = DeltaStart {
        next_ino: Ino(300),
        now: 1_700_000_000_000_000_000,
    };
    let name = NameRow {
        name: b"name".to_vec(),
        ino,
        kind: FileKind::Regular,
    };
    let (name, quota) = (name.encode(), QuotaRow::default().encode());
    let place = NamePlace {
        dir: Ino(2),
        cookie: Cookie(3),
    };
    let (name_key, key) = (place.key(VOLUME), inode_key(VOLUME, ino));
    let xattr = xattr_key(VOLUME, ino, b"user.k");
    let mut builder = DeltaBuilder::new(start);
    for item in [
        DeltaItem::Row(DeltaTable::Names, &name_key, Some(&name)),
        DeltaItem::Row(DeltaTable::Inodes, &key, None),
        DeltaItem::Row(DeltaTable::Orphans, &key, Some(b"")),
        DeltaItem::Row(DeltaTable::Quotas, &key, Some(&quota)),
        DeltaItem::Row(DeltaTable::Xattrs, &xattr, Some(b"value")),
        DeltaItem::Bytes {
            ino,
            start: 4096,
            bytes: b"bytes",
        },
        DeltaItem::Hole {
            ino,
            start: 0,
            len: 4096,
        },
        DeltaItem::Block {
            ino,
            start: 1 << 40,
            len: 100,
            block: BlockId(7),
            offset: 28,
        },
        DeltaItem::Drop(Ino(9)),
    ] {
        builder.push(&item);
    }
    let body = builder.finish();
    let id = SyncLogId {
        uuid: [7; 16],
        volume_no: VOLUME,
    };
    let header = DeltaHeader {
        layer: VolumeCommitNo(9),
        base: VolumeCommitNo(8),
        sequence: RecordNo(2),
        unsynced: 1,
        ..DeltaHeader::default()
    };
    let header = id.encode_header(&header, &body);
    corpus.put("sync_log", &[&[0], &body[..]].concat());
    corpus.put("sync_log", &[&[1], header.as_bytes(), &body].concat());
    let superblock = id.encode_superblock(16 << 20);
    corpus.put("sync_log", &[&[2], superblock.as_bytes()].concat());
}
