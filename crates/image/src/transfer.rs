//! Records as they lie in the image, for those who write another image from them.

use crate::Image;
use weald_format::Result;
use weald_format::container::{HEADER_LEN, RecordRef, RecordType};
use weald_format::directory::Directory;

impl Image {
    /// The directory: streams, sections, identity.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Visits the records of a section in order, each with the count of its items; nothing where there is no such section.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the index pages, and those of `visit`.
    pub fn each_record(
        &self,
        record_type: RecordType,
        stream: u8,
        visit: &mut dyn FnMut(&RecordRef, u64) -> Result<()>,
    ) -> Result<()> {
        for no in 0..self.records.record_count(record_type, stream) {
            let found = self.records.record(record_type, stream, no)?;
            visit(&found.record, found.item_count)?;
        }
        Ok(())
    }

    /// The stored bytes of a record, verified, without its header.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn stored(&self, record: &RecordRef) -> Result<Vec<u8>> {
        let mut bytes = self.records.read_stored(record)?;
        bytes.drain(..HEADER_LEN.min(bytes.len()));
        Ok(bytes)
    }

    /// The raw bytes of a block of `stream`, verified, past the cache.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn block(&self, stream: u8, record: &RecordRef) -> Result<Vec<u8>> {
        self.records.read_block(stream, record)
    }
}
