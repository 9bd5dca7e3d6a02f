//! Zstandard with any bytes as a dictionary.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use weald_codec::{Decoder, DictionaryBytes};
use weald_format::container::Codec;

fuzz_target!(|data: &[u8]| {
    let [low, high, rest @ ..] = data else { return };
    let stored_len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (stored, dictionary) = rest.split_at(stored_len);
    let Ok(dictionary) = DictionaryBytes::new(dictionary) else {
        return;
    };
    let dictionary = Arc::new(dictionary);
    for raw_len in [64, 4096] {
        if let Ok(raw) =
            Decoder::default().decode(Codec::ZstdDictionary, stored, raw_len, Some(&dictionary))
        {
            assert_eq!(raw.len(), raw_len);
        }
    }
});
