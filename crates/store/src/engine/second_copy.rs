//! A second copy of rows, from which an engine makes damaged ones again.

use super::Table;
use parking_lot::Mutex;
use std::fmt;
use std::sync::OnceLock;

/// Groups that one call makes again.
pub(super) const REPAIRS_MAX: usize = 64;

/// Keys between two others, which do not belong to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The last key before it; `None` from the first key on.
    pub after: Option<Vec<u8>>,
    /// The first key behind it; `None` to the last key.
    pub before: Option<Vec<u8>>,
}

impl Gap {
    /// Whether `key` lies in it.
    pub fn has(&self, key: &[u8]) -> bool {
        self.after.as_deref().is_none_or(|after| after < key)
            && self.before.as_deref().is_none_or(|before| key < before)
    }
}

/// Rows with their keys.
pub(crate) type KeyedRows = Vec<(Vec<u8>, Vec<u8>)>;

/// Gives the rows of a table in a gap, as they were after the commit with this counter; `None` if
/// it does not know them.
pub(crate) type RowsAgain = dyn Fn(Table, &Gap, &[u8]) -> Option<KeyedRows> + Send + Sync;

/// What is needed for repairs.
#[derive(Default)]
pub(super) struct Repairs {
    pub second_copy: OnceLock<Box<RowsAgain>>,
    /// The damage that was met last: table, and key of the group or row.
    pub damaged: Mutex<Option<(Table, Vec<u8>)>>,
    /// Held while a transaction changes rows.
    pub writing: Mutex<()>,
}

impl fmt::Debug for Repairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Repairs")
    }
}

impl Repairs {
    /// Notes damage that a call meets.
    pub fn note(&self, table: Table, key: &[u8]) {
        if self.second_copy.get().is_some() {
            *self.damaged.lock() = Some((table, key.to_vec()));
        }
    }
}
