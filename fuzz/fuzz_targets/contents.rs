//! Content pages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::pages::ContentPage;

fuzz_target!(|data: &[u8]| {
    let Ok(page) = ContentPage::parse(data) else {
        return;
    };
    let all: Vec<(u64, u64)> = (0..page.count()).map(|i| page.get(i).unwrap()).collect();
    assert!(all.windows(2).all(|w| w[0].0 + w[0].1 == w[1].0));
    let Some((start, _)) = all.first() else {
        return;
    };
    let lens: Vec<u64> = all.iter().map(|c| c.1).collect();
    assert_eq!(
        ContentPage::parse(&ContentPage::encode(*start, &lens)).unwrap(),
        page
    );
});
