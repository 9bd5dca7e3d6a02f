//! Which contents of an image its tree uses. An image that continues another one has more: names
//! that are gone leave their contents behind.

use crate::image::Image;
use weald_format::entries::EntryKind;
use weald_format::{ContentId, Result};

/// Marks `no`; returns whether it was unmarked.
fn mark(marks: &mut [bool], no: u64) -> bool {
    let mark = usize::try_from(no).ok().and_then(|no| marks.get_mut(no));
    mark.is_some_and(|mark| !std::mem::replace(mark, true))
}

impl Image {
    /// For each content by number, whether a name of the tree leads to it, or a recipe for such a
    /// content reads it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads the metadata; 64 bytes of memory for each template.
    pub fn used_contents(&self) -> Result<Vec<bool>> {
        let mut templates = Vec::new();
        self.each_template(&mut |_, template| {
            templates.push(template);
            Ok(())
        })?;
        let count = usize::try_from(self.summary().content_count).unwrap_or(0);
        let mut is_used = vec![false; count];
        let mut is_live = vec![false; templates.len()];
        // The last one holds the root, and every template has a higher number than those below it.
        if let Some(root) = is_live.last_mut() {
            *root = true;
        }
        for (no, template) in templates.iter().enumerate().rev() {
            if is_live.get(no) != Some(&true) {
                continue;
            }
            self.each_entry_of(template, &mut |block, place| {
                match block.kind(place) {
                    EntryKind::File => mark(&mut is_used, block.body(place)),
                    EntryKind::Directory => mark(&mut is_live, block.body(place)),
                    _ => false,
                };
                Ok(())
            })?;
        }
        for id in self.contents_from_recipes()? {
            let index = usize::try_from(id.0).unwrap_or(usize::MAX);
            if is_used.get(index) == Some(&true) {
                self.mark_recipe_inputs(id, &mut is_used)?;
            }
        }
        Ok(is_used)
    }

    /// Marks the contents that recipes for content `id` read.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn mark_recipe_inputs(&self, id: ContentId, marks: &mut [bool]) -> Result<()> {
        for input in self.recipe_inputs_of(id)? {
            mark(marks, input.0);
        }
        Ok(())
    }
}
