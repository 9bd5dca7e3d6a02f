//! Images by URL, with a real S3 server and a real web server on this machine. Needs root and
//! `/dev/fuse` for mounts.
#![allow(missing_docs)]

mod cache;
mod failures;
mod ground;
mod mounted;
mod publish;
mod reading;
mod replicas;
mod stores;
#[path = "../support/mod.rs"]
mod support;
mod tiers;
