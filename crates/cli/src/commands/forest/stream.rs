//! Writes a forest as a stream: tar, mtree, or names only. Leaves come in the order of their
//! numbers, so that the target of a hard link precedes the link.

use clap::ValueEnum;
use std::io::Write;
use weald_export::{TarEntry, TarOutput, map_len, type_flag};
use weald_forest::{Body, Content, Entry, Forest, Leaf};
use weald_format::{Attributes, Error, FileKind, Result, Timestamp, XattrSet};

/// Bytes of a content that are generated at once.
const PIECE_LEN: u64 = 1 << 20;

/// Formats of a stream.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamWord {
    /// A tar stream (pax)
    Tar,
    /// A description for mtree and bsdtar, without contents
    Mtree,
    /// Paths that end in zero bytes, those of directories in a slash
    Listing,
}

/// Writes `forest` to `output`. Ends early if `is_over` returns true.
///
/// # Errors
/// The errors of `output`; `Invalid` if it ended early.
pub fn write_stream(
    forest: &Forest,
    word: StreamWord,
    output: &mut dyn Write,
    is_over: &dyn Fn() -> bool,
) -> Result<()> {
    let mut sink: Box<dyn Sink + '_> = match word {
        StreamWord::Tar => Box::new(TarSink(TarOutput::new(output))),
        StreamWord::Mtree => Box::new(MtreeSink::begin(output)?),
        StreamWord::Listing => Box::new(ListingSink(output)),
    };
    let (mut leaf, mut previous) = (Leaf::default(), Leaf::default());
    for number in 0..forest.leaf_count() {
        if is_over() {
            return Err(Error::invalid("interrupted"));
        }
        let dir = write_dirs(forest, number, sink.as_mut())?;
        std::mem::swap(&mut leaf, &mut previous);
        forest.leaf(number, &mut leaf);
        let writer = LeafWriter {
            forest,
            number,
            dir: &dir,
            leaf: &leaf,
            previous: &previous,
        };
        writer.write(sink.as_mut())?;
    }
    sink.finish()
}

/// One entry of a stream.
struct Item<'a> {
    /// Path from the root, without a slash at the start or the end.
    path: &'a [u8],
    kind: FileKind,
    attributes: Attributes,
    mtime: Timestamp,
    xattrs: XattrSet,
    content: Option<&'a Content>,
    target: &'a [u8],
    /// Path of the file that this entry is a hard link to.
    twin: Option<&'a [u8]>,
}

trait Sink {
    fn item(&mut self, item: &Item<'_>) -> Result<()>;

    fn finish(&mut self) -> Result<()>;
}

/// Writes each directory whose first leaf is `number`; returns the path of the leaf.
fn write_dirs(forest: &Forest, number: u64, sink: &mut dyn Sink) -> Result<Vec<u8>> {
    let mut path = Vec::new();
    for level in 0..=forest.depth() {
        if level > 0 {
            if level > 1 {
                path.push(b'/');
            }
            forest.dir_name(level, number, &mut path);
        }
        if number.is_multiple_of(forest.leaves_below(level)) {
            sink.item(&Item {
                path: &path,
                kind: FileKind::Directory,
                attributes: forest.dir_attributes(),
                mtime: forest.dir_mtime(level, number).unwrap_or_default(),
                xattrs: XattrSet::new(),
                content: None,
                target: b"",
                twin: None,
            })?;
        }
    }
    Ok(path)
}

/// A leaf, and the previous leaf, to which its links may refer.
struct LeafWriter<'a> {
    forest: &'a Forest,
    number: u64,
    dir: &'a [u8],
    leaf: &'a Leaf,
    previous: &'a Leaf,
}

