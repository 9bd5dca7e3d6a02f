//! Operations that read a tree or that a read-only tree refuses, their results, and the comparison
//! of two results.

use super::tree::{Entries, Entry};
use rustix::fs::{
    Access, Advice, AtFlags, CWD, Gid, Mode, OFlags, RawDir, RenameFlags, SeekFrom, Stat, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::fs::File;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use weald_format::FileKind;
use weald_testkit::Rng;

/// Longest read, in bytes.
const READ_LEN_MAX: u64 = 300 << 10;

/// If only one side reports a hole, this many bytes of it are read; they must be zero.
const HOLE_LOOKED_AT: usize = 256 << 10;

/// An operation on a path below the root of a tree.
#[derive(Debug, Clone)]
pub struct Operation {
    path: PathBuf,
    what: What,
}

#[derive(Debug, Clone)]
enum What {
    Stat {
        follows: bool,
    },
    ReadLink,
    List,
    /// Lists with a small buffer, and seeks back once to the offset after an earlier entry.
    ListInTurns {
        buffer_len: usize,
        back_to: u64,
    },
    Open {
        flags: OFlags,
    },
    Read {
        offset: u64,
        len: usize,
        drops_cache: bool,
    },
    Map {
        offset: u64,
        len: usize,
    },
    Seek {
        offset: u64,
        for_hole: bool,
    },
    GetXattr {
        name: String,
        buf_len: usize,
    },
    ListXattrs {
        buf_len: usize,
    },
    Access {
        mode: Access,
    },
    /// Opens a directory, follows `..` this many times, and looks at the result.
    Climb {
        step_count: u64,
    },
    Change {
        change: Change,
    },
}

/// Changes, which a read-only tree refuses.
#[derive(Debug, Clone, Copy)]
enum Change {
    Unlink,
    RemoveDir,
    MakeDir,
    MakeDirBelow,
    Rename,
    Link,
    Symlink,
    Chmod,
    Chown,
    Touch,
    SetXattr,
    RemoveXattr,
    Create,
}

const CHANGES: [Change; 13] = [
    Change::Unlink,
    Change::RemoveDir,
    Change::MakeDir,
    Change::MakeDirBelow,
    Change::Rename,
    Change::Link,
    Change::Symlink,
    Change::Chmod,
    Change::Chown,
    Change::Touch,
    Change::SetXattr,
    Change::RemoveXattr,
    Change::Create,
];

/// Result of an operation.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Said(String),
    Bytes(Vec<u8>),
    /// Offset returned by lseek(2), the length of the file, and the file, to read the range that
    /// was skipped.
    Place {
        at: u64,
        asked: u64,
        len: u64,
        path: PathBuf,
    },
}

impl Operation {
    /// A random operation on a random path.
    pub fn draw(rng: &mut Rng, entries: &Entries) -> Self {
        let on = |entry: &Entry, what| Self {
            path: entry.path.clone(),
            what,
        };
        match rng.below(20) {
            0..=2 => Self {
                path: odd_path(rng, entries),
                what: What::Stat {
                    follows: rng.one_in(2),
                },
            },
            3 => Self {
                path: odd_path(rng, entries),
                what: What::ReadLink,
            },
            4 => on(entries.any(rng), What::ReadLink),
            5 => on(entries.dir(rng), What::List),
            6 => on(
                entries.dir(rng),
                What::ListInTurns {
                    buffer_len: 512 + rng.below(4000) as usize,
                    back_to: rng.next_u64(),
                },
            ),
            7..=10 => read(rng, entries),
            11 => {
                let file = entries.file(rng);
                let (offset, len) = range(rng, file.len);
                on(file, What::Map { offset, len })
            }
            12 | 13 => {
                let file = entries.file(rng);
                on(
                    file,
                    What::Seek {
                        offset: range(rng, file.len).0,
                        for_hole: rng.one_in(2),
                    },
                )
            }
            14 => on(
                entries.any(rng),
                What::GetXattr {
                    name: xattr_name(rng),
                    buf_len: buf_len(rng),
                },
            ),
            15 => on(
                entries.any(rng),
                What::ListXattrs {
                    buf_len: buf_len(rng),
                },
            ),
            16 => {
                let modes = [
                    Access::EXISTS,
                    Access::READ_OK,
                    Access::WRITE_OK,
                    Access::EXEC_OK,
                    Access::READ_OK | Access::EXEC_OK,
                ];
                Self {
                    path: odd_path(rng, entries),
                    what: What::Access {
                        mode: *rng.pick(&modes),
                    },
                }
            }
            17 => on(
                entries.dir(rng),
                What::Climb {
                    step_count: 1 + rng.below(3),
                },
            ),
            18 => change(rng, entries),
            _ => open(rng, entries),
        }
    }
}

