//! Writes an image, or a selection of it, as a pax stream. The same input gives the same bytes.
//!
//! Files with holes become GNU sparse files (format 1.0, which GNU tar, bsdtar and Python read).
//! Sockets are left out with a warning: tar has no type for them.
//!
//! A header announces the length of the data, so a file with damaged contents must be left out
//! before its header is written. Maps and small contents are read first; large contents are read
//! twice. If the second read fails, zeros fill the member, and the observer gets a problem.

use crate::extract::ExtractObserver;
use crate::pax::{Entry, TAR_BLOCK_LEN, type_flag};
use crate::restore::READ_LEN;
use crate::sparse_map::SparseMap;
use crate::tar_output::TarOutput;
use std::collections::HashMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use weald_filter::AttributeChoice;
use weald_format::{
    ACL_ACCESS, Error, FileKind, Ids, InodeNo, Result, XattrSet, permissions_without_acl,
};
use weald_image::{Image, Inode, Run};
use weald_vfs::{Choice, Event, Located, SelectedWalk, Unmatched};

/// Bytes of data held in memory until all of them are read. Longer contents are read twice.
const HELD_LEN_MAX: u64 = 8 << 20;

/// Options of a tar stream.
#[derive(Debug, Clone, Default)]
pub struct TarOptions {
    /// Entries of the image to write.
    pub choice: Choice,
    /// Leave extended attributes out.
    pub drops_xattrs: bool,
    /// What is kept of attributes.
    pub attributes: AttributeChoice,
    /// The stream becomes a layer of OCI: names that begin with `.wh.` are left out and reported,
    /// because they would mean removed files there.
    pub is_layer: bool,
    /// Directory for temporary files: maps of sparse files that are too long for memory.
    pub temp_dir: PathBuf,
}

/// Result of writing a tar stream.
#[derive(Debug, Clone, Default)]
pub struct TarReport {
    /// Bytes written.
    pub len: u64,
    /// Problems reported to the observer.
    pub problem_count: u64,
    /// Entries that a tar stream, or a layer, cannot hold; the watch got each of them.
    pub left_out_count: u64,
    /// What selected nothing.
    pub unmatched: Unmatched,
}

/// Writes the chosen entries of `image` to `output` as a tar stream. Paths begin at the directory
/// `root` and have no leading `/`; the root is `./`.
///
/// # Errors
/// Those of `output`. An entry that cannot be read is left out and reported to `observer`.
///
/// # Cost
/// Reads every selected file once, files with more than 8 MiB of data twice. Memory for one small
/// file and for a table of the inodes with several names.
pub fn write_tar(
    image: &Image,
    root: Inode,
    options: &TarOptions,
    output: &mut dyn Write,
    observer: &dyn ExtractObserver,
) -> Result<TarReport> {
    let mut writer = TarWriter {
        image,
        options,
        output: TarOutput::new(output),
        first_names: HashMap::new(),
        held: Vec::new(),
    };
    let start = Located {
        path: Vec::new(),
        inode: root,
    };
    let mut walk = SelectedWalk::new(image, start, &options.choice);
    let (mut problem_count, mut left_out_count) = (0, 0);
    loop {
        let written = match walk.step() {
            Ok(None) => break,
            Ok(Some(Event::Leave)) => Ok(()),
            Ok(Some(Event::Enter(visit))) if visit.inode.kind == FileKind::Socket => {
                let socket = Error::invalid("left out: tar cannot hold a socket");
                observer.left_out(walk.path(), &socket);
                left_out_count += 1;
                Ok(())
            }
            Ok(Some(Event::Enter(_))) if options.is_layer && is_mark(walk.path()) => {
                let mark = Error::invalid(
                    "left out: layers of OCI cannot hold a name that begins with '.wh.', which \
                     means a removed file there",
                );
                observer.left_out(walk.path(), &mark);
                left_out_count += 1;
                Ok(())
            }
            Ok(Some(Event::Enter(mut visit))) => {
                let attributes = visit.inode.attributes;
                visit.inode.attributes = options.attributes.attributes_of(attributes);
                writer.entry(walk.shortened_path(), &visit.inode)?
            }
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            problem_count += 1;
            observer.problem(walk.path(), &error);
        }
        if observer.is_cancelled() {
            return Err(Error::invalid("interrupted"));
        }
    }
    writer.output.finish()?;
    Ok(TarReport {
        len: writer.output.written_len(),
        problem_count,
        left_out_count,
        unmatched: walk.unmatched(),
    })
}

