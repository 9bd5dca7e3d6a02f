//! The tree: from inode numbers and names to entries, by descent through templates.
//!
//! An instance of a directory is its template and a base: its entries have the numbers `base ..`,
//! and behind them come the entries of its sub-directories' instances, one after the other. So a
//! number says the way from the root.

use crate::Inode;
use crate::cache::{ByteCache, Room, Weigh};
use crate::records::{Page, Records};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::container::RecordType;
use weald_format::entries::{EntryBlock, EntryKind};
use weald_format::limits::DEPTH_MAX;
use weald_format::pages::{Link, Template};
use weald_format::{
    ByteLen, ContentId, EntryIndex, Error, FileKind, InodeNo, Result, TemplateId, Times, Timestamp,
    XattrSet, XattrSetId,
};

/// What is called with each entry's index, block and place in the block.
pub type VisitStored<'a> = dyn FnMut(u64, &EntryBlock, usize) -> Result<ControlFlow<()>> + 'a;

/// Sub-directories from which on a directory's index is kept apart: 24 bytes each.
const LARGE_INDEX_COUNT: usize = 4096;

/// One directory instance.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryView {
    /// Its template.
    pub template_id: u64,
    /// The same, loaded.
    pub template: Template,
    /// Number of its first entry.
    pub base: u64,
    /// Its own number.
    pub no: u64,
}

/// The sub-directories of a template: where each one's names begin behind the template's own
/// entries.
struct ChildIndex {
    /// Position of the sub-directory among the entries.
    positions: Vec<u64>,
    /// Template of each.
    templates: Vec<u64>,
    /// Names before each, and after the last the sum: one longer.
    starts: Vec<u64>,
}

impl Weigh for ChildIndex {
    fn memory_len(&self) -> usize {
        self.positions.len().saturating_mul(24)
    }
}

impl Weigh for DirectoryView {
    fn memory_len(&self) -> usize {
        size_of::<Self>()
    }
}

/// The tree of one image.
pub struct Tree {
    records: Arc<Records>,
    template_count: u64,
    name_count: u64,
    has_times_overlay: bool,
    children: ByteCache<u64, ChildIndex>,
    /// The last large index that was used, which may be too large for its cache: walking such a
    /// directory would otherwise make it anew for every sub-directory.
    last_children: Mutex<Option<(u64, Arc<ChildIndex>)>>,
    views: ByteCache<u64, DirectoryView>,
}

fn bad(rule: &'static str, what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::corrupt("tree", 0, rule, what)
}

