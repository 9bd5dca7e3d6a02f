//! The files of a layout: a directory, or a tar archive of one.
//!
//! Invariant: no path leads out of the layout. In a directory no symlink is followed; in an archive
//! paths are only looked up in its table.

use super::documents::DOCUMENT_LEN_MAX;
use crate::input::Input;
use crate::member::{Member, MemberKind};
use crate::members::Members;
use crate::tar::TarReader;
use std::collections::HashMap;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use weald_format::{Error, ErrorKind, FileKind, Result};
use weald_io::{FileSource, ReadAt, Spool};

/// Members of an archive: three per layer in the oldest form of `docker save`, and several images.
const ARCHIVE_MEMBERS_MAX: usize = 100_000;
/// Links followed from one name of an archive to its data.
const ARCHIVE_LINKS_MAX: usize = 8;
/// Bytes read from a file at once.
const BLOB_READ_LEN: usize = 256 << 10;
/// Bytes that an archive may have for each byte of its compressed form.
const ARCHIVE_RATIO_MAX: u64 = 256;

/// The files of a layout.
pub struct Layout {
    place: LayoutPlace,
    /// The path, for messages.
    shown: String,
}

enum LayoutPlace {
    Directory(OwnedFd),
    Archive {
        source: Arc<dyn ReadAt>,
        members: HashMap<Vec<u8>, Node>,
    },
}

/// A member of an archive.
enum Node {
    Data { start: u64, len: u64 },
    Link(Vec<u8>),
}

/// A file of a layout.
#[derive(Clone)]
pub struct Blob {
    source: Arc<dyn ReadAt>,
    start: u64,
    /// Bytes.
    pub len: u64,
}

impl Blob {
    /// A reader of the bytes from `offset` on.
    pub fn reader(&self, offset: u64) -> BlobReader {
        BlobReader {
            blob: self.clone(),
            offset,
        }
    }

    /// All bytes of a document; `name` is for messages.
    ///
    /// # Errors
    /// `Io`; `Limit` for a file of more than 8 MiB.
    pub fn document(&self, name: &str) -> Result<Vec<u8>> {
        if self.len > DOCUMENT_LEN_MAX {
            return Err(Error::limit(format!(
                "{}: {} bytes, and a document of an image has at most {DOCUMENT_LEN_MAX}",
                shown_path(name),
                self.len
            )));
        }
        let mut bytes = vec![0; self.len as usize];
        self.source.read_exact_at(&mut bytes, self.start)?;
        Ok(bytes)
    }
}

/// Reads a [`Blob`] in order.
pub struct BlobReader {
    blob: Blob,
    offset: u64,
}

impl Read for BlobReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let remaining = self.blob.len.saturating_sub(self.offset);
        let len = remaining.min(out.len().min(BLOB_READ_LEN) as u64) as usize;
        let at = self.blob.start + self.offset;
        let read = self.blob.source.read_exact_at(&mut out[..len], at);
        read.map_err(std::io::Error::other)?;
        self.offset += len as u64;
        Ok(len)
    }
}

impl Layout {
    /// Opens the layout at `path`. A compressed archive is decompressed into a temporary file in
    /// `temp_dir`.
    ///
    /// # Errors
    /// `NotFound`, `Io`, `Full`; `Invalid` for a damaged archive; `Limit`.
    /// # Cost
    /// An archive is read once.
    pub fn open(path: &Path, temp_dir: &Path, memory_len: u64) -> Result<Self> {
        let shown = weald_vfs::shown(path.as_os_str().as_encoded_bytes());
        let failed = |e| Error::io(shown.clone(), e);
        if path.is_dir() {
            let dir = weald_sys::open_dir(path).map_err(failed)?;
            let place = LayoutPlace::Directory(dir);
            return Ok(Self { place, shown });
        }
        let file = FileSource::open(path, 0)?;
        let place = LayoutPlace::archive(Arc::new(file), temp_dir, memory_len);
        let place = place.map_err(|e| e.context(&shown))?;
        Ok(Self { place, shown })
    }

    /// The layout in the archive `source`, as [`Layout::open`].
    ///
    /// # Errors
    /// As [`Layout::open`].
    pub fn archive(source: Arc<dyn ReadAt>, temp_dir: &Path, memory_len: u64) -> Result<Self> {
        Ok(Self {
            place: LayoutPlace::archive(source, temp_dir, memory_len)?,
            shown: "archive".to_owned(),
        })
    }

    /// The path of the layout, for messages.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Opens the file at `path` below the root of the layout.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Invalid` for a path that leads out of the layout or to no regular file.
    pub fn blob(&self, path: &str) -> Result<Blob> {
        let found = normal(path.as_bytes()).ok_or_else(|| {
            Error::invalid("a path that leads out of the layout; nothing outside is read")
        });
        let found = found.and_then(|path| match &self.place {
            LayoutPlace::Directory(dir) => open_in(dir, &path),
            LayoutPlace::Archive { source, members } => find_in(source, members, path),
        });
        found.map_err(|e| e.context(shown_path(path)))
    }

    /// Reads the whole document at `path`.
    ///
    /// # Errors
    /// As [`Layout::blob`]; `Limit` for a file of more than 8 MiB.
    pub fn document(&self, path: &str) -> Result<Vec<u8>> {
        self.blob(path)?.document(path)
    }

