//! Pages of the times overlay.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::pages::TimesPage;

fuzz_target!(|data: &[u8]| {
    let Ok(page) = TimesPage::parse(data) else {
        return;
    };
    let times: Vec<_> = (0..page.count()).map(|i| page.mtime(i)).collect();
    assert!(times.iter().all(|t| t.nanoseconds < 1_000_000_000));
    let again = TimesPage::parse(&TimesPage::encode(&times)).unwrap();
    assert!((0..page.count()).all(|i| again.mtime(i) == page.mtime(i)));
});
