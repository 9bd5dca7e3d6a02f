//! Sizes of steps of an open store.

/// Sizes of the steps in which the writer of an open store collects, removes and adds, so that
/// other changes go on between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Bytes that one step of a collection copies.
    pub copy_len: u64,
    /// Number of segments whose blocks are found in one pass over the rows.
    pub segment_count: usize,
    /// Parts of an image whose references one step counts or drops.
    pub part_count: usize,
    /// Kept rows that one step of the removal of a snapshot looks at, and rows that one step of a
    /// rollback or a clone sets.
    pub row_count: usize,
    /// Bytes of commits in the journal before all rows are written to it again, at least.
    pub journal_len: u64,
    /// Rows that one commit writes to the journal, of all rows.
    pub journal_row_count: usize,
    /// Bytes of blocks that one step of a scrub reads.
    pub scrub_len: u64,
    /// Blocks from which on a group of a scrub ends with its segment.
    pub scrub_block_count: usize,
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            copy_len: 8 << 20,
            segment_count: 32,
            part_count: 1 << 12,
            row_count: 1 << 14,
            journal_len: 1 << 20,
            journal_row_count: 1 << 18,
            scrub_len: 8 << 20,
            scrub_block_count: 1 << 18,
        }
    }
}

impl Steps {
    /// Steps that are small enough for simulations: each operation on a few blocks takes several.
    pub fn small() -> Self {
        Self {
            copy_len: 6000,
            segment_count: 3,
            part_count: 3,
            row_count: 4,
            journal_len: 3000,
            journal_row_count: 20,
            scrub_len: 6000,
            scrub_block_count: 5,
        }
    }
}
