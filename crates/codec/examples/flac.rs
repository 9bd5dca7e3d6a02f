//! Measures size and speed of our FLAC codec: `flac CHANNELS BYTES FILE…`. Files hold signed
//! samples without headers, low byte first.
#![allow(missing_docs, clippy::print_stdout)]

use std::time::Instant;
use weald_codec::flac::{decode, encode};
use weald_codec::trial_len;
use weald_format::recipes::Samples;

fn main() {
    let mut args = std::env::args().skip(1);
    let mut number = || args.next().and_then(|a| a.parse::<usize>().ok());
    let (channels, len) = (number().expect("channels"), number().expect("bytes"));
    let samples = Samples::words(len, false).expect("2 to 4 bytes");
    for path in args {
        let data = std::fs::read(&path).expect("readable");
        let piece_len = (1 << 20) / (len * channels) * len * channels;
        let (mut raw, mut flac, mut zstd) = (0, 0, [0, 0]);
        let (mut encoding, mut decoding) = (0.0, 0.0);
        for piece in data.chunks(piece_len) {
            let piece = &piece[..piece.len() / (len * channels) * len * channels];
            let start = Instant::now();
            let Some(stream) = encode(piece, channels, samples) else {
                continue;
            };
            encoding += start.elapsed().as_secs_f64();
            let start = Instant::now();
            assert_eq!(
                decode(&stream, samples, piece.len()).expect("a stream"),
                piece
            );
            decoding += start.elapsed().as_secs_f64();
            raw += piece.len();
            flac += stream.len();
            for (sum, level) in zstd.iter_mut().zip([3, 16]) {
                *sum += trial_len(level, piece).expect("zstd");
            }
        }
        let rate = |seconds: f64| raw as f64 / 1e6 / seconds;
        println!(
            "{path}: {raw} bytes, FLAC {flac} ({:.0} MB/s, back {:.0} MB/s), zstd 3 {}, 16 {}",
            rate(encoding),
            rate(decoding),
            zstd[0],
            zstd[1]
        );
    }
}
