//! One operation on any file system, and the comparison of two file systems.

use super::steps::{Op, content};
use crate::properties::QUOTA;
use rustix::io::Errno;
use std::collections::BTreeMap;
use weald_format::{FileKind, InodeFlags};
use weald_model::ModelFs;
use weald_vfs::{
    AllocateMode, FilePlace, Ino, Nanoseconds, NewInode, NewStat, Outcome, RenameMode, Stat,
    WritableFs, XattrMode,
};

/// The answer to an operation.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Count(u64),
    Stat(Box<Stat>),
    Bytes(Vec<u8>),
}

/// Attributes that two file systems must agree on; they may keep holes differently.
fn comparable(stat: Stat) -> Stat {
    Stat {
        allocated: 0,
        ..stat
    }
}

fn stat_answer(stat: Stat) -> Answer {
    Answer::Stat(Box::new(comparable(stat)))
}

const KINDS: [FileKind; 8] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Regular,
    FileKind::Symlink,
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Fifo,
    FileKind::CharDevice,
];

/// Finds what the numbers of an operation mean in a state of the model.
pub struct Resolver {
    dirs: Vec<Ino>,
    files: Vec<Ino>,
    all: Vec<Ino>,
    names: BTreeMap<Ino, Vec<Vec<u8>>>,
    /// Whether there are files without a name: a new quota does not count those.
    has_unnamed: bool,
}