fn read(rng: &mut Rng, entries: &Entries) -> Operation {
    let file = entries.file(rng);
    let (offset, len) = range(rng, file.len);
    Operation {
        path: file.path.clone(),
        what: What::Read {
            offset,
            len,
            drops_cache: rng.one_in(4),
        },
    }
}

/// An offset in a file of `len` bytes or shortly after its end, and a number of bytes.
fn range(rng: &mut Rng, len: u64) -> (u64, usize) {
    let offset = match rng.below(8) {
        0 => 0,
        1 => len.saturating_sub(rng.below(5000)),
        2 => len + rng.below(5000),
        _ => rng.below(len + 1),
    };
    let most = *rng.pick(&[16, 4096, 70_000, READ_LEN_MAX]);
    (offset, rng.below(most) as usize)
}

fn xattr_name(rng: &mut Rng) -> String {
    let names = [
        "user.comment",
        "user.absent",
        "user.same",
        "user.dir",
        "user.large",
        "user.linked",
        "user.number-7",
        "trusted.thing",
        "trusted.special",
        "trusted.link",
        "security.weald",
        "security.capability",
        "system.posix_acl_access",
        "system.posix_acl_default",
    ];
    (*rng.pick(&names)).to_owned()
}

fn buf_len(rng: &mut Rng) -> usize {
    *rng.pick(&[0, 1, 20, 65536, 65536, 65536])
}

/// A path below the root: usually of an entry, otherwise an oddly written or missing one.
fn odd_path(rng: &mut Rng, entries: &Entries) -> PathBuf {
    let entry = entries.any(rng);
    let after = |tail: &str| {
        let mut path = entry.path.clone().into_os_string();
        path.push(tail);
        PathBuf::from(path)
    };
    match rng.below(20) {
        0 => after("/"),
        1 => after("/."),
        2 => after("/.."),
        3 => after("/../"),
        4 => after("//"),
        5 => after("/absent"),
        6 => after("x"),
        7 => after(&format!("/{}", "n".repeat(254 + rng.below(4) as usize))),
        8 => after(&format!("/../{}", "n".repeat(255))),
        9 => PathBuf::from("./".repeat(1 + rng.below(2100) as usize)).join(&entry.path),
        10 => Path::new(".").join(&entry.path).join(".."),
        _ => entry.path.clone(),
    }
}

