//! Writes the tree of a stream, directory by directory.

use super::reporter::ProgressReporter;
use super::rules::Rules;
use super::source::{StreamEntry, TreeSink, TreeSource};
use super::walk::write_walk;
use crate::write::emit::{Emitted, LinkPages};
use crate::write::image_writer::{ImageWriter, Sink};
use crate::write::metadata::MetadataWriter;
use crate::write::times::TimesWriter;
use crate::write::tree_writer::{LinkInfo, Out, TreeSummary, TreeWriter, mask_of};
use std::ops::Range;
use weald_format::tree_digest::TreeHasher;
use weald_format::{Attributes, ContentId, Error, FileKind, Result, Timestamp, XattrSet};

/// Entries of each trial that decides where mtimes go.
const TRIAL_COUNT: u64 = 1 << 20;

/// Calls `source` for its tree and writes it; `threads` threads encode it.
///
/// # Errors
/// As [`super::build_stream`].
pub fn write_tree(
    source: &mut dyn TreeSource,
    (image, metadata): (&mut ImageWriter, &mut MetadataWriter),
    rules: &Rules<'_>,
    threads: usize,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Emitted> {
    let entry_count = source.size().entry_count;
    let root = source.root()?;
    let root = &root.entry();
    let mut out = Out {
        image: &mut *image,
        metadata: &mut *metadata,
    };
    if let Some(summary) = write_walk(source, &mut out, rules, entry_count, reporter)? {
        metadata.finish(image)?;
        let tree_digest = TreeHasher::new(&summary.root_digest).finish();
        return Ok(Emitted {
            summary,
            tree_digest,
        });
    }
    let trial = |source: &mut dyn TreeSource, mtime_inside, reporter: &mut ProgressReporter<'_>| {
        let mut image = ImageWriter::begin(Sink::Count)?;
        let mut metadata = MetadataWriter::new(3);
        metadata.encode_with(threads);
        let out = Out {
            image: &mut image,
            metadata: &mut metadata,
        };
        let count = reporter.entry_count;
        let mut sink = TreeSinkWriter::new(out, rules, root, mtime_inside, entry_count, reporter)?;
        sink.remaining_count = TRIAL_COUNT;
        source.tree(&mut sink)?;
        sink.finish()?;
        metadata.finish(&mut image)?;
        reporter.entry_count = count;
        Ok::<u64, Error>(image.position())
    };
    let mtime_inside = source.size().has_one_mtime
        || trial(source, true, reporter)? <= trial(source, false, reporter)?;
    reporter.entry_count = 0;
    let out = Out { image, metadata };
    let mut sink = TreeSinkWriter::new(out, rules, root, mtime_inside, entry_count, reporter)?;
    source.tree(&mut sink)?;
    if !sink.is_complete() {
        return Err(Error::invalid(
            "the source ended its tree before all directories came",
        ));
    }
    let summary = sink.finish()?;
    let mut hasher = TreeHasher::new(&summary.root_digest);
    let mut out = Out { image, metadata };
    let mut pages = LinkPages::new(&mut out, &mut hasher);
    if !rules.splits_links() {
        source.links(&mut |link| pages.push(link))?;
    }
    pages.finish()?;
    metadata.finish(image)?;
    Ok(Emitted {
        summary,
        tree_digest: hasher.finish(),
    })
}

/// A directory of which not all entries are written yet, because a subdirectory is still to come.
struct PendingDirectory {
    text: Vec<u8>,
    entries: Vec<PendingEntry>,
    next: usize,
}

struct PendingEntry {
    name: Range<usize>,
    target: Range<usize>,
    kind: FileKind,
    attributes: Attributes,
    mtime: Timestamp,
    xattrs: Option<XattrSet>,
    content: Option<ContentId>,
    link: LinkInfo,
}

impl PendingDirectory {
    fn new(entries: &[StreamEntry<'_>]) -> Self {
        let mut text = Vec::new();
        let mut put = |bytes: &[u8]| {
            let start = text.len();
            text.extend_from_slice(bytes);
            start..text.len()
        };
        let entries = entries
            .iter()
            .map(|e| PendingEntry {
                name: put(e.name),
                target: put(e.target),
                kind: e.kind,
                attributes: e.attributes,
                mtime: e.mtime,
                xattrs: e.xattrs.cloned(),
                content: e.content,
                link: e.link,
            })
            .collect();
        Self {
            text,
            entries,
            next: 0,
        }
    }

    fn entry(&self, index: usize) -> Option<StreamEntry<'_>> {
        let entry = self.entries.get(index)?;
        Some(StreamEntry {
            name: &self.text[entry.name.clone()],
            kind: entry.kind,
            attributes: entry.attributes,
            mtime: entry.mtime,
            xattrs: entry.xattrs.as_ref(),
            content: entry.content,
            target: &self.text[entry.target.clone()],
            link: entry.link,
        })
    }
}

