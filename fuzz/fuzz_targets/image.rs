//! Any bytes as an image: opened, walked, read, checked.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weald_fuzz::examine(data.to_vec()));
