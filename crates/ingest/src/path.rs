//! Paths of a stream as keys that sort in the order of the tree: all entries of a directory in a row, directories in preorder.
//!
//! A key is the path of the directory, each component behind a byte 1, then a byte 0, then the name. Bytes of names below that of the
//! slash, which no name has, are moved up by one, so that neither mark occurs in a name and both sort below every byte of one. The root's
//! key is empty. No key ends in a zero.

use weald_format::limits::NAME_LEN_MAX;
use weald_format::{Error, Result};

/// Before every component but the last.
const COMPONENT: u8 = 1;
/// Before the last component.
const NAME: u8 = 0;
/// Bytes of a path. Every directory on the way may be made, so that a path costs up to half the square of it; trees that programs can walk stay
/// far below.
pub const PATH_LEN_MAX: usize = 16 << 10;

/// Writes the key of `path`, a name of a tree as streams have them: `a/b`, `./a/b/`, `.` for the root.
///
/// # Errors
/// `Invalid` for what leads out of the tree, and for names that are none; `Limit` for long ones.
pub fn put_key(path: &[u8], key: &mut Vec<u8>) -> Result<()> {
    key.clear();
    if path.is_empty() {
        return Err(refused(path, "an empty name"));
    }
    if path.len() > PATH_LEN_MAX {
        let what = format!(
            "a path of {} bytes, at most {PATH_LEN_MAX} are taken: {}…",
            path.len(),
            weald_vfs::shown(path.get(..80).unwrap_or_default())
        );
        return Err(Error::limit(what));
    }
    if path.first() == Some(&b'/') {
        return Err(refused(
            path,
            "an absolute path: a stream may only name what lies below its root",
        ));
    }
    let mut last = 0;
    for component in path.split(|&b| b == b'/') {
        match component {
            b"" | b"." => continue,
            b".." => {
                return Err(refused(
                    path,
                    "a path with '..': a stream may only name what lies below its root",
                ));
            }
            long if long.len() > NAME_LEN_MAX => {
                let what = format!(
                    "a name of {} bytes, at most {NAME_LEN_MAX} can be kept",
                    long.len()
                );
                return Err(Error::limit(what).context(weald_vfs::shown_path(path)));
            }
            name if name.contains(&0) => return Err(refused(path, "a zero byte in a name")),
            name => {
                last = key.len();
                key.push(COMPONENT);
                let start = key.len();
                key.extend_from_slice(name);
                // In place, so that many bytes are done at once.
                key[start..]
                    .iter_mut()
                    .for_each(|b| *b += u8::from(*b < b'/'));
            }
        }
    }
    if let Some(mark) = key.get_mut(last) {
        *mark = NAME;
    }
    Ok(())
}

fn refused(path: &[u8], what: &str) -> Error {
    Error::invalid(what.to_owned()).context(weald_vfs::shown_path(path))
}

/// The directory part and the name of a key; `None` for the root.
pub fn split(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = key.iter().rposition(|&b| b == NAME)?;
    Some((key.get(..at)?, key.get(at + 1..)?))
}

/// Turns the directory part of a key into the key of that directory; false for the root, which has none but the empty one.
pub fn dir_to_key(dir: &mut [u8]) -> bool {
    match dir.iter().rposition(|&b| b == COMPONENT) {
        Some(at) => {
            dir[at] = NAME;
            true
        }
        None => false,
    }
}

/// Appends the component that a directory part gets for a name as keys have them.
pub fn push_component(dir: &mut Vec<u8>, name: &[u8]) {
    dir.push(COMPONENT);
    dir.extend_from_slice(name);
}

/// Appends the bytes of a name of a key as they are in the tree.
pub fn put_name(name: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(name);
    out[start..]
        .iter_mut()
        .for_each(|b| *b -= u8::from(*b <= b'/'));
}

/// The path that a key stands for, without a slash in front.
pub fn path_of(key: &[u8]) -> Vec<u8> {
    let byte = |&b: &u8| match b {
        NAME | COMPONENT => b'/',
        b => b - u8::from(b <= b'/'),
    };
    key.iter().skip(1).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::ErrorKind;

    fn key(path: &[u8]) -> Vec<u8> {
        let mut key = Vec::new();
        put_key(path, &mut key).unwrap();
        key
    }

    /// Would catch: an order in which a name with a byte below the slash comes between a directory and what lies in it.
    #[test]
    fn keys_sort_as_the_tree_is_walked() {
        let walk: [&[u8]; 15] = [
            b".", b"\x01", b"\x02", b" ", b"-", b".x", b"0", b"a", b"a-b", b"\xff", b"-/c", b"a/b",
            b"a/b-", b"a/b/c", b"a-b/a",
        ];
        let keys: Vec<_> = walk.iter().map(|path| key(path)).collect();
        assert!(keys.is_sorted_by(|a, b| a < b));
        for (path, key) in walk.iter().zip(&keys).skip(1) {
            assert_eq!(path_of(key), *path);
            let (dir, name) = split(key).unwrap();
            let mut back = dir.to_vec();
            push_component(&mut back, name);
            assert!(dir_to_key(&mut back));
            assert_eq!(&back, key);
        }
    }

    #[test]
    fn spellings_of_one_path_are_one_key() {
        assert_eq!(key(b"./a//b/./c/"), key(b"a/b/c"));
        assert!(key(b"./").is_empty() && key(b".").is_empty());
    }

    #[test]
    fn what_leads_out_is_refused() {
        let refused = |path: &[u8]| put_key(path, &mut Vec::new()).unwrap_err();
        for path in [&b"/a"[..], b"..", b"a/../b", b"a/..", b"", b"a\0b", b"/"] {
            let error = refused(path);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        for path in [vec![b'a'; NAME_LEN_MAX + 1], b"a/".repeat(PATH_LEN_MAX)] {
            assert_eq!(refused(&path).kind(), ErrorKind::Limit);
        }
    }
}
