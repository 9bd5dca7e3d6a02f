//! Reading and checking whole images, shared by the tests of the reader and of the builder.
#![allow(dead_code)]

use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::{ByteLen, FileKind, InodeNo, Result, XattrSet};
use weald_image::{CheckOptions, CheckReport, Finding, Image, Inode, OpenOptions};

/// Opens an image with a small cache.
pub fn open(bytes: Vec<u8>) -> Result<Image> {
    let options = OpenOptions {
        cache_len: ByteLen(8 << 20),
        ..OpenOptions::default()
    };
    Image::open(Arc::new(bytes), &options)
}

/// Everything that an image has under one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub path: Vec<u8>,
    pub inode: Inode,
    pub data: Vec<u8>,
    pub runs: Vec<(u64, u64, bool)>,
    pub target: Vec<u8>,
    pub xattrs: XattrSet,
    pub fsverity: Option<[u8; 32]>,
}

/// Most bytes that are read of each file, because forged holes are endless.
const DATA_LEN_MAX: usize = 1 << 21;

/// Reads all names, attributes, targets, xattrs and bytes; looks up every name and number again.
///
/// # Errors
/// The first error; also an error if two lookups of the same thing disagree.
pub fn read_everything(image: &Image) -> Result<Vec<Shown>> {
    read_some(image, usize::MAX)
}

/// The same for at most `count_max` names, because forged trees are endless.
pub fn read_some(image: &Image, count_max: usize) -> Result<Vec<Shown>> {
    let mut all = Vec::new();
    let mut open = vec![(Vec::new(), image.root()?)];
    while let Some((path, inode)) = open.pop() {
        let shown = read_one(image, path.clone(), inode.clone())?;
        all.push(shown);
        if inode.kind != FileKind::Directory {
            continue;
        }
        let mut names: Vec<(Vec<u8>, Inode)> = Vec::new();
        image.read_dir(inode.ino, 0, &mut |_, name, inode| {
            names.push((name.to_vec(), inode.clone()));
            ControlFlow::Continue(())
        })?;
        for (name, child) in names {
            assert_eq!(
                image.lookup(inode.ino, &name)?.as_ref(),
                Some(&child),
                "{}",
                name.escape_ascii()
            );
            assert_eq!(image.inode(child.name_no)?, child);
            assert_eq!(image.parent(child.name_no)?, inode.ino);
            open.push(([&path[..], b"/", &name].concat(), child));
        }
        if all.len() >= count_max {
            break;
        }
    }
    Ok(all)
}

fn read_one(image: &Image, path: Vec<u8>, inode: Inode) -> Result<Shown> {
    let mut shown = Shown {
        path,
        data: Vec::new(),
        runs: Vec::new(),
        target: Vec::new(),
        xattrs: image.xattrs(&inode)?.to_vec(),
        fsverity: None,
        inode,
    };
    match shown.inode.kind {
        FileKind::Symlink => shown.target = image.read_link(&shown.inode)?,
        FileKind::Regular => {
            shown.data = image.read(&shown.inode, 0, DATA_LEN_MAX)?.to_vec();
            assert_eq!(
                shown.data.len() as u64,
                shown.inode.size.0.min(DATA_LEN_MAX as u64)
            );
            image.runs(&shown.inode, 0, &mut |run| {
                shown.runs.push((run.offset, run.len, run.is_hole));
                ControlFlow::Continue(())
            })?;
            shown.fsverity = image.kept_fsverity(&shown.inode)?;
        }
        _ => {}
    }
    Ok(shown)
}

/// Runs a complete check; returns its findings and its report.
pub fn check(image: &Image, digests_only: bool) -> (Vec<Finding>, CheckReport) {
    let options = CheckOptions {
        digests_only,
        threads: 2,
        path_count_max: 20,
    };
    let mut findings = Vec::new();
    let report = image.check(&options, &mut |finding| findings.push(finding));
    (findings, report)
}

/// The rules in the findings of a check.
pub fn rules(findings: &[Finding]) -> Vec<&'static str> {
    let rule = |f: &Finding| match f {
        Finding::Structure(error) => Some(error.place().map_or("?", |p| p.rule)),
        Finding::Path { .. } => None,
    };
    findings.iter().filter_map(rule).collect()
}

/// The paths in the findings of a check.
pub fn paths(findings: &[Finding]) -> Vec<String> {
    let path = |f: &Finding| match f {
        Finding::Structure(_) => None,
        Finding::Path { path, .. } => Some(String::from_utf8_lossy(path).into_owned()),
    };
    findings.iter().filter_map(path).collect()
}

/// The inode at `path`.
pub fn by_path(image: &Image, path: &str) -> Inode {
    let mut inode = image.root().unwrap();
    for name in path.split('/').filter(|n| !n.is_empty()) {
        inode = image.lookup(inode.ino, name.as_bytes()).unwrap().unwrap();
    }
    assert_ne!(inode.ino, InodeNo(0));
    inode
}
