//! Permission rules.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_builder::mode::ModeRule;

fuzz_target!(|data: &[u8]| {
    let [low, high, text @ ..] = data else { return };
    let permissions = u16::from_le_bytes([*low, *high]) & 0o7777;
    let Some(rule) = std::str::from_utf8(text)
        .ok()
        .and_then(|t| ModeRule::parse(t).ok())
    else {
        return;
    };
    for is_dir in [false, true] {
        assert!(rule.apply(permissions, is_dir) <= 0o7777);
    }
});
