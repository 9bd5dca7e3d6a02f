//! Writes the tree of a stream that comes as a walk. It holds only the entries of the directories
//! on the current path.

use super::tree::Rules;
use super::{StreamEntry, Teller, TreeSource, WalkSink};
use crate::tree_writer::{Out, TreeSummary, TreeWriter, mask_of};
use weald_format::{Error, Result};

/// Entries between two progress reports and memory checks.
const TELL_COUNT: u64 = 1 << 12;

/// Calls `source` for its tree as a walk and writes it; `None` if the source has no walk.
///
/// # Errors
/// As [`super::build_stream`].
pub fn write_walk(
    source: &mut dyn TreeSource,
    out: &mut Out<'_>,
    rules: &Rules<'_>,
    entry_count: u64,
    teller: &mut Teller<'_>,
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
    let mut sink = Walking {
        writer,
        out,
        rules,
        teller,
        depth: 1,
        count: 0,
        counted: 0,
    };
    if !source.walk(&mut sink)? {
        return Ok(None);
    }
    if sink.depth != 1 {
        return Err(Error::invalid("a walk ended below the root"));
    }
    sink.leave(&root.entry())?;
    sink.writer.finish(sink.out).map(Some)
}

struct Walking<'s, 'o, 'r, 't> {
    writer: TreeWriter,
    out: &'s mut Out<'o>,
    rules: &'s Rules<'r>,
    teller: &'s mut Teller<'t>,
    /// Number of open directories.
    depth: u64,
    count: u64,
    /// Entries already reported.
    counted: u64,
}

impl Walking<'_, '_, '_, '_> {
    fn count(&mut self) -> Result<()> {
        self.count += 1;
        let new = self.count - self.counted;
        if new < TELL_COUNT {
            return Ok(());
        }
        self.counted = self.count;
        self.rules
            .check(self.writer.open_entry_count(), self.depth)?;
        self.teller.tell(new, 0, self.out.image.position())
    }
}

impl WalkSink for Walking<'_, '_, '_, '_> {
    fn entry(&mut self, entry: &StreamEntry<'_>) -> Result<()> {
        self.writer.add(self.out, &self.rules.new_entry(entry))?;
        self.count()
    }

    fn enter(&mut self) {
        self.writer.enter();
        self.depth += 1;
    }

    fn leave(&mut self, entry: &StreamEntry<'_>) -> Result<()> {
        self.writer.leave(self.out, &self.rules.new_entry(entry))?;
        self.depth -= 1;
        self.count()
    }
}
