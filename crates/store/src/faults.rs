//! Deliberate bugs, which prove that a simulation finds bugs. A release has none: there
//! [`Faults::has`] is false, and the compiler removes what it guards.

/// The fault of a program, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults<F> {
    #[cfg(any(test, feature = "planted-bugs"))]
    fault: Option<F>,
    of: std::marker::PhantomData<F>,
}

impl<F> Default for Faults<F> {
    fn default() -> Self {
        Self {
            #[cfg(any(test, feature = "planted-bugs"))]
            fault: None,
            of: std::marker::PhantomData,
        }
    }
}

impl<F: Copy + PartialEq> Faults<F> {
    /// This fault, or none.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub fn of(fault: impl Into<Option<F>>) -> Self {
        Self {
            fault: fault.into(),
            of: std::marker::PhantomData,
        }
    }

    /// The fault of another part of the program that `of` makes of this one.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub fn map<G>(self, of: impl FnOnce(F) -> Option<G>) -> Faults<G> {
        Faults {
            fault: self.fault.and_then(of),
            of: std::marker::PhantomData,
        }
    }

    /// The fault of another part of the program: none.
    #[cfg(not(any(test, feature = "planted-bugs")))]
    pub fn map<G>(self, _: impl FnOnce(F) -> Option<G>) -> Faults<G> {
        Faults::default()
    }

    /// Whether `fault` is there.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub fn has(self, fault: F) -> bool {
        self.fault == Some(fault)
    }

    /// Whether `fault` is there: no.
    #[cfg(not(any(test, feature = "planted-bugs")))]
    pub const fn has(self, _: F) -> bool {
        false
    }
}

/// Deliberate bugs of a writer and of its sync logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Rows are committed before the bytes that they refer to are synced.
    MetadataBeforeData,
    /// The removal of an image does not drop the reference to one block.
    LostDecrement,
    /// The reference to one block of a new image is not counted.
    LostIncrement,
    /// The files of emptied segments are removed before the maps are rewritten.
    SegmentRemovedBeforeMaps,
    /// The file of an emptied segment is removed before the rows have moved.
    SegmentRemovedEarly,
    /// The old file of a segment that moves is removed before the new one has its name.
    MovedBeforeCopy,
    /// The old file is removed before the new one is durable.
    MovedUnsynced,
    /// An object that could not be put into a bucket counts as there.
    PutUnconfirmed,
    /// What an interrupted move has noted is removed from a bucket, whatever the receipts say.
    ReceiptIgnored,
    /// A segment that goes to a bucket again gets the key that it had.
    KeyUsedAgain,
    /// A move does not look whether the segment was emptied meanwhile.
    MoveIgnoresRow,
    /// Files that a tier has kept while it was away, and that nothing knows, stay there.
    StraysStay,
    /// A segment that was to move gets records of a later writer.
    MovedStaysOpen,
    /// A tier that fails stops the store.
    TierStopsStore,
    /// A sort leaves the blocks of the last class where they are, and empties the segment.
    SortedRestLost,
    /// A sort leaves the maps of images as they are.
    SortedMapsStay,
    /// A sort puts blocks of two classes into one segment.
    SortedClassesMixed,
    /// The row of an image that is removed does not say what was dropped.
    RemovalNotNoted,
    /// The map of a replaced image is not kept under its reserved name.
    ReplacedMapNotKept,
    /// A replaced image is removed while it is read.
    ReplacedReleasedEarly,
    /// The map of an image that gets another name keeps the old one until the commit.
    RenamedMapNotHidden,
    /// A group of rows that is divided loses its last rows.
    DividedRowsLost,
    /// A note names the blocks of its records in another order.
    NoteNamesOthers,
    /// What lies behind the committed bytes of a segment is truncated, whoever wrote it.
    TailTruncated,
    /// The mark is written before the tables have the commit.
    MarkBeforeCommit,
    /// The journal lacks some commits.
    JournalLacksCommit,
    /// A commit is in the tables before it is durable in the journal.
    JournalUnsynced,
    /// The journal lacks a row when all are written to it.
    CheckpointLacksRow,
    /// A replica gets an item although data that it names could not be put.
    DataUnacknowledged,
    /// An item that goes to a replica is not noted before it is sent.
    ItemNotNoted,
    /// A replica gets an item although something that it needs went while it was read.
    MovedDataIgnored,
    /// A replica lacks some maps.
    ReplicaLacksMap,
    /// The newest commit of the journal is sent, which the tables may not have.
    UnsureCommitSent,
    /// A store that was put back from an older copy sends to its replica.
    OlderStoreSends,
    /// A store counts an item as sent without a look whether another store took over meanwhile.
    EpochNotReadAgain,
    /// A standby takes over after it has listed what there is.
    EpochPutLate,
    /// A number of the log of a place in a bucket is put without a condition.
    LogReplaced,
    /// A conditional write that is refused counts as done.
    RefusedIsDone,
    /// Items and epochs of a place in a bucket are those that the bucket lists.
    ListTrusted,
    /// A standby has rows whose bytes are not durable.
    FollowsRowsFirst,
    /// A returning store keeps its own block where a standby has written another one.
    OwnBlockKept,
    /// A standby applies an item to other rows than it leads from.
    RowsBeforeIgnored,
    /// A file of a replica is taken for what its name says.
    ReplicaUnverified,
    /// Changes are sent although the replica lacks an item before.
    RowsNotCounted,
    /// An item that is damaged or missing ends the writer.
    ItemEndsWriter,
    /// Rows that a failed change has set are not undone, and go into the next commit.
    RowsNotUndone,
    /// A segment is emptied, and its file removed, beside a map that is missing.
    MissingMapIgnored,
    /// A record of a sync log is acknowledged before it is synced.
    LogUnsynced,
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
    RemovalResumesLate,
    /// A rollback does not say that it is under way.
    RollbackNotNoted,
    /// A rollback leaves the rows of newer inodes.
    NewRowsStay,
    /// The references of a clone are not counted.
    CloneNotCounted,
    /// A step of a scrub is counted as done although a part of it was not read.
    ScrubSkipsStep,
    /// A scrub takes what moves meanwhile for damaged.
    ScrubUnconfirmed,
    /// Records of a sync log are read although their commit is done.
    LogDeadRead,
    /// Records of a sync log that were written in part are read.
    LogTornRead,
    /// Records take the place of those whose commit is under way.
    LogReusedEarly,
    /// A record says that all records before it are durable, which are being synced.
    LogAheadCounted,
}
