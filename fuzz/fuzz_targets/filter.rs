//! Filter rules against paths.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_build::filter::{Filter, Verdict};

fuzz_target!(|data: &[u8]| {
    let Some(cut) = data.iter().position(|&b| b == 0xff) else {
        return;
    };
    let (rules, path) = (&data[..cut], &data[cut + 1..]);
    let mut filter = Filter::new();
    if filter.push_lines(rules, Verdict::Excluded).is_ok() {
        for is_dir in [false, true] {
            assert_eq!(
                filter.excludes(path, is_dir),
                filter.matches(path, is_dir) == Verdict::Excluded
            );
        }
    }
});
