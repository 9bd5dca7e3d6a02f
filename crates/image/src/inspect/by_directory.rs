//! Where the stored bytes of blocks go, by directory and file.

use super::block_charges::BlockCharges;
use crate::image::Image;
use weald_format::entries::EntryKind;
use weald_format::pages::{Source, Template};
use weald_format::{ContentId, Error, ErrorKind, Result};

/// How much of a tree [`Image::stored_by_directory`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeDetail {
    /// Entries with fewer stored bytes are counted in [`StoredNode::others`].
    pub stored_len_min: u64,
    /// Depth below the root at which entries are counted in [`StoredNode::others`], too.
    pub depth_max: usize,
}

/// A directory or a file, and what it stores; all lengths are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredNode {
    /// Its name; empty for the root.
    pub name: Vec<u8>,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// What it and everything below it store.
    pub sums: StoredSums,
    /// Its entries with many stored bytes, the largest first.
    pub children: Vec<StoredNode>,
    /// All other entries.
    pub others: StoredSums,
}

/// Sums over entries; all lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredSums {
    /// Names: the entry itself, and all below it.
    pub name_count: u64,
    /// Lengths of the files of these names, as a walk adds them up.
    pub file_len: u64,
    /// Their share of the stored bytes of blocks. A content belongs to its first name in a walk
    /// that visits the files of a directory before its sub-directories; a block that holds several
    /// contents is divided among them.
    pub stored_len: u64,
}

impl StoredSums {
    fn add(&mut self, other: &Self) {
        self.name_count = self.name_count.saturating_add(other.name_count);
        self.file_len = self.file_len.saturating_add(other.file_len);
        self.stored_len = self.stored_len.saturating_add(other.stored_len);
    }
}

/// The tree of an image with its stored bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTree {
    /// The root directory.
    pub root: StoredNode,
    /// Stored bytes of blocks that no file of this generation uses.
    pub unused_len: u64,
}

impl Image {
    /// The stored bytes of blocks by directory and file. The bytes of the root and `unused_len` add
    /// up to those of all blocks; blocks of base images count nowhere.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `Limit` for more than 2^24 blocks, or if there is not enough memory.
    /// # Cost
    /// Reads the metadata once, directories that are stored once only once, and no data. Memory: 40
    /// bytes for each block, 2 for each content, 16 for each distinct directory, and the names of
    /// the directories beside the path to the one that is read.
    pub fn stored_by_directory(&self, detail: TreeDetail) -> Result<StoredTree> {
        let mut blocks = BlockCharges::of(self)?;
        let is_used = self.used_contents()?;
        for (id, _) in is_used.iter().enumerate().filter(|(_, used)| **used) {
            self.each_range(ContentId(id as u64), &mut |stream, address, len| {
                blocks.refer(stream, address, len);
            })?;
        }
        let unused_len = blocks.unreferenced_len();
        let mut walk = Walk {
            image: self,
            detail,
            blocks,
            is_unseen: is_used,
            file_lens: file_lens(self.tree.template_count().saturating_add(1))?,
            frames: Vec::new(),
        };
        let root = self.root()?.template.map(|id| id.0);
        let root = root.ok_or_else(|| Error::corrupt("template", 0, "F-9.4", "no root"))?;
        let root = walk.run(root)?;
        Ok(StoredTree { root, unused_len })
    }

    /// Visits the ranges of streams in which a content lies.
    fn each_range(&self, id: ContentId, visit: &mut dyn FnMut(u8, u64, u64)) -> Result<()> {
        self.each_extent_of(id, &mut |extent| {
            if let Source::Stream { stream, address } = extent.source {
                visit(stream, address, extent.len);
            }
            Ok(())
        })
    }
}

/// A directory on the path of the walk.
struct Frame {
    node: StoredNode,
    template_id: u64,
    /// Sub-directories that are not visited yet, the next one last.
    below: Vec<(Vec<u8>, u64)>,
}

struct Walk<'a> {
    image: &'a Image,
    detail: TreeDetail,
    blocks: BlockCharges,
    /// For each content, whether it is used and has met none of its names yet.
    is_unseen: Vec<bool>,
    /// File bytes below each template that was left.
    file_lens: Vec<Option<u64>>,
    frames: Vec<Frame>,
}

