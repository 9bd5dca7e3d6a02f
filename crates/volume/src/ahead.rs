//! Rows of windows that were read before an operation takes the lock of the volume, for ranges that
//! are too long for the caches of the tables.
//!
//! They are what the tables have as long as no commit has changed rows since the reading began. An
//! operation whose rows are stale reads the tables under the lock, as it would without them.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weald_format::volume::ExtentsRow;
use weald_format::{Ino, WindowNo};

/// Committed windows of one file that follow each other.
#[derive(Debug)]
pub struct WindowsAhead {
    /// The first window that was looked for.
    pub first: WindowNo,
    /// Windows from here on were not looked for.
    pub end: WindowNo,
    /// Number of commits before the rows were read.
    pub version: u64,
    /// Those that there are, in order.
    pub rows: Vec<(WindowNo, ExtentsRow)>,
}

impl WindowsAhead {
    /// Whether it has all rows of the window `first`, if no more than `version` commits were made.
    fn has(&self, first: WindowNo, version: u64) -> bool {
        self.version == version && (self.first..self.end).contains(&first)
    }

    /// The rows from the window `first` on.
    pub fn rows_from(&self, first: WindowNo) -> &[(WindowNo, ExtentsRow)] {
        let at = self.rows.partition_point(|(window, _)| *window < first);
        self.rows.get(at..).unwrap_or_default()
    }
}

/// Rows that operations which are under way have read.
#[derive(Debug, Default)]
pub struct Shelf {
    /// Number of files below, so that most operations look no further.
    count: AtomicUsize,
    files: Mutex<BTreeMap<Ino, Vec<Arc<WindowsAhead>>>>,
}

impl Shelf {
    /// Rows of the file `ino` from the window `first` on, that are those of `version`.
    pub fn find(&self, ino: Ino, first: WindowNo, version: u64) -> Option<Arc<WindowsAhead>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let files = self.files.lock();
        let mut of_file = files.get(&ino)?.iter();
        of_file.find(|rows| rows.has(first, version)).cloned()
    }

    /// Keeps rows as long as the result exists.
    pub fn keep(&self, ino: Ino, rows: WindowsAhead) -> Kept<'_> {
        let rows = Arc::new(rows);
        let mut files = self.files.lock();
        files.entry(ino).or_default().push(rows.clone());
        self.count.store(files.len(), Ordering::Release);
        Kept {
            shelf: self,
            ino,
            rows,
        }
    }
}

/// Rows of one operation on the shelf.
#[derive(Debug)]
pub struct Kept<'a> {
    shelf: &'a Shelf,
    ino: Ino,
    rows: Arc<WindowsAhead>,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        let mut files = self.shelf.files.lock();
        if let Some(of_file) = files.get_mut(&self.ino) {
            of_file.retain(|rows| !Arc::ptr_eq(rows, &self.rows));
            if of_file.is_empty() {
                files.remove(&self.ino);
            }
        }
        self.shelf.count.store(files.len(), Ordering::Release);
    }
}
