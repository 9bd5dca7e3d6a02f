//! Options of volumes.

use std::time::Duration;
use weald_codec::CodecSpec;
use weald_store::faults::{Bug, Faults};
use weald_store::{Steps, StoreWriter};

/// Shortest length of chunks, bytes.
pub const CHUNK_LEN_MIN: u32 = 4 << 10;
/// Longest length of chunks, bytes.
pub const CHUNK_LEN_MAX: u32 = 16 << 20;

/// Where data that was written in order is cut into pieces, each of which is looked for as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Chunking {
    /// Archives at the borders of their members, other files as `Fixed`.
    #[default]
    Auto,
    /// At multiples of the chunk length.
    Fixed,
    /// Archives at the borders of their members, other files where their bytes say.
    Content,
}

impl Chunking {
    /// All of them, by their words.
    pub const WORDS: [(&str, Self); 3] = [
        ("auto", Self::Auto),
        ("fixed", Self::Fixed),
        ("content", Self::Content),
    ];

    /// Parses a word.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = Self::WORDS.into_iter();
        words.find(|(word, _)| *word == text).map(|(_, it)| it)
    }

    /// Its word.
    pub fn word(self) -> &'static str {
        let mut words = Self::WORDS.into_iter();
        words
            .find(|(_, it)| *it == self)
            .map_or("auto", |(word, _)| word)
    }
}

/// Options of a new volume.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// Length of the blocks that files are cut into: a power of two, 4 KiB to 16 MiB.
    pub chunk_len: u32,
    /// Codec of blocks: none, LZ4 or Zstandard.
    pub codec: CodecSpec,
    /// Where files are cut that say nothing themselves.
    pub chunking: Chunking,
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
            chunking: Chunking::Auto,
            is_case_insensitive: false,
            permissions: 0o755,
            uid: 0,
            gid: 0,
        }
    }
}

/// Durability that a sync waits for.
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
    /// Durability that a sync waits for.
    pub sync_mode: SyncMode,
    /// Never sync the disk before the volume is closed: a power cut can then damage the store.
    pub ignores_barriers: bool,
    /// Length of the sync log, bytes: two halves of whole pages of 4 KiB. 0 for no log: each sync
    /// commits.
    pub log_len: u64,
    /// Syncs of a mount before the log is made. Until then, each of them commits.
    pub syncs_without_log: u64,
    /// Open the volume although synced changes in the log are damaged, without them.
    pub drops_damaged_log: bool,
    /// Read all content into the cache, as far as it fits.
    pub is_preloaded: bool,
    /// Whether listings of the root have `.snapshots`, which can be entered in any case.
    pub shows_snapshots: bool,
    /// Threads that encode blocks.
    pub threads: usize,
    /// Longest time that a commit spends in slow codecs, by an estimate that does not depend on the
    /// machine. Later data of the commit is encoded faster, and again when nothing waits.
    pub slow_encoding_max: Duration,
    /// Process id and command, shown to a second writer of the store.
    pub writer_name: String,
    /// Commit in a thread of its own. Without it, the operation that fills the memory commits.
    pub background: bool,
    /// Random number that tells the records of this writer from those of all others; `None` takes
    /// one.
    pub epoch: Option<u64>,
    /// Sizes of the steps in which images are added and removed and space is collected.
    pub steps: Steps,
    /// Sizes of the steps in which rows of long ranges of files are read.
    pub windows: WindowSteps,
    /// A deliberate bug, if a simulation must find it.
    pub faults: Faults<PlantedBug>,
    /// Holds up reads of rows.
    #[cfg(test)]
    pub gate: Option<std::sync::Arc<crate::tests::apart::Gate>>,
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
            log_len: 32 << 20,
            syncs_without_log: 8,
            drops_damaged_log: false,
            is_preloaded: false,
            shows_snapshots: false,
            threads: 1,
            slow_encoding_max: Duration::from_millis(500),
            writer_name: format!("process {}", std::process::id()),
            background: true,
            epoch: None,
            // The tests of this crate have volumes of a few blocks.
            steps: if cfg!(test) {
                Steps::small()
            } else {
                Steps::default()
            },
            windows: if cfg!(test) {
                WindowSteps::small()
            } else {
                WindowSteps::default()
            },
            faults: Faults::default(),
            #[cfg(test)]
            gate: None,
        }
    }
}

/// How many windows of a range of a file are read in which way.
#[derive(Debug, Clone, Copy)]
pub struct WindowSteps {
    /// Windows of a range that are read one by one, and kept in the caches. Those of a longer range
    /// are not: it is read once.
    pub kept_max: u64,
    /// Windows of a longer range that are read before the lock is taken.
    pub ahead_max: usize,
}

impl Default for WindowSteps {
    /// As many are read ahead as one change removes: their rows take some 20 MB.
    fn default() -> Self {
        Self {
            kept_max: 64,
            ahead_max: 1 << 16,
        }
    }
}

impl WindowSteps {
    /// For volumes of small files.
    fn small() -> Self {
        Self {
            kept_max: 4,
            ahead_max: 6,
        }
    }
}

