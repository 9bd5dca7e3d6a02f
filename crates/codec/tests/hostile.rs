//! Decoders on bytes that no encoder of ours made: they return an error, in bounded time and
//! memory, and never panic.

use std::sync::Arc;
use weald_codec::{
    CodecSpec, DICTIONARY_STEP_LEN, Decoder, DictionaryBytes, Encoder, SharedDictionary,
    front_buffer_len, front_len, train_dictionary,
};
use weald_format::container::Codec;
use weald_format::limits::BLOCK_LEN_MAX;

const SPECS: [CodecSpec; 4] = [
    CodecSpec::Lz4,
    CodecSpec::Zstd(3),
    CodecSpec::Xz(1),
    CodecSpec::Brotli(5),
];

fn text() -> Vec<u8> {
    (0..600u32)
        .flat_map(|i| format!("{} ", i * i % 977).into_bytes())
        .collect()
}

fn zstd_frame(raw: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(raw, 3).unwrap()
}

/// Peak memory of this process, bytes.
fn peak_len() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim()
        .trim_end_matches(" kB")
        .trim()
        .parse::<u64>()
        .unwrap()
        * 1024
}

#[test]
fn flipped_bits_and_prefixes_never_panic_and_never_give_other_lengths() {
    let raw = text();
    for spec in SPECS {
        let encoded = Encoder::new(spec, 1 << 20).unwrap().encode(&raw).unwrap();
        assert_ne!(encoded.codec, Codec::None, "{spec:?}");
        let mut decoder = Decoder::default();
        let mut decode = |bytes: &[u8]| decoder.decode(encoded.codec, bytes, raw.len(), None);
        for bit in 0..encoded.stored.len() * 8 {
            let mut bad = encoded.stored.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Ok(out) = decode(&bad) {
                assert_eq!(out.len(), raw.len(), "{spec:?} bit {bit}");
            }
        }
        for len in 0..encoded.stored.len() {
            assert!(
                decode(&encoded.stored[..len]).is_err(),
                "{spec:?} prefix {len}"
            );
        }
    }
}

#[test]
fn a_zstd_record_is_one_frame_and_nothing_else() {
    let raw = text();
    let (head, tail) = raw.split_at(100);
    let two = [zstd_frame(head), zstd_frame(tail)].concat();
    let skipped = [&b"\x50\x2a\x4d\x18\x03\0\0\0abc"[..], &zstd_frame(&raw)].concat();
    let trailed = [&zstd_frame(&raw)[..], &b"\x50\x2a\x4d\x18\x03\0\0\0abc"[..]].concat();
    let mut decoder = Decoder::default();
    assert!(
        decoder
            .decode(Codec::Zstd, &zstd_frame(&raw), raw.len(), None)
            .is_ok()
    );
    for bad in [two, skipped, trailed] {
        let error = decoder
            .decode(Codec::Zstd, &bad, raw.len(), None)
            .unwrap_err();
        assert_eq!(error.place().unwrap().rule, "F-3.11");
    }
}

