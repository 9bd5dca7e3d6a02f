//! Lengths of inodes.

use super::contents::{Contents, Layout, Stored};
use super::shared::{SharedXattrs, check_value};
use super::tree::{each_dir_entry, open};
use weald_erofs::layout::{CompactInode, ExtendedInode};
use weald_erofs::writer::{
    DirLayout, DirShape, INDEX_HEADER_LEN, Shape, Tail, area_len, fits_compact, xattr_len,
};
use weald_format::{Error, FileKind, Result, Timestamp};
use weald_image::{Image, Inode, OpenedDirectory};

/// Bytes of xattrs that an inode counts: 16 bits of 4 bytes, and the header.
const XATTRS_LEN_MAX: u64 = 65534 * 4 + 12;

/// Data or index behind an inode.
#[derive(Debug, Clone, Copy)]
pub(super) enum Body {
    /// Nothing, or a device number.
    None,
    /// The target of a symlink.
    Target(u64),
    /// Entries of a directory.
    Directory(DirShape),
    /// A file that is not empty.
    File(Stored),
}

/// An inode with the lengths of its parts.
pub(super) struct Measured {
    pub is_compact: bool,
    pub body: Body,
    pub shape: Shape,
    /// Bytes of an index behind the shape, and what its start is a multiple of.
    index: Option<(u64, u64)>,
}

impl Measured {
    /// Measures `inode`, an entry of the directory `parent` or the root. `epoch` is the time of
    /// compact inodes.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the image; `Limit` of the format.
    pub fn new(
        image: &Image,
        contents: &Contents,
        shared: &SharedXattrs,
        (parent, inode): (Option<&OpenedDirectory>, &Inode),
        epoch: Timestamp,
    ) -> Result<Self> {
        let body = body_of(image, contents, parent, inode)?;
        let size = match body {
            Body::Directory(dir) => dir.size(),
            _ => inode.size.0,
        };
        if u32::try_from(inode.nlink).is_err() {
            return Err(Error::limit(format!("{} names of a file", inode.nlink)));
        }
        let attributes = &inode.attributes;
        let is_compact = inode.times.mtime == epoch
            && fits_compact(inode.nlink, attributes.uid, attributes.gid, size);
        let tail = match body {
            Body::Target(len) => Tail::Target(len),
            Body::Directory(dir) if dir.tail_len > 0 => Tail::Bytes(dir.tail_len),
            Body::File(Stored {
                layout: Layout::Plain(_),
                extra_len,
                ..
            }) if extra_len > 0 => Tail::Bytes(extra_len.into()),
            _ => Tail::None,
        };
        let index = match body {
            Body::File(stored) => match stored.layout {
                Layout::Plain(_) => None,
                Layout::Chunks(_) => Some((u64::from(stored.extra_len), 4)),
                Layout::Compressed(_) => Some((INDEX_HEADER_LEN + u64::from(stored.extra_len), 8)),
            },
            _ => None,
        };
        Ok(Self {
            is_compact,
            body,
            shape: Shape {
                inode_len: if is_compact {
                    size_of::<CompactInode>() as u64
                } else {
                    size_of::<ExtendedInode>() as u64
                },
                xattr_len: xattrs_len(image, shared, inode)?,
                tail,
            },
            index,
        })
    }

    /// The end of the inode and all that lies behind it, if it begins at `start`.
    pub fn end(&self, start: u64) -> u64 {
        let end = start + self.shape.len();
        match self.index {
            Some((len, unit)) => end.next_multiple_of(unit) + len,
            None => end,
        }
    }
}

fn body_of(
    image: &Image,
    contents: &Contents,
    parent: Option<&OpenedDirectory>,
    inode: &Inode,
) -> Result<Body> {
    Ok(match inode.kind {
        FileKind::Directory => Body::Directory(dir_shape(image, &open(image, parent, inode.ino)?)?),
        FileKind::Symlink => Body::Target(inode.size.0),
        FileKind::Regular => contents.of(inode)?.map_or(Body::None, Body::File),
        _ => Body::None,
    })
}

fn dir_shape(image: &Image, dir: &OpenedDirectory) -> Result<DirShape> {
    let mut layout = DirLayout::default();
    each_dir_entry(image, dir, &mut |entry| {
        layout.push(entry.name().len());
        Ok(())
    })?;
    Ok(layout.shape())
}

fn xattrs_len(image: &Image, shared: &SharedXattrs, inode: &Inode) -> Result<u64> {
    let ids = shared.of(inode);
    if !ids.is_empty() {
        return Ok(area_len(ids.len(), 0));
    }
    let mut local_len = 0;
    for xattr in image.xattrs(inode)?.iter() {
        check_value(xattr)?;
        local_len += xattr_len(&xattr.name, xattr.value.len());
    }
    match area_len(0, local_len) {
        len if len > XATTRS_LEN_MAX => Err(Error::limit(format!(
            "{len} bytes of xattrs, EROFS holds {XATTRS_LEN_MAX} for an inode"
        ))),
        len => Ok(len),
    }
}
