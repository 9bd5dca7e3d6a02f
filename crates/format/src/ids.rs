//! Numbers that name things, each of a type of its own, so that one is not taken for another.

use std::fmt;

/// Bits of a cookie that tell names with equal hashes apart.
const COOKIE_SLOT_BITS: u32 = 7;
/// The bits of a cookie that are its slot.
const SLOT_MASK: u64 = (1 << COOKIE_SLOT_BITS) - 1;

/// Number of a segment of a store. Segments are made in the order of their numbers, and none is
/// given to another segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SegmentNo(pub u64);

impl SegmentNo {
    /// The number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Number of a block in its store. It is never given to another block, and there is no block 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockId(pub u64);

impl BlockId {
    /// Greater than every block that a store has.
    pub const MAX: Self = Self(u64::MAX);

    /// The block after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// How far it is from `other`, in what rows and maps store; [`BlockId::moved`] undoes it.
    pub fn steps_from(self, other: Self) -> i64 {
        self.0.wrapping_sub(other.0) as i64
    }

    /// The block that is `step` away.
    #[must_use]
    pub fn moved(self, step: i64) -> Self {
        Self(self.0.wrapping_add(step as u64))
    }

    /// The block before this one.
    #[must_use]
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The key of its row.
    pub fn key(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

/// Number of a commit of the tables of a store. A volume counts its own commits apart from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitNo(pub u64);

impl CommitNo {
    /// The commit after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Number of a commit of a volume, from 1 on. Each volume counts its own, apart from the commits of
/// its store ([`CommitNo`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VolumeCommitNo(pub u64);

impl VolumeCommitNo {
    /// No commit: a new volume has it.
    pub const NONE: Self = Self(0);

    /// The commit after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The commit `count` commits before this one, [`VolumeCommitNo::NONE`] included, if the volume
    /// had as many.
    pub fn before(self, count: u64) -> Option<Self> {
        self.0.checked_sub(count).map(Self)
    }
}

/// Number of a record of a sync log in its layer, from 1 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RecordNo(pub u64);

impl RecordNo {
    /// The record that follows `count` others in its layer.
    pub fn after(count: u64) -> Self {
        Self(count.saturating_add(1))
    }

    /// Number of records of the layer in front of this one.
    pub fn count_before(self) -> u64 {
        self.0.saturating_sub(1)
    }
}

/// Number of an image in its store. It is never given to another image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ImageNo(pub u64);

/// Number of a volume in its store. It is never given to another volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VolumeNo(pub u32);

impl VolumeNo {
    /// The first bytes of the keys of all rows of the volume.
    pub fn to_be_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }
}

impl From<VolumeNo> for u64 {
    fn from(number: VolumeNo) -> Self {
        number.0.into()
    }
}

/// Number of a snapshot of its volume, from 1 on. It is never given to another snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SnapshotNo(pub u32);

impl SnapshotNo {
    /// No snapshot.
    pub const NONE: Self = Self(0);
    /// The first snapshot of a volume.
    pub const FIRST: Self = Self(1);

    /// The snapshot after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Number of an inode in its volume. It is never given to another inode. Images count theirs apart:
/// [`crate::InodeNo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ino(pub u64);

impl Ino {
    /// No inode: a row has it where it could name one and does not.
    pub const NONE: Self = Self(0);
    /// The root directory.
    pub const ROOT: Self = Self(1);

    /// The inode after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Whether it names no inode.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// Position of a name in its directory of a volume: the hash of the name, and a slot that tells
/// names with equal hashes apart. A listing has the names in the order of their cookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cookie(pub u64);

impl Cookie {
    /// In front of all names: none has it.
    pub const START: Self = Self(0);
    /// Behind all names.
    pub const MAX: Self = Self(u64::MAX);

    /// The first cookie of names with this hash of 57 bits at most.
    pub fn of_hash(hash: u64) -> Self {
        Self(hash << COOKIE_SLOT_BITS)
    }

    /// The cookie after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The hash of the names that can have it.
    pub fn hash(self) -> u64 {
        self.0 >> COOKIE_SLOT_BITS
    }

    /// The first cookie of names with this hash.
    #[must_use]
    pub fn first_slot(self) -> Self {
        Self(self.0 & !SLOT_MASK)
    }

    /// The last cookie of names with this hash.
    #[must_use]
    pub fn last_slot(self) -> Self {
        Self(self.0 | SLOT_MASK)
    }

    /// All cookies of names with this hash, in order.
    pub fn slots(self) -> impl Iterator<Item = Self> {
        (self.first_slot().0..=self.last_slot().0).map(Self)
    }
}

/// Number of a window of a file's content: all windows of a volume have the same length, but for
/// the last one of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WindowNo(pub u64);

impl WindowNo {
    /// The window at the beginning of a file.
    pub const FIRST: Self = Self(0);
    /// Greater than every window that a file has.
    pub const MAX: Self = Self(u64::MAX);

    /// The window that has the byte `at` of a file, if windows have `window_len` bytes.
    pub fn of(at: u64, window_len: u32) -> Self {
        Self(at.checked_div(window_len.into()).unwrap_or(0))
    }

    /// Its first byte in the file, if windows have `window_len` bytes.
    pub fn start(self, window_len: u32) -> u64 {
        self.0.saturating_mul(window_len.into())
    }

    /// The window after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The windows from this one to `last`.
    pub fn through(self, last: Self) -> impl Iterator<Item = Self> {
        (self.0..=last.0).map(Self)
    }
}

/// Shows each of these types as the number that it is.
macro_rules! shown_as_number {
    ($kind:ident: $($id:ident),+) => {$(
        impl fmt::$kind for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::$kind::fmt(&self.0, f)
            }
        }
    )+};
}

shown_as_number!(Display: SegmentNo, BlockId, CommitNo, VolumeCommitNo, RecordNo, ImageNo);
shown_as_number!(Display: VolumeNo, SnapshotNo, Ino, WindowNo);
shown_as_number!(LowerHex: SegmentNo, ImageNo, VolumeNo);
