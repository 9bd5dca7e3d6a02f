//! Measures how many gzip files can be recreated from their plain bytes, and the cost: `find DIR
//! -name '*.gz' | … --example deflate [-- PLAIN BYTES OF A PART]`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::BufRead;
use std::time::{Duration, Instant};
use weald_codec::deflate::{ARCHIVES, analyze, inflate};
use weald_codec::run_recipe;
use weald_format::ContentId;
use weald_format::recipes::{Method, Recipe};

fn main() {
    let part_len = std::env::args()
        .nth(1)
        .map_or(256 << 10, |a| a.parse().unwrap());
    let (mut files, mut streams, mut parts, mut exact) = (0u32, 0u32, 0u32, 0u32);
    let (mut stream_len, mut recreated_len, mut plain_len, mut corrections_len) = (0, 0, 0, 0);
    let mut times = [Duration::ZERO; 3];
    let mut levels: BTreeMap<u8, u32> = BTreeMap::new();
    for path in std::io::stdin().lock().lines() {
        let bytes = std::fs::read(path.unwrap()).unwrap();
        files += 1;
        let Some(start) = body_start(&bytes) else {
            continue;
        };
        let clock = Instant::now();
        let Some((plain, len)) = inflate(&bytes[start..], 24 << 20) else {
            continue;
        };
        times[0] += clock.elapsed();
        let stream = &bytes[start..start + len];
        (stream_len, plain_len) = (stream_len + len, plain_len + plain.len());
        let clock = Instant::now();
        let recipes = analyze(stream, &plain, ARCHIVES, part_len);
        times[1] += clock.elapsed();
        if recipes.is_empty() {
            continue;
        }
        streams += 1;
        recreated_len += len;
        *levels.entry(recipes[0].zlib.level).or_default() += 1;
        let mut at = 0;
        for recipe in recipes {
            parts += u32::from(recipe.part.is_some());
            exact += u32::from(recipe.corrections.is_empty());
            corrections_len += recipe.corrections.len();
            let bytes = &stream[at..at + recipe.len];
            at += recipe.len;
            let recipe = Recipe {
                len: recipe.len as u64,
                plain: ContentId(0),
                method: Method::Deflate(recipe.zlib),
                part: recipe.part,
                check: Recipe::check_of(bytes),
                corrections: recipe.corrections,
            };
            let clock = Instant::now();
            let input = recipe.input_range(plain.len() as u64).unwrap();
            let run = &plain[input.start as usize..input.end as usize];
            assert!(run_recipe(&recipe, run, plain.len() as u64).unwrap() == bytes);
            times[2] += clock.elapsed();
        }
    }
    println!("{files} files, {stream_len} bytes of streams, {plain_len} plain");
    println!(
        "{streams} recreated ({recreated_len} bytes), {parts} parts; \
         {exact} recipes without corrections; {corrections_len} bytes of corrections"
    );
    println!("levels {levels:?}");
    println!("inflate, analyze, recreate: {times:.2?}");
}

/// Start of the DEFLATE stream in a gzip file.
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
