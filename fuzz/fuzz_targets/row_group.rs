//! Groups of rows: rows that are decoded survive encoding, as they are and in columns, and take
//! memory within the limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::row_group::{GROUP_ROWS_MAX, Rows, Shape};

fuzz_target!(|data: &[u8]| {
    let Ok(rows) = Rows::parse(data) else {
        return;
    };
    assert!(rows.count() <= GROUP_ROWS_MAX);
    let all = 0..rows.count();
    for shape in [
        None,
        Some(Shape::Blocks),
        Some(Shape::Inodes),
        Some(Shape::Names),
        Some(Shape::Extents),
    ] {
        let bytes = rows.encode(all.clone(), shape);
        assert_eq!(Rows::parse(&bytes).expect("a group"), rows, "{shape:?}");
    }
});
