//! The byte layout of our Lepton files; `docs/format.md` section 20 has it as a table.

use super::segments::{Picture, corrupt};
use flate2::{Decompress, FlushDecompress, Status};
use std::ops::Range;
use weald_format::Result;
use weald_format::cursor::Cursor;

/// Bytes before the kind of the picture: magic and version.
const MAGIC_AND_VERSION: [u8; 3] = [0xcf, 0x84, 1];
/// Bytes after the kind: one stream, zeros, and the mark of writers whose flags follow the length
/// of the header.
const STREAM_COUNT_AND_MARK: [u8; 6] = [1, 0, 0, 0, b'M', b'S'];
/// Flags (flags are present; sums of DC estimates and of predictions have 16 bits), then the
/// writer's version and revision.
const FLAGS_AND_WRITER: [u8; 6] = [0x83, 0, 0, 0, 0, 0];
/// Position of version and revision.
const WRITER_VERSION: Range<usize> = 15..20;
/// Length of the header besides the segments: names and lengths of its parts, the padding bit, the
/// stream description, an end of image.
const HEADER_FIXED_LEN: usize = 7 + 4 + 3 + HANDOFF_LEN + 7 + EOI.len();
/// Length of the description of the stream in the header.
const HANDOFF_LEN: usize = 16;
/// After the segments and a padding byte with any value: one stream that starts at the first row.
/// Then follows its length …
const STREAM_DESCRIPTION: [u8; 5] = [b'H', b'H', 1, 0, 0];
/// … then: the stream begins at a whole byte with all predictions zero; then the bytes after the
/// scans.
const STREAM_END: [u8; 17] = *b"\0\0\0\0\0\0\0\0\0\0GRB\x02\0\0\0";
/// End of image.
const EOI: [u8; 2] = [0xff, 0xd9];
/// SOI and EOI, which the header does not hold.
const ENDS_LEN: usize = 4;
/// Bytes after the header.
const HEADER_END: [u8; 3] = *b"CMP";
/// Length of the field at the end of the file that holds the length of the file, bytes.
const FILE_LENGTH_FIELD_LEN: usize = 4;

/// Clears the version of `lepton_jpeg` and its revision, so that the file does not depend on the
/// build. Readers do not need them.
pub fn clear_version(stored: &mut [u8]) {
    if let Some(version) = stored.get_mut(WRITER_VERSION) {
        version.fill(0);
    }
}

/// Checks that `stored` is a Lepton file of ours for a JPEG file of `len` bytes, and that its
/// decoding is bounded.
///
/// # Errors
/// `Corrupt`.
/// # Cost
/// Inflates the header: at most `len` bytes and a few more.
pub fn check(stored: &[u8], len: usize) -> Result<()> {
    let mut file = Cursor::new(stored, "Lepton file");
    expect(&mut file, &MAGIC_AND_VERSION)?;
    let kind = file.byte()?;
    expect(&mut file, &STREAM_COUNT_AND_MARK)?;
    let header_len = read_u32(&mut file)?;
    expect(&mut file, &FLAGS_AND_WRITER)?;
    if read_u32(&mut file)? != len {
        return Err(corrupt("JPEG file: its length differs from the recipe's"));
    }
    let compressed_len = read_u32(&mut file)?;
    let compressed = file.bytes(compressed_len)?;
    expect(&mut file, &HEADER_END)?;
    stream(&mut file, stored.len())?;

    let segments_len = header_len.checked_sub(HEADER_FIXED_LEN);
    let segments_len = segments_len.filter(|&l| l.saturating_add(ENDS_LEN) <= len);
    let Some(segments_len) = segments_len else {
        return Err(corrupt(format!(
            "header: {header_len} bytes are out of range"
        )));
    };
    let header = inflate(compressed, header_len)?;
    let picture = header_picture(&header, segments_len, len)?;
    let expected_kind = if picture.is_progressive() { b'X' } else { b'Z' };
    if kind != expected_kind || !picture.is_allowed() {
        return Err(corrupt(format!(
            "a picture that is not allowed: {picture:?}"
        )));
    }
    Ok(())
}

/// Reads the picture's properties from the segments in the header.
fn header_picture(header: &[u8], segments_len: usize, len: usize) -> Result<Picture> {
    let mut parts = Cursor::new(header, "Lepton file");
    expect(&mut parts, b"HDR")?;
    if read_u32(&mut parts)? != segments_len {
        return Err(corrupt("segments: their length contradicts the header's"));
    }
    let segments = parts.bytes(segments_len)?;
    expect(&mut parts, b"P0D")?;
    parts.byte()?;
    expect(&mut parts, &STREAM_DESCRIPTION)?;
    if read_u32(&mut parts)? > len {
        return Err(corrupt("stream: makes more bytes than the file has"));
    }
    expect(&mut parts, &STREAM_END)?;
    expect(&mut parts, &EOI)?;
    parts.finish()?;
    Picture::of_segments(segments)
}

/// Checks the pieces of the only stream, up to the length field of the file, which is `stored_len`.
fn stream(file: &mut Cursor, stored_len: usize) -> Result<()> {
    while file.remaining() > FILE_LENGTH_FIELD_LEN {
        let piece_len = match file.byte()? {
            0 => usize::from(u16::from_le_bytes([file.byte()?, file.byte()?])).saturating_add(1),
            0x10 => 1 << 12,
            0x20 => 1 << 14,
            0x30 => 1 << 16,
            other => {
                return Err(corrupt(format!(
                    "piece of the stream: unknown kind {other:#04x}"
                )));
            }
        };
        file.bytes(piece_len)?;
    }
    if read_u32(file)? == stored_len && file.remaining() == 0 {
        Ok(())
    } else {
        Err(corrupt("end of the file: expected the file's length there"))
    }
}

/// Inflates the zlib stream `bytes` to exactly `len` bytes.
fn inflate(bytes: &[u8], len: usize) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(len);
    let mut state = Decompress::new(true);
    // The vector does not grow, so a longer stream does not reach its end.
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

/// Reads a little-endian number of four bytes.
fn read_u32(file: &mut Cursor) -> Result<usize> {
    let bytes = file.bytes(4)?.first_chunk().copied().unwrap_or_default();
    Ok(u32::from_le_bytes(bytes) as usize)
}
