//! Pages of fs-verity digests: parsed digests are the bytes of the page.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::pages::parse_fsverity;

fuzz_target!(|data: &[u8]| {
    if let Ok(digests) = parse_fsverity(data) {
        assert_eq!(digests.concat(), data);
    }
});