/// Takes the tree top-down and writes it bottom-up.
struct TreeSinkWriter<'s, 'a> {
    out: Out<'s>,
    rules: &'s Rules<'a>,
    reporter: &'s mut dyn CountEntries,
    writer: TreeWriter,
    /// Directories on the current path; the first is a holder of the root alone.
    open_dirs: Vec<PendingDirectory>,
    /// mtimes in the order of name numbers; `None` if they go into the entries.
    times: Option<TimesWriter>,
    /// Entries still to be taken; a trial ends at 0.
    remaining_count: u64,
}

/// Counts entries for progress reports.
trait CountEntries {
    fn count(&mut self, entries: u64, written_len: u64) -> Result<()>;
}

impl CountEntries for ProgressReporter<'_> {
    fn count(&mut self, entries: u64, written_len: u64) -> Result<()> {
        self.advance(entries, 0, written_len)
    }
}

impl<'s, 'a> TreeSinkWriter<'s, 'a> {
    fn new(
        mut out: Out<'s>,
        rules: &'s Rules<'a>,
        root: &StreamEntry<'_>,
        mtime_inside: bool,
        entry_count: u64,
        reporter: &'s mut dyn CountEntries,
    ) -> Result<Self> {
        let mask = mask_of(mtime_inside, false, false, false);
        let times = if mtime_inside {
            None
        } else {
            let mut times = TimesWriter::default();
            times.push(&mut out, rules.root_mtime(root.mtime))?;
            Some(times)
        };
        let mut writer = TreeWriter::new(mask, entry_count.max(1), false);
        writer.limit_known(rules.known_len());
        Ok(Self {
            out,
            rules,
            reporter,
            writer,
            open_dirs: vec![PendingDirectory::new(std::slice::from_ref(root))],
            times,
            remaining_count: u64::MAX,
        })
    }

    /// Whether all announced directories have come.
    fn is_complete(&self) -> bool {
        self.open_dirs.len() == 1 && self.open_dirs[0].next == 1
    }

    /// Writes entries up to the next subdirectory, whose entries are still to come, and closes
    /// finished directories.
    fn write_to_next_subdirectory(&mut self) -> Result<()> {
        let mut depth = self.open_dirs.len();
        while let Some(top) = self.open_dirs.last_mut() {
            match top.entry(top.next) {
                Some(entry) if entry.kind == FileKind::Directory => return Ok(()),
                Some(entry) => {
                    let (writer, out) = (&mut self.writer, &mut self.out);
                    self.rules.with_entry(&entry, |new| writer.add(out, new))?;
                    top.next += 1;
                }
                None if depth == 1 => return Ok(()),
                None => {
                    self.open_dirs.pop();
                    depth -= 1;
                    self.close_subdirectory()?;
                }
            }
        }
        Ok(())
    }

    /// Writes the entry of a subdirectory that is complete, in the last held directory.
    fn close_subdirectory(&mut self) -> Result<()> {
        if let Some(top) = self.open_dirs.last_mut()
            && let Some(entry) = top.entry(top.next)
        {
            let (writer, out) = (&mut self.writer, &mut self.out);
            self.rules
                .with_entry(&entry, |new| writer.leave(out, new))?;
            top.next += 1;
        }
        Ok(())
    }

    fn add_times(&mut self, entries: &[StreamEntry<'_>]) -> Result<()> {
        let Some(times) = &mut self.times else {
            return Ok(());
        };
        for entry in entries {
            times.push(&mut self.out, self.rules.mtime(entry.mtime))?;
        }
        Ok(())
    }

    /// Closes directories that did not come whole (in a trial), and writes the rest.
    fn finish(mut self) -> Result<TreeSummary> {
        while self.open_dirs.len() > 1 {
            self.open_dirs.pop();
            self.close_subdirectory()?;
        }
        if self.open_dirs[0].next == 0 {
            // The stream had not even a root directory.
            self.writer.enter();
            self.close_subdirectory()?;
        }
        if let Some(times) = self.times {
            times.finish(&mut self.out)?;
        }
        self.writer.finish(&mut self.out)
    }
}

impl TreeSink for TreeSinkWriter<'_, '_> {
    fn directory(&mut self, entries: &[StreamEntry<'_>]) -> Result<bool> {
        if self.is_complete() {
            return Err(Error::invalid(
                "the source handed over more directories than it announced",
            ));
        }
        self.add_times(entries)?;
        self.writer.enter();
        if entries.iter().any(|e| e.kind == FileKind::Directory) {
            self.open_dirs.push(PendingDirectory::new(entries))
        } else {
            for entry in entries {
                let (writer, out) = (&mut self.writer, &mut self.out);
                self.rules.with_entry(entry, |new| writer.add(out, new))?;
            }
            self.close_subdirectory()?;
        }
        self.write_to_next_subdirectory()?;
        let count = entries.len() as u64;
        self.remaining_count = self.remaining_count.saturating_sub(count);
        self.reporter.count(count, self.out.image.position())?;
        Ok(self.remaining_count > 0)
    }
}