impl Resolver {
    pub fn new(model: &ModelFs) -> Self {
        let all = model.inos();
        let kind = |ino: &Ino| model.stat(*ino).expect("an inode of the model").kind;
        let of = |wanted| {
            let found = all.iter().copied().filter(|ino| kind(ino) == wanted);
            found.collect::<Vec<_>>()
        };
        let dirs = of(FileKind::Directory);
        let names = dirs.iter().map(|dir| {
            let mut names = Vec::new();
            let listed = model.list(*dir, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            });
            listed.expect("a listing of the model");
            names.sort();
            (*dir, names)
        });
        let names = names.collect();
        let links = |ino: &Ino| model.stat(*ino).expect("an inode of the model").nlink;
        Self {
            has_unnamed: all.iter().any(|ino| links(ino) == 0),
            files: of(FileKind::Regular),
            dirs,
            names,
            all,
        }
    }

    fn dir(&self, no: u8) -> Ino {
        self.dirs[usize::from(no) % self.dirs.len()]
    }

    /// Mostly a regular file, but sometimes anything else.
    fn file(&self, no: u8) -> Ino {
        match no % 16 {
            15 => self.all[usize::from(no) % self.all.len()],
            _ if self.files.is_empty() => self.all[0],
            _ => self.files[usize::from(no) % self.files.len()],
        }
    }

    /// A name that need not exist.
    fn new_name(no: u8) -> Vec<u8> {
        match no % 32 {
            31 => vec![b'x'; 255],
            30 => vec![0xff, 0xfe, no],
            short => format!("n{}", short % 10).into_bytes(),
        }
    }

    /// Mostly a name that exists.
    fn name(&self, dir: Ino, no: u8) -> Vec<u8> {
        let names = &self.names[&dir];
        match no % 8 {
            7 => Self::new_name(no),
            _ if names.is_empty() => Self::new_name(no),
            _ => names[usize::from(no) % names.len()].clone(),
        }
    }

    /// Performs `op` on `fs`.
    pub fn perform(&self, fs: &dyn WritableFs, op: Op, now: Nanoseconds) -> Outcome<Answer> {
        match op {
            Op::Create { .. }
            | Op::CreateUnnamed { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::RemoveDir { .. }
            | Op::Rename { .. } => self.perform_on_names(fs, op, now),
            Op::SetStat { file, which, value } => {
                let file = self.file(file);
                let mut new = new_stat(which, value);
                if file == Ino::ROOT {
                    // Nothing would happen in the rest of the run.
                    new.flags = None;
                }
                fs.set_stat(file, &new, now).map(stat_answer)
            }
            Op::SetXattr { .. } | Op::RemoveXattr { .. } | Op::SetQuota { .. } => {
                self.perform_on_xattrs(fs, op, now)
            }
            _ => self.perform_on_files(fs, op, now),
        }
    }

    fn perform_on_names(&self, fs: &dyn WritableFs, op: Op, now: Nanoseconds) -> Outcome<Answer> {
        match op {
            Op::Create { dir, name, kind } => {
                let name = Self::new_name(name);
                let new = new_inode(KINDS[usize::from(kind) % KINDS.len()], kind, &name);
                fs.create(self.dir(dir), &name, &new, now).map(stat_answer)
            }
            Op::CreateUnnamed { dir } => {
                let new = new_inode(FileKind::Regular, dir, b"");
                fs.create_unnamed(self.dir(dir), &new, now).map(stat_answer)
            }
            Op::Link { file, dir, name } => {
                let name = Self::new_name(name);
                let linked = fs.link(self.file(file), self.dir(dir), &name, now);
                linked.map(stat_answer)
            }
            Op::Unlink { dir, name } => {
                let dir = self.dir(dir);
                let removed = fs.unlink(dir, &self.name(dir, name), now);
                removed.map(stat_answer)
            }
            Op::RemoveDir { dir, name } => {
                let dir = self.dir(dir);
                let removed = fs.rmdir(dir, &self.name(dir, name), now);
                removed.map(stat_answer)
            }
            Op::Rename { from, to, mode } => {
                let (from_dir, to_dir) = (self.dir(from.0), self.dir(to.0));
                let from_name = self.name(from_dir, from.1);
                let to_name = match to.1 % 2 {
                    0 => self.name(to_dir, to.1),
                    _ => Self::new_name(to.1),
                };
                let mode = match mode % 8 {
                    0 => RenameMode::KeepExisting,
                    1..3 => RenameMode::Exchange,
                    3 => RenameMode::LeaveWhiteout,
                    _ => RenameMode::Replace,
                };
                let replaced = fs.rename((from_dir, &from_name), (to_dir, &to_name), mode, now)?;
                Ok(replaced.map_or(Answer::Done, stat_answer))
            }
            _ => Ok(Answer::Done),
        }
    }

    fn perform_on_files(&self, fs: &dyn WritableFs, op: Op, now: Nanoseconds) -> Outcome<Answer> {
        match op {
            Op::Forget { file } => fs.forget(self.file(file)).map(|()| Answer::Done),
            Op::Write {
                file,
                offset,
                len,
                fill,
            } => {
                let bytes = fill.bytes(len as usize);
                let written = fs.write(self.file(file), offset, &bytes, now);
                written.map(|()| Answer::Done)
            }
            Op::Append {
                file,
                len,
                content: number,
            } => {
                let file = self.file(file);
                let at = fs.stat(file)?.size;
                let bytes = content(number, at, len as usize);
                fs.write(file, at, &bytes, now).map(|()| Answer::Done)
            }
            Op::SetSize { file, size } => {
                let new = NewStat {
                    size: Some(size),
                    ..NewStat::default()
                };
                fs.set_stat(self.file(file), &new, now).map(stat_answer)
            }
            Op::Allocate {
                file,
                mode,
                offset,
                len,
            } => {
                let done = fs.allocate(self.file(file), allocate_mode(mode), offset, len, now);
                done.map(|()| Answer::Done)
            }
            Op::Copy { from, to, len } => {
                let from = FilePlace::new(self.file(from.0), from.1);
                let to = FilePlace::new(self.file(to.0), to.1);
                fs.copy_range(from, to, len, now).map(Answer::Count)
            }
            Op::Read { file, offset, len } => {
                let mut bytes = Vec::new();
                fs.read(self.file(file), offset, len as usize, &mut bytes)?;
                Ok(Answer::Bytes(bytes))
            }
            // Holes may differ, but not whether there is data behind the last byte.
            Op::Seek { file, offset } => {
                let size = fs.stat(self.file(file))?.size;
                let sought = fs.seek(self.file(file), offset, true)?;
                Ok(Answer::Count((sought <= size).into()))
            }
            _ => Ok(Answer::Done),
        }
    }

    fn perform_on_xattrs(&self, fs: &dyn WritableFs, op: Op, now: Nanoseconds) -> Outcome<Answer> {
        let name = |no: u8| format!("user.a{}", no % 3).into_bytes();
        match op {
            Op::SetXattr {
                file,
                name: no,
                len,
                mode,
            } => {
                let mode = match mode % 4 {
                    0 => XattrMode::Create,
                    1 => XattrMode::Replace,
                    _ => XattrMode::Set,
                };
                let value = vec![no; len.into()];
                fs.set_xattr(self.file(file), &name(no), &value, mode, now)?;
            }
            Op::RemoveXattr { file, name: no } => {
                fs.remove_xattr(self.file(file), &name(no), now)?;
            }
            Op::SetQuota { .. } if self.has_unnamed => {}
            Op::SetQuota { limit: 0 } => fs.remove_xattr(Ino::ROOT, QUOTA, now)?,
            Op::SetQuota { limit } => {
                let value = (u64::from(limit) << 60).to_string();
                fs.set_xattr(Ino::ROOT, QUOTA, value.as_bytes(), XattrMode::Set, now)?;
            }
            _ => {}
        }
        Ok(Answer::Done)
    }
}

