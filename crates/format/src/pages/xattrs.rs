//! Pages of xattr sets.

use crate::cursor::{Cursor, put_varint};
use crate::limits::{ITEMS_PER_PAGE, XATTR_NAME_LEN_MAX, XATTR_SET_LEN_MAX};
use crate::{Error, Result, Xattr, XattrSet};

/// Length of a set as `XATTR_SET_LEN_MAX` counts it, bytes: about its length in a page.
pub fn xattr_set_len(set: &[Xattr]) -> usize {
    set.iter()
        .map(|x| xattr_len(x.name.len(), x.value.len()))
        .fold(XATTR_SET_LEN_MIN, usize::saturating_add)
}

/// Length of an empty set as `XATTR_SET_LEN_MAX` counts it, bytes.
pub const XATTR_SET_LEN_MIN: usize = 1;

/// Bytes that an attribute adds to the length of its set.
pub const fn xattr_len(name_len: usize, value_len: usize) -> usize {
    name_len.saturating_add(value_len).saturating_add(4)
}

/// Checks a set that a writer is about to store: every writer refuses what [`parse_xattrs`]
/// refuses.
///
/// # Errors
/// `Limit` for a set or a name that is too long; `Invalid` for an empty name, or one with a NUL.
pub fn check_xattrs(set: &[Xattr]) -> Result<()> {
    for Xattr { name, .. } in set {
        if name.is_empty() || name.contains(&0) {
            return Err(Error::invalid("an xattr name that is empty or has a NUL"));
        }
        if name.len() > XATTR_NAME_LEN_MAX {
            let len = name.len();
            let what = format!("an xattr name of {len} bytes, at most {XATTR_NAME_LEN_MAX}");
            return Err(Error::limit(what));
        }
    }
    match xattr_set_len(set) {
        len if len > XATTR_SET_LEN_MAX => Err(Error::limit(format!(
            "{len} bytes of extended attributes, at most {XATTR_SET_LEN_MAX} can be kept"
        ))),
        _ => Ok(()),
    }
}

/// Encodes a page of xattr sets.
pub fn encode_xattrs(sets: &[XattrSet]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, sets.len() as u64);
    for set in sets {
        put_varint(&mut out, set.len() as u64);
        for part in set.iter().flat_map(|x| [&x.name, &x.value]) {
            put_varint(&mut out, part.len() as u64);
            out.extend_from_slice(part);
        }
    }
    out
}

/// Parses a page of xattr sets.
///
/// # Errors
/// `Corrupt`, also for unsorted, repeated, empty or NUL-holding names.
pub fn parse_xattrs(bytes: &[u8]) -> Result<Vec<XattrSet>> {
    let mut cursor = Cursor::new(bytes, "xattr page");
    let count = cursor.count(ITEMS_PER_PAGE, "xattr set count")?;
    let sets = (0..count)
        .map(|_| parse_xattr_set(&mut cursor))
        .collect::<Result<_>>()?;
    cursor.finish()?;
    Ok(sets)
}

fn parse_xattr_set(cursor: &mut Cursor<'_>) -> Result<XattrSet> {
    let count = cursor.count(cursor.remaining() / 2, "xattr count")?;
    let mut set: XattrSet = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        let name_len = cursor.count(XATTR_NAME_LEN_MAX, "xattr name length")?;
        let name = cursor.bytes(name_len)?.to_vec();
        let value_len = cursor.count(XATTR_SET_LEN_MAX, "xattr value length")?;
        let value = cursor.bytes(value_len)?.to_vec();
        let sorted = set.last().is_none_or(|last| last.name < name);
        if !sorted || name.is_empty() || name.contains(&0) {
            return Err(cursor.error(
                "F-13.1",
                "xattr names: expected sorted, distinct, not empty, no NUL",
            ));
        }
        set.push(Xattr { name, value });
    }
    let len = xattr_set_len(&set);
    if len <= XATTR_SET_LEN_MAX {
        Ok(set)
    } else {
        Err(cursor.error(
            "F-13.3",
            format!("xattr set: expected {XATTR_SET_LEN_MAX} bytes at most, found {len}"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::damage::check_damaged;

    #[test]
    fn xattr_sets_round_trip() {
        let x = |n: &str, v: &[u8]| Xattr {
            name: n.into(),
            value: v.into(),
        };
        let sets = vec![
            vec![x("user.a", b""), x("user.b", b"\0\xff")],
            vec![x("security.capability", &[1; 20])],
        ];
        let bytes = encode_xattrs(&sets);
        assert_eq!(parse_xattrs(&bytes).unwrap(), sets);
        check_damaged(&bytes, parse_xattrs);
    }
}
