//! Xattr pages: parsed bytes encode to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::pages::{encode_xattrs, parse_xattrs};

fuzz_target!(|data: &[u8]| {
    if let Ok(sets) = parse_xattrs(data) {
        assert_eq!(encode_xattrs(&sets), data);
    }
});
