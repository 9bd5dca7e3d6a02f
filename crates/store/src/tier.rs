//! Tiers: other directories, usually of other disks, in which closed segments of the store lie.
//!
//! A segment lies as a whole in the store's own directory, the home, or in one tier. Which one is
//! written nowhere: whoever looks for a segment looks in the home and then in the tiers, by rank.
//! So neither rows nor maps change when a segment moves, readers find it without the tables, and a
//! crash in the middle of a move leaves at worst the same segment in two places, of which the first
//! in that order counts.
//!
//! Files from bottom to top: `record` (what a store knows of its tiers, and a tier of its store),
//! `receipt` and `bucket` (a tier that is no directory), `disk` (one disk out of many), `manage`
//! and `manage_bucket` (add, change, remove) and `moving` (one segment), `plan` (which segments
//! should move), `heat` (which were used) and `pins` (what belongs where), `mover` (what a run
//! does).

mod bucket;
mod disk;
mod heat;
mod manage;
mod manage_bucket;
mod mover;
mod moving;
mod pins;
mod plan;
mod receipt;
mod record;

pub use crate::far_objects::{is_far, parse_place};
pub use disk::TieredDisk;
pub(crate) use heat::Heat;
pub use manage::{NewTier, TierState};
pub use mover::{MoveHost, Mover, OwnWriter, PinAll, SegmentUse, TierReport};
pub use moving::{Moved, SegmentMove};
pub use pins::Pins;
pub use plan::{PlannedMove, Use, Why};
pub use record::{HOME, Hours, Tier, TierPolicy, check_tier_name};
