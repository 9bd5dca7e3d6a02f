//! The zlib stream of a PNG file (PNG specification, third edition, section 10), which is divided
//! into IDAT chunks.

use super::stream::{PLAIN_LEN_MAX, STREAM_LEN_MIN, Stream};
use std::ops::Range;
use weald_codec::deflate::{PNG, inflate};
use weald_codec::trial_len;

/// First bytes of a PNG file.
pub const PNG_MAGIC: [u8; 8] = *b"\x89PNG\r\n\x1a\n";
/// Framing of a chunk, bytes: length and type before the body, a checksum after it.
const CHUNK_HEAD_LEN: usize = 8;
const CHUNK_TAIL_LEN: usize = 4;
/// Length of the zlib header (RFC 1950), bytes.
const ZLIB_HEAD_LEN: usize = 2;
/// Least average length of chunks, bytes. With shorter chunks the two extents per chunk take too
/// much.
const AVERAGE_CHUNK_LEN_MIN: usize = 512;
/// Maximum ratio of filtered rows to the stream. Beyond it the rows compress quickly but are slow
/// to encode again, and gain little.
const PLAIN_SHARE_MAX: usize = 32;
/// Level of the Zstandard trial on filtered rows, and the share (1/16) by which its result may
/// exceed the stream. The codecs of levels that decode PNG are stronger, and similar pictures lie
/// in one block.
const ROWS_TRIAL_LEVEL: i32 = 9;
const TRIAL_SHARE: usize = 16;

/// Ranges of the bodies of the IDAT chunks.
fn bodies(data: &[u8]) -> Vec<Range<usize>> {
    let mut bodies = Vec::new();
    let mut at = PNG_MAGIC.len();
    while let Some(head) = data
        .get(at..)
        .and_then(|d| d.first_chunk::<CHUNK_HEAD_LEN>())
    {
        let len = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let body = at + CHUNK_HEAD_LEN..at + CHUNK_HEAD_LEN + len;
        if body.end + CHUNK_TAIL_LEN > data.len() {
            break;
        }
        let is_data = &head[4..] == b"IDAT";
        if !is_data && !bodies.is_empty() {
            break;
        }
        at = body.end + CHUNK_TAIL_LEN;
        if is_data && len > 0 {
            bodies.push(body);
        }
    }
    bodies
}

/// Ranges of `len` bytes of `parts` after the first `skipped` bytes.
fn cut(parts: &[Range<usize>], skipped: usize, len: usize) -> Vec<Range<usize>> {
    let (mut remaining_skip, mut remaining_len) = (skipped, len);
    let cut = parts.iter().filter_map(|part| {
        let start = part.start + remaining_skip.min(part.len());
        remaining_skip -= start - part.start;
        let end = part.end.min(start + remaining_len);
        remaining_len -= end - start;
        (start < end).then_some(start..end)
    });
    cut.collect()
}

/// The stream of a PNG file, if it is worth a recipe. A long stream is divided into parts of
/// `part_len` plain bytes.
pub fn streams(data: &[u8], part_len: usize) -> Vec<Stream> {
    take(data, part_len).into_iter().collect()
}

fn take(data: &[u8], part_len: usize) -> Option<Stream> {
    let bodies = bodies(data);
    let joined: Vec<u8> = bodies
        .iter()
        .flat_map(|b| &data[b.clone()])
        .copied()
        .collect();
    // Method 8 is DEFLATE; flag 0x20 would mean a preset dictionary.
    let [method, flags, rest @ ..] = &joined[..] else {
        return None;
    };
    if method & 15 != 8
        || flags & 0x20 != 0
        || joined.len() / bodies.len() < AVERAGE_CHUNK_LEN_MIN.min(joined.len())
    {
        return None;
    }
    let plain_len_max = (rest.len() * PLAIN_SHARE_MAX).min(PLAIN_LEN_MAX);
    let (plain, len) = inflate(rest, plain_len_max)?;
    let stream = &rest[..len];
    if len < STREAM_LEN_MIN || trial_len(ROWS_TRIAL_LEVEL, &plain).ok()? > len + len / TRIAL_SHARE {
        return None;
    }
    let ranges = cut(&bodies, ZLIB_HEAD_LEN, len);
    Stream::from_deflate(stream, ranges, &plain, PNG, part_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a byte of the stream lost, duplicated or taken from a chunk's framing, if
    /// zlib's header and trailer share chunks with the stream or have their own.
    #[test]
    fn parts_are_cut_at_any_byte() {
        let parts = [10..11, 20..23, 30..31, 40..50];
        let all: Vec<usize> = parts.iter().cloned().flatten().collect();
        for skipped in 0..=all.len() {
            for len in 0..=all.len() - skipped {
                let found = cut(&parts, skipped, len);
                assert!(found.iter().all(|p| !p.is_empty()));
                let found: Vec<usize> = found.into_iter().flatten().collect();
                assert_eq!(found, all[skipped..skipped + len]);
            }
        }
    }
}
