//! Columns: decoded values survive encoding and decoding, and take memory only in proportion to
//! their count.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::column::{Column, encode};
use weald_format::cursor::Cursor;

fuzz_target!(|data: &[u8]| {
    let [low, high, bytes @ ..] = data else {
        return;
    };
    let count = usize::from(u16::from_le_bytes([*low, *high])) % 8193;
    let Ok(column) = Column::decode(&mut Cursor::new(bytes, "fuzz"), count) else {
        return;
    };
    assert!(column.memory_len() <= count * 8);
    let values: Vec<u64> = column.iter(count).collect();
    let mut again = Vec::new();
    encode(&mut again, &values);
    let mut cursor = Cursor::new(&again, "fuzz");
    let column = Column::decode(&mut cursor, count).unwrap();
    cursor.finish().unwrap();
    assert!(column.iter(count).eq(values));
});
