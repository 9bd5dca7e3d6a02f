//! Records of a sync log, as they lie in it: header, body, parity, and the header once more, in
//! whole pages.
//!
//! So a short run of damaged bytes costs nothing, wherever it lies: if it hits the header, its copy
//! at the end counts; if it hits the body, the parity makes it good; a run over the border of two
//! records hits the copy of the one and the header of the other.

use crate::log_parity::{parity, parity_len, repair, unit_len};
use crate::sync_log::{ALIGN, DELTA_HEADER_LEN, DeltaHeader, SyncLogId};
use zerocopy::IntoBytes;

/// A record that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Its header.
    pub header: DeltaHeader,
    /// Its body.
    pub body: Vec<u8>,
    /// Bytes of the log that it takes.
    pub len: u64,
    /// Whether it lies there with other bytes than it was written with, which were made good.
    pub is_repaired: bool,
}

/// Bytes of the log that a record with a body of `body_len` bytes takes.
pub fn record_len(body_len: u64) -> u64 {
    let data_len = body_len.saturating_add(DELTA_HEADER_LEN as u64);
    let parity_len = usize::try_from(data_len).map_or(u64::MAX / 2, |len| parity_len(len) as u64);
    let end = data_len.saturating_add(parity_len);
    let end = end.saturating_add(DELTA_HEADER_LEN as u64);
    end.div_ceil(ALIGN).saturating_mul(ALIGN)
}

/// Longest body of a record that takes at most `len` bytes of the log.
pub fn body_len_max(len: u64) -> u64 {
    let units = usize::try_from(len).map_or(u64::MAX, |len| unit_len(len) as u64);
    let ends = units.saturating_add(DELTA_HEADER_LEN as u64);
    len.saturating_sub(ends.saturating_mul(2))
}

/// A record, as it lies in the log.
pub fn encode_record(id: &SyncLogId, header: &DeltaHeader, body: &[u8]) -> Vec<u8> {
    let header = id.encode_header(header, body);
    let mut bytes = Vec::with_capacity(record_len(body.len() as u64) as usize);
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(body);
    let parity = parity(&bytes);
    // Whole pages: the kernel need not read the rest of one.
    let len = record_len(body.len() as u64) as usize;
    let ends_len = parity.len().saturating_add(DELTA_HEADER_LEN);
    bytes.resize(len.saturating_sub(ends_len), 0);
    bytes.extend_from_slice(&parity);
    bytes.extend_from_slice(header.as_bytes());
    bytes
}

/// The record at the front of `bytes`, which end with the half; `None` if there is none that
/// `is_next` takes, or it is damaged beyond repair or torn.
///
/// # Cost
/// Looks at the end of each page, if there is no header. A repair hashes the record up to 130
/// times.
pub fn read_record(
    id: &SyncLogId,
    bytes: &[u8],
    is_next: &dyn Fn(&DeltaHeader) -> bool,
) -> Option<LogRecord> {
    let front = id.parse_header(bytes).filter(|header| is_next(header));
    if let Some(header) = front
        && let Some(record) = read_with(id, bytes, header)
    {
        return Some(record);
    }
    let mut ends = (ALIGN as usize..=bytes.len()).step_by(ALIGN as usize);
    ends.find_map(|end| {
        let copy = bytes.get(end.checked_sub(DELTA_HEADER_LEN)?..end)?;
        let header = id.parse_header(copy).filter(|header| is_next(header))?;
        let is_its_end = record_len(header.body_len) == end as u64;
        is_its_end.then(|| read_with(id, bytes, header)).flatten()
    })
}

