//! Compares two trees, with rsync and with a walk of our own. The walk checks what rsync does not:
//! nanoseconds, device numbers, link counts, holes, and paths longer than `PATH_MAX`.

mod file;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use weald_format::{Error, FileKind, Result};
use weald_sys::{DirBuffer, Stat};

/// Maximum length of a file that rsync compares, bytes. Our walk compares longer files, and only
/// their data: rsync would read terabytes of zeros.
const HUGE_LEN: u64 = 1 << 30;

/// Maximum number of listed differences. The last line gives the number of the others.
const LISTED_MAX: usize = 200;

/// Options of a comparison.
#[derive(Debug, Clone, Copy)]
pub struct CompareOptions {
    /// Whether to run rsync(1), which then reads all contents; otherwise our walk reads them. False
    /// for trees deeper than `PATH_MAX`.
    pub rsync: bool,
    /// Whether holes and allocated blocks must agree. False if one side is a mount that shows no
    /// holes.
    pub holes: bool,
    /// Whether link counts must agree. False if one side is only a part of its tree.
    pub link_counts: bool,
}

impl Default for CompareOptions {
    fn default() -> Self {
        Self {
            rsync: true,
            holes: true,
            link_counts: true,
        }
    }
}

/// Compares the directories `a` and `b` with everything below. Returns the differences, one per
/// line; empty if there are none. Does not compare atimes, ctimes, and sizes and link counts of
/// directories.
///
/// # Errors
/// `Io` if something cannot be read or rsync cannot be run.
pub fn compare(a: &Path, b: &Path, options: &CompareOptions) -> Result<Vec<String>> {
    weald_sys::raise_open_file_limit()
        .map_err(|e| Error::io("raising the limit of open files", e))?;
    let mut comparison = Comparison {
        options,
        differences: Vec::new(),
        huge: Vec::new(),
        inodes: [HashMap::new(), HashMap::new()],
    };
    comparison.trees(a, b)?;
    comparison.link_counts();
    let Comparison {
        mut differences,
        huge,
        ..
    } = comparison;
    if options.rsync {
        differences.extend(rsync(a, b, &huge)?);
    }
    let more = differences.len().saturating_sub(LISTED_MAX);
    if more > 0 {
        differences.truncate(LISTED_MAX);
        differences.push(format!("… and {more} more differences"));
    }
    Ok(differences)
}

/// Panics with all differences of [`compare`].
///
/// # Panics
/// If there are differences, or the comparison fails.
#[track_caller]
pub fn assert_same(a: &Path, b: &Path, options: &CompareOptions) {
    let differences = compare(a, b, options).expect("both trees can be read");
    assert!(
        differences.is_empty(),
        "{} and {} differ:\n{}",
        a.display(),
        b.display(),
        differences.join("\n")
    );
}

/// An inode with several names on one side.
struct Inode {
    /// Inode on the other side that has the same first name.
    other: (u64, u64),
    /// One of its names, for messages.
    path: Vec<u8>,
    name_count: u32,
    nlink: u32,
}

struct Comparison<'a> {
    options: &'a CompareOptions,
    differences: Vec<String>,
    /// Paths of files that rsync must not read.
    huge: Vec<Vec<u8>>,
    /// By (dev, ino), for both sides.
    inodes: [HashMap<(u64, u64), Inode>; 2],
}

/// A pair of directories on the current path.
struct Level {
    dirs: [OwnedFd; 2],
    path: Vec<u8>,
    /// Common names to visit, last first.
    names: Vec<Vec<u8>>,
}

/// A name that both trees have.
struct Pair<'a> {
    dirs: [&'a OwnedFd; 2],
    name: &'a [u8],
    path: &'a [u8],
}