#[test]
fn bombs_and_lies_about_lengths_are_refused_within_the_announced_memory() {
    let bomb = vec![0u8; 200 << 20];
    let (zstd, lz4) = (
        zstd_frame(&bomb),
        lz4_flex::block::compress(&bomb[..1 << 20]),
    );
    let xz = xz_with_dictionary(&[0; 1000], 1 << 20);
    let brotli = brotli_stream(&bomb, false);
    drop(bomb);
    // Memory of the test itself must not hide the memory of the decoders.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak_len();
    let mut decoder = Decoder::default();
    for raw_len in [1, 1000, (1 << 20) - 1] {
        assert!(decoder.decode(Codec::Zstd, &zstd, raw_len, None).is_err());
        assert!(decoder.decode(Codec::Lz4, &lz4, raw_len, None).is_err());
        assert!(
            decoder
                .decode(Codec::Brotli, &brotli, raw_len, None)
                .is_err()
        );
        assert!(
            decoder
                .decode(
                    Codec::Xz,
                    &xz,
                    if raw_len == 1000 { 999 } else { raw_len },
                    None
                )
                .is_err()
        );
    }
    let giant = usize::try_from(BLOCK_LEN_MAX).unwrap();
    assert!(
        decoder
            .decode(Codec::Zstd, &zstd_frame(b"a"), giant, None)
            .is_err()
    );
    assert!(decoder.decode(Codec::Xz, &xz, giant, None).is_err());
    // xz allocates the dictionary that the stream names. The decoder must refuse one of 1 GiB
    // before that.
    let mut stored = xz_with_dictionary(&[0; 1000], 1 << 30);
    let error = decoder.decode(Codec::Xz, &stored, 1000, None).unwrap_err();
    assert_eq!(error.place().unwrap().rule, "F-3.11");
    stored.truncate(5);
    assert!(decoder.decode(Codec::Xz, &stored, 1000, None).is_err());
    // Brotli does the same for a large window, which is not part of the RFC.
    let stored = brotli_stream(&vec![7; 1 << 20], true);
    let error = decoder
        .decode(Codec::Brotli, &stored, 1 << 20, None)
        .unwrap_err();
    assert_eq!(error.place().unwrap().rule, "F-3.11");
    let stored = brotli_stream(&vec![7; 1 << 20], false);
    assert!(
        decoder
            .decode(Codec::Brotli, &stored, 1 << 20, None)
            .is_ok()
    );
    let trailed = [&stored[..], b"x"].concat();
    assert!(
        decoder
            .decode(Codec::Brotli, &trailed, 1 << 20, None)
            .is_err()
    );
    let grown = peak_len() - before;
    assert!(grown < BLOCK_LEN_MAX + (90 << 20), "{} MiB", grown >> 20);
}

fn brotli_stream(raw: &[u8], has_large_window: bool) -> Vec<u8> {
    let params = brotli::enc::BrotliEncoderParams {
        quality: 1,
        lgwin: if has_large_window { 28 } else { 24 },
        large_window: has_large_window,
        ..Default::default()
    };
    let mut out = Vec::new();
    brotli::BrotliCompress(&mut &raw[..], &mut out, &params).unwrap();
    out
}

fn xz_with_dictionary(raw: &[u8], dictionary_len: u32) -> Vec<u8> {
    use liblzma::stream::{Action, Check, Filters, LzmaOptions, Stream};
    let mut options = LzmaOptions::new_preset(0).unwrap();
    options.dict_size(dictionary_len);
    let mut filters = Filters::new();
    filters.lzma2(&options);
    let mut stream = Stream::new_stream_encoder(&filters, Check::None).unwrap();
    let mut out = Vec::with_capacity(4096);
    stream.process_vec(raw, &mut out, Action::Finish).unwrap();
    out
}

