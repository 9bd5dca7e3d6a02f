//! Types of the search interface.

use weald_image::Inode;

/// An entry that matches.
#[derive(Debug, Clone, Copy)]
pub struct Hit<'a> {
    /// Path from the root of the image; empty for the root.
    pub path: &'a [u8],
    /// Its inode.
    pub inode: &'a Inode,
    /// 0 for the start of the search, 1 for its entries, and so on.
    pub depth: usize,
}

/// Options of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchOptions {
    /// Greatest depth below the start; `None` for no limit.
    pub depth_max: Option<usize>,
    /// Whether to count matches instead of writing them.
    pub is_counted: bool,
    /// Threads that search.
    pub thread_count: usize,
}