impl Tree {
    /// The tree over `records`, of `name_count` names.
    ///
    /// # Errors
    /// `Corrupt` where there are no templates.
    pub fn new(records: Arc<Records>, name_count: u64) -> Result<Self> {
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
            children: ByteCache::new(records.tag(), Room::Children, None),
            last_children: Mutex::new(None),
            views: ByteCache::new(records.tag(), Room::Views, None),
            records,
        })
    }

    /// Distinct directories, without the one that only holds the root.
    pub fn template_count(&self) -> u64 {
        self.template_count.saturating_sub(1)
    }

    /// Drops every cached view.
    pub fn drop_caches(&self) {
        self.children.clear();
        *self.last_children.lock() = None;
        self.views.clear();
    }

    /// Loads template `id`.
    ///
    /// # Errors
    /// `Corrupt` where there is no such template.
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

    /// The holder of the root: one entry, number 1.
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

    /// The block that holds entry `index`, and the entry's place in it.
    fn entry_block(&self, index: u64) -> Result<(Arc<Page>, usize, u64)> {
        let found = self.records.record_of_item(RecordType::Entries, 0, index)?;
        let page = self.records.page(&found)?;
        Ok((
            page,
            index.saturating_sub(found.first_item) as usize,
            found.first_item,
        ))
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

    /// Visits the entries `start .. end` block by block; `visit` gets entry index, block and place
    /// in the block.
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
                            return Err(bad(
                                "F-9.4",
                                format!("template {id} holds {child}: expected a smaller one"),
                            ));
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
                let what =
                    format!("template {id}: expected {expected} names deeper down, found {sum}");
                return Err(bad("F-9.5", what));
            }
            Ok(index)
        })
    }

    /// The instance of the directory that is the entry at `position` of `view`.
    ///
    /// # Errors
    /// `Corrupt` where there is no such sub-directory.
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

    /// The directory instance that holds name `no`, by descent.
    ///
    /// # Errors
    /// `NotFound` where the image has no such number.
    pub fn holder_of(&self, no: u64) -> Result<DirectoryView> {
        let mut view = self.holder()?;
        if no == 0 || no > self.name_count {
            return Err(Error::not_found(format!("no inode {no}")));
        }
        for _ in 0..DEPTH_MAX {
            let first_deeper = view.base.saturating_add(view.template.entry_count);
            if no < first_deeper {
                return Ok(view);
            }
            let children = self.children(view.template_id, &view.template)?;
            let deeper = no.saturating_sub(first_deeper);
            let nth = children
                .starts
                .partition_point(|&s| s <= deeper)
                .saturating_sub(1);
            view = self.nth_child(&view, &children, nth)?;
        }
        Err(Error::limit(format!(
            "inode {no} lies deeper than {DEPTH_MAX} directories"
        )))
    }

    /// The instance of directory `no`.
    ///
    /// # Errors
    /// `NotFound` where there is no such number, `Invalid` where it is no directory.
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

    /// The instance of the directory that is name `no`, which lies in `view`.
    ///
    /// # Errors
    /// `Corrupt` where it does not.
    pub fn directory_in(&self, view: &DirectoryView, no: u64) -> Result<DirectoryView> {
        let child = self.child_view(view, no.saturating_sub(view.base))?;
        match child.no == no {
            true => Ok(child),
            false => Err(bad("F-9.5", format!("{no} is no directory of {}", view.no))),
        }
    }

    /// The last component of name `no`.
    pub fn name_of(&self, no: u64) -> Result<Vec<u8>> {
        let holder = self.holder_of(no)?;
        let position = no.saturating_sub(holder.base);
        let entry = holder.template.entry_start.saturating_add(position);
        self.with_entry(entry, |block, place| Ok(block.name(place).to_vec()))
    }

    /// The inode that name `no` shows.
    pub fn inode(&self, no: u64) -> Result<Inode> {
        let holder = self.holder_of(no)?;
        let entry = holder
            .template
            .entry_start
            .saturating_add(no.saturating_sub(holder.base));
        self.with_entry(entry, |block, place| {
            Assembler::new(self).inode(no, entry, block, place)
        })
    }

    /// Finds `name` in `view` by binary search.
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
            // Search on inside this block as far as it reaches: the last steps all end up in one.
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
                    return Assembler::new(self)
                        .inode(no, entry, block, place)
                        .map(Some);
                }
                Err(Side::Before) => high = block_low,
                Err(Side::Behind) => low = block_high,
                Err(Side::Inside) => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Visits the entries of `view` from the `start`-th on.
    pub fn read_dir(
        &self,
        view: &DirectoryView,
        start: u64,
        visit: &mut crate::VisitEntry<'_>,
    ) -> Result<()> {
        let mut assembler = Assembler::new(self);
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

    /// mtime of name `no`, which lies at `place` of `block`.
    pub fn mtime(&self, no: u64, block: &EntryBlock, place: usize) -> Result<Timestamp> {
        Ok(Assembler::new(self).times(no, block, place)?.mtime)
    }

    /// The target of the symlink whose entry is `entry`.
    pub fn target(&self, entry: EntryIndex) -> Result<Vec<u8>> {
        self.with_entry(entry.0, |block, place| match block.kind(place) {
            EntryKind::Symlink => Ok(block.target(place).to_vec()),
            _ => Err(Error::invalid(format!("entry {entry} is not a symlink"))),
        })
    }

    /// Xattr set `id`.
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

/// Binary search among the places `range` of a block; where it fails, on which side of them the
/// name would be.
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

/// A page that was used last, with the items it covers: entries of one directory mostly share
/// theirs.
struct Memo {
    record_type: RecordType,
    page: Option<(std::ops::Range<u64>, Arc<Page>)>,
}

impl Memo {
    const fn new(record_type: RecordType) -> Self {
        Self {
            record_type,
            page: None,
        }
    }

    /// The page with item `item`, and the item's place in it.
    fn get(&mut self, records: &Records, item: u64) -> Result<(&Page, usize)> {
        let hit = self
            .page
            .as_ref()
            .is_some_and(|(range, _)| range.contains(&item));
        if !hit {
            let found = records.record_of_item(self.record_type, 0, item)?;
            let range = found.first_item..found.first_item.saturating_add(found.item_count);
            self.page = Some((range, records.page(&found)?));
        }
        match &self.page {
            Some((range, page)) => Ok((page, item.saturating_sub(range.start) as usize)),
            None => Err(bad("F-7.9", "no page")),
        }
    }
}

/// Puts inodes together from an entry and the pages that it names, remembering the page of each
/// type used last.
pub struct Assembler<'a> {
    tree: &'a Tree,
    attributes: Memo,
    contents: Memo,
    templates: Memo,
    links: Memo,
    times: Memo,
}

