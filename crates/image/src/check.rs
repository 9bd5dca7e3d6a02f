//! Checking an image: every digest, the whole structure, every content, the tree digest; damage named by path.
//!
//! Cost follows what is stored, not what is named: a template is looked at once however often it appears.

use crate::Image;
use crate::damage::Damage;
use crate::instances::hash_entry;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::container::{FOOTER_LEN, RecordRef, RecordType, SUPERBLOCK_LEN};
use weald_format::directory::PageRef;
use weald_format::entries::{EntryBlock, EntryKind};
use weald_format::pages::{Link, Template};
use weald_format::tree_digest::{ContentHasher, TreeHasher};
use weald_format::{ContentId, Digest, Error, Result};

/// Contents that a thread takes at once.
const CONTENTS_AT_ONCE: u64 = 64;
/// Bytes of a content read at once.
const PIECE_LEN: u64 = 1 << 20;

/// How to check.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Only verify the digests of all records; decode nothing.
    pub digests_only: bool,
    /// Threads that read contents, at least 1.
    pub threads: usize,
    /// Most paths named as damaged; the others are only counted.
    pub path_count_max: u64,
}

/// One thing that is wrong.
#[derive(Debug)]
pub enum Finding {
    /// Something in the image breaks a rule.
    Structure(Error),
    /// A file or directory cannot be served whole. The path begins at the root, without a leading slash.
    Path {
        /// Its path.
        path: Vec<u8>,
        /// What is wrong with it.
        what: String,
    },
}

/// What was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckReport {
    /// Records verified.
    pub record_count: u64,
    /// Stored bytes verified.
    pub stored_len: u64,
    /// Templates checked.
    pub template_count: u64,
    /// Entries checked.
    pub entry_count: u64,
    /// Contents decoded and hashed.
    pub content_count: u64,
    /// Bytes of them.
    pub content_len: u64,
    /// Broken rules found.
    pub structure_count: u64,
    /// Paths that cannot be served whole.
    pub path_count: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.structure_count == 0 && self.path_count == 0
    }
}

/// One check under way.
pub(crate) struct Checker<'a> {
    pub image: &'a Image,
    options: &'a CheckOptions,
    report: CheckReport,
    tell: &'a mut dyn FnMut(Finding),
}

fn bad(rule: &'static str, what: String) -> Error {
    Error::corrupt("tree", 0, rule, what)
}

impl Image {
    /// Checks the image; every finding goes to `tell` as it is found.
    ///
    /// # Errors
    /// None for damage, which is what findings are for.
    /// # Cost
    /// Reads the image twice, decodes every content once; 40 bytes of memory a content and 48 a template.
    pub fn check(&self, options: &CheckOptions, tell: &mut dyn FnMut(Finding)) -> CheckReport {
        let mut checker = Checker { image: self, options, report: CheckReport::default(), tell };
        checker.check_records();
        if !options.digests_only {
            checker.check_tree();
        } else if checker.report.structure_count > 0 {
            checker.name_damage(&[], &[]);
        }
        checker.report
    }
}

