//! Seeds for the decoders of blocks, and for the recipes of compressed files.

use crate::Corpus;
use std::fs;
use std::path::Path;
use std::process::Command;
use weald_codec::deflate::{PNG, analyze, inflate};
use weald_codec::flac::encode;
use weald_codec::{CodecSpec as Spec, Encoder, jpeg};
use weald_format::history::History;
use weald_format::recipes::Method;
use weald_testkit::jpeg::Jpeg;

/// Compresses `dir/from` to `dir/to` with Python's zlib and these arguments of `compressobj`.
pub fn zlib(dir: &Path, from: &str, to: &str, arguments: &str) {
    let script = format!(
        "import sys, zlib
c = zlib.compressobj({arguments})
data = open(sys.argv[1], 'rb').read()
open(sys.argv[2], 'wb').write(c.compress(data) + c.flush())"
    );
    let status = Command::new("python3")
        .args(["-c", &script, from, to])
        .current_dir(dir)
        .status();
    assert!(status.is_ok_and(|s| s.success()), "python3: {arguments}");
}

/// Seeds for `codec`, `codec_dictionary` and `codec_history`.
pub fn codecs(corpus: &Corpus) {
    let text: Vec<u8> = (0..300u32)
        .flat_map(|i| format!("{} ", i * i % 97).into_bytes())
        .collect();
    for spec in [
        Spec::None,
        Spec::Lz4,
        Spec::Zstd(1),
        Spec::Zstd(19),
        Spec::Xz(0),
        Spec::Brotli(5),
    ] {
        let encoded = Encoder::new(spec, 1 << 16).unwrap().encode(&text).unwrap();
        let mut seed = vec![encoded.codec as u8];
        seed.extend_from_slice(&(text.len() as u32).to_le_bytes()[..3]);
        seed.extend_from_slice(&encoded.stored);
        corpus.put("codec", &seed);
    }
    let samples: Vec<Vec<u8>> = (0..200u32)
        .map(|i| {
            (i..i + 30)
                .flat_map(|j| format!("{}/", j * j % 89).into_bytes())
                .collect()
        })
        .collect();
    let dictionary = weald_codec::train_dictionary(&samples, 1024).unwrap();
    for len in [64, 4096] {
        let raw: Vec<u8> = samples.concat().into_iter().take(len).collect();
        let stored = Encoder::with_dictionary(3, &dictionary)
            .unwrap()
            .encode(&raw)
            .unwrap()
            .stored;
        let mut seed = (stored.len() as u16).to_le_bytes().to_vec();
        seed.extend_from_slice(&stored);
        seed.extend_from_slice(&dictionary);
        corpus.put("codec_dictionary", &seed);
        let history = History {
            base_stream: (len > 64).then_some(5),
            numbers: vec![0, 7],
        };
        let mut stored = history.encode();
        let frame = weald_codec::encode_with_history(&raw, &dictionary, 3).unwrap();
        stored.extend_from_slice(&frame);
        let mut seed = (stored.len() as u16).to_le_bytes().to_vec();
        seed.extend_from_slice(&stored);
        seed.extend_from_slice(&dictionary);
        corpus.put("codec_history", &seed);
    }
}

