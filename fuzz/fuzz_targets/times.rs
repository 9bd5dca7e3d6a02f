//! Pages of the times overlay.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::pages::TimesPage;

fuzz_target!(|data: &[u8]| {
    let Ok(page) = TimesPage::parse(data) else {
        return;
    };
    // A run may have any number of times.
    let count = page.count().min(4096);
    let last = page.count().checked_sub(1).map(|last| page.mtime(last));
    assert!(last.is_none_or(|t| t.nanoseconds < 1_000_000_000));
    let times: Vec<_> = (0..count).map(|i| page.mtime(i)).collect();
    assert!(times.iter().all(|t| t.nanoseconds < 1_000_000_000));
    let again = TimesPage::parse(&TimesPage::encode(&times)).unwrap();
    assert!((0..count).all(|i| again.mtime(i) == page.mtime(i)));
});
