//! Options of volumes.

use std::time::Duration;
use weald_codec::CodecSpec;

/// Options of a new volume.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// Length of the blocks that files are cut into: a power of two, 4 KiB to 16 MiB.
    pub chunk_len: u32,
    /// Codec of blocks: none, LZ4 or Zstandard.
    pub codec: CodecSpec,
    /// Whether names that differ in case only are equal.
    pub is_case_insensitive: bool,
    /// Permissions of the root directory.
    pub permissions: u16,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            chunk_len: 128 << 10,
            codec: CodecSpec::Lz4,
            is_case_insensitive: false,
            permissions: 0o755,
            uid: 0,
            gid: 0,
        }
    }
}

/// Promise that a sync makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// Everything before the sync is durable when it returns.
    #[default]
    Strict,
    /// A sync of a file whose content waits for no commit, and of a directory, returns at once.
    /// Any other sync is strict.
    Data,
    /// A sync does nothing: up to `commit_interval` of changes are lost by a crash.
    Ignore,
}

/// Options of an open volume.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Refuse all changes.
    pub is_read_only: bool,
    /// Longest time until a change is committed.
    pub commit_interval: Duration,
    /// Memory for changes that wait and for decoded blocks, bytes.
    pub cache_len: u64,
    /// Memory of the dedup index, bytes.
    pub index_len: u64,
    /// Promise of a sync.
    pub sync_mode: SyncMode,
    /// Never sync the disk before the volume is closed: a power cut can then damage the store.
    pub ignores_barriers: bool,
    /// Read all content into the cache, as far as it has room.
    pub is_preloaded: bool,
    /// Threads that encode blocks.
    pub threads: usize,
    /// Process id and command, shown to a second writer of the store.
    pub who: String,
    /// Commit in a thread of its own. Without it, the operation that fills the memory commits.
    pub background: bool,
    /// A deliberate bug that a simulation must find.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub bug: Option<PlantedBug>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            is_read_only: false,
            commit_interval: Duration::from_secs(5),
            cache_len: 64 << 20,
            index_len: 64 << 20,
            sync_mode: SyncMode::Strict,
            ignores_barriers: false,
            is_preloaded: false,
            threads: 1,
            who: format!("process {}", std::process::id()),
            background: true,
            #[cfg(any(test, feature = "planted-bugs"))]
            bug: None,
        }
    }
}

/// Deliberate bugs that prove that a simulation finds bugs.
#[cfg(any(test, feature = "planted-bugs"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// Rows are committed before the bytes that they refer to are synced.
    MetadataBeforeData,
    /// The space of dead blocks is freed before the commit that makes them dead.
    FreedBeforeCommit,
    /// One new reference of a commit is not counted.
    LostIncrement,
    /// One dropped reference of a commit is not counted.
    LostDecrement,
    /// Reads skip the layer that is being committed.
    FrozenLayerIgnored,
    /// Truncating a file leaves the bytes behind the new end.
    TruncateKeepsTail,
    /// A rename leaves the old name.
    RenameWithoutUnlink,
    /// A removed open file is not noted as orphan.
    OrphanNotRecorded,
    /// A sync returns before the commit.
    SyncReturnsEarly,
    /// Bytes of the layer that is being committed win over newer ones.
    StaleOverlay,
}

#[cfg(any(test, feature = "planted-bugs"))]
impl PlantedBug {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::MetadataBeforeData,
        Self::FreedBeforeCommit,
        Self::LostIncrement,
        Self::LostDecrement,
        Self::FrozenLayerIgnored,
        Self::TruncateKeepsTail,
        Self::RenameWithoutUnlink,
        Self::OrphanNotRecorded,
        Self::SyncReturnsEarly,
        Self::StaleOverlay,
    ];
}