/// Seeds for `deflate`: streams with and without corrections, and their recipes.
pub fn deflate(corpus: &Corpus, dir: &Path) {
    let text: Vec<u8> = (0..400u32)
        .flat_map(|i| format!("{} {}\n", i % 13, i * i % 991).into_bytes())
        .collect();
    // More bytes than levels are compared on, but a short stream.
    let long = text.repeat(60);
    fs::write(dir.join("text"), &text).unwrap();
    fs::write(dir.join("long"), &long).unwrap();
    for (from, arguments) in [
        ("text", "level=6, wbits=-15"),
        ("text", "level=6, wbits=-15, memLevel=1"),
        ("text", "level=9, wbits=-15, memLevel=2"),
        ("text", "level=4, wbits=-15, memLevel=3"),
        ("text", "level=6, wbits=-12"),
        ("text", "level=6, wbits=-15, strategy=zlib.Z_FILTERED"),
        ("text", "level=6, wbits=-15, strategy=zlib.Z_FIXED"),
        ("text", "level=0, wbits=-15"),
        ("text", "level=6, wbits=-9"),
        ("text", "level=6, wbits=-15, strategy=zlib.Z_HUFFMAN_ONLY"),
        ("long", "level=6, wbits=-15, memLevel=9"),
    ] {
        zlib(dir, from, "stream", arguments);
        let stream = fs::read(dir.join("stream")).unwrap();
        corpus.put("deflate", &[&[0], &stream[..]].concat());
        let (plain, len) = inflate(&stream, 1 << 20).expect("a stream");
        if let Some(recipe) = analyze(&stream, &plain, PNG, usize::MAX).into_iter().next()
            && let Ok(plain_len) = u16::try_from(plain.len())
        {
            // Also the whole stream as one part.
            let mut seed = vec![2, recipe.zlib.level];
            for number in [0, plain_len, 0] {
                seed.extend_from_slice(&number.to_le_bytes());
            }
            seed.push(1);
            seed.extend_from_slice(&plain_len.to_le_bytes());
            seed.extend_from_slice(&(len as u16).to_le_bytes());
            seed.push(0);
            seed.extend_from_slice(&plain);
            seed.extend_from_slice(&recipe.corrections);
            corpus.put("deflate", &seed);
            let mut seed = vec![1, Method::Deflate(recipe.zlib).code()];
            seed.extend_from_slice(&(len as u16).to_le_bytes());
            seed.extend_from_slice(&plain_len.to_le_bytes());
            seed.extend_from_slice(&plain);
            seed.extend_from_slice(&recipe.corrections);
            corpus.put("deflate", &seed);
        }
    }
}

/// Seeds for `flac`: samples of every format, and their streams: silence, a slope, noise.
pub fn samples(corpus: &Corpus) {
    for code in 16..24u8 {
        let Some(Method::Pcm(samples)) = Method::from_code(code.into()) else {
            panic!("{code}");
        };
        for channels in [1, 2, 3] {
            // Whole samples for any sample length and number of channels.
            let mut bytes = vec![0; 72 * 20];
            bytes.extend((0..72 * 40).map(|i: u32| (i / 72) as u8));
            let mut noise = vec![0; 72 * 20];
            blake3::Hasher::new().finalize_xof().fill(&mut noise);
            bytes.extend_from_slice(&noise);
            corpus.put(
                "flac",
                &[&[0, code - 16, channels - 1], &bytes[..]].concat(),
            );
            let stream = encode(&bytes, channels.into(), samples).expect("whole samples");
            let len = (bytes.len() as u32).to_le_bytes();
            let seed = [&[1, code - 16, len[0], len[1], len[2]], &stream[..]].concat();
            corpus.put("flac", &seed);
        }
    }
}

/// Seeds for `jpeg`: pictures of every kind, their Lepton files, and parts of those.
pub fn pictures(corpus: &Corpus) {
    for kind in 0..8u8 {
        let file = Jpeg {
            is_color: kind & 1 != 0,
            is_progressive: kind & 2 != 0,
            restart: u16::from(kind & 4),
            ..Jpeg::new(3, 3)
        }
        .draw(kind.into());
        corpus.put("jpeg", &[&[0], &file[..]].concat());
        let stored = jpeg::encode(&file).expect("a picture");
        let len = &(file.len() as u32).to_le_bytes()[..3];
        corpus.put("jpeg", &[&[1], len, &stored].concat());
        // The segments of the file, from after SOI to the end of the first scan's header.
        let scan = file.windows(2).position(|w| w == b"\xff\xda").unwrap();
        let end = scan + 2 + usize::from(file[scan + 3]);
        let segments = &file[2..end];
        let pieces = stored.windows(3).position(|w| w == b"CMP").unwrap() + 3;
        let seed = [
            &[2, stored[3]],
            len,
            &(segments.len() as u16).to_le_bytes(),
            segments,
            &stored[pieces..stored.len() - 4],
        ];
        corpus.put("jpeg", &seed.concat());
    }
}
