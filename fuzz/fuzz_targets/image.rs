//! Any bytes as an image: salvaged, opened, walked, read, checked.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let bytes = data.to_vec();
    weald_fuzz::salvage(bytes.clone());
    weald_fuzz::examine(bytes);
});
