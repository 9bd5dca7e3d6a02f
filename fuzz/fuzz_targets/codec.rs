//! Every codec with any bytes and any announced length: the result is an error or exactly that
//! length, and fronts are its first bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_codec::Decoder;
use weald_format::container::Codec;

fuzz_target!(|data: &[u8]| {
    let [codec, low, middle, high, stored @ ..] = data else {
        return;
    };
    let Some(codec) = Codec::from_code(*codec) else {
        return;
    };
    // Longer lengths would only slow down the fuzzer.
    let raw_len = u32::from_le_bytes([*low, *middle, *high, 0]) as usize % (1 << 18);
    let mut decoder = Decoder::default();
    let mut front = Vec::new();
    let wanted = raw_len / 8;
    let has_front = decoder
        .decode_front_into(codec, stored, raw_len, wanted, None, &mut front)
        .is_ok();
    if let Ok(raw) = decoder.decode(codec, stored, raw_len, None) {
        assert_eq!(raw.len(), raw_len);
        assert!(has_front && raw.starts_with(&front) && front.len() >= wanted);
    }
});