fn new_inode(kind: FileKind, number: u8, name: &[u8]) -> NewInode<'_> {
    NewInode {
        kind,
        permissions: 0o600 | u16::from(number & 0o77),
        uid: u32::from(number % 3),
        gid: u32::from(number % 5),
        rdev: if kind == FileKind::CharDevice { 259 } else { 0 },
        target: if kind == FileKind::Symlink { name } else { b"" },
        xattrs: if number.is_multiple_of(11) {
            &[(b"user.inherited", b"yes")]
        } else {
            &[]
        },
    }
}

fn new_stat(which: u8, value: u16) -> NewStat {
    let time = Some(i128::from(value) * 1_000_000_007 - 9_000_000_000);
    let mut new = NewStat::default();
    if which % 16 == 15 {
        // Half of the time the flags go.
        let bits = if value.is_multiple_of(2) {
            0
        } else {
            value >> 1
        };
        new.flags = Some(InodeFlags::from_bits(bits as u8));
        return new;
    }
    match which % 4 {
        0 => new.permissions = Some(value & 0o7777),
        1 => (new.uid, new.gid) = (Some(value.into()), Some(u32::from(value) + 1)),
        2 => new.atime = time,
        _ => new.mtime = time,
    }
    new
}

fn allocate_mode(no: u8) -> AllocateMode {
    match no % 8 {
        0..3 => AllocateMode::Zero { keeps_size: true },
        3 => AllocateMode::Zero { keeps_size: false },
        4 => AllocateMode::Collapse,
        5 => AllocateMode::Insert,
        _ => AllocateMode::PunchHole,
    }
}

/// The first thing in which a file system is not as it should be.
#[derive(Debug)]
pub enum Difference {
    /// It answers something else.
    Differs(String),
    /// It answers an error.
    Unreadable(String),
}

impl Difference {
    fn of(path: &str, what: &str) -> Self {
        Self::Differs(format!("{path}: {what}"))
    }
}

type Comparison = Result<(), Difference>;

fn read<T>(path: &str, what: &str, outcome: Outcome<T>) -> Result<T, Difference> {
    outcome.map_err(|failure| {
        let what = format!("{path}: {what}: {:?} {:?}", failure.errno, failure.cause);
        match failure.errno {
            Errno::IO | Errno::ROFS => Difference::Unreadable(what),
            _ => Difference::Differs(what),
        }
    })
}

/// Compares everything that can be reached from the root.
pub fn compare(fs: &dyn WritableFs, model: &ModelFs) -> Comparison {
    compare_inode(fs, model, Ino::ROOT, "/")
}

/// Compares also the files that have no name.
pub fn compare_with_unnamed(fs: &dyn WritableFs, model: &ModelFs) -> Comparison {
    compare(fs, model)?;
    for ino in model.inos() {
        let stat = model.stat(ino).expect("an inode of the model");
        if stat.nlink == 0 {
            compare_inode(fs, model, ino, &format!("#{}", ino.0))?;
        }
    }
    Ok(())
}

