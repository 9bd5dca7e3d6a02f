//! JPEG files of recipes: accepted files are restored, and any Lepton file gives an error or the
//! announced length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_codec::jpeg::{decode, encode};

/// A JPEG file.
fn round_trip(file: &[u8]) {
    if let Some(stored) = encode(file) {
        assert_eq!(decode(&stored, file.len()).unwrap(), file);
    }
}

/// Input: output length (three bytes), a Lepton file.
fn make(bytes: &[u8]) {
    let [a, b, c, stored @ ..] = bytes else {
        return;
    };
    let len = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
    if let Ok(made) = decode(stored, len) {
        assert_eq!(made.len(), len);
    }
}

/// Input: kind, output length (three bytes), length of the segments (two bytes), segments, pieces
/// of the stream. The Lepton file has a valid header, so that its contents get far into the
/// decoder.
fn make_framed(bytes: &[u8]) {
    let Some(([kind, a, b, c, d, e], rest)) = bytes.split_first_chunk() else {
        return;
    };
    let len = [*a, *b, *c, 0];
    let segments_len = usize::from(u16::from_le_bytes([*d, *e]));
    let Some((segments, pieces)) = rest.split_at_checked(segments_len) else {
        return;
    };
    let header = [
        &b"HDR"[..],
        &(segments_len as u32).to_le_bytes(),
        segments,
        b"P0D\x7fHH\x01\0\0",
        &len,
        b"\0\0\0\0\0\0\0\0\0\0GRB\x02\0\0\0\xff\xd9",
    ]
    .concat();
    let zlib = stored_zlib(&header);
    let mut file = [
        &[0xcf, 0x84, 1, *kind, 1, 0, 0, 0, b'M', b'S'],
        &(header.len() as u32).to_le_bytes()[..],
        &[0x83, 0, 0, 0, 0, 0],
        &len,
        &(zlib.len() as u32).to_le_bytes(),
        &zlib,
        b"CMP",
        pieces,
    ]
    .concat();
    file.extend_from_slice(&(file.len() as u32 + 4).to_le_bytes());
    make(&[&len[..3], &file].concat());
}

/// A zlib stream of stored blocks (RFC 1950, 1951).
fn stored_zlib(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 1];
    let mut chunks = bytes.chunks(usize::from(u16::MAX)).peekable();
    while let Some(chunk) = chunks.next() {
        let len = chunk.len() as u16;
        out.push(u8::from(chunks.peek().is_none()));
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&(!len).to_le_bytes());
        out.extend_from_slice(chunk);
    }
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), &byte| {
        let a = (a + u32::from(byte)) % 65521;
        (a, (b + a) % 65521)
    });
    out.extend_from_slice(&(b << 16 | a).to_be_bytes());
    out
}

fuzz_target!(
    // The library may panic, and its caller catches that. The fuzzer's own hook would end the
    // process first.
    init: std::panic::set_hook(Box::new(|_| ())),
    |data: &[u8]| {
        match data {
            [0, bytes @ ..] => round_trip(bytes),
            [1, bytes @ ..] => make(bytes),
            [2, bytes @ ..] => make_framed(bytes),
            _ => {}
        }
    }
);
