//! The tree digest: identity of a tree, independent of codec, block size, order and sharing.
//!
//! A directory's digest is BLAKE3 over its entries in byte order of their names, each in the
//! encoding of [`LogicalEntry::hash_into`]. The tree digest is BLAKE3 over [`DOMAIN`], the digest
//! of the root holder (one entry with an empty name), and the hard links that cross directories, in
//! order of their numbers.

use crate::entries::EntryKind;
use crate::pages::Link;
use crate::{Attributes, Digest, Timestamp};

/// Prefix of the input of the tree digest.
pub const DOMAIN: &[u8; 16] = b"weald tree 1\0\0\0\0";
/// Prefix of the input of a sparse content's digest.
pub const SPARSE_DOMAIN: &[u8; 16] = b"weald sparse 1\0\0";

/// The fields of one entry that are part of the tree's identity. atime, ctime and btime are not.
#[derive(Debug, Clone, Copy)]
pub struct LogicalEntry<'a> {
    /// Name.
    pub name: &'a [u8],
    /// Kind.
    pub kind: EntryKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// mtime.
    pub mtime: Timestamp,
    /// Digest of a page with its xattr set alone; zeros if it has none.
    pub xattrs: Digest,
    /// Number of names of the inode if all are in this directory, else 1.
    pub nlink: u64,
    /// Number of entries back to the first name of the inode; 0 if this is the first or the only
    /// one.
    pub back: u64,
    /// Digest of a directory or content, target of a symlink, empty for all other kinds.
    pub body: &'a [u8],
}

impl LogicalEntry<'_> {
    /// Adds the entry to its directory's digest.
    pub fn hash_into(&self, hasher: &mut blake3::Hasher) {
        let mut bytes = Vec::with_capacity(128);
        self.append(&mut bytes);
        hasher.update(&bytes);
    }

    /// Appends the bytes that the entry adds to its directory's digest.
    pub fn append(&self, bytes: &mut Vec<u8>) {
        bytes.push(self.name.len() as u8);
        bytes.extend_from_slice(self.name);
        bytes.push(self.kind as u8);
        bytes.extend_from_slice(&self.attributes.permissions.to_le_bytes());
        bytes.extend_from_slice(&self.attributes.uid.to_le_bytes());
        bytes.extend_from_slice(&self.attributes.gid.to_le_bytes());
        bytes.extend_from_slice(&self.attributes.rdev.to_le_bytes());
        bytes.extend_from_slice(&self.mtime.seconds.to_le_bytes());
        bytes.extend_from_slice(&self.mtime.nanoseconds.to_le_bytes());
        bytes.extend_from_slice(&self.xattrs.0);
        bytes.extend_from_slice(&self.nlink.to_le_bytes());
        bytes.extend_from_slice(&self.back.to_le_bytes());
        bytes.extend_from_slice(&(self.body.len() as u16).to_le_bytes());
        bytes.extend_from_slice(self.body);
    }
}

/// Digests the content of a regular file. A dense file: over its bytes. A sparse file: over its
/// length, its data runs and the bytes in them.
pub struct ContentHasher(blake3::Hasher);

impl ContentHasher {
    /// Starts the digest of a file without holes.
    pub fn dense() -> Self {
        Self(blake3::Hasher::new())
    }

    /// Returns the digest of a file without holes whose bytes are `data`. Faster than
    /// [`ContentHasher::dense`] for short files.
    pub fn dense_digest(data: &[u8]) -> Digest {
        Digest(*blake3::hash(data).as_bytes())
    }

    /// Starts the digest of a file of `len` bytes with data only in `runs` (offset, length). The
    /// runs are in order and do not touch each other.
    pub fn sparse(len: u64, runs: &[(u64, u64)]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(SPARSE_DOMAIN);
        hasher.update(&len.to_le_bytes());
        hasher.update(&(runs.len() as u64).to_le_bytes());
        for (offset, run_len) in runs {
            hasher.update(&offset.to_le_bytes());
            hasher.update(&run_len.to_le_bytes());
        }
        Self(hasher)
    }

    /// Adds data bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all added bytes.
    pub fn finish(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

/// Computes the tree digest.
pub struct TreeHasher(blake3::Hasher);

impl TreeHasher {
    /// Starts from the digest of the root holder.
    pub fn new(holder: &Digest) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(DOMAIN);
        hasher.update(&holder.0);
        Self(hasher)
    }

    /// Adds one name of an inode whose names cross directories. Callers add them in order of
    /// `name_no`.
    pub fn add_link(&mut self, link: &Link) {
        for value in [link.name_no, link.first_no, link.nlink] {
            self.0.update(&value.to_le_bytes());
        }
    }

    /// Returns the tree digest.
    pub fn finish(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}
