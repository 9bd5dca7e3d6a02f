//! Second copies of superblock, footer, directory and records.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::copies::Copies;

fuzz_target!(|data: &[u8]| {
    if let Ok(copies) = Copies::parse(data.to_vec(), 4096) {
        assert_eq!(copies.bytes(), data);
        for (_, copy) in copies.parts() {
            assert!(copy.len() <= data.len());
        }
    }
});
