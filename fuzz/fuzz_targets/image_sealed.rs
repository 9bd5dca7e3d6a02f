//! Any records, sealed into an image with consistent digests: opened, walked, read, checked.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weald_fuzz::examine(weald_fuzz::seal(&weald_fuzz::unframe(data))));