fn compare_inode(fs: &dyn WritableFs, model: &ModelFs, ino: Ino, path: &str) -> Comparison {
    let wanted = comparable(model.stat(ino).expect("an inode of the model"));
    let found = comparable(read(path, "stat", fs.stat(ino))?);
    if found != wanted {
        let what = format!("has {found:?}, not {wanted:?}");
        return Err(Difference::of(path, &what));
    }
    let wanted = model.xattr_names(ino).expect("attributes of the model");
    if read(path, "attributes", fs.xattr_names(ino))? != wanted {
        return Err(Difference::of(path, "other names of attributes"));
    }
    for name in wanted {
        let value = model.xattr(ino, &name).expect("an attribute of the model");
        if read(path, "attribute", fs.xattr(ino, &name))? != value {
            return Err(Difference::of(path, "another value of an attribute"));
        }
    }
    match found.kind {
        FileKind::Directory => compare_dir(fs, model, ino, path),
        FileKind::Symlink => {
            let wanted = model.read_link(ino).expect("a target");
            if read(path, "target", fs.read_link(ino))? == wanted {
                Ok(())
            } else {
                Err(Difference::of(path, "another target"))
            }
        }
        FileKind::Regular => compare_content(fs, model, ino, path),
        _ => Ok(()),
    }
}

fn names(fs: &dyn WritableFs, dir: Ino) -> Outcome<(BTreeMap<Vec<u8>, Stat>, bool)> {
    let (mut names, mut last, mut is_ordered) = (BTreeMap::new(), 2, true);
    fs.list(dir, 0, &mut |entry| {
        is_ordered &= entry.cookie > last;
        last = entry.cookie;
        let is_new = names.insert(entry.name.to_vec(), comparable(*entry.stat));
        is_ordered &= is_new.is_none();
        true
    })?;
    Ok((names, is_ordered))
}

fn compare_dir(fs: &dyn WritableFs, model: &ModelFs, dir: Ino, path: &str) -> Comparison {
    let (wanted, _) = names(model, dir).expect("a listing of the model");
    let (found, is_ordered) = read(path, "listing", names(fs, dir))?;
    if !is_ordered {
        return Err(Difference::of(path, "cookies that do not grow"));
    }
    if found != wanted {
        let what = format!("lists {found:?}, not {wanted:?}");
        return Err(Difference::of(path, &what));
    }
    let parent = model.parent(dir).expect("a parent");
    if wanted.is_empty() && model.stat(dir).is_ok_and(|stat| stat.nlink == 0) {
        return Ok(());
    }
    if read(path, "parent", fs.parent(dir))? != parent {
        return Err(Difference::of(path, "another parent"));
    }
    for (name, stat) in wanted {
        let path = format!("{path}{}/", String::from_utf8_lossy(&name));
        let found = read(&path, "lookup", fs.lookup(dir, &name))?;
        if comparable(found) != stat {
            return Err(Difference::of(&path, "lookup finds another inode"));
        }
        compare_inode(fs, model, stat.ino, &path)?;
    }
    Ok(())
}

/// Compares the ranges that either side calls data.
fn compare_content(fs: &dyn WritableFs, model: &ModelFs, ino: Ino, path: &str) -> Comparison {
    for (of, is_model) in [(fs, false), (model as &dyn WritableFs, true)] {
        let mut at = 0;
        loop {
            let start = match of.seek(ino, at, false) {
                Err(failure) if failure.errno == Errno::NXIO => break,
                sought => read(path, "seek", sought)?,
            };
            let end = read(path, "seek", of.seek(ino, start, true))?;
            if end <= start {
                return Err(Difference::of(path, "a hole before its data"));
            }
            compare_range(fs, model, ino, (start, end), path)?;
            at = end;
        }
        if is_model {
            break;
        }
    }
    Ok(())
}

fn compare_range(
    fs: &dyn WritableFs,
    model: &ModelFs,
    ino: Ino,
    (start, end): (u64, u64),
    path: &str,
) -> Comparison {
    let len = (end - start) as usize;
    let (mut found, mut wanted) = (Vec::new(), Vec::new());
    read(path, "content", fs.read(ino, start, len, &mut found))?;
    model
        .read(ino, start, len, &mut wanted)
        .expect("content of the model");
    if found == wanted {
        return Ok(());
    }
    let first = found
        .iter()
        .zip(&wanted)
        .take_while(|(a, b)| a == b)
        .count();
    let what = format!("other content from byte {}", start + first as u64);
    Err(Difference::of(path, &what))
}
