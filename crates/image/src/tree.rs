//! The tree: from inode numbers and names to entries, by descent through templates.
//!
//! An instance of a directory is its template and a base number: its entries have the numbers from
//! the base on; the entries of its sub-directories' instances follow, one instance after the other.
//! So a number determines the path from the root, and there is no inode table.
//!
//! `tree/inode.rs` has the inodes that callers see, `tree/assembler.rs` assembles them, and
//! `tree/deep.rs` remembers the way to deep directories.

mod assembler;
mod deep;
pub mod inode;
pub mod view;

use crate::cache::key::{CachedKind, CachedValue};
use crate::cache::view::CacheView;
use crate::cached_records::records::CachedRecords;
use crate::records::page::Page;
use assembler::Assembler;
use deep::{DEEP_LEVEL, DeepWays, Step};
use inode::{Inode, VisitEntry};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;
use view::DirectoryView;
use weald_format::container::RecordType;
use weald_format::entries::{EntryBlock, EntryKind};
use weald_format::limits::DEPTH_MAX;
use weald_format::pages::{Link, Template};
use weald_format::{EntryIndex, Error, Result, Timestamp, XattrSet, XattrSetId};

/// Called with the index of an entry in the image, its block, and its index in the block.
pub type VisitStored<'a> = dyn FnMut(u64, &EntryBlock, usize) -> Result<ControlFlow<()>> + 'a;

/// Sub-directories from which on the index of a directory is kept outside the cache too; each takes
/// 24 bytes.
const LARGE_INDEX_COUNT: usize = 4096;

/// The sub-directories of a template, and the first number of each, relative to the end of the
/// template's own entries.
struct ChildIndex {
    /// Index of each among the entries.
    positions: Vec<u64>,
    /// Template of each.
    templates: Vec<u64>,
    /// Names before each, and the sum of all at the end: one item more than `positions`.
    starts: Vec<u64>,
}

impl CachedValue for ChildIndex {
    fn memory_len(&self) -> usize {
        self.positions.len().saturating_mul(24)
    }
}

impl CachedValue for DirectoryView {
    fn memory_len(&self) -> usize {
        size_of::<Self>()
    }
}

/// The tree of one image.
pub struct Tree {
    records: Arc<CachedRecords>,
    template_count: u64,
    name_count: u64,
    has_times_overlay: bool,
    children: CacheView<u64, ChildIndex>,
    /// The last large index that was used. It may be too large for the cache, and a walk would
    /// otherwise compute it again for every sub-directory.
    last_children: Mutex<Option<(u64, Arc<ChildIndex>)>>,
    views: CacheView<u64, DirectoryView>,
    deep_ways: Mutex<DeepWays>,
}

fn bad(rule: &'static str, what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::corrupt("tree", 0, rule, what)
}

impl Tree {
    /// The tree over `records`, of `name_count` names.
    ///
    /// # Errors
    /// `Corrupt` if there are no templates.
    pub fn new(records: Arc<CachedRecords>, name_count: u64) -> Result<Self> {
        let template_count = records.item_count(RecordType::Templates, 0);
        if template_count < 2 {
            return Err(bad(
                "F-9.2",
                format!("templates: expected 2 or more, found {template_count}"),
            ));
        }
        let has_times_overlay = records.item_count(RecordType::Times, 0) > 0;
        Ok(Self {
            template_count,
            name_count,
            has_times_overlay,
            children: CacheView::new(records.tag(), CachedKind::Children, None),
            last_children: Mutex::new(None),
            views: CacheView::new(records.tag(), CachedKind::View, None),
            deep_ways: Mutex::default(),
            records,
        })
    }

    /// Distinct directories, without the one that holds only the root.
    pub fn template_count(&self) -> u64 {
        self.template_count.saturating_sub(1)
    }

    /// Removes all cached indexes and positions.
    pub fn drop_caches(&self) {
        self.children.clear();
        *self.last_children.lock() = None;
        self.views.clear();
        self.deep_ways.lock().clear();
    }

    /// Loads template `id`.
    ///
    /// # Errors
    /// `Corrupt` if there is no such template; `Io`.
    pub fn template(&self, id: u64) -> Result<Template> {
        let found = self.records.record_of_item(RecordType::Templates, 0, id)?;
        let page = self.records.page(&found)?;
        let Page::Templates(page) = &*page else {
            return Err(bad("F-9.2", "no template page"));
        };
        let index = id.saturating_sub(found.first_item) as usize;
        page.get(index)
            .ok_or_else(|| bad("F-9.2", format!("no template {id}")))
    }

