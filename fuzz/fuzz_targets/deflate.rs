//! DEFLATE streams: any bytes taken apart come back, and any recipe makes what it says or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_codec::deflate::{ARCHIVES, PNG, analyze, inflate, recreate};
use weald_format::recipes::Method;

/// More would only make the fuzzer slower; levels are tried on 128 KiB.
const PLAIN_LEN_MAX: usize = 160 << 10;

/// A stream, and what follows it.
fn take_apart(bytes: &[u8]) {
    let Some((plain, len)) = inflate(bytes, PLAIN_LEN_MAX) else {
        return;
    };
    let stream = &bytes[..len];
    assert_eq!(
        inflate(stream, plain.len()).map(|i| (i.0.len(), i.1)),
        Some((plain.len(), len))
    );
    for tried in [ARCHIVES, PNG] {
        if let Some(recipe) = analyze(stream, &plain, tried) {
            let made = recreate(&plain, recipe.zlib, &recipe.corrections, len);
            assert_eq!(made.unwrap(), stream);
        }
    }
}

/// Method, length of the stream and of the plain bytes (two each), plain bytes, corrections.
fn put_together(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<5>() else {
        return;
    };
    let Some(Method::Deflate(zlib)) = Method::from_code(head[0].into()) else {
        return;
    };
    let number = |i: usize| usize::from(u16::from_le_bytes([head[i], head[i + 1]]));
    let (plain, corrections) = rest.split_at(number(3).min(rest.len()));
    // Forged corrections may make what is no stream: the check that a recipe carries finds that.
    if let Ok(made) = recreate(plain, zlib, corrections, number(1)) {
        assert_eq!(made.len(), number(1));
    }
}

fuzz_target!(|data: &[u8]| match data {
    [0, bytes @ ..] => take_apart(bytes),
    [1, bytes @ ..] => put_together(bytes),
    _ => {}
});