impl Walk<'_> {
    fn run(&mut self, root: u64) -> Result<StoredNode> {
        self.enter(Vec::new(), root)?;
        loop {
            let Some(frame) = self.frames.last_mut() else {
                return Ok(StoredNode::default());
            };
            let above_id = frame.template_id;
            if let Some((name, id)) = frame.below.pop() {
                self.visit(name, id, above_id)?;
                continue;
            }
            let Some(mut frame) = self.frames.pop() else {
                return Ok(StoredNode::default());
            };
            let place = self.file_lens.get_mut(frame.template_id as usize);
            if let Some(place) = place {
                *place = Some(frame.node.sums.file_len);
            }
            frame.node.finish();
            if self.frames.is_empty() {
                return Ok(frame.node);
            }
            self.leave(frame.node);
        }
    }

    /// Visits a sub-directory. If it is equal to one before, all its contents belong to that one.
    fn visit(&mut self, name: Vec<u8>, id: u64, above_id: u64) -> Result<()> {
        if id >= above_id {
            let what = format!("template {id} does not precede the one that holds it");
            return Err(Error::corrupt("template", 0, "F-9.4", what));
        }
        let known = self.file_lens.get(id as usize).copied().flatten();
        let Some(file_len) = known else {
            return self.enter(name, id);
        };
        let template = self.image.tree.template(id)?;
        self.leave(StoredNode {
            name,
            is_directory: true,
            sums: StoredSums {
                name_count: template.subtree_count.saturating_add(1),
                file_len,
                stored_len: 0,
            },
            ..StoredNode::default()
        });
        Ok(())
    }

    /// Begins a directory: adds its files, and notes its sub-directories.
    fn enter(&mut self, name: Vec<u8>, template_id: u64) -> Result<()> {
        let template = self.image.tree.template(template_id)?;
        let mut frame = Frame {
            node: StoredNode {
                name,
                is_directory: true,
                sums: StoredSums {
                    name_count: 1,
                    ..StoredSums::default()
                },
                ..StoredNode::default()
            },
            template_id,
            below: Vec::new(),
        };
        self.add_files(&template, &mut frame)?;
        frame.below.reverse();
        self.frames.push(frame);
        Ok(())
    }

    fn add_files(&mut self, template: &Template, frame: &mut Frame) -> Result<()> {
        let image = self.image;
        let is_deep = self.frames.len() >= self.detail.depth_max;
        image.each_entry_of(template, &mut |block, place| {
            let body = block.body(place);
            let mut sums = StoredSums {
                name_count: 1,
                ..StoredSums::default()
            };
            match block.kind(place) {
                EntryKind::Directory => {
                    frame.below.push((block.name(place).to_vec(), body));
                    return Ok(());
                }
                EntryKind::File => {
                    sums.file_len = image.content_len(ContentId(body))?;
                    sums.stored_len = self.charge(ContentId(body))?;
                }
                _ => {}
            }
            frame.node.sums.add(&sums);
            if is_deep || sums.stored_len < self.detail.stored_len_min {
                frame.node.others.add(&sums);
            } else {
                frame.node.children.push(StoredNode {
                    name: block.name(place).to_vec(),
                    sums,
                    ..StoredNode::default()
                });
            }
            Ok(())
        })
    }

    /// Adds a complete sub-directory to the directory that holds it.
    fn leave(&mut self, node: StoredNode) {
        let is_deep = self.frames.len() > self.detail.depth_max;
        let Some(above) = self.frames.last_mut() else {
            return;
        };
        above.node.sums.add(&node.sums);
        if is_deep || node.sums.stored_len < self.detail.stored_len_min {
            above.node.others.add(&node.sums);
        } else {
            above.node.children.push(node);
        }
    }

    /// Stored bytes of a content at its first name, with those of the contents from which recipes
    /// make it; 0 at its other names.
    fn charge(&mut self, id: ContentId) -> Result<u64> {
        let mut charged = 0u64;
        if !self.take(id) {
            return Ok(0);
        }
        let mut ids = vec![id];
        for input in self.image.recipe_inputs_of(id)? {
            if self.take(input) {
                ids.push(input);
            }
        }
        let blocks = &mut self.blocks;
        for id in ids {
            self.image.each_range(id, &mut |stream, address, len| {
                charged = charged.saturating_add(blocks.charge(stream, address, len));
            })?;
        }
        Ok(charged)
    }

    /// Whether this is the first name of a content.
    fn take(&mut self, id: ContentId) -> bool {
        let unseen = usize::try_from(id.0).ok();
        let unseen = unseen.and_then(|id| self.is_unseen.get_mut(id));
        unseen.is_some_and(std::mem::take)
    }
}

impl StoredNode {
    /// Sorts the entries of a complete directory.
    fn finish(&mut self) {
        self.children.sort_by(|a, b| {
            let by_len = b.sums.stored_len.cmp(&a.sums.stored_len);
            by_len.then_with(|| a.name.cmp(&b.name))
        });
    }
}

fn file_lens(count: u64) -> Result<Vec<Option<u64>>> {
    let mut lens = Vec::new();
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    lens.try_reserve_exact(count).map_err(|_| {
        let what = format!("not enough memory for {count} directories");
        Error::new(ErrorKind::Limit, what)
    })?;
    lens.resize(count, None);
    Ok(lens)
}
