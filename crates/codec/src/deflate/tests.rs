use super::bits::BitWriter;
use super::correct::{CorrectionBuilder, End};
use super::parse::Lengths;
use super::predict::zlib_stream;
use super::tokens::{END_OF_BLOCK, Token};
use super::trees::Frequencies;
use super::write::write_tokens;
use super::*;
use proptest::prelude::*;
use std::io::Write;
use weald_format::cursor::put_varint;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// Text with near and far repeats, as in files.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let words: Vec<Vec<u8>> = (0..200)
        .map(|i| {
            noise(2 + i % 9, seed + i as u64)
                .iter()
                .map(|b| b'a' + b % 26)
                .collect()
        })
        .collect();
    let choice = noise(len, seed + 1000);
    let mut out = Vec::new();
    for byte in choice {
        out.extend_from_slice(&words[usize::from(byte) * 7 % 200]);
        out.push(b' ');
        if out.len() >= len {
            break;
        }
    }
    out.truncate(len);
    out
}

fn zlib(plain: &[u8], level: u32) -> Vec<u8> {
    let mut encoder =
        flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::new(level));
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// Number of plain bytes of a part.
const PART_LEN: usize = 256 << 10;

/// Finds the recipe of a stream that one recipe makes.
fn analyze_whole(stream: &[u8], plain: &[u8], candidates: &[Zlib]) -> Option<Recipe> {
    let mut recipes = analyze(stream, plain, candidates, PART_LEN);
    assert!(recipes.len() < 2);
    recipes.pop()
}

/// Makes the stream of `recipes`. Passes to each recipe only the plain bytes of its input range.
fn remake(recipes: &[Recipe], plain: &[u8]) -> Vec<u8> {
    let mut made = Vec::new();
    for recipe in recipes {
        let Some(part) = recipe.part else {
            made.extend(recreate(plain, recipe.zlib, &recipe.corrections, recipe.len).unwrap());
            continue;
        };
        let len = plain.len() as u64;
        let input = part.input_range(len).unwrap();
        let run = &plain[input.start as usize..input.end as usize];
        let bytes = recreate_part(run, len, recipe.zlib, part, &recipe.corrections, recipe.len);
        made.extend(bytes.unwrap());
    }
    made
}

/// A stream as other encoders might make it: other block boundaries, some blocks stored, some in
/// fixed codes, some tokens other than zlib's.
fn odd_stream(plain: &[u8], level: u8, block_len: usize, fix_every: usize) -> Vec<u8> {
    let predicted = zlib_stream(plain, default(level)).unwrap();
    let mut predicted = Predicted::of_stream(&predicted);
    let mut out = BitWriter::default();
    let (mut at, mut no, mut count) = (0, 0, 0);
    while at < plain.len() || no == 0 {
        let end = plain.len().min(at + block_len);
        let kind = no % 5;
        let mut tokens = Vec::new();
        let start = at;
        while kind != 3 && at < end {
            let mut token = predicted.token_at(plain, at).unwrap();
            count += 1;
            if count % fix_every == 0 {
                token = Token::literal(plain[at]);
            }
            at += token.len();
            tokens.push(token);
        }
        if kind == 3 {
            at = end.min(start + 0xffff);
        }
        out.put(u32::from(at >= plain.len()), 1);
        if kind == 3 {
            out.put(0, 2);
            out.align();
            out.put((at - start) as u32, 16);
            out.put(!((at - start) as u32) & 0xffff, 16);
            out.put_bytes(&plain[start..at]);
        } else if kind == 4 {
            out.put(1, 2);
            write_tokens(&mut out, &tokens, &Lengths::fixed(), true).unwrap();
        } else {
            out.put(2, 2);
            let mut header = BitWriter::default();
            let lengths = Frequencies::of(&tokens).describe(&mut header);
            out.put_bits(&header.into_bits());
            write_tokens(&mut out, &tokens, &lengths, true).unwrap();
        }
        no += 1;
    }
    out.finish()
}

/// Catches: a stream of zlib itself that needs corrections, or is not recognized.
#[test]
fn streams_of_zlib_need_no_corrections() {
    for (len, level) in [
        (1, 6),
        (100, 9),
        (5000, 1),
        (70_000, 6),
        (400_000, 9),
        (300_000, 4),
    ] {
        let plain = text(len, len as u64);
        let stream = zlib(&plain, level);
        let mut longer = stream.clone();
        longer.extend_from_slice(b"trailer");
        assert_eq!(
            inflate(&longer, 1 << 20),
            Some((plain.clone(), stream.len()))
        );
        assert_eq!(inflate(&longer, len - 1), None);
        let recipe = analyze_whole(&stream, &plain, ARCHIVES).unwrap();
        assert!(
            recipe.corrections.is_empty(),
            "{len} bytes at level {level}"
        );
        assert_eq!(
            recreate(&plain, recipe.zlib, &[], stream.len()).unwrap(),
            stream
        );
    }
}

