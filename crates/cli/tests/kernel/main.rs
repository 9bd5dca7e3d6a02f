//! `weald mount --kernel` as users call it, with real mounts. Needs root, EROFS and overlayfs.

mod claims;
mod commits;
mod contents;
mod ground;
mod kept;
mod layers;
mod life_cycle;
mod refused;
mod rootless;
#[path = "../../../image/tests/support/mod.rs"]
mod support;
mod uppers;
