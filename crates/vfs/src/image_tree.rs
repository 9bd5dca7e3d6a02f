//! An image as one side of a comparison.

use crate::diff::{Child, Facts, FileReader, LinkKey, Tree};
use crate::walk::LazyDir;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use weald_format::{Result, XattrSet};
use weald_image::{Image, Inode};

/// Entries that are read from a directory at a time.
const BATCH_COUNT: usize = 128;

/// An image, or a directory of one, as a [`Tree`].
pub struct ImageTree<'a> {
    image: &'a Image,
    root: Inode,
}

impl<'a> ImageTree<'a> {
    /// The whole image.
    ///
    /// # Errors
    /// If its root cannot be read.
    pub fn new(image: &'a Image) -> Result<Self> {
        Ok(Self::at(image, image.root()?))
    }

    /// The directory `root` of the image, and what is below it.
    pub fn at(image: &'a Image, root: Inode) -> Self {
        Self { image, root }
    }
}

/// A directory of an image that is being listed.
pub struct ImageDir {
    dir: LazyDir,
    next_index: u64,
    batch: VecDeque<Child<Inode>>,
    is_at_end: bool,
}

impl Tree for ImageTree<'_> {
    type Node = Inode;
    type Dir = ImageDir;

    fn root(&self) -> Result<Child<Inode>> {
        Ok(child(b"", &self.root))
    }

    fn open_dir(&self, parent: Option<&ImageDir>, child: &Child<Inode>) -> Result<ImageDir> {
        // From the root, a directory is found in as many steps as it is deep.
        let parent = parent.and_then(|parent| parent.dir.opened());
        Ok(ImageDir {
            dir: LazyDir::new(child.node.ino, parent),
            next_index: 0,
            batch: VecDeque::new(),
            is_at_end: false,
        })
    }

    fn next_child(&self, dir: &mut ImageDir) -> Result<Option<Child<Inode>>> {
        if dir.batch.is_empty() && !dir.is_at_end {
            dir.fill(self.image)?;
        }
        Ok(dir.batch.pop_front())
    }

    fn subtree_id(&self, child: &Child<Inode>) -> Option<u64> {
        let template = child
            .node
            .template
            .filter(|_| !self.image.has_times_overlay());
        template.map(|id| id.0)
    }

    fn link_target(&self, _: Option<&ImageDir>, child: &Child<Inode>) -> Result<Vec<u8>> {
        self.image.read_link(&child.node)
    }

    fn xattrs(&self, _: Option<&ImageDir>, child: &Child<Inode>) -> Result<XattrSet> {
        Ok(self.image.xattrs(&child.node)?.to_vec())
    }

    fn open_file(
        &self,
        _: Option<&ImageDir>,
        child: &Child<Inode>,
    ) -> Result<Box<dyn FileReader + '_>> {
        Ok(Box::new(ImageFile {
            image: self.image,
            inode: child.node.clone(),
            data_end: 0,
        }))
    }
}

fn child(name: &[u8], inode: &Inode) -> Child<Inode> {
    let facts = Facts {
        link_key: LinkKey {
            device: 0,
            ino: inode.ino.0,
        },
        kind: inode.kind,
        attributes: inode.attributes,
        nlink: inode.nlink,
        size: inode.size.0,
        times: inode.times,
    };
    Child {
        name: name.to_vec(),
        facts,
        node: inode.clone(),
    }
}

impl ImageDir {
    fn fill(&mut self, image: &Image) -> Result<()> {
        let opened = self.dir.open(image)?;
        let batch = &mut self.batch;
        let mut is_cut = false;
        image.read_opened(&opened, self.next_index, &mut |_, name, inode| {
            if batch.len() == BATCH_COUNT {
                is_cut = true;
                return ControlFlow::Break(());
            }
            batch.push_back(child(name, inode));
            ControlFlow::Continue(())
        })?;
        self.next_index += self.batch.len() as u64;
        self.is_at_end = !is_cut;
        Ok(())
    }
}

struct ImageFile<'a> {
    image: &'a Image,
    inode: Inode,
    /// End of the data run that was found last.
    data_end: u64,
}

impl FileReader for ImageFile<'_> {
    fn next_data(&mut self, offset: u64) -> Result<u64> {
        if offset < self.data_end {
            return Ok(offset);
        }
        let mut start = self.inode.size.0;
        let data_end = &mut self.data_end;
        self.image.runs(&self.inode, offset, &mut |run| {
            if run.is_hole {
                return ControlFlow::Continue(());
            }
            start = run.offset.max(offset);
            *data_end = run.offset.saturating_add(run.len);
            ControlFlow::Break(())
        })?;
        Ok(start)
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.image.read_at(&self.inode, offset, buf)
    }
}
