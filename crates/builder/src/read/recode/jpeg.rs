//! JPEG files (ITU-T T.81, annex B), also several in a row: cameras store previews behind a
//! picture.

use super::stream::{Kind, Stream};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use weald_codec::deflate::WHOLE_PLAIN_LEN_MAX;
use weald_codec::jpeg::{self, encoder_memory_len};

/// First bytes of a JPEG file: start of image, and the first byte of a marker.
pub const JPEG_MAGIC: [u8; 3] = [0xff, 0xd8, 0xff];
/// Shortest and longest file that become Lepton, bytes. A shorter one is not worth a recipe; a
/// longer one would have to be made whole for every byte read.
const PICTURE_LEN_MIN: usize = 1 << 10;
pub const PICTURES_LEN_MAX: usize = WHOLE_PLAIN_LEN_MAX;
/// The Lepton file must be smaller by this share (1/32).
const LEPTON_GAIN_SHARE: usize = 32;
/// Memory to encode one file, bytes. It is so much that all threads together encode one file at a
/// time.
pub const JPEG_MEMORY_LEN: u64 = encoder_memory_len(PICTURES_LEN_MAX as u64);

/// Held while a file is encoded.
static TURN: Mutex<()> = Mutex::new(());

/// Encodes the JPEG file `file` as Lepton.
pub fn encode(file: &[u8]) -> Option<Vec<u8>> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    jpeg::encode(file)
}

/// Finds the JPEG files at the front of `data` that gain enough, with their Lepton files.
pub fn streams(data: &[u8]) -> Vec<(Stream, Option<Vec<u8>>)> {
    let mut streams = Vec::new();
    let mut at = 0;
    if data.len() > PICTURES_LEN_MAX {
        return streams;
    }
    while let Some(len) = data.get(at..).and_then(file_len) {
        streams.extend(take(data, at..at + len));
        at += len;
    }
    streams
}

fn take(data: &[u8], range: Range<usize>) -> Option<(Stream, Option<Vec<u8>>)> {
    let file = &data[range.clone()];
    if file.len() < PICTURE_LEN_MIN {
        return None;
    }
    let lepton = encode(file).filter(|l| l.len() + l.len() / LEPTON_GAIN_SHARE < file.len())?;
    let stream = Stream::from_one_recipe(range, Kind::Jpeg, &lepton, file);
    Some((stream, Some(lepton)))
}

/// Length of the JPEG file at the front of `data`, up to its end-of-image marker.
fn file_len(data: &[u8]) -> Option<usize> {
    let mut at = 2;
    data.starts_with(&JPEG_MAGIC).then_some(())?;
    loop {
        let [0xff, marker] = *data.get(at..)?.first_chunk()? else {
            return None;
        };
        at += 2;
        if marker == 0xd9 {
            return Some(at);
        }
        let len = data.get(at..)?.first_chunk()?;
        at += usize::from(u16::from_be_bytes(*len));
        if marker == 0xda {
            at += scan_len(data.get(at..)?)?;
        }
    }
}

/// Bytes before the next marker; restart markers and stuffed bytes belong to the scan.
fn scan_len(data: &[u8]) -> Option<usize> {
    let is_end = |w: &[u8]| w[0] == 0xff && !matches!(w[1], 0 | 0xd0..=0xd7 | 0xff);
    data.windows(2).position(is_end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_testkit::jpeg::Jpeg;

    /// Would catch: an end found in a comment or a scan, or missed; files missed behind the first.
    #[test]
    fn files_end_at_their_end_of_image_marker() {
        let comment = b"\xff\xfe\0\x06\xff\xd9\xff\xda";
        for is_progressive in [false, true] {
            let jpeg = Jpeg {
                is_progressive,
                restart: 3,
                ..Jpeg::new(8, 8)
            };
            let file = jpeg.draw(1);
            let file = [&file[..2], comment, &file[2..]].concat();
            assert_eq!(file_len(&file), Some(file.len()));
            assert!((0..file.len()).all(|len| file_len(&file[..len]).is_none()));
            let two = [&file[..], &jpeg.draw(2), b"behind"].concat();
            let found: Vec<_> = streams(&two).into_iter().flat_map(|s| s.0.ranges).collect();
            assert_eq!(found, [0..file.len(), file.len()..two.len() - 6]);
        }
    }

    /// Would catch: lengths that point outside the file or backwards.
    #[test]
    fn forged_lengths_are_refused() {
        for bytes in [
            &b"\xff\xd8\xff\xe0\0\0"[..],
            b"\xff\xd8\xff\xe0\0\0\xff\xe0\0\0\xff\xe0",
            b"\xff\xd8\xff\xe0\0\x01\xff",
            b"\xff\xd8\xff\xda\xff\xff",
            b"\xff\xd8\xff\xff\xff\xff\xff\xff",
        ] {
            assert_eq!(file_len(bytes), None);
        }
    }
}
