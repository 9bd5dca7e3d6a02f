//! Template pages.

use crate::Result;
use crate::column::{self, Column};
use crate::cursor::{Cursor, put_varint};
use crate::limits::{ITEMS_PER_PAGE, NUMBER_MAX};

/// A template: one distinct directory, without its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Template {
    /// Index of its first entry.
    pub entry_start: u64,
    /// Number of its entries.
    pub entry_count: u64,
    /// Number of names in the subtree below it, its own entries included.
    pub subtree_count: u64,
    /// Number of its entries that are directories.
    pub directory_count: u64,
}

/// A page of up to `ITEMS_PER_PAGE` templates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplatePage {
    entry_starts: Vec<u64>,
    subtree_counts: Column,
    directory_counts: Column,
}

impl TemplatePage {
    /// Encodes consecutive templates. Only the first `entry_start` is stored; the others follow
    /// from it.
    // trusted input: values of this program
    #[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
    pub fn encode(templates: &[Template]) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, templates.len() as u64);
        put_varint(&mut out, templates.first().map_or(0, |t| t.entry_start));
        let columns: [fn(&Template) -> u64; 3] = [
            |t| t.entry_count,
            |t| t.subtree_count - t.entry_count,
            |t| t.directory_count,
        ];
        for of in columns {
            column::encode(&mut out, &templates.iter().map(of).collect::<Vec<_>>());
        }
        out
    }

    /// Parses a page.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "template page");
        let count = cursor.count(ITEMS_PER_PAGE, "template count")?;
        let first = cursor.bounded(NUMBER_MAX, "first entry")?;
        let entry_counts = Column::decode(&mut cursor, count)?;
        let deeper_counts = Column::decode(&mut cursor, count)?;
        let directory_counts = Column::decode(&mut cursor, count)?;
        let mut entry_starts = vec![first];
        let mut start = first;
        let mut subtree_counts = Vec::with_capacity(count);
        for i in 0..count {
            start = start.saturating_add(entry_counts.get(i));
            entry_starts.push(start);
            let subtree = entry_counts.get(i).saturating_add(deeper_counts.get(i));
            if start > NUMBER_MAX
                || subtree > NUMBER_MAX
                || directory_counts.get(i) > entry_counts.get(i)
            {
                return Err(cursor.error(
                    "F-9.1",
                    format!("template {i} of the page: counts out of range"),
                ));
            }
            subtree_counts.push(subtree);
        }
        cursor.finish()?;
        Ok(Self {
            entry_starts,
            subtree_counts: Column::Values(subtree_counts),
            directory_counts,
        })
    }

    /// Templates in the page.
    pub fn count(&self) -> usize {
        self.entry_starts.len().saturating_sub(1)
    }

    /// Template `index` of the page.
    pub fn get(&self, index: usize) -> Option<Template> {
        let &start = self.entry_starts.get(index)?;
        let &end = self.entry_starts.get(index.checked_add(1)?)?;
        Some(Template {
            entry_start: start,
            entry_count: end.saturating_sub(start),
            subtree_count: self.subtree_counts.get(index),
            directory_count: self.directory_counts.get(index),
        })
    }

    /// Bytes of heap memory of the page.
    pub fn memory_len(&self) -> usize {
        self.count().saturating_mul(24)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::damage::check_damaged;

    #[test]
    fn templates_round_trip() {
        let mut start = 77;
        let templates: Vec<Template> = (0..50)
            .map(|i| {
                let t = Template {
                    entry_start: start,
                    entry_count: i % 7,
                    subtree_count: i % 7 + i,
                    directory_count: i % 3 % (i % 7 + 1),
                };
                start += t.entry_count;
                t
            })
            .collect();
        let bytes = TemplatePage::encode(&templates);
        let page = TemplatePage::parse(&bytes).unwrap();
        assert_eq!(
            (0..50).map(|i| page.get(i).unwrap()).collect::<Vec<_>>(),
            templates
        );
        assert!(page.get(50).is_none());
        check_damaged(&bytes, TemplatePage::parse);
    }
}
