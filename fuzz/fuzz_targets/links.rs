//! Link pages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::pages::{encode_links, parse_links};

fuzz_target!(|data: &[u8]| {
    if let Ok(links) = parse_links(data) {
        assert_eq!(parse_links(&encode_links(&links)).unwrap(), links);
    }
});
