//! How many gzip files come back from their plain bytes, and at what price: `find DIR -name '*.gz' | … --example deflate`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::BufRead;
use std::time::{Duration, Instant};
use weald_codec::deflate::{ARCHIVES, analyze, inflate, recreate};

fn main() {
    let (mut files, mut streams, mut exact) = (0u32, 0u32, 0u32);
    let (mut stream_len, mut came_back_len, mut plain_len, mut corrections_len) = (0, 0, 0, 0);
    let mut times = [Duration::ZERO; 3];
    let mut levels: BTreeMap<u8, u32> = BTreeMap::new();
    for path in std::io::stdin().lock().lines() {
        let bytes = std::fs::read(path.unwrap()).unwrap();
        files += 1;
        let Some(start) = body_start(&bytes) else {
            continue;
        };
        let clock = Instant::now();
        let Some((plain, len)) = inflate(&bytes[start..], 16 << 20) else {
            continue;
        };
        times[0] += clock.elapsed();
        let stream = &bytes[start..start + len];
        (stream_len, plain_len) = (stream_len + len, plain_len + plain.len());
        let clock = Instant::now();
        let recipe = analyze(stream, &plain, ARCHIVES);
        times[1] += clock.elapsed();
        let Some(recipe) = recipe else {
            continue;
        };
        streams += 1;
        exact += u32::from(recipe.corrections.is_empty());
        corrections_len += recipe.corrections.len();
        came_back_len += len;
        *levels.entry(recipe.zlib.level).or_default() += 1;
        let clock = Instant::now();
        assert!(recreate(&plain, recipe.zlib, &recipe.corrections, len).unwrap() == stream);
        times[2] += clock.elapsed();
    }
    println!("{files} files, {stream_len} bytes of streams, {plain_len} plain");
    println!(
        "{streams} come back ({came_back_len} bytes), {exact} of them without corrections; {corrections_len} bytes of corrections"
    );
    println!("levels {levels:?}");
    println!("inflate, analyze, recreate: {times:.2?}");
}

/// Where the DEFLATE stream of a gzip file begins.
fn body_start(bytes: &[u8]) -> Option<usize> {
    if !bytes.starts_with(&[0x1f, 0x8b, 8]) {
        return None;
    }
    let flags = *bytes.get(3)?;
    let mut at = 10;
    if flags & 4 != 0 {
        at += 2 + usize::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    }
    for flag in [8, 16] {
        if flags & flag != 0 {
            at += bytes.get(at..)?.iter().position(|&b| b == 0)? + 1;
        }
    }
    Some(if flags & 2 != 0 { at + 2 } else { at })
}