impl Checker<'_> {
    fn found(&mut self, error: Error) {
        self.report.structure_count += 1;
        (self.tell)(Finding::Structure(error));
    }

    /// Counts a damaged path, and tells it while there are not too many.
    pub fn found_path(&mut self, path: Vec<u8>, what: String) {
        self.report.path_count += 1;
        if self.report.path_count <= self.options.path_count_max {
            (self.tell)(Finding::Path { path, what });
        }
    }

    /// Verifies every record, and that the records fill the file.
    fn check_records(&mut self) {
        let image = self.image;
        let footer = &image.footer;
        let mut spans = vec![(0, SUPERBLOCK_LEN as u64), (footer.directory_offset, footer.footer_offset)];
        spans.push((footer.footer_offset, footer.footer_offset.saturating_add(FOOTER_LEN as u64)));
        for section in &image.directory.sections {
            for PageRef { record, .. } in &section.pages {
                self.check_record(record, &mut spans);
            }
            let mut records = Vec::new();
            let listed = image.records.each_ref(section.record_type, section.stream as u8, &mut |record| {
                records.push(*record);
                Ok(())
            });
            records.iter().for_each(|record| self.check_record(record, &mut spans));
            if let Err(error) = listed {
                self.found(error);
            }
        }
        spans.sort_unstable();
        let gap = spans.windows(2).find_map(|w| match w {
            [(_, end), (start, _)] if end != start => Some((*end, *start)),
            _ => None,
        });
        if let (Some((end, start)), true, 1) = (gap, self.report.structure_count == 0, footer.generation) {
            let what = format!("bytes {end} to {start} belong to no record, or to two");
            self.found(Error::corrupt("directory", footer.directory_offset, "F-7.11", what));
        }
    }

    fn check_record(&mut self, record: &RecordRef, spans: &mut Vec<(u64, u64)>) {
        spans.push((record.offset, record.end()));
        self.report.record_count += 1;
        self.report.stored_len = self.report.stored_len.saturating_add(record.stored_len);
        if let Err(error) = self.image.records.verify(record) {
            self.found(error);
        }
    }

    fn check_tree(&mut self) {
        let contents = self.check_contents();
        let templates = self.check_templates(&contents);
        let links = self.check_links(&templates);
        let is_damaged = |d: &Option<Digest>| d.is_none();
        if contents.iter().any(is_damaged) || templates.iter().any(|t| t.digest.is_none()) || links.is_none() {
            self.name_damage(&contents, &templates);
            return;
        }
        let holder = match self.image.records.item_count(RecordType::Times, 0) {
            0 => Ok(templates.last().and_then(|t| t.digest).unwrap_or_default()),
            _ => crate::instances::holder_digest(self.image, &contents),
        };
        let holder = match holder {
            Ok(holder) => holder,
            Err(error) => return self.found(error),
        };
        let mut hasher = TreeHasher::new(&holder);
        links.unwrap_or_default().iter().for_each(|l| hasher.add_link(l));
        let digest = hasher.finish();
        if digest != self.image.footer.tree_digest {
            let what = format!("tree digest: expected {}, found {digest}", self.image.footer.tree_digest);
            self.found(bad("F-16.1", what));
        }
    }

    /// Digest of every content; none where it cannot be read.
    fn check_contents(&mut self) -> Vec<Option<Digest>> {
        let image = self.image;
        let count = image.summary.content_count;
        let logical = image.records.item_count(RecordType::Extents, 0);
        let last = count.checked_sub(1).map(|last| image.contents.extent_of(ContentId(last)));
        let end = match last {
            None => Ok(0),
            Some(last) => last.map(|(start, len)| start.saturating_add(len)),
        };
        match end {
            Ok(end) if end != logical => {
                let what = format!("contents end at logical byte {end}, extents at {logical}");
                self.found(bad("F-10.3", what));
            }
            Err(error) => self.found(error),
            Ok(_) => {}
        }
        let next = AtomicU64::new(0);
        let results = Mutex::new((vec![None; usize::try_from(count).unwrap_or(0)], Vec::new(), 0u64));
        std::thread::scope(|scope| {
            for _ in 0..self.options.threads.max(1) {
                scope.spawn(|| check_some_contents(image, &next, count, &results));
            }
        });
        let (digests, errors, len) = match results.into_inner() {
            Ok(results) => results,
            Err(poisoned) => poisoned.into_inner(),
        };
        self.report.content_count = digests.len() as u64;
        self.report.content_len = len;
        // One finding for each damaged record, not for each content in it.
        let mut texts: Vec<String> = Vec::new();
        for error in errors {
            let text = error.to_string();
            if !texts.contains(&text) && texts.len() < 1000 {
                texts.push(text);
                self.found(error);
            }
        }
        digests
    }

    fn check_templates(&mut self, contents: &[Option<Digest>]) -> Vec<CheckedTemplate> {
        let count = self.image.tree.template_count().saturating_add(1);
        let mut checked: Vec<CheckedTemplate> = Vec::new();
        let mut entry_end = 0;
        for id in 0..count {
            let result = self.check_template(id, &mut entry_end, contents, &checked);
            checked.push(result.unwrap_or_else(|error| {
                self.found(error);
                CheckedTemplate::default()
            }));
        }
        self.report.template_count = count;
        self.report.entry_count = entry_end;
        if entry_end != self.image.summary.entry_count && checked.iter().all(|t| t.digest.is_some()) {
            let what = format!("templates hold {entry_end} entries, {} are stored", self.image.summary.entry_count);
            self.found(bad("F-9.6", what));
        }
        checked
    }

    fn check_template(
        &self,
        id: u64,
        entry_end: &mut u64,
        contents: &[Option<Digest>],
        checked: &[CheckedTemplate],
    ) -> Result<CheckedTemplate> {
        let tree = &self.image.tree;
        let template = tree.template(id)?;
        if template.entry_start != *entry_end {
            let what = format!("template {id}: expected first entry {entry_end}, found {}", template.entry_start);
            return Err(bad("F-9.6", what));
        }
        *entry_end = entry_end.saturating_add(template.entry_count);
        let is_holder = id == tree.template_count();
        let mut walk = TemplateWalk {
            image: self.image,
            contents,
            checked,
            id,
            is_holder,
            last_name: None,
            links: Vec::new(),
            hasher: blake3::Hasher::new(),
            is_whole: true,
            result: CheckedTemplate::default(),
            deeper: 0,
            directories: 0,
        };
        let start = template.entry_start;
        tree.each_entry(start, *entry_end, &mut |entry, block, place| {
            walk.entry(entry.saturating_sub(start), block, place)?;
            Ok(ControlFlow::Continue(()))
        })?;
        walk.finish(&template)
    }

    /// The link table, if it is right.
    fn check_links(&mut self, templates: &[CheckedTemplate]) -> Option<Vec<Link>> {
        let links = match self.image.all_links() {
            Ok(links) => links,
            Err(error) => {
                self.found(error);
                return None;
            }
        };
        let expected = templates.last().map_or(0, |t| t.across_count);
        let name_count = self.image.summary.name_count;
        let mut group_counts = std::collections::BTreeMap::<u64, (u64, u64)>::new();
        for link in &links {
            let group = group_counts.entry(link.first_no).or_insert((0, link.nlink));
            group.0 = group.0.saturating_add(1);
            if link.nlink != group.1 || link.name_no > name_count {
                group.1 = u64::MAX;
            }
        }
        let is_right = group_counts.values().all(|(found, nlink)| found == nlink);
        if !is_right || (links.len() as u64 != expected && templates.iter().all(|t| t.digest.is_some())) {
            let what = format!("link table: expected {expected} names in whole groups, found {}", links.len());
            self.found(bad("F-14.3", what));
            return None;
        }
        Some(links)
    }

    fn name_damage(&mut self, contents: &[Option<Digest>], templates: &[CheckedTemplate]) {
        Damage::new(contents, templates).name(self);
    }
}

