//! Dumps, line by line.

use super::objects::{Object, ObjectDir};
use crate::input::Input;
use crate::member::{Member, MemberKind};
use crate::members::{Layout, Members, Tell};
use weald_erofs::dump::{DumpEntry, DumpInode, DumpItem};
use weald_format::limits::DUMP_LINE_LEN_MAX;
use weald_format::{Error, FileKind, Result};

/// Reads a dump.
pub(super) struct DumpReader {
    input: Input,
    name: String,
    objects: ObjectDir,
    line_no: u64,
    line: Vec<u8>,
    data: Data,
}

/// The data of the member.
enum Data {
    None,
    Inline(Layout, Vec<u8>, usize),
    Object(Object),
}

impl DumpReader {
    pub fn new(input: Input, name: String, objects: ObjectDir) -> Self {
        Self {
            input,
            name,
            objects,
            line_no: 0,
            line: Vec::new(),
            data: Data::None,
        }
    }

    fn located(&self, error: Error) -> Error {
        error.context(format!("{}, line {}", self.name, self.line_no))
    }

    fn next_line(&mut self) -> Result<bool> {
        self.line.clear();
        self.line_no += 1;
        let is_there = self
            .input
            .read_until(b'\n', DUMP_LINE_LEN_MAX, &mut self.line)?;
        if is_there && self.input.last_was_ended() && self.line.last() == Some(&b'\n') {
            self.line.pop();
        }
        Ok(is_there)
    }

    fn take(&mut self, member: &mut Member) -> Result<()> {
        let entry = DumpEntry::parse(&self.line)?;
        self.data = Data::None;
        member.target.clear();
        member.xattrs.clear();
        member.path.clear();
        if entry.path.is_empty() {
            member.path.push(b'.')
        } else {
            member.path.extend_from_slice(&entry.path)
        }
        let inode = match entry.item {
            DumpItem::Link(target) => {
                member.kind = MemberKind::HardLink;
                member.target = target;
                return Ok(());
            }
            DumpItem::Inode(inode) => inode,
        };
        if self.line_no == 1 && (!entry.path.is_empty() || inode.kind != FileKind::Directory) {
            let what = "the first entry of a dump is the root, a directory called '/'";
            return Err(Error::invalid(what));
        }
        member.kind = MemberKind::Entry(inode.kind);
        member.attributes = inode.attributes;
        member.mtime = inode.mtime;
        match inode.kind {
            FileKind::Regular => self.data = self.data_of(&inode)?,
            FileKind::Symlink => member.target = inode.payload,
            _ => {}
        }
        member.xattrs = inode.xattrs;
        Ok(())
    }

    fn data_of(&self, inode: &DumpInode) -> Result<Data> {
        if inode.size == 0 || !inode.content.is_empty() {
            let layout = Layout {
                len: inode.size,
                runs: None,
            };
            return Ok(Data::Inline(layout, inode.content.clone(), 0));
        }
        if inode.payload.is_empty() {
            // composefs takes a file without an object for one hole.
            let layout = Layout {
                len: inode.size,
                runs: Some(Vec::new()),
            };
            return Ok(Data::Inline(layout, Vec::new(), 0));
        }
        let path = inode.payload.strip_prefix(b"/").unwrap_or(&inode.payload);
        let object = self.objects.object(path, inode.size, inode.digest)?;
        Ok(Data::Object(object))
    }
}

impl Members for DumpReader {
    fn next(&mut self, member: &mut Member, _tell: &mut Tell<'_>) -> Result<bool> {
        loop {
            match self.next_line() {
                Ok(true) if self.line.is_empty() => continue,
                Ok(true) => break,
                Ok(false) if self.line_no == 1 => {
                    let what = "the dump is empty: did the command that writes it fail?";
                    return Err(Error::invalid(what).context(&self.name));
                }
                Ok(false) => return Ok(false),
                Err(error) => return Err(self.located(error)),
            }
        }
        let taken = self.take(member);
        taken.map(|()| true).map_err(|error| self.located(error))
    }

    fn has_contents(&self) -> bool {
        true
    }

    fn layout(&self) -> Option<&Layout> {
        match &self.data {
            Data::None => None,
            Data::Inline(layout, _, _) => Some(layout),
            Data::Object(object) => Some(&object.layout),
        }
    }

    fn read_data(&mut self, out: &mut [u8]) -> Result<()> {
        let read = match &mut self.data {
            Data::Object(object) => object.read(out),
            Data::Inline(_, bytes, at) => match bytes.get(*at..at.saturating_add(out.len())) {
                Some(bytes) => {
                    out.copy_from_slice(bytes);
                    *at += out.len();
                    Ok(())
                }
                None => Err(Error::invalid("a read behind the data")),
            },
            Data::None => Err(Error::invalid("data are read of an entry that has none")),
        };
        read.map_err(|error| self.located(error))
    }
}
