//! What is left of a damaged tree, and has no name below the root.

use std::ops::Range;
use weald_format::entries::{EntryBlock, EntryKind};
use weald_format::pages::Template;
use weald_format::{ContentId, Digest};
use weald_image::{Image, Left};

/// What has lost its place in the tree.
#[derive(Debug, Default)]
pub struct Orphans {
    /// Templates to which no entry that is left refers, without those below them.
    pub templates: Vec<u64>,
    /// Entries whose template is lost; the names of a range ascend.
    pub entries: Vec<Range<u64>>,
    /// Contents that can be read and to which no entry that is left refers.
    pub contents: Vec<ContentId>,
}

impl Orphans {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.templates.is_empty() && self.entries.is_empty() && self.contents.is_empty()
    }

    /// Finds what is not below the template `root`, if anything of the tree is lost. Then this
    /// includes what only older generations have, and contents of which recipes make others: a name
    /// that is lost may have led to them.
    ///
    /// # Cost
    /// Reads the metadata; 2 bytes of memory for each template and content.
    pub fn find(image: &Image, digests: &[Option<Digest>], root: Option<u64>) -> Self {
        let summary = image.summary();
        let count = usize::try_from(summary.template_count).unwrap_or(0);
        let mut marks = Marks {
            image,
            is_live: vec![false; count],
            is_named: vec![false; digests.len()],
            has_lost: root.is_none() || image.template(summary.template_count).is_err(),
        };
        if let Some(root) = root {
            mark(&mut marks.is_live, root);
        }
        for id in (0..summary.template_count).rev() {
            if marks.is_live.get(id as usize) == Some(&true) {
                marks.visit(id);
            }
        }
        if !marks.has_lost {
            return Self::default();
        }
        let entries = marks.uncovered();
        let mut templates = Vec::new();
        for id in (0..summary.template_count).rev() {
            let is_live = marks.is_live.get(id as usize) == Some(&true);
            if !is_live && image.template(id).is_ok() && !marks.is_old_holder(id) {
                templates.push(id);
                mark(&mut marks.is_live, id);
            }
            if marks.is_live.get(id as usize) == Some(&true) {
                marks.visit(id);
            }
        }
        let is_nameless = |id: &usize| digests[*id].is_some() && !marks.is_named[*id];
        let contents = (0..digests.len()).filter(is_nameless);
        let contents = contents.map(|id| ContentId(id as u64)).collect();
        Self {
            templates,
            entries,
            contents,
        }
    }
}

fn mark(marks: &mut [bool], no: u64) {
    let mark = usize::try_from(no).ok().and_then(|no| marks.get_mut(no));
    if let Some(mark) = mark {
        *mark = true;
    }
}

struct Marks<'a> {
    image: &'a Image,
    /// By number, whether a name leads to the template.
    is_live: Vec<bool>,
    /// By number, whether a name leads to the content.
    is_named: Vec<bool>,
    /// Whether anything of the tree is lost.
    has_lost: bool,
}

impl Marks<'_> {
    fn range_of(&self, template: &Template) -> Range<u64> {
        let end = template.entry_start.saturating_add(template.entry_count);
        template.entry_start..end.min(self.image.summary().entry_count)
    }

    /// Marks what the entries of template `id` lead to.
    fn visit(&mut self, id: u64) {
        match self.image.template(id) {
            Ok(template) => {
                let range = self.range_of(&template);
                self.visit_entries(range, id);
            }
            Err(_) => self.has_lost = true,
        }
    }

    fn visit_entries(&mut self, range: Range<u64>, parent: u64) {
        let image = self.image;
        let visited = image.each_left_entry(range, &mut |left| {
            match left {
                Left::Entry(_, block, place) => self.entry(block, place, parent),
                Left::Lost(..) => self.has_lost = true,
            }
            Ok(())
        });
        debug_assert!(visited.is_ok());
    }

    fn entry(&mut self, block: &EntryBlock, place: usize, parent: u64) {
        let body = block.body(place);
        match block.kind(place) {
            EntryKind::File => mark(&mut self.is_named, body),
            EntryKind::Directory if body < parent => mark(&mut self.is_live, body),
            EntryKind::Directory => self.has_lost = true,
            _ => {}
        }
    }

    /// Whether the template holds the root of an older generation.
    fn is_old_holder(&self, id: u64) -> bool {
        let Ok(template) = self.image.template(id) else {
            return false;
        };
        let mut is_nameless = false;
        if template.entry_count == 1 {
            let range = self.range_of(&template);
            let _ = self.image.each_left_entry(range, &mut |left| {
                if let Left::Entry(_, block, place) = left {
                    is_nameless = block.name(place).is_empty();
                }
                Ok(())
            });
        }
        is_nameless
    }

    /// The entries that belong to no template that is left, cut where names do not ascend. Marks
    /// what they lead to.
    fn uncovered(&mut self) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut end = 0;
        for id in 0..=self.image.summary().template_count {
            if let Ok(template) = self.image.template(id) {
                let range = self.range_of(&template);
                if range.start > end {
                    gaps.push(end..range.start);
                }
                end = end.max(range.end);
            }
        }
        let entry_count = self.image.summary().entry_count;
        if end < entry_count {
            gaps.push(end..entry_count);
        }
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for gap in gaps {
            self.cut(gap.clone(), &mut ranges);
            let parent = self.image.summary().template_count;
            self.visit_entries(gap, parent);
        }
        ranges
    }

    fn cut(&self, gap: Range<u64>, ranges: &mut Vec<Range<u64>>) {
        let mut last: Option<Vec<u8>> = None;
        let visited = self.image.each_left_entry(gap, &mut |left| {
            let Left::Entry(at, block, place) = left else {
                last = None;
                return Ok(());
            };
            let name = block.name(place);
            if name.is_empty() {
                // The root of this or of an older generation.
                last = None;
                return Ok(());
            }
            match (&last, ranges.last_mut()) {
                (Some(before), Some(range)) if &**before < name => {
                    range.end = at.saturating_add(1);
                }
                _ => ranges.push(at..at.saturating_add(1)),
            }
            last = Some(name.to_vec());
            Ok(())
        });
        debug_assert!(visited.is_ok());
    }
}
