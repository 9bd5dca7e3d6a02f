//! Writes the tree of a stream that comes as a walk. It holds only the entries of the directories
//! on the current path.

use super::reporter::ProgressReporter;
use super::rules::Rules;
use super::source::{StreamEntry, TreeSource, WalkSink};
use crate::write::tree_writer::{Out, TreeSummary, TreeWriter, mask_of};
use weald_format::{Error, Result};

/// Entries between two progress reports and memory checks.
const ENTRIES_PER_CHECK: u64 = 1 << 12;

/// Calls `source` for its tree as a walk and writes it; `None` if the source has no walk.
///
/// # Errors
/// As [`super::build_stream`].
pub fn write_walk(
    source: &mut dyn TreeSource,
    out: &mut Out<'_>,
    rules: &Rules<'_>,
    entry_count: u64,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Option<TreeSummary>> {
    let root = source.root()?;
    // A single mtime takes almost no space in the entries and makes no two directories differ.
    let mut writer = TreeWriter::new(
        mask_of(true, false, false, false),
        entry_count.max(1),
        false,
    );
    writer.limit_known(rules.known_len());
    writer.enter();
    let mut sink = WalkWriter {
        writer,
        out,
        rules,
        reporter,
        depth: 1,
        count: 0,
        reported_count: 0,
    };
    if !source.walk(&mut sink)? {
        return Ok(None);
    }
    if sink.depth != 1 {
        return Err(Error::invalid(
            "the source ended its walk inside a directory",
        ));
    }
    sink.leave(&root.entry())?;
    sink.writer.finish(sink.out).map(Some)
}

struct WalkWriter<'s, 'o, 'r, 't> {
    writer: TreeWriter,
    out: &'s mut Out<'o>,
    rules: &'s Rules<'r>,
    reporter: &'s mut ProgressReporter<'t>,
    /// Number of open directories.
    depth: u64,
    count: u64,
    /// Entries already reported.
    reported_count: u64,
}

impl WalkWriter<'_, '_, '_, '_> {
    fn count(&mut self) -> Result<()> {
        self.count += 1;
        let new = self.count - self.reported_count;
        if new < ENTRIES_PER_CHECK {
            return Ok(());
        }
        self.reported_count = self.count;
        self.rules
            .check(self.writer.open_entry_count(), self.depth)?;
        self.reporter.advance(new, 0, self.out.image.position())
    }
}

impl WalkSink for WalkWriter<'_, '_, '_, '_> {
    fn entry(&mut self, entry: &StreamEntry<'_>) -> Result<()> {
        let Self { writer, out, .. } = self;
        self.rules.with_entry(entry, |new| writer.add(out, new))?;
        self.count()
    }

    fn enter(&mut self) {
        self.writer.enter();
        self.depth += 1;
    }

    fn leave(&mut self, entry: &StreamEntry<'_>) -> Result<()> {
        let Self { writer, out, .. } = self;
        self.rules.with_entry(entry, |new| writer.leave(out, new))?;
        self.depth -= 1;
        self.count()
    }
}