    /// As [`Layout::document`]; `None` if there is no such file.
    ///
    /// # Errors
    /// As [`Layout::document`].
    pub fn find_document(&self, path: &str) -> Result<Option<Vec<u8>>> {
        match self.document(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }
}

fn shown_path(path: &str) -> String {
    weald_vfs::shown(path.get(..200).unwrap_or(path).as_bytes())
}

/// The components of `path`, joined; `None` for a path that leads out.
fn normal(path: &[u8]) -> Option<Vec<u8>> {
    let mut names: Vec<&[u8]> = Vec::new();
    if path.first() == Some(&b'/') || path.contains(&0) || path.len() > 4000 {
        return None;
    }
    for name in path.split(|&b| b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()?),
            name => names.push(name),
        }
    }
    Some(names.join(&b'/')).filter(|path| !path.is_empty())
}

fn open_in(dir: &OwnedFd, path: &[u8]) -> Result<Blob> {
    let failed = |e| Error::io("cannot be opened", e);
    let file = weald_sys::open_file_at(dir, path).map_err(|e| {
        if !weald_sys::is_of_link(&e) {
            return failed(e);
        }
        Error::invalid(
            "a symlink is in this path, and symlinks in a layout are not followed: put the file \
             itself there",
        )
    })?;
    let stat = weald_sys::stat_fd(&file).map_err(failed)?;
    if stat.kind != FileKind::Regular {
        return Err(Error::invalid("is no regular file"));
    }
    let source = FileSource::new(file, Path::new("blob"), 0)?;
    let len = source.len();
    let source = Arc::new(source);
    Ok(Blob {
        source,
        start: 0,
        len,
    })
}

fn find_in(
    source: &Arc<dyn ReadAt>,
    members: &HashMap<Vec<u8>, Node>,
    mut path: Vec<u8>,
) -> Result<Blob> {
    for _ in 0..=ARCHIVE_LINKS_MAX {
        match members.get(&path) {
            Some(&Node::Data { start, len }) => {
                let source = source.clone();
                return Ok(Blob { source, start, len });
            }
            Some(Node::Link(target)) => path.clone_from(target),
            None => return Err(Error::not_found("is not in the archive")),
        }
    }
    Err(Error::invalid("links of the archive lead in a circle"))
}

impl LayoutPlace {
    fn archive(file: Arc<dyn ReadAt>, temp_dir: &Path, memory_len: u64) -> Result<Self> {
        let whole = Blob {
            len: file.len(),
            start: 0,
            source: file,
        };
        let mut front = [0; 6];
        let front_len = whole.len.min(front.len() as u64) as usize;
        whole.source.read_exact_at(&mut front[..front_len], 0)?;
        let source = if Input::is_compressed(&front) {
            decompressed(&whole, temp_dir, memory_len)?
        } else {
            whole.source
        };
        let members = members_of(&source)?;
        Ok(Self::Archive { source, members })
    }
}

fn decompressed(whole: &Blob, temp_dir: &Path, memory_len: u64) -> Result<Arc<dyn ReadAt>> {
    let mut reader = Input::new(Box::new(whole.reader(0)), memory_len)?;
    let mut spool = Spool::create(temp_dir)?;
    let mut piece = vec![0; BLOB_READ_LEN];
    loop {
        let len = reader.read(&mut piece)?;
        if len == 0 {
            return Ok(Arc::new(spool));
        }
        spool.append(&piece[..len])?;
        if spool.len() / ARCHIVE_RATIO_MAX > whole.len.max(1 << 20) {
            return Err(Error::limit(format!(
                "the archive has more than {ARCHIVE_RATIO_MAX} times its compressed size: if that \
                 is meant, decompress it first"
            )));
        }
    }
}

fn members_of(source: &Arc<dyn ReadAt>) -> Result<HashMap<Vec<u8>, Node>> {
    let whole = Blob {
        source: source.clone(),
        start: 0,
        len: source.len(),
    };
    let reader = std::io::BufReader::with_capacity(BLOB_READ_LEN, whole.reader(0));
    let input = Input::plain(Box::new(reader))?;
    if !TarReader::is_tar(input.front()) {
        return Err(Error::invalid(
            "is neither a directory nor a tar archive: expected an OCI layout or the output of \
             docker save",
        ));
    }
    let mut reader = TarReader::new(input);
    let (mut member, mut members) = (Member::default(), HashMap::new());
    while reader.next(&mut member, &mut |_, _| {})? {
        let Some(path) = normal(&member.path) else {
            continue;
        };
        let node = match member.kind {
            MemberKind::HardLink => normal(&member.target).map(Node::Link),
            MemberKind::Entry(FileKind::Symlink) => {
                let dir = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
                normal(&[&path[..dir], &member.target].concat()).map(Node::Link)
            }
            MemberKind::Entry(FileKind::Regular) => match reader.layout() {
                Some(layout) if layout.runs.is_none() => Some(Node::Data {
                    start: reader.offset(),
                    len: layout.len,
                }),
                _ => None,
            },
            _ => None,
        };
        if let Some(node) = node {
            members.insert(path, node);
        }
        if members.len() > ARCHIVE_MEMBERS_MAX {
            return Err(Error::limit(format!(
                "an archive of more than {ARCHIVE_MEMBERS_MAX} files is no image: to import a tree \
                 from a tar archive, use 'weald build -'"
            )));
        }
    }
    Ok(members)
}
