//! Finds the damaged paths: a walk from the root that enters only directories with damage below.

use super::findings::Checker;
use super::templates::CheckedTemplate;
use crate::tree::view::DirectoryView;
use std::ops::ControlFlow;
use weald_format::entries::EntryKind;
use weald_format::{Digest, Result};

/// Longest path that the walk enters; a longer one is only reported. A forged tree can be deep
/// without being large.
const PATH_LEN_MAX: usize = 1 << 14;

/// A damaged entry of a directory.
enum Below {
    Content(Vec<u8>),
    /// Path and entry index of a sub-directory.
    Directory(Vec<u8>, u64),
}

struct PathReporter<'a> {
    contents: &'a [Option<Digest>],
    templates: &'a [CheckedTemplate],
    /// Paths that may still be reported.
    remaining_count: u64,
}

/// Counts every path that cannot be read completely, and reports the first ones. `contents` and
/// `templates` say for each number whether it is damaged.
///
/// # Cost
/// O(templates) to count; to report a path, the directories in the path.
pub fn report_paths(
    checker: &mut Checker<'_>,
    contents: &[Option<Digest>],
    templates: &[CheckedTemplate],
) {
    let Some(holder) = templates.last().filter(|t| t.is_damaged()) else {
        return;
    };
    checker.report.path_count = holder.damaged_count;
    let mut reporter = PathReporter {
        contents,
        templates,
        remaining_count: checker.options.path_count_max,
    };
    let root = checker.image.tree.directory(1);
    match root.map(|root| (reporter.template(root.template_id).is_broken, root)) {
        Ok((false, root)) if !holder.is_broken => reporter.walk(checker, root),
        Ok(_) => reporter.report(
            checker,
            Vec::new(),
            "the root directory is damaged".to_owned(),
        ),
        Err(error) => reporter.report(
            checker,
            Vec::new(),
            format!("the root directory cannot be read: {error}"),
        ),
    }
}

impl PathReporter<'_> {
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

    fn report(&mut self, checker: &mut Checker<'_>, path: Vec<u8>, what: String) {
        if self.remaining_count > 0 {
            self.remaining_count = self.remaining_count.saturating_sub(1);
            checker.report_path(path, what);
        }
    }

    fn walk(&mut self, checker: &mut Checker<'_>, root: DirectoryView) {
        let mut open = vec![(Vec::new(), root)];
        while let Some((path, view)) = open.pop().filter(|_| self.remaining_count > 0) {
            let mut enter = Vec::new();
            if let Err(error) = self.report_entries(checker, &path, &view, &mut enter) {
                self.report(checker, path, format!("directory cannot be read: {error}"));
            }
            enter.reverse();
            open.append(&mut enter);
        }
    }

    fn report_entries(
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
                    self.report(checker, path, "content is damaged".to_owned());
                    continue;
                }
                Below::Directory(path, position) => (path, position),
            };
            let child = tree.child_view(view, position)?;
            if self.template(child.template_id).is_broken {
                self.report(checker, path, "directory is damaged".to_owned());
            } else if path.len() > PATH_LEN_MAX {
                self.report(checker, path, "something below is damaged".to_owned());
            } else {
                enter.push((path, child));
            }
        }
        Ok(())
    }

    /// The damaged entries of `view`, as many as may still be reported.
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
                Ok(if damaged.len() as u64 >= self.remaining_count {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            })?;
        Ok(damaged)
    }
}