impl Comparison<'_> {
    fn differ(&mut self, path: &[u8], what: impl std::fmt::Display) {
        self.differences
            .push(format!("{}: {what}", path.escape_ascii()));
    }

    fn trees(&mut self, a: &Path, b: &Path) -> Result<()> {
        let open = |path: &Path| {
            weald_sys::open_dir(path).map_err(|e| Error::io(format!("{}", path.display()), e))
        };
        let dirs = [open(a)?, open(b)?];
        self.pair(&Pair {
            dirs: [&dirs[0], &dirs[1]],
            name: b"",
            path: b".",
        })?;
        let mut stack = vec![self.level(dirs, Vec::new())?];
        while let Some(level) = stack.last_mut() {
            let Some(name) = level.names.pop() else {
                stack.pop();
                continue;
            };
            let path = if level.path.is_empty() {
                name.clone()
            } else {
                [&level.path, b"/".as_slice(), &name].concat()
            };
            let pair = Pair {
                dirs: [&level.dirs[0], &level.dirs[1]],
                name: &name,
                path: &path,
            };
            if self.pair(&pair)? {
                let open =
                    |dir| weald_sys::open_dir_at(dir, &name).map_err(|e| at(&path, "open", e));
                let dirs = [open(pair.dirs[0])?, open(pair.dirs[1])?];
                stack.push(self.level(dirs, path)?);
            }
        }
        Ok(())
    }

    /// Lists a pair of directories and notes names that exist on one side only.
    fn level(&mut self, dirs: [OwnedFd; 2], path: Vec<u8>) -> Result<Level> {
        let [a, b] = [names_of(&dirs[0], &path)?, names_of(&dirs[1], &path)?];
        let (mut names, mut only) = (Vec::new(), Vec::new());
        let (mut ours, mut theirs) = (a.into_iter().peekable(), b.into_iter().peekable());
        loop {
            let order = match (ours.peek(), theirs.peek()) {
                (Some(x), Some(y)) => x.cmp(y),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (None, None) => break,
            };
            match order {
                std::cmp::Ordering::Less => only.extend(ours.next().map(|name| ("first", name))),
                std::cmp::Ordering::Greater => {
                    only.extend(theirs.next().map(|name| ("second", name)))
                }
                std::cmp::Ordering::Equal => {
                    names.extend(ours.next());
                    theirs.next();
                }
            }
        }
        for (side, name) in only {
            self.differ(
                &[&path, b"/".as_slice(), &name].concat(),
                format_args!("only in the {side} tree"),
            );
        }
        names.reverse();
        Ok(Level { dirs, path, names })
    }

    /// Compares one name; returns true if it is a directory on both sides.
    fn pair(&mut self, pair: &Pair<'_>) -> Result<bool> {
        let stat = |dir| weald_sys::stat_at(dir, pair.name).map_err(|e| at(pair.path, "stat", e));
        let [a, b] = [stat(pair.dirs[0])?, stat(pair.dirs[1])?];
        if a.kind != b.kind {
            self.differ(pair.path, format_args!("{:?} against {:?}", a.kind, b.kind));
            return Ok(false);
        }
        self.attributes(pair.path, &a, &b);
        self.xattrs(pair)?;
        match a.kind {
            FileKind::Symlink => self.target(pair)?,
            FileKind::Regular if a.size == b.size => self.file(pair, &a, &b)?,
            _ => {}
        }
        if a.kind != FileKind::Directory && (a.nlink > 1 || b.nlink > 1) {
            self.links(pair.path, &a, &b);
        }
        Ok(a.kind == FileKind::Directory)
    }

    fn attributes(&mut self, path: &[u8], a: &Stat, b: &Stat) {
        let has_size = matches!(a.kind, FileKind::Regular | FileKind::Symlink);
        let fields = [
            (
                "permissions",
                format!("{:o}", a.permissions),
                format!("{:o}", b.permissions),
            ),
            (
                "owner",
                format!("{}:{}", a.uid, a.gid),
                format!("{}:{}", b.uid, b.gid),
            ),
            ("device", format!("{:x}", a.rdev), format!("{:x}", b.rdev)),
            ("mtime", format!("{:?}", a.mtime), format!("{:?}", b.mtime)),
            (
                "size",
                format!("{}", if has_size { a.size } else { 0 }),
                format!("{}", if has_size { b.size } else { 0 }),
            ),
        ];
        for (name, a, b) in fields.iter().filter(|(_, a, b)| a != b) {
            self.differ(path, format_args!("{name} {a} against {b}"));
        }
    }

    fn xattrs(&mut self, pair: &Pair<'_>) -> Result<()> {
        let read =
            |dir| weald_sys::read_xattrs_at(dir, pair.name).map_err(|e| at(pair.path, "xattrs", e));
        let [a, b] = [read(pair.dirs[0])?, read(pair.dirs[1])?];
        for (side, of, other) in [("first", &a, &b), ("second", &b, &a)] {
            for xattr in of.iter().filter(|xattr| !other.contains(xattr)) {
                let (name, len) = (xattr.name.escape_ascii(), xattr.value.len());
                self.differ(
                    pair.path,
                    format_args!("xattr {name} of {len} bytes only so in the {side} tree"),
                );
            }
        }
        Ok(())
    }

    fn target(&mut self, pair: &Pair<'_>) -> Result<()> {
        let mut targets = [Vec::new(), Vec::new()];
        for (dir, target) in pair.dirs.iter().zip(&mut targets) {
            weald_sys::read_link_at(dir, pair.name, target)
                .map_err(|e| at(pair.path, "readlink", e))?;
        }
        if targets[0] != targets[1] {
            let [a, b] = targets.each_ref().map(|target| target.escape_ascii());
            self.differ(pair.path, format_args!("target {a} against {b}"));
        }
        Ok(())
    }

    fn file(&mut self, pair: &Pair<'_>, a: &Stat, b: &Stat) -> Result<()> {
        if a.size > HUGE_LEN {
            self.huge.push(pair.path.to_vec());
        }
        let open =
            |dir| weald_sys::open_file_at(dir, pair.name).map_err(|e| at(pair.path, "open", e));
        let files = [open(pair.dirs[0])?, open(pair.dirs[1])?];
        let compared = if a.size > HUGE_LEN {
            file::data_difference(&files, a.size)
        } else if self.options.rsync {
            Ok(None)
        } else {
            file::content_difference(&files, 0..a.size)
        };
        if let Some(offset) = compared.map_err(|e| at(pair.path, "read", e))? {
            self.differ(pair.path, format_args!("contents differ at byte {offset}"));
        }
        if self.options.holes {
            let holes =
                file::hole_difference(&files, [a, b]).map_err(|e| at(pair.path, "holes", e))?;
            holes
                .into_iter()
                .for_each(|what| self.differ(pair.path, what));
        }
        Ok(())
    }

    /// Records `a` and `b` as names of their inodes, and checks that these inodes correspond.
    fn links(&mut self, path: &[u8], a: &Stat, b: &Stat) {
        let ids = [(a.dev, a.ino), (b.dev, b.ino)];
        let mut strays = Vec::new();
        for (side, stat) in [a, b].into_iter().enumerate() {
            let other = ids[1 - side];
            let new = Inode {
                other,
                path: path.to_vec(),
                name_count: 0,
                nlink: stat.nlink,
            };
            let inode = self.inodes[side].entry(ids[side]).or_insert(new);
            inode.name_count += 1;
            if inode.other != other {
                strays.push((["first", "second"][side], inode.path.clone()));
            }
        }
        for (side, known) in strays {
            let known = known.escape_ascii();
            self.differ(
                path,
                format_args!("hard-linked to {known} in the {side} tree only"),
            );
        }
    }

    fn link_counts(&mut self) {
        if !self.options.link_counts {
            return;
        }
        let [a, b] = &self.inodes;
        let pairs = a
            .values()
            .filter_map(|inode| Some((inode, b.get(&inode.other)?)));
        let differing = pairs.filter(|(a, b)| a.nlink == a.name_count && b.nlink != a.nlink);
        let mut found: Vec<_> = differing
            .map(|(a, b)| (a.path.clone(), a.nlink, b.nlink))
            .collect();
        found.sort();
        for (path, a, b) in found {
            self.differ(&path, format_args!("link count {a} against {b}"));
        }
    }
}

