//! mtree(5): a description of a tree, line by line, as written by `mtree -c`, `-C` and `-D` of the
//! BSDs, bsdtar and `weald forest --stream mtree`.
//!
//! The description has names and attributes. Contents of regular files come from a directory;
//! without one, all regular files must be empty. The keywords `nlink`, `inode`, `flags`,
//! `resdevice`, `tags`, `optional`, `nochange` and `ignore` are skipped: an image does not keep
//! them, or they are for comparisons. Digests with broken hash functions are skipped too. Unknown
//! keywords are refused by name.
//!
//! Source: mtree(5) of FreeBSD 14 and libarchive 3.7; mtree(8) of NetBSD 10; vis(3) for names.

mod lines;
mod words;

use crate::input::Input;
use crate::member::{DIRECTORY_DEFAULT, FILE_DEFAULT, Member, MemberKind};
use crate::members::{Layout, Members, Tell};
pub use lines::{Line, Lines};
use std::fs::File;
use std::io::{ErrorKind as IoErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use weald_format::{Attributes, Error, ErrorKind, FileKind, Result};
use words::Keys;
pub use words::{Check, Name};

/// Reads an mtree description.
pub struct MtreeReader {
    lines: Lines,
    /// Directory of the contents.
    root: Option<OwnedFd>,
    layout: Option<Layout>,
    /// The content of the member, its remaining bytes, and its expected digests.
    file: Option<File>,
    remaining_len: u64,
    checks: Vec<Check>,
    has_entries: bool,
}

impl MtreeReader {
    /// Reads from `input`; contents of regular files lie below the directory `root`.
    ///
    /// # Errors
    /// `Io` if `root` cannot be opened as a directory.
    pub fn new(input: Input, root: Option<&Path>) -> Result<Self> {
        let open = |root: &Path| {
            weald_sys::open_dir(root).map_err(|e| Error::io(root.display().to_string(), e))
        };
        Ok(Self {
            lines: Lines::new(input),
            root: root.map(open).transpose()?,
            layout: None,
            file: None,
            remaining_len: 0,
            checks: Vec::new(),
            has_entries: false,
        })
    }

    /// Whether `front`, the first bytes of a stream, is the mark of most writers.
    pub fn is_mtree(front: &[u8]) -> bool {
        front.starts_with(b"#mtree")
    }

    fn entry(
        &mut self,
        Line { path, keys }: Line,
        member: &mut Member,
        tell: &mut Tell<'_>,
    ) -> Result<bool> {
        self.has_entries = true;
        let kind = keys.kind.ok_or_else(|| Error::invalid("no type"))?;
        member.path = path;
        let shown = || weald_vfs::shown_path(&member.path);
        let defaults = match kind {
            FileKind::Directory => DIRECTORY_DEFAULT,
            _ => FILE_DEFAULT,
        };
        let attributes = Attributes {
            permissions: keys.mode.unwrap_or(defaults.permissions),
            uid: owner(keys.uid, keys.uname.as_ref()).map_err(|e| e.context(shown()))?,
            gid: owner(keys.gid, keys.gname.as_ref()).map_err(|e| e.context(shown()))?,
            rdev: match (kind.is_device(), keys.device) {
                (false, _) => 0,
                (true, Some(device)) => device,
                (true, None) => return Err(Error::invalid("no device").context(shown())),
            },
        };
        member.kind = MemberKind::Entry(kind);
        member.attributes = attributes;
        member.mtime = keys.time.unwrap_or_default();
        member.target.clear();
        if kind == FileKind::Symlink {
            member
                .target
                .extend_from_slice(keys.link.as_deref().unwrap_or_default());
        }
        if kind != FileKind::Regular {
            return Ok(true);
        }
        let opened = self.open(&member.path, keys);
        match opened.map_err(|e| e.context(shown()))? {
            None => Ok(true),
            Some(what) => {
                tell(&member.path, format!("left out: {what}"));
                Ok(false)
            }
        }
    }

    /// Opens the content of the regular file at `path`. Returns the reason if it cannot be read.
    fn open(&mut self, path: &[u8], keys: Keys) -> Result<Option<String>> {
        let Some(root) = &self.root else {
            return match (keys.size, keys.contents) {
                (Some(0), _) => Ok(None),
                (None, _) => Err(Error::invalid(
                    "no size, and no directory that has the contents",
                )),
                (Some(len), _) => Err(Error::invalid(format!(
                    "{len} bytes, and no directory that has the contents; --contents-root names one"
                ))),
            };
        };
        let path = keys.contents.as_deref().unwrap_or(path);
        let path = tidy(path)?;
        let opened = weald_sys::open_file_at(root, &path);
        let opened = opened.and_then(|file| file.metadata().map(|metadata| (file, metadata)));
        let (file, metadata) = match opened {
            Ok(opened) => opened,
            // An empty file needs no contents.
            Err(error) if error.kind() == IoErrorKind::NotFound && keys.size == Some(0) => {
                self.checks = keys.checks;
                return self.compare().map(|()| None);
            }
            Err(error) => return Ok(Some(format!("{}: {error}", weald_vfs::shown(&path)))),
        };
        let len = metadata.len();
        if !metadata.is_file() {
            return Err(Error::invalid(
                "no regular file below the directory that has the contents",
            ));
        }
        if keys.size.is_some_and(|size| size != len) {
            let what = format!(
                "size: the description says {} bytes, the file has {len}",
                keys.size.unwrap_or_default()
            );
            return Err(Error::invalid(what));
        }
        self.layout = Some(Layout { len, runs: None });
        (self.file, self.remaining_len, self.checks) = (Some(file), len, keys.checks);
        if len == 0 {
            self.compare()?;
        }
        Ok(None)
    }

    fn compare(&mut self) -> Result<()> {
        let mut checks = std::mem::take(&mut self.checks).into_iter();
        match checks.find_map(Check::wrong) {
            Some(word) => Err(self.lines.wrong(Error::invalid(format!(
                "{word}: the content has another digest"
            )))),
            None => Ok(()),
        }
    }
}

/// The number of an owner: that of `root`, or one that is given.
pub fn owner(number: Option<u32>, name: Option<&Name>) -> Result<u32> {
    match (number, name) {
        (Some(number), _) => Ok(number),
        (None, None) => Ok(0),
        (None, Some(Name { is_root: true, .. })) => Ok(0),
        (None, Some(name)) => Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "'{}' without a number: names of owners are not looked up",
                name.shown
            ),
        )),
    }
}

