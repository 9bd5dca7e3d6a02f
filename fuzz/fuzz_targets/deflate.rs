//! DEFLATE streams: analyzed streams are recreated, and any recipe gives an error or the announced
//! length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_codec::deflate::{ARCHIVES, PNG, Recipe, analyze, inflate, recreate, recreate_part};
use weald_format::recipes::{DeflatePart, Method, Zlib};

/// Longer inputs would only slow down the fuzzer; levels are compared on 128 KiB.
const PLAIN_LEN_MAX: usize = 160 << 10;

/// Short enough that short streams have parts.
const PART_LEN: usize = 1 << 10;

/// Analyzes a stream, followed by other bytes, and recreates it.
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
        let recipes = analyze(stream, &plain, tried, PART_LEN);
        let made: Vec<u8> = recipes.iter().flat_map(|r| make(r, &plain)).collect();
        assert!(recipes.is_empty() || made == stream);
    }
}

/// Runs `recipe` on its input range of `plain`.
fn make(recipe: &Recipe, plain: &[u8]) -> Vec<u8> {
    let Recipe {
        zlib,
        corrections,
        len,
        ..
    } = recipe;
    let made = match recipe.part {
        None => recreate(plain, *zlib, corrections, *len),
        Some(part) => {
            let input = part.input_range(plain.len() as u64).unwrap();
            let run = &plain[input.start as usize..input.end as usize];
            recreate_part(run, plain.len() as u64, *zlib, part, corrections, *len)
        }
    };
    made.unwrap()
}

/// Input: method, length of the stream and of the plain bytes (two bytes each), plain bytes,
/// corrections.
fn put_together(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<5>() else {
        return;
    };
    let Some(Method::Deflate(zlib)) = Method::from_code(head[0].into()) else {
        return;
    };
    let number = |i: usize| usize::from(u16::from_le_bytes([head[i], head[i + 1]]));
    let (plain, corrections) = rest.split_at(number(3).min(rest.len()));
    // Forged corrections may make an invalid stream; the check in a recipe detects that.
    if let Ok(made) = recreate(plain, zlib, corrections, number(1)) {
        assert_eq!(made.len(), number(1));
    }
}

/// Input: level, numbers of the part, length of the plain bytes and of the part's stream (two bytes
/// each), flags, plain bytes, corrections.
fn put_part_together(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_first_chunk::<13>() else {
        return;
    };
    let number = |i: usize| u64::from(u16::from_le_bytes([head[i], head[i + 1]]));
    let zlib = Zlib {
        level: head[0] & 15,
        is_filtered: head[0] & 16 != 0,
    };
    let part = DeflatePart {
        start: number(1),
        len: number(3),
        sync: number(5),
        carry: head[7],
        begins_inside: head[12] & 1 != 0,
        ends_inside: head[12] & 2 != 0,
        is_final: head[12] & 4 != 0,
    };
    let plain_len = (number(8) as usize).min(rest.len());
    let (plain, corrections) = rest.split_at(plain_len);
    let input = part
        .input_range(plain_len as u64)
        .unwrap_or(0..plain_len as u64);
    let run = &plain[input.start as usize..input.end as usize];
    let len = number(10) as usize;
    if let Ok(made) = recreate_part(run, plain_len as u64, zlib, part, corrections, len) {
        assert_eq!(made.len(), len);
    }
}

fuzz_target!(|data: &[u8]| match data {
    [0, bytes @ ..] => take_apart(bytes),
    [1, bytes @ ..] => put_together(bytes),
    [2, bytes @ ..] => put_part_together(bytes),
    _ => {}
});
