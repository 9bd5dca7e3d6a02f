//! Groups of rows: consecutive rows of one table of a store, as one run of bytes before
//! compression.
//!
//! The store keeps each group as one value of its engine. A group is untrusted: parsing checks
//! every length and the order of keys, and takes memory for no more rows than there are bytes.

mod columns;
mod rows;

pub use columns::Shape;
pub use rows::{GROUP_LEN_MAX, GROUP_ROWS_MAX, RAW_LEN_MAX, Rows};

use crate::Result;
use crate::cursor::{Cursor, put_varint};
use rows::bad;
use std::ops::Range;

/// Layout of a group whose keys are shortened and whose values are as they are.
const PLAIN_ROWS: u8 = 0;

impl Rows {
    /// The bytes of a group with the rows in `range`, in columns if they are of the kind `shape`.
    pub fn encode(&self, range: Range<usize>, shape: Option<Shape>) -> Vec<u8> {
        if let Some(shape) = shape {
            let mut out = vec![shape as u8];
            if columns::encode(shape, self.within(range.clone()), &mut out).is_some() {
                return out;
            }
        }
        self.encode_plain(range)
    }

    fn encode_plain(&self, range: Range<usize>) -> Vec<u8> {
        let count = range.len();
        let mut out = Vec::with_capacity(self.len_of(&range).saturating_add(16));
        out.push(PLAIN_ROWS);
        put_varint(&mut out, count as u64);
        let mut last: &[u8] = &[];
        for (key, value) in self.within(range.clone()) {
            let shared = shared_len(last, key);
            put_varint(&mut out, shared as u64);
            put_varint(&mut out, key.len().saturating_sub(shared) as u64);
            put_varint(&mut out, value.len() as u64);
            last = key;
        }
        let mut last: &[u8] = &[];
        for (key, _) in self.within(range.clone()) {
            out.extend(key.iter().skip(shared_len(last, key)));
            last = key;
        }
        for (_, value) in self.within(range) {
            out.extend_from_slice(value);
        }
        out
    }

    /// Parses the bytes of a group.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "row group");
        match cursor.byte()? {
            PLAIN_ROWS => Self::parse_plain(&mut cursor),
            layout => match Shape::from_code(layout) {
                Some(shape) => columns::parse(shape, &mut cursor),
                None => Err(bad("S-6.1", "the layout of a group is unknown")),
            },
        }
    }

    fn parse_plain(cursor: &mut Cursor<'_>) -> Result<Self> {
        let count = cursor.count(GROUP_ROWS_MAX, "rows of a group")?;
        if count == 0 {
            return Err(bad("S-6.2", "a group has no row"));
        }
        let mut lens = Vec::with_capacity(count);
        let (mut suffixes_len, mut keys_len, mut values_len) = (0usize, 0usize, 0usize);
        for _ in 0..count {
            let mut len = || cursor.count(RAW_LEN_MAX, "length");
            let (shared, own, value) = (len()?, len()?, len()?);
            suffixes_len = suffixes_len.saturating_add(own);
            keys_len = keys_len.saturating_add(shared).saturating_add(own);
            values_len = values_len.saturating_add(value);
            lens.push((shared, own, value));
        }
        if suffixes_len.saturating_add(values_len) != cursor.remaining() || keys_len > RAW_LEN_MAX {
            return Err(bad(
                "S-6.2",
                "the lengths in a group differ from its length",
            ));
        }
        let mut suffixes = Cursor::new(cursor.bytes(suffixes_len)?, "row group");
        let mut rows = Self::with_capacity(count, keys_len.saturating_add(values_len));
        let mut key = Vec::new();
        for (shared, own, value) in lens {
            if shared > key.len() {
                return Err(bad("S-6.2", "a key shares more than the key before has"));
            }
            key.truncate(shared);
            key.extend_from_slice(suffixes.bytes(own)?);
            rows.push(&key, cursor.bytes(value)?)?;
        }
        Ok(rows)
    }
}

