//! Naming damage by path: a walk from the root that enters only directories with something damaged
//! below.

use crate::check::Checker;
use crate::template_check::CheckedTemplate;
use crate::tree::DirectoryView;
use std::ops::ControlFlow;
use weald_format::entries::EntryKind;
use weald_format::{Digest, Result};

/// Paths longer than this are named, but not entered: a forged tree can be deep without being
/// large.
const PATH_LEN_MAX: usize = 1 << 14;

/// Something damaged in a directory.
enum Below {
    Content(Vec<u8>),
    /// Path and position of a sub-directory.
    Directory(Vec<u8>, u64),
}

struct Namer<'a> {
    contents: &'a [Option<Digest>],
    templates: &'a [CheckedTemplate],
    /// Paths that may still be named.
    left_count: u64,
}

/// Counts every path that cannot be served whole, and tells the first ones; `contents` and
/// `templates` say by id what is damaged.
///
/// # Cost
/// O(templates) to count; to tell, the directories on the way to each path.
pub(crate) fn name(
    checker: &mut Checker<'_>,
    contents: &[Option<Digest>],
    templates: &[CheckedTemplate],
) {
    let Some(holder) = templates.last().filter(|t| t.is_damaged()) else {
        return;
    };
    checker.report.path_count = holder.damaged_count;
    let mut namer = Namer {
        contents,
        templates,
        left_count: checker.options.path_count_max,
    };
    let root = checker.image.tree.directory(1);
    match root.map(|root| (namer.template(root.template_id).is_broken, root)) {
        Ok((false, root)) if !holder.is_broken => namer.walk(checker, root),
        Ok(_) => namer.tell(
            checker,
            Vec::new(),
            "the root directory is damaged".to_owned(),
        ),
        Err(error) => namer.tell(
            checker,
            Vec::new(),
            format!("the root directory cannot be read: {error}"),
        ),
    }
}

impl Namer<'_> {
    fn template(&self, id: u64) -> CheckedTemplate {
        let template = usize::try_from(id)
            .ok()
            .and_then(|id| self.templates.get(id));
        template.copied().unwrap_or(CheckedTemplate::broken(0))
    }

    fn is_content_damaged(&self, id: u64) -> bool {
        let content = usize::try_from(id)
            .ok()
            .and_then(|id| self.contents.get(id));
        content.is_none_or(Option::is_none)
    }

    fn tell(&mut self, checker: &mut Checker<'_>, path: Vec<u8>, what: String) {
        if self.left_count > 0 {
            self.left_count = self.left_count.saturating_sub(1);
            checker.tell_path(path, what);
        }
    }

    fn walk(&mut self, checker: &mut Checker<'_>, root: DirectoryView) {
        let mut open = vec![(Vec::new(), root)];
        while let Some((path, view)) = open.pop().filter(|_| self.left_count > 0) {
            let mut enter = Vec::new();
            if let Err(error) = self.name_in(checker, &path, &view, &mut enter) {
                self.tell(checker, path, format!("directory cannot be read: {error}"));
            }
            enter.reverse();
            open.append(&mut enter);
        }
    }

    fn name_in(
        &mut self,
        checker: &mut Checker<'_>,
        path: &[u8],
        view: &DirectoryView,
        enter: &mut Vec<(Vec<u8>, DirectoryView)>,
    ) -> Result<()> {
        let tree = &checker.image.tree;
        for damaged in self.damaged_in(checker, path, view)? {
            let (path, position) = match damaged {
                Below::Content(path) => {
                    self.tell(checker, path, "content is damaged".to_owned());
                    continue;
                }
                Below::Directory(path, position) => (path, position),
            };
            let child = tree.child_view(view, position)?;
            if self.template(child.template_id).is_broken {
                self.tell(checker, path, "directory is damaged".to_owned());
            } else if path.len() > PATH_LEN_MAX {
                self.tell(checker, path, "something deeper down is damaged".to_owned());
            } else {
                enter.push((path, child));
            }
        }
        Ok(())
    }

    /// What is damaged in `view`, no more than may still be named.
    fn damaged_in(
        &self,
        checker: &Checker<'_>,
        path: &[u8],
        view: &DirectoryView,
    ) -> Result<Vec<Below>> {
        let join = |name: &[u8]| match path {
            b"" => name.to_vec(),
            _ => [path, b"/", name].concat(),
        };
        let start = view.template.entry_start;
        let end = start.saturating_add(view.template.entry_count);
        let mut damaged = Vec::new();
        checker
            .image
            .tree
            .each_entry(start, end, &mut |entry, block, place| {
                let name = block.name(place);
                match block.kind(place) {
                    EntryKind::File if self.is_content_damaged(block.body(place)) => {
                        damaged.push(Below::Content(join(name)));
                    }
                    EntryKind::Directory if self.template(block.body(place)).is_damaged() => {
                        damaged.push(Below::Directory(join(name), entry.saturating_sub(start)));
                    }
                    _ => {}
                }
                Ok(match damaged.len() as u64 >= self.left_count {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                })
            })?;
        Ok(damaged)
    }
}