/// Whether a name of `path` would be a whiteout.
fn is_mark(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/')
        .any(|name| name.starts_with(b".wh."))
}

struct TarWriter<'a> {
    image: &'a Image,
    options: &'a TarOptions,
    output: TarOutput<'a>,
    /// Path of the first name of each inode with several names, and the count of remaining names.
    first_names: HashMap<InodeNo, (Box<[u8]>, u64)>,
    /// Buffer for the data of one file. Fresh memory for each file would cost page faults.
    held: Vec<u8>,
}

impl TarWriter<'_> {
    /// Writes one entry. An outer error is one of the stream. An inner error is one of the entry,
    /// and nothing of the entry was written.
    fn entry(&mut self, path: &[u8], inode: &Inode) -> Result<Result<()>> {
        let Some(type_flag) = type_flag(inode.kind) else {
            return Ok(Err(Error::invalid("a socket, which tar cannot hold")));
        };
        let name = entry_name(path, inode.kind);
        if let Some(first) = self.first_name(&name, inode) {
            let none = XattrSet::new();
            let entry = Entry {
                type_flag: b'1',
                link: &first,
                permissions: self.permissions(inode),
                ..entry_of(&name, inode, &none)
            };
            self.output.header(&entry)?;
            return Ok(Ok(()));
        }
        let inputs = self.inputs(inode).and_then(|inputs| {
            let held = self.checked_data(inode, &inputs.2)?;
            Ok((inputs, held))
        });
        let ((xattrs, target, map), held) = match inputs {
            Ok(inputs) => inputs,
            Err(error) => {
                self.first_names.remove(&inode.ino);
                return Ok(Err(error));
            }
        };
        let mut entry = Entry {
            type_flag,
            link: &target,
            permissions: self.permissions(inode),
            ..entry_of(&name, inode, &xattrs)
        };
        entry.size = map.data_len;
        if map.has_hole {
            entry.size += map.text_len().next_multiple_of(TAR_BLOCK_LEN as u64);
            entry.sparse_len = Some(inode.size.0);
        }
        let size = entry.size;
        self.output.header(&entry)?;
        if map.has_hole {
            map.write(&mut self.output)?;
        }
        let written = match held {
            Some(data) => {
                self.output.write(&data)?;
                self.held = data;
                Ok(())
            }
            None => self.write_data(inode, &map)?,
        };
        self.output.pad(size)?;
        Ok(written)
    }

    /// Reads the whole content before its header is written. Returns it if it is small.
    fn checked_data(&mut self, inode: &Inode, map: &SparseMap) -> Result<Option<Vec<u8>>> {
        let mut held = std::mem::take(&mut self.held);
        held.clear();
        let is_held = map.data_len <= HELD_LEN_MAX;
        each_piece(self.image, inode, &mut |piece| {
            if is_held {
                held.extend_from_slice(piece);
            }
            Ok(())
        })?;
        Ok(is_held.then_some(held))
    }

    /// The permission bits to write. If the ACL is left out, they deny what the ACL denies.
    fn permissions(&self, inode: &Inode) -> u16 {
        let stored = inode.attributes.permissions;
        let options = self.options;
        let drops_acl = options.drops_xattrs || !options.attributes.xattrs.keeps(ACL_ACCESS);
        let dropped = inode.xattr_set.filter(|_| drops_acl);
        match dropped.map(|_| self.image.xattrs(inode)) {
            None => stored,
            Some(Ok(set)) => permissions_without_acl(stored, &set, Ids::Kept),
            Some(Err(_)) => stored & 0o7700,
        }
    }

    /// Xattrs, symlink target and data runs: the input of the header.
    fn inputs(&self, inode: &Inode) -> Result<(XattrSet, Vec<u8>, SparseMap)> {
        let keeps_xattrs = inode.xattr_set.is_some() && !self.options.drops_xattrs;
        let xattrs = if keeps_xattrs {
            let set = self.image.xattrs(inode)?;
            let choice = &self.options.attributes;
            set.iter()
                .filter_map(|xattr| choice.xattr_of(xattr))
                .collect()
        } else {
            XattrSet::new()
        };
        let is_link = inode.kind == FileKind::Symlink;
        let target = if is_link {
            self.image.read_link(inode)?
        } else {
            Vec::new()
        };
        let map = SparseMap::read(self.image, inode, &self.options.temp_dir)?;
        Ok((xattrs, target, map))
    }

    /// The first name of the inode, if that was written already.
    fn first_name(&mut self, name: &[u8], inode: &Inode) -> Option<Box<[u8]>> {
        if inode.kind == FileKind::Directory || inode.nlink < 2 {
            return None;
        }
        let Some((first, remaining_count)) = self.first_names.get_mut(&inode.ino) else {
            self.first_names
                .insert(inode.ino, (name.into(), inode.nlink - 1));
            return None;
        };
        *remaining_count = remaining_count.saturating_sub(1);
        if *remaining_count > 0 {
            return Some(first.clone());
        }
        self.first_names.remove(&inode.ino).map(|(first, _)| first)
    }

    /// Writes the data of a file. An outer error is one of the stream. An inner error is one of
    /// reading: zeros stand in the place of the data from there on.
    fn write_data(&mut self, inode: &Inode, map: &SparseMap) -> Result<Result<()>> {
        let start = self.output.written_len();
        let (output, mut written) = (&mut self.output, Ok(()));
        let read = each_piece(self.image, inode, &mut |piece| {
            written = output.write(piece);
            match &written {
                Ok(()) => Ok(()),
                Err(_) => Err(Error::invalid("the stream ends here")),
            }
        });
        written?;
        let Err(error) = read else { return Ok(Ok(())) };
        let done_len = self.output.written_len() - start;
        let mut remaining_len = map.data_len.saturating_sub(done_len);
        let zeros = [0; TAR_BLOCK_LEN];
        while remaining_len > 0 {
            let len = remaining_len.min(TAR_BLOCK_LEN as u64);
            self.output
                .write(zeros.get(..len as usize).unwrap_or_default())?;
            remaining_len -= len;
        }
        self.first_names.remove(&inode.ino);
        Ok(Err(error.context(format!(
            "zeros stand in the stream for the data from byte {done_len} on"
        ))))
    }
}

