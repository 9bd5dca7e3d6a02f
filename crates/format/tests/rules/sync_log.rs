//! The sync log of a volume.

use crate::{rule, sum};
use weald_format::cursor::put_varint;
use weald_format::limits::BLOCK_LEN_MAX;
use weald_format::sync_log::{DeltaBuilder, DeltaStart, SyncLogId, SyncLogShape, parse_body};
use weald_format::{ErrorKind, Ino, VolumeNo};
use zerocopy::IntoBytes;

/// The records of a sync log that count are judged by the store, whose tests have V-6.4.
#[test]
fn sync_logs() {
    let id = SyncLogId {
        uuid: [3; 16],
        volume_no: VolumeNo(9),
    };
    let good = id.encode_superblock(8192);
    let edited = |at: usize, value: u8| {
        let mut bytes = good.as_bytes().to_vec();
        bytes[at] = value;
        sum(&mut bytes, 16);
        id.check_superblock(&bytes)
    };
    let shape = |has_parity| SyncLogShape {
        half_len: 8192,
        has_parity,
    };
    assert_eq!(edited(63, 0).unwrap(), shape(true));
    assert_eq!(edited(8, 1).unwrap(), shape(false));
    assert_eq!(rule(id.check_superblock(&good.as_bytes()[..63])), "V-6.1");
    assert_eq!(rule(edited(0, 0)), "V-6.1");
    let mut torn = good.as_bytes().to_vec();
    torn[63] ^= 1;
    assert_eq!(rule(id.check_superblock(&torn)), "V-6.1");
    assert_eq!(edited(8, 3).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(rule(edited(16, 0)), "V-6.2");
    assert_eq!(rule(edited(32, 0)), "V-6.2");
    assert_eq!(rule(edited(40, 1)), "V-6.3");
    assert_eq!(rule(edited(41, 0)), "V-6.3");
    assert_eq!(rule(edited(45, 1)), "V-6.3");

    let body = |change: &[u8]| {
        let start = DeltaStart {
            next_ino: Ino(2),
            now: 0,
        };
        let mut bytes = DeltaBuilder::new(start).finish();
        bytes.extend_from_slice(change);
        rule(parse_body(&bytes, &mut |_| Ok(())))
    };
    assert_eq!(body(&[3, 1, 0, 1]), "none");
    assert_eq!(body(&[0]), "V-6.5");
    assert_eq!(body(&[6]), "V-6.5");
    assert_eq!(body(&[1, 0, 0, 0]), "V-6.5");
    assert_eq!(body(&[1, 6, 0, 0]), "V-6.5");
    assert_eq!(body(&[3, 1, 0, 0]), "V-6.6");
    let mut far = vec![3, 1];
    put_varint(&mut far, i64::MAX as u64);
    assert_eq!(body(&[&far[..], &[1]].concat()), "V-6.6");
    let mut behind = vec![4, 1, 0, 2, 1];
    put_varint(&mut behind, BLOCK_LEN_MAX - 1);
    assert_eq!(body(&behind), "V-6.6");
    behind[3] = 1;
    assert_eq!(body(&behind), "none");
    assert_eq!(body(&[2, 1, 0, 5, 0]), "F-2.1");
}
