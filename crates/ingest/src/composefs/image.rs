//! Composefs images: EROFS images whose files name objects in xattrs for overlayfs.

use super::objects::{DIGEST_LEN, Object, ObjectDir};
use crate::erofs::ErofsReader;
use crate::first_names::FirstNames;
use crate::member::{Member, MemberKind};
use crate::members::{Layout, Members, Tell};
use std::path::Path;
use weald_erofs::reader::Inode;
use weald_format::{Error, ErrorKind, FileKind, Result, Xattr, XattrSet};

const OVERLAY_PREFIX: &[u8] = b"trusted.overlay.";
const ESCAPED_OVERLAY: &[u8] = b"trusted.overlay.overlay.";
const METACOPY: &[u8] = b"trusted.overlay.metacopy";
const REDIRECT: &[u8] = b"trusted.overlay.redirect";
const ESCAPED_WHITEOUT: &[u8] = b"trusted.overlay.overlay.whiteout";
const WHITEOUTS: &[u8] = b"trusted.overlay.overlay.whiteouts";

/// Xattrs that the writer of an image adds to whiteouts and to directories with whiteouts.
const ADDED: [(&[u8], &[u8]); 6] = [
    (ESCAPED_WHITEOUT, b""),
    (b"user.overlay.whiteout", b""),
    (WHITEOUTS, b""),
    (b"user.overlay.whiteouts", b""),
    (b"trusted.overlay.overlay.opaque", b"x"),
    (b"user.overlay.opaque", b"x"),
];

/// Bytes of the xattr with a digest: version, length, flags, algorithm, digest.
const METACOPY_LEN: usize = 4 + DIGEST_LEN;

/// Reads a composefs image, depth first.
pub(super) struct ImageReader {
    erofs: ErofsReader,
    objects: ObjectDir,
    links: FirstNames<u64>,
    object: Option<Object>,
    /// Layout of a file without data.
    hole: Option<Layout>,
}

impl ImageReader {
    pub fn open(path: &Path, objects: ObjectDir, links_len: u64) -> Result<Self> {
        Ok(Self {
            erofs: ErofsReader::open(path, 0)?,
            objects,
            links: FirstNames::new(links_len),
            object: None,
            hole: None,
        })
    }

    fn take(&mut self, inode: &Inode, member: &mut Member) -> Result<bool> {
        self.object = None;
        self.hole = None;
        // A character device 0, 0 hides the name of a directory of objects.
        if inode.kind == FileKind::CharDevice && inode.rdev == 0 {
            return Ok(false);
        }
        if inode.kind != FileKind::Directory
            && let Some(first) = self
                .links
                .first_path(inode.nid, inode.nlink, self.erofs.path())?
        {
            self.erofs.put_path(member);
            member.kind = MemberKind::HardLink;
            member.target = first;
            return Ok(true);
        }
        self.erofs.take_inode(inode, member)?;
        let xattrs = std::mem::take(&mut member.xattrs);
        let value_of = |name: &[u8]| xattrs.iter().find(|xattr| xattr.name == name);
        let metacopy = value_of(METACOPY).map(|xattr| xattr.value.clone());
        let redirect = value_of(REDIRECT).map(|xattr| xattr.value.clone());
        let is_regular = inode.kind == FileKind::Regular;
        if is_regular && value_of(ESCAPED_WHITEOUT).is_some() {
            member.kind = MemberKind::Entry(FileKind::CharDevice);
            member.attributes.rdev = 0;
            self.erofs.forget_data();
        } else if is_regular && let Some(metacopy) = metacopy {
            self.begin_object(inode, &metacopy, redirect)?;
        }
        member.xattrs = restored(xattrs);
        Ok(true)
    }

    fn begin_object(
        &mut self,
        inode: &Inode,
        metacopy: &[u8],
        redirect: Option<Vec<u8>>,
    ) -> Result<()> {
        self.erofs.forget_data();
        let Some(redirect) = redirect else {
            self.hole = Some(Layout {
                len: inode.size,
                runs: Some(Vec::new()),
            });
            return Ok(());
        };
        let path = redirect.strip_prefix(b"/").unwrap_or(&redirect);
        let is_bad = |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.contains(&0);
        if path.split(|byte| *byte == b'/').any(is_bad) {
            return Err(Error::invalid(format!(
                "its data are at '{}', which is no path of an object",
                redirect.escape_ascii()
            )));
        }
        let digest = digest_of(metacopy)?;
        self.object = Some(self.objects.object(path, inode.size, digest)?);
        Ok(())
    }
}

/// The digest in the xattr of a file whose data are an object; an empty xattr has none.
fn digest_of(metacopy: &[u8]) -> Result<Option<[u8; DIGEST_LEN]>> {
    if metacopy.is_empty() {
        return Ok(None);
    }
    let digest = metacopy.last_chunk::<DIGEST_LEN>().copied();
    match metacopy {
        [0, _, 0, 1, ..] if metacopy.len() == METACOPY_LEN => Ok(digest),
        [0, _, 0, 2, ..] => Err(Error::new(
            ErrorKind::Unsupported,
            "its object is named by SHA-512, and weald reads images with SHA-256",
        )),
        _ => Err(Error::invalid(
            "its xattr trusted.overlay.metacopy has no digest of fs-verity",
        )),
    }
}

/// The xattrs that the tree had before composefs added and escaped some.
fn restored(xattrs: XattrSet) -> XattrSet {
    let has = |name: &[u8]| xattrs.iter().any(|xattr| xattr.name == name);
    let drops_added = has(ESCAPED_WHITEOUT) || has(WHITEOUTS);
    let is_added = |xattr: &Xattr| {
        drops_added
            && ADDED
                .iter()
                .any(|(name, value)| xattr.name == *name && xattr.value == *value)
    };
    let mut found = XattrSet::new();
    for mut xattr in xattrs.iter().filter(|xattr| !is_added(xattr)).cloned() {
        if let Some(rest) = xattr.name.strip_prefix(ESCAPED_OVERLAY) {
            xattr.name = [OVERLAY_PREFIX, rest].concat();
        } else if xattr.name.starts_with(OVERLAY_PREFIX) {
            continue;
        }
        found.push(xattr);
    }
    found.sort();
    found
}

impl Members for ImageReader {
    fn next(&mut self, member: &mut Member, _tell: &mut Tell<'_>) -> Result<bool> {
        while let Some(inode) = self.erofs.next_inode()? {
            let taken = self.take(&inode, member);
            if taken.map_err(|error| self.erofs.located(error))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_contents(&self) -> bool {
        true
    }

    fn layout(&self) -> Option<&Layout> {
        let object = self.object.as_ref().map(|object| &object.layout);
        object
            .or(self.hole.as_ref())
            .or_else(|| self.erofs.layout())
    }

    fn read_data(&mut self, out: &mut [u8]) -> Result<()> {
        match &mut self.object {
            Some(object) => {
                let read = object.read(out);
                read.map_err(|error| self.erofs.located(error))
            }
            None => self.erofs.read_data(out),
        }
    }
}
