//! Files of samples (audio, FITS): stored as FLAC if that pays off, and restored exactly in every
//! case.

use crate::support::*;
use weald_builder::{BuildOptions, Categories};
use weald_image::{Image, OpenOptions};

/// Length of a WAV header written by [`wav`].
const HEAD_LEN: usize = 44;
/// Length of a piece: `recode::pcm::FLAC_PIECE_LEN`.
const PIECE_LEN: usize = 1 << 20;

fn options() -> BuildOptions {
    BuildOptions {
        memory_len: 512 << 20,
        categories: Categories {
            incompressible: true,
            pcm: true,
            fits: true,
            ..Categories::none()
        },
        ..quick()
    }
}

/// One mixing round, so that the numbers are not predictable.
fn mix(x: u32) -> u32 {
    (x ^ x >> 15).wrapping_mul(2_246_822_519)
}

/// Two tones per channel with some noise; values of `bits` bits.
fn tone(seed: u32, i: usize, channel: usize, bits: u32) -> i32 {
    let t = i as f64 / 44_100.0;
    let pitch = f64::from(seed % 7) * 100.0 + 2000.0;
    let tones = (t * pitch).sin() * 0.5 + (t * (pitch * 1.7 + channel as f64)).sin() * 0.3;
    let noise = mix(mix(i as u32 * 8 + channel as u32) ^ seed) >> 16;
    let noise = f64::from(noise) / 65536.0 - 0.5;
    let noise = noise / if bits == 8 { 40.0 } else { 2000.0 };
    ((tones + noise) * 2f64.powi(bits as i32 - 1)) as i32
}

/// `count` samples of each channel, little-endian.
fn samples(seed: u32, channels: usize, len: usize, count: usize) -> Vec<u8> {
    let bits = len as u32 * 8;
    let flip = if len == 1 { 0x80 } else { 0 };
    let all = (0..count).flat_map(|i| (0..channels).map(move |c| (i, c)));
    let bytes = all.map(|(i, c)| (tone(seed, i, c, bits) as u32 ^ flip).to_le_bytes());
    bytes.flat_map(|b| b.into_iter().take(len)).collect()
}

/// A WAV file of `data`.
fn wav(channels: usize, len: usize, data: &[u8]) -> Vec<u8> {
    let mut out = b"RIFF".to_vec();
    out.extend_from_slice(&(data.len() as u32 + 36).to_le_bytes());
    out.extend_from_slice(b"WAVEfmt \x10\0\0\0\x01\0");
    out.extend_from_slice(&(channels as u16).to_le_bytes());
    out.extend_from_slice(&44_100u32.to_le_bytes());
    out.extend_from_slice(&(44_100 * (channels * len) as u32).to_le_bytes());
    out.extend_from_slice(&((channels * len) as u16).to_le_bytes());
    out.extend_from_slice(&(len as u16 * 8).to_le_bytes());
    out.extend_from_slice(b"data");
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    assert_eq!(out.len(), HEAD_LEN);
    out.extend_from_slice(data);
    out
}

/// A FITS image of `width` × `height` pixels of 16 bits, a slope with noise, behind an empty
/// header.
fn fits(width: usize, height: usize) -> Vec<u8> {
    let header = |cards: &[String]| {
        let mut out: String = cards.iter().map(|c| format!("{c:<80}")).collect();
        out.push_str("END");
        let len = out.len().next_multiple_of(2880);
        format!("{out:<len$}").into_bytes()
    };
    let card = |word: &str, value: usize| format!("{word:<8}= {value:>20} / a number");
    let first = [
        "SIMPLE  = T".to_owned(),
        card("BITPIX", 8),
        card("NAXIS", 0),
    ];
    let image = [
        "XTENSION= 'IMAGE   '".to_owned(),
        card("BITPIX", 16),
        card("NAXIS", 2),
        card("NAXIS1", width),
        card("NAXIS2", height),
    ];
    let mut out = [header(&first), header(&image)].concat();
    for i in 0..width * height {
        let (x, y) = (i % width, i / width);
        let noise = mix(mix(i as u32)) >> 26;
        let value = (x * 3 + y * 5) as i32 % 9000 + noise as i32 - 4000;
        out.extend_from_slice(&(value as i16).to_be_bytes());
    }
    out.resize(out.len().next_multiple_of(2880), 0);
    out
}

/// Would catch: a sample layout that is not restored or not encoded; a stream that takes as much
/// space as before.
#[test]
fn every_sample_layout_is_restored_and_smaller() {
    for (channels, len) in [(1, 1), (1, 2), (2, 2), (2, 3), (6, 2), (8, 3), (2, 4)] {
        let data = samples(1, channels, len, 60_000);
        let plan = one_file("a.wav", wav(channels, len, &data));
        let without = BuildOptions {
            categories: Categories::none(),
            ..options()
        };
        let what = format!("{channels} channels of {len} bytes");
        let (with, _) = assert_recipes_save(&plan, &options(), &without, &what);
        assert_eq!(with.made_len, data.len() as u64, "{what}");
    }
    let image = fits(500, 300);
    assert_eq!(
        report_of(&one_file("a.fits", image), &options()).made_len,
        500 * 300 * 2
    );
}

