//! Options of a scan.

use crate::options::addition::Addition;
use crate::options::script::{Candidate, Script};
use crate::options::walk::{FollowLinks, MountPoints};
use weald_filter::Filter;
use weald_format::{
    ACL_ACCESS, Attributes, FileKind, Ids, Result, Timestamp, XattrSet, permissions_without_acl,
};

/// Options of a scan.
#[derive(Debug, Clone, Copy)]
pub struct ScanOptions<'a> {
    /// Threads, at least 1.
    pub threads: usize,
    /// Rules that exclude entries. Excluded directories are not entered.
    pub filter: &'a Filter,
    /// A script that decides about entries that the rules include.
    pub script: Option<&'a Script>,
    /// Inodes that are omitted silently, as (device, inode number); the device is major << 32 |
    /// minor.
    pub omitted_inodes: &'a [(u64, u64)],
    /// Entries that are laid over the tree, in order; rules and scripts do not apply to them.
    pub additions: &'a [Addition],
    /// What becomes of directories of other file systems.
    pub mount_points: MountPoints,
    /// Which symlinks become what they lead to.
    pub follow: FollowLinks,
    /// Makes a file of its own of each name of a file.
    pub splits_links: bool,
    /// Drops directories in which nothing but directories is left.
    pub prune_empty_dirs: bool,
    /// Keeps extended attributes.
    pub keep_xattrs: bool,
    /// Keeps atimes.
    pub keep_atime: bool,
    /// Keeps ctimes.
    pub keep_ctime: bool,
    /// Keeps btimes, if the file system has them.
    pub keep_btime: bool,
}

impl ScanOptions<'_> {
    /// Whether the script keeps an entry; true if no script filters. `path` is called only if a
    /// script needs the path.
    pub(super) fn is_kept(
        &self,
        path: impl FnOnce() -> Vec<u8>,
        kind: FileKind,
        size: u64,
        attributes: &Attributes,
        mtime: Timestamp,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<bool> {
        match self.script.filter(|script| script.filters()) {
            Some(script) => {
                let path = path();
                let candidate = Candidate::new(&path, kind, size, attributes, mtime);
                script.keeps(&candidate, is_cancelled)
            }
            None => Ok(true),
        }
    }

    /// Lets the script change an entry: its attributes and extended attributes. Returns whether its
    /// contents are not to be compressed.
    pub(super) fn change(
        &self,
        candidate: &Candidate<'_>,
        (attributes, xattrs): (&mut Attributes, &mut XattrSet),
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let Some(script) = self.script.filter(|script| script.changes()) else {
            return Ok(false);
        };
        let kept = self.keep_xattrs.then_some(&*xattrs);
        let change = script.change(candidate, kept, is_cancelled)?;
        if let Some(set) = change.xattrs {
            if !set.iter().any(|xattr| xattr.name == ACL_ACCESS) {
                attributes.permissions =
                    permissions_without_acl(attributes.permissions, xattrs, Ids::Kept);
            }
            *xattrs = set;
        }
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        attributes.permissions = change.permissions.unwrap_or(attributes.permissions);
        Ok(change.is_plain)
    }

    pub(super) fn keeps_more_times(&self) -> bool {
        self.keep_atime || self.keep_ctime || self.keep_btime
    }
}
