//! Random trees on the host, and their dumps, read from the host without Weald.

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use weald_testkit::Rng;

/// Makes a random tree in the empty directory `root`.
pub fn make(root: &Path, rng: &mut Rng) {
    let mut maker = Maker {
        rng,
        dirs: vec![root.to_owned()],
        files: Vec::new(),
        epoch: 1_000_000_000,
        bodies: Vec::new(),
    };
    let count = match maker.rng.below(10) {
        0 => maker.rng.below(4),
        1 => 300 + maker.rng.below(700),
        _ => 5 + maker.rng.below(60),
    };
    for _ in 0..count {
        maker.add();
    }
    maker.finish();
}

struct Maker<'a> {
    rng: &'a mut Rng,
    dirs: Vec<PathBuf>,
    /// Entries that can have another name.
    files: Vec<PathBuf>,
    epoch: u64,
    bodies: Vec<Vec<u8>>,
}

impl Maker<'_> {
    fn name(&mut self, dir: &Path) -> PathBuf {
        loop {
            let bytes = match self.rng.below(12) {
                0 => {
                    let len = 1 + self.rng.below(255) as usize;
                    let bytes = self.rng.bytes(len);
                    let safe = |byte: u8| if matches!(byte, 0 | b'/') { b'x' } else { byte };
                    bytes.into_iter().map(safe).collect()
                }
                1 => vec![b'n'; 200 + self.rng.below(56) as usize],
                2 => format!("{:02x}", self.rng.below(256)).into_bytes(),
                3 => self
                    .rng
                    .pick(&[b".x".to_vec(), b"-".to_vec(), b"..-".to_vec()])
                    .clone(),
                4 => b"!\x01 =\\\n".to_vec(),
                _ => format!("entry{}", self.rng.below(100_000)).into_bytes(),
            };
            let path = dir.join(OsStr::from_bytes(&bytes));
            if bytes != b"." && bytes != b".." && path.symlink_metadata().is_err() {
                return path;
            }
        }
    }

    fn body(&mut self) -> Vec<u8> {
        if self.rng.one_in(3)
            && let Some(at) = self.bodies.len().checked_sub(1)
        {
            return self.bodies[self.rng.below(at as u64 + 1) as usize].clone();
        }
        let len = match self.rng.below(6) {
            0 => 0,
            1 => self.rng.below(64) + 1,
            2 => 63 + self.rng.below(4),
            3 => 4094 + self.rng.below(5),
            _ => self.rng.below(20_000),
        };
        let body = self.rng.bytes(len as usize);
        self.bodies.push(body.clone());
        body
    }

    fn add(&mut self) {
        let dir = self.dirs[self.rng.below(self.dirs.len() as u64) as usize].clone();
        let path = self.name(&dir);
        let kind = self.rng.below(20);
        match kind {
            0..4 => {
                fs::create_dir(&path).unwrap();
                self.dirs.push(path.clone());
            }
            4..10 => fs::write(&path, self.body()).unwrap(),
            10 => {
                let file = fs::File::create(&path).unwrap();
                file.set_len(self.rng.below(1 << 34)).unwrap();
            }
            11..14 => {
                let len = match self.rng.below(4) {
                    0 => 900 + self.rng.below(125),
                    _ => 1 + self.rng.below(100),
                };
                symlink(OsStr::from_bytes(&vec![b't'; len as usize]), &path).unwrap();
            }
            14 => self.node(&path, FileType::CharacterDevice, 0),
            15 => {
                let rdev = rustix::fs::makedev(
                    self.rng.below(4096) as u32,
                    1 + self.rng.below((1 << 20) - 1) as u32,
                );
                let kind = *self
                    .rng
                    .pick(&[FileType::CharacterDevice, FileType::BlockDevice]);
                self.node(&path, kind, rdev);
            }
            16 => self.node(&path, FileType::Fifo, 0),
            17 => self.node(&path, FileType::Socket, 0),
            _ => {
                let Some(at) = self.files.len().checked_sub(1) else {
                    return;
                };
                let target = &self.files[self.rng.below(at as u64 + 1) as usize];
                fs::hard_link(target, &path).unwrap();
                return;
            }
        }
        if kind >= 4 && kind != 14 {
            self.files.push(path.clone());
        }
        self.attributes(&path, kind);
    }

    fn node(&self, path: &Path, kind: FileType, rdev: u64) {
        rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), rdev).unwrap();
    }

    fn attributes(&mut self, path: &Path, kind: u64) {
        let ids = |rng: &mut Rng| match rng.below(4) {
            0 => 0,
            1 => 65_535 + rng.below(3) as u32,
            _ => rng.below(2000) as u32,
        };
        if self.rng.one_in(3) {
            let (uid, gid) = (ids(self.rng), ids(self.rng));
            let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(CWD, path, owner.0, owner.1, flags).unwrap();
        }
        let is_symlink = (11..14).contains(&kind);
        if !is_symlink && self.rng.one_in(2) {
            let mode = Mode::from_raw_mode(self.rng.below(0o10_000) as u32);
            rustix::fs::chmod(path, mode).unwrap();
        }
        let is_node = is_symlink || (14..18).contains(&kind);
        let count = if self.rng.one_in(3) {
            self.rng.below(5)
        } else {
            0
        };
        for _ in 0..count {
            self.xattr(path, is_node);
        }
    }

    fn xattr(&mut self, path: &Path, is_node: bool) {
        let names = [
            "trusted.overlay.origin",
            "trusted.overlay.redirect",
            "trusted.overlay.overlay.deep",
            "trusted.name",
            "security.label",
            "security.selinux",
            "user.comment",
            "user.overlay.other",
        ];
        let mut name = (*self.rng.pick(&names)).to_owned();
        if self.rng.one_in(3) {
            name = format!("trusted.{}", "x".repeat(1 + self.rng.below(200) as usize));
        }
        if is_node && name.starts_with("user.") {
            return;
        }
        let value = match self.rng.below(4) {
            0 => Vec::new(),
            1 => {
                let len = self.rng.below(300) as usize;
                self.rng.bytes(len)
            }
            2 => vec![b'v'; self.rng.below(3) as usize],
            _ => format!("value{}", self.rng.below(5)).into_bytes(),
        };
        rustix::fs::lsetxattr(path, name.as_str(), &value, XattrFlags::empty()).unwrap();
    }

    /// Sets times, from below.
    fn finish(&mut self) {
        let root = self.dirs[0].clone();
        if self.rng.one_in(2) {
            let label = b"system_u:object_r:root_t:s0";
            let name = "security.selinux";
            rustix::fs::lsetxattr(&root, name, label, XattrFlags::empty()).unwrap();
        }
        let is_same = self.rng.one_in(3);
        for path in below(&root).into_iter().rev().chain([root]) {
            let seconds = if is_same {
                self.epoch
            } else {
                self.epoch + self.rng.below(3)
            };
            let nsec = if self.rng.one_in(4) {
                self.rng.below(2)
            } else {
                0
            };
            let time = Timespec {
                tv_sec: seconds as i64,
                tv_nsec: nsec as i64,
            };
            let times = Timestamps {
                last_access: time,
                last_modification: time,
            };
            rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
    }
}