/// Catches: blocks, stored bytes, codes or tokens of other encoders that are not restored.
#[test]
fn streams_of_other_encoders_come_back() {
    for (len, block_len, fix_every) in [
        (1000, 300, 1000),
        (50_000, 7000, 3000),
        (300_000, 90_000, 500),
    ] {
        let plain = text(len, 7);
        let stream = odd_stream(&plain, 6, block_len, fix_every);
        assert_eq!(inflate(&stream, len), Some((plain.clone(), stream.len())));
        let recipe = analyze_whole(&stream, &plain, ARCHIVES).unwrap();
        assert!(!recipe.corrections.is_empty());
        let made = recreate(&plain, recipe.zlib, &recipe.corrections, stream.len());
        assert_eq!(made.unwrap(), stream);
    }
}

/// Catches: an encoder with codes of its own whose description is lost.
#[test]
fn codes_that_zlib_would_not_choose_come_back() {
    let plain = text(3000, 5);
    let tokens: Vec<Token> = plain.iter().map(|&b| Token::literal(b)).collect();
    // Seven bits for each byte that occurs is worse than a Huffman code, but a valid code.
    let mut lens = vec![0; 257];
    (0..32).for_each(|i| lens[usize::from(b'`') + i] = 6);
    lens[usize::from(b' ')] = 2;
    lens[END_OF_BLOCK] = 6;
    let mut header = BitWriter::default();
    header.put(0, 5);
    header.put(0, 5);
    header.put(15, 4);
    // Every code length has four bits: 0, 2, 6 and 1 suffice.
    for symbol in parse::LENGTHS_ORDER {
        header.put(if [0, 1, 2, 6].contains(&symbol) { 2 } else { 0 }, 3);
    }
    let order = [(0, 0b00), (1, 0b01), (2, 0b10), (6, 0b11)];
    for &len in lens.iter().chain(&[1]) {
        let code = order.iter().find(|o| o.0 == u32::from(len)).unwrap().1;
        header.put(((code & 1) << 1) | (code >> 1), 2);
    }
    let lengths = Lengths {
        literals: lens,
        distances: vec![1],
    };
    let mut out = BitWriter::default();
    out.put(5, 3);
    out.put_bits(&header.into_bits());
    write_tokens(&mut out, &tokens, &lengths, true).unwrap();
    let stream = out.finish();
    assert_eq!(
        inflate(&stream, 1 << 20),
        Some((plain.clone(), stream.len()))
    );
    // Too many corrections to be worth it. Here it matters only that they are correct.
    assert_eq!(analyze_whole(&stream, &plain, ARCHIVES), None);
    let mut builder = CorrectionBuilder::new(&stream, 0, 0, 0);
    let mut parser = Parser::new(&stream);
    let Some(Event::Block { kind, header, .. }) = parser.next() else {
        panic!("no block");
    };
    builder.begin(kind, header).unwrap();
    for &token in &tokens {
        builder.token(token, Token::matching(3, 1)).unwrap();
    }
    let corrections = builder
        .finish(plain.len(), End::OfStream)
        .unwrap()
        .corrections;
    let made = recreate(&plain, default(6), &corrections, stream.len());
    assert_eq!(made.unwrap(), stream);
}

/// Catches: corrections that count other tokens than those of zlib's stream where zlib stores a
/// block.
#[test]
fn corrections_count_from_the_stream_of_zlib() {
    let plain = [noise(120_000, 31), text(100_000, 32), noise(70_000, 33)].concat();
    for level in [4, 6, 9] {
        let zlib = default(level);
        let zlib_bytes = zlib_stream(&plain, zlib).unwrap();
        let mut predicted = Predicted::from(&plain, 0, true, zlib).unwrap();
        let matches = (0..120_000).filter(|&at| {
            let token = predicted.token_at(&plain, at);
            token.is_some_and(|token| token.as_match().is_some())
        });
        assert!(matches.count() > 0, "no stored token that could be missed");
        let stream = odd_stream(&plain, level, 30_000, 5000);
        let cuts = correct(
            &stream,
            &plain,
            Predicted::of_stream(&zlib_bytes),
            usize::MAX,
        );
        let corrections = cuts.unwrap().remove(0).corrections;
        let made = recreate(&plain, zlib, &corrections, stream.len());
        assert!(made.unwrap() == stream, "level {level}");
    }
}

