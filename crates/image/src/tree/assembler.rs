//! Assembles inodes from stored entries.

use super::inode::Inode;
use crate::cached_records::records::CachedRecords;
use crate::records::page::Page;
use std::sync::Arc;
use weald_format::container::RecordType;
use weald_format::entries::{EntryBlock, EntryKind};
use weald_format::pages::{Link, Template};
use weald_format::{
    ByteLen, ContentId, EntryIndex, Error, InodeNo, Result, TemplateId, Times, XattrSetId,
};

fn bad(rule: &'static str, what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::corrupt("tree", 0, rule, what)
}

/// The last page of a type that was used, with the items that it has. The entries of a directory
/// mostly use the same pages.
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

    /// The page with item `item`, and the index of the item in it.
    fn get(&mut self, records: &CachedRecords, item: u64) -> Result<(&Page, usize)> {
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

/// Assembles inodes from an entry and the pages to which it refers. Remembers the last page of each
/// type.
pub struct Assembler<'a> {
    records: &'a CachedRecords,
    has_times_overlay: bool,
    attributes: Memo,
    contents: Memo,
    templates: Memo,
    links: Memo,
    times: Memo,
}

impl<'a> Assembler<'a> {
    /// An assembler that remembers no page.
    pub fn new(records: &'a CachedRecords, has_times_overlay: bool) -> Self {
        Self {
            records,
            has_times_overlay,
            attributes: Memo::new(RecordType::Attributes),
            contents: Memo::new(RecordType::Contents),
            templates: Memo::new(RecordType::Templates),
            links: Memo::new(RecordType::Links),
            times: Memo::new(RecordType::Times),
        }
    }

    /// The inode of name `no`, whose entry has index `entry` in the image and `place` in `block`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn inode(
        &mut self,
        no: u64,
        entry: u64,
        block: &EntryBlock,
        place: usize,
    ) -> Result<Inode> {
        let records = self.records;
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
        match self.contents.get(self.records, id)? {
            (Page::Contents(page), at) => page.get(at).map(|(_, len)| len),
            _ => None,
        }
        .ok_or_else(|| bad("F-10.2", format!("no content {id}")))
    }

    fn template(&mut self, id: u64) -> Result<Template> {
        match self.templates.get(self.records, id)? {
            (Page::Templates(page), at) => page.get(at),
            _ => None,
        }
        .ok_or_else(|| bad("F-9.2", format!("no template {id}")))
    }

    /// The link of name `no`.
    ///
    /// # Errors
    /// `Corrupt` if the link table does not have the name; `Io`.
    pub fn link(&mut self, no: u64) -> Result<Link> {
        match self.links.get(self.records, no)? {
            (Page::Links(links), _) => links
                .binary_search_by_key(&no, |l| l.name_no)
                .ok()
                .and_then(|i| links.get(i).copied()),
            _ => None,
        }
        .ok_or_else(|| bad("F-14.2", format!("name {no} is not in the link table")))
    }

    /// The times of name `no`, whose entry has index `place` in `block`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn times(&mut self, no: u64, block: &EntryBlock, place: usize) -> Result<Times> {
        let mtime = match (block.time(0, place), self.has_times_overlay) {
            (Some(time), false) => Some(time),
            (None, true) => match self.times.get(self.records, no.saturating_sub(1))? {
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