fn shared_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The shortest key that is above `last` and not above `first`, which is above `last`.
pub fn separator<'a>(last: &[u8], first: &'a [u8]) -> &'a [u8] {
    let len = shared_len(last, first).saturating_add(1);
    first.get(..len).unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{Codec, RecordRef, RecordType};
    use crate::store::{BlockRow, Location};
    use crate::volume::{ExtentsRow, InodeRow, NamePlace, NameRow, Piece, WindowPlace, inode_key};
    use crate::{BlockId, Cookie, FileKind, Ino, InodeFlags, SegmentNo, VolumeNo, WindowNo};

    fn rows(list: &[(&str, &str)]) -> Rows {
        let mut rows = Rows::default();
        for (key, value) in list {
            rows.push(key.as_bytes(), value.as_bytes()).unwrap();
        }
        rows
    }

    #[test]
    fn rows_come_back_and_no_part_of_them_is_taken_for_all() {
        let all = rows(&[("a", "1"), ("ab", ""), ("abc", "333"), ("b", "4")]);
        for range in [0..4, 1..3, 3..4] {
            let bytes = all.encode(range.clone(), None);
            let parsed = Rows::parse(&bytes).unwrap();
            assert!(parsed.iter().eq(all.within(range)));
            for len in 0..bytes.len() {
                assert!(Rows::parse(&bytes[..len]).is_err(), "{len}");
            }
        }
        assert_eq!(all.find(b"abc"), Some(&b"333"[..]));
        assert_eq!((all.find(b"aa"), all.find(b"c")), (None, None));
        assert_eq!((all.lower_bound(b"aa"), all.lower_bound(b"c")), (1, 4));
    }

    #[test]
    fn groups_that_lie_are_refused() {
        let cases: [(&str, &[u8]); 7] = [
            ("S-6.1", &[9, 1, 0, 1, 0, b'a']),
            ("S-6.2", &[PLAIN_ROWS, 0]),
            ("S-6.2", &[PLAIN_ROWS, 1, 0, 1, 1, b'a']),
            ("S-6.2", &[PLAIN_ROWS, 1, 1, 1, 0, b'a']),
            ("S-6.3", &[PLAIN_ROWS, 2, 0, 1, 0, 0, 1, 0, b'b', b'a']),
            ("S-6.3", &[PLAIN_ROWS, 2, 0, 1, 0, 1, 0, 0, b'a']),
            ("F-2.3", &[PLAIN_ROWS, 0xff, 0xff, 0x7f]),
        ];
        for (rule, bytes) in cases {
            let error = Rows::parse(bytes).unwrap_err();
            assert!(error.to_string().contains(rule), "{rule}: {error}");
        }
        assert!(rows(&[("b", "")]).push(b"a", b"").is_err());
    }

    #[test]
    fn a_separator_lies_between_two_keys() {
        for (last, first, wanted) in [
            ("", "abc", "a"),
            ("abc", "abd", "abd"),
            ("ab", "abcd", "abc"),
        ] {
            assert_eq!(
                separator(last.as_bytes(), first.as_bytes()),
                wanted.as_bytes()
            );
        }
    }

    fn block_row(n: u64) -> (Vec<u8>, Vec<u8>) {
        let record = RecordRef {
            record_type: RecordType::Data,
            codec: Codec::Lz4,
            offset: 0,
            stored_len: 1000 + n * n,
            raw_len: 5000,
            digest: crate::Digest::of(&n.to_le_bytes()),
        };
        let location = Location {
            segment: SegmentNo(3),
            offset: 64 + n * 1064,
        };
        let row = BlockRow {
            location,
            references: n % 3,
            record,
        };
        (n.to_be_bytes().to_vec(), row.encode())
    }

    fn inode_row(n: u64) -> (Vec<u8>, Vec<u8>) {
        let is_symlink = n.is_multiple_of(5);
        let time = i128::from(n) * 777_777_777 - 5_000_000_000;
        let row = InodeRow {
            kind: [FileKind::Regular, FileKind::Symlink][usize::from(is_symlink)],
            permissions: 0o644,
            flags: InodeFlags::from_bits((n % 97 / 90) as u8),
            uid: 1000,
            gid: 1000,
            nlink: 1,
            rdev: 0,
            size: n * 10,
            allocated: n * 10,
            atime: time - 3,
            mtime: -time,
            ctime: time + 9,
            btime: time,
            parent: Ino(n / 7),
            quota: Ino::NONE,
            xattr_count: 0,
            target: vec![b't'; usize::from(is_symlink) * n as usize],
        };
        (inode_key(VolumeNo(1), Ino(n)), row.encode())
    }

    fn name_row(n: u64) -> (Vec<u8>, Vec<u8>) {
        let row = NameRow {
            name: format!("name {n}").into_bytes(),
            ino: Ino(500 - n),
            kind: FileKind::Regular,
        };
        let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let place = NamePlace {
            dir: Ino(n),
            cookie: Cookie(hash << 7 | 2),
        };
        (place.key(VolumeNo(1)), row.encode())
    }

    fn extents_row(n: u64) -> (Vec<u8>, Vec<u8>) {
        let piece = |start, block| Piece {
            start,
            len: n as u32 * 3 + 1,
            block,
            offset: n as u32 * 100,
        };
        let pieces = vec![piece(0, BlockId(70)), piece(2000, BlockId(69 + n))];
        let place = WindowPlace {
            ino: Ino(n),
            window: WindowNo(n % 2),
        };
        (place.key(VolumeNo(1)), ExtentsRow(pieces).encode())
    }

    /// Rows 1 to `count` of a table of this shape.
    fn sample(shape: Shape, count: u64) -> Rows {
        let row = match shape {
            Shape::Blocks => block_row,
            Shape::Inodes => inode_row,
            Shape::Names => name_row,
            Shape::Extents => extents_row,
        };
        let mut rows = Rows::default();
        for (key, value) in (1..=count).map(row) {
            rows.push(&key, &value).unwrap();
        }
        rows
    }

    const SHAPES: [Shape; 4] = [Shape::Blocks, Shape::Inodes, Shape::Names, Shape::Extents];

    #[test]
    fn rows_of_every_kind_come_back_from_columns() {
        for shape in SHAPES {
            for count in [1, 2, 90] {
                let rows = sample(shape, count);
                let bytes = rows.encode(0..rows.count(), Some(shape));
                assert_eq!(bytes[0], shape as u8);
                assert_eq!(Rows::parse(&bytes).unwrap(), rows, "{shape:?}");
                for len in 0..bytes.len() {
                    assert!(Rows::parse(&bytes[..len]).is_err(), "{shape:?} {len}");
                }
            }
            let rows = sample(shape, 90);
            let (columns, plain) = (
                rows.encode(0..90, Some(shape)).len(),
                rows.encode(0..90, None).len(),
            );
            assert!(columns < plain * 9 / 10, "{shape:?}: {columns} of {plain}");
        }
    }

    #[test]
    fn rows_of_another_kind_stay_as_they_are() {
        for shape in SHAPES {
            let mut rows = sample(shape, 5);
            rows.push(&[0xff; 20], &[0xff, 0xff, 1, 0x80]).unwrap();
            let bytes = rows.encode(0..6, Some(shape));
            assert_eq!(bytes[0], PLAIN_ROWS);
            assert_eq!(Rows::parse(&bytes).unwrap(), rows, "{shape:?}");
        }
    }

    #[test]
    fn damaged_columns_never_panic_and_take_little_memory() {
        for shape in SHAPES {
            let good = sample(shape, 40).encode(0..40, Some(shape));
            for bit in 0..good.len() * 8 {
                let mut bytes = good.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                if let Ok(rows) = Rows::parse(&bytes) {
                    assert!(rows.byte_len() < 8 << 20, "{shape:?}, bit {bit}");
                }
            }
        }
        // Each column: what it refers to, constant, value.
        let names = |count: &[u8], slot: &[u8]| {
            let mut bytes = vec![Shape::Names as u8];
            bytes.extend_from_slice(count);
            for column in [&[0, 0, 1][..], &[0, 0, 1], &[0, 0, 5], slot] {
                bytes.extend_from_slice(column);
            }
            bytes.extend([0, 0, 9, 0, 0, 8, 0, 0, 1, b'n']);
            Rows::parse(&bytes).map(drop)
        };
        names(&[1], &[0, 0, 127]).unwrap();
        for (rule, count, slot) in [
            ("S-6.2", &[0][..], &[0, 0, 1][..]),
            ("S-6.5", &[1], &[0, 0, 0x80, 1]),
            ("S-6.5", &[1], &[2, 0, 1]),
            ("F-2.1", &[0x80, 0x20], &[0, 0, 1]),
            ("F-2.3", &[0x81, 0x20], &[0, 0, 1]),
        ] {
            let error = names(count, slot).unwrap_err().to_string();
            assert!(error.contains(rule), "{rule}: {error}");
        }
    }
}