/// The record at the front of `bytes` with this header, which may be that at its end.
fn read_with(id: &SyncLogId, bytes: &[u8], header: DeltaHeader) -> Option<LogRecord> {
    let len = usize::try_from(record_len(header.body_len)).ok()?;
    let bytes = bytes.get(..len)?;
    let body_len = usize::try_from(header.body_len).ok()?;
    let data_len = DELTA_HEADER_LEN.checked_add(body_len)?;
    let mut data = bytes.get(..data_len)?.to_vec();
    let is_whole = |data: &[u8]| header.body(data).is_some();
    if !is_whole(&data) {
        let end = len.checked_sub(DELTA_HEADER_LEN)?;
        let parity = bytes.get(end.checked_sub(parity_len(data_len))?..end)?;
        // The header is known, and a part of the parity.
        let known = id.encode_parsed(&header);
        data.get_mut(..DELTA_HEADER_LEN)?
            .copy_from_slice(known.as_bytes());
        if !repair(&mut data, parity, &is_whole) {
            return None;
        }
    }
    let body = data.split_off(DELTA_HEADER_LEN);
    let is_repaired = encode_record(id, &header, &body) != bytes;
    Some(LogRecord {
        header,
        body,
        len: len as u64,
        is_repaired,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RecordNo, VolumeCommitNo, VolumeNo};

    const ID: SyncLogId = SyncLogId {
        uuid: [7; 16],
        volume_no: VolumeNo(1),
    };

    fn header(no: u64) -> DeltaHeader {
        DeltaHeader {
            layer: VolumeCommitNo(8),
            base: VolumeCommitNo(7),
            sequence: RecordNo(no),
            before: 2,
            unsynced: 1,
            base_chain: [3; 16],
            ..DeltaHeader::default()
        }
    }

    /// The two records that lie one behind the other, if they are there.
    fn read_both(bytes: &[u8]) -> Option<[LogRecord; 2]> {
        let is_next = |no: u64| move |header: &DeltaHeader| header.sequence == RecordNo(no);
        let first = read_record(&ID, bytes, &is_next(1))?;
        let second = read_record(&ID, bytes.get(first.len as usize..)?, &is_next(2))?;
        Some([first, second])
    }

    /// Would catch: a place of a record at which 16 damaged bytes cost it, damage that is not told,
    /// other bytes than were written, and a length that differs between writer and reader.
    #[test]
    fn sixteen_damaged_bytes_cost_no_record_wherever_they_lie() {
        for len in [0, 10, 3000, 3600, 5000, 60_000] {
            let bodies = [1u8, 2].map(|no| -> Vec<u8> {
                let bytes = (0..len).map(|at: usize| (at * 7 % 253) as u8 ^ no);
                bytes.collect()
            });
            let record = |no: usize| encode_record(&ID, &header(no as u64 + 1), &bodies[no]);
            let whole = [record(0), record(1), vec![0xa5; 8192]].concat();
            let [first_len, end] = [1, 2].map(|count| count * record_len(len as u64) as usize);
            assert_eq!(first_len, record(0).len());
            assert!(body_len_max(first_len as u64) >= len as u64 || len > 3500);
            assert!(record_len(body_len_max(first_len as u64)) <= first_len as u64);
            for start in (0..end + 16).step_by((end / 600).max(13)) {
                let mut bytes = whole.clone();
                bytes[start..start + 16]
                    .iter_mut()
                    .for_each(|byte| *byte ^= 0xff);
                let found = read_both(&bytes).unwrap_or_else(|| panic!("{len} {start}"));
                let told = [0..first_len, first_len..end]
                    .map(|record| record.start < start + 16 && start < record.end);
                assert_eq!(found.each_ref().map(|record| record.is_repaired), told);
                let [first, second] = &found;
                assert_eq!([&first.body, &second.body], [&bodies[0], &bodies[1]]);
                let known = DeltaHeader {
                    body_len: len as u64,
                    body_checksum: first.header.body_checksum,
                    ..header(1)
                };
                assert_eq!(first.header, known);
            }
        }
    }

    /// Would catch: a record that counts without one of the pages of its body.
    #[test]
    fn a_torn_record_is_none() {
        let body: Vec<u8> = (0..20_000u32).map(|at| ((at * at) >> 7) as u8).collect();
        let whole = encode_record(&ID, &header(1), &body);
        let pages = (DELTA_HEADER_LEN + body.len()) / ALIGN as usize;
        for page in 0..pages {
            let mut torn = whole.clone();
            let page = page * ALIGN as usize..(page + 1) * ALIGN as usize;
            torn[page].fill(0xa5);
            assert!(read_record(&ID, &torn, &|_| true).is_none());
        }
    }
}
