//! Naming damage by path: a walk from the root that enters only directories with something damaged below.

use crate::check::{CheckedTemplate, Checker};
use crate::tree::DirectoryView;
use std::ops::ControlFlow;
use weald_format::entries::EntryKind;
use weald_format::{Digest, Result};

/// What is known to be damaged; where nothing is known, everything is tried.
pub(crate) struct Damage<'a> {
    contents: &'a [Option<Digest>],
    templates: &'a [CheckedTemplate],
}

impl<'a> Damage<'a> {
    /// Damage by content and template id.
    pub fn new(contents: &'a [Option<Digest>], templates: &'a [CheckedTemplate]) -> Self {
        Self { contents, templates }
    }

    fn is_template_damaged(&self, id: u64) -> bool {
        let template = usize::try_from(id).ok().and_then(|id| self.templates.get(id));
        template.is_none_or(|t| t.digest.is_none())
    }

    fn is_content_damaged(&self, id: u64) -> bool {
        let content = usize::try_from(id).ok().and_then(|id| self.contents.get(id));
        content.is_none_or(Option::is_none)
    }

    /// Tells `checker` every path that cannot be served whole.
    pub fn name(&self, checker: &mut Checker<'_>) {
        let image = checker.image;
        let root = match image.tree.directory(1) {
            Ok(root) => root,
            Err(error) => {
                checker.found_path(Vec::new(), format!("the root directory cannot be read: {error}"));
                return;
            }
        };
        let mut open = vec![(Vec::new(), root)];
        while let Some((path, view)) = open.pop() {
            let mut below = Vec::new();
            if let Err(error) = self.name_in(checker, &path, &view, &mut below) {
                checker.found_path(path.clone(), format!("directory cannot be read: {error}"));
            }
            below.reverse();
            open.append(&mut below);
        }
    }

    fn name_in(
        &self,
        checker: &mut Checker<'_>,
        path: &[u8],
        view: &DirectoryView,
        below: &mut Vec<(Vec<u8>, DirectoryView)>,
    ) -> Result<()> {
        let image = checker.image;
        let join = |name: &[u8]| match path {
            b"" => name.to_vec(),
            _ => [path, b"/", name].concat(),
        };
        let start = view.template.entry_start;
        let end = start.saturating_add(view.template.entry_count);
        let mut damaged = Vec::new();
        image.tree.each_entry(start, end, &mut |entry, block, place| {
            let no = view.base.saturating_add(entry.saturating_sub(start));
            match block.kind(place) {
                EntryKind::File if self.is_content_damaged(block.body(place)) => {
                    damaged.push((join(block.name(place)), None));
                }
                EntryKind::Directory if self.is_template_damaged(block.body(place)) => {
                    damaged.push((join(block.name(place)), Some(no)));
                }
                _ => {}
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for (path, directory) in damaged {
            match directory.map(|no| image.tree.directory(no)) {
                None => checker.found_path(path, "content is damaged".to_owned()),
                Some(Ok(view)) => below.push((path, view)),
                Some(Err(error)) => checker.found_path(path, format!("directory cannot be read: {error}")),
            }
        }
        Ok(())
    }
}