impl<'a> Assembler<'a> {
    /// An assembler that remembers nothing yet.
    pub fn new(tree: &'a Tree) -> Self {
        Self {
            tree,
            attributes: Memo::new(RecordType::Attributes),
            contents: Memo::new(RecordType::Contents),
            templates: Memo::new(RecordType::Templates),
            links: Memo::new(RecordType::Links),
            times: Memo::new(RecordType::Times),
        }
    }

    /// The inode that name `no`, which is entry `entry` and lies at `place` of `block`, shows.
    pub fn inode(
        &mut self,
        no: u64,
        entry: u64,
        block: &EntryBlock,
        place: usize,
    ) -> Result<Inode> {
        let records = &*self.tree.records;
        let kind = block.kind(place);
        let id = block.attributes(place);
        let attributes = match self.attributes.get(records, id)? {
            (Page::Attributes(items), at) => items.get(at).copied(),
            _ => None,
        };
        let body = block.body(place);
        let (mut size, mut nlink, mut ino) = (0, block.nlink(place), no);
        match kind {
            EntryKind::File => size = self.content_len(body)?,
            EntryKind::Symlink => size = block.target(place).len() as u64,
            EntryKind::Directory => {
                let template = self.template(body)?;
                size = template.entry_count;
                nlink = template.directory_count.saturating_add(2);
            }
            _ => {}
        }
        if kind != EntryKind::Directory {
            if nlink == 0 {
                let link = self.link(no)?;
                (ino, nlink) = (link.first_no, link.nlink);
            } else {
                ino = no.saturating_sub(block.link_back(place)).max(1);
            }
        }
        Ok(Inode {
            ino: InodeNo(ino),
            name_no: InodeNo(no),
            kind: kind.file_kind(),
            attributes: attributes.ok_or_else(|| bad("F-12.2", format!("no attributes {id}")))?,
            nlink,
            size: ByteLen(size),
            times: self.times(no, block, place)?,
            xattr_set: block.xattrs(place).checked_sub(1).map(XattrSetId),
            content: (kind == EntryKind::File).then_some(ContentId(body)),
            template: (kind == EntryKind::Directory).then_some(TemplateId(body)),
            entry: EntryIndex(entry),
        })
    }

    fn content_len(&mut self, id: u64) -> Result<u64> {
        match self.contents.get(&self.tree.records, id)? {
            (Page::Contents(page), at) => page.get(at).map(|(_, len)| len),
            _ => None,
        }
        .ok_or_else(|| bad("F-10.2", format!("no content {id}")))
    }

    fn template(&mut self, id: u64) -> Result<Template> {
        match self.templates.get(&self.tree.records, id)? {
            (Page::Templates(page), at) => page.get(at),
            _ => None,
        }
        .ok_or_else(|| bad("F-9.2", format!("no template {id}")))
    }

    fn link(&mut self, no: u64) -> Result<Link> {
        match self.links.get(&self.tree.records, no)? {
            (Page::Links(links), _) => links
                .binary_search_by_key(&no, |l| l.name_no)
                .ok()
                .and_then(|i| links.get(i).copied()),
            _ => None,
        }
        .ok_or_else(|| bad("F-14.2", format!("name {no} is not in the link table")))
    }

    fn times(&mut self, no: u64, block: &EntryBlock, place: usize) -> Result<Times> {
        let mtime = match (block.time(0, place), self.tree.has_times_overlay) {
            (Some(time), false) => Some(time),
            (None, true) => match self.times.get(&self.tree.records, no.saturating_sub(1))? {
                (Page::Times(page), at) => Some(page.mtime(at)),
                _ => None,
            },
            _ => None,
        };
        let mtime =
            mtime.ok_or_else(|| bad("F-15.2", format!("name {no} has no mtime, or two")))?;
        Ok(Times {
            mtime,
            atime: block.time(1, place),
            ctime: block.time(2, place),
            btime: block.time(3, place),
        })
    }
}

/// Kind of inode an error is about, in words.
pub const fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Directory => "directory",
        FileKind::Regular => "regular file",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}
