//! Extent pages: extents tile the page, and every byte is found in the right extent, with any runs
//! of base images.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::Result;
use weald_format::pages::{BaseRun, Extent, ExtentPage, Source, TakeExtent};

/// Each run resolves to one byte of a stream and a hole for the rest.
fn resolve(run: BaseRun, take: &mut TakeExtent<'_>) -> Result<()> {
    let source = Source::Stream {
        stream: run.base,
        address: run.start,
    };
    take(Extent { len: 1, source })?;
    match run.len - 1 {
        0 => Ok(()),
        len => take(Extent {
            len,
            source: Source::Hole,
        }),
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(page) = ExtentPage::parse_with_bases(data, &mut resolve) else {
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
    let same = (0..page.count()).all(|i| page.get(i) == again.get(i));
    assert!(same && again.count() == page.count());
    // Without bases, a page with runs is refused.
    assert_eq!(ExtentPage::parse(data).is_err(), page.has_base_runs());
});
