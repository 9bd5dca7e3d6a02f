//! A directory that is open while the tree is written: its entries so far, and the digest of what
//! they are.

use weald_format::entries::EntryFields;

/// Memory of each kind that a closed directory keeps for the next one, bytes.
const SPARE_LEN: usize = 16 << 10;

/// An open directory.
pub struct OpenDirectory {
    /// Names of its entries, one behind the other.
    pub names: Vec<u8>,
    /// Targets of its symlinks, likewise.
    pub targets: Vec<u8>,
    /// Its entries.
    pub entries: Vec<Pending>,
    /// Digests what makes the logical directory what it is.
    pub logical: Digester,
    /// Names below its subdirectories.
    pub deeper_count: u64,
    /// Subdirectories.
    pub directory_count: u64,
    /// An inode has names here, or below, and in other directories too: the logical digest does not
    /// tell that.
    pub links_across: bool,
}

/// An entry of it.
pub struct Pending {
    /// Where its name ends.
    pub name_end: usize,
    /// Where its target ends.
    pub target_end: usize,
    /// What else it is.
    pub fields: EntryFields,
}

impl OpenDirectory {
    /// One without entries.
    pub fn new() -> Self {
        Self {
            names: Vec::new(),
            targets: Vec::new(),
            entries: Vec::new(),
            logical: Digester::default(),
            deeper_count: 0,
            directory_count: 0,
            links_across: false,
        }
    }

    /// Empty again; memory of a few entries stays.
    pub fn reuse(&mut self) {
        self.names.clear();
        self.targets.clear();
        self.entries.clear();
        self.names.shrink_to(SPARE_LEN);
        self.targets.shrink_to(SPARE_LEN);
        self.entries.shrink_to(SPARE_LEN / size_of::<Pending>());
        (self.deeper_count, self.directory_count) = (0, 0);
        self.links_across = false;
    }

    /// The name that came last.
    pub fn last_name(&self) -> Option<&[u8]> {
        let start = match self.entries.len().checked_sub(2) {
            Some(before) => self.entries[before].name_end,
            None => 0,
        };
        self.entries.last().map(|e| &self.names[start..e.name_end])
    }
}

/// A digest of what comes in small pieces: BLAKE3 is four times as fast when it sees many at once.
#[derive(Default)]
pub struct Digester {
    hasher: blake3::Hasher,
    pending: Vec<u8>,
    /// The hasher has seen bytes.
    is_begun: bool,
}

impl Digester {
    /// Bytes that are digested together: twice what its widest code takes side by side. Only a
    /// directory of hundreds of entries has as many.
    const PENDING_LEN: usize = 32 << 10;

    /// Has `append` add bytes.
    pub fn add(&mut self, append: impl FnOnce(&mut Vec<u8>)) {
        append(&mut self.pending);
        if self.pending.len() >= Self::PENDING_LEN {
            self.hasher.update(&self.pending);
            self.is_begun = true;
            self.pending.clear();
        }
    }

    /// The digest; what follows is digested anew.
    pub fn finish(&mut self) -> [u8; 32] {
        if self.is_begun {
            self.hasher.update(&self.pending);
            let digest = *self.hasher.finalize().as_bytes();
            self.hasher.reset();
            self.is_begun = false;
            self.pending.clear();
            return digest;
        }
        let digest = *blake3::hash(&self.pending).as_bytes();
        self.pending.clear();
        digest
    }
}
