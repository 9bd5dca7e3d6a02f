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
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            copy_len: 8 << 20,
            segment_count: 32,
            part_count: 1 << 12,
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
        }
    }
}
