//! Makes the entries of a leaf.

use super::{LeafDir, Maker, io, name_error, times};
use crate::content::Content;
use crate::tree::{Body, Entry, Leaf};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use weald_format::{Attributes, Error, Result, Timestamp};
use weald_sys::NodeKind;

/// Number of bytes written at once.
const WRITE_LEN: usize = 1 << 20;

impl Maker<'_> {
    pub(super) fn make_entry(
        &self,
        place: &LeafDir,
        leaf: &Leaf,
        entry: &Entry,
        buffer: &mut Vec<u8>,
    ) -> Result<u64> {
        let made = match &entry.body {
            Body::File(content) => self.make_file(place, leaf, entry, content, buffer),
            Body::Symlink(target) => {
                self.make_symlink(place, leaf, entry, &leaf.text[target.clone()])
            }
            Body::HardLink(_) | Body::HardLinkAcross(_) => Ok(0),
        };
        made.map_err(|e| e.context(leaf.name(entry).escape_ascii()))
    }

    /// Makes the hard links of a leaf; its other entries exist.
    pub(super) fn make_links(
        &self,
        place: &LeafDir,
        leaf: &Leaf,
        wait_for: &impl Fn(u64) -> Result<()>,
    ) -> Result<()> {
        let LeafDir {
            number,
            dir,
            parent,
            ..
        } = *place;
        let before = if self.forest.has_links_to_leaf_before(number) {
            wait_for(number - 1)?;
            let mut name = Vec::new();
            self.forest
                .dir_name(self.forest.depth(), number - 1, &mut name);
            Some(
                weald_sys::open_dir_at(parent, &name)
                    .map_err(io("the previous leaf cannot be opened"))?,
            )
        } else {
            None
        };
        let mut by_index: Vec<&Entry> = leaf.entries.iter().collect();
        by_index.sort_unstable_by_key(|e| e.index);
        for entry in &leaf.entries {
            let linked = match (&entry.body, &before) {
                (Body::HardLink(index), _) => {
                    let first = by_index[*index as usize];
                    weald_sys::link_at(dir, leaf.name(first), dir, leaf.name(entry))
                }
                (Body::HardLinkAcross(name), Some(before)) => {
                    weald_sys::link_at(before, &leaf.text[name.clone()], dir, leaf.name(entry))
                }
                _ => continue,
            };
            linked.map_err(|e| {
                Error::io("cannot be linked", e).context(leaf.name(entry).escape_ascii())
            })?;
        }
        Ok(())
    }

    fn make_file(
        &self,
        place: &LeafDir,
        leaf: &Leaf,
        entry: &Entry,
        content: &Content,
        buffer: &mut Vec<u8>,
    ) -> Result<u64> {
        let LeafDir {
            number,
            dir,
            name_dir,
            ..
        } = *place;
        let name = leaf.name(entry);
        let permissions = entry.attributes.permissions;
        let mut written = 0;
        if content.is_empty() {
            weald_sys::make_node_at(name_dir, name, NodeKind::EmptyFile, permissions)
                .map_err(name_error("cannot be made"))?;
        } else {
            let file = weald_sys::create_file_at(name_dir, name, permissions)
                .map_err(name_error("cannot be made"))?;
            written = write(&file, content, buffer)?;
        }
        self.set_attributes(dir, name, &entry.attributes)?;
        if entry.has_xattrs || entry.has_acl {
            for xattr in self.forest.xattrs(number, entry) {
                weald_sys::set_xattr_at(dir, name, &xattr.name, &xattr.value)
                    .map_err(io("cannot be given an extended attribute"))?;
            }
        }
        self.set_time(dir, name, entry.mtime)?;
        Ok(written)
    }

    fn make_symlink(
        &self,
        place: &LeafDir,
        leaf: &Leaf,
        entry: &Entry,
        target: &[u8],
    ) -> Result<u64> {
        let LeafDir { dir, name_dir, .. } = *place;
        let name = leaf.name(entry);
        weald_sys::make_symlink_at(target, name_dir, name).map_err(io("cannot be made"))?;
        if !self.forest.spec().owners.is_empty() {
            let Attributes { uid, gid, .. } = entry.attributes;
            weald_sys::chown_at(dir, name, uid, gid).map_err(io("cannot be given its owner"))?;
        }
        self.set_time(dir, name, entry.mtime)?;
        Ok(0)
    }

    fn set_attributes(&self, dir: &OwnedFd, name: &[u8], attributes: &Attributes) -> Result<()> {
        let has_owner = !self.forest.spec().owners.is_empty();
        if has_owner {
            weald_sys::chown_at(dir, name, attributes.uid, attributes.gid)
                .map_err(io("cannot be given its owner"))?;
        }
        // A change of the owner clears set-uid.
        let is_lost = has_owner && attributes.permissions & 0o6000 != 0;
        if attributes.permissions & self.options.umask != 0 || is_lost {
            weald_sys::chmod_at(dir, name, attributes.permissions)
                .map_err(io("cannot be given its mode"))?;
        }
        Ok(())
    }

    fn set_time(&self, dir: &OwnedFd, name: &[u8], mtime: Option<Timestamp>) -> Result<()> {
        let Some(mtime) = mtime else {
            return Ok(());
        };
        weald_sys::set_times_at(dir, name, times(mtime)).map_err(io("cannot be given its time"))
    }
}

fn write(file: &std::fs::File, content: &Content, buffer: &mut Vec<u8>) -> Result<u64> {
    for run in content.runs() {
        let mut at = run.start;
        while at < run.end {
            buffer.resize((run.end - at).min(WRITE_LEN as u64) as usize, 0);
            content.fill(at, buffer);
            file.write_all_at(buffer, at)
                .map_err(io("cannot be written"))?;
            at += buffer.len() as u64;
        }
    }
    file.set_len(content.len())
        .map_err(io("cannot be written"))?;
    Ok(content.data_len())
}
