//! Flags of an inode of a volume, which chattr(1) sets.

/// Flags of an inode, as bits of its row. Images have none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct InodeFlags(u8);

impl InodeFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Nothing changes the inode, and it gets no other name and keeps the one that it has (`+i`).
    pub const IMMUTABLE: Self = Self(1);
    /// Content and entries are only added (`+a`).
    pub const APPEND_ONLY: Self = Self(2);
    /// Reads leave the access time as it is (`+A`).
    pub const NO_ATIME: Self = Self(4);
    /// Programs that make backups may leave the inode out (`+d`).
    pub const NO_DUMP: Self = Self(8);
    /// The flags that forbid changes.
    pub const LOCKS: Self = Self(1 | 2);
    /// All flags.
    pub const ALL: Self = Self(15);

    /// The flags with these bits; bits without a meaning are dropped.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// The bits.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether no flag is set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether one of `others` is set.
    pub const fn has_any(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// These flags and `others`.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }
}
