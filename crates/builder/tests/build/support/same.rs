//! Compares an image with a source directory, through the reader.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weald_format::container::{Codec, RecordRef};
use weald_format::{FileKind, InodeNo};
use weald_image::{CheckOptions, Image, Inode, OpenOptions};
use weald_sys::Stat;

/// Opens an image after a full check without findings.
#[track_caller]
pub fn open_checked(path: &Path) -> Image {
    let image = Image::open_path(path, 0, &OpenOptions::default()).unwrap();
    let options = CheckOptions {
        digests_only: false,
        threads: 2,
        path_count_max: 100,
    };
    let mut findings = Vec::new();
    let report = image.check(&options, &mut |finding| {
        findings.push(format!("{finding:?}"))
    });
    assert!(
        report.is_clean() && findings.is_empty(),
        "check found {findings:#?}"
    );
    image
}

/// Names and inodes of a directory of the image.
pub fn list(image: &Image, dir: InodeNo) -> Vec<(Vec<u8>, Inode)> {
    let mut found = Vec::new();
    let visit = &mut |_, name: &[u8], inode: &Inode| {
        found.push((name.to_vec(), inode.clone()));
        ControlFlow::Continue(())
    };
    image.read_dir(dir, 0, visit).unwrap();
    found
}

/// The inode at a path of ordinary names.
pub fn at(image: &Image, path: &str) -> Option<Inode> {
    let mut inode = image.root().unwrap();
    for name in path.split('/').filter(|n| !n.is_empty()) {
        inode = image.lookup(inode.ino, name.as_bytes()).unwrap()?;
    }
    Some(inode)
}

/// The records of an image that have a history.
pub fn after_history(image: &Image) -> Vec<RecordRef> {
    let mut found = Vec::new();
    for section in &image.directory().sections {
        let mut visit = |record: &RecordRef, _| {
            found.extend((record.codec == Codec::ZstdHistory).then_some(*record));
            Ok(())
        };
        image
            .each_record(section.record_type, section.stream as u8, &mut visit)
            .unwrap();
    }
    found
}

/// The data of a file.
pub fn data(image: &Image, inode: &Inode) -> Vec<u8> {
    let mut bytes = vec![0; inode.size.0 as usize];
    assert_eq!(read(image, inode, 0, &mut bytes), bytes.len());
    bytes
}

fn read(image: &Image, inode: &Inode, offset: u64, buf: &mut [u8]) -> usize {
    let mut done = 0;
    while done < buf.len() {
        match image
            .read_at(inode, offset + done as u64, &mut buf[done..])
            .unwrap()
        {
            0 => break,
            len => done += len,
        }
    }
    done
}

struct Comparison<'a> {
    image: &'a Image,
    /// Source inode to image inode, and back.
    there: HashMap<(u64, u64), u64>,
    back: HashMap<u64, (u64, u64)>,
    /// Contents compared already.
    compared: HashMap<(u64, u64), ()>,
    differences: Vec<String>,
}

/// Checks that the image is clean and shows exactly what `source` holds: names, kinds, attributes,
/// mtimes, links, targets, xattrs, data and holes.
#[track_caller]
pub fn assert_same(image: &Path, source: &Path) {
    let differences = differences(&open_checked(image), source);
    assert!(differences.is_empty(), "{differences:#?}");
}

/// Differences between the image and `source`, one per line.
pub fn differences(image: &Image, source: &Path) -> Vec<String> {
    let mut comparison = Comparison {
        image,
        there: HashMap::new(),
        back: HashMap::new(),
        compared: HashMap::new(),
        differences: Vec::new(),
    };
    let dir = weald_sys::open_dir(source).unwrap();
    let root = image.root().unwrap();
    comparison.inode("", &root, &weald_sys::stat_fd(&dir).unwrap());
    comparison.xattrs("", &root, &dir, b"");
    comparison.dir("", &root, dir);
    comparison.differences
}

