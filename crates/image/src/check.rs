//! The check of an image: every digest, the whole structure, every content, the tree digest.
//! Reports damage by path.
//!
//! The cost depends on what is stored, not on the number of names: a template is checked once,
//! however often it occurs. `findings` collects the defects, `content_digests` hashes contents,
//! `tree_digest` hashes directories, `templates` and `contents` check these, `damage` finds the
//! damaged paths.

pub mod computed;
pub mod content_digests;
mod contents;
mod damage;
pub mod findings;
mod parallel;
mod templates;
mod tree_digest;

use crate::image::Image;
use crate::open::mended;
use findings::{CheckOptions, CheckReport, Checker, Finding};
use parallel::{in_parallel, threads_for};
use std::collections::BTreeMap;
use templates::{CheckedTemplate, check_template};
use weald_format::container::{FOOTER_LEN, HEADER_LEN, RecordRef, RecordType, SUPERBLOCK_LEN};
use weald_format::directory::PageRef;
use weald_format::pages::Link;
use weald_format::tree_digest::TreeHasher;
use weald_format::{Digest, Error, InodeNo, Result};

/// A step of the check of all records.
enum Step {
    /// Reports a defect of the lists.
    BasePlace(Error),
    Verify(RecordRef),
}

fn bad(rule: &'static str, what: String) -> Error {
    Error::corrupt("tree", 0, rule, what)
}

impl Image {
    /// Checks the image; passes every defect to `report_finding` when it is found.
    ///
    /// # Cost
    /// Reads the image twice, decodes every content once; 40 bytes of memory for each content and
    /// 64 for each template.
    pub fn check(
        &self,
        options: &CheckOptions,
        report_finding: &mut dyn FnMut(Finding),
    ) -> CheckReport {
        self.records.remember_failures(true);
        let mut checker = Checker::new(self, options, report_finding);
        let is_bounded = checker.check_records();
        let is_damaged = checker.report.structure_count > 0;
        match options.digests_only {
            // Overlapping records could make the rest cost more than an image of this length may.
            _ if !is_bounded => {}
            true if is_damaged => checker.report_digest_damage(),
            true => {}
            false => checker.check_tree(),
        }
        // What a later step met first, such as damage that came meanwhile.
        checker.report_mended();
        self.records.remember_failures(false);
        checker.report
    }
}

impl Image {
    /// Checks everything but the data: the records of the metadata, all pages, directories and hard
    /// links. `digests` are the digests of all contents, as the writer of the image computed them
    /// from the data; with them, the tree digest too.
    ///
    /// # Errors
    /// The first broken rule; `Io`.
    /// # Cost
    /// Reads the metadata twice; no data.
    pub fn check_structure(&self, digests: Option<&[Option<Digest>]>) -> Result<()> {
        let options = CheckOptions {
            digests_only: false,
            threads: 1,
            path_count_max: 0,
        };
        let mut first = None;
        let mut keep_first = |finding| {
            if let Finding::Structure(error) = finding {
                first.get_or_insert(error);
            }
        };
        let mut checker = Checker::new(self, &options, &mut keep_first);
        checker.skips_data = true;
        if checker.check_records() {
            checker.check_tree_of(digests);
        }
        let path_count = checker.report.path_count;
        match first {
            Some(error) => Err(error),
            None if path_count > 0 => Err(bad("F-9.3", format!("{path_count} damaged paths"))),
            None => Ok(()),
        }
    }
}

