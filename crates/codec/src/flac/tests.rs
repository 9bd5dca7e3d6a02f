use super::*;
use proptest::prelude::*;
use weald_format::recipes::{Method, Samples};

/// Every sample format.
fn all_samples() -> impl Iterator<Item = Samples> {
    (16..24).map(|code| match Method::from_code(code) {
        Some(Method::Pcm(samples)) => samples,
        other => panic!("{code} is {other:?}"),
    })
}

/// Appends a signed number as a sample of one channel.
fn put(samples: Samples, value: i32, out: &mut Vec<u8>) {
    let word = value as u32 ^ samples.sign_flip();
    let bytes = word.to_le_bytes();
    let own = bytes[..samples.sample_len()].iter().copied();
    if samples.is_big_endian() {
        out.extend(own.rev())
    } else {
        out.extend(own)
    }
}

/// Tones that fade out, with noise in the low bits.
fn tones(samples: Samples, channels: usize, count: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut seed = 1u32;
    let amplitude = 2f64.powi(samples.bits() as i32 - 2);
    for i in 0..count {
        for channel in 0..channels {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let t = i as f64 / 44_100.0;
            let tone = (t * 2765.0).sin() * 0.6 + (t * (5000.0 + 7.0 * channel as f64)).sin() * 0.3;
            let noise = f64::from(seed >> 16) / 65536.0 - 0.5;
            put(
                samples,
                (amplitude * (tone + noise / 500.0)) as i32,
                &mut out,
            );
        }
    }
    out
}

#[track_caller]
fn round_trip(bytes: &[u8], channels: usize, samples: Samples) -> usize {
    let stream = encode(bytes, channels, samples).unwrap();
    let made = decode(&stream, samples, bytes.len()).unwrap();
    assert!(made == bytes, "{samples:?}, {channels} channels");
    stream.len()
}

/// Catches: a sample format, a number of channels or a length of the last frame that is not
/// restored, and a predictor that predicts nothing.
#[test]
fn tones_come_back_in_fewer_bytes() {
    for samples in all_samples() {
        for channels in 1..=CHANNELS_MAX {
            for count in [1, 2, 7, 4096, 4097, 9000] {
                let bytes = tones(samples, channels, count);
                let len = round_trip(&bytes, channels, samples);
                if count == 9000 && samples.sample_len() < 4 {
                    assert!(len * 10 < bytes.len() * 7, "{len} of {}", bytes.len());
                }
            }
        }
    }
}

/// Catches: wrong extremes of samples, sides and residuals, silence, noise, and samples with unused
/// low bits.
#[test]
fn extremes_come_back() {
    for samples in all_samples() {
        let most = (i64::from(u32::MAX) >> (33 - samples.bits())) as i32;
        let least = -most - 1;
        let runs: [&dyn Fn(usize) -> i32; 7] = [
            &|_| 0,
            &|_| least,
            &|i| if i % 2 == 0 { most } else { least },
            &|i| if i % 3 == 0 { most } else { least },
            &|i| (i as u32).wrapping_mul(2_654_435_761) as i32 >> (32 - samples.bits()),
            &|i| ((i * i) as i32 >> 3 << 3) & (most >> 1),
            &|i| if i == 5000 { least } else { 0 },
        ];
        for (no, run) in runs.iter().enumerate() {
            for channels in [1, 2, 3] {
                let mut bytes = Vec::new();
                (0..9000 * channels)
                    .for_each(|i| put(samples, run(i / channels + i % channels * no), &mut bytes));
                round_trip(&bytes, channels, samples);
            }
        }
    }
}

/// Catches: a stream that only our own decoder understands. The other decoder supports up to 24
/// bits.
#[test]
fn another_decoder_agrees() {
    for samples in all_samples().filter(|s| s.sample_len() < 4) {
        for channels in [1, 2, 6] {
            let bytes = tones(samples, channels, 10_000);
            let stream = encode(&bytes, channels, samples).unwrap();
            let mut reader = claxon::FlacReader::new(&stream[..]).unwrap();
            let mut found = Vec::new();
            reader
                .samples()
                .for_each(|s| put(samples, s.unwrap(), &mut found));
            assert!(found == bytes, "{samples:?}, {channels} channels");
        }
    }
}

/// Catches: streams that recipes must not hold but that are accepted.
#[test]
fn incomplete_samples_and_streams_are_refused() {
    let samples = Samples::words(2, false).unwrap();
    assert_eq!(encode(&[0; 7], 2, samples), None);
    assert_eq!(encode(&[], 2, samples), None);
    assert_eq!(encode(&[0; 36], 9, samples), None);
    let bytes = tones(samples, 2, 5000);
    let stream = encode(&bytes, 2, samples).unwrap();
    assert!(decode(&stream, samples, bytes.len() - 4).is_err());
    assert!(decode(&stream, Samples::words(3, false).unwrap(), bytes.len()).is_err());
    assert!(decode(&[&stream[..], &[0]].concat(), samples, bytes.len()).is_err());
    for len in 0..stream.len() {
        assert!(
            decode(&stream[..len], samples, bytes.len()).is_err(),
            "{len}"
        );
    }
    // Recipes do not allow a frame of 65,535 samples.
    let mut long = stream.clone();
    long[10..12].copy_from_slice(&[0xff, 0xff]);
    assert!(decode(&long, samples, bytes.len()).is_err());
}

/// Catches: a panic, or an output of another length than announced, on a stream with any bit
/// flipped.
#[test]
fn flipped_bits_give_an_error_or_other_samples() {
    let samples = Samples::words(2, true).unwrap();
    let bytes = tones(samples, 2, 600);
    let stream = encode(&bytes, 2, samples).unwrap();
    for bit in 0..stream.len() * 8 {
        let mut flipped = stream.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(made) = decode(&flipped, samples, bytes.len()) {
            assert_eq!(made.len(), bytes.len());
        }
    }
}

proptest! {
    #[test]
    fn any_samples_come_back(
        code in 16u64..24,
        channels in 1usize..=8,
        bytes in prop::collection::vec(any::<u8>(), 1..40_000),
    ) {
        let Some(Method::Pcm(samples)) = Method::from_code(code) else { panic!("{code}") };
        let step = samples.sample_len() * channels;
        let whole = bytes.len() / step * step;
        prop_assume!(whole > 0);
        round_trip(&bytes[..whole], channels, samples);
    }

    #[test]
    fn any_bytes_fail_or_make_the_announced_length(
        front in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let samples = Samples::words(2, false).unwrap();
        let mut stream = encode(&[0; 4000], 1, samples).unwrap()[..42].to_vec();
        stream.extend_from_slice(&[0xff, 0xf8, 0x70, 0x00, 0, 7, 0xcf, 0]);
        stream.extend_from_slice(&front);
        if let Ok(made) = decode(&stream, samples, 4000) {
            prop_assert_eq!(made.len(), 4000);
        }
    }
}
