//! An entry of a tree, with what stat(2) tells of it.

use pyo3::prelude::*;
use weald_format::{FileKind, Timestamp};
use weald_image::Inode;

const NANOSECONDS: i128 = 1_000_000_000;

/// An entry of the image that gave it out; no other image knows it.
#[pyclass(frozen, module = "weald._weald")]
pub struct Node {
    /// The entry itself.
    pub inode: Inode,
}

impl Node {
    /// Its type in the words of exceptions.
    pub fn kind(&self) -> FileKind {
        self.inode.kind
    }
}

#[pymethods]
impl Node {
    /// `st_mode`.
    #[getter]
    fn mode(&self) -> u32 {
        self.inode.kind.mode_bits() | u32::from(self.inode.attributes.permissions)
    }

    /// `st_ino`.
    #[getter]
    fn ino(&self) -> u64 {
        self.inode.ino.0
    }

    /// `st_nlink`.
    #[getter]
    fn nlink(&self) -> u64 {
        self.inode.nlink
    }

    /// `st_uid`.
    #[getter]
    fn uid(&self) -> u32 {
        self.inode.attributes.uid
    }

    /// `st_gid`.
    #[getter]
    fn gid(&self) -> u32 {
        self.inode.attributes.gid
    }

    /// Major and minor number of a device; zeros of anything else.
    #[getter]
    fn device(&self) -> (u64, u64) {
        let number = self.inode.attributes.rdev;
        (number >> 32, number & 0xffff_ffff)
    }

    /// `st_size`: of a directory, the number of its entries.
    #[getter]
    fn size(&self) -> u64 {
        self.inode.size.0
    }

    /// Nanoseconds since 1970 of the last change of the content, the last access, and the last
    /// change of the inode. The image need not have the second and the third.
    #[getter]
    fn times_ns(&self) -> (i128, Option<i128>, Option<i128>) {
        let times = &self.inode.times;
        (
            nanoseconds(times.mtime),
            times.atime.map(nanoseconds),
            times.ctime.map(nanoseconds),
        )
    }
}

fn nanoseconds(time: Timestamp) -> i128 {
    i128::from(time.seconds) * NANOSECONDS + i128::from(time.nanoseconds)
}