/// Reads the data runs of a file in pieces.
fn each_piece(
    image: &Image,
    inode: &Inode,
    visit: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    if inode.kind != FileKind::Regular {
        return Ok(());
    }
    let mut read_run = |run: Run| {
        let end = run.offset + run.len;
        let mut offset = run.offset;
        while offset < end {
            let len = usize::try_from((end - offset).min(READ_LEN)).unwrap_or(usize::MAX);
            let piece = image.read(inode, offset, len)?;
            if piece.is_empty() {
                return Err(Error::invalid(format!("the content ends at byte {offset}")));
            }
            visit(&piece)?;
            offset += piece.len() as u64;
        }
        Ok(())
    };
    let mut result = Ok(());
    image.runs(inode, 0, &mut |run| {
        if !run.is_hole {
            result = read_run(run);
        }
        match result {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    result
}

fn entry_name(path: &[u8], kind: FileKind) -> Vec<u8> {
    match (path, kind) {
        (b"", _) => b"./".to_vec(),
        (path, FileKind::Directory) => [path, b"/"].concat(),
        (path, _) => path.to_vec(),
    }
}

fn entry_of<'a>(name: &'a [u8], inode: &Inode, xattrs: &'a XattrSet) -> Entry<'a> {
    let rdev = inode.attributes.rdev;
    Entry {
        path: name,
        type_flag: b'0',
        permissions: inode.attributes.permissions,
        uid: inode.attributes.uid,
        gid: inode.attributes.gid,
        size: 0,
        mtime: inode.times.mtime,
        atime: inode.times.atime,
        ctime: inode.times.ctime,
        link: &[],
        device: ((rdev >> 32) as u32, rdev as u32),
        xattrs,
        sparse_len: None,
    }
}