impl Comparison<'_> {
    fn differ(&mut self, path: &str, what: impl std::fmt::Debug) {
        self.differences.push(format!("{path}: {what:?}"));
    }

    /// Compares without recursion, because trees may be deep.
    fn dir(&mut self, path: &str, inode: &Inode, dir: OwnedFd) {
        let mut open = vec![(path.to_owned(), inode.clone(), dir)];
        while let Some((path, inode, dir)) = open.pop() {
            let entries = list(self.image, inode.ino);
            let mut names: Vec<Vec<u8>> = Vec::new();
            let mut buffer = weald_sys::DirBuffer::default();
            weald_sys::read_dir(&dir, &mut buffer, |entry| {
                names.push(entry.name.to_vec());
                Ok(())
            })
            .unwrap();
            names.sort();
            let shown: Vec<&[u8]> = entries.iter().map(|(name, _)| name.as_slice()).collect();
            if shown != names {
                let missing: Vec<_> = names
                    .iter()
                    .filter(|n| !shown.contains(&n.as_slice()))
                    .take(9)
                    .collect();
                let extra: Vec<_> = shown
                    .iter()
                    .filter(|n| !names.contains(&n.to_vec()))
                    .take(9)
                    .collect();
                self.differ(&path, format!("missing {missing:?}, extra {extra:?}"));
            }
            for (name, inode) in entries {
                let path = format!("{path}/{}", String::from_utf8_lossy(&name));
                let Ok(stat) = weald_sys::stat_at(&dir, &name) else {
                    continue;
                };
                self.inode(&path, &inode, &stat);
                self.xattrs(&path, &inode, &dir, &name);
                match inode.kind {
                    FileKind::Directory => {
                        if let Ok(child) = weald_sys::open_dir_at(&dir, &name) {
                            open.push((path, inode, child));
                        }
                    }
                    FileKind::Symlink => self.target(&path, &inode, &dir, &name),
                    FileKind::Regular => self.file(&path, &inode, &stat, &dir, &name),
                    _ => {}
                }
            }
        }
    }

    fn inode(&mut self, path: &str, inode: &Inode, stat: &Stat) {
        let a = &inode.attributes;
        let shown = (
            inode.kind,
            a.permissions,
            a.uid,
            a.gid,
            a.rdev,
            inode.times.mtime,
        );
        let there = (
            stat.kind,
            stat.permissions,
            stat.uid,
            stat.gid,
            stat.rdev,
            stat.mtime,
        );
        if shown != there {
            self.differ(path, (shown, there));
        }
        if inode.kind == FileKind::Directory {
            return;
        }
        let source = (stat.dev, stat.ino);
        let first = *self.there.entry(source).or_insert(inode.ino.0);
        let back = *self.back.entry(inode.ino.0).or_insert(source);
        if inode.nlink != u64::from(stat.nlink) || first != inode.ino.0 || back != source {
            self.differ(path, ("links", inode.nlink, stat.nlink, inode.ino));
        }
    }

    fn xattrs(&mut self, path: &str, inode: &Inode, dir: &OwnedFd, name: &[u8]) {
        let there = weald_sys::read_xattrs_at(dir, name).unwrap();
        if *self.image.xattrs(inode).unwrap() != there {
            self.differ(path, "xattrs");
        }
    }

    fn target(&mut self, path: &str, inode: &Inode, dir: &OwnedFd, name: &[u8]) {
        let mut target = Vec::new();
        weald_sys::read_link_at(dir, name, &mut target).unwrap();
        if self.image.read_link(inode).unwrap() != target || inode.size.0 != target.len() as u64 {
            self.differ(path, "target");
        }
    }

    fn file(&mut self, path: &str, inode: &Inode, stat: &Stat, dir: &OwnedFd, name: &[u8]) {
        if inode.size.0 != stat.size {
            self.differ(path, ("size", inode.size, stat.size));
            return;
        }
        if self.compared.insert((stat.dev, stat.ino), ()).is_some() {
            return;
        }
        let file = weald_sys::open_file_at(dir.as_fd(), name).unwrap();
        let there = weald_sys::data_runs(&file, stat.size).unwrap();
        let mut runs: Vec<Range<u64>> = Vec::new();
        let visit = &mut |run: weald_image::Run| {
            match runs.last_mut() {
                _ if run.is_hole => {}
                Some(last) if last.end == run.offset => last.end += run.len,
                _ => runs.push(run.offset..run.offset + run.len),
            }
            ControlFlow::Continue(())
        };
        self.image.runs(inode, 0, visit).unwrap();
        if runs != there {
            self.differ(path, ("runs", runs, &there));
        }
        there
            .iter()
            .for_each(|run| self.bytes(path, inode, &file, run.clone()));
    }

    fn bytes(&mut self, path: &str, inode: &Inode, file: &File, run: Range<u64>) {
        let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        let mut offset = run.start;
        while offset < run.end {
            let len = (run.end - offset).min(1 << 20) as usize;
            let read = read(self.image, inode, offset, &mut a[..len]);
            file.read_exact_at(&mut b[..len], offset).unwrap();
            if read != len || a[..len] != b[..len] {
                self.differ(path, ("data differs at or after", offset));
                return;
            }
            offset += len as u64;
        }
    }
}

/// Names in a directory of the host, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let text = |name: &OsStr| String::from_utf8_lossy(name.as_bytes()).into_owned();
    let mut names: Vec<_> = entries.map(|e| text(&e.unwrap().file_name())).collect();
    names.sort();
    names
}
