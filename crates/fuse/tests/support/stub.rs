//! A tree that computes its entries. It measures the cost of a mount without the cost of reading an
//! image.
//!
//! The root holds a few special inodes, then `dir_count` directories `d0000000` …, each with
//! `file_count` files `f0000000` …. The file with index `i` has `i % (longest + 1)` bytes, where
//! longest is 4999 by default. Each byte is the low byte of its offset plus the inode number.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::{
    Attributes, ByteLen, ContentId, EntryIndex, Error, FileKind, InodeNo, ROOT_INODE, Result,
    TemplateId, Times, Timestamp, Xattr, XattrSet, XattrSetId,
};
use weald_fuse::{Capacity, Features, Tree, VisitEntry};
use weald_image::{Inode, Run};

/// First inode number of the computed directories.
const FOREST_BASE: u64 = 1000;
/// First inode number of the special inodes.
const SPECIAL_BASE: u64 = 2;
/// Size of `sparse`: data, hole, data, hole.
pub const SPARSE_LEN: u64 = 1 << 30;
/// The data runs of `sparse`: (offset, length).
pub const SPARSE_DATA: [(u64, u64); 2] = [(0, 65536), (1 << 29, 4096)];
/// Size of `big`.
pub const BIG_LEN: u64 = 1 << 30;
/// Birth time of `hello`; the other inodes have none.
pub const BORN: Timestamp = Timestamp {
    seconds: 1_234_567_890,
    nanoseconds: 987_654_321,
};
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// Computed tree.
#[derive(Debug, Clone)]
pub struct Stub {
    /// Number of computed directories.
    pub dir_count: u64,
    /// Number of files in each directory.
    pub file_count: u64,
    /// Bytes of the longest computed file.
    pub file_len_max: u64,
    /// Features that the tree reports.
    pub features: Features,
}

/// Name, inode number, kind, permissions, size.
type Special = (&'static str, u64, FileKind, u16, u64);

/// Sorted by name. `twin` is a second name of `hello`; reads of `damaged` fail; `acl` grants uid
/// 1234 read access.
const SPECIALS: &[Special] = &[
    ("acl", 2, FileKind::Regular, 0o640, 5),
    ("big", 3, FileKind::Regular, 0o644, BIG_LEN),
    ("capable", 4, FileKind::Regular, 0o755, 5),
    ("closed", 5, FileKind::Regular, 0o600, 5),
    ("damaged", 6, FileKind::Regular, 0o644, 1 << 20),
    ("device", 7, FileKind::CharDevice, 0o666, 0),
    ("fifo", 8, FileKind::Fifo, 0o644, 0),
    ("hello", 9, FileKind::Regular, 0o644, 13),
    ("link", 10, FileKind::Symlink, 0o777, 5),
    ("sparse", 11, FileKind::Regular, 0o644, SPARSE_LEN),
    ("tagged", 12, FileKind::Regular, 0o644, 5),
    ("twin", 9, FileKind::Regular, 0o644, 13),
];

impl Stub {
    /// A tree of `dir_count` directories with `file_count` files each, and with all features.
    pub fn new(dir_count: u64, file_count: u64) -> Self {
        let features = Features {
            has_xattrs: true,
            has_acls: true,
            has_holes: true,
            has_btimes: false,
            is_plain: true,
        };
        Self {
            dir_count,
            file_count,
            file_len_max: 4999,
            features,
        }
    }

    fn stride(&self) -> u64 {
        self.file_count + 1
    }

    fn dir_ino(&self, index: u64) -> u64 {
        FOREST_BASE + index * self.stride()
    }

    /// Decodes a computed inode number: directory index, and file index plus one (0 for the
    /// directory itself).
    fn place(&self, ino: u64) -> Option<(u64, u64)> {
        let at = ino.checked_sub(FOREST_BASE)?;
        let (dir, slot) = (at / self.stride(), at % self.stride());
        (dir < self.dir_count).then_some((dir, slot))
    }

    fn dir(&self, ino: u64, entry_count: u64, child_dir_count: u64) -> Inode {
        let mut inode = plain(ino, FileKind::Directory, 0o755, entry_count);
        inode.nlink = 2 + child_dir_count;
        inode.template = Some(TemplateId(ino));
        inode
    }

    fn root(&self) -> Inode {
        self.dir(1, SPECIALS.len() as u64 + self.dir_count, self.dir_count)
    }

    fn computed(&self, dir: u64, slot: u64) -> Inode {
        let ino = self.dir_ino(dir) + slot;
        match slot.checked_sub(1) {
            None => self.dir(ino, self.file_count, 0),
            Some(index) => plain(
                ino,
                FileKind::Regular,
                0o644,
                index % (self.file_len_max + 1),
            ),
        }
    }
}

fn plain(ino: u64, kind: FileKind, permissions: u16, size: u64) -> Inode {
    let mtime = Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 123_456_789,
    };
    Inode {
        ino: InodeNo(ino),
        name_no: InodeNo(ino),
        kind,
        attributes: Attributes {
            permissions,
            uid: 0,
            gid: 0,
            rdev: 0,
        },
        nlink: 1,
        size: ByteLen(size),
        times: Times {
            mtime,
            atime: None,
            ctime: None,
            btime: None,
        },
        xattr_set: None,
        content: (kind == FileKind::Regular && size > 0).then_some(ContentId(ino)),
        template: None,
        entry: EntryIndex(ino),
    }
}

