//! What a check finds.

use std::fmt;
use weald_format::Ino;

/// Options of a check.
#[derive(Debug, Clone, Copy, Default)]
pub struct CheckOptions {
    /// Read every block and verify its digest.
    pub reads_data: bool,
}

/// A defect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finding {
    /// The image that it affects, in the check of a store.
    pub image: Option<String>,
    /// The volume that it affects, in the check of a store.
    pub volume: Option<String>,
    /// The file that it affects, from the root, as far as names lead to it; the root is empty.
    pub path: Option<Vec<u8>>,
    /// The inode of this file in its volume.
    pub inode: Option<Ino>,
    /// Description of the defect.
    pub what: String,
}

impl Finding {
    /// A finding about no file.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            ..Self::default()
        }
    }

    /// The file that it affects, in words; empty if it affects none.
    pub fn subject(&self) -> String {
        match (&self.path, self.inode) {
            (Some(path), _) if path.is_empty() => "the root directory".to_owned(),
            (Some(path), _) => format!("{:?}", String::from_utf8_lossy(path)),
            (None, Some(ino)) => format!("inode {ino} (no path)"),
            (None, None) => String::new(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for of in [&self.image, &self.volume].into_iter().flatten() {
            write!(f, "{of}: ")?;
        }
        match self.subject().as_str() {
            "" => {}
            subject => write!(f, "{subject}: ")?,
        }
        f.write_str(&self.what)
    }
}

/// Results of a check of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of inodes.
    pub inode_count: u64,
    /// Number of names.
    pub name_count: u64,
    /// Bytes of files that are no hole.
    pub logical_len: u64,
    /// Bytes of blocks that were read and verified.
    pub verified_len: u64,
    /// Number of records of the volume's sync log that wait for a commit.
    pub log_record_count: u64,
    /// Defects.
    pub findings: Vec<Finding>,
}
