//! Numbers, columns and names.

use crate::rule;
use weald_format::column::Column;
use weald_format::cursor::Cursor;
use weald_format::names::Names;

/// Runs a decoder that may stop before the end of its bytes.
fn column(count: usize, bytes: &[u8]) -> &'static str {
    rule(Column::decode(&mut Cursor::new(bytes, "test"), count))
}

fn names(count: usize, bytes: &[u8]) -> &'static str {
    rule(Names::decode(&mut Cursor::new(bytes, "test"), count))
}

#[test]
fn numbers() {
    let varint = |bytes: &[u8]| rule(Cursor::new(bytes, "test").varint());
    assert_eq!(varint(&[]), "F-2.1");
    assert_eq!(varint(&[0x80]), "F-2.1");
    assert_eq!(rule(Cursor::new(&[1], "test").bytes(2)), "F-2.1");
    assert_eq!(rule(Cursor::new(&[0; 31], "test").digest()), "F-2.1");
    assert_eq!(varint(&[0x80, 0]), "F-2.2");
    assert_eq!(
        varint(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]),
        "F-2.2"
    );
    assert_eq!(varint(&[0x80; 11]), "F-2.2");
    assert_eq!(rule(Cursor::new(&[6], "test").bounded(5, "test")), "F-2.3");
    assert_eq!(rule(Cursor::new(&[6], "test").finish()), "F-2.4");
}

#[test]
fn columns() {
    assert_eq!(column(1, &[8, 0]), "F-5.1");
    assert_eq!(
        (column(1, &[2, 0, 0]), column(1, &[2, 0, 65])),
        ("F-5.3", "F-5.3")
    );
    assert_eq!(column(2, &[2, 0, 1, 0b100]), "F-5.3", "padding");
    assert_eq!(column(9, &[2, 0, 1, 0]), "F-2.1");
    assert_eq!(column(2, &[4, 1, 7, 0, 1]), "F-5.5");
    assert_eq!(
        column(2, &[4, 0x81, 0x02, 7]),
        "F-2.3",
        "257 distinct values"
    );
    assert_eq!(
        (
            column(2, &[5, 0, 1]),
            column(2, &[5, 3, 1]),
            column(2, &[5, 1, 1])
        ),
        ("F-5.6", "F-5.6", "F-2.1")
    );
    assert_eq!(
        (column(1, &[7, 0, 0, 0]), column(1, &[7, 0, 9, 0])),
        ("F-5.8", "F-5.8")
    );
}

#[test]
fn name_columns() {
    assert_eq!(names(1, &[4]), "F-6.1");
    assert_eq!(names(1, &[0, 0, 0, 0, 3, b'a', b'/', b'b']), "F-6.2");
    assert_eq!(names(1, &[0, 0, 0, 0, 3, b'a', 0, b'b']), "F-6.2");
    let long = [&[1, 0xff, 1][..], &[b'a'; 255], &[0, 0, 0, 5]].concat();
    assert_eq!(names(1, &long), "F-6.2", "256 bytes");
    assert_eq!(
        names(1, &[0, 0, 1, 0, 0]),
        "F-6.3",
        "shares with a name that is not there"
    );
    assert_eq!(
        names(1, &[&[0, 0, 0, 0, 0x80, 2][..], &[b'a'; 256]].concat()),
        "F-6.3",
        "256 bytes"
    );
    assert_eq!(names(1, &[1, 0, 0, 21, 0, 0]), "F-6.4");
    assert_eq!(names(1, &[2, 0, 0, 4, 0, 5]), "F-6.5");
    assert_eq!(
        names(1, &[2, 0, 0, 3, 0, 0, 0x12, 0x34]),
        "F-6.5",
        "padding"
    );
    assert_eq!(names(1, &[2, 0, 0, 0x80, 2]), "F-2.3");
    let ascending = |bits, steps: &[u8], rest: &[u8]| {
        let head = [3, 0, 0, 4, bits, steps.len() as u8];
        names(2, &[&head[..], steps, rest].concat())
    };
    let rest = [0x12, 0x34, 0x56];
    assert_eq!(ascending(4, &[0b0010_1000], &rest), "none");
    assert_eq!(ascending(17, &[0b0010_1000], &[0x12]), "F-6.6", "17 bits");
    assert_eq!(ascending(4, &[0b0010_0000], &rest), "F-6.6", "one step");
    assert_eq!(ascending(4, &[0, 0, 0b1010_0000], &rest), "F-6.6", "16");
    assert_eq!(ascending(4, &[0b0010_1001], &rest), "F-6.6", "spare bit");
    assert_eq!(
        ascending(4, &[0b0010_1000, 0], &rest),
        "F-6.6",
        "spare byte"
    );
    assert_eq!(
        ascending(3, &[0b0010_1000], &[0; 4]),
        "none",
        "13 bits each"
    );
    assert_eq!(ascending(3, &[0b0010_1000], &[0, 0, 0, 1]), "F-6.6");
}
