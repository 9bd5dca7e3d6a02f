//! Zstandard with any bytes as history, and the list of records before the frame.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_codec::Decoder;
use weald_format::history::History;

fuzz_target!(|data: &[u8]| {
    let [low, high, rest @ ..] = data else { return };
    let stored_len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (stored, before) = rest.split_at(stored_len);
    let Ok((history, frame)) = History::parse(stored) else {
        return;
    };
    let list = history.encode();
    assert_eq!(stored.strip_prefix(&*list), Some(frame));
    assert!(history.numbers.windows(2).all(|w| w[0] < w[1]));
    let mut raw = Vec::new();
    for raw_len in [64, 4096] {
        if Decoder::decode_with_history(frame, before, raw_len, &mut raw).is_ok() {
            assert_eq!(raw.len(), raw_len);
        }
    }
});