impl LeafWriter<'_> {
    fn write(&self, sink: &mut dyn Sink) -> Result<()> {
        let is_link =
            |entry: &&Entry| matches!(entry.body, Body::HardLink(_) | Body::HardLinkAcross(_));
        let entries = || self.leaf.entries.iter();
        for entry in entries().filter(|e| !is_link(e)) {
            self.write_entry(entry, sink)?;
        }
        for entry in entries().filter(is_link) {
            self.write_link(entry, sink)?;
        }
        Ok(())
    }

    fn write_entry(&self, entry: &Entry, sink: &mut dyn Sink) -> Result<()> {
        let (kind, content, target): (_, _, &[u8]) = match &entry.body {
            Body::Symlink(target) => (FileKind::Symlink, None, &self.leaf.text[target.clone()]),
            Body::File(content) => (FileKind::Regular, Some(content), b""),
            Body::HardLink(_) | Body::HardLinkAcross(_) => return Ok(()),
        };
        sink.item(&Item {
            path: &join(self.dir, self.leaf.name(entry)),
            kind,
            target,
            content,
            ..self.item_of(entry, self.number)
        })
    }

    fn write_link(&self, entry: &Entry, sink: &mut dyn Sink) -> Result<()> {
        let (leaf, number, found) = match &entry.body {
            Body::HardLink(index) => {
                let found = self.leaf.entries.iter().find(|e| e.index == *index);
                (self.leaf, self.number, found)
            }
            Body::HardLinkAcross(name) => {
                let name = &self.leaf.text[name.clone()];
                let found = self
                    .previous
                    .entries
                    .iter()
                    .find(|e| self.previous.name(e) == name);
                (self.previous, self.number.saturating_sub(1), found)
            }
            Body::File(_) | Body::Symlink(_) => return Ok(()),
        };
        let Some(twin) = found else {
            return Err(Error::invalid("a hard link of the forest leads nowhere"));
        };
        let dir = if number == self.number {
            self.dir.to_vec()
        } else {
            self.previous_dir()
        };
        let content = match &twin.body {
            Body::File(content) => Some(content),
            _ => None,
        };
        sink.item(&Item {
            path: &join(self.dir, self.leaf.name(entry)),
            content,
            twin: Some(&join(&dir, leaf.name(twin))),
            ..self.item_of(twin, number)
        })
    }

    /// Path of the previous leaf, which is in the same directory.
    fn previous_dir(&self) -> Vec<u8> {
        let slash = self.dir.iter().rposition(|&b| b == b'/');
        let mut path = self.dir[..slash.map_or(0, |at| at + 1)].to_vec();
        self.forest
            .dir_name(self.forest.depth(), self.number - 1, &mut path);
        path
    }

    fn item_of(&self, entry: &Entry, number: u64) -> Item<'_> {
        let xattrs = if entry.has_xattrs || entry.has_acl {
            self.forest.xattrs(number, entry)
        } else {
            XattrSet::new()
        };
        Item {
            path: b"",
            kind: FileKind::Regular,
            attributes: entry.attributes,
            mtime: entry.mtime.unwrap_or_default(),
            xattrs,
            content: None,
            target: b"",
            twin: None,
        }
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        name.to_vec()
    } else {
        [dir, b"/", name].concat()
    }
}

struct TarSink<'a>(TarOutput<'a>);