fn special(of: &Special) -> Inode {
    let &(name, ino, kind, permissions, size) = of;
    let mut inode = plain(ino, kind, permissions, size);
    match name {
        "acl" | "capable" | "tagged" => inode.xattr_set = Some(XattrSetId(ino)),
        "device" => inode.attributes.rdev = 1 << 32 | 3,
        "hello" | "twin" => {
            inode.nlink = 2;
            inode.times.btime = Some(BORN);
        }
        _ => {}
    }
    inode
}

fn xattr(name: &str, value: &[u8]) -> Xattr {
    Xattr {
        name: name.into(),
        value: value.into(),
    }
}

/// `user::rw-, user:1234:r--, group::r--, mask::r--, other::---` as the kernel stores it.
fn acl_value() -> Vec<u8> {
    let undefined = u32::MAX;
    let entries = [
        (1u16, 6u16, undefined),
        (2, 4, 1234),
        (4, 4, undefined),
        (16, 4, undefined),
        (32, 0, undefined),
    ];
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

/// `cap_net_bind_service=ep`, revision 2.
fn capability_value() -> Vec<u8> {
    [0x0200_0001u32, 1 << 10, 0, 0, 0]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

fn dir_name(index: u64) -> String {
    format!("d{index:07}")
}

fn file_name(index: u64) -> String {
    format!("f{index:07}")
}

fn index_of(name: &[u8], prefix: u8, count: u64) -> Option<u64> {
    let digits = name.strip_prefix(&[prefix])?;
    let index = std::str::from_utf8(digits)
        .ok()
        .filter(|d| d.len() == 7)?
        .parse()
        .ok()?;
    (index < count).then_some(index)
}

impl Tree for Stub {
    type Chunk = Cow<'static, [u8]>;

    fn features(&self) -> Features {
        self.features
    }

    fn capacity(&self) -> Capacity {
        Capacity {
            content_len: 4096 * 12345,
            name_count: 1 + SPECIALS.len() as u64 + self.dir_count * self.stride(),
        }
    }

    fn inode(&self, ino: InodeNo) -> Result<Inode> {
        if ino == ROOT_INODE {
            return Ok(self.root());
        }
        if let Some(found) = SPECIALS.iter().find(|of| of.1 == ino.0) {
            return Ok(special(found));
        }
        let (dir, slot) = self.place(ino.0).ok_or_else(|| Error::not_found("inode"))?;
        Ok(self.computed(dir, slot))
    }

    fn parent(&self, ino: InodeNo) -> Result<InodeNo> {
        match self.place(ino.0) {
            Some((dir, slot)) if slot > 0 => Ok(InodeNo(self.dir_ino(dir))),
            _ => Ok(ROOT_INODE),
        }
    }

    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<Inode>> {
        if dir == ROOT_INODE {
            let found = SPECIALS
                .iter()
                .find(|of| of.0.as_bytes() == name)
                .map(special);
            return Ok(found.or_else(|| {
                index_of(name, b'd', self.dir_count).map(|index| self.computed(index, 0))
            }));
        }
        match self.place(dir.0) {
            Some((dir, 0)) => Ok(
                index_of(name, b'f', self.file_count).map(|index| self.computed(dir, index + 1))
            ),
            _ => Err(Error::invalid("not a directory")),
        }
    }

    fn read_dir(&self, dir: InodeNo, start: u64, visit: &mut VisitEntry<'_>) -> Result<()> {
        if dir == ROOT_INODE {
            for index in start..SPECIALS.len() as u64 + self.dir_count {
                let flow = match SPECIALS.get(index as usize) {
                    Some(of) => visit(index, of.0.as_bytes(), &special(of)),
                    None => {
                        let at = index - SPECIALS.len() as u64;
                        visit(index, dir_name(at).as_bytes(), &self.computed(at, 0))
                    }
                };
                if flow.is_break() {
                    return Ok(());
                }
            }
            return Ok(());
        }
        let Some((at, 0)) = self.place(dir.0) else {
            return Err(Error::invalid("not a directory"));
        };
        for index in start..self.file_count {
            if visit(
                index,
                file_name(index).as_bytes(),
                &self.computed(at, index + 1),
            )
            .is_break()
            {
                break;
            }
        }
        Ok(())
    }

    fn read_link(&self, _: &Inode) -> Result<Vec<u8>> {
        Ok(b"hello".to_vec())
    }

    fn xattrs(&self, inode: &Inode) -> Result<Arc<XattrSet>> {
        Ok(Arc::new(match inode.ino.0 {
            2 => vec![xattr("system.posix_acl_access", &acl_value())],
            4 => vec![xattr("security.capability", &capability_value())],
            12 => vec![
                xattr("trusted.secret", b"root only"),
                xattr("user.big", &[7; 2000]),
                xattr("user.empty", b""),
                xattr("user.text", b"value"),
            ],
            _ => vec![],
        }))
    }

    fn read(&self, inode: &Inode, offset: u64, len: usize) -> Result<Vec<Self::Chunk>> {
        let len = inode.size.0.saturating_sub(offset).min(len as u64) as usize;
        let bytes: Result<Self::Chunk> = match inode.ino.0 {
            3 | 11 => Ok(Cow::Borrowed(&ZEROS[..len])),
            6 if offset + len as u64 > 1 << 19 => Err(Error::corrupt(
                "block",
                4096,
                "F-0",
                "expected digest a, found b",
            )),
            9 => Ok(Cow::Borrowed(&b"Hello, Weald\n"[offset as usize..][..len])),
            ino => Ok((offset..).take(len).map(|at| (at + ino) as u8).collect()),
        };
        Ok(vec![bytes?])
    }

    fn runs(
        &self,
        inode: &Inode,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        let size = inode.size.0;
        let data: &[(u64, u64)] = if inode.ino.0 == 11 {
            &SPARSE_DATA
        } else {
            &[(0, size)]
        };
        let mut at = 0;
        for &(start, len) in data {
            let hole = Run {
                offset: at,
                len: start - at,
                is_hole: true,
            };
            let run = Run {
                offset: start,
                len,
                is_hole: false,
            };
            at = start + len;
            for run in [hole, run] {
                if run.len > 0 && run.offset + run.len > offset && visit(run).is_break() {
                    return Ok(());
                }
            }
        }
        if at < size {
            let _ = visit(Run {
                offset: at,
                len: size - at,
                is_hole: true,
            });
        }
        Ok(())
    }
}

const _: () = assert!(SPECIAL_BASE == 2 && SPECIALS.len() < FOREST_BASE as usize);
