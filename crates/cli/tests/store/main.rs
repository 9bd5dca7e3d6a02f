//! Tests of `weald store`: from create to salvage, mounts of images, crashes, bad input. Needs root
//! and `/dev/fuse`.
#![allow(missing_docs)]

mod add;
mod crashes;
mod damage;
mod followed;
mod ground;
mod hosts;
mod life;
mod many;
mod missing;
mod mounted;
mod names;
mod older;
mod pins;
mod replaced;
mod replica_places;
mod replicas;
mod rows;
mod standby;
mod state_files;
mod tiers;