/// What a checked template is known by.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CheckedTemplate {
    /// Logical digest; none where something in it or below it is damaged.
    pub digest: Option<Digest>,
    /// Names in it and below that the link table must have.
    across_count: u64,
    /// Names below.
    subtree_count: u64,
}

/// The check of one template.
struct TemplateWalk<'a> {
    image: &'a Image,
    contents: &'a [Option<Digest>],
    checked: &'a [CheckedTemplate],
    id: u64,
    is_holder: bool,
    last_name: Option<Vec<u8>>,
    /// What later names of a hard-linked inode must agree with: position, kind, attributes, body, nlink, names seen.
    links: Vec<(u64, EntryKind, u64, u64, u64, u64)>,
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
        if is_odd != self.is_holder || (self.is_holder && block.kind(place) != EntryKind::Directory) {
            return Err(self.bad("F-8.4", at, "forbidden name, or a root that is no directory"));
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
        // With a times overlay the digest that counts is taken instance by instance instead.
        let mtime = block.time(0, place).unwrap_or_default();
        hash_entry(self.image, &mut self.hasher, block, place, mtime, &body)
    }

    fn file(&mut self, at: u64, id: u64) -> Result<Vec<u8>> {
        let digest = usize::try_from(id).ok().and_then(|id| self.contents.get(id));
        match digest {
            None => Err(self.bad("F-10.2", at, "no such content")),
            Some(None) => {
                self.is_whole = false;
                Ok(Vec::new())
            }
            Some(Some(digest)) => Ok(digest.0.to_vec()),
        }
    }

    fn directory(&mut self, at: u64, id: u64) -> Result<Vec<u8>> {
        // `checked` holds the templates before this one only, so a larger id is not there.
        let child = usize::try_from(id).ok().and_then(|id| self.checked.get(id));
        let Some(child) = child else { return Err(self.bad("F-9.4", at, "expected a smaller template")) };
        self.deeper = self.deeper.saturating_add(child.subtree_count);
        self.directories = self.directories.saturating_add(1);
        self.result.across_count = self.result.across_count.saturating_add(child.across_count);
        self.is_whole &= child.digest.is_some();
        Ok(child.digest.unwrap_or_default().0.to_vec())
    }

    fn check_links(&mut self, at: u64, block: &EntryBlock, place: usize) -> Result<()> {
        let kind = block.kind(place);
        let (nlink, back) = (block.nlink(place), block.link_back(place));
        let is_directory = kind == EntryKind::Directory;
        if nlink == 0 {
            self.result.across_count = self.result.across_count.saturating_add(1);
        }
        if (is_directory && nlink != 1) || (nlink < 2 && back != 0) || back > at {
            return Err(self.bad("F-8.8", at, "links out of range"));
        }
        if nlink < 2 {
            return Ok(());
        }
        let body = if kind == EntryKind::Symlink { 0 } else { block.body(place) };
        let attributes = block.attributes(place);
        if back == 0 {
            self.links.push((at, kind, attributes, body, nlink, 1));
            return Ok(());
        }
        let first = at.saturating_sub(back);
        let same = self.links.binary_search_by_key(&first, |l| l.0).ok().and_then(|i| self.links.get_mut(i));
        match same {
            Some(l) if (l.1, l.2, l.3, l.4) == (kind, attributes, body, nlink) => {
                l.5 = l.5.saturating_add(1);
                Ok(())
            }
            _ => Err(self.bad("F-8.8", at, "differs from the first name of its inode")),
        }
    }

    fn finish(mut self, template: &Template) -> Result<CheckedTemplate> {
        if self.links.iter().any(|l| l.4 != l.5) {
            return Err(self.bad("F-8.8", 0, "an inode has fewer or more names than it says"));
        }
        let subtree = template.entry_count.saturating_add(self.deeper);
        if subtree != template.subtree_count || self.directories != template.directory_count {
            let what = format!("expected {} names, found {subtree}", template.subtree_count);
            return Err(self.bad("F-9.5", 0, &what));
        }
        self.result.subtree_count = subtree;
        self.result.digest = self.is_whole.then(|| Digest(*self.hasher.finalize().as_bytes()));
        Ok(self.result)
    }
}