/// Would catch: chunks lost behind the samples, samples that end within a frame, a header that
/// promises more data than there is, and equal samples stored twice under different headers.
#[test]
fn data_around_samples_is_restored() {
    let data = samples(2, 2, 2, 700_000);
    let whole = wav(2, 2, &data);
    let mut tagged = whole.clone();
    tagged.extend_from_slice(b"LIST\x04\0\0\0tags");
    let mut renamed = whole.clone();
    renamed[24] = 0x80;
    let mut plan = one_file("a.wav", whole.clone());
    plan.file("cut-in-a-frame.wav", whole[..whole.len() - 3].to_vec());
    plan.file("cut-in-a-piece.wav", whole[..HEAD_LEN + 30_001].to_vec());
    plan.file("only-head.wav", whole[..HEAD_LEN].to_vec());
    plan.file("half-head.wav", whole[..30].to_vec());
    plan.file("renamed.wav", renamed);
    plan.file("tagged.wav", tagged);
    let report = report_of(&plan, &options());
    let len = data.len() as u64;
    assert_eq!(report.made_len, len * 3 + (len - 4) + 30_000);
    // Whole pieces are equal in all files; only the ends differ.
    let alone = report_of(&one_file("a.wav", whole), &options());
    assert!(
        report.plain_len < alone.plain_len * 2,
        "{} of {}",
        report.plain_len,
        alone.plain_len
    );
}

/// Would catch: samples encoded although FLAC makes them no smaller than an ordinary codec, and
/// other files encoded by mistake.
#[test]
fn data_that_gains_nothing_is_stored_unchanged() {
    let mut plan = Plan::default();
    plan.file("noise.wav", wav(2, 2, &noise(1, 300_000)));
    plan.file("silence.wav", wav(2, 2, &vec![0; 300_000]));
    plan.file("pattern.wav", wav(2, 2, &noise(1, 1000).repeat(300)));
    plan.file("short.wav", wav(2, 2, &samples(1, 2, 2, 900)));
    plan.file("text.wav", text(1, 300_000));
    let mut float = wav(2, 4, &samples(1, 2, 4, 30_000));
    float[20] = 3;
    plan.file("float.wav", float);
    plan.add(
        "sparse.wav",
        Kind::File(vec![(0, wav(2, 2, &samples(1, 2, 2, 30_000)))], 1 << 20),
    );
    assert_eq!(report_of(&plan, &options()).made_len, 0);
    let wanted = one_file("a.wav", wav(2, 2, &samples(1, 2, 2, 30_000)));
    for (pcm, fits, made_len) in [(false, true, 0), (true, false, 120_000)] {
        let categories = Categories {
            pcm,
            fits,
            ..Categories::none()
        };
        let report = report_of(
            &wanted,
            &BuildOptions {
                categories,
                ..options()
            },
        );
        assert_eq!(report.made_len, made_len);
    }
}

/// Would catch: long files, which are streamed, stored unchanged or assembled wrongly.
#[test]
fn long_files_are_encoded_piece_by_piece() {
    // Longer than 1/32 of the budget.
    let data = samples(3, 2, 2, 4_500_000);
    let mut file = wav(2, 2, &data);
    file.extend_from_slice(b"LIST\x04\0\0\0tags");
    let mut plan = one_file("long.wav", file.clone());
    file[30] ^= 1;
    plan.file("twin.wav", file);
    plan.file("noise.wav", wav(2, 2, &noise(1, 18 << 20)));
    let report = report_of(&plan, &options());
    assert_eq!(report.made_len, data.len() as u64 * 2);
    assert!(report.plain_len < data.len() as u64, "{}", report.plain_len);
}

/// Would catch: output that depends on threads, or on the thread that found equal files first.
#[test]
fn images_do_not_depend_on_threads() {
    let mut plan = Plan::default();
    for n in 0..30 {
        let seed = n % 10;
        plan.file(format!("{n}.wav"), wav(1, 2, &samples(seed, 1, 2, 20_000)));
    }
    plan.file("long.fits", fits(3000, 3000));
    let scratch = Scratch::tmpfs("64m");
    let source = scratch.dir("source");
    plan.make(&source, 1);
    let image = |threads| {
        let temp = tempfile::tempdir().unwrap();
        let target = temp.path().join("image");
        build(
            &source,
            &target,
            &BuildOptions {
                threads,
                ..options()
            },
        );
        std::fs::read(&target).unwrap()
    };
    let one = image(1);
    for threads in [2, 5] {
        assert!(one == image(threads));
    }
}

/// Would catch: reads that begin, end or cross between pieces at a wrong byte.
#[test]
fn any_part_can_be_read() {
    let data = wav(2, 3, &samples(1, 2, 3, 400_000));
    assert!(data.len() > 2 * PIECE_LEN);
    let scratch = Scratch::tmpfs("16m");
    let source = scratch.dir("source");
    one_file("a.wav", data.clone()).make(&source, 1);
    let target = scratch.path().join("image");
    assert!(build(&source, &target, &options()).made_len > 0);
    let image = Image::open_path(&target, 0, &OpenOptions::default()).unwrap();
    let inode = at(&image, "a.wav").unwrap();
    let edges = [0, HEAD_LEN, HEAD_LEN + PIECE_LEN / 6 * 6, data.len() - 100];
    for from in edges.map(|e| e.saturating_sub(50)) {
        for offset in from..(from + 100).min(data.len()) {
            let mut found = [0; 7];
            let len = image.read_at(&inode, offset as u64, &mut found).unwrap();
            assert!(len > 0 && found[..len] == data[offset..offset + len]);
        }
    }
}
