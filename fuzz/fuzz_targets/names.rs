//! Names: decoded names survive encoding and decoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weald_format::cursor::Cursor;
use weald_format::names::{Names, encode};

fuzz_target!(|data: &[u8]| {
    let [low, high, bytes @ ..] = data else {
        return;
    };
    let count = usize::from(u16::from_le_bytes([*low, *high])) % 8193;
    let Ok(names) = Names::decode(&mut Cursor::new(bytes, "fuzz"), count) else {
        return;
    };
    assert_eq!(names.count(), count);
    let all: Vec<&[u8]> = (0..count).map(|i| names.get(i)).collect();
    assert!(
        all.iter()
            .all(|n| n.len() <= 255 && !n.contains(&0) && !n.contains(&b'/'))
    );
    let mut again = Vec::new();
    encode(&mut again, &all);
    let mut cursor = Cursor::new(&again, "fuzz");
    assert_eq!(Names::decode(&mut cursor, count).unwrap(), names);
    cursor.finish().unwrap();
});