fn at(path: &[u8], what: &str, error: std::io::Error) -> Error {
    Error::io(format!("{what} {}", path.escape_ascii()), error)
}

fn names_of(dir: &OwnedFd, path: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let listed = weald_sys::read_dir(dir, &mut DirBuffer::default(), |entry| {
        names.push(entry.name.to_vec());
        Ok(())
    });
    listed.map_err(|e| at(path, "list", e))?;
    names.sort();
    Ok(names)
}

/// Changes that rsync would make to `b`, except to files in `huge`.
fn rsync(a: &Path, b: &Path, huge: &[Vec<u8>]) -> Result<Vec<String>> {
    let mut command = Command::new("rsync");
    command.args([
        "-aHAXn",
        "--checksum",
        "--delete",
        "--itemize-changes",
        "--numeric-ids",
    ]);
    for path in huge {
        let special = |&b: &u8| {
            if b"*?[\\".contains(&b) {
                vec![b'\\', b]
            } else {
                vec![b]
            }
        };
        let escaped: Vec<u8> = path.iter().flat_map(special).collect();
        let is_wild = path.iter().any(|b| b"*?[".contains(b));
        let pattern = if is_wild { &escaped } else { path };
        command.arg(OsStr::from_bytes(
            &[b"--exclude=/", pattern.as_slice()].concat(),
        ));
    }
    let with_slash = |path: &Path| path.join("").into_os_string();
    let output = command.arg(with_slash(a)).arg(with_slash(b)).output();
    let output = output.map_err(|e| Error::io("running rsync", e))?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let mut lines: Vec<String> = printed
        .lines()
        .map(|line| format!("rsync: {line}"))
        .collect();
    if !output.status.success() {
        lines.push(format!("rsync: {}", output.status));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests;