/// Catches: limits of corrections that are not enforced.
#[test]
fn corrections_are_held_to_their_rule() {
    let plain = text(2000, 3);
    let len = zlib(&plain, 6).len();
    let varints = |numbers: &[u64]| {
        let mut out = Vec::new();
        numbers.iter().for_each(|&n| put_varint(&mut out, n));
        out
    };
    let cases: [(&str, u8, Vec<u8>, usize); 8] = [
        ("level 0", 0, Vec::new(), len),
        ("another length", 6, Vec::new(), len + 1),
        ("a block of kind 3", 6, varints(&[1, 3, 0]), len),
        (
            "more tokens than bytes",
            6,
            varints(&[1, 2001 << 3 | 2, 0]),
            len,
        ),
        ("no blocks", 6, varints(&[0, 0]), len),
        ("an unused fix", 6, varints(&[1, 2, 1, 9, 0]), len),
        (
            "a match before the front",
            6,
            varints(&[1, 1 << 3 | 2, 1, 0, 1]),
            len,
        ),
        (
            "fixed codes with a description",
            6,
            varints(&[1, 5, 0]),
            len,
        ),
    ];
    for (name, level, corrections, len) in cases {
        let error = recreate(&plain, default(level), &corrections, len).expect_err(name);
        assert_eq!(error.place().map(|p| p.rule), Some("F-20.4"), "{name}");
    }
    let many = varints(&[16 + 2000 / 256 + 1]);
    assert!(recreate(&plain, default(6), &many, len).is_err());
}

/// Data on which zlib's choices differ: text, noise, runs, periods, sparse repeats, and all of
/// these in turn.
fn samples(len: usize) -> Vec<Vec<u8>> {
    let mut samples = vec![
        text(len, 11),
        noise(len, 12),
        vec![7; len],
        (0..len).map(|i| (i % 301) as u8).collect(),
        noise(len, 13).iter().map(|b| b % 3).collect(),
    ];
    let pieces = samples.iter().map(|s| &s[..len / 5]);
    samples.push(pieces.flatten().copied().collect());
    samples
}

/// Catches: a token that zlib would not choose, from the front or from a sync point.
#[test]
fn tokens_are_those_that_zlib_chooses() {
    for len in [
        0, 1, 2, 3, 4, 261, 262, 263, 32_505, 32_506, 33_000, 150_000,
    ] {
        for plain in samples(len) {
            for level in DeflatePart::LEVELS {
                for zlib in [default(level), filtered(level)] {
                    let stream = zlib_stream(&plain, zlib).unwrap();
                    let made = recreate(&plain, zlib, &[], stream.len());
                    assert!(made.unwrap() == stream, "{len} {zlib:?}");
                    let mut expected = Predicted::of_stream(&stream);
                    let mut predicted = Predicted::from(&plain, 0, true, zlib).unwrap();
                    let (mut at, mut sync_point) = (0, 0);
                    while at < plain.len() {
                        let token = predicted.token_at(&plain, at).unwrap();
                        // A stored block has no tokens.
                        let stored = Token::literal(plain[at]);
                        let wanted = expected.token_at(&plain, at).unwrap();
                        assert!(token == wanted || wanted == stored, "{len} {zlib:?} {at}");
                        if at < len / 2 {
                            sync_point = predicted.sync_point_before(at).unwrap();
                        }
                        at += token.len();
                    }
                    let from = sync_point.saturating_sub(DeflatePart::WINDOW_LEN as usize);
                    let run = &plain[from..];
                    let mut again =
                        Predicted::from(run, sync_point - from, from == 0, zlib).unwrap();
                    let mut predicted = Predicted::from(&plain, 0, true, zlib).unwrap();
                    let mut at = sync_point;
                    while at < plain.len() {
                        let token = predicted.token_at(&plain, at).unwrap();
                        assert_eq!(again.token_at(run, at - from), Some(token), "{zlib:?} {at}");
                        at += token.len();
                    }
                }
            }
        }
    }
}