/// Flags of open(2) that change nothing or are refused. Devices are not opened, FIFOs not for
/// writing.
fn open(rng: &mut Rng, entries: &Entries) -> Operation {
    let entry = entries.any(rng);
    let reading = [
        OFlags::RDONLY,
        OFlags::RDONLY | OFlags::DIRECTORY,
        OFlags::RDONLY | OFlags::NOFOLLOW,
        OFlags::PATH,
        OFlags::PATH | OFlags::NOFOLLOW,
        OFlags::PATH | OFlags::DIRECTORY,
        OFlags::RDONLY | OFlags::NOATIME,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW,
    ];
    let writing = [
        OFlags::WRONLY,
        OFlags::RDWR,
        OFlags::WRONLY | OFlags::TRUNC,
        OFlags::WRONLY | OFlags::APPEND,
        OFlags::RDONLY | OFlags::CREATE,
        OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
        OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
        OFlags::WRONLY | OFlags::DIRECTORY,
        OFlags::RDWR | OFlags::TMPFILE,
    ];
    let is_file_or_dir = matches!(entry.kind, FileKind::Regular | FileKind::Directory);
    let flags = match entry.kind {
        FileKind::CharDevice | FileKind::BlockDevice => OFlags::PATH,
        _ if is_file_or_dir && rng.one_in(2) => *rng.pick(&writing),
        _ => *rng.pick(&reading),
    };
    Operation {
        path: entry.path.clone(),
        what: What::Open { flags },
    }
}

/// A change of an entry that is not a symlink, so that nothing outside can be changed.
fn change(rng: &mut Rng, entries: &Entries) -> Operation {
    let entry = loop {
        let entry = entries.any(rng);
        if entry.kind != FileKind::Symlink {
            break entry;
        }
    };
    let mut path = entry.path.clone();
    if rng.one_in(3) {
        path = path.join("absent");
    }
    Operation {
        path,
        what: What::Change {
            change: *rng.pick(&CHANGES),
        },
    }
}

/// Performs the operation below `root`.
pub fn perform(operation: &Operation, root: &Path) -> Result<Answer, Errno> {
    let path = root.join(&operation.path);
    match &operation.what {
        What::Stat { follows } => {
            let flags = if *follows {
                AtFlags::empty()
            } else {
                AtFlags::SYMLINK_NOFOLLOW
            };
            rustix::fs::statat(CWD, &path, flags)
                .map(|stat| Answer::Said(comparable_attributes(&stat)))
        }
        What::ReadLink => Ok(Answer::Bytes(
            rustix::fs::readlink(&path, Vec::new())?.into_bytes(),
        )),
        What::List => list(&path, 64 << 10, None),
        What::ListInTurns {
            buffer_len,
            back_to,
        } => list(&path, *buffer_len, Some(*back_to)),
        What::Open { flags } => opened(&path, *flags),
        What::Read {
            offset,
            len,
            drops_cache,
        } => read_file(&path, *offset, *len, *drops_cache),
        What::Map { offset, len } => mapped(&path, *offset, *len),
        What::Seek { offset, for_hole } => sought(&path, *offset, *for_hole),
        What::GetXattr { name, buf_len } => {
            let mut value = vec![0; *buf_len];
            let len = rustix::fs::lgetxattr(&path, name.as_str(), &mut value[..])?;
            // With an empty buffer, the call returns the length.
            value.truncate(len);
            Ok(if *buf_len == 0 {
                Answer::Said(len.to_string())
            } else {
                Answer::Bytes(value)
            })
        }
        What::ListXattrs { buf_len } => xattr_names(&path, *buf_len),
        What::Access { mode } => rustix::fs::access(&path, *mode).map(|()| done()),
        What::Climb { step_count } => {
            // Stay inside the tree: its surroundings differ between the two sides.
            let depth = operation.path.components().count() as u64;
            climb(&path, depth.min(*step_count))
        }
        What::Change { change } => changed(&path, *change).map(|()| done()),
    }
}

fn done() -> Answer {
    Answer::Said("done".to_owned())
}

/// The attributes of an inode that must be equal. Sizes and link counts of directories depend on
/// the file system.
fn comparable_attributes(stat: &Stat) -> String {
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    let mut text = format!(
        "mode {:o} owner {}:{} mtime {}.{:09} rdev {}",
        stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime, stat.st_mtime_nsec, stat.st_rdev
    );
    if !kind.is_dir() {
        text += &format!(" size {} links {}", stat.st_size, stat.st_nlink);
    }
    text
}

