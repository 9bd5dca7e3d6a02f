//! Index pages of every type: parsed pages survive encoding and parsing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::container::RecordType;
use weald_format::directory::IndexPage;

fuzz_target!(|data: &[u8]| {
    let [record_type, low, high, items @ ..] = data else {
        return;
    };
    let Some((items, bytes)) = items.split_at_checked(8) else {
        return;
    };
    let Some(record_type) = RecordType::from_code(*record_type) else {
        return;
    };
    let count = usize::from(u16::from_le_bytes([*low, *high])) % 1025;
    let item_count = u64::from_le_bytes(items.try_into().unwrap());
    let Ok(page) = IndexPage::parse(bytes, record_type, count, item_count) else {
        return;
    };
    let items: Vec<u64> = page.item_starts.windows(2).map(|w| w[1] - w[0]).collect();
    let again = IndexPage::encode(&page.refs, &items);
    assert_eq!(
        IndexPage::parse(&again, record_type, count, item_count).unwrap(),
        page
    );
});
