//! The fs-verity digests that an image keeps, one for each content.

use crate::check::content_digests::compute_fsverity;
use crate::image::Image;
use crate::records::page::Page;
use crate::records::section::missing;
use crate::tree::inode::Inode;
use weald_codec::{FSVERITY_DIGEST_LEN, fsverity_digest};
use weald_format::container::RecordType;
use weald_format::{ContentId, Result};

impl Image {
    /// Whether the image keeps fs-verity digests.
    pub fn keeps_fsverity(&self) -> bool {
        self.records.item_count(RecordType::Fsverity, 0) > 0
    }

    /// The fs-verity digest of a regular file, if the image keeps digests. The image digest covers
    /// it; only [`Image::check`] compares it with the content.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads one page.
    pub fn kept_fsverity(&self, inode: &Inode) -> Result<Option<[u8; FSVERITY_DIGEST_LEN]>> {
        match inode.content {
            _ if !self.keeps_fsverity() => Ok(None),
            Some(id) => self.kept_fsverity_of(id),
            None => Ok(Some(fsverity_digest(b""))),
        }
    }

    /// The fs-verity digest of a content, if the image keeps digests.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads one page.
    pub fn kept_fsverity_of(&self, id: ContentId) -> Result<Option<[u8; FSVERITY_DIGEST_LEN]>> {
        if !self.keeps_fsverity() {
            return Ok(None);
        }
        let found = self.records.record_of_item(RecordType::Fsverity, 0, id.0)?;
        let index = id.0.saturating_sub(found.first_item) as usize;
        let digest = match &*self.records.page(&found)? {
            Page::Fsverity(digests) => digests.get(index).copied(),
            _ => None,
        };
        match digest {
            Some(digest) => Ok(Some(digest)),
            None => Err(missing(RecordType::Fsverity, "digest of content", id.0)),
        }
    }

    /// The fs-verity digest of a content, computed: a kept one is what the image claims.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads the content.
    pub fn fsverity_of(&self, id: ContentId) -> Result<[u8; FSVERITY_DIGEST_LEN]> {
        compute_fsverity(self, id)
    }
}