impl Sink for TarSink<'_> {
    fn item(&mut self, item: &Item<'_>) -> Result<()> {
        let is_dir = item.kind == FileKind::Directory;
        let path = match (item.path, is_dir) {
            (b"", _) => b"./".to_vec(),
            (path, true) => [path, b"/"].concat(),
            (path, false) => path.to_vec(),
        };
        let content = item.content.filter(|_| item.twin.is_none());
        let runs: Vec<(u64, u64)> = match content {
            Some(content) => content.runs().map(|r| (r.start, r.end - r.start)).collect(),
            None => Vec::new(),
        };
        let (len, data_len) = content.map_or((0, 0), |c| (c.len(), c.data_len()));
        let is_sparse = data_len < len;
        let none = XattrSet::new();
        let type_flag = match item.twin {
            Some(_) => Some(b'1'),
            None => type_flag(item.kind),
        };
        self.0.header(&TarEntry {
            path: &path,
            type_flag: type_flag.unwrap_or(b'0'),
            permissions: item.attributes.permissions,
            uid: item.attributes.uid,
            gid: item.attributes.gid,
            size: if is_sparse {
                data_len + map_len(len, &runs)
            } else {
                len
            },
            mtime: item.mtime,
            atime: None,
            ctime: None,
            link: item.twin.unwrap_or(item.target),
            device: (0, 0),
            xattrs: if item.twin.is_some() {
                &none
            } else {
                &item.xattrs
            },
            sparse_len: is_sparse.then_some(len),
        })?;
        let Some(content) = content else {
            return Ok(());
        };
        if is_sparse {
            self.0.map(len, &runs)?;
        }
        let mut piece = Vec::new();
        for (offset, run_len) in runs {
            let mut at = offset;
            while at < offset + run_len {
                piece.resize((offset + run_len - at).min(PIECE_LEN) as usize, 0);
                content.fill(at, &mut piece);
                self.0.write(&piece)?;
                at += piece.len() as u64;
            }
        }
        self.0.pad(data_len)
    }

    fn finish(&mut self) -> Result<()> {
        self.0.finish()
    }
}

/// Source: mtree(5) of libarchive.
struct MtreeSink<'a>(&'a mut dyn Write);

impl<'a> MtreeSink<'a> {
    fn begin(output: &'a mut dyn Write) -> Result<Self> {
        output.write_all(b"#mtree\n").map_err(failed)?;
        Ok(Self(output))
    }
}

impl Sink for MtreeSink<'_> {
    fn item(&mut self, item: &Item<'_>) -> Result<()> {
        let mut line = match item.path {
            b"" => b".".to_vec(),
            _ => b"./".to_vec(),
        };
        put_vis(item.path, &mut line);
        let word = match item.kind {
            FileKind::Directory => "dir",
            FileKind::Symlink => "link",
            _ => "file",
        };
        let Attributes {
            permissions,
            uid,
            gid,
            ..
        } = item.attributes;
        let Timestamp {
            seconds,
            nanoseconds,
        } = item.mtime;
        line.extend_from_slice(
            format!(
                " type={word} mode={permissions:04o} uid={uid} gid={gid} \
                 time={seconds}.{nanoseconds:09}"
            )
            .as_bytes(),
        );
        if let Some(content) = item.content {
            line.extend_from_slice(format!(" size={}", content.len()).as_bytes());
        }
        if item.kind == FileKind::Symlink {
            line.extend_from_slice(b" link=");
            put_vis(item.target, &mut line);
        }
        line.push(b'\n');
        self.0.write_all(&line).map_err(failed)
    }

    fn finish(&mut self) -> Result<()> {
        self.0.flush().map_err(failed)
    }
}

/// Appends a name to `line`. Characters of mtree's syntax and bytes that are not printable ASCII
/// are written as a backslash and three octal digits.
fn put_vis(name: &[u8], line: &mut Vec<u8>) {
    for &byte in name {
        if byte.is_ascii_graphic() && !matches!(byte, b'\\' | b'#' | b'=' | b'*' | b'?' | b'[') {
            line.push(byte)
        } else {
            line.extend_from_slice(format!("\\{byte:03o}").as_bytes())
        }
    }
}

struct ListingSink<'a>(&'a mut dyn Write);

impl Sink for ListingSink<'_> {
    fn item(&mut self, item: &Item<'_>) -> Result<()> {
        let end: &[u8] = match (item.path, item.kind) {
            (b"", _) => b"./\0",
            (_, FileKind::Directory) => b"/\0",
            _ => b"\0",
        };
        let written = self.0.write_all(item.path);
        written.and_then(|()| self.0.write_all(end)).map_err(failed)
    }

    fn finish(&mut self) -> Result<()> {
        self.0.flush().map_err(failed)
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("write", error)
}