/// Catches: parts of zlib's or other streams that differ in a bit; parts that read more than their
/// input range; corrections where zlib made the stream.
#[test]
fn parts_of_streams_come_back() {
    let len = PART_LEN * 3;
    let plain = samples(len * 2).pop().unwrap();
    for zlib in DeflatePart::LEVELS.flat_map(|level| [default(level), filtered(level)]) {
        let stream = zlib_stream(&plain, zlib).unwrap();
        for (part_len, count_min) in [(PART_LEN, 3), (32 << 10, 30)] {
            let recipes = part_recipes(&stream, &plain, zlib, part_len).unwrap();
            for recipe in &recipes {
                let part = recipe.part.unwrap();
                let is_whole = !part.begins_inside && !part.ends_inside;
                assert_eq!(recipe.corrections.is_empty(), is_whole, "{zlib:?}");
            }
            let count = recipes.len();
            assert!(count >= count_min, "{count} parts, {zlib:?}");
            assert!(remake(&recipes, &plain) == stream, "{zlib:?}");
        }
    }
    for (block_len, fix_every) in [(20_000, 900), (150_000, 100_000)] {
        let plain = text(len, 21);
        let stream = odd_stream(&plain, 6, block_len, fix_every);
        for part_len in [20_000, PART_LEN] {
            let recipes = analyze(&stream, &plain, ARCHIVES, part_len);
            assert!(recipes.len() > len / part_len / 2);
            assert!(remake(&recipes, &plain) == stream);
        }
    }
    // Stored blocks, and few sync points.
    let noise = noise(len, 22);
    let stream = zlib(&noise, 6);
    let recipes = part_recipes(&stream, &noise, default(6), PART_LEN).unwrap();
    assert!(remake(&recipes, &noise) == stream);
    // Below level 4 there are no parts.
    let plain = text(len, 23);
    assert_eq!(
        analyze(&zlib(&plain, 2), &plain, ARCHIVES, PART_LEN)[0].part,
        None
    );
}

/// Catches: streams without recipes although parts could make them; one recipe for too many bytes.
#[test]
fn long_streams_are_made_in_parts_only() {
    let plain = text(WHOLE_PLAIN_LEN_MAX / 16, 31).repeat(17);
    let recipes = analyze(&zlib(&plain, 6), &plain, ARCHIVES, PART_LEN);
    assert!(recipes.len() > 16 && recipes.iter().all(|r| r.part.is_some()));
    assert_eq!(analyze(&zlib(&plain, 1), &plain, ARCHIVES, PART_LEN), []);
}

/// Catches: numbers of a part, or plain bytes, that are not checked against their rule.
#[test]
fn parts_are_held_to_their_rule() {
    let plain = text(PART_LEN * 3, 41);
    let len = plain.len() as u64;
    let recipes = analyze(&zlib(&plain, 6), &plain, ARCHIVES, PART_LEN);
    let (recipe, zlib) = (&recipes[1], default(6));
    let part = recipe.part.unwrap();
    let make = |part: DeflatePart, run: &[u8], zlib, made_len| {
        recreate_part(run, len, zlib, part, &recipe.corrections, made_len)
    };
    let run = |part: DeflatePart| match part.input_range(len) {
        Some(input) => &plain[input.start as usize..input.end as usize],
        None => &plain,
    };
    assert!(make(part, run(part), zlib, recipe.len).is_ok());
    let cases = [
        ("F-20.8", DeflatePart { len, ..part }, zlib),
        (
            "F-20.8",
            DeflatePart {
                sync: part.start + 1,
                ..part
            },
            zlib,
        ),
        ("F-20.8", DeflatePart { carry: 0, ..part }, zlib),
        ("F-20.8", part, default(3)),
        (
            "F-20.4",
            DeflatePart {
                len: part.len - 1,
                ..part
            },
            zlib,
        ),
        ("F-20.4", DeflatePart { carry: 255, ..part }, default(9)),
        (
            "F-20.4",
            DeflatePart {
                ends_inside: !part.ends_inside,
                ..part
            },
            zlib,
        ),
    ];
    for (rule, part, zlib) in cases {
        let error = make(part, run(part), zlib, recipe.len).expect_err(rule);
        assert_eq!(
            error.place().map(|p| p.rule),
            Some(rule),
            "{part:?} {zlib:?}"
        );
    }
    for error in [
        make(part, &run(part)[1..], zlib, recipe.len),
        make(part, run(part), zlib, recipe.len + 1),
    ] {
        assert!(error.is_err());
    }
}

/// Catches: a distance or length that is out of range, or noise that is taken for a stream.
#[test]
fn invalid_streams_are_refused() {
    let stream = zlib(&text(5000, 1), 6);
    for len in 0..stream.len() {
        assert_eq!(inflate(&stream[..len], 1 << 20), None, "{len}");
    }
    // A match at the very front: fixed codes, length 3, distance 1.
    let mut out = BitWriter::default();
    out.put(3, 3);
    write_tokens(&mut out, &[Token::matching(3, 1)], &Lengths::fixed(), true).unwrap();
    assert_eq!(inflate(&out.finish(), 100), None);
    for seed in 0..200 {
        let bytes = noise(300, seed);
        if let Some((plain, len)) = inflate(&bytes, 1 << 20) {
            let _ = analyze(&bytes[..len], &plain, ARCHIVES, 100);
        }
    }
}

