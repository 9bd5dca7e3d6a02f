//! Access to a tree of which parts are missing: each page for itself, and no rule that needs all of
//! them.

use crate::check::content_digests::digest_all;
use crate::image::Image;
use crate::records::page::Page;
use std::ops::Range;
use std::sync::Arc;
use weald_format::container::RecordType;
use weald_format::entries::EntryBlock;
use weald_format::pages::{Link, Template};
use weald_format::{Attributes, Digest, Error, Result, Timestamp, XattrSet, XattrSetId};

/// Entries of a damaged tree.
pub enum Left<'a> {
    /// The entry with this number, its block, and its place in the block.
    Entry(u64, &'a EntryBlock, usize),
    /// As many entries, from the one with this number on, cannot be read.
    Lost(u64, u64, &'a Error),
}

impl Image {
    /// Template number `id`.
    ///
    /// # Errors
    /// `Corrupt` if there is none, or it cannot be read; `Io`.
    pub fn template(&self, id: u64) -> Result<Template> {
        self.tree.template(id)
    }

    /// Visits the entries with the numbers `range`, and what cannot be read among them.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn each_left_entry(
        &self,
        range: Range<u64>,
        visit: &mut dyn FnMut(Left<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let found = self.records.record_of_item(RecordType::Entries, 0, at);
            let (first, count) = match &found {
                Ok(found) => (found.first_item, found.item_count),
                // The index page is lost, and with it the borders of its blocks.
                Err(_) => (at, range.end.saturating_sub(at)),
            };
            let end = first.saturating_add(count.max(1)).min(range.end);
            let page = found.and_then(|found| self.records.page(&found));
            match page.as_deref() {
                Ok(Page::Entries(block)) => {
                    for entry in at..end {
                        let place = entry.saturating_sub(first) as usize;
                        visit(Left::Entry(entry, block, place))?;
                    }
                }
                Ok(_) => {
                    let error = Error::corrupt("entries", 0, "F-9.8", "no entry block");
                    visit(Left::Lost(at, end.saturating_sub(at), &error))?;
                }
                Err(error) => visit(Left::Lost(at, end.saturating_sub(at), error))?,
            }
            at = end;
        }
        Ok(())
    }

    /// Attributes number `id`.
    ///
    /// # Errors
    /// `Corrupt` if there are none, or they cannot be read; `Io`.
    pub fn left_attributes(&self, id: u64) -> Result<Attributes> {
        self.attributes(id)
    }

    /// Xattr set number `id`.
    ///
    /// # Errors
    /// `Corrupt` if there is none, or it cannot be read; `Io`.
    pub fn left_xattrs(&self, id: XattrSetId) -> Result<Arc<XattrSet>> {
        self.tree.xattrs(id)
    }

    /// The mtime of an entry: its own, or that of the name `no` in the times overlay.
    ///
    /// # Errors
    /// `Corrupt` if it cannot be read, or the number of the name is not known; `Io`.
    pub fn left_mtime(
        &self,
        no: Option<u64>,
        block: &EntryBlock,
        place: usize,
    ) -> Result<Timestamp> {
        match (block.time(0, place), no) {
            (Some(time), _) => Ok(time),
            (None, Some(no)) => self.tree.mtime(no, block, place),
            (None, None) => {
                let what = "the number of the name is not known";
                Err(Error::corrupt("tree", 0, "F-15.2", what))
            }
        }
    }

    /// The link of name `no`, whose inode has names in several directories.
    ///
    /// # Errors
    /// `Corrupt` if the table has no such name, or cannot be read; `Io`.
    pub fn left_link(&self, no: u64) -> Result<Link> {
        self.tree.link(no)
    }

    /// The digests of all contents; `None` for those that cannot be read. Also returns the distinct
    /// errors, a thousand at most.
    ///
    /// # Cost
    /// Decodes every content; 40 bytes of memory for each.
    pub fn left_content_digests(&self, threads: usize) -> (Vec<Option<Digest>>, Vec<Error>) {
        self.records.remember_failures(true);
        let results = digest_all(self, self.summary().content_count, threads);
        self.records.remember_failures(false);
        (results.digests, results.errors)
    }
}
