//! The newest snapshots of volumes, as a commit needs them.

use std::collections::BTreeMap;
use weald_format::{Ino, SnapshotNo, VolumeNo};

/// The newest snapshot of a volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Newest {
    pub no: SnapshotNo,
    /// Inodes from here on are none of it.
    pub next_ino: Ino,
}

/// The newest snapshots of the volumes that were changed; a volume without one has `None`.
pub(crate) type NewestSnapshots = BTreeMap<VolumeNo, Option<Newest>>;
