//! Measures size and speed of JPEG files as Lepton files: `jpeg FILE…`. Each file goes from start
//! to end of image.
#![allow(missing_docs, clippy::print_stdout)]

use std::time::Instant;
use weald_codec::jpeg::{decode, encode};

fn main() {
    let (mut whole, mut stored, mut seconds) = (0, 0, [0.0; 2]);
    for path in std::env::args().skip(1) {
        let file = std::fs::read(&path).expect("readable");
        let start = Instant::now();
        let Some(lepton) = encode(&file) else {
            println!("{path}: {} bytes, refused", file.len());
            continue;
        };
        let encoding = start.elapsed().as_secs_f64();
        let start = Instant::now();
        assert_eq!(decode(&lepton, file.len()).expect("a Lepton file"), file);
        println!("{path}: {} bytes, {}", file.len(), lepton.len());
        whole += file.len();
        stored += lepton.len();
        seconds[0] += encoding;
        seconds[1] += start.elapsed().as_secs_f64();
    }
    let rate = |seconds: f64| whole as f64 / 1e6 / seconds;
    println!(
        "{whole} bytes, {stored} ({:.1} MB/s with its verification, back {:.1} MB/s)",
        rate(seconds[0]),
        rate(seconds[1])
    );
}
