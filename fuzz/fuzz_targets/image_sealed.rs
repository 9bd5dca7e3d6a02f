//! Any records, sealed into an image with consistent digests: salvaged, opened, walked, read,
//! checked.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let bytes = weald_fuzz::seal(&weald_fuzz::unframe(data));
    weald_fuzz::salvage(bytes.clone());
    weald_fuzz::examine(bytes);
});
