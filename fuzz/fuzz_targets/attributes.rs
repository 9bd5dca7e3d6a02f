//! Attribute pages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::pages::{encode_attributes, parse_attributes};

fuzz_target!(|data: &[u8]| {
    if let Ok(items) = parse_attributes(data) {
        assert_eq!(parse_attributes(&encode_attributes(&items)).unwrap(), items);
    }
});
