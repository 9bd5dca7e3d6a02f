//! Compares an existing forest with its specification: draws everything again.

use crate::content::Content;
use crate::tree::{Body, Entry, Forest, Leaf};
use crate::work::{Progress, Queue};
use parking_lot::Mutex;
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weald_format::{Error, FileKind, Result, Timestamp};
use weald_sys::{DirBuffer, Stat};

/// Number of bytes compared at once.
const COMPARE_LEN: usize = 1 << 20;

/// A difference between an existing forest and its specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Path below the root of the forest.
    pub path: Vec<u8>,
    /// The difference, with the expected and the found value.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match self.path.as_slice() {
            b"" => b".",
            path => path.strip_prefix(b"/").unwrap_or(path),
        };
        write!(f, "{}: {}", path.escape_ascii(), self.what)
    }
}

/// Compares the directory `target` with `forest`. Passes each difference to `report` and returns
/// their number. Threads share the work, so differences come in any order.
///
/// # Errors
/// `Io` if something cannot be read; `Busy` if the work was cancelled.
pub fn verify(
    forest: &Forest,
    target: &Path,
    thread_count: usize,
    progress: &Progress,
    report: &(dyn Fn(&Difference) + Sync),
) -> Result<u64> {
    let open_error = |e| Error::io(format!("{}: cannot be opened", target.display()), e);
    let root = weald_sys::open_dir(target).map_err(open_error)?;
    let count = Mutex::new(0);
    let found = |difference: Difference| {
        *count.lock() += 1;
        report(&difference);
    };
    for level in 0..forest.depth() {
        let step = forest.leaves_below(level) as usize;
        for number in (0..forest.leaf_count()).step_by(step) {
            compare_inner(forest, &root, level, number, &mut { found })?;
        }
    }
    let queue = Queue::new(0..forest.leaf_count(), progress);
    queue.run(thread_count, Leaf::default, |leaf, number| {
        let bytes = compare_leaf(forest, &root, number, leaf, &mut { found })?;
        progress.add(leaf.entries.len() as u64, bytes);
        Ok(())
    })?;
    let count = *count.lock();
    Ok(count)
}

fn path_of(forest: &Forest, level: usize, number: u64) -> Vec<u8> {
    let mut path = Vec::new();
    for level in 1..=level {
        if level > 1 {
            path.push(b'/');
        }
        forest.dir_name(level, number, &mut path);
    }
    path
}

/// Opens the directory at `path` and reads its names, sorted. If it cannot be opened, reports that
/// and returns `None`.
fn read_names(
    root: &OwnedFd,
    path: &[u8],
    report: &mut impl FnMut(Difference),
) -> Result<Option<(OwnedFd, Vec<Vec<u8>>)>> {
    let opened_path = if path.is_empty() {
        b".".as_slice()
    } else {
        path
    };
    let opened =
        weald_sys::open_beneath(root, opened_path).and_then(|d| weald_sys::open_dir_at(d, b"."));
    let dir = match opened {
        Ok(dir) => dir,
        Err(e) => {
            let what = format!("cannot be opened: {e}");
            let path = path.to_vec();
            report(Difference { path, what });
            return Ok(None);
        }
    };
    let mut names = Vec::new();
    weald_sys::read_dir(&dir, &mut DirBuffer::default(), |entry| {
        if !(path.is_empty() && entry.name == b"lost+found") {
            names.push(entry.name.to_vec());
        }
        Ok(())
    })
    .map_err(|e| Error::io("cannot be read", e).context(path.escape_ascii()))?;
    names.sort_unstable();
    Ok(Some((dir, names)))
}

/// Compares the names and attributes of a directory that is not a leaf.
fn compare_inner(
    forest: &Forest,
    root: &OwnedFd,
    level: usize,
    number: u64,
    report: &mut impl FnMut(Difference),
) -> Result<()> {
    let path = path_of(forest, level, number);
    let Some((dir, found)) = read_names(root, &path, report)? else {
        return Ok(());
    };
    let step = forest.leaves_below(level + 1);
    let mut expected: Vec<Vec<u8>> = (number..number + forest.leaves_below(level))
        .step_by(step as usize)
        .map(|leaf| {
            let mut name = Vec::new();
            forest.dir_name(level + 1, leaf, &mut name);
            name
        })
        .collect();
    expected.sort_unstable();
    compare_names(&path, &expected, &found, report);
    compare_dir(forest, &dir, &path, level, number, report)
}

