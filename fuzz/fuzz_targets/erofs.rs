//! EROFS images: metadata, indexes of compressed files, LZ4.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_fuzz::erofs::examine_erofs;

fuzz_target!(|data: &[u8]| examine_erofs(data));
