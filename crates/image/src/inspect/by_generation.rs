//! What a generation shares with those before it: where in the file the records lie that it uses.

use crate::image::Image;
use crate::open::generations::{Generation, list_from};
use weald_format::Result;
use weald_format::container::{HEADER_LEN, RecordRef};

/// What one generation appended to an image, and what of it the open generation uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendedBy {
    /// The generation that appended.
    pub generation: Generation,
    /// Bytes that it appended.
    pub appended_len: u64,
    /// Stored bytes of the records among them that the open generation uses. Over all generations
    /// they add up to the stored bytes of all sections.
    pub used_len: u64,
}

impl Image {
    /// The generations up to the open one, the newest first.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads 128 bytes for each generation and all index pages.
    pub fn used_by_generation(&self) -> Result<Vec<AppendedBy>> {
        let generations = list_from(&*self.mended, &self.footer)?;
        let mut appended: Vec<AppendedBy> = Vec::new();
        for (no, generation) in generations.iter().enumerate() {
            let before = generations.get(no.saturating_add(1));
            let start = before.map_or(0, |before| before.image_len);
            appended.push(AppendedBy {
                generation: *generation,
                appended_len: generation.image_len.saturating_sub(start),
                used_len: 0,
            });
        }
        let mut add = |offset: u64, len: u64| {
            // The newest is first: those behind `offset` come before the one that has it.
            let no = appended.partition_point(|by| {
                by.generation.image_len.saturating_sub(by.appended_len) > offset
            });
            if let Some(by) = appended.get_mut(no) {
                by.used_len = by.used_len.saturating_add(len);
            }
        };
        let len_of = |record: &RecordRef| record.stored_len.saturating_add(HEADER_LEN as u64);
        for section in &self.directory.sections {
            let pages = section.pages.iter().filter(|page| !page.is_direct());
            pages.for_each(|page| add(page.record.offset, len_of(&page.record)));
            self.records
                .each_ref(section.record_type, section.stream as u8, &mut |record| {
                    add(record.offset, len_of(record));
                    Ok(())
                })?;
        }
        add(
            self.footer.footer_offset.saturating_sub(1),
            self.footer.directory_len,
        );
        Ok(appended)
    }
}
