//! `weald mount --kernel` as users call it, with real mounts. Needs root, EROFS and overlayfs.

mod contents;
mod ground;
mod kept;
mod layers;
mod lives;
mod refused;
mod rootless;