/// Catches: the strategy for filtered data not applied, or a level that it breaks.
#[test]
fn the_strategy_of_libpng_is_known() {
    // Differences of a slope with noise: short matches, which the strategy drops.
    let mut seed = 1u32;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8 % 5
    };
    let plain: Vec<u8> = (0..60_000)
        .map(|i| if i % 7 < 3 { 0 } else { next() })
        .collect();
    for level in 1..=9 {
        let stream = zlib_stream(&plain, filtered(level)).unwrap();
        let (inflated, len) = inflate(&stream, plain.len()).unwrap();
        assert!(inflated == plain && len == stream.len(), "level {level}");
        let recipe = analyze_whole(&stream, &plain, PNG).unwrap();
        let made = recreate(&plain, recipe.zlib, &recipe.corrections, stream.len());
        assert!(made.unwrap() == stream, "level {level}");
        if level >= 4 {
            assert_eq!(
                (recipe.zlib, &recipe.corrections[..]),
                (filtered(level), &[][..])
            );
            assert!(zlib_stream(&plain, default(level)).unwrap() != stream);
        }
    }
}

proptest! {
    /// Catches: panics and endless work on forged corrections.
    #[test]
    fn forged_corrections_fail_or_make_a_stream(
        corrections in proptest::collection::vec(any::<u8>(), 0..60),
        level in 0u8..12,
        len in 0usize..3000,
    ) {
        let plain = text(2000, 3);
        if let Ok(stream) = recreate(&plain, default(level), &corrections, len) {
            prop_assert_eq!(stream.len(), len);
        }
    }

    /// Catches: panics and endless work on forged parts.
    #[test]
    fn forged_parts_fail_or_make_as_many_bytes(
        numbers in (0u64..3000, 0u64..3000, 0u64..5000, any::<u8>()),
        corrections in proptest::collection::vec(any::<u8>(), 0..30),
        level in 3u8..11,
        len in 0usize..3000,
    ) {
        let plain = text(2000, 3);
        let (start, part_len, sync, carry) = numbers;
        let part = DeflatePart {
            start,
            len: part_len,
            sync,
            carry,
            begins_inside: level & 1 == 0,
            ends_inside: len % 2 == 0,
            is_final: len % 4 == 0,
        };
        let input = part.input_range(2000).unwrap_or(0..2000);
        let run = &plain[input.start as usize..input.end as usize];
        if let Ok(made) = recreate_part(run, 2000, default(level), part, &corrections, len) {
            prop_assert_eq!(made.len(), len);
        }
    }

    /// Catches: the same on corrections that are nearly correct.
    #[test]
    fn flipped_corrections_fail_or_make_a_stream(at in 0usize..1000, bit in 0u8..8) {
        let plain = text(20_000, 4);
        let stream = odd_stream(&plain, 6, 3000, 400);
        let mut recipe = analyze_whole(&stream, &plain, ARCHIVES).unwrap();
        let at = at % recipe.corrections.len();
        recipe.corrections[at] ^= 1 << bit;
        let _ = recreate(&plain, recipe.zlib, &recipe.corrections, stream.len());
    }

    /// Catches: a stream that differs from zlib's in a bit, in pieces that repeat from inside and
    /// outside the window.
    #[test]
    fn streams_are_those_of_zlib(
        pieces in proptest::collection::vec((0usize..8, 0usize..60_000, 1usize..9000), 1..12),
        level in 4u8..10,
        is_filtered in any::<bool>(),
    ) {
        let more = [text(70_000, 21), noise(70_000, 22)];
        let sources: Vec<Vec<u8>> = samples(70_000).into_iter().chain(more).collect();
        let mut plain = Vec::new();
        for (source, at, len) in pieces {
            plain.extend_from_slice(&sources[source][at..at + len]);
        }
        let zlib = Zlib { level, is_filtered };
        let stream = zlib_stream(&plain, zlib).unwrap();
        prop_assert!(recreate(&plain, zlib, &[], stream.len()).unwrap() == stream);
    }

    /// Catches: wrong plain bytes, at any level.
    #[test]
    fn any_bytes_at_any_level_come_back(
        plain in proptest::collection::vec(0u8..5, 1..5000),
        level in 1u32..10,
    ) {
        let stream = zlib(&plain, level);
        prop_assert_eq!(inflate(&stream, plain.len()), Some((plain.clone(), stream.len())));
        let recipe = analyze_whole(&stream, &plain, ARCHIVES).unwrap();
        prop_assert!(recipe.corrections.is_empty());
    }
}
