//! Digests of directory entries, and the tree digest of an image with a times overlay, in which
//! every instance of a directory has its own mtimes.

use crate::image::Image;
use crate::tree::view::DirectoryView;
use std::ops::ControlFlow;
use weald_format::entries::{EntryBlock, EntryKind};
use weald_format::tree_digest::LogicalEntry;
use weald_format::{Attributes, Digest, Error, Result, Timestamp, XattrSetId, pages};

/// Adds an entry to the digest of its directory. `body` stands for what is below it: the digest of
/// its content or directory, or the target of a symlink.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn hash_entry(
    image: &Image,
    hasher: &mut blake3::Hasher,
    block: &EntryBlock,
    place: usize,
    mtime: Timestamp,
    body: &[u8],
) -> Result<()> {
    let attributes: Attributes = image.attributes(block.attributes(place))?;
    let xattrs = match block.xattrs(place).checked_sub(1) {
        None => Digest::default(),
        Some(id) => {
            let set = image.tree.xattrs(XattrSetId(id))?;
            Digest::of(&pages::encode_xattrs(std::slice::from_ref(&set)))
        }
    };
    let (nlink, back) = match block.nlink(place) {
        0 => (1, 0),
        nlink => (nlink, block.link_back(place)),
    };
    let name = block.name(place);
    let kind = block.kind(place);
    LogicalEntry {
        name,
        kind,
        attributes,
        mtime,
        xattrs,
        nlink,
        back,
        body,
    }
    .hash_into(hasher);
    Ok(())
}

struct Frame {
    view: DirectoryView,
    next: u64,
    hasher: blake3::Hasher,
}

impl Frame {
    fn new(view: DirectoryView) -> Self {
        Self {
            view,
            next: 0,
            hasher: blake3::Hasher::new(),
        }
    }
}

/// The digest of the directory that holds the root, computed for each instance.
///
/// # Errors
/// `Io`, `Corrupt`.
/// # Cost
/// O(names): the only check whose cost depends on the number of names.
pub fn holder_digest(image: &Image, contents: &[Option<Digest>]) -> Result<Digest> {
    let missing = || Error::corrupt("tree", 0, "F-10.2", "no such content");
    let mut stack = vec![Frame::new(image.tree.holder()?)];
    let mut finished: Option<Digest> = None;
    while let Some(frame) = stack.last_mut() {
        let view = frame.view;
        let start = view.template.entry_start;
        let end = start.saturating_add(view.template.entry_count);
        let mut enter = None;
        image.tree.each_entry(
            start.saturating_add(frame.next),
            end,
            &mut |entry, block, place| {
                let position = entry.saturating_sub(start);
                let no = view.base.saturating_add(position);
                let body = match block.kind(place) {
                    EntryKind::Directory => match finished.take() {
                        Some(digest) => digest.0.to_vec(),
                        None => {
                            enter = Some(position);
                            return Ok(ControlFlow::Break(()));
                        }
                    },
                    EntryKind::File => {
                        let digest = usize::try_from(block.body(place))
                            .ok()
                            .and_then(|id| contents.get(id));
                        digest.copied().flatten().ok_or_else(missing)?.0.to_vec()
                    }
                    EntryKind::Symlink => block.target(place).to_vec(),
                    _ => Vec::new(),
                };
                let mtime = image.tree.mtime(no, block, place)?;
                frame.next = position.saturating_add(1);
                hash_entry(image, &mut frame.hasher, block, place, mtime, &body)?;
                Ok(ControlFlow::Continue(()))
            },
        )?;
        match enter {
            Some(position) => stack.push(Frame::new(image.tree.child_view(&view, position)?)),
            None => finished = stack.pop().map(|f| Digest(*f.hasher.finalize().as_bytes())),
        }
    }
    finished.ok_or_else(|| Error::corrupt("tree", 0, "F-9.3", "no root"))
}