/// Deliberate bugs that prove that a simulation finds bugs.
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
    /// Rows that were read ahead in part are taken for all rows of the range.
    WindowsAheadCut,
    /// A run that is cut again because its file grew loses its first bytes.
    TailOfRunLost,
    /// A run that crosses the border of a window begins anew behind it.
    RunBeginsAnew,
    /// A record of the sync log is acknowledged before it is synced.
    LogUnsynced,
    /// Records of the sync log are read although their commit is done.
    LogDeadRead,
    /// Records that were written in part are read.
    LogTornRead,
    /// Records miss the names that a rename or a removal takes away.
    LogMissesOldNames,
    /// Records miss the accounts of quotas.
    LogMissesQuotas,
    /// Records take the place of those whose commit is under way.
    LogReusedEarly,
    /// A record is acknowledged although the sync of the record before it failed.
    LogAheadAcknowledged,
    /// A record says that all records before it are durable, which are being synced.
    LogAheadCounted,
    /// Records behind the end that a crash left stay valid when the log receives new ones.
    LogRestKept,
    /// A volume that is open for reading only does not show the changes in the sync log.
    LogHiddenReadOnly,
    /// A group of rows that is divided loses its last rows.
    DividedRowsLost,
    /// The space of dead blocks is freed while a seal reads them.
    HeldBlocksFreed,
    /// A seal does not keep the newest block of the state that it reads.
    NewestHeldFreed,
    /// The reference of a new image to one block is not counted.
    ImageReferenceLost,
    /// A new image is listed before its blocks are synced.
    ImageBeforeData,
    /// A new image is listed before its references are counted.
    ImageBeforeReferences,
    /// The row of an image that is being removed does not say which references are dropped.
    RemovalNotNoted,
    /// A renamed image keeps its old name until the new one is committed: a power cut leaves a name
    /// that no row has.
    RenamedMapNotHidden,
    /// A collection goes on while a seal reads blocks that it moves.
    HeldBlocksMoved,
    /// A collection removes the file of a segment before the rows of its blocks have moved.
    SegmentRemovedEarly,
    /// A collection moves the rows of blocks before their copies are synced.
    MovedBeforeData,
    /// A collection leaves the maps of images as they are.
    MapsNotRenewed,
    /// The space of dead blocks is freed while a seal of another volume reads them.
    HoldOfOthersIgnored,
    /// A commit lets other volumes use the writer between its blocks and its transaction.
    WriterReleased,
    /// A piece of a sparse block that is written again has the first bytes of the block.
    SettledFromStart,
    /// A row that a snapshot has is not kept when it changes.
    RowNotKept,
    /// A row that changes again takes the place of what was kept.
    RowKeptTwice,
    /// That a snapshot does not have a row is not kept.
    AbsenceNotKept,
    /// The references of kept rows are not counted.
    KeptNotCounted,
    /// The removal of a snapshot takes rows that an older one has.
    SharedRowDropped,
    /// The removal of a snapshot goes on one row too late.
    SnapshotResumesLate,
    /// A rollback does not say that it is under way.
    RollbackNotNoted,
    /// A rollback leaves the rows of newer inodes.
    NewRowsStay,
    /// The references of a clone are not counted.
    CloneNotCounted,
    /// A scrub takes what moves meanwhile for damaged.
    ScrubUnconfirmed,
}

impl PlantedBug {
    /// Gives the writer the bug `of_writer` if this one is among the faults.
    pub(crate) fn plant(self, faults: Faults<Self>, writer: &mut StoreWriter, of_writer: Bug) {
        if faults.has(self) {
            writer.faults = faults.map(|_| Some(of_writer));
        }
    }

    /// All of them.
    pub const ALL: [Self; 48] = [
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
        Self::WindowsAheadCut,
        Self::TailOfRunLost,
        Self::RunBeginsAnew,
        Self::LogUnsynced,
        Self::LogDeadRead,
        Self::LogTornRead,
        Self::LogMissesOldNames,
        Self::LogMissesQuotas,
        Self::LogReusedEarly,
        Self::LogAheadAcknowledged,
        Self::LogAheadCounted,
        Self::LogRestKept,
        Self::LogHiddenReadOnly,
        Self::DividedRowsLost,
        Self::HeldBlocksFreed,
        Self::NewestHeldFreed,
        Self::ImageReferenceLost,
        Self::ImageBeforeData,
        Self::ImageBeforeReferences,
        Self::RemovalNotNoted,
        Self::RenamedMapNotHidden,
        Self::HeldBlocksMoved,
        Self::SegmentRemovedEarly,
        Self::MovedBeforeData,
        Self::MapsNotRenewed,
        Self::HoldOfOthersIgnored,
        Self::WriterReleased,
        Self::SettledFromStart,
        Self::RowNotKept,
        Self::RowKeptTwice,
        Self::AbsenceNotKept,
        Self::KeptNotCounted,
        Self::SharedRowDropped,
        Self::SnapshotResumesLate,
        Self::RollbackNotNoted,
        Self::NewRowsStay,
        Self::CloneNotCounted,
        Self::ScrubUnconfirmed,
    ];
}
