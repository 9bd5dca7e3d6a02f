//! A directory while the tree is written: its entries so far and their digest.

use weald_format::entries::EntryFields;

/// Memory of each buffer that a closed directory keeps for the next one, bytes.
const SPARE_LEN: usize = 16 << 10;

pub struct OpenDirectory {
    /// Names of its entries, concatenated.
    pub names: Vec<u8>,
    /// Targets of its symlinks, concatenated.
    pub targets: Vec<u8>,
    pub entries: Vec<Pending>,
    /// Digest of the logical entries.
    pub logical: Digester,
    /// Number of names below its subdirectories.
    pub deeper_count: u64,
    /// Number of subdirectories.
    pub directory_count: u64,
    /// Whether an inode has names here (or below) and in other directories. The logical digest does
    /// not include that.
    pub links_across: bool,
}

/// An entry of an open directory.
pub struct Pending {
    /// End of its name in `names`.
    pub name_end: usize,
    /// End of its target in `targets`.
    pub target_end: usize,
    /// All other fields.
    pub fields: EntryFields,
}

impl OpenDirectory {
    /// An empty directory.
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

    /// Clears the directory and keeps the memory of a few entries.
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

    /// The name added last.
    pub fn last_name(&self) -> Option<&[u8]> {
        let start = match self.entries.len().checked_sub(2) {
            Some(before) => self.entries[before].name_end,
            None => 0,
        };
        self.entries.last().map(|e| &self.names[start..e.name_end])
    }
}

/// Digests many small pieces. It buffers them, because BLAKE3 is four times as fast on long input.
#[derive(Default)]
pub struct Digester {
    hasher: blake3::Hasher,
    pending: Vec<u8>,
    /// Whether the hasher has seen bytes.
    is_begun: bool,
}

impl Digester {
    /// Bytes digested together: twice the input that the widest BLAKE3 code processes in parallel.
    /// Only a directory of hundreds of entries has so many.
    const PENDING_LEN: usize = 32 << 10;

    /// Calls `append` to add bytes.
    pub fn add(&mut self, append: impl FnOnce(&mut Vec<u8>)) {
        append(&mut self.pending);
        if self.pending.len() >= Self::PENDING_LEN {
            self.hasher.update(&self.pending);
            self.is_begun = true;
            self.pending.clear();
        }
    }

    /// Returns the digest and starts a new one.
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