/// A path without empty and single-dot components, which must not lead out of the directory.
fn tidy(path: &[u8]) -> Result<Vec<u8>> {
    let mut key = path.to_vec();
    crate::path::make_walk_key(&mut key)?;
    Ok(crate::path::path_of_walk(&key))
}

impl Members for MtreeReader {
    fn next(&mut self, member: &mut Member, tell: &mut Tell<'_>) -> Result<bool> {
        loop {
            (self.layout, self.file, self.remaining_len) = (None, None, 0);
            self.checks.clear();
            let Some(line) = self.lines.next_entry()? else {
                return if self.has_entries {
                    Ok(false)
                } else {
                    Err(Error::invalid(
                        "the mtree description has no entry: did the command that writes it fail?",
                    ))
                };
            };
            let taken = self.entry(line, member, tell);
            if taken.map_err(|e| self.lines.wrong(e))? {
                return Ok(true);
            }
        }
    }

    fn has_contents(&self) -> bool {
        self.root.is_some()
    }

    fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    fn read_data(&mut self, out: &mut [u8]) -> Result<()> {
        let Some(file) = &mut self.file else {
            return Err(Error::invalid("a member without data"));
        };
        file.read_exact(out)
            .map_err(|e| Error::io("a content cannot be read", e))
            .map_err(|e| self.lines.wrong(e))?;
        self.checks.iter_mut().for_each(|check| check.update(out));
        self.remaining_len = self.remaining_len.saturating_sub(out.len() as u64);
        match self.remaining_len {
            0 => self.compare(),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
