//! Checks one template: its entries, links, counts and logical digest.

use super::tree_digest::hash_entry;
use crate::image::Image;
use std::ops::ControlFlow;
use weald_format::entries::{EntryBlock, EntryKind};
use weald_format::limits::DEPTH_MAX;
use weald_format::pages::Template;
use weald_format::{Digest, Error, Result, Timestamp};

/// Result of the check of a template.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckedTemplate {
    /// Logical digest; `None` if the template or one below it is damaged.
    pub digest: Option<Digest>,
    /// Whether the template itself breaks a rule or cannot be read.
    pub is_broken: bool,
    /// Names in it and below that must be in the link table.
    pub across_count: u64,
    /// Damaged paths in it and below; 1 if the template itself is broken.
    pub damaged_count: u64,
    /// Names below.
    subtree_count: u64,
    /// Levels of directories below, this one included.
    depth: u64,
    /// Whether it holds the root of this generation or of an older one, so that no directory may
    /// refer to it.
    is_holder: bool,
}

impl CheckedTemplate {
    /// A template that breaks a rule and states `subtree_count` names below.
    pub const fn broken(subtree_count: u64) -> Self {
        Self {
            digest: None,
            is_broken: true,
            across_count: 0,
            damaged_count: 1,
            subtree_count,
            depth: 0,
            is_holder: false,
        }
    }

    /// Whether the template or one below it is damaged.
    pub const fn is_damaged(&self) -> bool {
        self.digest.is_none()
    }
}

fn bad(rule: &'static str, what: String) -> Error {
    Error::corrupt("template", 0, rule, what)
}

/// Checks template `id`, whose entries must begin at `entry_end`; advances `entry_end` to their
/// end. `checked` are the templates with smaller numbers.
///
/// # Errors
/// `Corrupt` if the template breaks a rule; `Io`.
pub fn check_template(
    image: &Image,
    id: u64,
    entry_end: &mut u64,
    contents: &[Option<Digest>],
    checked: &[CheckedTemplate],
) -> Result<CheckedTemplate> {
    let tree = &image.tree;
    let template = tree.template(id)?;
    let start = *entry_end;
    // The next template can be correct even if this one is not.
    *entry_end = template.entry_start.saturating_add(template.entry_count);
    if template.entry_start != start {
        let what = format!(
            "template {id}: expected first entry {start}, found {}",
            template.entry_start
        );
        return Err(bad("F-9.6", what));
    }
    let mut walk = TemplateWalk {
        image,
        contents,
        checked,
        id,
        is_holder: id == tree.template_count() || is_old_holder(image, &template)?,
        last_name: None,
        links: Vec::new(),
        hasher: blake3::Hasher::new(),
        is_whole: true,
        result: CheckedTemplate::default(),
        deeper: 0,
        directories: 0,
    };
    tree.each_entry(start, *entry_end, &mut |entry, block, place| {
        walk.entry(entry.saturating_sub(start), block, place)?;
        Ok(ControlFlow::Continue(()))
    })?;
    walk.finish(&template)
}

/// Whether the template holds the root of an older generation. Nothing refers to it any more.
fn is_old_holder(image: &Image, template: &Template) -> Result<bool> {
    let mut is_nameless = false;
    if template.entry_count == 1 {
        image.each_entry_of(template, &mut |block, place| {
            is_nameless = block.name(place).is_empty();
            Ok(())
        })?;
    }
    Ok(is_nameless)
}

/// Attributes in which all names of a hard-linked inode agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shared {
    kind: EntryKind,
    attributes: u64,
    xattrs: u64,
    body: u64,
    target: Digest,
    times: [Option<Timestamp>; 4],
    nlink: u64,
}

impl Shared {
    fn of(block: &EntryBlock, place: usize) -> Self {
        let kind = block.kind(place);
        Self {
            kind,
            attributes: block.attributes(place),
            xattrs: block.xattrs(place),
            // The body of a symlink is only the offset of its target in the block.
            body: if kind == EntryKind::Symlink {
                0
            } else {
                block.body(place)
            },
            target: Digest::of(block.target(place)),
            times: [0, 1, 2, 3].map(|which| block.time(which, place)),
            nlink: block.nlink(place),
        }
    }
}

/// The first name of a hard-linked inode, and the number of its names so far.
struct FirstName {
    position: u64,
    shared: Shared,
    seen_count: u64,
}

/// The check of one template.
struct TemplateWalk<'a> {
    image: &'a Image,
    contents: &'a [Option<Digest>],
    checked: &'a [CheckedTemplate],
    id: u64,
    is_holder: bool,
    last_name: Option<Vec<u8>>,
    links: Vec<FirstName>,
    hasher: blake3::Hasher,
    is_whole: bool,
    result: CheckedTemplate,
    deeper: u64,
    directories: u64,
}

