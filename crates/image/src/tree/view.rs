//! Instances of directories.

use weald_format::pages::Template;

/// One directory instance.
#[derive(Debug, Clone, Copy)]
pub struct DirectoryView {
    /// Its template.
    pub template_id: u64,
    /// The loaded template.
    pub template: Template,
    /// Number of its first entry.
    pub base: u64,
    /// Its own number.
    pub no: u64,
}
