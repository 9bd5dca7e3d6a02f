//! Forms of an image that other systems mount: composefs, EROFS, OCI layers.
//! `docs/design/0024-views.md` gives the reasons.
#![forbid(unsafe_code)]

pub mod composefs;
pub mod erofs;
pub mod kernel;
pub mod oci;
mod spill;
