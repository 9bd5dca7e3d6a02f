//! `weald import oci` and `weald export oci`, judged by skopeo, umoci and podman, with Debian roots
//! of mmdebstrap.
#![allow(missing_docs)]

#[path = "../support/mod.rs"]
mod support;

mod debian;
mod layouts;
mod roots;
mod run;
mod through;
