//! Snapshots of volumes: states that stay, with names (`docs/design/0035-snapshots.md`).
//!
//! `rows` reads their rows, `view` shows the tables of a volume as a snapshot has them; `keep` is
//! what commits do for snapshots. `manage` takes, holds and lists them, `reading` keeps one
//! that is read, `remove` removes one in steps, `rollback` gives a volume the state of one again,
//! `clone` makes a volume that starts as one.

mod clone;
mod keep;
mod manage;
mod reading;
mod remove;
mod rollback;
mod rows;
mod view;

pub use manage::{Snapshot, check_snapshot_name, removed_snapshot_count, snapshot, snapshots};
pub use reading::SnapshotLock;
pub use remove::{SnapshotSpace, SnapshotSpaces, SnapshotStep};
pub use rows::changed_rows;
pub use view::SnapshotView;
