//! FLAC streams of recipes: any samples are restored, and any stream gives an error or the
//! announced length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_codec::flac::{CHANNELS_MAX, decode, encode};
use weald_format::recipes::{Method, Samples};

fn samples(code: u8) -> Samples {
    match Method::from_code(u64::from(16 + code % 8)) {
        Some(Method::Pcm(samples)) => samples,
        other => panic!("{other:?}"),
    }
}

/// Input: sample format, number of channels, samples.
fn round_trip(bytes: &[u8]) {
    let [layout, channels, bytes @ ..] = bytes else {
        return;
    };
    let (samples, channels) = (samples(*layout), usize::from(*channels) % CHANNELS_MAX + 1);
    let whole = bytes.len() / (samples.sample_len() * channels) * samples.sample_len() * channels;
    let bytes = &bytes[..whole];
    if let Some(stream) = encode(bytes, channels, samples) {
        assert_eq!(decode(&stream, samples, whole).unwrap(), bytes);
    }
}

/// Input: sample format, output length (three bytes), a stream.
fn make(bytes: &[u8]) {
    let [layout, a, b, c, stream @ ..] = bytes else {
        return;
    };
    let len = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
    if let Ok(made) = decode(stream, samples(*layout), len) {
        assert_eq!(made.len(), len);
    }
}

fuzz_target!(|data: &[u8]| match data {
    [0, bytes @ ..] => round_trip(bytes),
    [1, bytes @ ..] => make(bytes),
    _ => {}
});
