//! The dump of an image: its tree as text, in the dump format of composefs.

use super::options::{INLINE_FILE_LEN_MAX, Sink, check_file, object_name};
use std::collections::HashMap;
use std::ops::ControlFlow;
use weald_erofs::dump::{DumpEntry, DumpInode, DumpItem};
use weald_format::limits::{DUMP_LINE_LEN_MAX, PATH_LEN_MAX};
use weald_format::{Error, FileKind, Result};
use weald_image::{Image, Inode};
use weald_vfs::{Algorithm, Digester, Located, Step, Walker, parallel, shown_path};

/// Bytes of memory for a path of a file whose other names are still to come, besides the path.
const LINK_MEMORY_LEN: u64 = 96;

/// Bytes of a path that is too long, in a message.
const PATH_SHOWN_LEN: usize = 80;

/// Options of [`write_dump`].
pub struct DumpOptions<'a> {
    /// Threads that read contents; at least 1 is used.
    pub thread_count: usize,
    /// Memory for paths of files with several names, in bytes.
    pub memory_len: u64,
    /// Whether to stop.
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// Passes the dump of `image` to `sink`, in the order of a walk, depth first.
///
/// # Errors
/// `Limit` for more files with several names than `memory_len` takes, and for a path or a line that
/// no import takes; `Invalid` ("interrupted");
/// `Io`, `Corrupt`, and those of `sink`.
///
/// # Cost
/// Reads every content of more than 64 bytes for its digest.
pub fn write_dump(image: &Image, sink: &mut Sink<'_>, options: &DumpOptions<'_>) -> Result<()> {
    let digester = Digester::new(image, Algorithm::FsVerity, options.is_cancelled);
    let mut lines = Lines {
        walker: Walker::new(
            image,
            Located {
                path: Vec::new(),
                inode: image.root()?,
            },
        ),
        links: HashMap::new(),
        links_len: 0,
        links_len_max: options.memory_len,
        is_cancelled: options.is_cancelled,
        is_at_end: false,
    };
    let mut result = Ok(());
    parallel::ordered(
        options.thread_count,
        || lines.next(),
        |line| line.and_then(|line| line.text(image, &digester)),
        |text| {
            result = text.and_then(|text| sink(&text));
            match result {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        },
    );
    result
}

/// An entry whose line is to be made.
enum Line {
    Inode(Vec<u8>, Inode),
    Link(Vec<u8>, Vec<u8>),
}

impl Line {
    fn text(self, image: &Image, digester: &Digester<'_>) -> Result<Vec<u8>> {
        let entry = match self {
            Self::Link(path, target) => DumpEntry {
                path,
                item: DumpItem::Link(target),
            },
            Self::Inode(path, inode) => {
                let found = inode_of(image, &inode, digester);
                let inode = found.map_err(|error| error.context(shown_path(&path)))?;
                let item = DumpItem::Inode(inode);
                DumpEntry { path, item }
            }
        };
        let mut text = Vec::new();
        entry.put(&mut text);
        check_line(&entry, text.len())?;
        Ok(text)
    }
}

/// Refuses what the import of a dump would refuse.
fn check_line(entry: &DumpEntry, len: usize) -> Result<()> {
    let target_len = match &entry.item {
        DumpItem::Link(target) => target.len(),
        DumpItem::Inode(_) => 0,
    };
    let path_len = entry.path.len().max(target_len);
    let what = match path_len > PATH_LEN_MAX {
        true => format!("a path of {path_len} bytes, and a dump has at most {PATH_LEN_MAX}"),
        false if len > DUMP_LINE_LEN_MAX => {
            format!("a line of {len} bytes, and a dump has at most {DUMP_LINE_LEN_MAX}")
        }
        false => return Ok(()),
    };
    let shown = shown_path(entry.path.get(..PATH_SHOWN_LEN).unwrap_or(&entry.path));
    Err(Error::limit(what).context(shown))
}

fn inode_of(image: &Image, inode: &Inode, digester: &Digester<'_>) -> Result<DumpInode> {
    check_file(inode.kind, inode.size.0)?;
    let mut found = DumpInode {
        kind: inode.kind,
        attributes: inode.attributes,
        nlink: inode.nlink,
        mtime: inode.times.mtime,
        size: 0,
        payload: Vec::new(),
        content: Vec::new(),
        digest: None,
        xattrs: image.xattrs(inode)?.to_vec(),
    };
    match inode.kind {
        FileKind::Symlink => {
            found.payload = image.read_link(inode)?;
            found.size = found.payload.len() as u64;
        }
        FileKind::Regular => {
            found.size = inode.size.0;
            if found.size <= INLINE_FILE_LEN_MAX {
                found.content = image.read(inode, 0, INLINE_FILE_LEN_MAX as usize)?.to_vec();
            } else {
                let digest = digester.digest_of_32(inode)?;
                found.payload = object_name(&digest).into_bytes();
                found.digest = Some(digest);
            }
        }
        _ => {}
    }
    Ok(found)
}

/// The entries of the image, in order.
struct Lines<'a> {
    walker: Walker<'a>,
    /// First paths of files with several names, and how many names are still to come.
    links: HashMap<u64, (Vec<u8>, u64)>,
    links_len: u64,
    links_len_max: u64,
    is_cancelled: &'a (dyn Fn() -> bool + Sync),
    is_at_end: bool,
}

impl Lines<'_> {
    fn next(&mut self) -> Option<Result<Line>> {
        if self.is_at_end {
            return None;
        }
        let line = self.step();
        self.is_at_end = line.is_err();
        line.transpose()
    }

    fn step(&mut self) -> Result<Option<Line>> {
        loop {
            if (self.is_cancelled)() {
                return Err(Error::invalid("interrupted"));
            }
            let visit = match self.walker.step()? {
                Some(Step::Enter(visit)) => visit,
                Some(Step::Leave) => continue,
                None => return Ok(None),
            };
            let path = self.walker.path().to_vec();
            return Ok(Some(match self.first_path(&visit.inode, &path)? {
                Some(first) => Line::Link(path, first),
                None => Line::Inode(path, visit.inode),
            }));
        }
    }

    /// The first path of a file, if `path` is another one.
    fn first_path(&mut self, inode: &Inode, path: &[u8]) -> Result<Option<Vec<u8>>> {
        if inode.kind == FileKind::Directory || inode.nlink < 2 {
            return Ok(None);
        }
        if let Some((first, remaining)) = self.links.get_mut(&inode.ino.0) {
            let first = first.clone();
            *remaining -= 1;
            if *remaining == 0 {
                self.links.remove(&inode.ino.0);
                self.links_len -= LINK_MEMORY_LEN + first.len() as u64;
            }
            return Ok(Some(first));
        }
        self.links_len += LINK_MEMORY_LEN + path.len() as u64;
        if self.links_len > self.links_len_max {
            return Err(Error::limit(
                "files with several names need more memory than the limit allows: give a larger \
                 --memory",
            ));
        }
        self.links
            .insert(inode.ino.0, (path.to_vec(), inode.nlink - 1));
        Ok(None)
    }
}
