//! What a Lepton file of ours is, byte for byte; `docs/format.md` section 20 has it as a table.

use super::corrupt;
use super::segments::Picture;
use flate2::{Decompress, FlushDecompress, Status};
use std::ops::Range;
use weald_format::Result;
use weald_format::cursor::Cursor;

/// Before the kind of the picture: magic and version.
const FRONT: [u8; 3] = [0xcf, 0x84, 1];
/// Behind it: one stream, nothing, and the mark of those writers whose flags follow the length of
/// the header.
const STREAM: [u8; 6] = [1, 0, 0, 0, b'M', b'S'];
/// The flags (they are said; sums of DC estimates and of predictions are of 16 bits), and the
/// writer's version and revision.
const WRITER: [u8; 6] = [0x83, 0, 0, 0, 0, 0];
/// Where version and revision stand.
const VERSION: Range<usize> = 15..20;
/// Bytes of the header besides the segments: names and lengths of its parts, the padding bit, the
/// one stream, an end of image.
const PARTS_LEN: usize = 7 + 4 + 3 + HANDOFF_LEN + 7 + EOI.len();
/// What the header says about its stream.
const HANDOFF_LEN: usize = 16;
/// Behind the segments: a padding bit that any bytes may be, then one stream, from the first row
/// on, of so many bytes, …
const STREAMS: [u8; 5] = [b'H', b'H', 1, 0, 0];
/// … beginning at a whole byte and with all predictions zero; then what follows the scans.
const TAIL: [u8; 17] = *b"\0\0\0\0\0\0\0\0\0\0GRB\x02\0\0\0";
/// End of image.
const EOI: [u8; 2] = [0xff, 0xd9];
/// SOI and EOI, which are in no header.
const ENDS_LEN: usize = 4;
/// Behind the header.
const COMPLETE: [u8; 3] = *b"CMP";
/// Bytes of the length at the end of the file.
const LEN_LEN: usize = 4;

/// Makes what `lepton_jpeg` wrote independent of its version and of where it was built; no reader
/// needs them.
pub fn forget_version(stored: &mut [u8]) {
    if let Some(version) = stored.get_mut(VERSION) {
        version.fill(0);
    }
}

/// Checks that `stored` is a Lepton file of ours for a JPEG file of `len` bytes, whose decoding is
/// bounded.
///
/// # Errors
/// `Corrupt`.
/// # Cost
/// The header's bytes are inflated: at most `len` and a few more.
pub fn check(stored: &[u8], len: usize) -> Result<()> {
    let mut file = Cursor::new(stored, "Lepton file");
    expect(&mut file, &FRONT)?;
    let kind = file.byte()?;
    expect(&mut file, &STREAM)?;
    let header_len = long(&mut file)?;
    expect(&mut file, &WRITER)?;
    if long(&mut file)? != len {
        return Err(corrupt("a JPEG file of another length"));
    }
    let compressed_len = long(&mut file)?;
    let compressed = file.bytes(compressed_len)?;
    expect(&mut file, &COMPLETE)?;
    stream(&mut file, stored.len())?;

    let segments_len = header_len.checked_sub(PARTS_LEN);
    let segments_len = segments_len.filter(|&l| l.saturating_add(ENDS_LEN) <= len);
    let Some(segments_len) = segments_len else {
        return Err(corrupt(format!("a header of {header_len} bytes")));
    };
    let header = inflate(compressed, header_len)?;
    let picture = header_picture(&header, segments_len, len)?;
    let expected_kind = match picture.is_progressive() {
        true => b'X',
        false => b'Z',
    };
    if kind != expected_kind || !picture.is_allowed() {
        return Err(corrupt(format!(
            "a picture that is not allowed: {picture:?}"
        )));
    }
    Ok(())
}

/// The picture that the header's segments tell of.
fn header_picture(header: &[u8], segments_len: usize, len: usize) -> Result<Picture> {
    let mut parts = Cursor::new(header, "Lepton file");
    expect(&mut parts, b"HDR")?;
    if long(&mut parts)? != segments_len {
        return Err(corrupt("segments of another length"));
    }
    let segments = parts.bytes(segments_len)?;
    expect(&mut parts, b"P0D")?;
    parts.byte()?;
    expect(&mut parts, &STREAMS)?;
    if long(&mut parts)? > len {
        return Err(corrupt("a stream that makes more than the file has"));
    }
    expect(&mut parts, &TAIL)?;
    expect(&mut parts, &EOI)?;
    parts.finish()?;
    Picture::of_segments(segments)
}

/// The pieces of the one stream, up to the length of the file, which is `stored_len`.
fn stream(file: &mut Cursor, stored_len: usize) -> Result<()> {
    while file.remaining() > LEN_LEN {
        let piece_len = match file.byte()? {
            0 => usize::from(u16::from_le_bytes([file.byte()?, file.byte()?])).saturating_add(1),
            0x10 => 1 << 12,
            0x20 => 1 << 14,
            0x30 => 1 << 16,
            other => return Err(corrupt(format!("a piece of stream {other:#04x}"))),
        };
        file.bytes(piece_len)?;
    }
    match long(file)? == stored_len && file.remaining() == 0 {
        true => Ok(()),
        false => Err(corrupt("the end tells another length of the file")),
    }
}

/// The zlib stream `bytes`, which must make exactly `len` bytes.
fn inflate(bytes: &[u8], len: usize) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(len);
    let mut state = Decompress::new(true);
    // The vector is not grown: what is longer does not end.
    let status = state.decompress_vec(bytes, &mut out, FlushDecompress::Finish);
    let is_whole = state.total_in() == bytes.len() as u64 && out.len() == len;
    match status {
        Ok(Status::StreamEnd) if is_whole => Ok(out),
        _ => Err(corrupt(format!("expected a zlib stream of {len} bytes"))),
    }
}

fn expect(file: &mut Cursor, expected: &[u8]) -> Result<()> {
    match file.bytes(expected.len())? {
        found if found == expected => Ok(()),
        found => Err(corrupt(format!(
            "expected {expected:02x?}, found {found:02x?}"
        ))),
    }
}

/// A number of four bytes, low byte first.
fn long(file: &mut Cursor) -> Result<usize> {
    let bytes = file.bytes(4)?.first_chunk().copied().unwrap_or_default();
    Ok(u32::from_le_bytes(bytes) as usize)
}
