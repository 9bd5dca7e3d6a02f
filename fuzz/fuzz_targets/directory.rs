//! The directory: parsed bytes encode to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::directory::Directory;

fuzz_target!(|data: &[u8]| {
    if let Ok(directory) = Directory::parse(data) {
        assert_eq!(directory.encode(), data);
        let _ = directory.check_fits(data.len() as u64);
        directory.sections.iter().for_each(|s| {
            assert!(s.item_count() <= 1 << 62 && s.record_count() > 0 || s.pages.is_empty())
        });
    }
});
