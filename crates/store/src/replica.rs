//! Replicas: what a store has committed, in another place (`docs/design/0033-replicas.md`).
//!
//! A place has files of data, named by their digests, and items. An item leads from one state of
//! the tables to another: it has the rows that changed, or all rows, and names the bytes of
//! segments and the maps that came with them. Items form a chain, and each says the sum of all rows
//! before and after it, so that nothing can be missing, doubled or out of order unnoticed.
//!
//! [`Store::send_replica`] reads the journal, the segments and the maps, beside the writer of the
//! store if there is one. [`restore_store`] makes a store of any state, and [`verify_replica`]
//! reads everything.

mod bucket;
mod epochs;
mod follow;
mod gather;
mod items;
mod location;
mod needs;
mod objects;
mod pipe;
mod place;
mod promote;
mod prune;
mod record;
mod repair;
mod restore;
mod rows;
mod scrub;
mod send;
mod settle;
mod standby;
mod status;
mod throttled;
mod unsent;
mod verify;

pub use bucket::{BucketObjects, BucketPlace};
pub use follow::{FollowOptions, Followed};
pub use location::PlaceLocation;
pub use pipe::{Receiving, receive};
pub use place::{DirPlace, Place};
pub use promote::{PromoteOptions, Promoted};
pub use prune::Pruned;
pub use record::{ReplicaSettings, WhenLost};
pub use restore::{AsOf, RestoredStore, restore_store};
pub use scrub::Scrubbed;
pub use send::{SendOptions, Sent};
pub use standby::{StandbyOptions, StandbyStatus};
pub use status::ReplicaStatus;
pub use unsent::{Unsent, UnsentVolume};
pub use verify::{ReplicaState, Verified, replica_states, verify_replica};