fn compare_dir(
    forest: &Forest,
    dir: &OwnedFd,
    path: &[u8],
    level: usize,
    number: u64,
    report: &mut impl FnMut(Difference),
) -> Result<()> {
    let stat = weald_sys::stat_fd(dir).map_err(|e| Error::io("cannot be examined", e))?;
    let mut note = |what| {
        let path = path.to_vec();
        report(Difference { path, what });
    };
    let attributes = forest.dir_attributes();
    differ(
        "mode",
        &format!("{:o}", attributes.permissions),
        &format!("{:o}", stat.permissions),
        &mut note,
    );
    if let Some(mtime) = forest.dir_mtime(level, number) {
        differ("mtime", &time(mtime), &time(stat.mtime), &mut note);
    }
    Ok(())
}

/// Seconds since 1970 with nanoseconds.
fn time(time: Timestamp) -> String {
    format!("{}.{:09}", time.seconds, time.nanoseconds)
}

fn differ<T: PartialEq + fmt::Debug>(
    what: &str,
    expected: &T,
    found: &T,
    note: &mut impl FnMut(String),
) {
    if expected != found {
        note(format!("{what}: expected {expected:?}, found {found:?}"));
    }
}

fn compare_names(
    path: &[u8],
    expected: &[Vec<u8>],
    found: &[Vec<u8>],
    report: &mut impl FnMut(Difference),
) {
    let mut note = |name: &Vec<u8>, what: &str| {
        let path = [path, b"/", name].concat();
        let what = what.to_owned();
        report(Difference { path, what });
    };
    let is_in = |names: &[Vec<u8>], name| names.binary_search(name).is_ok();
    expected
        .iter()
        .filter(|n| !is_in(found, n))
        .for_each(|n| note(n, "missing"));
    found
        .iter()
        .filter(|n| !is_in(expected, n))
        .for_each(|n| note(n, "not part of the forest"));
}

/// Compares leaf `number`; returns the number of bytes compared.
///
/// # Errors
/// `Io`.
pub fn compare_leaf(
    forest: &Forest,
    root: &OwnedFd,
    number: u64,
    leaf: &mut Leaf,
    report: &mut impl FnMut(Difference),
) -> Result<u64> {
    forest.leaf(number, leaf);
    let path = path_of(forest, forest.depth(), number);
    let Some((dir, found)) = read_names(root, &path, report)? else {
        return Ok(0);
    };
    let expected: Vec<Vec<u8>> = leaf.entries.iter().map(|e| leaf.name(e).to_vec()).collect();
    compare_names(&path, &expected, &found, report);
    compare_dir(forest, &dir, &path, forest.depth(), number, report)?;
    let compare = Compare {
        forest,
        dir: &dir,
        leaf,
        number,
    };
    let mut bytes = 0;
    for entry in &leaf.entries {
        if found
            .binary_search_by(|n| n.as_slice().cmp(leaf.name(entry)))
            .is_err()
        {
            continue;
        }
        let mut note = |what| {
            let path = [&path, b"/".as_slice(), leaf.name(entry)].concat();
            report(Difference { path, what });
        };
        bytes += compare.entry(entry, &mut note).map_err(|e| {
            e.context(leaf.name(entry).escape_ascii())
                .context(path.escape_ascii())
        })?;
    }
    Ok(bytes)
}

struct Compare<'a> {
    forest: &'a Forest,
    dir: &'a OwnedFd,
    leaf: &'a Leaf,
    number: u64,
}