    /// The directory that holds only the root: one entry, number 1.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn holder(&self) -> Result<DirectoryView> {
        let template_id = self.template_count.saturating_sub(1);
        let template = self.template(template_id)?;
        if template.entry_count != 1 || template.subtree_count != self.name_count {
            let what = format!(
                "last template: expected 1 entry and {} names, found {} and {}",
                self.name_count, template.entry_count, template.subtree_count
            );
            return Err(bad("F-9.3", what));
        }
        Ok(DirectoryView {
            template_id,
            template,
            base: 1,
            no: 1,
        })
    }

    /// The block with entry `index`, the entry's index in it, and the index of its first entry.
    fn entry_block(&self, index: u64) -> Result<(Arc<Page>, usize, u64)> {
        let found = self.records.record_of_item(RecordType::Entries, 0, index)?;
        let page = self.records.page(&found)?;
        Ok((
            page,
            index.saturating_sub(found.first_item) as usize,
            found.first_item,
        ))
    }

    fn assembler(&self) -> Assembler<'_> {
        Assembler::new(&self.records, self.has_times_overlay)
    }

    fn with_entry<T>(
        &self,
        index: u64,
        use_it: impl FnOnce(&EntryBlock, usize) -> Result<T>,
    ) -> Result<T> {
        let (page, place, _) = self.entry_block(index)?;
        match &*page {
            Page::Entries(block) if place < block.count() => use_it(block, place),
            _ => Err(bad("F-9.8", format!("no entry {index}"))),
        }
    }

    /// Visits the entries `start .. end` in order.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of `visit`.
    pub fn each_entry(&self, start: u64, end: u64, visit: &mut VisitStored<'_>) -> Result<()> {
        let mut index = start;
        while index < end {
            let (page, place, _) = self.entry_block(index)?;
            let Page::Entries(block) = &*page else {
                return Err(bad("F-9.8", format!("no entry {index}")));
            };
            if place >= block.count() {
                return Err(bad("F-9.8", format!("no entry {index}")));
            }
            for place in place..block.count() {
                if index >= end {
                    break;
                }
                if visit(index, block, place)?.is_break() {
                    return Ok(());
                }
                index = index.saturating_add(1);
            }
        }
        Ok(())
    }

    fn children(&self, id: u64, template: &Template) -> Result<Arc<ChildIndex>> {
        if let Some((last, index)) = &*self.last_children.lock()
            && *last == id
        {
            return Ok(index.clone());
        }
        let index = self.load_children(id, template)?;
        if index.templates.len() >= LARGE_INDEX_COUNT {
            *self.last_children.lock() = Some((id, index.clone()));
        }
        Ok(index)
    }

    fn load_children(&self, id: u64, template: &Template) -> Result<Arc<ChildIndex>> {
        self.children.get_or_load(&id, || {
            let mut index = ChildIndex {
                positions: Vec::new(),
                templates: Vec::new(),
                starts: vec![0],
            };
            let mut sum = 0u64;
            if template.directory_count > 0 {
                let end = template.entry_start.saturating_add(template.entry_count);
                self.each_entry(template.entry_start, end, &mut |at, block, place| {
                    if block.kind(place) == EntryKind::Directory {
                        let child = block.body(place);
                        if child >= id {
                            let what = format!(
                                "template {id} refers to template {child}: expected a smaller one"
                            );
                            return Err(bad("F-9.4", what));
                        }
                        sum = sum.saturating_add(self.template(child)?.subtree_count);
                        index
                            .positions
                            .push(at.saturating_sub(template.entry_start));
                        index.templates.push(child);
                        index.starts.push(sum);
                    }
                    Ok(ControlFlow::Continue(()))
                })?;
            }
            let expected = template.subtree_count.saturating_sub(template.entry_count);
            if sum != expected || index.templates.len() as u64 != template.directory_count {
                let what = format!("template {id}: expected {expected} names below, found {sum}");
                return Err(bad("F-9.5", what));
            }
            Ok(index)
        })
    }

    /// The instance of the sub-directory that is entry `position` of `view`.
    ///
    /// # Errors
    /// `Corrupt` if there is no such sub-directory; `Io`.
    pub fn child_view(&self, view: &DirectoryView, position: u64) -> Result<DirectoryView> {
        let children = self.children(view.template_id, &view.template)?;
        let nth = children.positions.partition_point(|&p| p < position);
        self.nth_child(view, &children, nth)
    }

    fn nth_child(
        &self,
        view: &DirectoryView,
        children: &ChildIndex,
        nth: usize,
    ) -> Result<DirectoryView> {
        let missing = || {
            bad(
                "F-9.5",
                format!("directory {} has no sub-directory {nth}", view.no),
            )
        };
        let position = *children.positions.get(nth).ok_or_else(missing)?;
        let template_id = *children.templates.get(nth).ok_or_else(missing)?;
        let start = *children.starts.get(nth).ok_or_else(missing)?;
        let no = view.base.saturating_add(position);
        Ok(DirectoryView {
            template_id,
            template: self.template(template_id)?,
            base: view
                .base
                .saturating_add(view.template.entry_count)
                .saturating_add(start),
            no,
        })
    }

    /// The directory instance that holds name `no`, found by descent from the root, or from a deep
    /// directory on the way.
    ///
    /// # Errors
    /// `NotFound` if the image has no such number; `Io`, `Corrupt`.
    pub fn holder_of(&self, no: u64) -> Result<DirectoryView> {
        let mut view = self.holder()?;
        if no == 0 || no > self.name_count {
            return Err(Error::not_found(format!("no inode {no}")));
        }
        for _ in 0..DEEP_LEVEL {
            match self.next_to(&view, no)? {
                Some(next) => view = next,
                None => return Ok(view),
            }
        }
        let known = self.deep_ways.lock().above(no);
        let mut step = known.unwrap_or_else(|| Step::first(view));
        let first_depth = step.depth;
        while let Some(next) = self.next_to(&step.view, no)? {
            if step.depth.saturating_add(DEEP_LEVEL) >= DEPTH_MAX {
                return Err(Error::limit(format!(
                    "inode {no} is deeper than {DEPTH_MAX} directories"
                )));
            }
            step = Step::behind(&step, next);
        }
        let found = step.view;
        if step.depth > first_depth {
            self.deep_ways.lock().put(step);
        }
        Ok(found)
    }

    /// The sub-directory of `view` that leads to name `no`; `None` if `view` holds it.
    fn next_to(&self, view: &DirectoryView, no: u64) -> Result<Option<DirectoryView>> {
        let first_deeper = view.base.saturating_add(view.template.entry_count);
        if no < first_deeper {
            return Ok(None);
        }
        let children = self.children(view.template_id, &view.template)?;
        let deeper = no.saturating_sub(first_deeper);
        let nth = children
            .starts
            .partition_point(|&s| s <= deeper)
            .saturating_sub(1);
        self.nth_child(view, &children, nth).map(Some)
    }

    /// The instance of directory `no`.
    ///
    /// # Errors
    /// `NotFound` if there is no such number, `Invalid` if it is not a directory; `Io`, `Corrupt`.
    pub fn directory(&self, no: u64) -> Result<DirectoryView> {
        let view = self.views.get_or_load(&no, || {
            let holder = self.holder_of(no)?;
            let position = no.saturating_sub(holder.base);
            let entry = holder.template.entry_start.saturating_add(position);
            let kind = self.with_entry(entry, |block, place| Ok(block.kind(place)))?;
            if kind != EntryKind::Directory {
                return Err(Error::invalid(format!("inode {no} is not a directory")));
            }
            self.child_view(&holder, position)
        })?;
        Ok(*view)
    }

    /// The instance of the directory that is name `no`, an entry of `view`.
    ///
    /// # Errors
    /// `Corrupt` if it is no directory there; `Io`.
    pub fn directory_in(&self, view: &DirectoryView, no: u64) -> Result<DirectoryView> {
        let child = self.child_view(view, no.saturating_sub(view.base))?;
        if child.no == no {
            Ok(child)
        } else {
            Err(bad(
                "F-9.5",
                format!("{no} is not a sub-directory of {}", view.no),
            ))
        }
    }

    /// The last path component of name `no`.
    ///
    /// # Errors
    /// As [`Tree::holder_of`].
    pub fn name_of(&self, no: u64) -> Result<Vec<u8>> {
        let holder = self.holder_of(no)?;
        let position = no.saturating_sub(holder.base);
        let entry = holder.template.entry_start.saturating_add(position);
        self.with_entry(entry, |block, place| Ok(block.name(place).to_vec()))
    }

    /// The inode of name `no`.
    ///
    /// # Errors
    /// As [`Tree::holder_of`].
    pub fn inode(&self, no: u64) -> Result<Inode> {
        let holder = self.holder_of(no)?;
        let entry = holder
            .template
            .entry_start
            .saturating_add(no.saturating_sub(holder.base));
        self.with_entry(entry, |block, place| {
            self.assembler().inode(no, entry, block, place)
        })
    }

    /// Finds `name` in `view` by binary search.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn lookup(&self, view: &DirectoryView, name: &[u8]) -> Result<Option<Inode>> {
        let (mut low, mut high) = (0u64, view.template.entry_count);
        let start = view.template.entry_start;
        while low < high {
            let middle = low.saturating_add(high.saturating_sub(low) / 2);
            let (page, place, first) = self.entry_block(start.saturating_add(middle))?;
            let Page::Entries(block) = &*page else {
                return Err(bad("F-9.8", "no entry block"));
            };
            if place >= block.count() {
                return Err(bad(
                    "F-9.8",
                    format!("no entry {middle} of directory {}", view.no),
                ));
            }
            // The search continues inside this block, because the last steps all need one block.
            let block_low = low.max(first.saturating_sub(start));
            let block_end = first
                .saturating_add(block.count() as u64)
                .saturating_sub(start);
            let block_high = high.min(block_end);
            let place_of = |at: u64| start.saturating_add(at).saturating_sub(first) as usize;
            let range = place_of(block_low)..place_of(block_high);
            match search(block, range, name) {
                Ok(place) => {
                    let entry = first.saturating_add(place as u64);
                    let no = view.base.saturating_add(entry.saturating_sub(start));
                    return self.assembler().inode(no, entry, block, place).map(Some);
                }
                Err(Side::Before) => high = block_low,
                Err(Side::Behind) => low = block_high,
                Err(Side::Inside) => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Visits the entries of `view` in byte order of their names, from index `start` on.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, also if a name is forbidden or out of order.
    pub fn read_dir(
        &self,
        view: &DirectoryView,
        start: u64,
        visit: &mut VisitEntry<'_>,
    ) -> Result<()> {
        let mut assembler = self.assembler();
        let mut last_of_block: Vec<u8> = Vec::new();
        let first = view.template.entry_start;
        let end = first.saturating_add(view.template.entry_count);
        self.each_entry(
            first.saturating_add(start),
            end,
            &mut |entry, block, place| {
                let index = entry.saturating_sub(first);
                let name = block.name(place);
                if matches!(name, b"" | b"." | b"..") {
                    return Err(bad(
                        "F-8.4",
                        format!("directory {}: entry {index} has a forbidden name", view.no),
                    ));
                }
                let before = match place.checked_sub(1) {
                    Some(before) if index > 0 => block.name(before),
                    _ => &last_of_block,
                };
                if before >= name {
                    return Err(bad(
                        "F-8.7",
                        format!("directory {}: entry {index} is out of order", view.no),
                    ));
                }
                if place.saturating_add(1) == block.count() {
                    last_of_block = name.to_vec();
                }
                let inode =
                    assembler.inode(view.base.saturating_add(index), entry, block, place)?;
                Ok(visit(index, name, &inode))
            },
        )
    }

    /// The mtime of name `no`, whose entry has index `place` in `block`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn mtime(&self, no: u64, block: &EntryBlock, place: usize) -> Result<Timestamp> {
        Ok(self.assembler().times(no, block, place)?.mtime)
    }

    /// The link of name `no`, whose inode has names in several directories.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn link(&self, no: u64) -> Result<Link> {
        self.assembler().link(no)
    }

    /// The target of the symlink whose entry is `entry`.
    ///
    /// # Errors
    /// `Invalid` if it is not a symlink; `Io`, `Corrupt`.
    pub fn target(&self, entry: EntryIndex) -> Result<Vec<u8>> {
        self.with_entry(entry.0, |block, place| match block.kind(place) {
            EntryKind::Symlink => Ok(block.target(place).to_vec()),
            _ => Err(Error::invalid(format!("entry {entry} is not a symlink"))),
        })
    }

    /// Xattr set `id`.
    ///
    /// # Errors
    /// `Corrupt` if there is none; `Io`.
    pub fn xattrs(&self, id: XattrSetId) -> Result<Arc<XattrSet>> {
        let found = self.records.record_of_item(RecordType::Xattrs, 0, id.0)?;
        let page = self.records.page(&found)?;
        let index = id.0.saturating_sub(found.first_item) as usize;
        match &*page {
            Page::Xattrs(sets) => sets
                .get(index)
                .cloned()
                .ok_or_else(|| bad("F-13.2", format!("no xattr set {id}"))),
            _ => Err(bad("F-13.2", format!("no xattr set {id}"))),
        }
    }
}

enum Side {
    Before,
    Inside,
    Behind,
}

/// Binary search for `name` among the entries `range` of a block. On failure, returns on which side
/// of these entries the name would be.
fn search(block: &EntryBlock, range: std::ops::Range<usize>, name: &[u8]) -> Result<usize, Side> {
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low.saturating_add(high.saturating_sub(low) / 2);
        match block.name(middle).cmp(name) {
            std::cmp::Ordering::Equal => return Ok(middle),
            std::cmp::Ordering::Less => low = middle.saturating_add(1),
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    Err(if low == range.start {
        Side::Before
    } else if low == range.end {
        Side::Behind
    } else {
        Side::Inside
    })
}
