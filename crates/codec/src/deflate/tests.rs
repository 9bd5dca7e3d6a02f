use super::*;
use proptest::prelude::*;
use std::io::Write;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// Text with repeats near and far, as files have.
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

/// A stream as other encoders might make it: blocks cut elsewhere, some stored, some in fixed codes, some tokens other than zlib's.
fn odd_stream(plain: &[u8], level: u8, block_len: usize, fix_every: usize) -> Vec<u8> {
    let predicted = zlib_stream(plain, default(level)).unwrap();
    let mut predicted = Predicted::new(&predicted);
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
            write_tokens(&mut out, &tokens, &Lengths::fixed()).unwrap();
        } else {
            out.put(2, 2);
            let mut header = BitWriter::default();
            let lengths = Frequencies::of(&tokens).describe(&mut header);
            out.put_bits(&header.into_bits());
            write_tokens(&mut out, &tokens, &lengths).unwrap();
        }
        no += 1;
    }
    out.finish()
}

/// Would catch: a stream of zlib itself that needs corrections, or is not recognised.
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
        let recipe = analyze(&stream, &plain, ARCHIVES).unwrap();
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

/// Would catch: blocks, stored bytes, codes or tokens of other encoders that do not come back.
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
        let recipe = analyze(&stream, &plain, ARCHIVES).unwrap();
        assert!(!recipe.corrections.is_empty());
        let made = recreate(&plain, recipe.zlib, &recipe.corrections, stream.len());
        assert_eq!(made.unwrap(), stream);
    }
}

/// Would catch: an encoder with codes of its own whose description is lost.
#[test]
fn codes_that_zlib_would_not_choose_come_back() {
    let plain = text(3000, 5);
    let tokens: Vec<Token> = plain.iter().map(|&b| Token::literal(b)).collect();
    // Seven bits for everything that occurs is worse than Huffman's code, but a code.
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
    write_tokens(&mut out, &tokens, &lengths).unwrap();
    let stream = out.finish();
    assert_eq!(
        inflate(&stream, 1 << 20),
        Some((plain.clone(), stream.len()))
    );
    let predicted = zlib_stream(&plain, default(6)).unwrap();
    // Too many corrections to be worth it; that they would be right is what matters here.
    assert_eq!(analyze(&stream, &plain, ARCHIVES), None);
    let mut walk = Correct {
        stream: &stream,
        blocks: Vec::new(),
        tokens: tokens.clone(),
        headers: Vec::new(),
    };
    let mut parser = Parser::new(&stream);
    let Some(Event::Block { kind, header }) = parser.next() else {
        panic!("no block");
    };
    let kept = std::mem::take(&mut walk.tokens);
    walk.begin(kind, header).unwrap();
    walk.tokens = kept;
    walk.end_block().unwrap();
    let mut corrections = walk.encode();
    put_varint(&mut corrections, tokens.len() as u64);
    for _ in &tokens {
        corrections.extend_from_slice(&[0, 0]);
    }
    let made = apply(&plain, &predicted, &corrections, stream.len()).unwrap();
    assert_eq!(made, stream);
}

/// Would catch: limits of corrections that are not kept.
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
        ("a fix that is left", 6, varints(&[1, 2, 1, 9, 0]), len),
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

/// Would catch: a distance or length that reaches out, or noise taken for a stream.
#[test]
fn what_is_no_stream_is_refused() {
    let stream = zlib(&text(5000, 1), 6);
    for len in 0..stream.len() {
        assert_eq!(inflate(&stream[..len], 1 << 20), None, "{len}");
    }
    // A match at the very front: fixed codes, length 3, distance 1.
    let mut out = BitWriter::default();
    out.put(3, 3);
    write_tokens(&mut out, &[Token::matching(3, 1)], &Lengths::fixed()).unwrap();
    assert_eq!(inflate(&out.finish(), 100), None);
    for seed in 0..200 {
        let bytes = noise(300, seed);
        if let Some((plain, len)) = inflate(&bytes, 1 << 20) {
            let _ = analyze(&bytes[..len], &plain, ARCHIVES);
        }
    }
}

/// Would catch: the strategy for filtered data not asked for, or a level that it spoils.
#[test]
fn the_strategy_of_libpng_is_known() {
    // Differences of a slope with noise: short matches, which the strategy leaves out.
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
        let recipe = analyze(&stream, &plain, PNG).unwrap();
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
    /// Would catch: panics and endless work on forged corrections.
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

    /// Would catch: the same, on corrections that are nearly right.
    #[test]
    fn flipped_corrections_fail_or_make_a_stream(at in 0usize..1000, bit in 0u8..8) {
        let plain = text(20_000, 4);
        let stream = odd_stream(&plain, 6, 3000, 400);
        let mut recipe = analyze(&stream, &plain, ARCHIVES).unwrap();
        let at = at % recipe.corrections.len();
        recipe.corrections[at] ^= 1 << bit;
        let _ = recreate(&plain, recipe.zlib, &recipe.corrections, stream.len());
    }

    /// Would catch: plain bytes that come back wrong, at any level.
    #[test]
    fn any_bytes_at_any_level_come_back(plain in proptest::collection::vec(0u8..5, 1..5000), level in 1u32..10) {
        let stream = zlib(&plain, level);
        prop_assert_eq!(inflate(&stream, plain.len()), Some((plain.clone(), stream.len())));
        let recipe = analyze(&stream, &plain, ARCHIVES).unwrap();
        prop_assert!(recipe.corrections.is_empty());
    }
}