/// All paths below `dir`, each directory before its entries, names in byte order.
pub fn below(dir: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_vec())
        .collect();
    names.sort();
    let mut found = Vec::new();
    for name in names {
        let path = dir.join(OsStr::from_bytes(&name));
        let is_dir = path.symlink_metadata().unwrap().is_dir();
        found.push(path.clone());
        if is_dir {
            found.extend(below(&path));
        }
    }
    found
}

fn escape(bytes: &[u8], also_equals: bool) -> String {
    let mut text = String::new();
    for byte in bytes {
        let is_plain = (b'!'..=b'~').contains(byte) && *byte != b'\\';
        if is_plain && !(also_equals && *byte == b'=') {
            text.push(*byte as char)
        } else {
            write!(text, "\\x{byte:02x}").unwrap()
        }
    }
    text
}

fn field(bytes: &[u8]) -> String {
    match bytes {
        b"" => "-".to_owned(),
        b"-" => "\\x2d".to_owned(),
        bytes => escape(bytes, false),
    }
}

/// The dump of the tree at `root` in the format of composefs. `digest` gives the name of an object.
pub fn dump(root: &Path, digest: &dyn Fn(&[u8], u64) -> String) -> String {
    let mut text = String::new();
    let mut links: HashMap<u64, Vec<u8>> = HashMap::new();
    for path in [root.to_owned()].into_iter().chain(below(root)) {
        let inner = path.strip_prefix(root).unwrap().as_os_str().as_bytes();
        let name = [b"/", inner].concat();
        let meta = path.symlink_metadata().unwrap();
        write!(text, "{}", field(&name)).unwrap();
        if !meta.is_dir() && meta.nlink() > 1 {
            if let Some(first) = links.get(&meta.ino()) {
                writeln!(text, " 0 @120000 - - - - 0.0 {} - -", field(first)).unwrap();
                continue;
            }
            links.insert(meta.ino(), name);
        }
        put_inode(&mut text, &path, &meta, digest);
    }
    text
}

fn put_inode(
    text: &mut String,
    path: &Path,
    meta: &fs::Metadata,
    digest: &dyn Fn(&[u8], u64) -> String,
) {
    let (mut payload, mut content) = (Vec::new(), Vec::new());
    let mut object = "-".to_owned();
    let mut size = 0;
    if meta.is_file() {
        size = meta.len();
        if size > 64 {
            object = digest(&data(path), size);
            payload = format!("{}/{}", &object[..2], &object[2..]).into_bytes();
        } else {
            content = fs::read(path).unwrap();
        }
    } else if meta.is_symlink() {
        payload = fs::read_link(path).unwrap().into_os_string().into_vec();
        size = payload.len() as u64;
    }
    let kind = meta.file_type();
    let rdev = if kind.is_char_device() || kind.is_block_device() {
        meta.rdev()
    } else {
        0
    };
    let line = format!(
        " {size} {:o} {} {} {} {rdev} {}.{} {} {} {object}",
        meta.mode(),
        meta.nlink(),
        meta.uid(),
        meta.gid(),
        meta.mtime(),
        meta.mtime_nsec(),
        field(&payload),
        field(&content),
    );
    text.push_str(&line);
    for (name, value) in xattrs(path) {
        write!(text, " {}={}", escape(&name, true), escape(&value, true)).unwrap();
    }
    text.push('\n');
}

/// The bytes of a file; none if it is one hole.
pub fn data(path: &Path) -> Vec<u8> {
    let file = fs::File::open(path).unwrap();
    match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)) {
        Ok(_) => fs::read(path).unwrap(),
        Err(_) => Vec::new(),
    }
}

fn xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut list = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut list).unwrap();
    let mut found = Vec::new();
    for name in list[..len].split(|byte| *byte == 0) {
        if name.is_empty() {
            continue;
        }
        let mut value = vec![0; 1 << 16];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value).unwrap();
        value.truncate(len);
        found.push((name.to_vec(), value));
    }
    found.sort();
    found
}

/// Writes `bytes` to a new file in `dir`; returns its path.
pub fn file(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(bytes).unwrap();
    path
}
