//! Template pages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::pages::TemplatePage;

fuzz_target!(|data: &[u8]| {
    let Ok(page) = TemplatePage::parse(data) else {
        return;
    };
    let all: Vec<_> = (0..page.count()).map(|i| page.get(i).unwrap()).collect();
    assert!(
        all.iter()
            .all(|t| t.subtree_count >= t.entry_count && t.directory_count <= t.entry_count)
    );
    assert!(page.get(page.count()).is_none());
    let again = TemplatePage::parse(&TemplatePage::encode(&all)).unwrap();
    assert!((0..page.count()).all(|i| again.get(i) == page.get(i)));
});
