//! Assembles the tree of a stream from its sorted records: takes the last member of each path, adds
//! directories that the stream does not name, numbers names and binds links.

use crate::blocks::{self, BlockWriter};
use crate::links::{LinkGatherer, LinkTexts, Links};
use crate::member::{Record, WEAK, kind_of_record};
use crate::path;
use crate::sort::Sorted;
use std::path::Path;
use weald_format::{Error, FileKind, Result};
use weald_io::Spool;

/// A tree that is ready to be written.
pub struct Tree {
    /// Blocks of its directories, in preorder.
    pub blocks: Spool,
    /// Record of the root.
    pub root: Vec<u8>,
    /// Hard links.
    pub links: Links,
    /// Entries, the root included.
    pub entry_count: u64,
    /// Largest count of entries of a directory.
    pub directory_count_max: u64,
    /// Depth of the deepest directory; the root has 1.
    pub depth: u64,
}

/// Assembles the tree of a stream. Temporary files go to `dir`. The entries of one directory and
/// the hard links must fit into `memory_len` bytes.
///
/// # Errors
/// `Io`, `Full` for temporary files; `Invalid` for records that make no tree; `Limit` if the memory
/// is too small.
pub fn assemble(
    mut sorted: Sorted,
    texts: &LinkTexts,
    dir: &Path,
    memory_len: u64,
) -> Result<Tree> {
    let mut assembler = Assembler {
        blocks: BlockWriter::new(dir)?,
        memory_len,
        root: WEAK.to_vec(),
        links: LinkGatherer::default(),
        dir: Vec::new(),
        dir_no: 1,
        above: Vec::new(),
        held_len: 0,
        entries: Vec::new(),
        count: 0,
        children: Vec::new(),
        name_count: 1,
        count_max: 0,
        depth: 1,
    };
    let mut group = Group::default();
    let mut is_begun = false;
    while let Some(next) = sorted.next()? {
        let (key, record) = (next.key, next.value);
        let is_same = key.len() == group.key.len() && next.common == key.len();
        if !is_begun || !is_same {
            if is_begun {
                assembler.end_group(&group)?;
            }
            is_begun = true;
            group.begin(key);
        }
        group.add(record, &mut assembler.links)?;
    }
    if is_begun {
        assembler.end_group(&group)?;
    }
    assembler.finish(texts)
}

/// All records of one path, in the order of the stream.
#[derive(Default)]
struct Group {
    key: Vec<u8>,
    /// Record of the last member so far, and its kind.
    last: Vec<u8>,
    record: Option<Record>,
    /// Number of the last member's file, if a link names it.
    file: Option<u32>,
    /// Record of an excluded file; requests that follow it are for this file.
    hidden: Option<Vec<u8>>,
    /// Number of the excluded file, if a link names it.
    hidden_file: Option<u32>,
    /// A member lies below.
    has_members_below: bool,
}

impl Group {
    fn begin(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        (self.record, self.file, self.has_members_below) = (None, None, false);
        (self.hidden, self.hidden_file) = (None, None);
    }

