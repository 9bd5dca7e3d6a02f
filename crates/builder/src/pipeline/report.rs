//! Collects the results of all stages for the report of a build.

use crate::dedup::contents::ContentSummary;
use crate::progress::{Changes, Report};
use crate::write::emit::Emitted;
use crate::write::image_writer::{ImageWriter, Sealed};
use weald_format::container::RecordType;

/// Stored bytes by kind of record. They are collected before the image is sealed.
pub struct StoredLens {
    blocks: u64,
    extents: u64,
}

impl StoredLens {
    /// Collects the figures of `image`.
    pub fn of(image: &ImageWriter) -> Self {
        Self {
            blocks: image.data_len(),
            extents: image.stored_len(RecordType::Extents) + image.stored_len(RecordType::Recipes),
        }
    }
}

/// Results of the stages.
pub struct Outcome<'a> {
    /// The image.
    pub sealed: Sealed,
    /// Length of the image that was appended to, bytes; `None` for a new image.
    pub old_len: Option<u64>,
    /// Differences from the tree of that image.
    pub changes: Option<Changes>,
    /// Stored bytes of its records.
    pub stored: StoredLens,
    /// Its tree.
    pub emitted: &'a Emitted,
    /// Its contents.
    pub contents: &'a ContentSummary,
    /// Length of all regular files, each inode once, bytes.
    pub file_len: u64,
    /// Length of the files whose content was stored already, bytes.
    pub dedup_len: u64,
    /// Bytes of that image that were decoded.
    pub old_decoded_len: u64,
}

impl Outcome<'_> {
    /// Returns the report; the caller sets the problem count.
    pub fn report(self) -> Report {
        let (sealed, contents, summary) = (self.sealed, self.contents, &self.emitted.summary);
        let StoredLens { blocks, extents } = self.stored;
        let own_len = sealed.image_len - self.old_len.unwrap_or(0);
        Report {
            image_digest: sealed.image_digest,
            tree_digest: self.emitted.tree_digest,
            generation: sealed.generation,
            appended_len: self.old_len.map(|_| own_len),
            changes: self.changes,
            entry_count: summary.name_count,
            template_count: summary.template_count,
            stored_entry_count: summary.entry_count,
            content_count: contents.table.count(),
            file_len: self.file_len,
            dedup_len: self.dedup_len,
            segment_len: contents.repeated_len,
            old_decoded_len: self.old_decoded_len,
            hole_len: contents.hole_len,
            base_len: contents.base_len,
            made_len: contents.made_len,
            plain_len: contents.plain_len,
            block_raw_len: contents.fresh_len,
            block_stored_len: blocks,
            extents_len: extents,
            tree_len: own_len.saturating_sub(blocks + extents),
            image_len: sealed.image_len,
            problem_count: 0,
        }
    }
}
