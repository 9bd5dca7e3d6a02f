//! Sync log: superblocks and headers with right checksums, and bodies, whose changes survive
//! encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::log_record::{encode_record, read_record, record_len};
use weald_format::sync_log::{
    ALIGN, DELTA_HEADER_LEN, DELTA_MAGIC, DeltaBuilder, DeltaHeader, DeltaItem, HALF_LEN_MAX,
    SYNC_LOG_MAGIC, SYNC_LOG_SUPERBLOCK_LEN, SYNC_LOG_VERSION, SyncLogId, delta_len, parse_body,
};
use weald_format::{RecordNo, Result, VolumeNo};
use weald_fuzz::with_checksum;

const ID: SyncLogId = SyncLogId {
    uuid: [7; 16],
    volume_no: VolumeNo(1),
};

fuzz_target!(|data: &[u8]| {
    let Some((&which, bytes)) = data.split_first() else {
        return;
    };
    match which % 4 {
        0 => body(bytes),
        1 => header(bytes),
        2 => record(bytes),
        _ => superblock(bytes),
    }
});

/// Decodes a body and encodes its changes again.
fn again(bytes: &[u8]) -> Result<Vec<u8>> {
    let start = parse_body(bytes, &mut |_| Ok(()))?;
    let mut builder = DeltaBuilder::new(start);
    parse_body(bytes, &mut |item| {
        if let DeltaItem::Row(table, key, value) = item {
            // Any answer, but no panic.
            let _ = table.check_row(ID.volume_no, key, value);
        }
        builder.push(&item);
        Ok(())
    })?;
    Ok(builder.finish())
}

fn body(bytes: &[u8]) {
    let Ok(encoded) = again(bytes) else {
        return;
    };
    assert_eq!(again(&encoded).expect("a body"), encoded);
}

/// A header with a right checksum, and what follows it.
fn header(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_at_checked(DELTA_HEADER_LEN) else {
        return;
    };
    let mut head = head.to_vec();
    head[..8].copy_from_slice(&DELTA_MAGIC);
    head[8..24].copy_from_slice(&ID.uuid);
    head[24..28].copy_from_slice(&ID.volume_no.0.to_le_bytes());
    let record = [with_checksum(&head), rest.to_vec()].concat();
    let header = ID.parse_header(&record).expect("a header");
    assert!(header.synced() <= header.sequence.0);
    assert!(delta_len(header.body_len) >= ALIGN);
    if let Some(found) = header.body(&record) {
        assert_eq!(found.len() as u64, header.body_len);
        let encoded = ID.encode_header(&header, found);
        let again = [zerocopy::IntoBytes::as_bytes(&encoded), found].concat();
        assert_eq!(ID.parse_header(&again), Some(header));
    }
}

/// A whole record of which a part is overwritten: it is read as it was, or not at all.
fn record(bytes: &[u8]) {
    let Some((&[at, len, part, _], body)) = bytes.split_first_chunk() else {
        return;
    };
    let header = DeltaHeader {
        sequence: RecordNo(1),
        ..DeltaHeader::default()
    };
    let mut whole = encode_record(&ID, &header, body);
    assert_eq!(whole.len() as u64, record_len(body.len() as u64));
    let at = whole.len() / 256 * usize::from(at);
    let damaged = whole.iter_mut().skip(at).take(usize::from(len));
    damaged.for_each(|byte| *byte ^= part);
    let found = read_record(&ID, &whole, &|_| true);
    assert!(len > 65 || found.is_some());
    if let Some(found) = found {
        assert_eq!(found.body, body);
    }
    // Any answer, but no panic.
    let _ = read_record(&ID, body, &|_| true);
}

fn superblock(bytes: &[u8]) {
    let Some(bytes) = bytes.get(..SYNC_LOG_SUPERBLOCK_LEN) else {
        return;
    };
    let mut bytes = bytes.to_vec();
    bytes[..8].copy_from_slice(&SYNC_LOG_MAGIC);
    bytes[8..12].copy_from_slice(&SYNC_LOG_VERSION.to_le_bytes());
    bytes[16..32].copy_from_slice(&ID.uuid);
    bytes[32..36].copy_from_slice(&ID.volume_no.0.to_le_bytes());
    if let Ok(shape) = ID.check_superblock(&with_checksum(&bytes)) {
        assert!((ALIGN..=HALF_LEN_MAX).contains(&shape.half_len));
        assert_eq!(shape.half_len % ALIGN, 0);
    }
}
