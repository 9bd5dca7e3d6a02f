//! Encodes the paths of a stream as keys that sort in the order of the tree: the entries of a
//! directory side by side, directories in preorder.
//!
//! A key is the path of the directory with a byte 1 before each component, then a byte 0, then the
//! name. Bytes of names below the slash, which no name has, are incremented. So the two marks occur
//! in no name and sort below every byte of a name. The key of the root is empty. No key ends in a
//! zero.

use weald_filter::{DirRules, Filter, Rule};
use weald_format::limits::NAME_LEN_MAX;
pub use weald_format::limits::PATH_LEN_MAX;
use weald_format::{Error, Result};

/// Before every component but the last.
const COMPONENT: u8 = 1;
/// Before the last component.
const NAME: u8 = 0;
/// Writes the key of `path`, a path as in a stream: `a/b`, `./a/b/`, `.` for the root.
///
/// # Errors
/// `Invalid` for paths that lead out of the tree and for invalid names; `Limit` for long ones.
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
                // In place, so that the compiler vectorises the loop.
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

/// Between the components of a key of a walk.
pub const SEPARATOR: u8 = 1;

/// Turns `path` into its key of a depth-first walk. Sorted by these keys, the entries of a
/// directory follow the directory, and all names of a directory are in byte order. A key is the
/// components with a byte 1 between them; bytes of names below the slash are incremented.
///
/// # Errors
/// As [`put_key`].
pub fn make_walk_key(path: &mut Vec<u8>) -> Result<()> {
    // Most paths need only another separator.
    if !is_canonical(path) {
        let mut key = Vec::new();
        put_key(path, &mut key)?;
        let marked = |&b: &u8| if b <= COMPONENT { SEPARATOR } else { b };
        path.clear();
        path.extend(key.iter().skip(1).map(marked));
        return Ok(());
    }
    path.iter_mut().for_each(|b| {
        *b = match *b {
            b'/' => SEPARATOR,
            b => b + u8::from(b < b'/'),
        }
    });
    Ok(())
}

/// Whether a path has only valid names with single slashes between them, and no name begins with a
/// dot. Other paths are split into components.
fn is_canonical(path: &[u8]) -> bool {
    let (Some(&first), Some(&last)) = (path.first(), path.last()) else {
        return false;
    };
    // As numbers without branches, so that the compiler vectorises the loop.
    let is = |b: u8, what: u8| u8::from(b == what);
    let pairs = path.iter().zip(path.get(1..).unwrap_or_default());
    let odd = pairs.fold(is(first, 0), |odd, (&a, &b)| {
        odd | is(b, 0) | is(a, b'/') & (is(b, b'/') | is(b, b'.'))
    });
    odd == 0 && !matches!(first, b'/' | b'.') && last != b'/' && path.len() <= NAME_LEN_MAX
}

/// Whether `filter` excludes `path` or a directory above it.
pub fn is_excluded(filter: &Filter, path: &[u8], is_dir: bool) -> bool {
    // Streams refuse rules that lie in directories.
    excluding(filter, &DirRules::default(), path, is_dir).is_some()
}

/// The rule of `filter` that excludes `path` or a directory above it.
pub fn excluding<'a>(
    filter: &'a Filter,
    rules: &'a DirRules,
    path: &[u8],
    is_dir: bool,
) -> Option<&'a Rule> {
    let slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/');
    let mut ends = slashes.map(|(at, _)| at).chain([path.len()]);
    ends.find_map(|end| filter.excluding(rules, &path[..end], is_dir || end < path.len()))
}

/// The path of a key of a walk.
pub fn path_of_walk(key: &[u8]) -> Vec<u8> {
    let byte = |&b: &u8| match b {
        SEPARATOR => b'/',
        b => b - u8::from(b <= b'/'),
    };
    key.iter().map(byte).collect()
}

fn refused(path: &[u8], what: &str) -> Error {
    Error::invalid(what.to_owned()).context(weald_vfs::shown_path(path))
}

/// The directory part and the name of a key; `None` for the root.
pub fn split(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = key.iter().rposition(|&b| b == NAME)?;
    Some((key.get(..at)?, key.get(at + 1..)?))
}

/// Turns the directory part of a key into the key of that directory; false for the root, whose key
/// is empty.
pub fn dir_to_key(dir: &mut [u8]) -> bool {
    match dir.iter().rposition(|&b| b == COMPONENT) {
        Some(at) => {
            dir[at] = NAME;
            true
        }
        None => false,
    }
}

/// Appends `name`, encoded as in keys, to a directory part.
pub fn push_component(dir: &mut Vec<u8>, name: &[u8]) {
    dir.push(COMPONENT);
    dir.extend_from_slice(name);
}

/// Appends the decoded name of a key.
pub fn put_name(name: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(name);
    out[start..]
        .iter_mut()
        .for_each(|b| *b -= u8::from(*b <= b'/'));
}

/// The path of a key, without a leading slash.
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

    /// Would catch: an order in which a name with a byte below the slash comes between a directory
    /// and what lies in it.
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

    /// Would catch: a walk in which a name with a byte below the slash comes between a directory
    /// and what lies in it, or before names it should follow; a short cut that takes what must be
    /// refused, or is not the long way.
    #[test]
    fn keys_of_walks_sort_depth_first() {
        let walk: [&[u8]; 13] = [
            b"\x01", b"\x02", b" ", b"-", b"-/c", b".x", b"0", b"a", b"a/b", b"a/b/c", b"a/b-",
            b"a-b", b"a-b/a",
        ];
        let key = |path: &[u8]| {
            let mut key = path.to_vec();
            make_walk_key(&mut key).map(|()| key)
        };
        let keys: Vec<_> = walk.iter().map(|path| key(path).unwrap()).collect();
        assert!(keys.is_sorted_by(|a, b| a < b));
        for (path, sorted) in walk.iter().zip(&keys) {
            assert_eq!(path_of_walk(sorted), *path);
            let long_way = [b"./", *path, b"/"].concat();
            assert_eq!(&key(&long_way).unwrap(), sorted);
        }
        assert!(key(b"./").unwrap().is_empty());
        let long = [b"a/", &[b'x'; NAME_LEN_MAX + 1][..]].concat();
        for path in [&b"/a"[..], b"a/../b", b"", b"a\0b", b"a/..", &long] {
            assert!(key(path).is_err(), "{}", path.escape_ascii());
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
