//! Stores by their commands: a life from create to salvage, mounts of their images, crashes, bad
//! input. Runs as root, needs `/dev/fuse`.
#![allow(missing_docs)]

mod crashes;
mod damage;
mod ground;
mod hosts;
mod life;
mod many;
mod mounted;
