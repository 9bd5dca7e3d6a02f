//! What a salvage could not bring back, by path.

use std::collections::BTreeMap;
use std::fmt;
use weald_format::Ino;

/// Most bytes of a path that is shown. Of a longer one, the end is shown.
const PATH_LEN_MAX: usize = 4096;
/// Most damaged ranges of a file that are told one by one.
const RANGES_MAX: usize = 16;

/// Something of a volume that is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loss {
    /// The file, from the root, where it is now: if its place is lost, in `lost+found`. Empty for
    /// the root; `None` if it is no file.
    pub path: Option<Vec<u8>>,
    /// What is lost of it.
    pub what: String,
    /// Why, if that is not clear; else empty.
    pub why: String,
}

impl Loss {
    /// A loss that is not one of a file.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            ..Self::default()
        }
    }

    /// A loss of the file at `path`.
    pub fn of(path: Vec<u8>, what: impl Into<String>) -> Self {
        Self {
            path: Some(path),
            what: what.into(),
            ..Self::default()
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.path {
            None => {}
            Some(path) if path.is_empty() => f.write_str(" of the root directory")?,
            Some(path) => write!(f, " of {:?}", String::from_utf8_lossy(path))?,
        }
        match self.why.as_str() {
            "" => Ok(()),
            why => write!(f, ": {why}"),
        }
    }
}

/// Names that lead to inodes: a directory and a name in it, for each.
pub type Names = BTreeMap<Ino, (Ino, Vec<u8>)>;

/// The path of `name` in the directory `dir`, without a slash in front, as far as `names` leads to
/// the root. The time is bounded, however deep the directory lies.
pub fn path_of(names: &Names, root: Ino, dir: Ino, name: &[u8]) -> Vec<u8> {
    let (mut parts, mut len) = (vec![name.to_vec()], name.len());
    let mut at = dir;
    while at != root {
        match names.get(&at) {
            Some((above, name)) if len < PATH_LEN_MAX => {
                len += name.len() + 1;
                parts.push(name.clone());
                at = *above;
            }
            _ => {
                parts.push(format!("(inode {at})").into_bytes());
                break;
            }
        }
    }
    parts.reverse();
    parts.join(&b'/')
}

/// Ranges of a file, joined where they meet.
#[derive(Debug, Default)]
pub struct Ranges {
    ranges: Vec<(u64, u64)>,
    len: u64,
}

impl Ranges {
    /// Adds a range behind all before it.
    pub fn add(&mut self, start: u64, end: u64) {
        self.len += end - start;
        let count = self.ranges.len();
        match self.ranges.last_mut() {
            Some((_, last)) if *last == start => *last = end,
            _ if count < RANGES_MAX => self.ranges.push((start, end)),
            _ => {}
        }
    }

    /// The ranges in words.
    pub fn text(&self) -> String {
        let shown: u64 = self.ranges.iter().map(|(start, end)| end - start).sum();
        let ranges = self.ranges.iter();
        let ranges: Vec<_> = ranges
            .map(|(start, end)| format!("{start} to {end}"))
            .collect();
        let more = match self.len - shown {
            0 => String::new(),
            more => format!(" and {more} more bytes"),
        };
        format!("bytes {}{more}", ranges.join(", "))
    }
}