impl Checker<'_> {
    /// Verifies every record, and that the records fill the file without gaps. Returns false if
    /// they overlap.
    fn check_records(&mut self) -> bool {
        let image = self.image;
        let footer = &image.footer;
        let footer_end = footer.footer_offset.saturating_add(FOOTER_LEN as u64);
        let mut spans = vec![
            (0, SUPERBLOCK_LEN as u64),
            (footer.directory_offset, footer.footer_offset),
            (footer.footer_offset, footer_end),
        ];
        let mut steps = Vec::new();
        let is_bounded = self.list_records(&mut spans, &mut steps);
        self.verify_records(steps);
        if !is_bounded {
            return false;
        }
        if let Some((record, error)) = mended::verify(&*image.mended, footer) {
            spans.push((record.offset, record.end()));
            error.into_iter().for_each(|error| self.found(error));
        }
        self.report_mended();
        spans.sort_unstable();
        let neighbours = spans.windows(2).filter_map(|w| match w {
            [(_, end), (start, _)] if end != start => Some((*end, *start)),
            _ => None,
        });
        // An unreadable index page leaves gaps, and so do records that only older generations use.
        let gaps_count = self.report.structure_count == 0 && footer.generation == 1;
        // Before the directory there are copies, or the last new record.
        let is_before_directory = |start: u64| start == footer.directory_offset;
        let wrong = neighbours
            .into_iter()
            .find(|(end, start)| end > start || gaps_count || is_before_directory(*start));
        if let Some((end, start)) = wrong {
            let what = format!(
                "bytes {} to {} belong to no record, or to two",
                end.min(start),
                end.max(start)
            );
            self.found(Error::corrupt(
                "directory",
                footer.directory_offset,
                "F-7.11",
                what,
            ));
            return end < start;
        }
        true
    }

    /// Reports everything that was read from second copies.
    fn report_mended(&mut self) {
        let damage = self.image.mended.damage();
        damage.into_iter().for_each(|error| self.found(error));
    }

    /// Lists every record and what is wrong with their lists. Returns false if the records are
    /// longer than the file, so that some overlap; the list ends there.
    fn list_records(&mut self, spans: &mut Vec<(u64, u64)>, steps: &mut Vec<Step>) -> bool {
        let image = self.image;
        for section in &image.directory.sections {
            let pages = section.pages.iter().filter(|p| !p.is_direct());
            let mut records: Vec<RecordRef> = pages.map(|p: &PageRef| p.record).collect();
            let listed =
                image
                    .records
                    .each_ref(section.record_type, section.stream as u8, &mut |record| {
                        records.push(*record);
                        Ok(())
                    });
            steps.extend(listed.err().map(Step::BasePlace));
            for record in records {
                spans.push((record.offset, record.end()));
                if let Err(error) = self.count_record(&record) {
                    steps.push(Step::BasePlace(error));
                    return false;
                }
                if !self.skips_data || record.record_type != RecordType::Data {
                    steps.push(Step::Verify(record));
                }
            }
        }
        true
    }

    /// Counts a record.
    ///
    /// # Errors
    /// `Corrupt` if the records so far are longer than the file.
    fn count_record(&mut self, record: &RecordRef) -> Result<()> {
        self.report.record_count = self.report.record_count.saturating_add(1);
        self.report.stored_len = self.report.stored_len.saturating_add(record.stored_len);
        let headers = self.report.record_count.saturating_mul(HEADER_LEN as u64);
        let directory_offset = self.image.footer.directory_offset;
        if self.report.stored_len.saturating_add(headers) <= directory_offset {
            return Ok(());
        }
        let what =
            format!("records take more than the {directory_offset} bytes before the directory");
        Err(Error::corrupt(
            "directory",
            directory_offset,
            "F-7.11",
            what,
        ))
    }

    /// Verifies the listed records with threads; reports what is found in the order of the list.
    fn verify_records(&mut self, steps: Vec<Step>) {
        let records = &self.image.records;
        let verify = |step: Step| match step {
            Step::BasePlace(error) => Some(error),
            Step::Verify(record) => records.verify(&record).err(),
        };
        let threads = threads_for(self.report.stored_len, self.options.threads);
        let errors = in_parallel(threads, steps, &verify);
        errors.into_iter().for_each(|error| self.found(error));
    }

    fn check_tree(&mut self) {
        self.check_pages();
        let contents = contents::check_contents(self);
        self.check_names(&contents);
    }

    /// As [`Checker::check_tree`], with contents whose digests are known and are not read.
    fn check_tree_of(&mut self, digests: Option<&[Option<Digest>]>) {
        self.check_pages();
        let content_count = self.image.summary.content_count;
        let count = digests.map_or(content_count, |digests| digests.len() as u64);
        if let Err(error) = contents::check_layout(self.image, count) {
            self.found(error);
        }
        match digests {
            Some(digests) => self.check_names(digests),
            None => {
                let any = vec![Some(Digest::default()); usize::try_from(count).unwrap_or(0)];
                let templates = self.check_templates(&any);
                self.check_links(&templates);
            }
        }
    }

    fn check_names(&mut self, contents: &[Option<Digest>]) {
        let templates = self.check_templates(contents);
        let links = self.check_links(&templates);
        let is_damaged = contents.iter().any(Option::is_none)
            || templates.iter().any(CheckedTemplate::is_damaged);
        if is_damaged {
            damage::report_paths(self, contents, &templates);
        }
        let Some(links) = links.filter(|_| !is_damaged) else {
            return;
        };
        if let Err(error) = self.check_tree_digest(contents, &templates, &links) {
            self.found(error);
        }
    }

    /// Stored bytes of the metadata.
    fn page_len(&self) -> u64 {
        let sections = self.image.directory.sections.iter();
        let types = sections.map(|s| (s.record_type, s.stream as u8));
        let mut len = 0u64;
        for (record_type, stream) in types.filter(|(t, _)| *t != RecordType::Data) {
            // The check of the records has reported what is wrong with the list.
            let _ = self
                .image
                .records
                .each_ref(record_type, stream, &mut |record| {
                    len = len.saturating_add(record.stored_len);
                    Ok(())
                });
        }
        len
    }

    /// Parses every page, also those to which nothing refers.
    fn check_pages(&mut self) {
        let image = self.image;
        let sections = image.directory.sections.iter();
        let is_page = |t: &RecordType| !matches!(t, RecordType::Data | RecordType::Dictionary);
        let types = sections.map(|s| s.record_type).filter(is_page);
        let numbers = |t| (0..image.records.record_count(t, 0)).map(move |no| (t, no));
        let parse = |(record_type, no)| {
            let found = image.records.record(record_type, 0, no);
            found.and_then(|f| image.records.page(&f)).err()
        };
        let pages = types.flat_map(numbers).collect();
        let threads = threads_for(self.page_len(), self.options.threads);
        let errors = in_parallel(threads, pages, &parse);
        errors.into_iter().for_each(|error| self.found(error));
    }

    fn check_tree_digest(
        &self,
        contents: &[Option<Digest>],
        templates: &[CheckedTemplate],
        links: &[Link],
    ) -> Result<()> {
        let time_count = self.image.records.item_count(RecordType::Times, 0);
        let name_count = self.image.summary.name_count;
        let holder = match time_count {
            0 => templates.last().and_then(|t| t.digest).unwrap_or_default(),
            _ if time_count != name_count => {
                let what =
                    format!("times overlay: expected {name_count} times, found {time_count}");
                return Err(bad("F-15.3", what));
            }
            _ => tree_digest::holder_digest(self.image, contents)?,
        };
        let mut hasher = TreeHasher::new(&holder);
        links.iter().for_each(|l| hasher.add_link(l));
        let digest = hasher.finish();
        if digest == self.image.footer.tree_digest {
            Ok(())
        } else {
            let what = format!(
                "tree digest: expected {}, found {digest}",
                self.image.footer.tree_digest
            );
            Err(bad("F-16.1", what))
        }
    }

    fn check_templates(&mut self, contents: &[Option<Digest>]) -> Vec<CheckedTemplate> {
        let count = self.image.tree.template_count().saturating_add(1);
        let mut checked: Vec<CheckedTemplate> = Vec::new();
        let mut entry_end = 0;
        for id in 0..count {
            let result = check_template(self.image, id, &mut entry_end, contents, &checked);
            checked.push(result.unwrap_or_else(|error| {
                self.found(error);
                CheckedTemplate::broken(self.image.tree.template(id).map_or(0, |t| t.subtree_count))
            }));
        }
        self.report.template_count = count;
        self.report.entry_count = entry_end;
        if entry_end != self.image.summary.entry_count && !checked.iter().any(|t| t.is_broken) {
            let what = format!(
                "templates hold {entry_end} entries, {} are stored",
                self.image.summary.entry_count
            );
            self.found(bad("F-9.6", what));
        }
        if let Err(error) = self.image.tree.holder() {
            self.found(error);
        }
        checked
    }

    /// The link table, if it is correct.
    fn check_links(&mut self, templates: &[CheckedTemplate]) -> Option<Vec<Link>> {
        let is_whole = !templates.iter().any(|t| t.is_broken);
        let expected = templates.last().map_or(0, |t| t.across_count);
        let links = self.image.all_links().and_then(|links| {
            let is_complete = !is_whole || links.len() as u64 == expected;
            if !is_complete || !are_groups_whole(&links) {
                let what = format!(
                    "link table: expected {expected} names in whole groups, found {}",
                    links.len()
                );
                return Err(bad("F-14.3", what));
            }
            if is_whole {
                links.iter().try_for_each(|l| self.check_link(l))?;
            }
            Ok(links)
        });
        links.map_err(|error| self.found(error)).ok()
    }

    /// Whether the name of `link` has the same inode as the first name of its group.
    fn check_link(&self, link: &Link) -> Result<()> {
        let image = self.image;
        let (name, first) = (
            image.inode(InodeNo(link.name_no))?,
            image.inode(InodeNo(link.first_no))?,
        );
        let is_same = name.ino.0 == link.first_no
            && first.ino == name.ino
            && (name.kind, name.nlink, name.size) == (first.kind, link.nlink, first.size)
            && (name.attributes, name.times) == (first.attributes, first.times)
            && (name.content, name.xattr_set) == (first.content, first.xattr_set);
        let is_link = name.kind == weald_format::FileKind::Symlink;
        if is_same && (!is_link || image.read_link(&name)? == image.read_link(&first)?) {
            Ok(())
        } else {
            Err(bad(
                "F-14.4",
                format!("name {} differs from name {}", link.name_no, link.first_no),
            ))
        }
    }

    /// Reports the paths that are unreadable because a record failed its digest; decodes no
    /// content.
    fn report_digest_damage(&mut self) {
        let contents = contents::probe_contents(self);
        let templates = self.check_templates(&contents);
        damage::report_paths(self, &contents, &templates);
    }
}

/// Whether every inode has the number of names that its links state, in ascending order.
fn are_groups_whole(links: &[Link]) -> bool {
    let mut groups = BTreeMap::<u64, (u64, u64)>::new();
    for link in links {
        let group = groups.entry(link.first_no).or_insert((0, link.nlink));
        group.0 = group.0.saturating_add(1);
        if link.nlink != group.1 {
            return false;
        }
    }
    let is_sorted = links
        .windows(2)
        .all(|w| matches!(w, [a, b] if a.name_no < b.name_no));
    is_sorted && groups.values().all(|(found, nlink)| found == nlink)
}