impl Compare<'_> {
    fn entry(&self, entry: &Entry, note: &mut impl FnMut(String)) -> Result<u64> {
        let name = self.leaf.name(entry);
        let stat =
            weald_sys::stat_at(self.dir, name).map_err(|e| Error::io("cannot be examined", e))?;
        let kind = match entry.body {
            Body::Symlink(_) => FileKind::Symlink,
            _ => FileKind::Regular,
        };
        differ("kind", &kind, &stat.kind, note);
        if kind != stat.kind {
            return Ok(0);
        }
        match &entry.body {
            Body::HardLink(index) => {
                let first = self.leaf.entries.iter().find(|e| e.index == *index);
                if let Some(first) = first {
                    self.same_inode(self.dir, self.leaf.name(first), &stat, note)?;
                }
                Ok(0)
            }
            Body::HardLinkAcross(other) => {
                let mut path = b"../".to_vec();
                self.forest
                    .dir_name(self.forest.depth(), self.number - 1, &mut path);
                path.push(b'/');
                path.extend_from_slice(&self.leaf.text[other.clone()]);
                self.same_inode(self.dir, &path, &stat, note)?;
                Ok(0)
            }
            Body::Symlink(target) => {
                let mut found = Vec::new();
                weald_sys::read_link_at(self.dir, name, &mut found)
                    .map_err(|e| Error::io("cannot be read", e))?;
                let expected = &self.leaf.text[target.clone()];
                differ(
                    "target",
                    &expected.escape_ascii().to_string(),
                    &found.escape_ascii().to_string(),
                    note,
                );
                self.attributes(entry, &stat, note);
                Ok(0)
            }
            Body::File(content) => {
                self.attributes(entry, &stat, note);
                let expected = format!("{:o}", entry.attributes.permissions);
                differ("mode", &expected, &format!("{:o}", stat.permissions), note);
                differ("size", &content.len(), &stat.size, note);
                if entry.has_xattrs || entry.has_acl {
                    self.xattrs(entry, note)?;
                }
                if stat.size == content.len() {
                    self.content(name, content, note)
                } else {
                    Ok(0)
                }
            }
        }
    }

    fn same_inode(
        &self,
        dir: &OwnedFd,
        path: &[u8],
        stat: &Stat,
        note: &mut impl FnMut(String),
    ) -> Result<()> {
        match weald_sys::stat_at(dir, path) {
            Ok(first) => differ("inode of its other name", &first.ino, &stat.ino, note),
            Err(e) => note(format!("its other name cannot be examined: {e}")),
        }
        Ok(())
    }

    fn attributes(&self, entry: &Entry, stat: &Stat, note: &mut impl FnMut(String)) {
        if !self.forest.spec().owners.is_empty() {
            let expected = (entry.attributes.uid, entry.attributes.gid);
            differ("owner", &expected, &(stat.uid, stat.gid), note);
        }
        if let Some(mtime) = entry.mtime {
            differ("mtime", &time(mtime), &time(stat.mtime), note);
        }
    }

    fn xattrs(&self, entry: &Entry, note: &mut impl FnMut(String)) -> Result<()> {
        let found = weald_sys::read_xattrs_at(self.dir, self.leaf.name(entry))
            .map_err(|e| Error::io("extended attributes cannot be read", e))?;
        let expected = self.forest.xattrs(self.number, entry);
        // Other attributes, such as labels of security modules, are not part of the forest.
        for xattr in expected.iter().filter(|x| !found.contains(x)) {
            note(format!(
                "extended attribute {} differs",
                xattr.name.escape_ascii()
            ));
        }
        Ok(())
    }

    fn content(
        &self,
        name: &[u8],
        content: &Content,
        note: &mut impl FnMut(String),
    ) -> Result<u64> {
        if content.is_empty() {
            return Ok(0);
        }
        let read = |e| Error::io("cannot be read", e);
        let file = weald_sys::open_file_at(self.dir, name).map_err(read)?;
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < content.len() {
            let len = (content.len() - at).min(COMPARE_LEN as u64) as usize;
            expected.resize(len, 0);
            found.resize(len, 0);
            content.fill(at, &mut expected);
            file.read_exact_at(&mut found, at).map_err(read)?;
            if expected != found {
                let offset_in_piece = expected
                    .iter()
                    .zip(&found)
                    .position(|(a, b)| a != b)
                    .unwrap_or(0);
                note(format!(
                    "content: differs at byte {}",
                    at + offset_in_piece as u64
                ));
                break;
            }
            at += len as u64;
        }
        Ok(at)
    }
}