    fn add(&mut self, bytes: &[u8], links: &mut LinkGatherer) -> Result<()> {
        match kind_of_record(bytes)? {
            Record::Weak => self.has_members_below = true,
            Record::Hidden => {
                self.hidden = Some(bytes.get(1..).unwrap_or_default().to_vec());
                self.hidden_file = None;
            }
            Record::Request(no) if let Some(hidden) = &self.hidden => {
                let file = match self.hidden_file {
                    Some(file) => file,
                    None => links.add_file(hidden)?,
                };
                self.hidden_file = Some(file);
                links.bind(no, file);
            }
            Record::Request(no) => match self.record {
                Some(Record::Link(other)) => links.bind_to_link(no, other),
                Some(Record::Entry(kind)) if kind != FileKind::Directory => {
                    let file = match self.file {
                        Some(file) => file,
                        None => links.add_file(&self.last)?,
                    };
                    self.file = Some(file);
                    links.bind(no, file);
                }
                // Reported at the end, if the link is still in the tree.
                _ => {}
            },
            record => {
                self.record = Some(record);
                (self.file, self.hidden, self.hidden_file) = (None, None, None);
                self.last.clear();
                self.last.extend_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// The entry of the path; `None` if the path has only requests of links and excluded files.
    fn entry(&self) -> Result<Option<(FileKind, &[u8])>> {
        let kind = match self.record {
            None | Some(Record::Name) if self.has_members_below => {
                return Ok(Some((FileKind::Directory, &WEAK)));
            }
            None => return Ok(None),
            Some(Record::Entry(kind)) => kind,
            Some(_) => FileKind::Regular,
        };
        if self.has_members_below && kind != FileKind::Directory {
            return Err(Error::invalid(format!(
                "{}: is {}, and other members lie below it",
                weald_vfs::shown_path(&path::path_of(&self.key)),
                word(kind)
            )));
        }
        Ok(Some((kind, &self.last)))
    }
}

fn word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Directory => "a directory",
        FileKind::Regular => "a file",
        FileKind::Symlink => "a symlink",
        FileKind::CharDevice | FileKind::BlockDevice => "a device",
        FileKind::Fifo => "a fifo",
        FileKind::Socket => "a socket",
    }
}

/// A directory with remaining subdirectories: their names, each behind its length.
struct Above {
    dir_len: usize,
    children: Vec<u8>,
    at: usize,
}

struct Assembler {
    blocks: BlockWriter,
    memory_len: u64,
    root: Vec<u8>,
    links: LinkGatherer,
    /// The directory whose entries are being collected, as in keys.
    dir: Vec<u8>,
    dir_no: u64,
    above: Vec<Above>,
    /// Bytes of names in `above`.
    held_len: usize,
    entries: Vec<u8>,
    count: u64,
    children: Vec<u8>,
    name_count: u64,
    count_max: u64,
    depth: u64,
}

impl Assembler {
    fn end_group(&mut self, group: &Group) -> Result<()> {
        let Some((kind, record)) = group.entry()? else {
            return Ok(());
        };
        let Some((dir, name)) = path::split(&group.key) else {
            if kind != FileKind::Directory {
                let what = format!(
                    "/: is {}, but the root of a tree is a directory",
                    word(kind)
                );
                return Err(Error::invalid(what));
            }
            self.root.clear();
            self.root.extend_from_slice(record);
            return Ok(());
        };
        if dir != self.dir {
            self.go_to(Some(dir))?;
        }
        self.name_count += 1;
        self.count += 1;
        blocks::put_entry(&mut self.entries, name, record);
        match (kind, group.record, group.file) {
            (FileKind::Directory, ..) => {
                self.children.push(name.len() as u8);
                self.children.extend_from_slice(name);
            }
            (_, Some(Record::Link(no)), _) => {
                self.links.add_link_name(no, self.name_count, self.dir_no);
            }
            (_, _, Some(file)) => self.links.add_name(file, self.name_count, self.dir_no),
            _ => {}
        }
        let held_len = (self.entries.len() + self.children.len() + self.held_len) as u64;
        let need = held_len + self.links.memory_len();
        if need > self.memory_len {
            return Err(Error::limit(format!(
                "memory: the entries of one directory and the hard links take more than {} MiB, a \
                 part of the memory limit: -m sets a higher one",
                self.memory_len >> 20
            )));
        }
        Ok(())
    }

    /// Ends the open directory and the empty ones up to `dir` or the end.
    fn go_to(&mut self, dir: Option<&[u8]>) -> Result<()> {
        self.end_dir()?;
        while self.next_dir() {
            if dir == Some(&self.dir) {
                return Ok(());
            }
            self.end_dir()?;
        }
        match dir {
            None => Ok(()),
            // Every member has records of the directories above it, so this one is damaged.
            Some(_) => Err(crate::member::damaged(Error::invalid(
                "a directory is missing",
            ))),
        }
    }

    fn end_dir(&mut self) -> Result<()> {
        self.blocks.push(self.count, &self.entries)?;
        self.count_max = self.count_max.max(self.count);
        self.depth = self.depth.max(self.above.len() as u64 + 1);
        self.entries.clear();
        self.count = 0;
        if !self.children.is_empty() {
            self.held_len += self.children.len();
            self.above.push(Above {
                dir_len: self.dir.len(),
                children: std::mem::take(&mut self.children),
                at: 0,
            });
        }
        Ok(())
    }

    /// Goes to the next directory in preorder; false where there is none.
    fn next_dir(&mut self) -> bool {
        while let Some(above) = self.above.last_mut() {
            let remaining = above.children.get(above.at..).unwrap_or_default();
            if let Some((&len, names)) = remaining.split_first() {
                let name = names.get(..len.into()).unwrap_or_default();
                self.dir.truncate(above.dir_len);
                path::push_component(&mut self.dir, name);
                above.at += 1 + name.len();
                self.dir_no += 1;
                return true;
            }
            self.held_len -= above.children.len();
            self.above.pop();
        }
        false
    }

    fn finish(mut self, texts: &LinkTexts) -> Result<Tree> {
        self.go_to(None)?;
        let links = self.links.finish().map_err(|no| texts.unbound(no))?;
        Ok(Tree {
            blocks: self.blocks.finish()?,
            root: self.root,
            links,
            entry_count: self.name_count,
            directory_count_max: self.count_max,
            depth: self.depth,
        })
    }
}