fn open_plain(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// The entries from the current offset of `dir` on: name, kind, and the offset after each.
fn entries_of(dir: &OwnedFd, buffer_len: usize) -> Result<Vec<(Vec<u8>, u64)>, Errno> {
    let mut buffer = vec![MaybeUninit::uninit(); buffer_len];
    let (mut reader, mut all) = (RawDir::new(dir, &mut buffer), Vec::new());
    while let Some(entry) = reader.next() {
        let entry = entry?;
        let line = format!(
            "{} {:?}\n",
            entry.file_name().to_bytes().escape_ascii(),
            entry.file_type()
        );
        all.push((line.into_bytes(), entry.next_entry_cookie()));
    }
    Ok(all)
}

fn list(path: &Path, buffer_len: usize, back_to: Option<u64>) -> Result<Answer, Errno> {
    let dir = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut all = entries_of(&dir, buffer_len)?;
    if let Some(random) = back_to {
        let kept = random as usize % all.len();
        let cookie = all[kept].1;
        rustix::fs::seek(&dir, SeekFrom::Start(cookie))?;
        all.truncate(kept + 1);
        all.extend(entries_of(&dir, buffer_len)?);
    }
    let mut lines: Vec<Vec<u8>> = all.into_iter().map(|(line, _)| line).collect();
    lines.sort();
    Ok(Answer::Said(
        String::from_utf8(lines.concat()).expect("ASCII"),
    ))
}

fn opened(path: &Path, flags: OFlags) -> Result<Answer, Errno> {
    let fd = rustix::fs::open(path, flags | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::RUSR)?;
    Ok(Answer::Said(comparable_attributes(&rustix::fs::fstat(
        &fd,
    )?)))
}

fn read_file(path: &Path, offset: u64, len: usize, drops_cache: bool) -> Result<Answer, Errno> {
    let file = open_plain(path)?;
    if drops_cache {
        rustix::fs::fadvise(&file, 0, None::<NonZeroU64>, Advice::DontNeed)?;
    }
    read_all_at(&File::from(file), offset, len).map(Answer::Bytes)
}

/// Reads up to `len` bytes at `offset`; fewer only at the end of the file.
fn read_all_at(file: &File, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let (mut bytes, mut filled) = (vec![0; len], 0);
    while filled < len {
        let got = file.read_at(&mut bytes[filled..], offset + filled as u64);
        match got.map_err(|error| Errno::from_io_error(&error).expect("an errno"))? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn mapped(path: &Path, offset: u64, len: usize) -> Result<Answer, Errno> {
    let file = File::from(open_plain(path)?);
    let end = rustix::fs::fstat(&file)?.st_size as u64;
    // Pages after the end cannot be accessed.
    let range = offset.min(end)..(offset + len as u64).min(end);
    let bytes = weald_sys::read_mapped(&file, range);
    Ok(Answer::Bytes(bytes.map_err(|error| {
        Errno::from_io_error(&error).expect("an errno")
    })?))
}

fn sought(path: &Path, offset: u64, for_hole: bool) -> Result<Answer, Errno> {
    let file = open_plain(path)?;
    let len = rustix::fs::fstat(&file)?.st_size as u64;
    let from = if for_hole {
        SeekFrom::Hole(offset)
    } else {
        SeekFrom::Data(offset)
    };
    let at = match rustix::fs::seek(&file, from) {
        // No data until the end; a side that reports fewer holes does not see this.
        Err(Errno::NXIO) if offset < len && !for_hole => len,
        other => other?,
    };
    Ok(Answer::Place {
        at,
        asked: offset,
        len,
        path: path.to_owned(),
    })
}

fn xattr_names(path: &Path, buf_len: usize) -> Result<Answer, Errno> {
    let mut list = vec![0; buf_len];
    let len = rustix::fs::llistxattr(path, &mut list[..])?;
    if buf_len == 0 {
        return Ok(Answer::Said(len.to_string()));
    }
    let mut names: Vec<&[u8]> = list[..len].split(|byte| *byte == 0).collect();
    names.sort();
    Ok(Answer::Bytes(names.join(&b'\n')))
}

fn climb(path: &Path, step_count: u64) -> Result<Answer, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut dir = rustix::fs::open(path, flags, Mode::empty())?;
    let mut said = String::new();
    for _ in 0..step_count {
        dir = rustix::fs::openat(&dir, "..", flags, Mode::empty())?;
        said += &comparable_attributes(&rustix::fs::fstat(&dir)?);
    }
    let mut names: Vec<_> = entries_of(&dir, 64 << 10)?
        .into_iter()
        .map(|(line, _)| line)
        .collect();
    names.sort();
    Ok(Answer::Said(
        said + &String::from_utf8(names.concat()).expect("ASCII"),
    ))
}

fn changed(path: &Path, change: Change) -> Result<(), Errno> {
    let mode = Mode::RWXU;
    let beside = path.with_extension("new");
    match change {
        Change::Unlink => rustix::fs::unlink(path),
        Change::RemoveDir => rustix::fs::rmdir(path),
        Change::MakeDir => rustix::fs::mkdir(path, mode),
        Change::MakeDirBelow => rustix::fs::mkdir(path.join("new"), mode),
        Change::Rename => rustix::fs::renameat_with(CWD, path, CWD, beside, RenameFlags::NOREPLACE),
        Change::Link => rustix::fs::link(path, beside),
        Change::Symlink => rustix::fs::symlink("target", beside),
        Change::Chmod => rustix::fs::chmod(path, mode),
        Change::Chown => rustix::fs::chownat(
            CWD,
            path,
            Some(Uid::from_raw(5)),
            Some(Gid::from_raw(5)),
            AtFlags::SYMLINK_NOFOLLOW,
        ),
        Change::Touch => {
            let time = Timespec {
                tv_sec: 1,
                tv_nsec: 1,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        }
        Change::SetXattr => {
            rustix::fs::lsetxattr(path, "trusted.new", b"value", XattrFlags::empty())
        }
        Change::RemoveXattr => rustix::fs::lremovexattr(path, "trusted.special"),
        Change::Create => rustix::fs::open(
            beside,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC,
            mode,
        )
        .map(drop),
    }
}

/// Describes the difference between two results of one operation.
pub fn differ(ours: &Result<Answer, Errno>, theirs: &Result<Answer, Errno>) -> Option<String> {
    if ours == theirs {
        return None;
    }
    match (ours, theirs) {
        (Ok(Answer::Bytes(a)), Ok(Answer::Bytes(b))) => {
            let at = a.iter().zip(b).position(|(a, b)| a != b);
            Some(format!(
                "{} bytes, expected {}; the first different one is {at:?}",
                a.len(),
                b.len()
            ))
        }
        (
            Ok(Answer::Place {
                at: a, len, path, ..
            }),
            Ok(Answer::Place {
                at: b,
                path: other,
                len: other_len,
                asked,
            }),
        ) => {
            // A side may report fewer holes. If only one side reports a hole, both must have zeros
            // there.
            let range = *a.min(b)..*a.max(b);
            let looked_at = ((range.end - range.start) as usize).min(HOLE_LOOKED_AT);
            let is_zero = [path, other].iter().all(|path| {
                let read = open_plain(path)
                    .and_then(|file| read_all_at(&File::from(file), range.start, looked_at));
                read.is_ok_and(|bytes| {
                    bytes.len() == looked_at && bytes.iter().all(|byte| *byte == 0)
                })
            });
            let is_same = is_zero && len == other_len && a >= asked;
            (!is_same).then(|| format!("led to {a}, expected {b}, of {len} and {other_len} bytes"))
        }
        _ => Some(format!("{ours:?}, expected {theirs:?}")),
    }
}
