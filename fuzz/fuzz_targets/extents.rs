//! Extent pages: extents tile the page and every byte is found in the right one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::pages::{ExtentPage, Source};

fuzz_target!(|data: &[u8]| {
    let Ok(page) = ExtentPage::parse(data) else {
        return;
    };
    let mut end = 0;
    let mut all = Vec::new();
    for i in 0..page.count() {
        let (start, extent) = page.get(i).unwrap();
        assert!(start == end && extent.len > 0);
        assert_eq!(
            (page.find(start), page.find(start + extent.len - 1)),
            (Some(i), Some(i))
        );
        end = start + extent.len;
        all.push(extent);
    }
    assert_eq!((page.logical_len(), page.find(end)), (end, None));
    let stream = |s: &Source| match s {
        Source::Stream { stream, .. } => usize::from(*stream) + 1,
        Source::Hole => 0,
    };
    let mut heads = vec![0; all.iter().map(|e| stream(&e.source)).max().unwrap_or(0)];
    let again = ExtentPage::parse(&ExtentPage::encode(&all, &mut heads)).unwrap();
    assert_eq!(again, page);
});
