//! Hotness: parsed values survive writing and parsing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_image::Hotness;

fuzz_target!(|data: &[u8]| {
    let Ok(hotness) = Hotness::parse(data) else {
        return;
    };
    assert!(hotness.image_digest().is_some());
    assert!(hotness.item_count() <= data.len() && hotness.paths().count() <= data.len());
    let text = hotness.to_bytes();
    assert_eq!(Hotness::parse(&text).unwrap(), hotness);
});