#[test]
fn forged_dictionaries_give_an_error_or_are_only_bytes() {
    let samples: Vec<Vec<u8>> = (0..400u32)
        .map(|i| {
            (i..i + 40)
                .flat_map(|j| format!("name-{}/{} ", j * j % 91, j % 7).into_bytes())
                .collect()
        })
        .collect();
    let dictionary = train_dictionary(&samples, 4096).expect("a dictionary");
    assert!(
        dictionary.starts_with(&[0x37, 0xa4, 0x30, 0xec]),
        "trained dictionaries begin with their magic"
    );
    let stored = Encoder::with_dictionary(3, &dictionary)
        .unwrap()
        .encode(&samples[7])
        .unwrap();
    assert_eq!(stored.codec, Codec::ZstdDictionary);
    let mut decoder = Decoder::default();
    let mut refused = 0;
    // The entropy tables are in the first few hundred bytes; any bytes may follow them.
    for bit in 0..400 * 8 {
        let mut bad = dictionary.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        match DictionaryBytes::new(&bad) {
            Ok(bad) => {
                let _ = decoder.decode(
                    stored.codec,
                    &stored.stored,
                    samples[7].len(),
                    Some(&Arc::new(bad)),
                );
            }
            Err(error) => {
                assert_eq!(error.place().unwrap().rule, "F-3.12");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "no flip made a dictionary that zstd refuses");
    let cut = DictionaryBytes::new(&dictionary[..20]);
    assert!(cut.is_err());
    assert!(DictionaryBytes::new(b"").is_ok_and(|d| {
        decoder
            .decode(
                stored.codec,
                &stored.stored,
                samples[7].len(),
                Some(&Arc::new(d)),
            )
            .is_err()
    }));
    assert!(
        decoder
            .decode(stored.codec, &stored.stored, samples[7].len(), None)
            .is_err()
    );
}

/// Catches: a front with wrong bytes, a front that is longer than announced, and a front of damaged
/// bytes that is returned although the whole does not decode.
#[test]
fn fronts_are_the_first_bytes_and_hostile_ones_decode_or_fail() {
    let raw: Vec<u8> = (0..150_000u32)
        .flat_map(|i| format!("{} ", i.wrapping_mul(2_654_435_761) >> 12).into_bytes())
        .collect();
    // Longer and shorter than the frames that Zstandard decodes in place.
    for len in [raw.len(), raw.len() / 2] {
        let buffer_lens =
            [Codec::Zstd, Codec::ZstdDictionary].map(|c| front_buffer_len(c, len, 1 << 17));
        assert_eq!(buffer_lens, [if len > 1 << 20 { 1 << 17 } else { len }; 2]);
        check_fronts(&raw[..len]);
    }
}

fn check_fronts(raw: &[u8]) {
    let dictionary = raw[..40_000].to_vec();
    let prepared = Arc::new(DictionaryBytes::new(&dictionary).unwrap());
    let mut encoders = vec![Encoder::with_dictionary(3, &dictionary).unwrap()];
    encoders.extend(SPECS.map(|spec| Encoder::new(spec, 1 << 21).unwrap()));
    let mut decoder = Decoder::default();
    let mut front = Vec::new();
    for mut encoder in encoders {
        let encoded = encoder.encode(raw).unwrap();
        let codec = encoded.codec;
        assert_ne!(codec, Codec::None);
        for wanted in [0, 1, 70_000, 131_072, 131_073, raw.len() - 1, raw.len()] {
            let len = front_len(codec, raw.len(), wanted);
            assert!(
                len >= wanted && (wanted < 132_000) == (len < raw.len())
                    || matches!(codec, Codec::Lz4 | Codec::Brotli)
            );
            decoder
                .decode_front_into(
                    codec,
                    &encoded.stored,
                    raw.len(),
                    wanted,
                    Some(&prepared),
                    &mut front,
                )
                .unwrap();
            assert!(front == raw[..len], "{codec:?} {wanted}");
        }
        // Every bit of the first bytes, where headers and tables are.
        for bit in 0..600 {
            let mut bad = encoded.stored.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let decoded =
                decoder.decode_front_into(codec, &bad, raw.len(), 1, Some(&prepared), &mut front);
            if decoded.is_ok() {
                let lens = [front_len(codec, raw.len(), 1), raw.len()];
                assert!(lens.contains(&front.len()), "{codec:?} bit {bit}");
            }
        }
        let cut = &encoded.stored[..encoded.stored.len() / 100];
        let decoded =
            decoder.decode_front_into(codec, cut, raw.len(), 1, Some(&prepared), &mut front);
        assert!(decoded.is_err(), "{codec:?}");
    }
}

/// Would catch: parts that share one table of symbols, and borders that lose bytes.
#[test]
fn parts_of_different_kinds_take_less_with_borders() {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    };
    let mut raw: Vec<u8> = (0..20_000).map(|_| random()).collect();
    raw.extend((0..40_000).map(|_| b"0123456789abcdef"[usize::from(random() & 15)]));
    let dictionary = text();
    for mut encoder in [
        Encoder::new(CodecSpec::Zstd(19), 1 << 24).expect("encoder"),
        Encoder::with_dictionary(19, &dictionary).expect("encoder"),
        Encoder::new(CodecSpec::Zstd(1), 1 << 24).expect("encoder"),
    ] {
        let whole = encoder.encode(&raw).expect("encoded");
        let parts = encoder.encode_in_parts(&raw, &[20_000]).expect("encoded");
        assert_eq!(parts.codec, whole.codec);
        let lens = (parts.stored.len(), whole.stored.len());
        // 8 bits for a random byte, 4 for a digit.
        assert!(lens.0 < 42_000 && lens.0 + 2000 < lens.1, "{lens:?}");
        // Any borders give the bytes back: the encoder compares.
        for borders in [&[][..], &[0], &[1, 1, 2], &[59_999, 60_000, 60_001]] {
            let encoded = encoder.encode_in_parts(&raw, borders).expect("encoded");
            assert_eq!(encoded.codec, whole.codec);
        }
        assert_eq!(encoder.encode(&raw).expect("encoded"), whole);
    }
    let mut xz = Encoder::new(CodecSpec::Xz(1), 1 << 24).expect("encoder");
    let whole = xz.encode(&raw).expect("encoded");
    assert_eq!(xz.encode_in_parts(&raw, &[20_000]).expect("encoded"), whole);
}

/// Catches: a front of a frame that needs more than its steps, a dictionary without effect, and a
/// wrong dictionary that decodes without an error.
#[test]
fn blocks_that_share_a_dictionary_can_be_left_at_every_step() {
    let text: Vec<u8> = (0..40_000u32)
        .flat_map(|i| format!("{:x} ", i.wrapping_mul(2_654_435_761) >> 12).into_bytes())
        .collect();
    let (known, raw) = text.split_at(100_000);
    let raw = [raw, &known[20_000..90_000]].concat();
    let shared = SharedDictionary::new(3, known).unwrap();
    let prepared = Arc::new(DictionaryBytes::new(known).unwrap());
    let mut encoder = Encoder::new(CodecSpec::Zstd(3), 1 << 20).unwrap();
    let encoded = encoder.encode_with(&raw, Some(&shared)).unwrap();
    assert_eq!(encoded.codec, Codec::ZstdDictionary);
    assert!(encoded.stored.len() + 20_000 < encoder.encode(&raw).unwrap().stored.len());
    let (mut decoder, mut front) = (Decoder::default(), Vec::new());
    for wanted in (1..200_000usize).step_by(9973) {
        let len = front_len(encoded.codec, raw.len(), wanted);
        assert!(len.is_multiple_of(DICTIONARY_STEP_LEN) || len == raw.len());
        decoder
            .decode_front_into(
                encoded.codec,
                &encoded.stored,
                raw.len(),
                wanted,
                Some(&prepared),
                &mut front,
            )
            .unwrap();
        assert!(front == raw[..len], "{wanted}");
        // A block of the frame ends here: the stored bytes up to the last of these raw bytes decode
        // to exactly `len` bytes.
        if len < raw.len() {
            let end = stored_len_of_front(&encoded.stored, known, len);
            let made = decoded_len_of(&encoded.stored[..end], known, raw.len());
            assert_eq!(made, len, "{}", "W-8");
        }
    }
    let other = Arc::new(DictionaryBytes::new(&raw[..50_000]).unwrap());
    let decoded = decoder.decode(encoded.codec, &encoded.stored, raw.len(), Some(&other));
    assert!(decoded.is_err() || decoded.is_ok_and(|bytes| bytes != raw));
}

/// Number of stored bytes that a decoder has read when it has decoded `len` bytes.
fn stored_len_of_front(stored: &[u8], dictionary: &[u8], len: usize) -> usize {
    let dictionary = zstd::dict::DecoderDictionary::copy(dictionary);
    let mut context = zstd::zstd_safe::DCtx::create();
    context.ref_ddict(dictionary.as_ddict()).unwrap();
    let mut front = vec![0; len];
    let mut output = zstd::zstd_safe::OutBuffer::around(&mut front[..]);
    let mut end = 0;
    while output.pos() < len {
        end += 1;
        let mut input = zstd::zstd_safe::InBuffer::around(&stored[end - 1..end]);
        context.decompress_stream(&mut output, &mut input).unwrap();
    }
    end
}

/// Number of bytes that the front of a frame decodes to.
fn decoded_len_of(stored: &[u8], dictionary: &[u8], capacity: usize) -> usize {
    let dictionary = zstd::dict::DecoderDictionary::copy(dictionary);
    let mut context = zstd::zstd_safe::DCtx::create();
    context.ref_ddict(dictionary.as_ddict()).unwrap();
    let mut out = vec![0; capacity];
    let mut output = zstd::zstd_safe::OutBuffer::around(&mut out[..]);
    let mut input = zstd::zstd_safe::InBuffer::around(stored);
    while input.pos < stored.len() {
        context.decompress_stream(&mut output, &mut input).unwrap();
    }
    output.pos()
}