type ContentResults = Mutex<(Vec<Option<Digest>>, Vec<Error>, u64)>;

fn check_some_contents(image: &Image, next: &AtomicU64, count: u64, results: &ContentResults) {
    loop {
        let start = next.fetch_add(CONTENTS_AT_ONCE, Ordering::Relaxed);
        if start >= count {
            return;
        }
        let end = start.saturating_add(CONTENTS_AT_ONCE).min(count);
        let done: Vec<_> = (start..end).map(|id| (id, content_digest(image, ContentId(id)))).collect();
        let Ok(mut results) = results.lock() else { return };
        for (id, result) in done {
            match result {
                Ok((digest, len)) => {
                    if let Some(slot) = usize::try_from(id).ok().and_then(|id| results.0.get_mut(id)) {
                        *slot = Some(digest);
                    }
                    results.2 = results.2.saturating_add(len);
                }
                Err(error) => results.1.push(error),
            }
        }
    }
}

/// Digest and data length of a content, decoded.
fn content_digest(image: &Image, id: ContentId) -> Result<(Digest, u64)> {
    let (_, len) = image.contents.extent_of(id)?;
    let mut runs = Vec::new();
    image.contents.runs(id, 0, &mut |run| {
        if !run.is_hole {
            runs.push((run.offset, run.len));
        }
        ControlFlow::Continue(())
    })?;
    let is_dense = runs == [(0, len)];
    let mut hasher = if is_dense { ContentHasher::dense() } else { ContentHasher::sparse(len, &runs) };
    let mut read = 0u64;
    for (offset, run_len) in runs {
        let mut at = offset;
        let end = offset.saturating_add(run_len);
        while at < end {
            let chunk = image.contents.read(id, at, end.saturating_sub(at).min(PIECE_LEN) as usize)?;
            if chunk.is_empty() {
                return Err(bad("F-10.3", format!("content {id} ends at {at}, expected {end}")));
            }
            hasher.update(&chunk);
            at = at.saturating_add(chunk.len() as u64);
        }
        read = read.saturating_add(run_len);
    }
    Ok((hasher.finish(), read))
}