impl TemplateWalk<'_> {
    fn bad(&self, rule: &'static str, at: u64, what: &str) -> Error {
        bad(rule, format!("template {}, entry {at}: {what}", self.id))
    }

    fn entry(&mut self, at: u64, block: &EntryBlock, place: usize) -> Result<()> {
        let name = block.name(place);
        let is_odd = matches!(name, b"" | b"." | b"..");
        let is_rootless =
            self.is_holder && (!name.is_empty() || block.kind(place) != EntryKind::Directory);
        if is_odd != self.is_holder || is_rootless {
            return Err(self.bad(
                "F-8.4",
                at,
                "forbidden name, or a root that is no directory",
            ));
        }
        if self.last_name.as_deref().is_some_and(|last| last >= name) {
            return Err(self.bad("F-8.7", at, "names are not in byte order"));
        }
        self.last_name = Some(name.to_vec());
        self.check_links(at, block, place)?;
        let body = match block.kind(place) {
            EntryKind::File => self.file(at, block.body(place))?,
            EntryKind::Directory => self.directory(at, block.body(place))?,
            EntryKind::Symlink => block.target(place).to_vec(),
            _ => Vec::new(),
        };
        // With a times overlay, the tree digest is computed for each instance instead.
        let mtime = block.time(0, place).unwrap_or_default();
        hash_entry(self.image, &mut self.hasher, block, place, mtime, &body)
    }

    fn file(&mut self, at: u64, id: u64) -> Result<Vec<u8>> {
        let digest = usize::try_from(id)
            .ok()
            .and_then(|id| self.contents.get(id));
        match digest {
            None => Err(self.bad("F-10.2", at, "no such content")),
            Some(None) => {
                self.is_whole = false;
                self.result.damaged_count = self.result.damaged_count.saturating_add(1);
                Ok(Vec::new())
            }
            Some(Some(digest)) => Ok(digest.0.to_vec()),
        }
    }

    fn directory(&mut self, at: u64, id: u64) -> Result<Vec<u8>> {
        // `checked` has only templates with smaller numbers, so that a larger number is not found.
        let child = usize::try_from(id).ok().and_then(|id| self.checked.get(id));
        let Some(child) = child.filter(|c| !c.is_holder) else {
            return Err(self.bad(
                "F-9.4",
                at,
                "expected a smaller template that holds no root",
            ));
        };
        self.deeper = self.deeper.saturating_add(child.subtree_count);
        self.directories = self.directories.saturating_add(1);
        let result = &mut self.result;
        result.across_count = result.across_count.saturating_add(child.across_count);
        result.damaged_count = result.damaged_count.saturating_add(child.damaged_count);
        result.depth = result.depth.max(child.depth);
        self.is_whole &= !child.is_damaged();
        Ok(child.digest.unwrap_or_default().0.to_vec())
    }

    fn check_links(&mut self, at: u64, block: &EntryBlock, place: usize) -> Result<()> {
        let (nlink, back) = (block.nlink(place), block.link_back(place));
        if nlink == 0 {
            self.result.across_count = self.result.across_count.saturating_add(1);
        }
        let is_directory = block.kind(place) == EntryKind::Directory;
        if (is_directory && nlink != 1) || (nlink < 2 && back != 0) || back > at {
            return Err(self.bad("F-8.8", at, "links out of range"));
        }
        if nlink < 2 {
            return Ok(());
        }
        let shared = Shared::of(block, place);
        if back == 0 {
            self.links.push(FirstName {
                position: at,
                shared,
                seen_count: 1,
            });
            return Ok(());
        }
        let first = at.saturating_sub(back);
        let same = self.links.binary_search_by_key(&first, |l| l.position).ok();
        match same.and_then(|i| self.links.get_mut(i)) {
            Some(first) if first.shared == shared => {
                first.seen_count = first.seen_count.saturating_add(1);
                Ok(())
            }
            _ => Err(self.bad("F-8.8", at, "differs from the first name of its inode")),
        }
    }

    fn finish(mut self, template: &Template) -> Result<CheckedTemplate> {
        if self.links.iter().any(|l| l.shared.nlink != l.seen_count) {
            return Err(self.bad(
                "F-8.8",
                0,
                "an inode has more or fewer names than its link count",
            ));
        }
        let subtree = template.entry_count.saturating_add(self.deeper);
        if subtree != template.subtree_count || self.directories != template.directory_count {
            let what = format!("expected {} names, found {subtree}", template.subtree_count);
            return Err(self.bad("F-9.5", 0, &what));
        }
        self.result.depth = self.result.depth.saturating_add(1);
        if self.result.depth > DEPTH_MAX as u64 {
            return Err(self.bad("F-9.7", 0, "directories are nested too deeply"));
        }
        self.result.subtree_count = template.subtree_count;
        self.result.is_holder = self.is_holder;
        self.result.digest = self
            .is_whole
            .then(|| Digest(*self.hasher.finalize().as_bytes()));
        Ok(self.result)
    }
}
